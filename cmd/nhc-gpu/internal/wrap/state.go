package wrap

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// state is a directory that only this user can write. It holds the last output (NAME.save), the
// output of the last failure (NAME.failed; empty if that is cleared and the last output is not empty),
// and mail that was not sent yet (NAME.mail).
type state struct {
	path string
	name string
	dir  *os.File
}

// Directories of the state without -D. LBNL uses /tmp: there any user can create a file of that
// name, so ownership is checked.
const (
	rootDir = "/var/lib/nhc-gpu/wrap"
	runDir  = "/run/nhc-gpu-wrap" // if /var cannot be written
)

// openDefault opens the state directory, and creates it if needed. With an error the state may be
// nil, or only have its path.
func openDefault(path, name string) (*state, error) {
	if path != "" {
		return openState(path, name)
	}
	if os.Geteuid() == 0 {
		_ = os.MkdirAll(filepath.Dir(rootDir), 0o755) // an error shows in the next call
		s, err := openState(rootDir, name)
		if err == nil || !errors.Is(err, unix.EROFS) && !errors.Is(err, unix.ENOENT) {
			return s, err
		}
		return openState(runDir, name)
	}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) && ownDir(dir) {
		return openState(filepath.Join(dir, "nhc-gpu-wrap"), name)
	}
	return openState(fmt.Sprintf("/tmp/%s-%d", name, os.Geteuid()), name)
}

func ownDir(path string) bool {
	s, err := openState(path, "")
	if err != nil {
		return false
	}
	s.close()
	return true
}

func openState(path, name string) (*state, error) {
	s := &state{path: path, name: name}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return s, fmt.Errorf("create state directory: %w", err)
	}
	dir, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_RDONLY, 0)
	if err != nil {
		return s, fmt.Errorf("open state directory: %w", err)
	}
	if err := onlyOurs(dir); err != nil {
		dir.Close()
		return s, fmt.Errorf("state directory: %w", err)
	}
	s.dir = dir
	return s, nil
}

// onlyOurs refuses a file of another user, or one that other users could write.
func onlyOurs(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	switch {
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s is owned by uid %d, want %d", f.Name(), st.Uid, os.Geteuid())
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%s is writable by other users (mode %04o), want 0700", f.Name(), st.Mode&0o7777)
	}
	return nil
}

func (s *state) close() { s.dir.Close() }

// lock prevents a second wrapper from using the same state; the kernel unlocks it when this process
// ends.
func (s *state) lock() (unlock func(), err error) {
	if err := unix.Flock(int(s.dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another wrapper is running")
		}
		return nil, fmt.Errorf("%s: %w; this run is skipped", s.path, err)
	}
	return func() { _ = unix.Flock(int(s.dir.Fd()), unix.LOCK_UN) }, nil
}

const (
	saveFile = ".save"
	mailFile = ".mail"
	failFile = ".failed"
)

// open opens a file of the directory, never through a link, and does not block on a pipe.
func (s *state) open(suffix string, how int) (*os.File, error) {
	path := filepath.Join(s.path, s.name+suffix)
	fd, err := unix.Openat(int(s.dir.Fd()), s.name+suffix, how|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a plain file", path)
	}
	if err == nil {
		err = onlyOurs(f)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// maxSaved bounds the bytes that are read back. An output with the wrapper's additions is smaller;
// several waiting mails may reach it.
const maxSaved = 4 << 20

func (s *state) read(suffix string) ([]byte, error) {
	f, err := s.open(suffix, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSaved))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", f.Name(), err)
	}
	return data, nil
}

// savedAt returns when the last output was first seen.
func (s *state) savedAt() (time.Time, bool) {
	f, err := s.open(saveFile, unix.O_RDONLY)
	if err != nil {
		return time.Time{}, false
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return time.Time{}, false
	}
	return info.ModTime(), true
}

func (s *state) forget(suffix string) { _ = unix.Unlinkat(int(s.dir.Fd()), s.name+suffix, 0) }

// save replaces a file atomically.
func (s *state) save(suffix string, data []byte) error {
	const fresh = ".new"
	s.forget(fresh)
	f, err := s.open(fresh, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if errClose := f.Close(); err == nil {
		err = errClose
	}
	if err == nil {
		err = unix.Renameat(int(s.dir.Fd()), s.name+fresh, int(s.dir.Fd()), s.name+suffix)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(s.path, s.name+suffix), err)
	}
	return nil
}

// queue adds a report to the waiting mail.
func (s *state) queue(text []byte) error {
	f, err := s.open(mailFile, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("queue mail: %w", err)
	}
	if info.Size()+int64(len(text)) > maxSaved {
		return fmt.Errorf("%s is full: a report is lost; see the error of mail above", f.Name())
	}
	if info.Size() > 0 {
		text = append([]byte("\n----\n\n"), text...)
	}
	if _, err := f.Write(text); err != nil {
		return fmt.Errorf("queue mail: %w", err)
	}
	return nil
}

// waiting returns the file of the waiting mail.
func (s *state) waiting() (path string, ok bool) {
	f, err := s.open(mailFile, unix.O_RDONLY)
	if err != nil {
		return "", false
	}
	defer f.Close()
	info, err := f.Stat()
	return f.Name(), err == nil && info.Size() > 0
}
