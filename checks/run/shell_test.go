package run

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// script records the events of a shell in one list, in order.
type script struct {
	heard  []string
	vars   map[string]string
	env    map[string]string
	all    []ShellVar
	native func(words []string) NativeReply
	helper bool
}

func (s *script) Output(fd int, data []byte) {
	for l := range strings.SplitSeq(strings.TrimSuffix(string(data), "\n"), "\n") {
		s.heard = append(s.heard, fmt.Sprintf("%d: %s", fd, l))
	}
}

func (s *script) Die(status, message string, sub, heard bool) (bool, string) {
	text := fmt.Sprintf("die %s %q sub=%v", status, message, sub)
	if !heard {
		text += " unheard"
	}
	s.heard = append(s.heard, text)
	return s.helper, ""
}

func (s *script) Leaving(status int) (bool, string, string) {
	s.heard = append(s.heard, fmt.Sprintf("leaving %d", status))
	return s.helper && status != 0, "", fmt.Sprintf("left with %d", status)
}
func (s *script) Died()                        { s.heard = append(s.heard, "died") }
func (s *script) Syslog(text string)           { s.heard = append(s.heard, "syslog "+text) }
func (s *script) Flush()                       { s.heard = append(s.heard, "flush") }
func (s *script) Settings(v map[string]string) { s.vars = v }
func (s *script) Environ(v map[string]string)  { s.env = v }
func (s *script) Variables(v []ShellVar)       { s.all = v }
func (s *script) Array(name string, v []string) {
	s.heard = append(s.heard, fmt.Sprintf("array %s %q", name, v))
}
func (s *script) Functions(names []string) {
	s.heard = append(s.heard, "own "+strings.Join(names, " "))
}
func (s *script) Forked(int)                    { s.heard = append(s.heard, "forked") }
func (s *script) Match(a, b string) NativeReply { return s.native([]string{"match", a, b}) }
func (s *script) Call(dir, line string, words []string) NativeReply {
	s.heard = append(s.heard, fmt.Sprintf("native in %s by %q: %q", dir, line, words))
	if s.native == nil {
		return NativeReply{}
	}
	return s.native(words)
}

func startTestShell(t *testing.T, h *script, init string) *Shell {
	t.Helper()
	setup := "NAME=nhc SILENT=0 VERBOSE=0 DEBUG=0 TS=0 NHC_CHECK_ALL=0 FAIL_CNT=0 HOSTNAME=node01 NHC_FD_OUT=1 NHC_FD_ERR=2 CHECKS=()\n" + init
	s, err := StartShell(ShellSetup{Program: "/usr/sbin/nhc", Init: setup, Env: []string{"PATH=/usr/bin:/bin", "HOME=/root", "LC_ALL=C"}}, h, -1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Kill() })
	return s
}

func soon() time.Time { return time.Now().Add(20 * time.Second) }

// Each line sees the variables of the lines before it; return, break, continue and syntax errors
// end only their own line.
func TestShellLines(t *testing.T) {
	t.Parallel()
	h := &script{}
	s := startTestShell(t, h, "")
	type result struct {
		Status int
		Exited bool
	}
	// A bash older than 5.0 returns 1 for a syntax error.
	wrong := exec.Command("/bin/bash", "-c", "eval 'echo )'")
	_ = wrong.Run()
	lines := []struct {
		text string
		want result
	}{
		{`A=1; local LV=5; cd /; set -- a b c`, result{0, false}},
		{`echo "$A $LV $PWD $# $2"`, result{0, false}},
		{`echo "a   b"`, result{0, false}},
		{`return 3`, result{3, false}},
		{`break`, result{0, false}},
		{`false || continue`, result{0, false}},
		{`break 9`, result{0, false}},
		{`echo )`, result{wrong.ProcessState.ExitCode(), false}},
		{`nosuchcommand`, result{127, false}},
		{`echo x | { read L; echo "got $L"; }`, result{0, false}},
		{`f() { echo "f $1"; return 4; }`, result{0, false}},
		{`f 1`, result{4, false}},
		{`echo *`, result{0, false}},
		{`echo $CNUM "$CHECK"`, result{0, false}},
		{`echo ${0##*/}`, result{0, false}},
		{`exit 7`, result{7, true}},
	}
	for i, l := range lines {
		status, exited, err := s.Line(false, i, l.text, soon())
		if err != nil {
			t.Fatalf("%s: %v", l.text, err)
		}
		if got := (result{status, exited}); got != l.want {
			t.Errorf("%s: got %+v, want %+v", l.text, got, l.want)
		}
	}
	var out []string
	for _, l := range h.heard {
		if strings.HasPrefix(l, "1: ") {
			out = append(out, l[3:])
		}
	}
	want := []string{"1 5 / 3 b", "a b", "got x", "f 1", "*", `13 echo $CNUM "$CHECK"`, "nhc"}
	if diff := cmp.Diff(want, out); diff != "" {
		t.Errorf("output (-want +got):\n%s", diff)
	}
}

