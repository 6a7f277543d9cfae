package probe

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestFileStat(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"f": "x", "d/": ""}))
	when := time.Date(2020, 2, 29, 12, 0, 0, 0, time.UTC)
	if err := os.Chtimes(h.Path("/f"), when, when); err != nil {
		t.Fatal(err)
	}
	if err := unix.Chmod(h.Path("/f"), 0o4750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", h.Path("/l")); err != nil {
		t.Fatal(err)
	}
	f, err := StatFile(h, "/f")
	if err != nil || f.Mode != 0o4750 || !f.Mtime.Equal(when) || time.Since(f.Ctime) > time.Hour || int(f.UID) != os.Geteuid() || f.Device == 0 || f.Major != 0 {
		t.Errorf("/f: %+v, %v", f, err)
	}
	if l, err := StatFile(h, "/l"); err != nil || l.Mode != 0o777 {
		t.Errorf("a link is not followed: %+v, %v", l, err)
	}
	if null, err := StatFile(NewHost("/"), "/dev/null"); err != nil || null.Major != 1 || null.Minor != 3 {
		t.Errorf("/dev/null: %+v, %v", null, err)
	}
	for path, want := range map[string]string{"": "stat : no such file or directory", "/f/x": "stat /f/x: not a directory"} {
		if _, err := StatFile(h, path); probetest.Message(err) != want {
			t.Errorf("%q: %v, want %s", path, err, want)
		}
	}
}

// TestFileStatIsRemembered checks LBNL NHC's behavior: one result in a run, but a missing file is
// tried again.
func TestFileStatIsRemembered(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"f": "x"}))
	if f, err := StatFile(h, "/f"); err != nil || f.Mode != 0o644 {
		t.Fatalf("/f: %+v, %v", f, err)
	}
	if err := os.Chmod(h.Path("/f"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := StatFile(h, "/f"); err != nil || f.Mode != 0o644 {
		t.Errorf("/f again: %+v, %v", f, err)
	}
	if _, err := StatFile(h, "/late"); err == nil {
		t.Error("/late is there too early")
	}
	if err := os.WriteFile(h.Path("/late"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := StatFile(h, "/late"); err != nil {
		t.Errorf("/late: %v", err)
	}
}
