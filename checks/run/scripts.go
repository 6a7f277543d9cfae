package run

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Script is a file of $INCDIR that LBNL NHC would source.
type Script struct {
	Path      string   `json:"path"`
	Stock     bool     `json:"stock,omitempty"` // of LBNL NHC's own distribution: this program has its checks
	Functions []string `json:"functions,omitempty"`
	FileInfo
}

// stockChecks are the files of LBNL NHC's distribution, and how the names of
// the checks in each begin.
var stockChecks = map[string]string{
	"common.nhc":         "",
	"csc_nvidia_smi.nhc": "check_nvsmi_",
	"lbnl_cmd.nhc":       "check_cmd_",
	"lbnl_dmi.nhc":       "check_dmi_",
	"lbnl_file.nhc":      "check_file_",
	"lbnl_fs.nhc":        "check_fs_",
	"lbnl_hw.nhc":        "check_hw_",
	"lbnl_job.nhc":       "",
	"lbnl_moab.nhc":      "check_moab_",
	"lbnl_net.nhc":       "check_net_",
	"lbnl_nv.nhc":        "check_nv_",
	"lbnl_ps.nhc":        "check_ps_",
}

// StockChecks is how the names of the checks begin that a file of LBNL NHC's
// distribution defines.
func StockChecks(path string) string { return stockChecks[filepath.Base(path)] }

// listScripts names the files that the glob DIR/*.nhc matches, sorted. One that
// cannot be looked at is left out: bash could not read it, either. A link that
// leads nowhere is left out, too, unless it stands for a file of LBNL NHC's: its
// place still says which scripts come before the built-in checks. With them comes
// what the directory itself is, where somebody could write to it.
func listScripts(dir string) *Response {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return &Response{}
	}
	if err != nil {
		return &Response{Err: pathError("list", dir, err)}
	}
	resp := &Response{}
	if st, err := os.Stat(dir); err == nil && !readOnly(dir) {
		resp.File = fileInfo(st)
	}
	for _, e := range entries { // sorted, as a glob is in the C locale
		if !strings.HasSuffix(e.Name(), ".nhc") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		s := Script{Path: filepath.Join(dir, e.Name())}
		_, named := stockChecks[e.Name()]
		st, err := os.Stat(s.Path)
		switch {
		case err != nil && !named:
			continue
		case err != nil:
			s.Stock, s.Missing = true, true
		default:
			s.FileInfo = *fileInfo(st)
			s.read(named)
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

// read looks into a script.
func (s *Script) read(named bool) {
	if !s.Mode.IsRegular() {
		return
	}
	r := readFile(s.Path)
	if r.Err != "" {
		return
	}
	s.Functions = functions(r.Data)
	s.Stock = named && isStock(filepath.Base(s.Path), r.Data, s.Functions)
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

// isStock tells a file of LBNL NHC's from another that only bears its name, as
// Azure's csc_nvidia_smi.nhc does: by its heading, and by its defining no check
// that this program lacks.
func isStock(name string, data []byte, functions []string) bool {
	heading, _, _ := bytes.Cut(data, []byte("\n"))
	if !bytes.HasPrefix(heading, []byte("# NHC - ")) && !bytes.HasPrefix(heading, []byte("# LBNL NHC - ")) {
		return false
	}
	return !slices.ContainsFunc(functions, func(f string) bool {
		for _, own := range []string{"nhc_", "mcheck", "array_"} {
			if strings.HasPrefix(f, own) {
				return false
			}
		}
		_, known := checks.Lookup(f)
		return !known || !strings.HasPrefix(f, stockChecks[name])
	})
}

// Overrides are the checks of this program that scripts define anew, as far as
// their text tells: a file of LBNL NHC's takes back what those before it have
// defined.
func Overrides(scripts []Script) map[string]bool {
	over := map[string]bool{}
	for _, s := range scripts {
		if s.Stock {
			if family := StockChecks(s.Path); family != "" {
				maps.DeleteFunc(over, func(name string, _ bool) bool { return strings.HasPrefix(name, family) })
			}
			continue
		}
		for _, name := range s.Functions {
			if _, ok := checks.Lookup(name); ok {
				over[name] = true
			}
		}
	}
	return over
}
