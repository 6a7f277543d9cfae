// Package fakenccl builds a libnccl.so.2 for tests, which answers as a scenario defines: README.md
// describes its language. It uses the memory of the fake libcuda's GPUs (package fakecuda), and its
// clock.
package fakenccl

import (
	"embed"
	"os"
	"path/filepath"

	"github.com/nhc-gpu/nhc-gpu/tests/fakelib"
)

//go:embed src
var files embed.FS

// Old are the functions that NCCL 2.4 does not have.
var Old = []string{"ncclSend", "ncclRecv", "ncclGetLastError", "ncclCommInitRankConfig"}

// Place puts the library, without the missing symbols, and its scenario into dir. It returns the
// path of the library.
func Place(dir, scenario string, missing ...string) (string, error) {
	sources := map[string][]byte{}
	for _, name := range []string{"fake.h", "fakenccl.c", "net.c"} {
		data, err := files.ReadFile("src/" + name)
		if err != nil {
			return "", err
		}
		sources[name] = data
	}
	lib := fakelib.Library{
		Soname: "libnccl.so.2", Sources: sources, Global: "nccl*", Missing: missing, Flags: []string{"-O2", "-pthread"}, Libs: []string{"-ldl"},
	}
	return lib.Place(dir, "nccl.scenario", scenario+"\n")
}

// Environment returns the NCCL_ variables at the time when the library in dir was loaded, one per
// line, except that of the log file.
func Environment(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "nccl.environment"))
	return string(data), err
}
