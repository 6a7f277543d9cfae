package probe

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// Modules returns the names of the loaded kernel modules, from /proc/modules in its order. A kernel
// without module support has none.
func Modules(h *Host) ([]string, error) {
	return Once(h, "modules", func() ([]string, error) {
		data, err := h.ReadFile("/proc/modules")
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return parseModules(data), nil
	})
}

// parseModules returns the first word of every line.
func parseModules(data []byte) []string {
	var names []string
	for line := range bytes.Lines(data) {
		if f := bytes.Fields(line); len(f) > 0 {
			names = append(names, string(f[0]))
		}
	}
	return names
}

// BuiltIn reports whether a module is part of the kernel itself: /sys/module has those with
// parameters, modules.builtin all. In a container its directory may be missing, so that only the
// former are known.
func BuiltIn(h *Host, name string) bool {
	if _, err := os.Stat(h.Path("/sys/module/" + name)); err == nil {
		return true
	}
	list, _ := Once(h, "builtin", func() ([]string, error) {
		release, err := h.ReadValue("/proc/sys/kernel/osrelease")
		if err != nil || strings.Contains(release, "/") {
			return nil, err
		}
		data, err := h.ReadFile("/lib/modules/" + strings.TrimSpace(release) + "/modules.builtin")
		return parseBuiltIn(data), err
	})
	return slices.Contains(list, name)
}

// parseBuiltIn converts each line, such as "kernel/drivers/infiniband/core/rdma_cm.ko", to the name
// in /proc/modules.
func parseBuiltIn(data []byte) (names []string) {
	for line := range bytes.Lines(data) {
		name, _, _ := strings.Cut(path.Base(strings.TrimSpace(string(line))), ".ko")
		names = append(names, strings.ReplaceAll(name, "-", "_"))
	}
	return names
}
