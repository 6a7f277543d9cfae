package rank

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

// buffer is a buffer that a rank writes to while a test reads it.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// script writes a program and returns its path.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := probetest.WriteProgram(path, []byte("#!/bin/sh\n"+text)); err != nil {
		t.Fatal(err)
	}
	return path
}

// cancelled has scancel of a rank write its arguments to a file, and returns a function that reads
// it.
func cancelled(t *testing.T) (environ []string, read func() string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "cancelled")
	if err := probetest.WriteProgram(filepath.Join(dir, "scancel"), []byte("#!/bin/sh\necho \"$@\" >>"+path+"\n")); err != nil {
		t.Fatal(err)
	}
	return []string{"PATH=" + dir + ":/bin:/usr/bin"}, func() string {
		text, _ := os.ReadFile(path)
		return string(text)
	}
}

// A rank whose launcher is gone or silent ends. It cancels the job only if the launcher no longer
// runs, and has not said goodbye.
func TestLauncherVanishes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		silence time.Duration
		job     string
		vanish  func(*fleet, *rank)
		want    error
		cancels string
	}{
		"killed": {patience, "77", func(f *fleet, r *rank) { _, _ = f.listener.Close(), r.conn.Close() }, errLauncher, "77\n"},
		"silent": {2 * time.Second, "77", func(_ *fleet, r *rank) { r.mute() }, os.ErrDeadlineExceeded, ""},
		"killed after a silence": {2 * time.Second, "78", func(f *fleet, r *rank) {
			r.mute()
			_ = f.listener.Close()
		}, os.ErrDeadlineExceeded, "78\n"},
		"lost":   {patience, "77", func(_ *fleet, r *rank) { _ = r.conn.Close() }, errLauncher, ""},
		"no job": {patience, "", func(f *fleet, r *rank) { _, _ = f.listener.Close(), r.conn.Close() }, errLauncher, ""},
		"bye": {patience, "79", func(f *fleet, r *rank) {
			_ = r.conn.Send(&wire.Message{Bye: "the sweep is over"})
			_ = f.listener.Close()
		}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			environ, read := cancelled(t)
			f := newFleetOf(t, wire.Config{Silence: tt.silence}, Options{})
			f.ticket.Job = tt.job
			r := f.start(Options{environ: environ, program: script(t, "exec sleep 1000")}, loopback("a"))
			task := sweep.Task{Kind: sweep.KindCheck, Op: "check_x", Nodes: []string{"a"}}
			ready := f.prepare(&task)
			f.begin(task, ready)
			tt.vanish(f, r)
			if err := receive(t, r.ended); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if got := read(); got != tt.cancels {
				t.Errorf("scancel got %q, want %q", got, tt.cancels)
			}
		})
	}
}

// A rank that finds no launcher ends at its time limit.
func TestNoLauncher(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.ticket.Addresses = []string{probetest.ClosedPort(t)}
	f.ticket.Limit = 500 * time.Millisecond
	r := f.serve(Options{}, loopback("a"))
	if err := receive(t, r.ended); !errors.Is(err, errLimit) {
		t.Error(err)
	}
}

func TestTimeLimit(t *testing.T) {
	t.Parallel()
	environ, read := cancelled(t)
	f := newFleet(t)
	f.ticket.Limit, f.ticket.Job = 10*time.Second, "77"
	r := f.start(Options{environ: environ}, loopback("a"))
	if bye := receive(t, r.bye); bye != errLimit.Error() {
		t.Errorf("bye: %q", bye)
	}
	if err := receive(t, r.ended); !errors.Is(err, errLimit) {
		t.Error(err)
	}
	if got := read(); got != "" {
		t.Errorf("scancel got %q", got)
	}
}

