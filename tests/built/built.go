// Package built provides the nhc-gpu for tests: the program in NHC_GPU_BINARY, which make test
// sets, or one that it builds.
package built

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// Setting is the environment variable with the path of the program to test.
const Setting = "NHC_GPU_BINARY"

// Program returns the path of the program, which it builds into dir if none is named.
func Program(dir string) (string, error) {
	if named := os.Getenv(Setting); named != "" {
		return filepath.Abs(named)
	}
	path := filepath.Join(dir, "nhc-gpu")
	// The linker flag is that of the Makefile: symbols of NVIDIA's libraries are resolved when they
	// are called.
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", path, "github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return path, nil
}

// Main runs the tests of a package that needs the program, and returns the exit status. It skips
// them if one of the required tools is not installed.
func Main(m *testing.M, program *string, tools ...string) int {
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP} {
		if signal.Ignored(sig) { // after "&" or nohup(1), and the program would inherit that
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			return need.Exit(err.Error())
		}
	}
	dir, err := os.MkdirTemp("", "nhc-gpu-built-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if *program, err = Program(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// NodeName derives the name of a node from the directory of a test, because only one run for each
// node name can be active.
func NodeName(dir string) string {
	return "test" + strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' {
			return c
		}
		return '-'
	}, dir)
}

// WriteProgram writes a program that a test is going to run. It prevents the start of processes
// meanwhile: until a child runs its own program it has a copy of the descriptor, and the kernel
// does not run a file that is open for writing ("text file busy").
func WriteProgram(path string, data []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, data, 0o755)
}
