package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/run"
)

// enter comes before anything else. An error says why this program must not run.
func enter() error {
	environment()
	run.HidePrivate()
	catchCrashes()
	return ownRights(os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid(), isSecure())
}

// ownRights is an error if this process has rights that the user who started it has
// not: the program runs commands that the user names. secure is the kernel's opinion
// (AT_SECURE), which includes file capabilities; it does not matter for root, for whom
// a security module sets it, too.
func ownRights(uid, euid, gid, egid int, secure bool) error {
	if uid != euid || gid != egid || secure && uid != 0 {
		return errors.New("refused: the file has set-user-ID, set-group-ID or capabilities, and would run a user's commands with them. " +
			"Remove them: chmod ug-s FILE; setcap -r FILE")
	}
	return nil
}

// isSecure is AT_SECURE of getauxval(3).
func isSecure() bool {
	const atSecure = 23
	auxv, err := unix.Auxv()
	if err != nil {
		return false
	}
	for _, entry := range auxv {
		if entry[0] == atSecure {
			return entry[1] != 0
		}
	}
	return false
}
