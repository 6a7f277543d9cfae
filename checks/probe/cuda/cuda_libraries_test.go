package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakecuda"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenccl"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// Each library in LIBRARY_DIRS is loaded by the file behind the links.
func TestLibrariesLoadFromDirs(t *testing.T) {
	t.Parallel()
	need.Program(t, "gcc")
	file, err := fakecuda.Place(t.TempDir(), fakecuda.Scenario(1))
	if err != nil {
		t.Fatal(err)
	}
	h := probe.NewHost(t.TempDir())
	dirs := filepath.Join(filepath.Dir(file), "modules")
	probe.SetLibraries(h, map[string]string{probe.SettingLibraryDirs: filepath.Join(dirs, "*", "lib")})
	for name, dir := range map[string]string{"libcuda.so.1": "driver", "libcublasLt.so.12": "cuda"} {
		lib := filepath.Join(dirs, dir, "lib")
		if err := errors.Join(os.MkdirAll(lib, 0o755), os.Symlink(file, filepath.Join(lib, name))); err != nil {
			t.Fatal(err)
		}
	}
	cuda, err := Open(h, nil)
	if err != nil {
		t.Fatal(err)
	}
	lt, err := OpenCUBLASLt(h, cuda)
	if err != nil || lt.Name != file {
		t.Errorf("cuBLASLt is %+v (%v), want %s", lt, err, file)
	}
	path, err := fakenccl.Place(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	nccl := probe.NewHost(filepath.Dir(path))
	probe.SetLibraries(nccl, map[string]string{probe.SettingLibraryDirs: filepath.Dir(path)})
	if n, err := OpenNCCL(nccl, NCCLSettings{}, func(string) {}); err != nil || n.Path != path {
		t.Errorf("NCCL: %v, want that of %s", err, path)
	}
}
