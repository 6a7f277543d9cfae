package probe

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

func TestHolders(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for pid, target := range map[int]string{11: "/dev/nvidia0", 12: "/dev/nvidia15", 15: "/dev/nvidiactl", 16: "/dev/nvidia", 13: "/dev/null", 14: "/tmp/dev/nvidia0", os.Getpid(): "/dev/nvidia0"} {
		dir := filepath.Join(root, "proc", strconv.Itoa(pid))
		if err := os.MkdirAll(filepath.Join(dir, "fd"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "comm"), []byte("python"+strconv.Itoa(pid)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		for i, to := range []string{"/dev/null", target, target} {
			if err := os.Symlink(to, filepath.Join(dir, "fd", strconv.Itoa(i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	got, err := Holders(NewHost(root), "/dev/nvidia")
	if want := []string{"11 (python11)", "12 (python12)"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if _, err := Holders(NewHost(filepath.Join(root, "none")), "/dev/nvidia"); err == nil {
		t.Error("without /proc: want an error, since the processes are unknown")
	}
}
