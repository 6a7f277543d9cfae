package jobscan

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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

// A memory directory that dies during a watch hides neither a process nor a record in the spare directory, and
// records are found again when it answers.
func TestWatchWhenRecordsDie(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{"/proc/1/cmdline": "init\x00", "/past/job-1.json": "{}", "/spare/x": ""}))
	h.SetPast("/past", "/spare")
	w, err := WatchJobs(h, "job-")
	if err != nil {
		t.Fatal(err)
	}
	put := func(path string) {
		t.Helper()
		if err := os.WriteFile(h.Path(path), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(job string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			found := make(chan string, 1)
			go func() { found <- w.New() }()
			select {
			case got := <-found:
				if got == job {
					return
				}
				if got != "" || time.Now().After(end) {
					t.Fatalf("job %q, want %q", got, job)
				}
			case <-time.After(time.Minute):
				t.Fatalf("the watch hangs; want job %q", job)
			}
		}
	}
	if err := os.Rename(h.Path("/past"), h.Path("/answers")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(h.Path("/past"), 0o600); err != nil { // its open waits for a writer
		t.Fatal(err)
	}
	want("")
	put("/spare/job-2.json.interim")
	want("2")
	writer, err := os.OpenFile(h.Path("/past"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if err := os.Remove(h.Path("/past")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(h.Path("/answers"), h.Path("/past")); err != nil {
		t.Fatal(err)
	}
	put("/past/job-3.json")
	want("3")
	want("")
	if calls := append(h.Unanswered(), h.SilentCalls()...); w.Blind || len(calls) > 0 || !h.PastAnswers() {
		t.Errorf("blind %v, silent %q: a late look judges the directory", w.Blind, calls)
	}
}
