package wire

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"slices"
	"strings"
)

// LBNLFiles lists the files of LBNL NHC's own distribution.
//
//go:embed lbnlfiles.txt
var LBNLFiles string

// FileTable is text in the format of lbnlfiles.txt. Each line has the sha256 of a file, its name,
// its versions, and the functions that it defines.
type FileTable string

// Named reports whether some version has a file of that name, and returns the functions that all
// versions of it define.
func (t FileTable) Named(name string) (functions []string, ok bool) {
	for line := range strings.Lines(string(t)) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == name {
			functions, ok = append(functions, f[3:]...), true
		}
	}
	return Unique(functions), ok
}

// Exact returns the functions of a file if some version has this name and content.
func (t FileTable) Exact(name string, data []byte) (functions []string, ok bool) {
	sum := sha256.Sum256(data)
	_, rest, found := strings.Cut(string(t), hex.EncodeToString(sum[:])+" "+name+" ")
	if !found {
		return nil, false
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strings.Fields(line)[1:], true
}

// Functions returns every function of every version.
func (t FileTable) Functions() (names []string) {
	for line := range strings.Lines(string(t)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] != "#" {
			names = append(names, f[3:]...)
		}
	}
	return Unique(names)
}

// Unique sorts names and removes duplicates.
func Unique(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
