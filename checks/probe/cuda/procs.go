package cuda

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Processes returns the processes that use CUDA and have /dev/nvidiaN open, by their files. A
// process that uses only NVML, such as monitoring, does not have /dev/nvidia-uvm open.
func Processes(h *probe.Host, minor int) (pids []int, err error) {
	names, err := h.Names("/proc")
	if err != nil {
		return nil, fmt.Errorf("read /proc: %w", probe.Reason(err))
	}
	device, pace := "/dev/nvidia"+strconv.Itoa(minor), h.Pace()
	for _, n := range names {
		if probe.NotNumber(n) {
			continue
		}
		dir := "/proc/" + n + "/fd"
		files, err := h.Names(dir)
		if err != nil {
			if errors.Is(probe.Gone(err), fs.ErrNotExist) {
				continue
			}
			return nil, fmt.Errorf("read %s: %w", dir, probe.Reason(err))
		}
		has := map[string]bool{}
		for _, f := range files {
			pace()
			target, _ := os.Readlink(h.Path(dir + "/" + f)) // "" if it was closed in the meantime
			has[target] = true
		}
		if pid, err := strconv.Atoi(n); err == nil && has[device] && has["/dev/nvidia-uvm"] {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
