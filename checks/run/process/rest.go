package process

import (
	"bytes"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// restPercent is the growth of the heap, in percent, that starts a garbage collection. A run of checks collects none.
const restPercent = 20

// Rest gives back the memory that the start of a process needed: garbage, and the pages of the program that it reads
// again if it needs them. It is for processes that live long, with little to do: the monitor and its workers.
func Rest() {
	debug.SetGCPercent(restPercent)
	giveBack()
}

// giveBack gives back memory, and returns the size of the parts of the program that it has given back.
func giveBack() (size uintptr) {
	exe, err := os.Readlink("/proc/self/exe")        //nolint:forbidigo // /proc/self
	maps, mapsErr := os.ReadFile("/proc/self/smaps") //nolint:forbidigo // /proc/self
	var list [][2]uintptr
	if err == nil && mapsErr == nil {
		list = unwritten(maps, exe)
	}
	debug.FreeOSMemory() // before the program's pages: it reads many
	for _, m := range list {
		if _, _, err := unix.Syscall(unix.SYS_MADVISE, m[0], m[1]-m[0], unix.MADV_DONTNEED); err == 0 {
			size += m[1] - m[0]
		}
	}
	return size
}

// unwritten returns the beginnings and ends of a file's mappings that are like the file: they cannot be written, and
// no page of them was while they could. maps is /proc/PID/smaps.
func unwritten(maps []byte, file string) (list [][2]uintptr) {
	var m [2]uintptr
	for line := range bytes.Lines(maps) {
		switch empty, isAnonymous := bytes.CutPrefix(line, []byte("Anonymous:")); {
		case isAnonymous:
			if m[1] > m[0] && bytes.Equal(bytes.TrimSpace(empty), []byte("0 kB")) {
				list = append(list, m)
			}
		case line[0] >= 'A' && line[0] <= 'Z': // another value of the mapping
		default: // a mapping: its addresses are hexadecimal, in lower case
			m = [2]uintptr{}
			words := strings.Fields(string(line))
			if len(words) < 6 || words[1][1] != '-' || words[5] != file {
				continue
			}
			begin, end, _ := strings.Cut(words[0], "-")
			from, err := strconv.ParseUint(begin, 16, 64)
			to, endErr := strconv.ParseUint(end, 16, 64)
			if err == nil && endErr == nil {
				m = [2]uintptr{uintptr(from), uintptr(to)}
			}
		}
	}
	return list
}
