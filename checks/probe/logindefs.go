package probe

import (
	"bytes"
	"strconv"
)

// MinUID is UID_MIN of a file such as /etc/login.defs, the first uid of an
// ordinary user; ok is false if the file does not have it.
func (h *Host) MinUID(path string) (uid uint32, ok bool, err error) {
	data, err := once(h, "file "+path, func() ([]byte, error) { return h.readFile(path) })
	if err != nil {
		return 0, false, err
	}
	uid, ok = parseMinUID(data)
	return uid, ok, nil
}

func parseMinUID(data []byte) (uint32, bool) {
	for line := range bytes.Lines(data) {
		f := bytes.Fields(line)
		if len(f) < 2 || string(f[0]) != "UID_MIN" {
			continue
		}
		n, err := strconv.ParseUint(string(f[1]), 10, 32)
		return uint32(n), err == nil
	}
	return 0, false
}
