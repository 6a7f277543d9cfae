package probe

import (
	"bytes"
	"strings"
)

// Mount is one line of /proc/mounts. Where it is mounted is decoded (\040 is a
// blank); the other fields are as LBNL NHC has them, each escape without its
// backslash (nfs1:/my040share), for sites have match strings for that.
type Mount struct {
	Source  string // field 1: nfs1:/export/home, /dev/sda1, tmpfs
	Point   string // field 2: where it is mounted
	Type    string // field 3: nfs4, ext4
	Options string // field 4: rw,nosuid,size=10240k
}

// Mounts is the mount table of /proc/mounts in its order, oldest mount first.
func (h *Host) Mounts() ([]Mount, error) { return h.mountTable("mounts") }

// MountsOf is the same for those who count space or inodes. In a run of LBNL
// NHC they and the checks of mounts look for themselves, each when it first
// needs to, and a line between them may mount something.
func (h *Host) MountsOf(what Amount) ([]Mount, error) { return h.mountTable("mounts " + string(what)) }

func (h *Host) mountTable(key string) ([]Mount, error) {
	return once(h, key, func() ([]Mount, error) {
		data, err := h.readFile("/proc/mounts")
		if err != nil {
			return nil, err
		}
		return parseMounts(data), nil
	})
}

// ForgetMounts makes the next [Host.Mounts] read the table again.
func (h *Host) ForgetMounts() { h.forget("mounts") }

// parseMounts reads lines of four or more fields; a field that is missing is empty.
func parseMounts(data []byte) []Mount {
	var mounts []Mount
	for line := range bytes.Lines(data) {
		f := bytes.FieldsFunc(line, isBlank)
		if len(f) < 2 {
			continue
		}
		m := Mount{Source: withoutBackslashes(f[0]), Point: unescape(f[1])}
		if len(f) > 2 {
			m.Type = withoutBackslashes(f[2])
		}
		if len(f) > 3 {
			m.Options = withoutBackslashes(f[3])
		}
		mounts = append(mounts, m)
	}
	return mounts
}

// isBlank knows what separates fields: the kernel writes these, and no others,
// as escapes within one. A carriage return or a no-break space is part of a name.
func isBlank(r rune) bool { return r == ' ' || r == '\t' || r == '\n' }

// withoutBackslashes is what the shell's read makes of a field.
func withoutBackslashes(s []byte) string { return strings.ReplaceAll(string(s), `\`, "") }

// unescape decodes the octal escapes with which the kernel writes blanks,
// tabs, newlines and backslashes. A backslash before anything else stands for itself.
func unescape(s []byte) string {
	if bytes.IndexByte(s, '\\') < 0 {
		return string(s)
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && s[i+1] <= '3' && octal(s[i+1]) && octal(s[i+2]) && octal(s[i+3]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func octal(c byte) bool { return '0' <= c && c <= '7' }
