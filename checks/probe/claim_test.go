package probe

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// Two nodes of one machine, as with slurmd -N, share one claim.
func TestClaimIsTheMachines(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, nil))
	h.SetPast("/var/lib/nhc-gpu/one", "/run/nhc-gpu/one/past")
	release, err := Claim(h, "active")
	if err != nil {
		t.Fatal(err)
	}
	other := NewHost(h.root)
	other.SetPast("/var/lib/nhc-gpu/two", "/run/nhc-gpu/two/past")
	if _, err := Claim(other, "active"); !errors.Is(err, ErrClaimed) {
		t.Errorf("the other node: %v, want %v", err, ErrClaimed)
	}
	release()
	release, err = Claim(other, "active")
	if err != nil {
		t.Fatal(err)
	}
	release()

	// Without a disk the machine directory is in /run.
	bare := NewHost(probetest.Tree(t, map[string]string{"var/lib": "no directory"}))
	bare.SetPast("/var/lib/nhc-gpu/one", "/run/nhc-gpu/one/past")
	if _, err := Claim(bare, "active"); err != nil {
		t.Fatal(err)
	}
	second := NewHost(bare.root)
	second.SetPast("/var/lib/nhc-gpu/two", "/run/nhc-gpu/two/past")
	if _, err := Claim(second, "active"); !errors.Is(err, ErrClaimed) {
		t.Errorf("the other node: %v, want %v", err, ErrClaimed)
	}
}

// A claim lasts as long as the process, even if nothing refers to it any more.
func TestClaimOutlivesItsRelease(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, nil))
	h.SetPast("/var/lib/nhc-gpu/one")
	if _, err := Claim(h, "active"); err != nil {
		t.Fatal(err)
	}
	for range 3 { // finalizers run after a collection
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := Claim(h, "active"); !errors.Is(err, ErrClaimed) {
		t.Errorf("after a garbage collection: %v, want %v", err, ErrClaimed)
	}
}

// A file that other users can write is not used.
func TestLibraryOfASettingIsGuarded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name string, dirMode, mode os.FileMode) string {
		path := filepath.Join(dir, name, "libcuda.so.1")
		if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644), os.Chmod(path, mode), os.Chmod(filepath.Dir(path), dirMode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		path string
		want bool
	}{
		"plain":           {file("plain", 0o755, 0o755), true},
		"of a group":      {file("group", 0o775, 0o775), true},
		"file of all":     {file("file", 0o755, 0o757), false},
		"folder of all":   {file("folder", 0o777, 0o755), false},
		"like /tmp":       {file("sticky", 0o777|os.ModeSticky, 0o755), true},
		"not there":       {filepath.Join(dir, "none.so"), true},
		"found by dlopen": {"libcuda.so.1", true},
	} {
		h := NewHost("/")
		SetLibraries(h, map[string]string{SettingCUDA: c.path})
		if _, err := TrustedLibrary(c.path, true); (err == nil) != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Release frees a claim even if a process that is just being started has a copy of its file.
func TestClaimIsFreeBesideAFork(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, nil))
	h.SetPast("/var/lib/nhc-gpu/one")
	path := filepath.Join(h.root, "var/lib/nhc-gpu/active.lock")
	release, err := Claim(h, "active")
	if err != nil {
		t.Fatal(err)
	}
	copied := -1
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && to == path {
			n, err := strconv.Atoi(fd.Name())
			if err != nil {
				t.Fatal(err)
			}
			if copied, err = unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if copied < 0 {
		t.Fatal("the file of the claim is not open")
	}
	defer unix.Close(copied)
	release()
	if release, err = Claim(h, "active"); err != nil {
		t.Errorf("after its release: %v", err)
	} else {
		release()
	}
}
