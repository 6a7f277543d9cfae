// Package fakedcgm builds a libdcgm.so.4 for tests, which answers as a scenario
// says: README.md has its language. The program under test loads it as it would load
// NVIDIA's own.
package fakedcgm

import (
	"crypto/sha256"
	_ "embed" // the source of the library
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

//go:embed src/fakedcgm.c
var source []byte

// Place puts the library and its scenario into dir. It gives the path of the library.
func Place(dir string, lines ...string) (string, error) {
	built, err := build()
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(built)
	if err != nil {
		return "", err
	}
	lib := filepath.Join(dir, "libdcgm.so.4")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(lib, data, 0o755); err != nil {
		return "", err
	}
	return lib, os.WriteFile(filepath.Join(dir, "dcgm.scenario"), []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}

// Calls are those that the library in dir was asked, in order.
func Calls(dir string) []string {
	data, err := os.ReadFile(filepath.Join(dir, "dcgm.calls"))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// Listen is an address of this machine at which somebody accepts connections and
// never says a word, as an nv-hostengine that is stopped does; the library above does
// not mind. close ends it.
func Listen() (address string, closing func() error, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	return l.Addr().String(), l.Close, nil
}

// build compiles the library, once for each source.
func build() (string, error) {
	sum := sha256.Sum256(source)
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("nhc-gpu-fakedcgm-%d", os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(st.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("%s: not a directory of this user alone", dir)
	}
	path := filepath.Join(dir, fmt.Sprintf("%x.so", sum[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, compile(path)
}

func compile(path string) error {
	header, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}/pkg/dcgm", "github.com/NVIDIA/go-dcgm").Output()
	if err != nil {
		return fmt.Errorf("find dcgm_agent.h: %w", err)
	}
	part := fmt.Sprintf("%s.%d", path, os.Getpid())
	cmd := exec.Command("gcc", "-x", "c", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-fPIC", "-shared",
		"-Wl,-soname,libdcgm.so.4", "-I"+strings.TrimSpace(string(header)), "-o", part, "-", "-ldl")
	cmd.Stdin = strings.NewReader(string(source))
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, text)
	}
	return os.Rename(part, path)
}
