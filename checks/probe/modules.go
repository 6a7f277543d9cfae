package probe

import (
	"bytes"
	"errors"
	"io/fs"
)

// Modules names the kernel modules that are loaded, from /proc/modules in its
// order. A kernel that is built without modules has no such file, and none of them.
func (h *Host) Modules() ([]string, error) {
	return once(h, "modules", func() ([]string, error) {
		data, err := h.readFile("/proc/modules")
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return parseModules(data), nil
	})
}

// parseModules takes the first word of every line.
func parseModules(data []byte) []string {
	var names []string
	for line := range bytes.Lines(data) {
		if f := bytes.Fields(line); len(f) > 0 {
			names = append(names, string(f[0]))
		}
	}
	return names
}
