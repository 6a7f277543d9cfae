package worker

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// ListScripts lists the files that match the glob DIR/*.nhc, sorted. It ignores a file that it
// cannot stat, since bash could not read it, either. It ignores a dangling link, too, unless it has
// the name of a file of LBNL NHC: its position still shows which scripts come before the built-in
// checks. It also describes the directory itself if other users can write to it.
func ListScripts(dir string, table wire.FileTable) *wire.Response {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return &wire.Response{}
	}
	if err != nil {
		return &wire.Response{Err: formatPathError("list", dir, err)}
	}
	resp := &wire.Response{}
	if st, err := os.Stat(dir); err == nil && !isReadOnly(dir) {
		resp.File = describeFile(st)
	}
	for _, e := range entries { // sorted, as a glob is in the C locale
		if !strings.HasSuffix(e.Name(), ".nhc") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		s := wire.Script{Path: filepath.Join(dir, e.Name())}
		functions, named := table.Named(e.Name())
		st, err := os.Stat(s.Path)
		switch {
		case err != nil && !named:
			continue
		case err != nil:
			s.Stock, s.Missing, s.Functions = true, true, functions
		default:
			s.FileInfo = *describeFile(st)
			readScript(&s, table, named)
		}
		resp.Scripts = append(resp.Scripts, s)
	}
	return resp
}

// isReadOnly reports whether a directory is mounted read-only. Volumes of a container are, although
// their mode may be world-writable.
func isReadOnly(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}

// readScript reads a script and fills in its properties.
func readScript(s *wire.Script, table wire.FileTable, named bool) {
	if !s.Mode.IsRegular() {
		return
	}
	r := readFile(s.Path)
	if r.Err != "" {
		return
	}
	if named {
		if s.Functions, s.Stock = table.Exact(filepath.Base(s.Path), r.Data); s.Stock {
			return
		}
		s.Altered = true
	}
	s.Functions, s.Sources = findFunctions(r.Data), usesSource(r.Data)
	s.Hardware = bytes.Contains(r.Data, []byte("HW_"))
}

// findFunctions returns the names of the functions that a script defines at the beginning of a line.
func findFunctions(script []byte) (names []string) {
	for line := range bytes.Lines(script) {
		line = bytes.TrimLeft(line, " \t")
		rest, keyword := bytes.CutPrefix(line, []byte("function "))
		name, _, ok := bytes.Cut(bytes.TrimLeft(rest, " \t"), []byte("("))
		name = bytes.TrimRight(name, " \t{\n")
		if keyword || ok && bytes.HasPrefix(bytes.TrimLeft(rest[bytes.IndexByte(rest, '(')+1:], " \t"), []byte(")")) {
			if len(name) > 0 && !bytes.ContainsAny(name, " \t=#\"'$`;|&<>") {
				names = append(names, string(name))
			}
		}
	}
	return names
}

// usesSource reports whether a script sources other files or evaluates text.
func usesSource(script []byte) bool {
	for line := range bytes.Lines(script) {
		for i, word := range bytes.Fields(line) {
			if word[0] == '#' {
				break
			}
			switch string(word) {
			case "source", "eval":
				return true
			case ".":
				if i == 0 {
					return true
				}
			}
		}
	}
	return false
}
