package run

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
)

// However a line exits, or whatever it does to the shell, it has a result, and never waits for
// TIMEOUT; the same shell or a new one runs the lines after it.
func TestShellWildLines(t *testing.T) {
	t.Parallel()
	const (
		ends  = "ends"  // the line ends, and the shell continues
		exits = "exits" // the shell has ended with a status
		lost  = "lost"  // unknown, and a new shell
	)
	for _, c := range []struct {
		line   string
		want   string
		status int
	}{
		{`continue`, ends, 0},
		{`continue 2`, ends, 0},
		{`continue 5`, ends, 0},
		{`break 2`, ends, 0},
		{`break 5`, ends, 0},
		{`for i in 1 2; do continue 9; done`, ends, 0},
		{`f() { continue 5; }; f`, ends, 0},
		{`return 0`, ends, 0},
		{`return 4`, ends, 4},
		{`f() { return 3; }; f`, ends, 3},
		{`(exit 3)`, ends, 3},
		{`exit 3`, exits, 3},
		{`trap 'exit 6' EXIT; exit 5`, exits, 6},
		{`set -e; false`, exits, 1},
		{`set -u; echo "$NOPE" 2>/dev/null`, exits, 1},
		{`exec true`, exits, 0},
		{`exec false`, exits, 1},
		{`kill -9 $$`, lost, 0},
		{`kill -SEGV $$`, lost, 0},
		{`kill -USR1 $$`, lost, 0},
		{`for i in {3..255}; do eval "exec $i>&-"; done 2>/dev/null`, lost, 0},
		{`exec 240<&-`, ends, 0}, // noticed by the next line
		{`exec 241>&-`, lost, 0},
		{`exec 242<&-; check_rogue x`, lost, 0},
		{`exec 243<&-`, ends, 0}, // noticed by the next line
		{`exec 60</etc/passwd 61>/dev/null; read -u 60 x; echo x >&61`, ends, 0},
		{`for i in {3..230}; do eval "exec $i</dev/null"; done`, ends, 0},
		{`ulimit -n 10`, ends, 0},
		{`ulimit -Sn 3`, ends, 0},
		{`ulimit -n 3`, "", 0}, // a user who may raise the limit again continues
		{`umask 777`, ends, 0},
		{`d=$(mktemp -d); cd $d; rmdir $d`, ends, 0},
		{`read() { :; }; printf() { :; }; source() { :; }; eval() { :; }; mapfile() { :; }; compgen() { :; }`, ends, 0},
		{`set() { :; }; local() { false; }; wait() { :; }; exec() { :; }; .() { :; }`, ends, 0},
		{`shopt -s expand_aliases; alias eval=false`, ends, 0},
		{`unset -f __nhc_event __nhc_main __nhc_settings __nhc_landed 2>/dev/null; true`, ends, 0},
		{`__nhc_event() { :; }`, ends, 1},
		{`readonly CHECK CNUM`, ends, 0}, // noticed by the next line
		{`trap : DEBUG`, ends, 0},
		{`set -T; trap : DEBUG; trap : ERR; trap : RETURN`, ends, 0},
		{`PROMPT_COMMAND='exit 9'`, ends, 0},
		{`shopt -s nocasematch extdebug nullglob failglob`, ends, 0},
		{`set -o posix`, ends, 0},
		{`set -euo pipefail`, ends, 0},
		{`set -C; set +f`, ends, 0},
		{`IFS=0123456789`, ends, 0},
		{`LC_ALL=C.UTF-8; LANG=nope`, ends, 0},
	} {
		t.Run(c.line, func(t *testing.T) {
			t.Parallel()
			h := &script{}
			s := startTestShell(t, h, "")
			status, exited, err := s.Line(false, 0, c.line, soon())
			got := ends
			switch {
			case err != nil:
				got = lost
			case exited:
				got = exits
			}
			if c.want != "" && got != c.want || status != c.status || errors.Is(err, ErrDeadline) {
				t.Fatalf("%s with %d (%v), want %s with %d; heard %q", got, status, err, c.want, c.status, h.heard)
			}
			if got != ends {
				return
			}
			h.heard = nil
			switch _, _, err := s.Line(false, 1, `check_rogue seen`, soon()); {
			case errors.Is(err, ErrDeadline):
				t.Error("the next line did not end")
			case err == nil && !slices.ContainsFunc(h.heard, func(l string) bool { return strings.Contains(l, `"check_rogue" "seen"`) }):
				t.Errorf("the next line was not run, and this is unknown: heard %q", h.heard)
			}
		})
	}
}

