// Package fakenccl builds a libnccl.so.2 for tests, which answers as a scenario says:
// README.md has its language. It works in the memory of the fake libcuda's GPUs
// (package fakecuda), and on its clock.
package fakenccl

import (
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

//go:embed src/fakenccl.c
var source []byte

// Old are the functions that NCCL 2.4 does not have.
var Old = []string{"ncclSend", "ncclRecv", "ncclGetLastError"}

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
	lib := filepath.Join(dir, "libnccl.so.2")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(lib, data, 0o755); err != nil {
		return "", err
	}
	return lib, os.WriteFile(filepath.Join(dir, "nccl.scenario"), []byte(scenario+"\n"), 0o644)
}

// Environment are the NCCL_... of the environment in which the library that lies in dir
// was loaded, a line each, but for the file of its log.
func Environment(dir string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "nccl.environment"))
	return string(data), err
}

// build compiles the library, once for each set of missing symbols.
func build(missing []string) (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("nhc-gpu-fakenccl-%d", os.Getuid()))
	if err := ownDir(dir); err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(fmt.Append(nil, missing), source...))
	path := filepath.Join(dir, fmt.Sprintf("%x.so", sum[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, compile(path, missing)
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

func compile(path string, missing []string) error {
	src, err := os.MkdirTemp(filepath.Dir(path), "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(src)
	hidden := ""
	if len(missing) > 0 {
		hidden = strings.Join(missing, "; ") + "; "
	}
	c, out, script := filepath.Join(src, "fakenccl.c"), filepath.Join(src, "lib.so"), filepath.Join(src, "symbols.map")
	if err := os.WriteFile(c, source, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(script, []byte("{ global: nccl*; local: "+hidden+"*; };\n"), 0o644); err != nil {
		return err
	}
	cmd := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-Wl,--version-script="+script, "-o", out, c, "-ldl")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, text)
	}
	return os.Rename(out, path)
}
