package probe

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

func TestPast(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, nil))
	var got map[string]int
	if err := h.Recall("gpu", &got); !errors.Is(err, ErrNoMemory) {
		t.Errorf("Recall without a directory: %v", err)
	}
	if err := h.Keep("gpu", 1); !errors.Is(err, ErrNoMemory) {
		t.Errorf("Keep without a directory: %v", err)
	}
	h.SetPast("/var/lib/x")
	if err := h.Recall("gpu", &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Recall of nothing: %v", err)
	}
	want := map[string]int{"a": 1}
	for range 2 {
		if err := h.Keep("gpu", want); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Recall("gpu", &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	dir := h.Path("/var/lib/x")
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("%v, %v, want one file", entries, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "gpu.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v, want mode 0600", info, err)
	}
}

// If the memory directory cannot be written a spare one is used, and reported once; when it can be
// written again the spare one is cleared.
func TestPastSpare(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"/var/lib": "a file where a directory should be"}))
	h.SetPast("/var/lib/x", "/run/x/past")
	keep := func(n int) error {
		t.Helper()
		err := h.Keep("gpu", n)
		var got int
		if back := h.Recall("gpu", &got); back != nil || got != n {
			t.Errorf("Recall = %d, %v, want %d", got, back, n)
		}
		return err
	}
	var spare *SpareError
	if err := keep(1); !errors.As(err, &spare) || spare.Dir != "/run/x/past" || !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("the first time: %v", err)
	}
	if err := keep(2); err != nil {
		t.Errorf("the second time: %v", err)
	}
	if err := os.Remove(h.Path("/var/lib")); err != nil {
		t.Fatal(err)
	}
	if err := keep(3); err != nil {
		t.Errorf("mended: %v", err)
	}
	if _, err := os.Lstat(h.Path("/run/x/past/gpu.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the spare file: %v, want none", err)
	}
	h = NewHost(probetest.Tree(t, map[string]string{"/var/lib": "", "/run": ""}))
	h.SetPast("/var/lib/x", "/run/x/past")
	if err := h.Keep("gpu", 1); err == nil || errors.As(err, &spare) {
		t.Errorf("nowhere: %v", err)
	}
}

// hostsWithPast returns a root, and what makes a Host of it, as each worker has one. stuck is for SetStuck.
func hostsWithPast(t *testing.T) (root string, host func(stuck ...string) *Host) {
	t.Helper()
	root = probetest.Tree(t, nil)
	return root, func(stuck ...string) *Host {
		h := NewHost(root)
		h.SetPast("/var/lib/x", "/run/x/past")
		h.SetStuck(stuck)
		return h
	}
}

// A memory directory that does not answer for a while loses nothing: the data of runs in that time counts only
// where it has none, and until the directory answers.
func TestPastSilent(t *testing.T) {
	t.Parallel()
	root, host := hostsWithPast(t)
	const silent = "read /var/lib/x"
	keep := func(h *Host, name string, n int) {
		t.Helper()
		if err := h.Keep(name, n); err != nil && !errors.As(err, new(*SpareError)) { // it is reported once
			t.Errorf("Keep: %v", err)
		}
	}
	want := func(h *Host, name string, n int) {
		t.Helper()
		var got int
		if err := h.Recall(name, &got); err != nil && (n != 0 || !errors.Is(err, fs.ErrNotExist)) || got != n {
			t.Errorf("Recall %s: %d, %v, want %d", name, got, err, n)
		}
	}
	wantRecords := func(h *Host, silent bool, list string) {
		t.Helper()
		records, err := Records(h, "g")
		got := ""
		for _, r := range records {
			got += r.Name + "=" + string(r.Data) + " "
		}
		if errors.Is(err, ErrSilent) != silent || err != nil && !silent || got != list {
			t.Errorf("Records: %q, %v, want %q", got, err, list)
		}
	}
	keep(host(), "gpu", 1)
	want(host(silent), "gpu", 0)
	wantRecords(host(silent), true, "")
	keep(host(silent), "gpu", 2)
	keep(host(silent), "gnew", 5)
	want(host(silent), "gpu", 2)
	wantRecords(host(silent), true, "gnew=5 gpu=2 ")
	want(host(), "gnew", 5) // the only one
	wantRecords(host(), false, "gnew=5 gpu=1 ")
	want(host(), "gpu", 1)
	want(host(silent), "gpu", 0)  // that of the time before is gone
	want(host(silent), "gnew", 5) // it is the newest
	if err := Forget(host(), "gnew"); err != nil {
		t.Error(err)
	}
	want(host(), "gnew", 0)

	keep(host(), "strikes", 9)
	keep(host(silent), "strikes", 1)
	keep(host(silent), "strikes-new", 1)
	if _, err := Records(host(), "run-"); err != nil { // a run that reads other files
		t.Error(err)
	}
	want(host(silent), "strikes", 0) // the next silence
	want(host(silent), "strikes-new", 0)
	want(host(), "strikes", 9)
	want(host(), "strikes-new", 0)

	keep(host(), "silence", 7) // an order of a person
	want(host(silent), "silence", 7)
	if err := host(silent).Keep("silence", 8); err == nil || errors.As(err, new(*SpareError)) {
		t.Errorf("an order: %v, want an error", err)
	}
	want(host(silent), "silence", 7)
	want(host(), "silence", 7)
	if err := os.RemoveAll(filepath.Join(root, "run")); err != nil { // a boot
		t.Fatal(err)
	}
	want(host(silent), "silence", 0)
	want(host(), "silence", 7)
	want(host(silent), "silence", 7)
	if err := os.Remove(filepath.Join(root, "var/lib/x/silence.json")); err != nil {
		t.Fatal(err)
	}
	want(host(), "silence", 0)
	want(host(silent), "silence", 0)

	keep(host(), "silence", 8)
	dirs := []string{"/var/lib/x", "/run/x/past"}
	host().copyOrder(dirs, "/var/lib/x/silence.json", []byte("7")) // of a run that has read it before the change
	want(host(silent), "silence", 0)
	want(host(), "silence", 8)
	want(host(silent), "silence", 8)

	var got int
	if err := host(silent, "read /run/x/past").Recall("gpu", &got); !errors.Is(err, ErrNoMemory) {
		t.Errorf("no directory answers: %v", err)
	}
}

