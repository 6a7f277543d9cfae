package main

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/run"
)

// enter is the first call of main. Its error says why this program must not run.
func enter() error {
	environment()
	run.HidePrivate()
	catchCrashes()
	return ownRights(os.Getuid(), os.Geteuid(), os.Getgid(), os.Getegid(), isSecure())
}

// ownRights returns an error if this process has rights that its user does not have: the program
// runs commands that the user names. secure is the kernel's AT_SECURE, which includes file
// capabilities. For root it is ignored, since a security module sets it for root, too.
func ownRights(uid, euid, gid, egid int, secure bool) error {
	if uid != euid || gid != egid || secure && uid != 0 {
		return errors.New("refused: the file has set-user-ID, set-group-ID or capabilities, and would run a user's commands with them. " +
			"Remove them: chmod ug-s FILE; setcap -r FILE")
	}
	return nil
}

// isSecure returns AT_SECURE, see getauxval(3).
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
