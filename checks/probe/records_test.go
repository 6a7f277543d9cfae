package probe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func keeper(t *testing.T) (h *Host, dir string) {
	t.Helper()
	root := t.TempDir()
	h = NewHost(root)
	h.SetPast("/past/node")
	return h, filepath.Join(root, "past/node")
}

func TestRecords(t *testing.T) {
	t.Parallel()
	h, dir := keeper(t)
	if list, err := Records(h, "job-"); err != nil || list != nil {
		t.Fatalf("of nothing: %v, %v, want none", list, err)
	}
	for _, name := range []string{"job-2", "job-1", "xid"} {
		if err := h.Keep(name, map[string]string{"is": name}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "job-3.json")); err != nil {
		t.Fatal(err)
	}
	list, err := Records(h, "job-")
	if err != nil || len(list) != 3 {
		t.Fatalf("got %v, %v, want three", list, err)
	}
	if list[0].Name != "job-1" || string(list[0].Data) != `{"is":"job-1"}` || list[1].Name != "job-2" {
		t.Errorf("got %+v", list)
	}
	if list[2].Err == "" || list[2].Data != nil {
		t.Errorf("a link is read: %+v", list[2])
	}
	if err := errors.Join(Forget(h, "job-1"), Forget(h, "job-1")); err != nil {
		t.Error(err)
	}
	if list, _ := Records(h, "job-"); len(list) != 2 {
		t.Errorf("after forgetting one: %v", list)
	}
	if _, err := Records(NewHost(t.TempDir()), ""); !errors.Is(err, ErrNoMemory) {
		t.Errorf("without a directory: %v", err)
	}
}

func TestJournal(t *testing.T) {
	t.Parallel()
	h, dir := keeper(t)
	j := Journal{"jobs", 100}
	if lines, err := JournalLines(h, j); err != nil || lines != nil {
		t.Fatalf("of nothing: %q, %v", lines, err)
	}
	for i := range 9 {
		if err := AppendLine(h, j, fmt.Appendf(nil, `{"job":%d,"padding":"xxxxxxxx"}`, i)); err != nil {
			t.Fatal(err)
		}
	}
	lines, err := JournalLines(h, j)
	if err != nil {
		t.Fatal(err)
	}
	// Three lines of 32 bytes fit, so that the last six of nine remain.
	if got := fmt.Sprintf("%q", lines); len(lines) != 6 || !strings.Contains(got, `\"job\":3,`) || !strings.Contains(got, `\"job\":8,`) {
		t.Errorf("got %s, want those of jobs 3 to 8", got)
	}
	for _, name := range []string{"jobs.jsonl", "jobs.jsonl.1"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 || info.Size() > 100 {
			t.Errorf("%s: %v, %v, want mode 0600 and at most 100 bytes", name, info, err)
		}
	}
}

func TestJournalOfMany(t *testing.T) {
	t.Parallel()
	h, dir := keeper(t)
	j := Journal{"jobs", 1 << 20}
	line := []byte(`{"x":"` + strings.Repeat("y", 6000) + `"}`)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := AppendLine(h, j, line); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	data, err := os.ReadFile(filepath.Join(dir, "jobs.jsonl"))
	if err != nil || len(data) != 16*(len(line)+1) {
		t.Errorf("%d bytes, %v, want 16 whole lines", len(data), err)
	}
}

