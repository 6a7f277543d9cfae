package probe

import (
	"fmt"
	"strings"
)

// classicMaxSystemUID is the last uid of the system if the file has none.
const classicMaxSystemUID = 99

// MaxSystemUID returns the last uid of the system's own accounts, as LBNL NHC 1.4.3 reads it from a
// file such as /etc/login.defs: SYS_UID_MAX, else the uid below UID_MIN. It is 99 if the file sets
// neither, or if the result is not positive.
func MaxSystemUID(h *Host, path string) (int64, error) {
	data, err := Once(h, "file "+path, func() ([]byte, error) { return h.ReadFile(path) })
	if err != nil {
		return 0, err
	}
	uid, err := parseMaxSystemUID(string(data))
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", path, err)
	}
	return uid, nil
}

// unread removes backslashes as bash's read does without -r.
var unread = strings.NewReplacer(`\\`, `\`, "\\\n", "", `\`, "")

// parseMaxSystemUID follows LBNL NHC to the letter, because actions spare the uids up to the
// result. A keyword is the beginning of a line, its value is all digits of the line, the last
// UID_MIN counts, and the first SYS_UID_MAX ends the file. One difference: a last line without a
// newline counts, too.
func parseMaxSystemUID(text string) (int64, error) {
	var least, last string
	for line := range strings.Lines(unread.Replace(text)) {
		line = strings.TrimLeft(line, " \t")
		if strings.HasPrefix(line, "SYS_UID_MAX") {
			last = digits(line)
			break
		}
		if strings.HasPrefix(line, "UID_MIN") {
			least = digits(line)
		}
	}
	uid := int64(classicMaxSystemUID)
	var err error
	switch {
	case last != "":
		uid, err = parseBashNumber("SYS_UID_MAX", last)
	case least != "":
		uid, err = parseBashNumber("UID_MIN", least)
		uid--
	}
	if uid <= 0 {
		uid = classicMaxSystemUID
	}
	return uid, err
}

func digits(line string) string {
	return strings.Map(func(c rune) rune {
		if c < '0' || c > '9' {
			return -1
		}
		return c
	}, line)
}

// parseBashNumber converts digits as bash does: octal after a leading 0, in 64 bits that wrap around.
func parseBashNumber(keyword, digits string) (int64, error) {
	base := uint64(10)
	if digits[0] == '0' {
		base = 8
	}
	var n uint64
	for _, c := range digits {
		if c >= '0'+rune(base) {
			return 0, fmt.Errorf("%s %s begins with 0, but is not an octal number: want a decimal number without the 0", keyword, digits)
		}
		n = n*base + uint64(c-'0')
	}
	return int64(n), nil //nolint:gosec // wraps, as in bash
}