// The output of a check precedes its death.
func TestShellDie(t *testing.T) {
	t.Parallel()
	h := &script{helper: true}
	s := startTestShell(t, h, "OFFLINE_NODE='helper -x \"a b\"'\nhelper() { echo \"helper [$1] [$2] [$3] [$4]\"; }\n")
	status, exited, err := s.Line(false, 0, `echo before; NAME=foo; die 5 it\'s "\$HOME" '*'`, soon())
	if err != nil || !exited || status != 5 {
		t.Fatalf("got %d %v %v, want the end of the shell with 5", status, exited, err)
	}
	want := []string{
		"1: before",
		"1: ERROR:  foo:  Health check failed:  it's $HOME *",
		`die 5 "it's $HOME *" sub=false`,
		"1: helper [-x] [a b] [node01] [it's $HOME *]",
		"died",
		"leaving 5",
		"1: helper [-x] [a b] [node01] [left with 5]", // the real supervisor has marked the node already
	}
	if diff := cmp.Diff(want, h.heard); diff != "" {
		t.Errorf("heard (-want +got):\n%s", diff)
	}
	if h.vars["NAME"] != "foo" {
		t.Errorf("NAME is told as %q", h.vars["NAME"])
	}
}

func TestShellDieGoesOn(t *testing.T) {
	t.Parallel()
	h := &script{}
	s := startTestShell(t, h, "NHC_CHECK_ALL=1\n")
	for _, l := range []string{"die 1 one; echo after", "( die 3 sub )", `X=$(die 4 caught); echo "[$X]"`} {
		if status, exited, err := s.Line(false, 0, l, soon()); err != nil || exited || status != 0 {
			t.Errorf("%s: got %d %v %v, want 0", l, status, exited, err)
		}
	}
	if status, _, err := s.Line(true, 0, "( die 5 deep ); die 6 own", soon()); err != nil || status != 0 {
		t.Errorf("a line in a process of its own: got %d %v, want 0", status, err)
	}
	want := []string{
		"1: ERROR:  nhc:  Health check failed:  one", `die 1 "one" sub=false`, "died", "1: after",
		"1: ERROR:  nhc:  Health check failed:  sub", `die 3 "sub" sub=true`, "died",
		`die 4 "caught" sub=true unheard`, "died", "1: [ERROR:  nhc:  Health check failed:  caught]",
		"forked", "1: ERROR:  nhc:  Health check failed:  deep", `die 5 "deep" sub=true`, "died",
		"1: ERROR:  nhc:  Health check failed:  own", `die 6 "own" sub=false`, "died",
	}
	if diff := cmp.Diff(want, h.heard); diff != "" {
		t.Errorf("heard (-want +got):\n%s", diff)
	}
}

