package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// Control sequences of the line of progress.
const (
	eraseLine = "\r\x1b[K"
	dim       = "\x1b[2m"
	undim     = "\x1b[0m"
)

// terminal opens a pseudo-terminal of a width: the end of a person, and that of a program.
func terminal(t *testing.T, width uint16) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		need.Skip(t, "no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		need.Skip(t, "no pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { program.Close() })
	if err := unix.IoctlSetWinsize(int(program.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: width}); err != nil {
		t.Fatal(err)
	}
	return person, program
}

// onTerminal runs the program with its standard error on a terminal, and returns the output
// there.
func onTerminal(t *testing.T, width uint16, env []string, args ...string) string {
	t.Helper()
	person, program := terminal(t, width)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Path, cmd.Args, cmd.Stderr, cmd.Dir = filepath.Join(programDir(t, self), "nhc-gpu"), append([]string{"nhc-gpu"}, args...), program, t.TempDir()
	cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	saw := make(chan string)
	go func() {
		var all strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := person.Read(buf)
			all.Write(buf[:n])
			if err != nil {
				saw <- all.String()
				return
			}
		}
	}()
	if err := cmd.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	program.Close() // a read fails once every writer has closed it
	select {
	case text := <-saw:
		return text
	case <-time.After(10 * time.Second):
		t.Fatal("the terminal is still held")
		return ""
	}
}

// programDir returns a directory where the test binary has the program's name, and so acts as it.
func programDir(t *testing.T, self string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Symlink(self, filepath.Join(dir, "nhc-gpu")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A person at a terminal sees what an active test does, on one line that is erased at the end;
// with -q, on a terminal that cannot erase, or under Slurm nothing.
func TestProgress(t *testing.T) {
	t.Parallel()
	const line = "check_sleeper: gpu3: BF16  0s of at most 20s"
	run := func(more ...string) []string {
		return append(more, "-e", "check_sleeper 7", "-l", "-", "-D", t.TempDir(), "HOSTROOT="+t.TempDir())
	}
	xterm := []string{"TERM=xterm"}
	for name, c := range map[string]struct {
		width uint16
		env   []string
		args  []string
		want  string // "": nothing at all
	}{
		"by hand":        {100, append(xterm, "NO_COLOR=1"), run(), line},
		"colours":        {100, xterm, run(), "check_sleeper: gpu3: BF16" + dim + "  0s of at most 20s" + undim},
		"narrow":         {40, append(xterm, "NO_COLOR=1"), run(), "check_sleeper: gp..."},
		"--check":        {100, append(xterm, "NO_COLOR=1"), append([]string{"--check"}, run()...), line},
		"--check, steps": {100, append(xterm, "NO_COLOR=1"), append([]string{"--check"}, run()...), "check 1 of 1: check_sleeper"},
		"--check -q":     {100, xterm, append([]string{"--check"}, run("-q")...), ""},
		"--json":         {100, xterm, append([]string{"--check", "--json"}, run()...), ""},
		"-q":             {100, xterm, run("-q"), ""},
		"dumb terminal":  {100, []string{"TERM=dumb"}, run(), ""},
		"no TERM":        {100, nil, run(), ""},
		"slurmd":         {100, append(xterm, "SLURMD_NODENAME=n1"), run(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			saw := onTerminal(t, c.width, c.env, c.args...)
			if c.want == "" {
				if strings.Contains(saw, "BF16") || strings.Contains(saw, "\x1b") {
					t.Errorf("saw %q", saw)
				}
				return
			}
			if !strings.Contains(saw, eraseLine+c.want) || !strings.HasSuffix(saw, eraseLine) || strings.Contains(saw, "\n"+eraseLine) {
				t.Errorf("saw %q, want %q, and the line erased", saw, c.want)
			}
			for part := range strings.SplitSeq(saw, eraseLine) {
				if n := len(strings.NewReplacer(dim, "", undim, "").Replace(part)); n >= int(c.width) {
					t.Errorf("%q is wider than the terminal", part)
				}
			}
		})
	}
}

// Without a terminal no progress is written.
func TestNoProgress(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(programDir(t, self), "nhc-gpu"), "-e", "check_sleeper 5", "-l", "-", "HOSTROOT="+t.TempDir())
	cmd.Args[0], cmd.Env = "nhc-gpu", []string{"PATH=/usr/bin:/bin", "TERM=xterm"}
	out, err := cmd.CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("%v, %q", err, out)
	}
}
