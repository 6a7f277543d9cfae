package probe

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func sh(line string) []string { return []string{"sh", "-c", line} }

func TestRunStatus(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := probetest.WriteProgram(path, []byte(content)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		name string
		argv []string
		want int
	}{
		{name: "success", argv: []string{"true"}},
		{name: "status", argv: sh("exit 200"), want: 200},
		{name: "signal", argv: sh("kill -9 $$"), want: 137},
		{name: "not found", argv: []string{"no-such-program"}, want: 127},
		{name: "no such path", argv: []string{"/no/such/program", "-x"}, want: 127},
		{name: "no name", argv: []string{""}, want: 127},
		{name: "nothing", want: 127},
		{name: "not executable", argv: []string{"/etc/passwd"}, want: 126},
		{name: "directory", argv: []string{"/etc"}, want: 126},
		{name: "script without interpreter line", argv: []string{script("plain", "exit $(($1 + 1))\n"), "4"}, want: 5},
		{name: "empty script", argv: []string{script("empty", "")}},
		{name: "no such interpreter", argv: []string{script("orphan", "#!/no/such\n")}, want: 127},
		{name: "no program", argv: []string{script("binary", "\x7fELF\x00\x00")}, want: 126},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := NewHost("/").Run(t.Context(), Command{Argv: c.argv, Timeout: time.Minute})
			if x.Status != c.want || x.TimedOut || x.Stuck {
				t.Errorf("got %+v, want status %d", x, c.want)
			}
		})
	}
}

// A command gets the whole text, however long, and cannot change it. It need not read it.
func TestRunStdin(t *testing.T) {
	t.Parallel()
	text := bytes.Repeat([]byte("0123456789abcdef"), 200<<10/16)
	out := filepath.Join(t.TempDir(), "out")
	for _, line := range []string{"cat >" + out, "! echo x >&0; cat /dev/stdin >" + out} {
		if x := NewHost("/").Run(t.Context(), Command{Argv: sh(line), Stdin: text, Timeout: time.Minute}); x.Status != 0 {
			t.Errorf("%s: %+v", line, x)
		}
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %d bytes, %v; want %d", line, len(got), err, len(text))
		}
	}
	if x := NewHost("/").Run(t.Context(), Command{Argv: sh("exit 3"), Stdin: text, Timeout: time.Minute}); x.Status != 3 {
		t.Errorf("%+v", x)
	}
}

// A command that cannot get a pipe for its errors leaves no descriptor of its output open.
func TestRunWithoutDescriptors(t *testing.T) {
	h := NewHost("/")
	c := Command{Argv: sh("echo"), Output: 10, Errors: 10, Timeout: time.Minute}
	if x := h.Run(t.Context(), c); x.Status != 0 {
		t.Fatalf("%+v", x)
	}
	free := func() int {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return int(f.Fd())
	}
	first := free()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = uint64(first) + 3 // one pipe
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	x := h.Run(t.Context(), c)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(x.Err, unix.EMFILE) || free() != first {
		t.Errorf("%+v; first free descriptor %d, want %d", x, free(), first)
	}
}

func TestFindPrefersExecutable(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"sbin/tool/": "", "usr/sbin/tool": "inert", "bin/tool": "good", "usr/bin/idle": "inert"}))
	if err := os.Chmod(h.Path("/bin/tool"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"tool": "/bin/tool", "idle": "/usr/bin/idle", "/bin/x": "/bin/x"} {
		if got, err := FindProgram(h, []string{name}, ""); err != nil || got != h.Path(want) {
			t.Errorf("find(%s) = %s, %v; want %s", name, got, err, want)
		}
	}
	if got, err := FindProgram(h, []string{"./x"}, "/d"); err != nil || got != "/d/x" {
		t.Errorf("find(./x) = %s, %v", got, err)
	}
}

func TestRunSurroundings(t *testing.T) {
	t.Parallel()
	x := NewHost("/").Run(t.Context(), Command{
		Argv:   sh(`echo "$PATH $X"; pwd; echo lost >&2; cat; readlink /proc/self/fd/0 /proc/self/fd/2`),
		Env:    []string{"X=1"},
		Dir:    "/usr",
		Output: 1000,
	})
	if want := CommandPath + " 1\n/usr\n/dev/null\n/dev/null\n"; string(x.Output) != want || x.Truncated {
		t.Errorf("output %q, truncated %v; want %q", x.Output, x.Truncated, want)
	}
}

