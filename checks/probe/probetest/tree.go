// Package probetest has helpers that the tests of checks/probe share.
package probetest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Tree creates a node of files and returns its directory. A name that ends in a slash is a
// directory.
func Tree(t testing.TB, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			Mkdir(t, path)
			continue
		}
		Mkdir(t, filepath.Dir(path))
		if err := write(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// Mkdir creates a directory and its parents.
func Mkdir(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
}

// Message returns the text of an error, "" for nil.
func Message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// WriteProgram writes a program that a test is going to run.
func WriteProgram(path string, data []byte) error { return write(path, data, 0o755) }

// write prevents the start of processes meanwhile: until a child runs its own program it has a copy
// of the descriptor, and the kernel does not run a file that is open for writing ("text file busy").
func write(path string, data []byte, mode os.FileMode) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, data, mode)
}

// StartSleep starts a process that the test can kill.
func StartSleep(t testing.TB) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
	})
	line := "/proc/" + strconv.Itoa(cmd.Process.Pid) + "/cmdline" // it comes last, after the name
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if text, _ := os.ReadFile(line); bytes.Equal(text, []byte("sleep\x0060\x00")) {
			return cmd
		}
	}
	t.Fatal("sleep does not start")
	return nil
}

// Await waits until a condition holds.
func Await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("timeout: %s", what)
		}
	}
}
