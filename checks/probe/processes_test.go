package probe

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// statusFile returns a process's status file in the kernel's format.
func statusFile(name, state string, uid int, memory bool) string {
	s := fmt.Sprintf("Name:\t%s\nUmask:\t0022\nState:\t%s\nPid:\t1\nUid:\t0\t%d\t0\t0\nGid:\t0\t0\t0\t0\n", name, state, uid)
	if memory {
		s += "VmPeak:\t    9000 kB\nVmSize:\t    8000 kB\n"
	}
	return s + "Threads:\t1\n"
}

func TestProcesses(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{
		"proc/uptime":        "1 1\n",
		"proc/1/status":      statusFile("systemd", "S (sleeping)", 0, true),
		"proc/1/cmdline":     "/sbin/init\x00splash\x00",
		"proc/10/status":     statusFile("kworker/0:1-events", "I (idle)", 0, false),
		"proc/10/cmdline":    "",
		"proc/9/status":      statusFile("a.out", "S (sleeping)", 5001, true),
		"proc/9/cmdline":     "./a.out\x00two  words\x00tab\there\x00new\nline\x00\x01\x7f\x00caf\xc3\xa9\x00\x80\xffx\xc3\x00\x00",
		"proc/300/status":    statusFile("python3", "Z (zombie)", 5001, false),
		"proc/301/status":    statusFile("quiet", "S (sleeping)", 0, true),
		"proc/301/cmdline":   "\x00\x00",
		"proc/302/status":    statusFile("gone", "S (sleeping)", 0, true), // cmdline has vanished
		"proc/303/status/":   "",
		"proc/304/cmdline":   "no status\x00",
		"proc/305/status":    "garbage\xff",
		"proc/self/status":   statusFile("self", "R (running)", 0, true),
		"proc/306/status":    statusFile(`a)\nUid:\t7\\b`, "S (sleeping)", 12, false),
		"proc/0007/status":   statusFile("x", "S (sleeping)", 0, false),
		"proc/-8/status":     statusFile("x", "S (sleeping)", 0, false),
		"proc/100000/status": statusFile("late", "S (sleeping)", 4294967295, false),
	}))
	want := []Process{
		{PID: 1, Args: "/sbin/init splash"},
		{PID: 9, UID: 5001, Args: "./a.out two words tab?here new line ?? café ??x?"},
		{PID: 10, Args: "[kworker/0:1-events]"},
		{PID: 300, UID: 5001, Args: "[python3] <defunct>"},
		{PID: 301, Args: "[quiet]"},
		{PID: 302, Args: "[gone]"},
		{PID: 306, UID: 12, Args: `[a) Uid:\t7\b]`},
		{PID: 100000, UID: 4294967295, Args: "[late]"},
	}
	got, err := Processes(h)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Processes (-want +got):\n%s", diff)
	}
	if c := got[1].Command(); c != "./a.out" {
		t.Errorf("Command = %q", c)
	}
	if _, err := Processes(NewHost(probetest.Tree(t, nil))); probetest.Message(err) != "read /proc: no such file or directory" {
		t.Errorf("without /proc: %v", err)
	}
	if _, err := Processes(NewHost(probetest.Tree(t, map[string]string{"proc": ""}))); probetest.Message(err) != "read /proc: not a directory" {
		t.Errorf("/proc a file: %v", err)
	}
}

func TestAliveAndKillInTree(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{
		"proc/5/status": statusFile("x", "S (sleeping)", 0, true),
		"proc/6/status": statusFile("x", "Z (zombie)", 0, false),
	}))
	for pid, want := range map[int]bool{5: true, 6: false, 7: false} {
		if got := Alive(h, pid); got != want {
			t.Errorf("Alive(%d) = %v, want %v", pid, got, want)
		}
	}
	if err := Kill(h, Process{PID: os.Getpid()}); err == nil {
		t.Error("Kill reached out of the tree")
	}
}

func TestKill(t *testing.T) {
	t.Parallel()
	cmd := probetest.StartSleep(t)
	h := NewHost("/")
	p := Process{PID: cmd.Process.Pid, UID: uint32(os.Geteuid()), Args: "another program"}
	if err := Kill(h, p); err == nil {
		t.Fatal("Kill hit a process that is not the one")
	}
	if !Alive(h, p.PID) {
		t.Fatal("not alive before Kill")
	}
	p.Args = "sleep 60"
	if err := Kill(h, p); err != nil {
		t.Fatal(err)
	}
	probetest.Await(t, "the process ends", func() bool { return !Alive(h, p.PID) })
	if Alive(h, p.PID) {
		t.Error("alive after Kill")
	}
	if err := Kill(h, p); err == nil {
		t.Error("Kill of a process that is gone gave no error")
	}
}

func FuzzStatus(f *testing.F) {
	f.Add([]byte(statusFile("bash", "S (sleeping)", 1000, true)))
	f.Add([]byte(statusFile("x) R 1\\n\\\\", "Z (zombie)", 0, false)))
	f.Add([]byte("Name:\t\nUid:\t\t\t\n"))
	f.Add([]byte("Name:\ta\nName:\tb\nUid:\t1\t2\nVmSize:"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, ok := parseStatus(data)
		if ok && strings.ContainsAny(s.name, "\n\t\x00") {
			t.Errorf("control character in the name %q", s.name)
		}
	})
}

func BenchmarkProcesses(b *testing.B) {
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		procs, err := Processes(NewHost("/"))
		if err != nil {
			b.Fatal(err)
		}
		n += len(procs)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/process")
	b.ReportMetric(float64(n)/float64(b.N), "processes")
}

// There are two ways to find a process's user: the owner of its directory and its status file. They
// must agree.
func TestProcessesByOwnerAndByStatus(t *testing.T) {
	child := exec.Command("sleep", "60")
	if os.Geteuid() == 0 {
		child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	zombie := exec.Command("true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = zombie.Wait() }()
	for { // until the execs are done and true has ended
		z, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", zombie.Process.Pid))
		c, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child.Process.Pid))
		if err != nil || bytes.Contains(z, []byte("Z (zombie)")) && string(c) == "sleep\x0060\x00" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	dir, err := os.Open("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	fast := ProcessReader{Dir: int(dir.Fd()), owners: isProcfs(int(dir.Fd()))}
	if !fast.owners {
		t.Fatal("/proc is not taken for the kernel's")
	}
	slow := ProcessReader{Dir: int(dir.Fd())}
	for _, pid := range []int{os.Getpid(), child.Process.Pid, zombie.Process.Pid, 1, 2} {
		got, err := fast.read(pid)
		want, wantErr := slow.read(pid)
		if got != want || (err == nil) != (wantErr == nil) {
			t.Errorf("pid %d: by its owner %+v (%v), by its status %+v (%v)", pid, got, err, want, wantErr)
		}
	}
	if p, err := fast.read(child.Process.Pid); err != nil || p.Args != "sleep 60" || p.UID != uint32(uidOf(child)) {
		t.Errorf("child: %+v, %v", p, err)
	}
	if p, err := fast.read(zombie.Process.Pid); err != nil || p.Args != "[true] <defunct>" {
		t.Errorf("zombie: %+v, %v", p, err)
	}
}

func uidOf(c *exec.Cmd) int {
	if c.SysProcAttr != nil {
		return int(c.SysProcAttr.Credential.Uid)
	}
	return os.Geteuid()
}
