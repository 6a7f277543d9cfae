package worker

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// A memory directory that has no time left is silent: the answer is of the spare directory, and comes in time.
func TestRecordsInTime(t *testing.T) {
	t.Parallel()
	root := probetest.Tree(t, nil)
	ask := func(req *wire.Request) *wire.Response {
		w := &worker{host: probe.NewHost(root)}
		w.host.SetPast("/var/lib/x", "/run/x/past")
		return w.record(req)
	}
	keep := &wire.Request{Op: wire.OpKeep, Name: "run", Data: []byte("1"), Timeout: 1}
	recall := &wire.Request{Op: wire.OpRecall, Name: "run", Timeout: 1}
	if resp := ask(recall); resp.Kind != wire.Silent || len(resp.Records) > 0 {
		t.Errorf("recall: %+v, want a silent memory", resp)
	}
	if resp := ask(keep); resp.Kind != wire.Elsewhere {
		t.Errorf("keep: %+v, want the spare directory", resp)
	}
	if resp := ask(recall); resp.Kind != wire.Silent || resp.Err != "" || len(resp.Records) != 1 {
		t.Errorf("recall: %+v, want the record", resp)
	}
	recall.Timeout, keep.Timeout = 0, 0
	if resp := ask(keep); resp.Kind != 0 || resp.Err != "" {
		t.Errorf("keep without a limit: %+v", resp)
	}
	if resp := ask(recall); resp.Kind != 0 || len(resp.Records) != 1 {
		t.Errorf("recall without a limit: %+v", resp)
	}
}
