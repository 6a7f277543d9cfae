package run

import (
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/run/worker"

	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// The test binary is its own worker, like the program.
func TestMain(m *testing.M) {
	if os.Args[0] == wire.WorkerName {
		if os.Args[1] == "shell" {
			fmt.Fprintln(os.Stderr, BecomeShell(os.Args[2]))
			os.Exit(127)
		}
		os.Exit(worker.Serve(os.Args[2], nil))
	}
	if dir := os.Getenv(lockerEnv); dir != "" {
		os.Exit(beLocker(dir))
	}
	os.Exit(m.Run())
}

// rogue is a check that damages its worker as a vendor library might.
type rogue struct {
	How  string `arg:"1"`
	Arg  string `arg:"2"`
	Arg2 string `arg:"3"`
}

func (r *rogue) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	env.At("rogue %s", r.How)
	switch r.How {
	case "ok":
	case "job":
		return []checks.Finding{{Message: fmt.Sprintf("%+v", *env.Job)}}
	case "deadline":
		end, _ := ctx.Deadline()
		return []checks.Finding{{Message: time.Until(end).String()}}
	case "warn":
		return []checks.Finding{{Code: "rogue.warn", Severity: checks.Warn, Message: "rogue warns"}}
	case "segv":
		_ = unix.Kill(os.Getpid(), unix.SIGSEGV)
		select {}
	case "sigstop":
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	case "exit127":
		fmt.Fprintln(os.Stderr, "symbol lookup error: undefined symbol: nvmlFoo")
		os.Exit(127)
	case "oom":
		eatMemory(r.Arg)
	case "panic":
		panic("rogue")
	case "garbage":
		answer("this is not an answer\n")
	case "wrongid":
		answer(message(99999, 0))
	case "half":
		answer(message(99999, 1000)[:50])
		os.Exit(0)
	case "forked", "forkedhalf": // a process that it has forked holds the pipe
		child := exec.Command("sleep", "1000")
		child.ExtraFiles = []*os.File{os.NewFile(wire.ResponseFd, "responses")}
		if err := child.Start(); err != nil {
			return []checks.Finding{{Severity: checks.Unknown, Message: err.Error()}}
		}
		if r.How == "forkedhalf" {
			answer(message(99999, 1000)[:50])
			os.Exit(0)
		}
		_ = unix.Kill(os.Getpid(), unix.SIGSEGV)
		select {}
	case "fork":
		if err := exec.Command("sleep", "1000").Start(); err != nil {
			return []checks.Finding{{Severity: checks.Unknown, Message: err.Error()}}
		}
	case "flood":
		answer("\x01" + string(binary.LittleEndian.AppendUint32(nil, wire.MaxMessage+1)) + strings.Repeat("x", 8<<20))
	case "crowd": // many warnings with long texts, and last a failure
		long := strings.Repeat("x", 2<<10)
		crowd := slices.Repeat([]checks.Finding{{Severity: checks.Warn, Message: long, Device: checks.Device{Name: long}}}, 4000)
		return append(crowd, checks.Finding{Severity: checks.Fail, Message: "rogue fails " + long})
	case "close":
		_ = unix.Close(wire.ResponseFd)
		time.Sleep(time.Minute)
	case "phases":
		for i := range 2 {
			env.At("phase %d", i+1)
			time.Sleep(700 * time.Millisecond)
		}
	case "creep": // call after call of one text
		for {
			env.At("nvmlDeviceGetMemoryErrorCounter(0)")
			time.Sleep(5 * time.Millisecond)
		}
	case "locked": // a thread waits for the memory of a process
		if err := blockIn(r.Arg); err != nil {
			return []checks.Finding{{Severity: checks.Unknown, Message: err.Error()}}
		}
	case "silent": // a directory
		env.Host.InTime("read "+r.Arg, time.Millisecond, func() { select {} })
	case "unused": // a memory directory, since no file can be opened, and no thread waits for it
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			return []checks.Finding{{Severity: checks.Unknown, Message: err.Error()}}
		}
		env.Host.SetPast(r.Arg)
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max})
		_ = env.Host.Recall("x", new(int))
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	case "spent": // a command that no signal can end, and a locked process
		if err := freezeCommand(r.Arg); err != nil {
			return []checks.Finding{{Severity: checks.Unknown, Message: err.Error()}}
		}
		text, _ := wire.Append(nil, &wire.Response{ID: 1, Spent: true, Locked: []string{probe.LockedCall(os.Getppid())}})
		answer(string(text))
		select {}
	case "scan": // processes
		for pace := env.Host.Pace(); ; time.Sleep(5 * time.Millisecond) {
			pace()
		}
	case "scanned": // processes, and then files of a file server that is slow
		pace := env.Host.Pace()
		for end := time.Now().Add(1200 * time.Millisecond); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			pace()
		}
		fallthrough
	case "files":
		for i := 0; ; i++ {
			env.At("stat /scratch/%d", i)
			time.Sleep(20 * time.Millisecond)
		}
	case "before": // files, and then processes
		for end := time.Now().Add(1200 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			env.At("stat /scratch")
		}
		for pace := env.Host.Pace(); ; time.Sleep(5 * time.Millisecond) {
			pace()
		}
	case "stop": // the same call, and then one that does not return
		for range 3 {
			env.At("nvmlDeviceGetMemoryErrorCounter(0)")
		}
		select {}
	case "stdout":
		fmt.Println(strings.Repeat("noise from a C library\n", 10000))
	case "trap": // a command that takes a moment to heed SIGTERM
		const script = `trap 'sleep 0.3; : > "$2"; exit' TERM; : > "$1"; while :; do sleep 0.02; done`
		env.Host.Run(context.Background(), probe.Command{Argv: []string{"sh", "-c", script, "sh", r.Arg, r.Arg2}})
	case "sleep":
		time.Sleep(time.Minute)
	case "deaf":
		_ = syscall.Setpgid(0, 0)
		time.Sleep(time.Minute)
	case "freeze":
		if err := freezeSelf(r.Arg); err != nil {
			return []checks.Finding{{Severity: checks.Unknown, Message: err.Error()}}
		}
	}
	return nil
}

