package probe

import (
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// FileTests are the operators that [TestFile] knows.
const FileTests = "abcdefghkprstuwxOGLSN"

// TestFile works like the test builtin of bash with one operator and one path: it checks access for
// the effective user, and follows symbolic links except for L and h. It may block on a file system
// that does not answer.
func TestFile(h *Host, op byte, p string) bool {
	switch op {
	case 't':
		fd, err := strconv.Atoi(p)
		if err != nil {
			return false
		}
		_, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err == nil
	case 'r':
		return access(h, p, unix.R_OK)
	case 'w':
		return access(h, p, unix.W_OK)
	case 'x':
		return access(h, p, unix.X_OK)
	}
	if p == "" {
		return false
	}
	var st unix.Stat_t
	if op == 'L' || op == 'h' {
		return unix.Lstat(h.Path(p), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK
	}
	if unix.Stat(h.Path(p), &st) != nil {
		return false
	}
	return testStat(op, &st)
}

func access(h *Host, p string, mode uint32) bool {
	return p != "" && unix.Faccessat(unix.AT_FDCWD, h.Path(p), mode, unix.AT_EACCESS) == nil
}

// fileTypes are the operators that test for one type of file.
var fileTypes = map[byte]uint32{
	'b': unix.S_IFBLK,
	'c': unix.S_IFCHR,
	'd': unix.S_IFDIR,
	'f': unix.S_IFREG,
	'p': unix.S_IFIFO,
	'S': unix.S_IFSOCK,
}

func testStat(op byte, st *unix.Stat_t) bool {
	if kind, ok := fileTypes[op]; ok {
		return st.Mode&unix.S_IFMT == kind
	}
	switch op {
	case 'a', 'e':
		return true
	case 's':
		return st.Size > 0
	case 'g':
		return st.Mode&unix.S_ISGID != 0
	case 'k':
		return st.Mode&unix.S_ISVTX != 0
	case 'u':
		return st.Mode&unix.S_ISUID != 0
	case 'O':
		return int(st.Uid) == os.Geteuid()
	case 'G':
		return int(st.Gid) == os.Getegid()
	case 'N':
		return st.Mtim.Nano() > st.Atim.Nano()
	}
	return false
}

// MakeDir creates a directory of mode 0755 and its parents.
func MakeDir(h *Host, p string) error {
	if p == "" {
		return fs.ErrInvalid
	}
	if err := os.MkdirAll(h.Path(p), 0o755); err != nil {
		return &fs.PathError{Op: "mkdir", Path: p, Err: Reason(err)}
	}
	return os.Chmod(h.Path(p), 0o755)
}

// Automount stats a missing file below p, so that the automounter mounts p if it can.
func Automount(h *Host, p string) {
	fd, err := Open(unix.AT_FDCWD, h.Path(p)+"/NHC/no/such/file")
	if err == nil {
		_ = unix.Close(fd)
	}
}
