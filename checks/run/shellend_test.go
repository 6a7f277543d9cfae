package run

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
)

// outputOf returns the output of the shell.
func (s *script) outputOf() (lines []string) {
	for _, l := range s.heard {
		if text, ok := strings.CutPrefix(l, "1: "); ok {
			lines = append(lines, text)
		}
	}
	return lines
}

// The failure of a line that ends the shell is reported while functions of the site can still be
// called, unless the line replaces the shell.
func TestShellLeaves(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]struct {
		status int
		heard  []string
	}{
		"exit 3":                         {3, []string{"leaving 3", "1: mark [node01] [left with 3]"}},
		"exit 0":                         {0, nil},
		"bye() { exit 4; }; true; bye":   {4, []string{"leaving 4", "1: mark [node01] [left with 4]"}},
		"set -u; echo $NOPE 2>/dev/null": {1, []string{"leaving 1", "1: mark [node01] [left with 1]"}},
		"exec 2>/dev/null; exec /none":   {127, nil},
		"exec false":                     {1, nil},
	} {
		h := &script{helper: true}
		s := startTestShell(t, h, "OFFLINE_NODE=mark\nmark() { echo \"mark [$1] [$2]\"; }\n")
		status, exited, err := s.Line(false, 0, line, soon())
		if err != nil || !exited || status != want.status {
			t.Errorf("%s: got %d %v %v, want the end of the shell with %d", line, status, exited, err, want.status)
		}
		var heard []string
		for _, l := range h.heard {
			if !strings.HasPrefix(l, "2: ") {
				heard = append(heard, l)
			}
		}
		if diff := cmp.Diff(want.heard, heard); diff != "" {
			t.Errorf("%s: heard (-want +got):\n%s", line, diff)
		}
	}
}

