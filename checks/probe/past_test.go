package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPast(t *testing.T) {
	t.Parallel()
	h := tree(t, nil)
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

// What others could have written, and what is no JSON, is not used.
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
			h := tree(t, nil)
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
