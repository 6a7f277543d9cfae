package jobscan

import (
	"os"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// A watch asks no memory directory that does not answer: the test that needs it would hang.
func TestWatchWithoutRecords(t *testing.T) {
	t.Parallel()
	for want, stuck := range map[string][]string{"2": nil, "": {"read /past"}} {
		h := probe.NewHost(probetest.Tree(t, map[string]string{"/proc/1/cmdline": "init\x00", "/past/job-1.json": "{}"}))
		h.SetPast("/past")
		h.SetStuck(stuck)
		w, err := WatchJobs(h, "job-")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(h.Path("/past/job-2.json"), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := w.New(); got != want {
			t.Errorf("stuck %q: job %q, want %q", stuck, got, want)
		}
	}
}
