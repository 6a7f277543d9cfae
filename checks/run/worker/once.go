package worker

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
)

// A directory that does not answer cannot store a note about that. The kernel stores it: a worker
// listens on a socket while it opens the directory, and a worker that never returns keeps the
// socket open. The name of the socket is not a file but a name in the network namespace.

// onceWait bounds the wait for other runs that are opening the same directory.
const onceWait = 300 * time.Millisecond

// maxAsked is the number of later runs that can identify the hanging process. The kernel may allow
// fewer; then one more process hangs occasionally.
const maxAsked = 4096

// claimOpening allows this process to open a directory until it calls release. It waits for another
// process that opens it, at most for wait. The error names a process of an earlier run that hangs in
// that call.
func claimOpening(dir string, wait time.Duration) (release func(), err error) {
	address := &unix.SockaddrUnix{Name: "@nhc-gpu-open:" + dir}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return func() {}, nil // without a socket there is no note, and one more process may hang
	}
	release = func() { _ = unix.Close(fd) }
	asked, pid := false, 0 // the process that opens the directory
	for end := time.Now().Add(wait); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Bind(fd, address)
		if err == nil {
			err = unix.Listen(fd, maxAsked)
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return release, nil
		}
		if !asked { // only once: each question stays in the queue of the socket
			if pid, asked = findListener(address); !asked { // any user can take that name: wait for no other
				return release, nil
			}
		}
		if time.Now().Before(end) {
			continue
		}
		if state, w := process.Whereabouts(pid); state == "D" {
			release()
			return nil, fmt.Errorf("process %d of an earlier run still waits for %s (wait channel %s)", pid, dir, w)
		}
		return release, nil // a slow one
	}
}

// findListener returns the process that listens on a socket, and whether this user owns it.
func findListener(address unix.Sockaddr) (pid int, ours bool) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	if unix.Connect(fd, address) != nil {
		return 0, false
	}
	peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0, false
	}
	return int(peer.Pid), int(peer.Uid) == os.Geteuid()
}