// Checks in the background ask concurrently, and each gets its own answer.
func TestShellAsksAtOnce(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 3000) // many reads of bash, one byte each
	h := &script{native: func(words []string) NativeReply {
		return NativeReply{Findings: []checks.Finding{{Severity: checks.Warn, Message: "for " + words[1] + " " + long}}}
	}}
	s := startTestShell(t, h, "")
	const line = `for i in 1 2 3 4 5 6 7 8; do (check_rogue $i; echo "$i $?") & done; check_rogue main; wait; echo all`
	if status, _, err := s.Line(false, 0, line, soon()); status != 0 || err != nil {
		t.Fatalf("status %d, %v", status, err)
	}
	heard := map[string]int{}
	for _, text := range h.heard {
		text = strings.TrimSuffix(text, long)
		if strings.HasPrefix(text, "0: ") || strings.HasPrefix(text, "1: ") {
			heard[text[3:]]++
		}
	}
	want := map[string]int{"for main ": 1, "all": 1}
	for i := 1; i <= 8; i++ {
		want[fmt.Sprintf("for %d ", i)], want[fmt.Sprintf("%d 0", i)] = 1, 1
	}
	if diff := cmp.Diff(want, heard); diff != "" {
		t.Errorf("heard (-want +got):\n%s", diff)
	}
}

// A native check is a function of the shell: it gets expanded arguments and returns its status.
func TestShellNative(t *testing.T) {
	t.Parallel()
	h := &script{native: func(words []string) NativeReply {
		switch words[len(words)-1] {
		case "bad":
			return NativeReply{Findings: []checks.Finding{{Severity: checks.Warn, Message: "a note"}, {Severity: checks.Skip, Message: "not here"}, {Severity: checks.Fail, Message: "check_rogue:  bad"}}}
		case "{no}":
			return NativeReply{Findings: []checks.Finding{{Severity: checks.Fail, Status: 1}}}
		}
		return NativeReply{}
	}}
	s := startTestShell(t, h, "")
	for _, l := range []struct {
		text   string
		status int
	}{
		{`cd /usr && X="a  b" && [ -d / ] && check_rogue "$X" $((2*3)) ok`, 0},
		{`mcheck_range n5 no || echo out of range`, 0},
		{`if check_rogue bad; then :; fi`, 1},
	} {
		status, _, err := s.Line(false, 0, l.text, soon())
		if err != nil || status != l.status {
			t.Errorf("%s: got %d %v, want %d", l.text, status, err, l.status)
		}
	}
	want := []string{
		`native in /usr by "cd /usr && X=\"a  b\" && [ -d / ] && check_rogue \"$X\" $((2*3)) ok": ["check_rogue" "a b" "6" "ok"]`,
		"1: out of range",
		`native in /usr by "if check_rogue bad; then :; fi": ["check_rogue" "bad"]`,
		"1: a note", "1: ERROR:  nhc:  Health check failed:  check_rogue:  bad", `die 1 "check_rogue:  bad" sub=false`, "died", "leaving 1",
	}
	h.heard = slicesWithout(h.heard, "match")
	if diff := cmp.Diff(want, h.heard); diff != "" {
		t.Errorf("heard (-want +got):\n%s", diff)
	}
}

func slicesWithout(list []string, word string) []string {
	var out []string
	for _, l := range list {
		if !strings.Contains(l, word+"\"") {
			out = append(out, l)
		}
	}
	return out
}

