package lbnl

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// recorder is the script in files of type recorder.
//
//go:embed testdata/recorder.sh
var recorder []byte

// dress adds this case's own files to the stage, but not its processes.
func (s *scene) dress() error {
	for _, step := range []func() error{s.mountAll, s.putConf, s.putSysfs, s.putFiles, s.bindAll, s.addLinks} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (s *scene) mountAll() error {
	flagBits := map[string]uintptr{"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV}
	for _, m := range s.Mounts {
		var bits uintptr
		for _, name := range m.Flags {
			bit, ok := flagBits[name]
			if !ok {
				return fmt.Errorf("mount %s: no such flag: %s", m.Target, name)
			}
			bits |= bit
		}
		if err := os.MkdirAll(m.Target, 0o755); err != nil {
			return err
		}
		source := m.Source
		if source == "" {
			source = m.Type
		}
		if err := mountAt(source, m.Target, m.Type, bits, m.Opts); err != nil {
			return err
		}
	}
	return nil
}

func (s *scene) putConf() error {
	if s.Conf == nil {
		return nil
	}
	return putFile(dir+"/etc/nhc.conf", []byte(*s.Conf), 0o644)
}

func (s *scene) putSysfs() error {
	if len(s.Sysfs) == 0 {
		return nil
	}
	const class = "/sys/class"
	if err := mountAt("tmpfs", class, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	for path, text := range s.Sysfs {
		if err := putFile(filepath.Join(class, path), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return os.MkdirAll(class+"/net", 0o755)
}

func (s *scene) bindAll() error {
	for i, path := range slices.Sorted(maps.Keys(s.Bind)) {
		if err := bindText(fmt.Sprintf("%s/bind%d", base, i), path, s.Bind[path]); err != nil {
			return err
		}
	}
	return nil
}

// bindText mounts a new file with that text over target.
func bindText(path, target, text string) error {
	if err := putFile(path, []byte(text), 0o444); err != nil {
		return err
	}
	return mountAt(path, target, "", unix.MS_BIND, "")
}

// addLinks creates network links, of the first kind that the kernel supports.
func (s *scene) addLinks() error {
	for _, name := range s.Links {
		var errs []error
		for _, kind := range []string{"dummy", "bridge"} {
			out, err := exec.Command("ip", "link", "add", name, "type", kind).CombinedOutput()
			if err == nil {
				errs = nil
				break
			}
			errs = append(errs, fmt.Errorf("add %s link %s: %w: %s", kind, name, err, out))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

func (s *scene) putFiles() error {
	now := time.Now()
	for i := range s.Files {
		f := &s.Files[i]
		if err := errors.Join(f.make(), f.setOwner(), f.setMode(), f.setTimes(now)); err != nil {
			return fmt.Errorf("make %s: %w", f.Path, err)
		}
	}
	return nil
}

// make creates a file and its parent directories.
func (f *file) make() error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	switch f.Type {
	case "", "file":
		text := []byte(f.Content)
		if f.Fill > 0 {
			text = make([]byte, f.Fill)
			for i := range text {
				text[i] = 1
			}
		}
		return putFile(f.Path, text, 0o644)
	case "recorder":
		return putFile(f.Path, recorder, 0o755)
	case "dir":
		return os.MkdirAll(f.Path, 0o755)
	case "symlink":
		return os.Symlink(f.Target, f.Path)
	case "fifo":
		return makeNode(f.Path, unix.S_IFIFO, 0, 0, 0o644)
	case "socket":
		return makeNode(f.Path, unix.S_IFSOCK, 0, 0, 0o755)
	case "char":
		return makeNode(f.Path, unix.S_IFCHR, f.Major, f.Minor, 0o600)
	case "block":
		return makeNode(f.Path, unix.S_IFBLK, f.Major, f.Minor, 0o600)
	}
	return fmt.Errorf("no such type: %s", f.Type)
}

func (f *file) setOwner() error {
	if f.UID == nil && f.GID == nil {
		return nil
	}
	uid, gid := -1, -1
	if f.UID != nil {
		uid = *f.UID
	}
	if f.GID != nil {
		gid = *f.GID
	}
	return os.Lchown(f.Path, uid, gid)
}

func (f *file) setMode() error {
	if f.Mode == "" {
		return nil
	}
	mode, err := strconv.ParseUint(f.Mode, 8, 32)
	if err != nil {
		return err
	}
	return chmod(f.Path, uint32(mode))
}

// setTimes sets the times of a file back; the time of access is that of modification unless it is
// set.
func (f *file) setTimes(now time.Time) error {
	if f.MtimeAgo == nil && f.AtimeAgo == nil {
		return nil
	}
	var modified float64
	if f.MtimeAgo != nil {
		modified = *f.MtimeAgo
	}
	accessed := modified
	if f.AtimeAgo != nil {
		accessed = *f.AtimeAgo
	}
	ago := func(seconds float64) time.Time { return now.Add(-time.Duration(seconds * float64(time.Second))) }
	return os.Chtimes(f.Path, ago(accessed), ago(modified))
}