// blockIn starts a thread that reads a FIFO without a writer, and waits until it does.
func blockIn(name string) error {
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	tid := make(chan int)
	go func() {
		runtime.LockOSThread()
		tid <- unix.Gettid()
		_, _ = unix.Read(fd, make([]byte, 1))
	}()
	reads := fmt.Sprintf("%d 0x%x ", unix.SYS_READ, fd)
	for file := fmt.Sprintf("/proc/self/task/%d/syscall", <-tid); ; time.Sleep(time.Millisecond) {
		if data, err := os.ReadFile(file); err != nil || strings.HasPrefix(string(data), reads) {
			return err
		}
	}
}

// message returns an answer with a text of so many bytes.
func message(id, size int) string {
	text, _ := wire.Append(nil, &wire.Response{ID: id, Text: strings.Repeat("x", size)})
	return string(text)
}

func answer(text string) { _, _ = syscall.Write(wire.ResponseFd, []byte(text)) }

// eatMemory allocates in a memory cgroup until the kernel ends it.
func eatMemory(group string) {
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var hold [][]byte
	for {
		b := make([]byte, 1<<20)
		for i := range b {
			b[i] = 1
		}
		hold = append(hold, b)
		if len(hold) > 4096 {
			os.Exit(1)
		}
	}
}

// freezeSelf enters a frozen cgroup v1 freezer: from then on this process sleeps uninterruptibly
// and survives SIGKILL.
func freezeSelf(group string) error {
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(group, "freezer.state"), []byte("FROZEN"), 0)
}

// freezeCommand starts a command and freezes it in this way.
func freezeCommand(group string) error {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		return err
	}
	state := filepath.Join(group, "freezer.state")
	err := errors.Join(os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0), os.WriteFile(state, []byte("FROZEN"), 0))
	for err == nil {
		var data []byte
		if data, err = os.ReadFile(state); string(data) == "FROZEN\n" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

func init() {
	checks.Register(checks.Info{Name: "check_rogue", Summary: "test", Lane: checks.Local, New: func() checks.Check { return new(rogue) }})
	checks.Register(checks.Info{Name: "check_rogue_dcgm", Summary: "test", Lane: checks.DCGM, New: func() checks.Check { return new(rogue) }})
	checks.Register(checks.Info{Name: "check_rogue_nvml", Summary: "test", Lane: checks.NVML, New: func() checks.Check { return new(rogue) }})
	checks.Register(checks.Info{
		Name: "check_rogue_acts", Summary: "test", Lane: checks.Local, New: func() checks.Check { return new(rogue) },
		Acts: func(checks.Check) bool { return true },
	})
}
