package probe

import (
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// FileStat is the result of lstat(2).
type FileStat struct {
	Mode   uint32 // permission bits with set-user-ID, set-group-ID and sticky: 0o4755
	UID    uint32
	GID    uint32
	Device uint64    // of its file system
	Major  uint32    // of a device file, else 0
	Minor  uint32    // of a device file, else 0
	Mtime  time.Time // its content changed
	Ctime  time.Time // its inode changed
}

// StatFile reads the inode of a file without following a symbolic link. It caches the result under
// the file's name, as LBNL NHC does. It may block on a file system that does not answer.
func StatFile(h *Host, p string) (FileStat, error) {
	key := "lstat " + p
	s, err := Once(h, key, func() (FileStat, error) { return lstat(h, p) })
	if err != nil {
		Uncache(h, key) // the next call tries again
	}
	return s, err
}

func lstat(h *Host, p string) (FileStat, error) {
	var st unix.Stat_t
	err := error(unix.ENOENT)
	if p != "" {
		err = unix.Lstat(h.Path(p), &st)
	}
	if err != nil {
		return FileStat{}, &fs.PathError{Op: "stat", Path: p, Err: err}
	}
	return FileStat{
		Mode:   st.Mode & 0o7777,
		UID:    st.Uid,
		GID:    st.Gid,
		Device: uint64(st.Dev), //nolint:unconvert // another type on other machines
		Major:  unix.Major(uint64(st.Rdev)),
		Minor:  unix.Minor(uint64(st.Rdev)),
		Mtime:  time.Unix(st.Mtim.Unix()),
		Ctime:  time.Unix(st.Ctim.Unix()),
	}, nil
}
