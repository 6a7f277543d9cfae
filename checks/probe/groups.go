package probe

import (
	"bytes"
	"os/user"
	"strconv"
)

// GroupName returns the name of a group, "" if it has none. It reads /etc/group first, and then
// queries the name service (LDAP, SSSD), which may be slow.
func GroupName(h *Host, gid uint32) string {
	groups, _ := Once(h, "group", func() (map[uint32]string, error) {
		data, err := h.ReadFile("/etc/group")
		return parseGroup(data), err
	})
	if name, ok := groups[gid]; ok {
		return name
	}
	if h.Recorded() {
		return ""
	}
	id := strconv.FormatUint(uint64(gid), 10)
	name, _ := Once(h, "gid "+id, func() (string, error) {
		g, err := user.LookupGroupId(id)
		if err != nil {
			return "", err
		}
		return g.Name, nil
	})
	return name
}

// parseGroup keeps the first entry of a gid, as getgrgid does.
func parseGroup(data []byte) map[uint32]string {
	groups := map[uint32]string{}
	for line := range bytes.Lines(data) {
		f := bytes.Split(line, []byte(":"))
		if len(f) < 3 || len(f[0]) == 0 {
			continue
		}
		n, err := strconv.ParseUint(string(bytes.TrimSpace(f[2])), 10, 32)
		if err != nil {
			continue
		}
		if _, ok := groups[uint32(n)]; !ok {
			groups[uint32(n)] = string(f[0])
		}
	}
	return groups
}
