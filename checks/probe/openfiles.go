package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// openedFinder marks those of some files that processes have open, by whatever
// name, or mapped.
type openedFinder struct {
	h     *Host
	files map[inode]*ShmFile
	bases map[string]bool // their names without directories
}

func (f *openedFinder) look() error {
	names, err := f.h.names("/proc")
	if err != nil {
		return err
	}
	for _, n := range names {
		if notNumber(n) {
			continue
		}
		if err := f.process("/proc/" + n); err != nil && !errors.Is(gone(err), fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (f *openedFinder) process(dir string) error {
	names, err := f.h.names(dir + "/fd")
	if err != nil {
		return err
	}
	for _, n := range names {
		fd := f.h.Path(dir + "/fd/" + n)
		target, err := os.Readlink(fd)
		if err != nil || !f.bases[path.Base(target)] {
			continue
		}
		var st unix.Statx_t // a server that is dead is not asked
		if unix.Statx(unix.AT_FDCWD, fd, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_INO, &st) == nil {
			f.mark(inode{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino})
		}
	}
	data, err := f.h.readFile(dir + "/maps")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		if i, ok := parseMapping(line); ok {
			f.mark(i)
		}
	}
	return nil
}

func (f *openedFinder) mark(i inode) {
	if file := f.files[i]; file != nil {
		file.Opened = true
	}
}

// parseMapping is the file of a line of /proc/PID/maps: "7f0-7f1 rw-s 0 00:1a 4711 /dev/shm/x".
func parseMapping(line string) (i inode, ok bool) {
	f := strings.Fields(line)
	if len(f) < 5 {
		return i, false
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(f[3], "%x:%x", &major, &minor); err != nil {
		return i, false
	}
	n, err := strconv.ParseUint(f[4], 10, 64)
	return inode{unix.Mkdev(major, minor), n}, err == nil && n != 0
}
