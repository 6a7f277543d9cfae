package checks

import (
	"cmp"
	"errors"
	"io/fs"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// How the checks of processes look at their owners.

// ownerName turns a uid into a name. One without an account asks for no owner
// at all, as in LBNL NHC.
func ownerName(env *Env, word string) string {
	uid, err := strconv.ParseUint(word, 10, 32)
	if err != nil {
		return word
	}
	env.At("look up uid %d", uid)
	return env.Host.UserName(uint32(uid))
}

// ownerOrUID is the name of a process's user, the number if it has no account.
func ownerOrUID(env *Env, p probe.Process) string {
	return cmp.Or(ownerOf(env, p), strconv.FormatUint(uint64(p.UID), 10))
}

// classicMaxSystemUID is the last uid of the system without a login.defs.
const classicMaxSystemUID = 99

// maxSystemUID is the last uid that belongs to the system and not to a person:
// MAX_SYS_UID, or what /etc/login.defs says.
func maxSystemUID(env *Env, check string) (int64, []Finding) {
	if word := env.lookup("MAX_SYS_UID"); word != "" {
		n, ok := parseInteger(word)
		if !ok {
			return 0, []Finding{badValue(check, "MAX_SYS_UID", word, "a uid")}
		}
		return n, nil
	}
	path := cmp.Or(env.lookup("LOGIN_DEFS_SRC"), "/etc/login.defs")
	env.At("read %s", path)
	uid, err := env.Host.MaxSystemUID(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return classicMaxSystemUID, nil
	case err != nil:
		return 0, unreadable(err)
	}
	return uid, nil
}

// ownerOf is the name of a process's user, "" if its uid has no account.
func ownerOf(env *Env, p probe.Process) string {
	env.At("look up uid %d", p.UID)
	return env.Host.UserName(p.UID)
}
