package run

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"slices"
	"strings"
)

// lbnlFiles lists the files of LBNL NHC's own distribution.
//
//go:embed lbnlfiles.txt
var lbnlFiles string

// fileTable is text such as lbnlfiles.txt: in each line the sha256 of a file, its
// name, its versions, and the functions that it defines.
type fileTable string

// named reports whether some version has a file of that name, and returns what all
// versions of it define.
func (t fileTable) named(name string) (functions []string, ok bool) {
	for line := range strings.Lines(string(t)) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == name {
			functions, ok = append(functions, f[3:]...), true
		}
	}
	return unique(functions), ok
}

// exact returns the functions of a file whose name and content are those of a version.
func (t fileTable) exact(name string, data []byte) (functions []string, ok bool) {
	sum := sha256.Sum256(data)
	_, rest, found := strings.Cut(string(t), hex.EncodeToString(sum[:])+" "+name+" ")
	if !found {
		return nil, false
	}
	line, _, _ := strings.Cut(rest, "\n")
	return strings.Fields(line)[1:], true
}

// functions returns every function of every version.
func (t fileTable) functions() (names []string) {
	for line := range strings.Lines(string(t)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] != "#" {
			names = append(names, f[3:]...)
		}
	}
	return unique(names)
}

func unique(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
