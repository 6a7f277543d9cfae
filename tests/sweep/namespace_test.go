package sweep_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace. It exists as long as the file is open, even without processes.
type namespace struct{ file *os.File }

func newNamespace(t *testing.T) namespace {
	t.Helper()
	var ns namespace
	if err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		ns.file, err = os.Open("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.file.Close() })
	return ns
}

func openNamespace(t *testing.T, path string) namespace {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return namespace{file}
}

// path returns the path of the namespace for other processes of this machine.
func (ns namespace) path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.file.Fd())
}

// do runs f in the namespace: sockets that f opens belong to it. f must not start goroutines that
// open others.
func (ns namespace) do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter a network namespace: %w", err)
		}
		return f()
	})
}

// onThread runs f on a thread that ends with it, because f changes the thread.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- f()
	}()
	return <-done
}

// run runs a program of this machine in the namespace, with that input.
func (ns namespace) run(t *testing.T, input string, argv ...string) {
	t.Helper()
	cmd := exec.Command("nsenter", append([]string{"--net=" + ns.path(), "--"}, argv...)...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s\ninput:\n%s", strings.Join(argv, " "), err, out, input)
	}
}

// processes returns the PIDs of the processes in the namespace.
func (ns namespace) processes(t *testing.T) []int {
	t.Helper()
	want, err := ns.file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var pids []int
	for _, dir := range dirs {
		got, err := os.Stat(dir + "/ns/net") // fails for a zombie
		if pid, numErr := strconv.Atoi(filepath.Base(dir)); err == nil && numErr == nil && os.SameFile(got, want) && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// state returns the state of a process: R, S, T... "" has ended.
func state(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(data), ") ")
	first, _, _ := strings.Cut(after, " ")
	return first
}

// commandLine returns the arguments of a process.
func commandLine(pid int) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " "))
}