func TestShellDeadline(t *testing.T) {
	t.Parallel()
	s := startTestShell(t, &script{}, "")
	_, _, err := s.Line(false, 0, "trap '' TERM ALRM; sleep 60 & sleep 60", time.Now().Add(100*time.Millisecond))
	if !errors.Is(err, ErrDeadline) {
		t.Fatalf("err = %v, want the deadline", err)
	}
	if left := s.Kill(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A frozen shell is left behind, and the error shows where it sleeps.
func TestShellStuck(t *testing.T) {
	t.Parallel()
	group := cgroup(t, "freezer")
	s := startTestShell(t, &script{}, "")
	line := fmt.Sprintf("echo $BASHPID > %s/cgroup.procs; echo FROZEN > %s/freezer.state; echo awake", group, group)
	if _, _, err := s.Line(false, 0, line, time.Now().Add(5*time.Second)); !errors.Is(err, ErrDeadline) { // it must have frozen by then
		t.Fatalf("err = %v, want the deadline", err)
	}
	began := time.Now()
	left := s.Kill()
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("killing took %s", took)
	}
	if len(left) != 1 || left[0] != s.Pid() {
		t.Fatalf("left %v, want the shell %d", left, s.Pid())
	}
	p := newTestPool(t, "")
	hung := p.AddStuck(left, checks.Shell, line)
	if hung.State != "D" || hung.Wchan == "" {
		t.Errorf("hung = %+v, want state D and a wait channel", hung)
	}
	if _, ok := p.Ledger().Find(checks.Shell, line); !ok {
		t.Error("not in the ledger")
	}
	_ = os.WriteFile(filepath.Join(group, "freezer.state"), []byte("THAWED"), 0)
	waitFor(t, func() bool { return unix.Kill(s.Pid(), 0) != nil })
}

// A sysconfig file that bash has read is returned as variables.
func TestShellSource(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "nhc")
	text := "export SITE=lbl\nif true; then TIMEOUT=44; fi\nNHC_MCHECK_DELIM=( '@@' '<>' )\nfunc() { :; }\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h := &script{}
	s := startTestShell(t, h, "")
	if status, exited, err := s.Source(file, soon()); err != nil || exited || status != 0 {
		t.Fatalf("got %d %v %v", status, exited, err)
	}
	got := map[string]ShellVar{}
	for _, v := range h.all {
		got[v.Name] = v
	}
	if got["TIMEOUT"].Value != "44" || got["SITE"] != (ShellVar{"SITE", "lbl", true}) {
		t.Errorf("got TIMEOUT %+v, SITE %+v", got["TIMEOUT"], got["SITE"])
	}
	if !strings.Contains(strings.Join(h.heard, "\n"), `array NHC_MCHECK_DELIM ["@@" "<>"]`) {
		t.Errorf("heard %q, want the array", h.heard)
	}
}

// The patterns of extglob are the site's choice: bash reads a file that has "shopt -s extglob", and no
// other with such patterns. Lines and files are read without them at first, as in LBNL NHC.
func TestShellExtglob(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ file, line, err, want string }{
		{file: "shopt -s extglob\ncase x in !(a|b)) TIMEOUT=44 ;; esac\n", line: "echo ${PWD/+(\\/)*/Z} $TIMEOUT; shopt -q extglob", want: "1: Z 44"},
		{file: "TIMEOUT=44\ncase x in !(a|b)) ;; esac\n", err: "syntax error"},
		{file: "if !(false); then TIMEOUT=45; fi\n", line: "!(false) && echo $TIMEOUT; X=abb; echo ${X//+(b)/Z}; ! shopt -q extglob", want: "1: 45\n1: abb"},
		{file: "str_clean -m -o X 'a  b'; TIMEOUT=$X\n", line: "echo $TIMEOUT; ! shopt -q extglob", want: "1: a b"},
		{file: "mcheck_glob node01 '@(node|gpu)+([0-9])' && TIMEOUT=46\n", line: "echo $TIMEOUT; mcheck n1 '!(n2)'", want: "1: 46"},
	} {
		file := filepath.Join(t.TempDir(), "nhc")
		if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		h := &script{}
		s := startTestShell(t, h, "")
		_, _, err := s.Source(file, soon())
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %s", c.file, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.file, err)
			continue
		}
		h.heard = nil
		status, _, err := s.Line(false, 0, c.line, soon())
		if got := strings.Join(h.heard, "\n"); status != 0 || err != nil || got != c.want {
			t.Errorf("%s%s: status %d, %v, heard\n%s\nwant\n%s", c.file, c.line, status, err, got, c.want)
		}
	}
}

// slurmd starts this program with SIGPIPE blocked; commands must not inherit that.
func TestShellSignalMask(t *testing.T) {
	t.Parallel()
	h := &script{}
	s := startTestShell(t, h, "")
	if _, _, err := s.Line(false, 0, `grep SigBlk: /proc/self/status`, soon()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"1: SigBlk:\t0000000000000000"}, h.heard); diff != "" {
		t.Errorf("heard (-want +got):\n%s", diff)
	}
}