// The site's own trap on EXIT runs at the end, and has until the deadline: it may undo what a check has done to the
// hardware. A trap that reports a failure gets no answer, and does not wait for one.
func TestShellExitTrap(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		`true`:                 {"a"},
		`trap 'echo bye' EXIT`: {"a", "bye"},
		`set -euo pipefail`:    {"a"},
		`set -euo pipefail; trap 'sleep 1.5; echo bye' EXIT`:                        {"a", "bye"},
		`trap 'sleep 1.5; echo bye' EXIT`:                                           {"a", "bye"},
		`trap 'head -c 300000 /dev/zero | tr "\0" x >&2; sleep 1.5; echo bye' EXIT`: {"a", "bye"},
		`trap 'echo bye; die 1 late' EXIT`:                                          {"a", "bye", "ERROR:  nhc:  Health check failed:  late"},
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			h := &script{}
			s := startTestShell(t, h, "")
			for _, l := range []string{line, `echo a`} {
				if _, _, err := s.Line(false, 0, l, soon()); err != nil {
					t.Fatal(err)
				}
			}
			if overdue := s.Close(time.Now().Add(time.Hour)); overdue != "" {
				t.Errorf("%s is overdue", overdue)
			}
			if diff := cmp.Diff(want, h.outputOf()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

// A trap that does not end in time is killed with its processes.
func TestShellExitTrapOverdue(t *testing.T) {
	t.Parallel()
	s := startTestShell(t, &script{}, "")
	pid := filepath.Join(t.TempDir(), "pid")
	if _, _, err := s.Line(false, 0, `trap 'sh -c "echo \$\$ >`+pid+`; exec sleep 3600"' EXIT`, soon()); err != nil {
		t.Fatal(err)
	}
	if s.Close(time.Now()) == "" {
		t.Error("a trap that does not end is not overdue")
	}
	text, _ := os.ReadFile(pid) // missing if the trap had not begun
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if st, err := process.ReadStat(n); n > 0 && err == nil && st.State != "Z" {
		t.Errorf("process %d of the trap still runs", n)
	}
}

// A bash without a trap that does not end blames none.
func TestShellOverdue(t *testing.T) {
	t.Parallel()
	s := startTestShell(t, &script{}, "")
	if err := unix.Kill(s.Pid(), unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if got := s.Close(time.Now()); got != "bash" {
		t.Errorf("%q is overdue, want bash", got)
	}
}

// A signal during the read of an answer waits for its end.
func TestShellSignalInAnswer(t *testing.T) {
	t.Parallel()
	many := make([]checks.Finding, 300)
	for i := range many {
		many[i] = checks.Finding{Severity: checks.Warn, Message: strings.Repeat("x", 100)}
	}
	for i := range 20 {
		h := &script{native: func([]string) NativeReply { return NativeReply{Findings: many} }}
		s := startTestShell(t, h, "SILENT=1\n")
		line := fmt.Sprintf(`{ sleep 0.0%02d; kill -TERM $$; } & check_rogue a; wait; sleep 9`, 2*i)
		status, exited, err := s.Line(false, 0, line, soon())
		if err != nil || !exited || status != 143 {
			t.Fatalf("%s: got %d %v %v, want the end of the shell with 143", line, status, exited, err)
		}
		s.Kill()
	}
}

// A subshell's text for syslog is lost with it, unless it dies or sends the text. A line in its own
// process has the shell's input, and is announced first.
func TestShellSubshell(t *testing.T) {
	t.Parallel()
	h := &script{}
	s := startTestShell(t, h, "exec <<<input\n")
	for _, l := range []struct {
		text   string
		forked bool
	}{
		{`( syslog lost ); syslog kept`, false},
		{`( syslog sent; syslog_flush )`, false},
		{`( syslog before; die 3 x )`, false},
		{`echo first; read L; echo "$L"`, true},
		{`false`, false},
		{`echo "status $RET"`, false},
	} {
		if _, _, err := s.Line(l.forked, 0, l.text, soon()); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"syslog kept", "syslog sent", "flush",
		"1: ERROR:  nhc:  Health check failed:  x", "syslog before", `die 3 "x" sub=true`, "died",
		"forked", "1: first", "1: input", "1: status 1",
	}
	if diff := cmp.Diff(want, h.heard); diff != "" {
		t.Errorf("heard (-want +got):\n%s", diff)
	}
}

// A check returns lines to an array of the shell, even to one that the caller names.
func TestShellArray(t *testing.T) {
	t.Parallel()
	h := &script{native: func([]string) NativeReply {
		return NativeReply{Findings: []checks.Finding{
			{Code: checks.ArrayCode, Device: checks.Device{Name: "OUT"}, Got: "a  b\n\\c"},
			{Severity: checks.Fail, Message: "check_rogue:  bad"},
		}}
	}}
	s := startTestShell(t, h, "NHC_CHECK_ALL=1\n")
	const line = `f() { local OUT; check_rogue || echo "${#OUT[@]} [${OUT[0]}] [${OUT[1]}]"; }; f; echo "[${OUT-}]"`
	if _, _, err := s.Line(false, 0, line, soon()); err != nil {
		t.Fatal(err)
	}
	want := []string{"ERROR:  nhc:  Health check failed:  check_rogue:  bad", `2 [a  b] [\c]`, "[]"}
	if diff := cmp.Diff(want, h.outputOf()); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

// A helper that dies is not called for its own death. A bash older than 5.0 runs the trap on EXIT
// without local variables.
func TestShellHelperDies(t *testing.T) {
	t.Parallel()
	h := &script{helper: true}
	s := startTestShell(t, h, "OFFLINE_NODE=mark\nmark() { echo mark; die 4 inside; }\n")
	if status, exited, err := s.Line(false, 0, "die 3 x", soon()); err != nil || !exited || status != 4 {
		t.Errorf("got %d %v %v, want the end of the shell with 4", status, exited, err)
	}
	if n := strings.Count(strings.Join(h.heard, "\n"), "1: mark"); n != 1 {
		t.Errorf("the helper ran %d times", n)
	}
}
