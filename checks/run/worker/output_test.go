package worker

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A full file becomes PATH.1. Of many that write at once none loses a line, and only one renames.
func TestAppendBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "nhc.jsonl")
	const writers, lines, most = 20, 50, 12 << 10 // 1,000 lines of 20 bytes fit into two files
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range lines {
				if err := appendBounded(path, fmt.Appendf(nil, "line %7d %6d\n", w, i), most); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	seen := map[string]bool{}
	for _, name := range []string{path, path + ".1"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != logMode || info.Size() > most+writers*20 {
			t.Errorf("%s: %v %v", name, info, err)
		}
		for line := range strings.Lines(string(data)) {
			seen[line] = true
		}
	}
	if len(seen) != writers*lines {
		t.Errorf("%d different lines, want %d", len(seen), writers*lines)
	}
	if names, _ := filepath.Glob(dir + "/*"); len(names) != 2 {
		t.Errorf("files %v", names)
	}
}

// A user who may read a full log can lock it, and stops neither the run nor the log.
func TestAppendLocked(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nhc.jsonl")
	if err := os.WriteFile(path, []byte("full\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		t.Fatal(err)
	}
	if err := appendBounded(path, []byte("more\n"), 6); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "full\nmore\n" {
		t.Errorf("%q, %v", got, err)
	}
	for _, line := range []string{"much\n", "last\n"} { // the second finds more than twice the limit
		if err := appendBounded(path, []byte(line), 6); err != nil {
			t.Error(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "last\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// A file is replaced as a whole, has the mode it is to have, and leaves no other file behind.
func TestReplaceFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "nhc.prom")
	for _, size := range []int{10, 100000, 1} {
		want := bytes.Repeat([]byte("x"), size)
		if err := replaceFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, want %d, %v", len(got), size, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v %v", info, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{filepath.Join(dir, "d"), filepath.Join(dir, "none", "x"), path + "/x"} {
		if err := replaceFile(wrong, nil, 0o600); err == nil {
			t.Errorf("%s: no error", wrong)
		}
	}
	if names, _ := filepath.Glob(dir + "/.*"); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
}
