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

// ListScripts names the files that the glob DIR/*.nhc matches, sorted. One that
// cannot be looked at is left out: bash could not read it, either. A link that
// leads nowhere is left out, too, unless it stands for a file of LBNL NHC's: its
// place still says which scripts come before the built-in checks. With them comes
// what the directory itself is, where somebody could write to it.
func ListScripts(dir string, table wire.FileTable) *wire.Response {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return &wire.Response{}
	}
	if err != nil {
		return &wire.Response{Err: pathError("list", dir, err)}
	}
	resp := &wire.Response{}
	if st, err := os.Stat(dir); err == nil && !readOnly(dir) {
		resp.File = fileInfo(st)
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
			s.FileInfo = *fileInfo(st)
			readScript(&s, table, named)
		}
		resp.Scripts = append(resp.Scripts, s)
	}
	return resp
}

// readOnly says whether a directory is mounted read-only, as the volumes of a
// container are, which say that anybody may write.
func readOnly(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Flags&unix.ST_RDONLY != 0
}

// readScript looks into a script.
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
	s.Functions, s.Sources = functions(r.Data), sources(r.Data)
}

// functions names what a script defines as a function at the beginning of a line.
func functions(script []byte) (names []string) {
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

// sources says whether a script reads other files, or text, as a script.
func sources(script []byte) bool {
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
