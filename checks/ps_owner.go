package checks

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file looks up the owners of processes.

// OwnerName turns a uid into a name. For a uid without an account it returns "", which matches
// any owner, as in LBNL NHC.
func OwnerName(env *Env, word string) string {
	uid, err := strconv.ParseUint(word, 10, 32)
	if err != nil {
		return word
	}
	env.At("look up uid %d", uid)
	return probe.UserName(env.Host, uint32(uid))
}

// OwnerOrUID returns the user name of a process, or the uid if it has no account.
func OwnerOrUID(env *Env, p probe.Process) string {
	return cmp.Or(OwnerOf(env, p), strconv.FormatUint(uint64(p.UID), 10))
}

// ClassicMaxSystemUID is the last system uid if there is no login.defs.
const ClassicMaxSystemUID = 99

// MaxSystemUID returns the last uid that belongs to the system and not to a person:
// MAX_SYS_UID, or the value in /etc/login.defs.
func MaxSystemUID(env *Env, check string) (int64, []Finding) {
	if word := env.Lookup("MAX_SYS_UID"); word != "" {
		n, ok := ParseInteger(word)
		if !ok {
			return 0, []Finding{WrongValue(check, "MAX_SYS_UID", word, "a uid")}
		}
		return n, nil
	}
	path := cmp.Or(env.Lookup("LOGIN_DEFS_SRC"), "/etc/login.defs")
	env.At("read %s", path)
	uid, err := probe.MaxSystemUID(env.Host, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ClassicMaxSystemUID, nil
	case err != nil:
		return 0, Unreadable(err)
	}
	return uid, nil
}

// OwnerOf returns the user name of a process, "" if its uid has no account.
func OwnerOf(env *Env, p probe.Process) string {
	env.At("look up uid %d", p.UID)
	return probe.UserName(env.Host, p.UID)
}

// LockedProcesses returns a warning if a check needed processes whose memory a user keeps locked.
func LockedProcesses(env *Env, check string) []Finding {
	list := probe.NewLocked()
	if len(list) == 0 {
		return nil
	}
	p, more := list[0], ""
	if n := len(list) - 1; n > 0 {
		more = fmt.Sprintf(" (and of processes of %s)", Plural(n, "other user"))
	}
	return []Finding{Finding{Code: "probe.locked", Severity: Warn, Device: Device{Kind: "process", Name: Short(p.Name)}}.
		Phrase(check, "process %d (%s) of user %s: its command line and environment cannot be read%s", p.PID, p.Name, OwnerOrUID(env, probe.Process{UID: p.UID}), more)}
}
