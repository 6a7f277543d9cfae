package probe

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// IBCounters reads counters of a port: the files that are named below
// /sys/class/infiniband/DEVICE/ports/PORT, "counters/symbol_error" or
// "hw_counters/out_of_sequence". A counter that the device does not have is not
// there. What could not be read is in err; the rest stands.
func (h *Host) IBCounters(device, port string, names []string) (counts map[string]uint64, err error) {
	counts = map[string]uint64{}
	dir := filepath.Join(ibClass, device, "ports", port)
	fd, err := unix.Open(h.Path(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return counts, &fs.PathError{Op: "read", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	var errs []error
	buf := make([]byte, valueSize)
	for _, name := range names {
		n, err := readAt(fd, name, buf)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		path := filepath.Join(dir, name)
		if err != nil {
			errs = append(errs, &fs.PathError{Op: "read", Path: path, Err: err})
			continue
		}
		switch v, known, ok := parseCounter(string(buf[:n])); {
		case !ok:
			errs = append(errs, &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid})
		case known:
			counts[name] = v
		}
	}
	return counts, errors.Join(errs...)
}

// parseCounter reads a number. Kernels say "N/A (no PMA)" of what a port does not
// count.
func parseCounter(text string) (n uint64, known, ok bool) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "N/A") {
		return 0, false, true
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, false, false
	}
	return n, true, true
}
