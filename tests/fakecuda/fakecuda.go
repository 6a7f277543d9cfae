// Package fakecuda builds a libcuda.so.1 for tests, which answers as a scenario says:
// README.md has its language. The program under test loads it as it would load NVIDIA's
// own; the memory of its GPUs is the host's, and kernels are computed by the host, of
// the same sources of which the PTX is made.
package fakecuda

import (
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

//go:embed src
var files embed.FS

// Old are the functions that a driver of CUDA 11.0, release 450, does not have.
var Old = []string{"cuDeviceGetUuid_v2"}

// Scenario is a healthy node with that many GPUs, and lines that change it. The last
// line that fits counts. GPU i has the PCI address and the UUID of fakenvml's.
func Scenario(gpus int, lines ...string) string {
	return fmt.Sprintf("- cuDeviceGetCount = %d\n%s\n", gpus, strings.Join(lines, "\n"))
}

// Place puts the library, without the symbols that are missing, and its scenario into
// dir. It gives the path of the library.
func Place(dir, scenario string, missing ...string) (string, error) {
	built, err := build(missing)
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(built)
	if err != nil {
		return "", err
	}
	lib := filepath.Join(dir, "libcuda.so.1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(lib, data, 0o755); err != nil {
		return "", err
	}
	return lib, os.WriteFile(filepath.Join(dir, "cuda.scenario"), []byte(scenario), 0o644)
}

// sources are all files that the library is made of, by name.
func sources() (map[string][]byte, error) {
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/nhc-gpu/nhc-gpu").Output()
	if err != nil {
		return nil, fmt.Errorf("find the sources of the kernels: %w", err)
	}
	list := map[string][]byte{}
	for _, from := range []fs.FS{files, os.DirFS(filepath.Join(strings.TrimSpace(string(module)), "checks/probe/kernels"))} {
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

// build compiles the library, once for each set of missing symbols.
func build(missing []string) (string, error) {
	list, err := sources()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprint(sum, missing, list) // a map is printed in the order of its keys
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("nhc-gpu-fakecuda-%d", os.Getuid()))
	if err := ownDir(dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("%x.so", sum.Sum(nil)[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, compile(path, list, missing)
}

// ownDir makes a directory, or accepts one, that nobody else can write to.
func ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(st.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s: not a directory of this user alone", dir)
	}
	return nil
}

func compile(path string, list map[string][]byte, missing []string) error {
	src, err := os.MkdirTemp(filepath.Dir(path), "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(src)
	out, script := filepath.Join(src, "lib.so"), filepath.Join(src, "symbols.map")
	argv := []string{"-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread", "-Wl,--version-script=" + script, "-o", out}
	for name, data := range list {
		if err := os.WriteFile(filepath.Join(src, name), data, 0o644); err != nil {
			return err
		}
		if strings.HasSuffix(name, ".c") {
			argv = append(argv, filepath.Join(src, name))
		}
	}
	if err := os.WriteFile(script, []byte("{ global: cu*; local: "+strings.Join(append(slices.Clone(missing), "*"), "; ")+"; };\n"), 0o644); err != nil {
		return err
	}
	if text, err := exec.Command("gcc", append(argv, "-lm", "-ldl")...).CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, text)
	}
	return os.Rename(out, path)
}
