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
func (e *Env) ownerName(word string) string {
	uid, err := strconv.ParseUint(word, 10, 32)
	if err != nil {
		return word
	}
	e.At("look up uid %d", uid)
	return e.Host.UserName(uint32(uid))
}

// ownerOrUID is the name of a process's user, the number if it has no account.
func (e *Env) ownerOrUID(p probe.Process) string {
	return cmp.Or(e.owner(p), strconv.FormatUint(uint64(p.UID), 10))
}

// classicMaxSystemUID is the last uid of the system without a login.defs.
const classicMaxSystemUID = 99

// maxSystemUID is the last uid that belongs to the system and not to a person:
// MAX_SYS_UID, or what /etc/login.defs says.
func (e *Env) maxSystemUID(check string) (int64, []Finding) {
	if word := e.lookup("MAX_SYS_UID"); word != "" {
		n, ok := parseInteger(word)
		if !ok {
			return 0, []Finding{badValue(check, "MAX_SYS_UID", word, "a uid")}
		}
		return n, nil
	}
	path := cmp.Or(e.lookup("LOGIN_DEFS_SRC"), "/etc/login.defs")
	e.At("read %s", path)
	uid, err := e.Host.MaxSystemUID(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return classicMaxSystemUID, nil
	case err != nil:
		return 0, unreadable(err)
	}
	return uid, nil
}

// owner is the name of a process's user, "" if its uid has no account.
func (e *Env) owner(p probe.Process) string {
	e.At("look up uid %d", p.UID)
	return e.Host.UserName(p.UID)
}
