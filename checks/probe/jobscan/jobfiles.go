package jobscan

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// JobOwners returns the owners of the jobs with a job file (*.JB) of TORQUE's pbs_mom in a
// directory. found reports whether there are such files. It returns the owners of all readable
// files even with an error.
func JobOwners(h *probe.Host, dir string) (owners []string, found bool, err error) {
	entries, err := os.ReadDir(h.Path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, &fs.PathError{Op: "read", Path: dir, Err: probe.Reason(err)}
	}
	var errs []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".JB") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		found = true
		path := filepath.Join(dir, e.Name())
		if st, err := os.Stat(h.Path(path)); err == nil && !st.Mode().IsRegular() {
			continue
		}
		data, err := h.ReadFile(path)
		switch owner := parseJobOwner(data); {
		case errors.Is(err, fs.ErrNotExist): // the job has ended
		case err != nil:
			errs = append(errs, err)
		case owner != "" && !slices.Contains(owners, owner):
			owners = append(owners, owner)
		}
	}
	return owners, found, errors.Join(errs...)
}

// parseJobOwner parses a job file of either format: a line PBS_O_LOGNAME=NAME, or XML with a line that
// ends in NAME</euser>.
func parseJobOwner(data []byte) string {
	xml := false
	for line := range bytes.Lines(data) {
		line = bytes.Trim(line, " \t\n")
		switch {
		case xml:
			name, ok := bytes.CutSuffix(line, []byte("</euser>"))
			if !ok {
				continue
			}
			if tag := bytes.LastIndex(name, []byte("<euser")); tag >= 0 {
				if end := bytes.LastIndexByte(name[tag:], '>'); end >= 0 {
					name = name[tag+end+1:]
				}
			}
			return string(name)
		case bytes.HasPrefix(line, []byte("<?xml")):
			xml = true
		default:
			if name, ok := bytes.CutPrefix(line, []byte("PBS_O_LOGNAME=")); ok {
				return string(name)
			}
		}
	}
	return ""
}
