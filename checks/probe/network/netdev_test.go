package network

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestNetDevices(t *testing.T) {
	t.Parallel()
	file := "Inter-|   Receive                    |  Transmit\n" +
		" face |bytes    packets errs          |bytes    packets\n" +
		"    lo: 1234 12 0 0 0 0 0 0 1234 12 0 0 0 0 0 0\n" +
		"  eth0:99 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n\n"
	got, err := NetDevices(probe.NewHost(probetest.Tree(t, map[string]string{"proc/net/dev": file})))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"lo", "eth0"}, got); diff != "" {
		t.Errorf("NetDevices (-want +got):\n%s", diff)
	}
	if _, err := NetDevices(probe.NewHost(probetest.Tree(t, nil))); probetest.Message(err) != "read /proc/net/dev: no such file or directory" {
		t.Errorf("without the file: %v", err)
	}
}
