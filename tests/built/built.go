// Package built has the nhc-gpu that tests run: the one that NHC_GPU_BINARY names, as
// make test does, or one that is built for them.
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
)

// Setting is the variable of the environment that names a program to test.
const Setting = "NHC_GPU_BINARY"

// Program gives the path of the program, which it builds into dir if none is named.
func Program(dir string) (string, error) {
	if named := os.Getenv(Setting); named != "" {
		return filepath.Abs(named)
	}
	path := filepath.Join(dir, "nhc-gpu")
	// The linker flag is that of the Makefile: symbols of NVIDIA's libraries resolve when they are called.
	build := exec.Command("go", "build", "-buildvcs=false", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", path, "github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return path, nil
}

// Main runs the tests of a package that needs the program, and gives the status to exit
// with. They are skipped where one of the tools is not installed that they need.
func Main(m *testing.M, program *string, tools ...string) int {
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP} {
		if signal.Ignored(sig) { // as "&" and nohup(1) leave them; the program would ignore them, too
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			fmt.Fprintln(os.Stderr, "skip:", err)
			return 0
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

// NodeName names a node after the directory of a test: only one run a node is at work.
func NodeName(dir string) string {
	return "test" + strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' {
			return c
		}
		return '-'
	}, dir)
}

// WriteProgram writes a program that a test is going to run. No process is started
// meanwhile: a child has a copy of the file, open for writing, until it runs its own program,
// and a file that is open for writing cannot be run ("text file busy").
func WriteProgram(path string, data []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, data, 0o755)
}
