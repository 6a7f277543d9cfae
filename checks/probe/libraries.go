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

// The settings that name a vendor's library, each a file of its own in place of
// what the system's loader would find.
const (
	SettingNVML     = "NVML_LIBRARY"
	SettingCUDA     = "CUDA_LIBRARY"
	SettingNCCL     = "NCCL_LIBRARY"
	SettingCUBLASLt = "CUBLASLT_LIBRARY"
	SettingDCGM     = "DCGM_LIBRARY"
)

// SetLibraries takes the settings of vendors' libraries from variables. Each counts
// until its library is first asked for.
func (h *Host) SetLibraries(vars map[string]string) {
	h.nvmlLibrary = vars[SettingNVML]
	h.libraries = map[string]string{}
	for _, s := range []string{SettingCUDA, SettingNCCL, SettingCUBLASLt, SettingDCGM} {
		if vars[s] != "" {
			h.libraries[s] = vars[s]
		}
	}
}

// library is what to hand to dlopen: the file that the setting names, else the name
// by which the system's loader finds it. A recorded node has none of this machine's.
func (h *Host) library(setting, name string) (string, error) {
	if path := h.libraries[setting]; path != "" {
		if err := guarded(path); err != nil {
			return "", fmt.Errorf("load %s of %s: %w", path, setting, err)
		}
		return path, nil
	}
	if h.root != "/" {
		return "", fmt.Errorf("load %s: %w below %s; %s names one", name, ErrOtherNode, h.root, setting)
	}
	return name, nil
}

// guarded refuses a library that anybody could have put there, or could replace: what
// is loaded is run, by root. A file that is not there is dlopen's to tell.
func guarded(path string) error {
	if !strings.Contains(path, "/") {
		return nil // the system's loader looks where root has it look
	}
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	if info.Mode().Perm()&0o002 != 0 {
		return fmt.Errorf("not used: writable by others (mode %04o)", info.Mode().Perm())
	}
	foreign := func(info fs.FileInfo) bool {
		st, ok := info.Sys().(*syscall.Stat_t)
		return ok && st.Uid != 0 && int(st.Uid) != os.Geteuid()
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		of, err := os.Stat(dir)
		switch {
		case err != nil:
			return nil
		case of.Mode().Perm()&0o002 == 0:
		case of.Mode()&fs.ModeSticky == 0:
			return fmt.Errorf("not used: %s is writable by others (mode %04o)", dir, of.Mode().Perm())
		case foreign(info):
			return errors.New("not used: " + dir + " is for everybody, and what is in it is not root's")
		}
		if dir == "/" {
			return nil
		}
		info = of
	}
}