// A journal that another user could have created is not written.
func TestJournalIsOurs(t *testing.T) {
	t.Parallel()
	h, dir := keeper(t)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := errors.Join(os.WriteFile(other, nil, 0o600), os.Symlink(other, filepath.Join(dir, "jobs.jsonl"))); err != nil {
		t.Fatal(err)
	}
	if err := AppendLine(h, Journal{"jobs", 1000}, []byte("{}")); err == nil || !strings.Contains(err.Error(), "append to /past/node/jobs.jsonl: ") {
		t.Errorf("through a link: %v", err)
	}
	if data, _ := os.ReadFile(other); len(data) > 0 {
		t.Error("the file behind the link was written to")
	}
	if err := os.WriteFile(filepath.Join(dir, "open.jsonl"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "open.jsonl"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := AppendLine(h, Journal{"open", 1000}, []byte("{}")); err == nil || !strings.Contains(err.Error(), "0666") {
		t.Errorf("one that others may write to: %v", err)
	}
}

// Without a disk, records and journals are in the spare directory, too.
func TestRecordsSpare(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"/past": "a file where a directory should be"}))
	h.SetPast("/past/node", "/run/past")
	j := Journal{"jobs", 100}
	if err := AppendLine(h, j, []byte(`{"job":1}`)); err != nil {
		t.Fatal(err)
	}
	var spare *SpareError
	if err := h.Keep("job-1", 1); !errors.As(err, &spare) {
		t.Errorf("%v, want it said that it is in the other place", err)
	}
	if lines, err := JournalLines(h, j); err != nil || len(lines) != 1 {
		t.Errorf("%q, %v", lines, err)
	}
	if list, err := Records(h, "job-"); err != nil || len(list) != 1 || string(list[0].Data) != "1" {
		t.Errorf("%v, %v", list, err)
	}
	if err := Forget(h, "job-1"); err != nil {
		t.Error(err)
	}
	if list, err := Records(h, "job-"); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// A record that cannot be removed because the disk has become read-only is forgotten nevertheless;
// it can be kept again.
func TestForgetSpare(t *testing.T) {
	t.Parallel()
	h, dir := keeper(t)
	h.SetPast("/past/node", "/run/past")
	if err := h.Keep("job-2", 2); err != nil {
		t.Fatal(err)
	}
	// Root may remove everything but this.
	if err := os.MkdirAll(filepath.Join(dir, "job-1.json", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if list, err := Records(h, "job-"); err != nil || len(list) != 2 {
		t.Fatalf("%v, %v, want two", list, err)
	}
	if err := Forget(h, "job-1"); err != nil {
		t.Fatal(err)
	}
	if list, err := Records(h, "job-"); err != nil || len(list) != 1 || list[0].Name != "job-2" {
		t.Errorf("%v, %v, want job-2 alone", list, err)
	}
	if _, ok := errors.AsType[*SpareError](h.Keep("job-1", 1)); !ok {
		t.Error("kept where it cannot be")
	}
	if list, err := Records(h, "job-1"); err != nil || len(list) != 1 || string(list[0].Data) != "1" {
		t.Errorf("%v, %v, want it as it was kept anew", list, err)
	}
}

// One read is bounded, and a later one returns the rest.
func TestRecordsBounded(t *testing.T) {
	t.Parallel()
	h, _ := keeper(t)
	big := strings.Repeat("x", maxRecall/3)
	for i := range 5 {
		if err := h.Keep(fmt.Sprintf("job-%d", i), big); err != nil {
			t.Fatal(err)
		}
	}
	list, err := Records(h, "job-")
	if err != nil || len(list) != 2 || list[0].Name != "job-0" {
		t.Fatalf("%d, %v, want the first two", len(list), err)
	}
}

// If the node died while writing a line, that line is lost, but not the next one.
func TestJournalHalfLine(t *testing.T) {
	t.Parallel()
	h, dir := keeper(t)
	j := Journal{"jobs", 1000}
	if err := AppendLine(h, j, []byte("one")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "jobs.jsonl"), []byte("one\nha"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := AppendLine(h, j, []byte("two")); err != nil {
		t.Fatal(err)
	}
	if lines, err := JournalLines(h, j); err != nil || len(lines) != 3 || string(lines[2]) != "two" {
		t.Errorf("%q, %v", lines, err)
	}
}

// A record that another run forgets between the listing and the read is skipped.
func TestRecordsForgotten(t *testing.T) {
	t.Parallel()
	root := probetest.Tree(t, nil)
	host := func() *Host {
		h := NewHost(root)
		h.SetPast("/past", "/spare")
		return h
	}
	var stop atomic.Bool
	var other sync.WaitGroup
	other.Go(func() {
		for h := host(); !stop.Load(); {
			if err := errors.Join(h.Keep("shm-9", 1), Forget(h, "shm-9")); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for h, n := host(), 0; n < 500; n++ {
		list, err := Records(h, "shm-")
		if err != nil || len(list) > 0 && list[0].Err != "" {
			t.Errorf("%+v, %v", list, err)
			break
		}
	}
	stop.Store(true)
	other.Wait()
}
