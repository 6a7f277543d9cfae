package probe

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestModules(t *testing.T) {
	t.Parallel()
	for content, want := range map[string][]string{
		"": nil,
		"gm 40960 2 - Live 0x0000000000000000\nnvme_core 200704 3 nvme, Live 0x0 (O)\n": {"gm", "nvme_core"},
		"\n \t\nlast": {"last"},
		"\xff\x00 x":  {"\xff\x00"},
	} {
		got, err := Modules(NewHost(probetest.Tree(t, map[string]string{"proc/modules": content})))
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("of %q: %v (-want +got):\n%s", content, err, diff)
		}
	}
	if got, err := Modules(NewHost(probetest.Tree(t, nil))); got != nil || err != nil {
		t.Errorf("without the file: %v, %v", got, err)
	}
	if _, err := Modules(NewHost(probetest.Tree(t, map[string]string{"proc/modules/": ""}))); probetest.Message(err) != "read /proc/modules: is a directory" {
		t.Errorf("of a directory: %v", err)
	}
}
