package worker

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A result older than the boot is ignored; a later one counts, however recent the mount of /proc
// is.
func TestTakeBoot(t *testing.T) {
	t.Parallel()
	boot, ok := bootTime()
	if !ok {
		t.Skip("no clock of the boot")
	}
	for _, test := range []struct {
		age     time.Duration // after the boot
		missing bool
	}{{-time.Minute, true}, {time.Minute, false}} {
		path := filepath.Join(t.TempDir(), "nhc.status")
		if err := os.WriteFile(path, []byte("7 bad disk\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, boot.Add(test.age)); err != nil {
			t.Fatal(err)
		}
		resp := take(path)
		if resp.Err != "" || resp.File.Missing != test.missing {
			t.Errorf("%s after the boot: missing %v, want %v (%s)", test.age, resp.File.Missing, test.missing, resp.Err)
		}
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s after the boot: the file is still there (%v)", test.age, err)
		}
	}
}
