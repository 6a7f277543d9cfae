// Package fakelib builds shared libraries of C that stand in for those of vendors in
// tests.
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

// Library is what a library is made of.
type Library struct {
	Soname  string            // libcuda.so.1, the name of its file
	Sources map[string][]byte // by file name; what ends in .c is compiled
	Global  string            // which symbols it has: cu*
	Missing []string          // those of them that it shall not have
	Flags   []string          // for gcc: -O2, -I...
	Libs    []string          // -ldl
}

// Place puts the library into dir, and beside it the scenario by which it answers, a
// file of that name. It is compiled once for all that have the same. It gives the path
// of the library.
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
	if err := os.WriteFile(path, data, 0o755); err != nil {
		return "", err
	}
	return path, os.WriteFile(filepath.Join(dir, name), []byte(scenario), 0o644)
}

// modules are folders of modules, by their names: to ask for one takes a process.
var modules sync.Map

// Folder is one of a module of Go's.
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
	fmt.Fprint(sum, *l) // a map is printed in the order of its keys
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
