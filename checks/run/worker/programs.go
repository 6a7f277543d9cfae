package worker

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// findPrograms returns the files that match a pattern of Prolog=, sorted, as slurmd's glob(3) does:
// a name that begins with a dot matches only a pattern with the dot. Without a pattern it returns those named.
func findPrograms(pattern string, named []string) *wire.Response {
	self, _ := os.Stat("/proc/self/exe")
	if pattern == "" {
		resp := &wire.Response{}
		for _, path := range named {
			resp.Programs = append(resp.Programs, inspectProgram(path, self))
		}
		return resp
	}
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return &wire.Response{Err: fmt.Sprintf("find %s: %v", pattern, err)}
	}
	if len(paths) == 0 { // missing, or not visible
		dir := filepath.Dir(pattern)
		if _, err := os.ReadDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &wire.Response{Err: formatPathError("list", dir, err)}
		}
	}
	resp := &wire.Response{}
	for _, path := range paths {
		if strings.HasPrefix(filepath.Base(path), ".") && !strings.HasPrefix(filepath.Base(pattern), ".") {
			continue
		}
		resp.Programs = append(resp.Programs, inspectProgram(path, self))
	}
	return resp
}

func inspectProgram(path string, self fs.FileInfo) wire.Program {
	p := wire.Program{Path: path}
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		p.Gone, p.Bad = true, "a link that leads nowhere"
		return p
	case err != nil:
		p.Bad = formatPathError("stat", path, err)
		return p
	case !st.Mode().IsRegular():
		p.Bad = fmt.Sprintf("not a program (%s)", st.Mode().Type())
		return p
	case st.Mode()&0o111 == 0:
		p.Bad = fmt.Sprintf("cannot be executed (mode %04o)", st.Mode().Perm())
	}
	target, err := filepath.EvalSymlinks(path)
	if p.Self = os.SameFile(st, self) || err == nil && filepath.Base(target) == "nhc-gpu"; !p.Self {
		text := readFile(path).Data
		p.Starts = bytes.HasPrefix(text, []byte("#!")) && bytes.Contains(text, []byte("nhc-gpu"))
	}
	return p
}

// find returns the first path that is a directory (written with a final slash) or an executable
// file.
func find(paths []string) *wire.Response {
	for i, p := range paths {
		st, err := os.Stat(p)
		if err == nil && (st.IsDir() || st.Mode().IsRegular() && st.Mode()&0o111 != 0) && st.IsDir() == strings.HasSuffix(p, "/") {
			return &wire.Response{Status: i + 1}
		}
	}
	return &wire.Response{}
}