// A rank of another version, or without a ticket, ends with the reason.
func TestRankIsRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	go func() { _, _ = f.listener.Accept(t.Context()) }()
	r := f.serve(Options{Version: "1.2.4"}, loopback("a"))
	err := receive(t, r.ended)
	if !errors.As(err, new(*wire.RefusedError)) || !strings.Contains(err.Error(), "a has nhc-gpu 1.2.4, the launcher has 1.2.3: install the same version on both") {
		t.Error(err)
	}
	for name, text := range map[string]string{"nothing": "", "no JSON": "hello\n", "no token": "{}\n"} {
		if err := Serve(t.Context(), strings.NewReader(text), Options{}); err == nil || !strings.Contains(err.Error(), "read the ticket") {
			t.Errorf("%s: %v", name, err)
		}
	}
	in, out, err := os.Pipe() // a standard input that stays open
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	ctx, cancel := context.WithTimeout(t.Context(), shortLimit/2)
	defer cancel()
	if err := Serve(ctx, in, Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// checkReport is what nhc-gpu check --json prints.
const checkReport = `{"version":"1","result":"fail","exit":2,"results":[` +
	`{"result":"ok","check":"check_gpu_count","fact":"8 GPUs","took_ms":1},` +
	`{"result":"fail","check":"check_gpu_ecc","code":"gpu.ecc","device":{"kind":"gpu","name":"gpu3","pci":"0000:c1:00.0"},"message":"gpu3: 2 errors"}]}`

// A check is run by this program in a child process, and its findings are the result.
func TestCheck(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		program string
		want    sweep.Fault
		text    string
		results int
	}{
		"fails":     {"test \"$0 $*\" != '' && test $# = 4 && test \"$4\" = 'a b' && cat <<'E'\n" + checkReport + "\nE\nexit 2", sweep.FaultCheck, "check_gpu_ecc: gpu3: 2 errors", 2},
		"passes":    {`echo '{"results":[{"result":"ok","check":"check_x","fact":"fine"}]}'`, sweep.FaultNone, "", 1},
		"warns":     {`echo '{"results":[{"result":"warn","check":"check_x","message":"near"}]}'; exit 1`, sweep.FaultNone, "", 1},
		"unknown":   {`echo '{"results":[{"result":"ok","check":"check_x","fact":"fine"},{"result":"unknown","check":"check_x","message":"gpu0: too little memory"}]}'; exit 3`, sweep.FaultUnable, "check_x: gpu0: too little memory", 2},
		"skipped":   {`echo '{"results":[{"result":"skip","check":"check_x","message":"no GPU"}]}'`, sweep.FaultUnable, "check_x: no GPU", 1},
		"in part":   {`echo '{"results":[{"result":"ok","check":"check_x","fact":"fine"},{"result":"skip","check":"check_x","message":"no fp8"}]}'`, sweep.FaultNone, "", 2},
		"arguments": {`echo "nhc-gpu: there is no check x" >&2; echo "nhc-gpu check --help" >&2; exit 10`, sweep.FaultUnable, "check_x a b: exit status 10: nhc-gpu: there is no check x", 0},
		"LBNL":      {`echo '{"results":[{"result":"fail","check":"check_fs_mount_rw","message":"check_fs_mount:  /x not mounted"}]}'; exit 2`, sweep.FaultCheck, "check_fs_mount:  /x not mounted", 1},
		"garbage":   {`echo hello`, sweep.FaultUnable, "check_x a b: exit status 0", 0},
		"absent":    {"", sweep.FaultError, "check_x a b: run /nowhere/nhc-gpu: no such file or directory", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program := "/nowhere/nhc-gpu"
			if tt.program != "" {
				program = script(t, tt.program)
			}
			f := newFleetOf(t, wire.Config{}, Options{program: program}, loopback("a"))
			r := f.do(sweep.Task{Kind: sweep.KindCheck, Op: "check_x 'a b'", Nodes: []string{"a"}})[0]
			if r.Fault != tt.want || r.Text != tt.text || len(r.Checks) != tt.results {
				t.Errorf("%+v", r)
			}
			if name == "fails" && (r.Checks[1] != sweep.CheckResult{Check: "check_gpu_ecc", Severity: "fail", Code: "gpu.ecc", Device: "gpu3 0000:c1:00.0", Message: "gpu3: 2 errors"} || r.Blame[0] != "a") {
				t.Errorf("%+v", r)
			}
		})
	}
}

