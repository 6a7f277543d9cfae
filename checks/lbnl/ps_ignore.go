package lbnl

import (
	"slices"
	"strconv"
	"strings"
)

// ignored are the processes that a check of users skips: a list contains their command, uid,
// user name or process ID.
type ignored struct {
	commands, uids, users, pids []string
}

// values splits the values of an option: each can be a list.
func values(words []string) []string { return strings.Fields(strings.Join(words, " ")) }

func (i *ignored) has(s subject) bool {
	return slices.Contains(i.commands, s.command) || slices.Contains(i.uids, strconv.FormatUint(uint64(s.UID), 10)) ||
		slices.Contains(i.users, s.user) || slices.Contains(i.pids, strconv.Itoa(s.PID))
}
