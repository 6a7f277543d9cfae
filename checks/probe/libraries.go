package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrNoLibrary says that a vendor's library is not installed on this node.
var ErrNoLibrary = errors.New("not found")

// ErrOtherNode says that a recorded node is looked at, of whose GPUs this
// machine's library knows nothing. Without GPUs it is ErrNoLibrary, too.
var ErrOtherNode = fmt.Errorf("%w for a recorded node", ErrNoLibrary)

// The settings that name a vendor's library, each a file of its own in place of
// what the system's loader would find.
const (
	SettingNVML     = "NVML_LIBRARY"
	SettingCUDA     = "CUDA_LIBRARY"
	SettingNCCL     = "NCCL_LIBRARY"
	SettingCUBLASLt = "CUBLASLT_LIBRARY"
	SettingDCGM     = "DCGM_LIBRARY"

	// SettingLibraryDirs names directories, which are searched before the system's
	// loader is asked: separated by colons, each may be a pattern of filepath.Match.
	SettingLibraryDirs = "LIBRARY_DIRS"
)

// SetLibraries takes the settings of vendors' libraries from variables. Each counts
// until its library is first asked for.
func (h *Host) SetLibraries(vars map[string]string) {
	h.libraries = map[string]string{}
	for _, s := range []string{SettingNVML, SettingCUDA, SettingNCCL, SettingCUBLASLt, SettingDCGM, SettingLibraryDirs} {
		if vars[s] != "" {
			h.libraries[s] = vars[s]
		}
	}
}

// loadLibrary hands open the files that a library may be loaded from until one loads, in
// this order: the file that its setting names, and no other if there is one; LIBRARY_DIRS;
// what the system's loader finds; the places where installers put it. On a recorded node
// the last two are those of another machine. cuda is the major version of CUDA that the
// driver supports, 0 if it is unknown. The error is [ErrNoLibrary] if there is no file.
func loadLibrary[T any](h *Host, v *vendorLibrary, cuda int, open func(path string) (T, error)) (loaded T, err error) {
	if path := h.libraries[v.setting]; path != "" {
		file, err := trustedLibrary(path, true)
		if err != nil {
			return loaded, fmt.Errorf("load %s of %s: not used: %w", path, v.setting, err)
		}
		return open(file)
	}
	none := fmt.Errorf("load %s: %w", v.names[0], ErrNoLibrary)
	var broken error // the first file that is there and does not load
	try := func(paths ...string) bool {
		for _, path := range paths {
			if loaded, err = open(path); err == nil {
				return true
			}
			if errors.Is(err, ErrNoLibrary) {
				continue
			}
			if broken == nil {
				broken = err
			}
			if v.ofGPU { // the driver has refused: another file of its library would ask it again
				return true
			}
		}
		return false
	}
	named, refused := h.namedLibraries(v, cuda)
	if try(named...) {
		return loaded, err
	}
	if h.root != "/" {
		none = fmt.Errorf("load %s: %w below %s; %s names one", v.names[0], ErrOtherNode, h.root, v.setting)
	} else {
		if try(v.sonames(cuda)...) {
			return loaded, err
		}
		known, more := h.knownLibraries(v, cuda)
		if refused = append(refused, more...); try(known...) {
			return loaded, err
		}
	}
	if broken != nil {
		return loaded, broken
	}
	if len(refused) > 0 {
		return loaded, fmt.Errorf("%w%s", none, withReasons(refused))
	}
	return loaded, none
}

// trustedLibrary follows a path to the file that it names and returns the file's own
// path, without symbolic links. What is loaded is run, by root: so each directory, each
// link and the file have to belong to root, or to the user who runs this, and must not be
// writable by others. A sticky directory such as /tmp may be, since nobody can replace in
// it what another user owns. Members of a group may write only where the administrator has
// named the file (group). A name without a slash is for the system's loader, and a file
// that is not there for dlopen to report.
func trustedLibrary(path string, group bool) (string, error) {
	if !strings.Contains(path, "/") {
		return path, nil
	}
	whole, err := filepath.Abs(path)
	if err != nil {
		return path, nil
	}
	at, rest, links := "/", strings.Split(whole, "/"), 0
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(next)
		if err != nil {
			return path, nil
		}
		if err := ownedByRoot(next, info, group); err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		target, err := os.Readlink(next)
		if links++; err != nil || links > 40 {
			return path, nil
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return at, nil
}

func ownedByRoot(path string, info fs.FileInfo, group bool) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	mode := info.Mode()
	switch {
	case ok && st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s is owned by uid %d, want root", path, st.Uid)
	case mode&fs.ModeSymlink != 0 || mode.IsDir() && mode&fs.ModeSticky != 0:
	case mode.Perm()&0o002 != 0:
		return fmt.Errorf("%s is writable by others (mode %04o)", path, mode.Perm())
	case !group && ok && mode.Perm()&0o020 != 0 && st.Gid != 0 && int(st.Gid) != os.Getegid():
		return fmt.Errorf("%s is writable by group %d (mode %04o)", path, st.Gid, mode.Perm())
	}
	return nil
}
