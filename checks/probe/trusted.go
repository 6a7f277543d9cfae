package probe

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxTrusted bounds a file of settings, bytes.
const maxTrusted = 1 << 20

// trust has the conditions under which a file's content counts.
type trust struct {
	flags  int         // additional flags of open
	owner  int         // or the user of this process
	others fs.FileMode // forbidden permissions
	most   int64       // bytes
}

// ReadTrusted reads a file of settings that only root, or the user of this process, could have
// written. Like nhc.conf it may be group-writable.
func ReadTrusted(h *Host, p string) ([]byte, error) {
	data, err := trust{owner: 0, others: 0o002, most: maxTrusted}.read(h.Path(p))
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: p, Err: Reason(err)}
	}
	return data, nil
}

func (t trust) read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|t.flags, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode(); {
	case !mode.IsRegular():
		return nil, errors.New("not a regular file")
	case ok && int(st.Uid) != t.owner && int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("owned by uid %d, want %s", st.Uid, userName(t.owner))
	case mode.Perm()&t.others != 0:
		return nil, fmt.Errorf("writable by others (mode %04o), want at most %04o", mode.Perm(), 0o777&^t.others)
	case info.Size() > t.most:
		return nil, fmt.Errorf("%d bytes, want at most %d", info.Size(), t.most)
	}
	return io.ReadAll(io.LimitReader(f, t.most))
}

func userName(uid int) string {
	if uid == 0 {
		return "root"
	}
	return fmt.Sprintf("uid %d", uid)
}
