package lbnl

import (
	"slices"
	"strconv"
	"strings"
)

// ignored are the processes that a check of users leaves alone: those of which
// one value of a list is the command, the uid, the user's name or the pid.
type ignored struct {
	commands, uids, users, pids []string
}

// values splits the words of an option: each may be a list of its own.
func values(words []string) []string { return strings.Fields(strings.Join(words, " ")) }

func (i *ignored) has(s subject) bool {
	return slices.Contains(i.commands, s.command) || slices.Contains(i.uids, strconv.FormatUint(uint64(s.UID), 10)) ||
		slices.Contains(i.users, s.user) || slices.Contains(i.pids, strconv.Itoa(s.PID))
}
