package rdma

import (
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
)

// These are the directories of counters outside the port's own.
const (
	CountersOfDevice = "device/" // hw_counters of the RDMA device
	CountersOfNet    = "net/"    // statistics of the port's network interfaces
)

// IBCounters reads counters of a port: "counters/symbol_error" and "hw_counters/out_of_sequence"
// are files below /sys/class/infiniband/DEVICE/ports/PORT, "device/cmds_err" is a file of
// DEVICE/hw_counters, and "net/rx_crc_errors" is the sum over the statistics of the network
// interfaces nets. The result lacks counters that the device does not have. err names the files
// that could not be read; the result has the rest.
func IBCounters(h *probe.Host, device, port string, nets, names []string) (counts map[string]uint64, err error) {
	counts = map[string]uint64{}
	dir := filepath.Join(ibClass, device, "ports", port)
	fd, err := unix.Open(h.Path(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return counts, &fs.PathError{Op: "read", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	var errs []error
	unread := map[string]bool{} // a sum without one of its files would jump when the file is back
	buf := make([]byte, probe.ValueSize)
	read := func(at int, file, path, name string) {
		n, err := probe.ReadAt(at, file, buf)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil {
			errs, unread[name] = append(errs, &fs.PathError{Op: "read", Path: path, Err: err}), true
			return
		}
		switch v, known, ok := parseCounter(string(buf[:n])); {
		case !ok:
			errs, unread[name] = append(errs, &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid}), true
		case known:
			counts[name] += v
		}
	}
	for _, name := range names {
		if file, ok := strings.CutPrefix(name, CountersOfDevice); ok {
			path := filepath.Join(ibClass, device, "hw_counters", file)
			read(unix.AT_FDCWD, h.Path(path), path, name)
			continue
		}
		file, ok := strings.CutPrefix(name, CountersOfNet)
		if !ok {
			read(fd, name, filepath.Join(dir, name), name)
			continue
		}
		for _, dev := range nets {
			path := filepath.Join(network.NetClass, dev, "statistics", file)
			read(unix.AT_FDCWD, h.Path(path), path, name)
		}
	}
	maps.DeleteFunc(counts, func(name string, _ uint64) bool { return unread[name] })
	return counts, errors.Join(errs...)
}

// parseCounter parses a number. known is false for "N/A (no PMA)", which kernels show for a counter
// that the port lacks.
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
