// Package fakecuda builds a libcuda.so.1 for tests, which answers as a scenario defines: README.md
// describes its language. The program under test loads it like NVIDIA's own. The memory of its GPUs
// is the host's, and the host runs the kernels, from the same sources as the PTX.
package fakecuda

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/tests/fakelib"
)

//go:embed src
var files embed.FS

// Old are the functions that a driver of CUDA 11.0, release 450, does not have.
var Old = []string{"cuDeviceGetUuid_v2"}

// Scenario returns a healthy node with that number of GPUs, changed by lines. The last matching
// line counts. GPU i has the PCI address and the UUID of fakenvml's.
func Scenario(gpus int, lines ...string) string {
	return fmt.Sprintf("- cuDeviceGetCount = %d\n%s\n", gpus, strings.Join(lines, "\n"))
}

// Place puts the library, without the missing symbols, and its scenario into dir. It returns the
// path of the library.
func Place(dir, scenario string, missing ...string) (string, error) {
	list, err := sources()
	if err != nil {
		return "", err
	}
	lib := fakelib.Library{
		Soname: "libcuda.so.1", Sources: list, Global: "cu*", Missing: missing, Flags: []string{"-O2", "-pthread"}, Libs: []string{"-lm", "-ldl"},
	}
	return lib.Place(dir, "cuda.scenario", scenario)
}

// sources returns all source files of the library by name.
func sources() (map[string][]byte, error) {
	kernels, err := fakelib.Folder("github.com/nhc-gpu/nhc-gpu", "checks/probe/cuda/kernels")
	if err != nil {
		return nil, err
	}
	list := map[string][]byte{}
	for _, from := range []fs.FS{files, os.DirFS(kernels)} {
		err := fs.WalkDir(from, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) == ".ptx" {
				return err
			}
			list[filepath.Base(path)], err = fs.ReadFile(from, path)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}
