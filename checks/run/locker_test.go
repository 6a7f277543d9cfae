package run

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// lockerEnv names a state directory; a test binary with it is a supervisor that takes the lock "lock".
const lockerEnv = "NHC_GPU_TEST_LOCKER"

// beLocker waits for the lock. As process 1 it starts another supervisor, which wants the lock, too.
func beLocker(dir string) int {
	first := os.Getpid() == 1
	if first {
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			fmt.Println("mount /proc:", err)
			return 1
		}
	}
	p := NewPool(Options{Root: "/", Env: []string{"PATH=/usr/bin:/bin"}})
	defer p.Kill()
	if _, _, err := p.OpenState(dir, "", ""); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(p.Pid(checks.Local), p.Pid(execLane))
	wait := time.Minute
	if os.Getenv("SECOND") != "" {
		wait = 0
	}
	holder, err := p.Lock("lock", wait)
	fmt.Printf("%+v, %v\n", holder, err)
	if first {
		second := exec.Command("/proc/self/exe")
		second.Env, second.Stdout = append(os.Environ(), "SECOND=1"), os.Stdout
		if err := second.Run(); err != nil {
			fmt.Println(err)
		}
	}
	return 0
}

// A worker whose supervisor dies while it waits for a lock takes it for no one: in the name of its new parent, which is
// init or another process without an end, it would stay taken until the next boot.
func TestLockOfDeadSupervisor(t *testing.T) {
	t.Parallel()
	dir := stateDirOf(t)
	file := filepath.Join(dir, "lock")
	line, kill := startSleeper(t)
	if err := os.WriteFile(file, []byte(line+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), lockerEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	first, err := bufio.NewReader(out).ReadString('\n')
	var local, other int
	if n, _ := fmt.Sscan(first, &local, &other); n < 2 {
		t.Fatalf("%q, %v", first, err)
	}
	worker := max(local, other) // the one that was started
	st, err := process.ReadStat(worker)
	if err != nil {
		t.Fatal(err)
	}
	for !opens(worker, file) {
		time.Sleep(time.Millisecond)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	kill() // the lock is free
	for process.Alive(worker, st.Start) {
		time.Sleep(time.Millisecond)
	}
	if data, _ := os.ReadFile(file); strings.TrimSpace(string(data)) != line {
		t.Errorf("the lock is %q, was %q", data, line)
	}
}

// opens reports whether a process has a file open.
func opens(pid int, file string) bool {
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if to, _ := os.Readlink(fd); to == file {
			return true
		}
	}
	return false
}

// In a container the supervisor can be process 1, whose lock counts.
func TestLockOfProcess1(t *testing.T) {
	t.Parallel()
	need.Root(t, "to make namespaces")
	var out bytes.Buffer
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stdout = append(os.Environ(), lockerEnv+"="+stateDirOf(t)), &out
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Unshareflags: unix.CLONE_NEWNS}
	if err := cmd.Run(); err != nil {
		need.Skip(t, "start a process in namespaces: %v", err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) < 4 || lines[1] != "<nil>, <nil>" || !strings.Contains(lines[3], "PID:1 ") {
		t.Errorf("%s\nwant a lock of process 1 that keeps out the second supervisor", out.String())
	}
}
