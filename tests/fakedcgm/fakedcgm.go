// Package fakedcgm builds a libdcgm.so.4 for tests, which answers as a scenario defines: README.md
// describes its language. The program under test loads it like NVIDIA's own.
package fakedcgm

import (
	_ "embed" // the source of the library
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/tests/fakelib"
)

//go:embed src/fakedcgm.c
var source []byte

// Place puts the library and its scenario into dir. It returns the path of the library.
func Place(dir string, lines ...string) (string, error) {
	header, err := fakelib.Folder("github.com/NVIDIA/go-dcgm", "pkg/dcgm")
	if err != nil {
		return "", err
	}
	lib := fakelib.Library{
		Soname: "libdcgm.so.4", Sources: map[string][]byte{"fakedcgm.c": source}, Global: "dcgm*; error*",
		Flags: []string{"-O1", "-Wno-unused-parameter", "-I" + header}, Libs: []string{"-ldl"},
	}
	return lib.Place(dir, "dcgm.scenario", strings.Join(lines, "\n")+"\n")
}

// Calls returns the calls of the library in dir, in order.
func Calls(dir string) []string {
	data, err := os.ReadFile(filepath.Join(dir, "dcgm.calls"))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// Listen returns an address of this machine that accepts connections and never answers, like a
// stopped nv-hostengine; the fake library ignores that. closing ends it.
func Listen() (address string, closing func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	return l.Addr().String(), l.Close, nil
}
