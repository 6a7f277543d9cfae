// Package fakelib builds shared libraries in C that replace vendor libraries in tests.
package fakelib

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Library describes a library.
type Library struct {
	Soname  string            // libcuda.so.1, the name of its file
	Sources map[string][]byte // by file name; files that end in .c are compiled
	Global  string            // the exported symbols: cu*
	Missing []string          // symbols to remove
	Flags   []string          // for gcc: -O2, -I...
	Libs    []string          // -ldl
}

// Place puts the library into dir, and next to it the scenario in a file of that name. It compiles
// equal libraries only once. It returns the path of the library.
func (l *Library) Place(dir, name, scenario string) (string, error) {
	built, err := l.build()
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(built)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, l.Soname)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(path, data, 0o644); err != nil {
		return "", err
	}
	return path, os.WriteFile(filepath.Join(dir, name), []byte(scenario), 0o644)
}

// modules caches directories of modules by name, because reading one takes a process.
var modules sync.Map

// Folder returns a directory of a Go module.
func Folder(module, folder string) (string, error) {
	if dir, ok := modules.Load(module); ok {
		return filepath.Join(dir.(string), folder), nil
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("find the files of %s: %w", module, err)
	}
	dir := strings.TrimSpace(string(out))
	modules.Store(module, dir)
	return filepath.Join(dir, folder), nil
}

func (l *Library) build() (string, error) {
	sum := sha256.New()
	fmt.Fprint(sum, *l) // maps are printed in the order of their keys
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("nhc-gpu-fakelib-%d", os.Getuid()))
	if err := ownDir(dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("%x.so", sum.Sum(nil)[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, l.compile(path)
}

// ownDir creates a directory, or accepts one, that no other user can write to.
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

func (l *Library) compile(path string) error {
	src, err := os.MkdirTemp(filepath.Dir(path), "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(src)
	out, script := filepath.Join(src, "lib.so"), filepath.Join(src, "symbols.map")
	argv := append([]string{"-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-Wl,-soname," + l.Soname, "-Wl,--version-script=" + script, "-o", out}, l.Flags...)
	for name, data := range l.Sources {
		if err := os.WriteFile(filepath.Join(src, name), data, 0o644); err != nil {
			return err
		}
		if strings.HasSuffix(name, ".c") {
			argv = append(argv, filepath.Join(src, name))
		}
	}
	symbols := fmt.Sprintf("{ global: %s; local: %s; };\n", l.Global, strings.Join(append(slices.Clone(l.Missing), "*"), "; "))
	if err := os.WriteFile(script, []byte(symbols), 0o644); err != nil {
		return err
	}
	if text, err := exec.Command("gcc", append(argv, l.Libs...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, text)
	}
	return os.Rename(out, path)
}