// A file that could not be read for lack of descriptors is not replaced.
func TestPastUnread(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, nil))
	h.SetPast("/var/lib/x", "/run/x/past")
	if err := h.Keep("gpu", 1); err != nil {
		t.Fatal(err)
	}
	h.noteUnread("gpu.json", true)
	if err := h.Keep("gpu", 2); err != nil && !errors.As(err, new(*SpareError)) {
		t.Errorf("Keep: %v", err)
	}
	var got int
	if err := h.Recall("gpu", &got); err != nil || got != 1 {
		t.Errorf("Recall: %d, %v, want the old file", got, err)
	}
	if err := h.Keep("gpu", 3); err != nil || h.Recall("gpu", &got) != nil || got != 3 {
		t.Errorf("after it was read: %d, %v", got, err)
	}
	h.noteUnread("silence.json", true)
	if err := h.Keep("silence", 4); err == nil || !errors.Is(h.Recall("silence", &got), fs.ErrNotExist) {
		t.Errorf("an order: %v, %d, want an error", err, got)
	}
}

// Data that must survive a power cut goes to no spare directory, and the file is on the disk before it
// has its name, as is the directory before the return.
func TestKeepOnDisk(t *testing.T) {
	if dir := os.Getenv("NHC_GPU_TEST_KEEP"); dir != "" {
		h := NewHost(dir)
		h.SetPast("/past")
		if err := h.KeepOnDisk("x", 1); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"/var/lib": "a file where a directory should be"}))
	h.SetPast("/var/lib/x", "/run/x/past")
	if err := h.KeepOnDisk("gpu", 1); err == nil || errors.As(err, new(*SpareError)) {
		t.Errorf("%v, want an error", err)
	}
	if _, err := os.Lstat(h.Path("/run/x/past/gpu.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the spare file: %v, want none", err)
	}

	dir, trace := probetest.Tree(t, nil), filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(need.Program(t, "strace"), "-f", "-qq", "-y", "-e", "signal=none", "-e", "trace=fsync,renameat,rename,renameat2", "-o", trace, os.Args[0], "-test.run", "^TestKeepOnDisk$")
	cmd.Env = append(os.Environ(), "NHC_GPU_TEST_KEEP="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(trace)
	want := regexp.MustCompile(`(?s)fsync\(\d+<[^>]*/past/x\.[^>]*>\) *= 0\n.*rename[^\n]*/past/x\.json"[^\n]*= 0\n.*fsync\(\d+<[^>]*/past>\) *= 0\n`)
	if err != nil || !want.Match(text) {
		t.Errorf("%v: system calls\n%s\nwant an fsync of the file, a rename, an fsync of the directory", err, text)
	}
}

// A file that other users could have written, or with invalid JSON, is not used.
func TestPastIsOwn(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(path string) error{
		"writable": func(p string) error { return os.Chmod(p, 0o666) },
		"link": func(p string) error {
			if err := os.Rename(p, p+".real"); err != nil {
				return err
			}
			return os.Symlink(p+".real", p)
		},
		"directory": func(p string) error {
			if err := os.Remove(p); err != nil {
				return err
			}
			return os.Mkdir(p, 0o700)
		},
		"garbage": func(p string) error { return os.WriteFile(p, []byte("{\x00"), 0o600) },
		"empty":   func(p string) error { return os.WriteFile(p, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := NewHost(probetest.Tree(t, nil))
			h.SetPast("/past")
			if err := h.Keep("x", 5); err != nil {
				t.Fatal(err)
			}
			if err := spoil(h.Path("/past/x.json")); err != nil {
				t.Fatal(err)
			}
			var n int
			if err := h.Recall("x", &n); err == nil || errors.Is(err, fs.ErrNotExist) || n != 0 {
				t.Errorf("Recall = %d, %v, want an error that says why", n, err)
			}
		})
	}
}