func TestSetEnviron(t *testing.T) {
	t.Parallel()
	h := NewHost("/")
	if got := h.Getenv("PATH"); got != CommandPath {
		t.Errorf("PATH is %s, want %s", got, CommandPath)
	}
	h.SetEnviron([]string{"A=1", "A=2", "PATH=/nowhere:/bin"})
	x := h.Run(t.Context(), Command{Argv: []string{"sh", "-c", `echo "$A $B $PATH $HOME"`}, Env: []string{"B=3"}, Output: 100})
	if want := "2 3 /nowhere:/bin \n"; string(x.Output) != want {
		t.Errorf("output %q, want %q", x.Output, want)
	}
	if a, home := h.Getenv("A"), h.Getenv("HOME"); a != "2" || home != "" {
		t.Errorf("A is %q, HOME is %q", a, home)
	}
	h.SetEnviron([]string{"PATH=/nowhere"})
	if x := h.Run(t.Context(), Command{Argv: []string{"true"}}); x.Status != 127 {
		t.Errorf("a program outside of PATH: status %d, want 127", x.Status)
	}
}

func TestRunOutputIsBounded(t *testing.T) {
	t.Parallel()
	x := NewHost("/").Run(t.Context(), Command{Argv: sh("head -c 1000000 /dev/zero; echo end"), Output: 70000})
	if len(x.Output) != 70000 || !x.Truncated || x.Status != 0 {
		t.Errorf("got %d bytes, truncated %v, status %d", len(x.Output), x.Truncated, x.Status)
	}
}

// within runs a command that Run must end, with enough time for its start on a busy machine, and
// checks the duration.
func within(t *testing.T, c Command) Exit {
	t.Helper()
	c.Timeout, c.Grace = 3*time.Second, time.Second
	start := time.Now()
	x := NewHost("/").Run(t.Context(), c)
	bound := c.Timeout + time.Duration(len(c.Signals)+3)*c.Grace
	if took := time.Since(start); took > bound {
		t.Errorf("took %v, want at most %v", took, bound)
	}
	return x
}

func TestRunTimeout(t *testing.T) {
	t.Parallel()
	alarm := []syscall.Signal{syscall.SIGALRM, syscall.SIGTERM}
	for _, c := range []struct {
		name    string
		line    string
		signals []syscall.Signal
		want    int
	}{
		{name: "heeds SIGTERM", line: "sleep 60; true", want: 143},
		{name: "heeds SIGALRM", line: "sleep 60; true", signals: alarm, want: 142},
		{name: "ignores SIGALRM", line: "trap '' ALRM; sleep 60; true", signals: alarm, want: 143},
		{name: "ignores all", line: "trap '' ALRM TERM; sleep 60; true", signals: alarm, want: 137},
		{name: "has a last word", line: "trap 'exit 3' TERM; while :; do sleep 0.01; done", want: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := within(t, Command{Argv: sh("echo begun; " + c.line), Signals: c.signals, Output: 100})
			if x.Status != c.want || !x.TimedOut || x.Stuck || string(x.Output) != "begun\n" {
				t.Errorf("got %+v, want status %d", x, c.want)
			}
		})
	}
}

// settled waits until a process is gone.
func settled(t *testing.T, pid string) bool {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(pid))
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if !Alive(NewHost("/"), n) {
			return true
		}
	}
	_ = syscall.Kill(n, syscall.SIGKILL)
	return false
}

func TestRunLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, line string }{
		{name: "in the background", line: "sleep 60 >/dev/null & echo $!"},
		{name: "holding the output open", line: "sleep 60 & echo $!"},
		{name: "in a session of its own", line: "setsid sh -c 'echo $$; sleep 60'"},
		{name: "not heeding signals", line: "trap '' TERM; sleep 60 & echo $!; wait"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			x := within(t, Command{Argv: sh(c.line), Output: 100})
			if !settled(t, string(x.Output)) {
				t.Error("still there")
			}
		})
	}
}

