package probe

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Holders returns the processes, without this one, that have a numbered device open, /dev/nvidia0 for
// the path /dev/nvidia: "4711 (python)". It reads links only, so that no driver is involved. A process that ends in the
// meantime is omitted.
func Holders(h *Host, path string) (list []string, err error) {
	names, err := h.Names("/proc")
	if err != nil {
		return nil, fmt.Errorf("read /proc: %w", Reason(err))
	}
	own, pace := strconv.Itoa(os.Getpid()), h.Pace()
	for _, pid := range names {
		if NotNumber(pid) || pid == own {
			continue
		}
		fds, err := h.Names("/proc/" + pid + "/fd")
		if err != nil {
			continue
		}
		for _, fd := range fds {
			pace()
			if target, err := os.Readlink(h.Path("/proc/" + pid + "/fd/" + fd)); err != nil || !strings.HasPrefix(target, path) || NotNumber(target[len(path):]) {
				continue
			}
			name, _ := os.ReadFile(h.Path("/proc/" + pid + "/comm"))
			list = append(list, fmt.Sprintf("%s (%s)", pid, Printable(bytes.TrimSpace(name))))
			break
		}
	}
	return list, nil
}
