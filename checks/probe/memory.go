package probe

import (
	"bytes"
	"errors"
	"io/fs"
	"strconv"
)

// Memory has values of /proc/meminfo, in kB of 1024 bytes as in the file.
type Memory struct {
	Total     uint64 // MemTotal
	Free      uint64 // MemFree + Buffers + Cached, LBNL's measure of the memory for a job
	SwapTotal uint64 // SwapTotal
	SwapFree  uint64 // SwapFree
	Corrupted uint64 // HardwareCorrupted: pages that the kernel has taken out of use for an error of the hardware
}

// ReadMemory reads /proc/meminfo. A file without MemTotal is an error.
func ReadMemory(h *Host) (Memory, error) {
	return Once(h, "memory", func() (Memory, error) {
		const path = "/proc/meminfo"
		data, err := h.ReadFile(path)
		if err != nil {
			return Memory{}, err
		}
		m, err := parseMemory(data)
		if err != nil {
			return Memory{}, &fs.PathError{Op: "read", Path: path, Err: err}
		}
		return m, nil
	})
}

var errNoTotal = errors.New("no MemTotal line")

func parseMemory(data []byte) (Memory, error) {
	var m Memory
	known := false
	for line := range bytes.Lines(data) {
		f := bytes.Fields(line)
		if len(f) < 2 {
			continue
		}
		kB, err := strconv.ParseUint(string(f[1]), 10, 64)
		if err != nil {
			continue
		}
		switch string(f[0]) {
		case "MemTotal:":
			m.Total, known = kB, true
		case "MemFree:", "Buffers:", "Cached:":
			m.Free += kB
		case "SwapTotal:":
			m.SwapTotal = kB
		case "SwapFree:":
			m.SwapFree = kB
		case "HardwareCorrupted:":
			m.Corrupted = kB
		}
	}
	if !known {
		return Memory{}, errNoTotal
	}
	return m, nil
}
