package lbnl

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// ignored are the processes that a check of users skips: a list contains their command, uid,
// user name or process ID.
type ignored struct {
	commands, uids, users, pids []string
}

// values splits the values of an option: each can be a list. LBNL NHC finds a value anywhere in the words, so
// any character that no user name, uid or process ID has may separate them: what a line spares must not be killed.
func values(words ...string) []string {
	return strings.FieldsFunc(strings.Join(words, " "), func(r rune) bool { return strings.ContainsRune(" \t\n,;:|", r) })
}

// commands are the values of -c. A command can have a comma.
func commands(words []string) (list []string) {
	for word := range strings.FieldsSeq(strings.Join(words, " ")) {
		list = append(append(list, word), strings.FieldsFunc(word, func(r rune) bool { return r == ',' })...)
	}
	return list
}

func (i *ignored) has(s subject) bool {
	return slices.Contains(i.commands, s.command) || slices.Contains(i.uids, strconv.FormatUint(uint64(s.UID), 10)) ||
		slices.Contains(i.users, s.user) || slices.Contains(i.pids, strconv.Itoa(s.PID))
}

// mayRun reports whether a process without a readable command line may be one that a line looks for by a glob
// for a part of it.
func mayRun(env *checks.Env, p probe.Process, glob string) bool {
	program, _, _ := strings.Cut(glob, " ")
	return p.Unread && (strings.ContainsAny(program, "*?[") || match.Find(p.Args, program) || p.MayRun(env.Host, program))
}

// unread returns the unknown result of a check because of a process whose command line could not be read.
func unread(env *checks.Env, check string, p probe.Process) checks.Finding {
	return checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Device: checks.Device{Kind: "process", Name: checks.Short(p.Args)}}.
		Phrase(check, "not checked: the command line of process %d (%s) of user %s cannot be read", p.PID, p.Args, checks.OwnerOrUID(env, p))
}
