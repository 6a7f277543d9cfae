package plan

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// probeCheck takes any arguments; -z is an error.
type probeCheck struct {
	Act   bool     `opt:"e" toml:"act"`
	Words []string `arg:"*" toml:"words"`
}

func (*probeCheck) Run(context.Context, *checks.Env) []checks.Finding { return nil }

func init() {
	checks.Register(checks.Info{
		Name: "check_x", Usage: "[-e] WORD...", Summary: "test", Lane: checks.Local,
		New:  func() checks.Check { return new(probeCheck) },
		Acts: func(c checks.Check) bool { return c.(*probeCheck).Act },
	})
	checks.Register(checks.Info{
		Name: "check_run", Usage: "WORD...", Summary: "test", Lane: checks.Local,
		New: func() checks.Check { return new(runCheck) },
	})
	checks.Register(checks.Info{
		Name: "check_lbnl", Usage: "WORD...", Summary: "test", Lane: checks.Local,
		New: func() checks.Check { return new(probeCheck) },
		BadUsage: func(line string, err *checks.UsageError) checks.Finding {
			return checks.Finding{Code: "usage", Severity: checks.Fail, Message: line + ":  Invalid option:  -" + err.Word}
		},
	})
}

func init() {
	checks.Register(checks.Info{
		Name: "check_job_x", Summary: "test", Lane: checks.Local, New: func() checks.Check { return new(jobCheck) },
		Acts: func(c checks.Check) bool { return c.(*jobCheck).End },
	})
	checks.Register(checks.Info{Name: "check_job_y", Summary: "test", Lane: checks.NVML, New: func() checks.Check { return new(jobCheck) }})
}

// runCheck runs a command, and can set a shell variable.
type runCheck struct {
	Variable string   `opt:"O"`
	Words    []string `arg:"*"`
}

func (*runCheck) Run(context.Context, *checks.Env) []checks.Finding { return nil }
func (c *runCheck) Sets() string                                    { return c.Variable }
func (c *runCheck) Runs() string                                    { return c.Words[0] }

func lines(text string) (list []conf.Line) {
	for i, l := range strings.Split(strings.TrimSpace(text), "\n") {
		list = append(list, conf.Line{Pos: conf.Pos{File: "nhc.conf", Line: i + 1}, Target: "*", Check: strings.TrimSpace(l)})
	}
	return list
}

