package probe

import (
	"bytes"
	"cmp"
	"os/user"
	"strconv"
)

// UserName returns the account of a uid, "" if there is none. It reads /etc/passwd first, and then
// queries the name service (LDAP, SSSD), which may be slow.
func UserName(h *Host, uid uint32) string {
	if name, ok := readAccounts(h)[uid]; ok {
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

// SetPasswd sets the file of accounts that is read first; "" is /etc/passwd.
func SetPasswd(h *Host, path string) { h.passwd = path }

// readAccounts reads the names of the accounts of the file; without one no account is known.
func readAccounts(h *Host) map[uint32]string {
	path := cmp.Or(h.passwd, "/etc/passwd")
	names, _ := Once(h, "passwd "+path, func() (map[uint32]string, error) {
		data, err := h.ReadFile(path)
		return parsePasswd(data), err
	})
	return names
}

// parsePasswd keeps the first entry of a uid, as getpwuid does.
func parsePasswd(data []byte) map[uint32]string {
	names := map[uint32]string{}
	for line := range bytes.Lines(data) {
		f := bytes.Split(line, []byte(":"))
		if len(f) < 4 || len(f[0]) == 0 {
			continue
		}
		uid, err := strconv.ParseUint(string(f[2]), 10, 32)
		if err != nil {
			continue
		}
		if _, ok := names[uint32(uid)]; !ok {
			names[uint32(uid)] = string(f[0])
		}
	}
	return names
}
