package probe

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// An attribute stays open, is opened again if its device has gone and come back, and is an error in between.
func TestAttribute(t *testing.T) {
	t.Parallel()
	const name = "sys/class/infiniband/mlx5_0/ports/1/state"
	root := probetest.Tree(t, map[string]string{name: "4: ACTIVE\n"})
	path := filepath.Join(root, name)
	a, err := OpenAttribute(NewHost(root), "/"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	read := func(want string) {
		t.Helper()
		if got, err := a.Read(make([]byte, ValueSize)); err != nil || string(got) != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	read("4: ACTIVE")
	write("1: DOWN\n")
	read("1: DOWN")
	fd := a.fd
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v: commands would inherit the file", flags, err)
	}
	// A descriptor that cannot be read stands for that of a device that has gone.
	gone, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(gone)
	if err := errors.Join(unix.Dup3(gone, fd, unix.O_CLOEXEC), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := a.Read(make([]byte, 8)); !errors.Is(err, fs.ErrNotExist) || a.fd != 0 {
			t.Errorf("a device that has gone: %v, descriptor %d", err, a.fd)
		}
	}
	write("2: INIT\n")
	read("2: INIT")
	if _, err := OpenAttribute(NewHost(root), "/sys/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