// show renders the steps of a plan, one a line.
func show(p *Plan) string {
	var b strings.Builder
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "%s", s.Kind)
		if s.Barrier && s.Kind == Native {
			b.WriteString(" alone")
		}
		for _, a := range s.Args {
			fmt.Fprintf(&b, " [%s]", a)
		}
		for _, v := range s.Sets {
			fmt.Fprintf(&b, " %s=%q", v.Name, v.Value)
			if v.Export {
				b.WriteString(" exported")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestBuild(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ conf, want string }{
		"words":                    {`check_x a 'b  c' "d $HOME" e\ f ''`, "native [a] [b c] [d /root] [e f] []\n"},
		"comment":                  {`check_x a # b`, "native [a]\n"},
		"no glob":                  {`check_x /etc/* ?`, "native [/etc/*] [?]\n"},
		"brace":                    {`check_x a{1,2}`, "native [a1] [a2]\n"},
		"splitting":                {"L='a b'\ncheck_x $L \"$L\" $NONE \"$NONE\"", "assign L=\"a b\"\nnative [a] [b] [a b] []\n"},
		"arithmetic":               {"N=6\ncheck_x $((N*7)) $((1<<4)) $((N>5?1:0))", "assign N=\"6\"\nnative [42] [16] [1]\n"},
		"numbers bash refuses":     {"check_x $((08))\nN=09\ncheck_x $((N+1)) $(($N))\nM=1+1\ncheck_x $((M*2))", "shell\nassign N=\"09\"\nshell\nassign M=\"1+1\"\nshell\n"},
		"division by nothing":      {"check_x $((1/0))", "shell\n"},
		"export":                   {"export A=1 B=$A\ncheck_x $B", "assign A=\"1\" exported B=\"1\" exported\nnative [1]\n"},
		"command substitution":     {"H=$(hostname)\ncheck_x $H\ncheck_x h", "shell\nshell\nnative [h]\n"},
		"set by the shell":         {"read X < /f\ncheck_x $X\ncheck_x y", "shell\nshell\nnative [y]\n"},
		"not set by the shell":     {"X=1\necho hello\ncheck_x $X", "assign X=\"1\"\nshell\nnative [1]\n"},
		"cd":                       {"check_x a\ncd /tmp\ncheck_x a", "native [a]\nshell\nshell\n"},
		"eval":                     {"eval \"$Y\"\ncheck_x a", "shell\nshell\n"},
		"a function of that name":  {"check_x() { :; }\ncheck_x a\ncheck_lbnl b", "shell\nshell\nnative [b]\n"},
		"not one command":          {"check_x a; true\ncheck_x a && true\n! check_x a\ncheck_x a >/dev/null\n(check_x a)\ncheck_x a &", strings.Repeat("shell\n", 6)},
		"variable for one command": {"A=1 check_x a", "shell\n"},
		"another command":          {"[ -d / ]\nnosuch a", "shell\nshell\n"},
		"shell's own":              {"check_x $$ \ncheck_x $RANDOM\ncheck_x ${X:-y}\ncheck_x \"$@\"", strings.Repeat("shell\n", 4)},
		"IFS":                      {"IFS=,\ncheck_x a,b", "shell\nshell\n"},
		"syntax error":             {"check_x )\ncheck_x a", "shell\nnative [a]\n"},
		"acts":                     {"check_x -e a\ncheck_x a", "native alone [-e] [a]\nnative [a]\n"},
		"array":                    {"A=( 1 2 )\ncheck_x $A", "shell\nshell\n"},
		"append":                   {"A=1\nA+=2\ncheck_x $A", "assign A=\"1\"\nshell\nshell\n"},
		"empty value":              {"E=\ncheck_x \"[$E]\"", "assign E=\"\"\nnative [[]]\n"},
		"only a comment":           {"# nothing", "assign\n"},
		"declared":                 {"readonly R=1\nR=2\nexport S=3", "shell\nshell\nshell\n"},
		"a variable to set":        {"check_run -O V a\ncheck_run a", "shell\nnative [a]\n"},
		"a function to run":        {"f() { :; }\ncheck_run f\ncheck_run g", "shell\nshell\nnative [g]\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Build(lines(tc.conf), Options{Vars: map[string]string{"HOME": "/root"}})
			if diff := cmp.Diff(tc.want, show(p)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A native check would get no word for an array of the sysconfig file: bash expands it.
func TestArrayOfSettings(t *testing.T) {
	t.Parallel()
	p := Build(lines("check_x $DIRS\ncheck_x $DIR"), Options{Vars: map[string]string{"DIR": "/a"}, Arrays: map[string][]string{"DIRS": {"/b", "/c"}}})
	if diff := cmp.Diff("shell\nnative [/a]\n", show(p)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// With -f, an assignment that does not look like one is lost with its process.
func TestForkedAssignment(t *testing.T) {
	t.Parallel()
	inPlace := func(line string) bool { return line != "A=" }
	for forked, want := range map[string]string{"0": "assign A=\"\"\nassign A=\"1\"\n", "1": "shell\nassign A=\"1\"\n"} {
		p := Build(lines("A=\nA=1"), Options{Vars: map[string]string{"NHC_CHECK_FORKED": forked}, InPlace: inPlace})
		if diff := cmp.Diff(want, show(p)); diff != "" {
			t.Errorf("NHC_CHECK_FORKED=%s (-want +got):\n%s", forked, diff)
		}
	}
}

// The planner expands words exactly as bash does.
func TestExpandAgainstBash(t *testing.T) {
	t.Parallel()
	bash := need.Program(t, "bash")
	words := []string{
		`a`, `'a b'`, `"a  b"`, `a\ b`, `\\`, `"\$x\"\\\a"`, `'it'"'"'s'`, `""`, `''x`, `$V`, `"$V"`, `x$V"y $V"z`, `$E`, `"$E"`, `${V}`,
		`$((N+1))`, `$((N*N-1))`, `"$((N%4))"`, `$((0x10+010))`, `~`, `~/x`, `a~`, `/a/*`, `[ab]`, `{a,b}c`, `a{1..3}`, `{}`, `$N$N`, `"` + "tab\there" + `"`,
		`$'plain'`, `a=b`, `-f`, `--`, `100%`, `'/(^|,)rw($|,)/'`, `'!/bad/'`, `"a'b"`, `'a"b'`, `a#b`,
	}
	var script, conf strings.Builder
	script.WriteString("set -f; HOME=/root V='p  q' E= N=5\n")
	for _, w := range words {
		fmt.Fprintf(&script, "CHECK=%s; f() { printf '[%%s]' \"$@\"; echo; }; eval \"f 0 $(sed 's/[[:blank:]]\\+/ /g' <<<\"$CHECK\")\"\n", "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
		conf.WriteString("check_x 0 " + w + "\n")
	}
	out, err := exec.Command(bash, "--norc", "-c", script.String()).Output()
	if err != nil {
		t.Fatal(err)
	}
	p := Build(lines(conf.String()), Options{Vars: map[string]string{"HOME": "/root", "V": "p  q", "E": "", "N": "5"}})
	for i, want := range strings.Split(strings.TrimSuffix(string(out), "\n"), "\n") {
		s := p.Steps[i]
		if s.Kind != Native {
			t.Errorf("%s: %s, want native (%s)", words[i], s.Kind, s.Why)
			continue
		}
		got := ""
		for _, a := range s.Args {
			got += "[" + a + "]"
		}
		if got != want {
			t.Errorf("%s: got %s, bash has %s", words[i], got, want)
		}
	}
}

// Without extglob a command !(...) is a negated one, and a pattern is an error. A site that bash has read can
// have switched it on.
func TestExtglob(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		line             string
		sourced, garbled bool
		calls            string
	}{
		{line: "!(nosuch a)", calls: "[nosuch]"},
		{line: "nosuch +(a)", garbled: true, calls: "[]"},
		{line: "nosuch +(a)", sourced: true, calls: "[nosuch]"},
		{line: "[[ a == !(b) ]] && nosuch", calls: "[nosuch]"},
	} {
		s := Build(lines(tt.line), Options{Sourced: tt.sourced}).Steps[0]
		if s.Kind != ShellLine || s.Garbled != tt.garbled || fmt.Sprint(s.Calls) != tt.calls {
			t.Errorf("%s: %s, garbled %v, calls %v", tt.line, s.Kind, s.Garbled, s.Calls)
		}
	}
}

// The planner assigns exactly what bash assigns, or leaves the line to bash.
func TestAssignAgainstBash(t *testing.T) {
	t.Parallel()
	bash := need.Program(t, "bash")
	parts := []string{
		`a`, `$V`, `"$V"`, `${V}`, `'x  y'`, `"a\b"`, `"\*"`, `\ `, `\.`, `\\`, `~`, `:~`, `~root`, `:~/x`, `/y`, `{a,b}`, `{1..3}`, `{`, `*`, `[a]`, `""`, `$((N+1))`,
		`$'hi'`, `$`, `%`, `#x`, `=`, `"~"`, `é`,
	}
	var texts []string
	for _, one := range parts {
		for _, two := range append([]string{""}, parts...) {
			texts = append(texts, "W="+one+two, "export W="+one+two, "U="+one+" W=/"+two)
		}
	}
	var script strings.Builder
	script.WriteString("set -f; HOME=/root V='p  q' N=5\n")
	for _, text := range texts {
		fmt.Fprintf(&script, "W=; CHECK='%s'; eval $CHECK 2>/dev/null; printf '%%s\\n' \"$W\"\n", strings.ReplaceAll(text, "'", `'\''`))
	}
	cmd := exec.Command(bash, "--norc")
	cmd.Stdin = strings.NewReader(script.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	wants, assigned := strings.Split(string(out), "\n"), 0
	for i, text := range texts {
		s := Build(lines(text), Options{Vars: map[string]string{"HOME": "/root", "V": "p  q", "N": "5"}}).Steps[0]
		if s.Kind != Assign {
			continue
		}
		assigned++
		if got := s.Sets[len(s.Sets)-1].Value; got != wants[i] {
			t.Errorf("%s: %q, bash has %q", text, got, wants[i])
		}
	}
	if assigned < len(texts)/3 {
		t.Errorf("%d of %d lines need no bash", assigned, len(texts))
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	p := Build(lines("check_x -z\ncheck_lbnl -z\ncheck_x -e ok"), Options{})
	if f := p.Steps[0].Usage; f == nil || f.Severity != checks.Unknown ||
		f.Message != "nhc.conf:1: check_x: invalid option -z, want one of -e; usage: check_x [-e] WORD..." {
		t.Errorf("our own check: %+v, want Unknown with position, word and usage", f)
	}
	if f := p.Steps[1].Usage; f == nil || f.Severity != checks.Fail || f.Message != "check_lbnl -z:  Invalid option:  -z" {
		t.Errorf("a check of LBNL's: %+v, want LBNL's verdict", f)
	}
	if p.Steps[2].Usage != nil {
		t.Errorf("good words: %+v", p.Steps[2].Usage)
	}
	if n := len(p.Problems.WrappedErrors()); n != 1 {
		t.Errorf("%d problems, want the one that LBNL NHC has no verdict for", n)
	}
}

func TestBuildTables(t *testing.T) {
	t.Parallel()
	entries := []conf.Entry{
		{Pos: conf.Pos{File: "t.toml", Line: 1}, Name: "check_lbnl", Params: map[string]any{"words": []any{"a", "b"}}},
		{Pos: conf.Pos{File: "t.toml", Line: 5}, Name: "check_lbnl", Params: map[string]any{"wrods": "a"}},
		{Pos: conf.Pos{File: "t.toml", Line: 9}, Name: "check_nosuch"},
	}
	p := BuildTables(entries, Options{})
	if p.Steps[0].Usage != nil {
		t.Errorf("good table: %+v", p.Steps[0].Usage)
	}
	want := "t.toml:5: check_lbnl: unknown key \"wrods\", want words; usage: check_lbnl WORD..."
	if f := p.Steps[1].Usage; f == nil || f.Severity != checks.Unknown || f.Message != want {
		t.Errorf("unknown key: got %+v, want Unknown %q", f, want)
	}
	if f := p.Steps[2].Usage; f == nil || !strings.HasPrefix(f.Message, "t.toml:9: check_nosuch: no check has this name") {
		t.Errorf("unknown check: %+v", f)
	}
}

// waiter is a check that can wait for a command.
type waiter bool

func (waiter) Run(context.Context, *checks.Env) []checks.Finding { return nil }
func (w waiter) WaitsForCommand() bool                           { return bool(w) }

func TestStepTimeout(t *testing.T) {
	t.Parallel()
	local := checks.Info{Lane: checks.Local}
	for run, want := range map[time.Duration]time.Duration{
		0: 10 * time.Second, 30 * time.Second: 10 * time.Second, 5 * time.Second: 2500 * time.Millisecond, 300 * time.Second: 10 * time.Second,
	} {
		if got := StepTimeout(local, nil, run); got != want {
			t.Errorf("TIMEOUT %s: got %s, want %s", run, got, want)
		}
	}
	if got := StepTimeout(checks.Info{Lane: checks.Cmd}, nil, time.Minute); got != 0 {
		t.Errorf("a command: got %s, want none but its own", got)
	}
	if got := StepTimeout(local, waiter(true), time.Minute); got != time.Minute {
		t.Errorf("one that waits for its action: got %s, want the whole run", got)
	}
	if wait, look := StepTimeout(local, waiter(true), 0), StepTimeout(local, waiter(false), time.Minute); wait != 0 || look != 10*time.Second {
		t.Errorf("without TIMEOUT: got %s, want no limit; one that only looks: %s, want 10 s", wait, look)
	}
	for run, want := range map[time.Duration]time.Duration{0: 25 * time.Second, 30 * time.Second: 25 * time.Second, 6 * time.Second: 5 * time.Second} {
		if got := StepTimeout(checks.Info{Lane: checks.NVML}, nil, run); got != want {
			t.Errorf("NVML in a run of %v: %v, want %v", run, got, want)
		}
	}
	for run, want := range map[time.Duration]time.Duration{0: 10 * time.Second, 30 * time.Second: 20 * time.Second} {
		if got := StepTimeout(checks.Info{Lane: checks.Local, Waits: true}, nil, run); got != want {
			t.Errorf("one that waits in a run of %v: %v, want %v", run, got, want)
		}
	}
	if got := StepTimeout(checks.Info{Lane: checks.NVML, Timeout: 3 * time.Second}, nil, time.Minute); got != 3*time.Second {
		t.Errorf("its own: got %s", got)
	}
}

// jobCheck looks for remains of a job, in the lane of a vendor's library.
type jobCheck struct {
	End bool `opt:"e" toml:"end"`
}

func (*jobCheck) Run(context.Context, *checks.Env) []checks.Finding { return nil }

// The epilog looks for the remains of a job. It removes them only if the site asks for it, by
// an option of the line or for all lines.
func TestChecksOfTheJob(t *testing.T) {
	t.Parallel()
	end := &conf.Config{Roles: map[string]conf.Role{conf.Epilog: {End: true}}}
	for _, c := range []struct {
		line, context, noGPUs string
		policies              *conf.Config
		barrier               bool
		skipped               string
	}{
		{line: "check_job_x", context: conf.Epilog},
		{line: "check_job_x -e", context: conf.Epilog, barrier: true},
		{line: "check_job_x", context: conf.Epilog, policies: end, barrier: true},
		{line: "check_job_y", context: conf.Epilog, policies: end},
		{line: "check_job_x", context: conf.HealthCheck, policies: end},
		{line: "check_job_x", context: conf.Prolog, skipped: "the job has not started yet"},
		{line: "check_job_x", context: conf.Epilog, noGPUs: "none", skipped: ""},
		{line: "check_job_y", context: conf.Epilog, noGPUs: "the job has no GPU", skipped: "the job has no GPU"},
		{line: "check_job_x", context: conf.Epilog, policies: &conf.Config{Policies: map[string]conf.Policy{"job": {Contexts: []string{}}}}, skipped: "its contexts are none"},
		{line: "check_x -e", context: conf.Epilog, skipped: "it runs commands or changes something"},
	} {
		p := Build(lines(c.line), Options{Context: c.context, NoGPUs: c.noGPUs, Policies: c.policies})
		var got []string
		for _, s := range p.Steps {
			got = append(got, fmt.Sprintf("%s barrier %v", s.Text, s.Barrier))
		}
		for _, s := range p.Skipped {
			got = append(got, s.Because)
		}
		want := []string{fmt.Sprintf("%s barrier %v", c.line, c.barrier)}
		if c.skipped != "" {
			want = []string{c.skipped}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", c, diff)
		}
	}
}

// A link that flaps drains no node, whichever event has woken the run: two checks of LBNL NHC have no strikes.
func TestChecksOfLinks(t *testing.T) {
	t.Parallel()
	for _, kind := range []monitor.Kind{monitor.Lost, "memory", "cpu"} {
		o := Options{Context: conf.Monitor, Events: []monitor.Kind{kind}}
		p := Build(lines("check_hw_ib 400\ncheck_hw_eth eth0\ncheck_hw_swap_free 1"), o)
		if len(p.Steps) != 1 || p.Steps[0].Name != "check_hw_swap_free" || len(p.Skipped) != 2 || p.Skipped[0].Because != "a link that flaps must not drain the node" {
			t.Errorf("%s: %+v, skipped %+v", kind, p.Steps, p.Skipped)
		}
		o.Policies = &conf.Config{Policies: map[string]conf.Policy{"check_hw_ib": {Contexts: []string{conf.Monitor}}}}
		if p = Build(lines("check_hw_ib 400"), o); len(p.Steps) != 1 {
			t.Errorf("%s, the site wants it: skipped %+v", kind, p.Skipped)
		}
	}
}

// FuzzBuild: planning any line terminates and loses nothing.
func FuzzBuild(f *testing.F) {
	for _, s := range []string{"check_x $((1+2))", "A=1", "check_x \"$A\" '", "f() { :; }", "check_x ${A[1]}", "\x00", "a\nb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		p := Build([]conf.Line{{Check: line}, {Check: "check_x $A"}}, Options{})
		if len(p.Steps) != 2 || p.Steps[0].Text != line {
			t.Errorf("%q became %+v", line, p.Steps)
		}
	})
}
