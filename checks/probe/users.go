package probe

import (
	"bytes"
	"cmp"
	"os/user"
	"strconv"
)

type accounts struct {
	names map[uint32]string
	uids  map[string]uint32
}

// UserName returns the account of a uid, "" if there is none. It reads /etc/passwd first, and then
// queries the name service (LDAP, SSSD), which may be slow.
func UserName(h *Host, uid uint32) string {
	if name, ok := readAccounts(h).names[uid]; ok {
		return name
	}
	if h.Recorded() {
		return ""
	}
	name, _ := Once(h, "uid "+strconv.FormatUint(uint64(uid), 10), func() (string, error) {
		u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
		if err != nil {
			return "", err
		}
		return u.Username, nil
	})
	return name
}

// UserID returns the uid of an account, from the same sources as [UserName].
func UserID(h *Host, name string) (uint32, bool) {
	if uid, ok := readAccounts(h).uids[name]; ok {
		return uid, true
	}
	if h.Recorded() {
		return 0, false
	}
	uid, err := Once(h, "user "+name, func() (uint32, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseUint(u.Uid, 10, 32)
		return uint32(n), err
	})
	return uid, err == nil
}

// SetPasswd sets the file of accounts that is read first; "" is /etc/passwd.
func SetPasswd(h *Host, path string) { h.passwd = path }

// readAccounts reads the file of accounts; without one no account is known.
func readAccounts(h *Host) accounts {
	path := cmp.Or(h.passwd, "/etc/passwd")
	a, _ := Once(h, "passwd "+path, func() (accounts, error) {
		data, err := h.ReadFile(path)
		return parsePasswd(data), err
	})
	return a
}

// parsePasswd keeps the first entry of a uid or name, as getpwuid does.
func parsePasswd(data []byte) accounts {
	a := accounts{names: map[uint32]string{}, uids: map[string]uint32{}}
	for line := range bytes.Lines(data) {
		f := bytes.Split(line, []byte(":"))
		if len(f) < 4 || len(f[0]) == 0 {
			continue
		}
		n, err := strconv.ParseUint(string(f[2]), 10, 32)
		if err != nil {
			continue
		}
		name, uid := string(f[0]), uint32(n)
		if _, ok := a.names[uid]; !ok {
			a.names[uid] = name
		}
		if _, ok := a.uids[name]; !ok {
			a.uids[name] = uid
		}
	}
	return a
}