// A stopped shell is ended at its deadline.
func TestShellStopped(t *testing.T) {
	t.Parallel()
	s := startTestShell(t, &script{}, "")
	if _, _, err := s.Line(false, 0, `kill -STOP $$`, time.Now().Add(time.Second)); !errors.Is(err, ErrDeadline) {
		t.Fatalf("err = %v, want the deadline", err)
	}
	if left := s.Kill(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// waker interrupts a line that prints something.
type waker struct {
	script
	up *os.File
}

func (w *waker) Output(fd int, data []byte) {
	w.script.Output(fd, data)
	_, _ = w.up.Write(data)
}

// When a line is killed its processes are found even outside of its session and parents; background
// processes of an earlier line are spared.
func TestShellKillFindsTheLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	isUp, up, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer isUp.Close()
	defer up.Close()
	s, err := StartShell(ShellSetup{Program: "/usr/sbin/nhc", Init: "CHECKS=()\n", Env: []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}}, &waker{up: up}, int(isUp.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Kill() })
	for i, line := range []string{
		`setsid bash -c 'echo $$ >` + dir + `/old1; exec sleep 300' </dev/null &>/dev/null &`,
		`nohup bash -c 'echo $$ >` + dir + `/old2; exec sleep 300' </dev/null &>/dev/null &`,
		`until [ -s ` + dir + `/old1 ] && [ -s ` + dir + `/old2 ]; do sleep 0.02; done`,
	} {
		if status, _, err := s.Line(false, i, line, soon()); err != nil || status != 0 {
			t.Fatalf("%s: %d %v", line, status, err)
		}
	}
	line := `setsid bash -c 'echo $$ >` + dir + `/new1; exec sleep 300' & setsid -f bash -c 'echo $$ >` + dir + `/new2; trap "" TERM; while :; do sleep 1; done' & ( ( setsid bash -c 'echo $$ >` + dir + `/new3; exec sleep 300' & ) & ); until [ -s ` + dir + `/new1 ] && [ -s ` + dir + `/new2 ] && [ -s ` + dir + `/new3 ]; do sleep 0.02; done; echo up; sleep 300`
	status, _, err := s.Line(false, 3, line, time.Now().Add(time.Minute))
	if !errors.Is(err, ErrInterrupted) {
		t.Fatalf("got %d %v, want an interruption when all processes run", status, err)
	}
	if left := s.Kill(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	for name, want := range map[string]bool{"old1": true, "old2": true, "new1": false, "new2": false, "new3": false} {
		data, err := os.ReadFile(dir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
		if err != nil {
			t.Fatal(err)
		}
		if !want {
			waitFor(t, func() bool { _, err := process.ReadStat(pid); return err != nil || !lives(pid) })
			continue
		}
		if !lives(pid) {
			t.Errorf("%s has been ended", name)
		}
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

func lives(pid int) bool {
	st, err := process.ReadStat(pid)
	return err == nil && !process.Ended(pid, st)
}

// Two long events with alternating parts are two events.
func TestShellEventsOfTwo(t *testing.T) {
	t.Parallel()
	h := &script{}
	s := startTestShell(t, h, "BIG=$(printf 'x%.0s' {1..20000})\n")
	if status, _, err := s.Line(false, 0, `for i in 1 2 3 4 5 6; do ( check_rogue $i "$BIG" ) & done; wait`, soon()); err != nil || status != 0 {
		t.Fatalf("%d %v", status, err)
	}
	for i := 1; i <= 6; i++ {
		want := fmt.Sprintf(`["check_rogue" "%d" "%s"]`, i, strings.Repeat("x", 20000))
		if !slices.ContainsFunc(h.heard, func(l string) bool { return strings.HasSuffix(l, want) }) {
			t.Errorf("call %d was not heard", i)
		}
	}
}

// filesEnv is set in a process of TestShellFewFiles that has a lower limit of open files: an ordinary process cannot
// raise a hard limit again.
const filesEnv = "NHC_TEST_FILES"

// The shell also starts below a limit of open files that is less than its numbers, and the lines keep
// that limit.
func TestShellFewFiles(t *testing.T) {
	if soft := os.Getenv(filesEnv); soft != "" {
		h := &script{}
		s := startTestShell(t, h, "")
		for range 2 {
			if status, _, err := s.Line(false, 0, `ulimit -Sn; (check_rogue sub) && check_rogue main`, soon()); status != 0 || err != nil {
				t.Fatal(status, err)
			}
		}
		called := func(l string) bool { return strings.HasSuffix(l, `["check_rogue" "main"]`) }
		if !slices.Contains(h.heard, "1: "+soft) || !slices.ContainsFunc(h.heard, called) {
			t.Errorf("heard %q, want the limit %s, and the check", h.heard, soft)
		}
		return
	}
	t.Parallel()
	for _, tt := range []struct{ soft, hard, err string }{
		{soft: "128", hard: "1000"},
		{soft: "246", hard: "247"},
		{soft: "200", hard: "200"},
		{soft: "80", hard: "200"},
		{soft: "100", hard: "100"},
		{"60", "60", "start bash: the hard limit of open files (RLIMIT_NOFILE) is 60, want at least 68"},
	} {
		cmd := exec.Command("bash", "-c", `ulimit -Sn $1 && ulimit -Hn $2 && exec "$3" -test.run='^TestShellFewFiles$'`, "bash", tt.soft, tt.hard, os.Args[0])
		cmd.Env = append(os.Environ(), filesEnv+"="+tt.soft)
		out, err := cmd.CombinedOutput()
		if (err == nil) != (tt.err == "") || !strings.Contains(string(out), tt.err) {
			t.Errorf("soft limit %s, hard limit %s: %v, %s", tt.soft, tt.hard, err, out)
		}
	}
}
