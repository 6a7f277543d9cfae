package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// startBubble starts process 1, which ends, and all others with it, as soon as no process holds its
// standard input open.
func (c *Cluster) startBubble(bin string) {
	c.t.Helper()
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Args = []string{bubbleName, c.Root, c.Dir, bin, c.Group}
	cmd.Env = programEnv
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); errors.Is(err, syscall.EPERM) {
		need.Skip(c.t, "cannot make name spaces: %v", err)
	} else if err != nil {
		c.t.Fatal(err)
	}
	c.pid = strconv.Itoa(cmd.Process.Pid)
	ended := make(chan struct{})
	c.t.Cleanup(func() {
		_ = stdin.Close()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			c.t.Errorf("process %s and its cluster have not ended", c.pid)
		}
	})
	said, err := bufio.NewReader(stdout).ReadString('\n')
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	if said != "ready\n" {
		c.t.Fatalf("no bubble: %s %v", said, err)
	}
}

// programEnv is the environment of every program of a cluster.
var programEnv = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}

// Command returns a program that will run inside the bubble.
func (c *Cluster) Command(ctx context.Context, argv ...string) *exec.Cmd {
	return c.CommandIn(ctx, c.Network(), argv...)
}

// CommandIn returns a program that will run inside the bubble, but in another network namespace.
func (c *Cluster) CommandIn(ctx context.Context, network string, argv ...string) *exec.Cmd {
	return c.enter(ctx, network, append([]string{"--root", "--wd", "--"}, argv...)...)
}

// Foreign returns a program of this machine, whose Slurm may be another one than the cluster's: it
// has the bubble's namespaces, and this machine's files.
func (c *Cluster) Foreign(ctx context.Context, argv ...string) *exec.Cmd {
	return c.enter(ctx, c.Network(), argv...)
}

func (c *Cluster) enter(ctx context.Context, network string, argv ...string) *exec.Cmd {
	args := append([]string{"--target", c.pid, "--mount", "--uts", "--ipc", "--pid", "--net=" + network}, argv...)
	cmd := exec.CommandContext(ctx, "nsenter", args...)
	cmd.Env = programEnv
	return cmd
}

// Network returns the path on the host of the bubble's network namespace.
func (c *Cluster) Network() string { return filepath.Join("/proc", c.pid, "ns/net") }

// Inside returns the path on the host of a file inside the bubble.
func (c *Cluster) Inside(path string) string { return filepath.Join("/proc", c.pid, "root", path) }

// A Process is a running daemon of the cluster.
type Process struct {
	Ended chan struct{} // closed when it has ended, with err
	name  string
	err   error
}

// Daemon starts a program that runs until it gets a signal to end, or the bubble ends.
func (c *Cluster) Daemon(name string, argv ...string) *Process {
	c.t.Helper()
	return c.Background(name, c.Command(context.Background(), argv...))
}

// Background starts a command that runs until the bubble ends. Its output goes to log/NAME.out.
func (c *Cluster) Background(name string, cmd *exec.Cmd) *Process {
	c.t.Helper()
	log, err := os.OpenFile(filepath.Join(c.Dir, "log", name+".out"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	p := &Process{name: name, Ended: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.Ended)
	}()
	return p
}

// MustRun fails the test if the process has ended.
func (c *Cluster) MustRun(p *Process) {
	c.t.Helper()
	select {
	case <-p.Ended:
		c.t.Fatalf("%s has ended: %v", p.name, p.err)
	default:
	}
}

// Try runs a program inside the bubble and returns its output.
func (c *Cluster) Try(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), 20*time.Second) // also at the end of a failed test
	defer cancel()
	cmd := c.Command(ctx, argv...)
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return string(out), err
}

// Exec is Try for a program that must succeed.
func (c *Cluster) Exec(argv ...string) string {
	c.t.Helper()
	out, err := c.Try(argv...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}