// A memory directory that does not answer now, in time or with an error of a file server, is silent for the rest of
// the run. Other errors are answers.
func TestPastReached(t *testing.T) {
	t.Parallel()
	hang := errors.New("hangs")
	for _, c := range []struct {
		err    error
		silent bool
	}{
		{nil, false}, {unix.EACCES, false}, {unix.ENOENT, false}, {unix.ENOTDIR, false}, {unix.EROFS, false},
		{unix.EIO, false}, {unix.ENOSPC, false}, {hang, true}, {unix.ESTALE, true}, {unix.ETIMEDOUT, true},
		{unix.EHOSTDOWN, true}, {unix.ENOTCONN, true}, {unix.EMFILE, true},
	} {
		h := NewHost(probetest.Tree(t, nil))
		h.SetPast("/var/lib/x", "/run/x/past")
		limit := time.Minute
		if errors.Is(c.err, hang) {
			limit = time.Millisecond
		}
		_, err := reach(h, h.past, limit, errNoAnswer, func() (int, error) {
			if errors.Is(c.err, hang) {
				select {}
			}
			return 0, c.err
		})
		if (err == nil) != (c.err == nil) || h.PastAnswers() == c.silent || (h.Silence() != nil) != c.silent {
			t.Errorf("%v: %v, answers %v, silence %v", c.err, err, h.PastAnswers(), h.Silence())
		}
		if waits := errors.Is(c.err, hang); (len(h.Unanswered()) > 0) != waits || (len(h.SilentCalls()) > 0) != c.silent {
			t.Errorf("%v: unanswered %q, silent %q", c.err, h.Unanswered(), h.SilentCalls())
		}
		if err := h.Keep("gpu", 1); c.silent && !errors.Is(c.err, hang) && !errors.Is(err, c.err) {
			t.Errorf("%v: Keep: %v, want the cause", c.err, err)
		}
		if list, err := Records(h, "x"); errors.Is(err, ErrSilent) != c.silent || len(list) > 0 {
			t.Errorf("%v: Records: %v, %v", c.err, list, err)
		}
	}
}

// The end of the time of a request says nothing about the memory directory, also while a call waits: the next request
// uses it, and the spare directory has the newest data.
func TestPastNoTime(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		h := NewHost(probetest.Tree(t, nil))
		h.SetPast("/var/lib/x", "/run/x/past")
		if err := h.Keep("gpu", 1); err != nil {
			t.Fatal(err)
		}
		h.SetUntil(time.Now())
		for waits && len(h.Unanswered()) == 0 {
			h.SetUntil(time.Now().Add(time.Millisecond))
			if _, err := reach(h, h.past, time.Minute, errNoAnswer, func() (int, error) { select {} }); !errors.Is(err, errNoTime) {
				t.Errorf("a call that waits: %v, want %v", err, errNoTime)
			}
		}
		if err := h.Keep("gpu", 2); !errors.As(err, new(*SpareError)) || !errors.Is(err, errNoTime) {
			t.Errorf("waits %v: Keep: %v, want %v", waits, err, errNoTime)
		}
		if h.Silence() != nil || h.isSilent(h.past) || (len(h.Unanswered()) > 0) != waits {
			t.Errorf("waits %v: silence %v, unanswered %q", waits, h.Silence(), h.Unanswered())
		}
		if list, err := Records(h, "gpu"); !errors.Is(err, ErrSilent) || len(list) != 1 || string(list[0].Data) != "2" {
			t.Errorf("waits %v: Records: %v, %v, want that of the spare directory", waits, list, err)
		}
		h.SetUntil(time.Time{})
		if list, err := Records(h, "gpu"); err != nil || len(list) != 1 || string(list[0].Data) != "2" {
			t.Errorf("waits %v: the next request: %v, %v, want the newest data", waits, list, err)
		}
	}
}