func TestRunLasting(t *testing.T) {
	t.Parallel()
	x := NewHost("/").Run(t.Context(), Command{
		Argv: sh("sleep 60 >/dev/null & echo $!; exit 4"), Output: 100, Lasting: true, Timeout: time.Minute})
	pid, err := strconv.Atoi(strings.TrimSpace(string(x.Output)))
	if err != nil || x.Status != 4 {
		t.Fatalf("got %+v, %v", x, err)
	}
	if !Alive(NewHost("/"), pid) {
		t.Error("the daemon has not survived")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

func TestRunCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if x := NewHost("/").Run(ctx, Command{Argv: []string{"sleep", "60"}}); x.Status != 143 || !x.TimedOut {
		t.Errorf("got %+v, want status 143", x)
	}
}

func TestUnkillable(t *testing.T) {
	t.Parallel()
	p := &process{started: make(chan error), abandoned: make(chan struct{}), exited: make(chan struct{}),
		grace: 10 * time.Millisecond, pid: 1 << 30} // no such group
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if x, ended := p.await(ctx, Command{}, nil); x.Status != 137 || !x.TimedOut || !x.Stuck || ended {
		t.Errorf("that is not even started: got %+v, %v", x, ended)
	}
	select {
	case <-p.abandoned:
	default:
		t.Error("what starts too late would be left running")
	}
	if p.end(nil) {
		t.Error("end says that it has ended")
	}
}

func TestSpawn(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "out")
	c := Command{Argv: sh("sleep 0.05; readlink /proc/self/fd/0 /proc/self/fd/1 > " + file)}
	if _, err := NewHost("/").Spawn(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	want := "/dev/null\n" + file + "\n"
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if data, err := os.ReadFile(file); err == nil && string(data) == want {
			break
		} else if time.Now().After(end) {
			t.Fatalf("got %q, %v; want %q", data, err, want)
		}
	}
	if _, err := NewHost("/").Spawn(t.Context(), Command{Argv: []string{"no-such-program"}}); err == nil {
		t.Error("no error for a program that does not exist")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = NewHost("/").Spawn(ctx, Command{Argv: []string{"true"}}) // must return in either case
}

// Run keeps the last line of a command's standard error, however the command uses it. A command
// that continues can still write, and neither ends nor blocks.
func TestSaid(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"echo a >&2; echo 'b  c' >&2":                         "b c",
		"printf 'no newline' >&2":                             "no newline",
		"printf 'x\\033[31m\\007\\n\\n \\n' >&2":              "x?[31m?",
		"echo a >&2; echo b >/dev/stderr":                     "b",
		"true":                                                "",
		"head -c 3000 /dev/zero | tr '\\0' y >&2":             strings.Repeat("y", 160) + "...",
		"head -c 20000000 /dev/zero | tr '\\0' y >&2; exit 0": strings.Repeat("y", 160) + "...",
	} {
		for _, lasting := range []bool{false, true} {
			x := NewHost("/").Run(t.Context(), Command{Argv: sh(script), Said: true, Lasting: lasting, Timeout: time.Minute})
			if x.Said != want || x.Errors != nil {
				t.Errorf("%s: %q, want %q", script, x.Said, want)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "done")
	began := time.Now()
	said, err := NewHost("/").Spawn(t.Context(), Command{Argv: sh("set -e; echo first >&2; sleep 2; echo second >&2; head -c 500000 /dev/zero >&2; echo good > " + file)})
	if took := time.Since(began); err != nil || said != "first" || took > 1900*time.Millisecond {
		t.Errorf("Spawn: %q, %v after %s", said, err, took)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if data, err := os.ReadFile(file); err == nil && string(data) == "good\n" {
			break
		} else if time.Now().After(end) {
			t.Fatalf("what goes on could not write: %q, %v", data, err)
		}
	}
}

func TestRunMerge(t *testing.T) {
	t.Parallel()
	line := sh("echo a; echo b >&2; echo c")
	for _, c := range []struct{ command Command }{
		{Command{Argv: line, Output: 100, Merge: true}},
		{Command{Argv: line, Output: 100, Errors: 100, Merge: true}},
	} {
		x := NewHost("/").Run(t.Context(), c.command)
		if string(x.Output) != "a\nb\nc\n" || len(x.Errors) > 0 {
			t.Errorf("output %q, errors %q", x.Output, x.Errors)
		}
	}
	if x := NewHost("/").Run(t.Context(), Command{Argv: line, Merge: true}); x.Status != 0 || len(x.Output) > 0 {
		t.Errorf("without a place for the output: %+v", x)
	}
}

func TestRunOnce(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, nil))
	h.SetEnviron([]string{"PATH=/"})
	first := h.RunOnce(t.Context(), "tool", Command{Argv: []string{"missing"}})
	h.root = "/"
	h.SetEnviron(nil)
	again := h.RunOnce(t.Context(), "tool", Command{Argv: []string{"true"}})
	other := h.RunOnce(t.Context(), "other", Command{Argv: []string{"true"}})
	if first.Status != 127 || again.Status != 127 || other.Status != 0 {
		t.Errorf("status %d, then %d, of another key %d; want 127, 127, 0", first.Status, again.Status, other.Status)
	}
}

// The output contains everything that a command wrote before its end, however late this process
// reads it.
func TestRunKeepsErrors(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for range 8 { // more than there are CPUs, so that readers have to wait
		wg.Go(func() {
			for range 25 {
				x := NewHost("/").Run(t.Context(), Command{Argv: []string{"/bin/sh", "-c", "echo why >&2; exit 1"}, Output: 100, Errors: 100})
				if x.Status != 1 || string(x.Errors) != "why\n" {
					t.Errorf("status %d, errors %q, want 1 and why", x.Status, x.Errors)
				}
			}
		})
	}
	wg.Wait()
}