// endless is a program that starts another one, writes the numbers of both, and ignores SIGTERM.
func endless(t *testing.T) (program, pids string) {
	t.Helper()
	pids = filepath.Join(t.TempDir(), "pids")
	return script(t, fmt.Sprintf("trap '' TERM\nsleep 1000 &\necho $$ $! >%[1]s.new\nmv %[1]s.new %[1]s\nwhile :; do wait; done\n", pids)), pids
}

func readPIDs(t *testing.T, path string) (list []int) {
	t.Helper()
	probetest.Await(t, "the program starts", func() bool {
		text, _ := os.ReadFile(path)
		list = nil
		for word := range strings.FieldsSeq(string(text)) {
			n, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, n)
		}
		return len(list) == 2
	})
	return list
}

// alive reports whether a process exists that has not ended.
func alive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

func wantGone(t *testing.T, pids []int) {
	t.Helper()
	probetest.Await(t, "all processes of the task end", func() bool {
		return !slices.ContainsFunc(pids, alive)
	})
}

// Every process of a check ends with it: at its time limit, when the launcher stops it, and with the
// rank.
func TestCheckIsEnded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		limit time.Duration
		end   func(*fleet, sweep.Task)
	}{
		"limit": {500 * time.Millisecond, func(f *fleet, task sweep.Task) {
			if r := f.results(task)[0]; r.Fault != sweep.FaultSilent || r.Text != "check_x: it has not ended within its time limit" || r.Blame[0] != "a" {
				f.t.Errorf("%+v", r)
			}
		}},
		"stop": {patience, func(f *fleet, task sweep.Task) { f.stop(task) }},
		"bye":  {patience, func(f *fleet, _ sweep.Task) { f.send("a", &wire.Message{Bye: "the sweep is over"}) }},
		"lost": {patience, func(f *fleet, _ sweep.Task) { _ = f.ranks["a"].conn.Close() }},
		"end":  {patience, func(f *fleet, _ sweep.Task) { f.ranks["a"].stop() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program, path := endless(t)
			f := newFleetOf(t, wire.Config{}, Options{program: program}, loopback("a"))
			task := sweep.Task{Kind: sweep.KindCheck, Op: "check_x", Nodes: []string{"a"}, Limit: tt.limit}
			ready := f.prepare(&task)
			f.begin(task, ready)
			if name != "limit" { // which may come before the program has started
				pids := readPIDs(t, path)
				defer wantGone(t, pids)
			}
			tt.end(f, task)
			if r := f.ranks["a"]; name == "lost" {
				if err := receive(t, r.ended); !errors.Is(err, errLauncher) {
					t.Error(err)
				}
			}
		})
	}
}

// A rank that gets a signal says so, ends its processes and itself.
func TestSignals(t *testing.T) {
	t.Parallel()
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			t.Parallel()
			program, path := endless(t)
			f := newFleet(t)
			line, err := f.ticket.Line()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), asRank+"=a", "NHC_GPU_TEST_PROGRAM="+program)
			var said buffer
			cmd.Stderr = &said
			in, err := cmd.StdinPipe() // stays open, as that of srun
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			defer cmd.Process.Kill() //nolint:errcheck // if the test fails
			if _, err := in.Write(line); err != nil {
				t.Fatal(err)
			}
			r := f.accept("a", &rank{ready: make(chan *wire.Ready, 1), done: make(chan *wire.Done, 1), bye: make(chan string, 1), gone: make(chan struct{}), stop: func() {}})
			if r.conn.Hello.PID != cmd.Process.Pid {
				t.Errorf("PID %d, want %d", r.conn.Hello.PID, cmd.Process.Pid)
			}
			task := sweep.Task{Kind: sweep.KindCheck, Op: "check_x", Nodes: []string{"a"}}
			ready := f.prepare(&task)
			f.begin(task, ready)
			pids := readPIDs(t, path)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			want := "ended by " + unix.SignalName(sig)
			if bye := receive(t, r.bye); bye != want {
				t.Errorf("bye: %q, want %q", bye, want)
			}
			if err := receive(t, ended); err == nil || !strings.Contains(said.String(), want) {
				t.Errorf("%v: %s", err, said.String())
			}
			wantGone(t, pids)
		})
	}
}