// A late write ends the worker, but later ones use the memory directory.
func TestPastLateWrite(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, nil))
	h.SetPast("/var/lib/x", "/run/x/past")
	write := func(limit time.Duration) {
		t.Helper()
		h.SetUntil(time.Now().Add(limit)) // as a request of the supervisor
		_, err := reach(h, h.past, keepLimit, errLate, func() (int, error) { select {} })
		h.SetUntil(time.Time{})
		if !errors.Is(err, errNoTime) || h.Silence() != nil || !h.PastAnswers() {
			t.Errorf("%v: silence %v, answers %v", err, h.Silence(), h.PastAnswers())
		}
	}
	write(50 * time.Millisecond)
	if err := h.Keep("soon", 1); err != nil {
		t.Errorf("a write that had no time: %v", err)
	}
	write(3 * answerLimit / 4)
	if _, ok := errors.AsType[*SpareError](h.Keep("gpu", 1)); !ok {
		t.Error("the next write waits in the directory, too")
	}
	if err := AppendLine(h, Journal{Name: "lines", Most: 1 << 20}, []byte("{}")); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(h.Path("/run/x/past/lines.jsonl")); err != nil {
		t.Error(err)
	}
	later := NewHost(h.Path("/")) // another worker, in this run or a later one
	later.SetPast("/var/lib/x", "/run/x/past")
	later.SetStuck(h.Unanswered())
	if err := later.Keep("gpu", 2); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(h.Path("/var/lib/x/gpu.json")); err == nil {
		t.Error("a later worker writes into the directory")
	}
}

// The data of a silence that begins in the middle of a run has the history that the run has read before: it replaces
// that of the memory directory.
func TestPastSilentLater(t *testing.T) {
	t.Parallel()
	_, host := hostsWithPast(t)
	for _, name := range []string{"gpu", "other", "gone", "whole"} {
		if err := host().Keep(name, 1); err != nil {
			t.Fatal(err)
		}
	}
	var got int
	h := host()
	if err := h.Recall("gpu", &got); err != nil || got != 1 {
		t.Fatalf("%d, %v", got, err)
	}
	if h.Recall("gone", &got) != nil || Forget(h, "gone") != nil {
		t.Fatal("cannot forget")
	}
	h.noteSilent(h.past, errNoAnswer)
	if err := h.Recall("gpu", &got); err != nil || got != 1 {
		t.Errorf("in the silence: %d, %v, want what was read before", got, err)
	}
	if err := h.Recall("gone", &got); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("forgotten: %d, %v", got, err)
	}
	if list, err := Records(h, "gp"); !errors.Is(err, ErrSilent) || len(list) != 1 || string(list[0].Data) != "1" {
		t.Errorf("in the silence: %+v, %v, want what was read before", list, err)
	}
	if err := h.KeepWhole("whole", 3); err != nil && !errors.As(err, new(*SpareError)) {
		t.Error(err)
	}
	for _, name := range []string{"gpu", "other"} {
		if err := h.Keep(name, 2); err != nil && !errors.As(err, new(*SpareError)) {
			t.Error(err)
		}
	}
	for name, want := range map[string]int{"gpu": 2, "other": 1, "whole": 3} {
		if err := host().Recall(name, &got); err != nil || got != want {
			t.Errorf("the next run: %s is %d, %v, want %d", name, got, err, want)
		}
	}
}

// The data of a silence replaces no newer file that another run has written since.
func TestPastSettle(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"/spare/gpu.json": "2", "/spare/gpu.json.interim": "1", "/spare/other.json.interim": "1"}))
	h.SetPast("/past", "/spare")
	h.settle("/spare", "gpu.json", false) // listed before the plain file was written
	h.SetUntil(time.Now())
	if err := h.Keep("other", 2); !errors.As(err, new(*SpareError)) {
		t.Error(err)
	}
	h.SetUntil(time.Time{})
	for _, name := range []string{"gpu", "other"} {
		var got int
		if err := h.Recall(name, &got); err != nil || got != 2 {
			t.Errorf("%s: %d, %v, want 2", name, got, err)
		}
		if _, err := os.Lstat(h.Path("/spare/" + name + ".json.interim")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s.json.interim: %v, want none", name, err)
		}
	}
}

// A file that was not read in time is not replaced, also not by a later worker, until it has been read.
func TestPastNotReadInTime(t *testing.T) {
	t.Parallel()
	_, host := hostsWithPast(t)
	keep := func(h *Host, n, want int) {
		t.Helper()
		if err := h.Keep("run-a", n); err != nil && !errors.As(err, new(*SpareError)) {
			t.Error(err)
		}
		var got int
		if err := host().Recall("run-a", &got); err != nil || got != want {
			t.Errorf("%d, %v, want %d", got, err, want)
		}
	}
	keep(host(), 1, 1)
	h := host()
	h.SetUntil(time.Now())
	if list, err := Records(h, "run-"); !errors.Is(err, ErrSilent) || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	h.SetUntil(time.Time{})
	keep(h, 2, 1)
	later := host(h.Unanswered()...)
	keep(later, 3, 1)
	if err := later.Recall("run-a", new(int)); err != nil {
		t.Error(err)
	}
	keep(later, 4, 4)
}
