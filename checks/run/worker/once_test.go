package worker

import (
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Any user can have the name of the socket. Only a process of this user that listens keeps a run waiting, and a run
// leaves it one connection, since it never answers.
func TestClaimOpening(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bind := func() int {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@nhc-gpu-open:" + dir}); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	claim := func(wait time.Duration) {
		t.Helper()
		release, err := claimOpening(dir, wait)
		if err != nil {
			t.Fatal(err)
		}
		release()
	}
	claim(time.Hour) // no process has the name
	fd := bind()
	claim(time.Hour) // a process that does not listen
	if err := unix.Listen(fd, maxAsked); err != nil {
		t.Fatal(err)
	}
	claim(50 * time.Millisecond) // this one, which does not hang
	for want := range 2 {
		other, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if got := err == nil; got != (want == 0) {
			t.Errorf("connection %d: %v, want one", want+1, err)
		}
		_ = unix.Close(other)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = unix.Close(fd) })
	claim(time.Hour)
	if os.Geteuid() != 0 {
		return // it cannot be another user
	}
	other := make(chan int)
	go func() {
		defer close(other)
		runtime.LockOSThread() // which ends with this goroutine
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); err != 0 {
			t.Error(err)
			return
		}
		fd := bind()
		if err := unix.Listen(fd, maxAsked); err != nil {
			t.Error(err)
		}
		other <- fd
	}()
	if fd, ok := <-other; ok {
		defer unix.Close(fd)
		claim(time.Hour)
	}
}
