// Package fakenccl builds a libnccl.so.2 for tests, which answers as a scenario says:
// README.md has its language. It works in the memory of the fake libcuda's GPUs
// (package fakecuda), and on its clock.
package fakenccl

import (
	_ "embed"
	"os"
	"path/filepath"

	"github.com/nhc-gpu/nhc-gpu/tests/fakelib"
)

//go:embed src/fakenccl.c
var source []byte

// Old are the functions that NCCL 2.4 does not have.
var Old = []string{"ncclSend", "ncclRecv", "ncclGetLastError"}

// Place puts the library, without the symbols that are missing, and its scenario into
// dir. It gives the path of the library.
func Place(dir, scenario string, missing ...string) (string, error) {
	lib := fakelib.Library{
		Soname: "libnccl.so.2", Sources: map[string][]byte{"fakenccl.c": source}, Global: "nccl*", Missing: missing, Flags: []string{"-O2"}, Libs: []string{"-ldl"},
	}
	return lib.Place(dir, "nccl.scenario", scenario+"\n")
}

// Environment are the NCCL_... of the environment in which the library that lies in dir
// was loaded, a line each, but for the file of its log.
func Environment(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "nccl.environment"))
	return string(data), err
}
