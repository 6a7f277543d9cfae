package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// text collects what a node prints.
type text struct{ strings.Builder }

func (*text) Until(time.Time) {}

// withVars returns a node with settings that has no worker.
func withVars(vars map[string]string) (n *Node, out, errs *text) {
	out, errs = new(text), new(text)
	n = &Node{Name: "node1", Set: &setting.Settings{Vars: vars, Export: map[string]bool{}}, Out: out, Errs: errs}
	n.Log = &sink.Log{Out: out, Err: errs}
	return n, out, errs
}

func TestNodeFromEnviron(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		role  slurm.Role
		env   map[string]string
		want  slurm.Role
		node  string // "": the host's
		named bool
	}{
		{"by hand", slurm.Manual, nil, slurm.Manual, "", false},
		{"slurmd's health check", slurm.Manual, map[string]string{"SLURMD_NODENAME": "node7"}, slurm.HealthCheck, "node7", true},
		{"a prolog by its environment", slurm.Manual, map[string]string{"SLURMD_NODENAME": "node7", "SLURM_JOB_ID": "1", "SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}, slurm.Prolog, "node7", true},
		{"a prolog by its command", slurm.Prolog, map[string]string{"SLURMD_NODENAME": "node7"}, slurm.Prolog, "node7", true},
		{"an epilog by hand", slurm.Epilog, nil, slurm.Epilog, "", false},
	} {
		n := nodeFromEnviron(func(name string) string { return tt.env[name] }, tt.role)
		if n.Role != tt.want || n.Named != tt.named || tt.node != "" && n.Name != tt.node || n.Bad != nil {
			t.Errorf("%s: %s %q, named %v, %v", tt.name, n.Role, n.Name, n.Named, n.Bad)
		}
	}
}

func TestKind(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]*Node{
		slurm.HealthCheck.String():                 {Role: slurm.HealthCheck},
		slurm.HealthCheck.String() + "-background": {Role: slurm.HealthCheck, Background: true},
		slurm.Prolog.String():                      {Role: slurm.Prolog},
	} {
		if got := n.Kind(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if (&Node{Role: slurm.Prolog}).HealthCheck() || !(&Node{Role: slurm.HealthCheck}).HealthCheck() {
		t.Error("only slurmd's health check is one")
	}
}

func TestManagers(t *testing.T) {
	t.Parallel()
	want := []string{
		"/var/spool/torque/", "/bin/scontrol", "/opt/slurm/scontrol", "/bin/pbsnodes", "/opt/slurm/pbsnodes", "/bin/qselect", "/opt/slurm/qselect",
		"/bin/badmin", "/opt/slurm/badmin", "/bin/sbatchd", "/opt/slurm/sbatchd",
	}
	if diff := cmp.Diff(want, managerPaths("/bin:relative::/opt/slurm")); diff != "" {
		t.Errorf("paths (-want +got)\n%s", diff)
	}
	for path, want := range map[string]string{
		"/var/spool/torque/": "pbs", "/opt/slurm/scontrol": "slurm", "/bin/pbsnodes": "pbs", "/bin/qselect": "sge", "/bin/badmin": "lsf", "/bin/sbatchd": "lsf",
		"/bin/ls": "", "/bin/myscontrol": "",
	} {
		if got := managerOf(path); got != want {
			t.Errorf("%s is of %q, want %q", path, got, want)
		}
	}
}

func TestActionOf(t *testing.T) {
	t.Parallel()
	drain := slurm.Decision{Action: slurm.Drain, Reason: "NHC: bad", Why: "in service"}
	for _, tt := range []struct {
		name     string
		out      slurm.Outcome
		err      error
		observes bool
		want     event.Action
	}{
		{name: "nothing is due", out: slurm.Outcome{Decision: slurm.Decision{Why: "in service"}}, want: event.Action{Action: "none", Why: "in service"}},
		{name: "drained", out: slurm.Outcome{Decision: drain, Reported: slurm.ReportedDrained}, want: event.Action{Action: "drain", Sent: true, Owner: event.OwnerNHC, Reason: "NHC: bad", Why: "in service"}},
		{name: "would drain", out: slurm.Outcome{Decision: drain, Reported: slurm.ReportedDrained}, observes: true, want: event.Action{Action: "drain", Reason: "NHC: bad", Why: "in service"}},
		{name: "drained by another", out: slurm.Outcome{Reported: slurm.ReportedLeftAlone}, want: event.Action{Action: "none", Owner: event.OwnerOther}},
		{name: "drained by another, observed", out: slurm.Outcome{Reported: slurm.ReportedLeftAlone}, observes: true, want: event.Action{Action: "none", Owner: event.OwnerOther}},
		{name: "not delivered", out: slurm.Outcome{Decision: drain}, err: errors.New("no answer"), want: event.Action{Action: "drain", Reason: "NHC: bad", Why: "in service", Error: "no answer"}},
	} {
		if diff := cmp.Diff(&tt.want, actionOf(tt.out, tt.err, tt.observes)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
}

func TestSlurmRows(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		asked bool
		doubt error
		gpus  *jobscan.SlurmGPUs
		want  []verdict.Row
	}{
		{name: "no check needs it"},
		{name: "no answer", asked: true, doubt: errors.New("no answer"), want: []verdict.Row{{Severity: checks.Skip, Message: "unknown: no answer"}}},
		{name: "another node", asked: true, gpus: &jobscan.SlurmGPUs{}, want: []verdict.Row{{Severity: checks.Skip, Message: "unknown: slurm.conf has no node node1"}}},
		{name: "not used", asked: true, gpus: &jobscan.SlurmGPUs{Pos: "slurm.conf:7", Why: "MIG"}, want: []verdict.Row{{Severity: checks.Skip, Message: "not used: MIG (slurm.conf:7)"}}},
		{name: "known", asked: true, gpus: &jobscan.SlurmGPUs{Pos: "slurm.conf:7", Count: 8}, want: []verdict.Row{{Severity: checks.OK, Message: "8 GPUs (slurm.conf:7)"}}},
	} {
		n, _, _ := withVars(nil)
		n.slurmAsked, n.slurmDoubt, n.Set.Slurm = tt.asked, tt.doubt, tt.gpus
		for i := range tt.want {
			tt.want[i].Name = "Slurm's Gres"
		}
		if diff := cmp.Diff(tt.want, n.SlurmRows()); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.name, diff)
		}
	}
}

// A warning is printed once, on a line of its own.
func TestWarn(t *testing.T) {
	t.Parallel()
	n, out, errs := withVars(nil)
	for _, text := range []string{"a", "b", "a"} {
		n.Warn(errors.New(text))
	}
	if want := "nhc-gpu: warning: a\nnhc-gpu: warning: b\n"; errs.String() != want || out.String() != "" {
		t.Errorf("%q and %q, want %q", errs, out, want)
	}
}

func TestDebug(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ debug, ts, want string }{
		{"0", "0", ""},
		{"1", "0", "DEBUG:  a 1\n"},
		{"1", "1", "[%d] - DEBUG:  a 1\n"},
	} {
		n, out, _ := withVars(map[string]string{"DEBUG": tt.debug, "TS": tt.ts})
		n.Debug("a %d", 1)
		want := tt.want
		if strings.Contains(want, "%d") {
			var at int64
			if _, err := fmt.Sscanf(out.String(), "[%d]", &at); err != nil || time.Since(time.Unix(at, 0)).Abs() > time.Hour {
				t.Errorf("stamped %q: %v", out, err)
			}
			want = fmt.Sprintf(want, at)
		}
		if out.String() != want {
			t.Errorf("DEBUG=%s TS=%s: %q, want %q", tt.debug, tt.ts, out, want)
		}
	}
}

// A name that Slurm does not have leaves the node without a name and without a memory.
func TestNameFromSettings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, set, host string
		named           bool
		role            slurm.Role
		bad             string
	}{
		{name: "not set"},
		{name: "the same", set: "node1"},
		{name: "slurmd's name takes precedence", set: "-x", named: true, role: slurm.HealthCheck},
		{name: "a person's name takes precedence", set: "-x", named: true, bad: `SLURMD_NODENAME is "-x": want letters`},
		{name: "a path", set: "../x", bad: `SLURMD_NODENAME is "../x"`},
		{name: "another host", host: "../x", bad: `HOSTNAME is "../x"`},
		{name: "slurmd's name and another host", host: "n02", named: true, role: slurm.HealthCheck},
	} {
		n, _, _ := withVars(map[string]string{"SLURMD_NODENAME": tt.set, "HOSTNAME": tt.host})
		n.Named, n.Role, n.Set.Past, n.Set.Spare = tt.named, tt.role, "/past", "/spare"
		n.NameFromSettings()
		if (n.Bad != nil) != (tt.bad != "") || n.Bad != nil && !strings.Contains(n.Bad.Error(), tt.bad) {
			t.Errorf("%s: %v, want %q", tt.name, n.Bad, tt.bad)
		}
		if (n.Set.Past == "") != (tt.bad != "") || n.Set.Past != "" != (n.Set.Spare != "") {
			t.Errorf("%s: memory in %q and %q", tt.name, n.Set.Past, n.Set.Spare)
		}
	}
}

// HOSTNAME names the node if the site has set it to another host.
func TestFindSetName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ node, host, real, source, name string }{
		{"", "n01", "n01", "", ""},
		{"", "n01", "n01.example.org", "", ""},
		{"", "n01.example.org", "n01", "", ""},
		{"", "n02", "n01", "HOSTNAME", "n02"},
		{"", "n02.example.org", "n01", "HOSTNAME", "n02.example.org"},
		{"n03", "n02", "n01", "SLURMD_NODENAME", "n03"},
	} {
		n, _, _ := withVars(map[string]string{"SLURMD_NODENAME": tt.node})
		n.host = tt.host
		if source, name := n.findSetName(tt.real); source != tt.source || name != tt.name {
			t.Errorf("%+v: %s %s", tt, source, name)
		}
	}
}

// A line that names another host does not change the node that is marked. A helper of the site gets that
// host.
func TestDoubtHost(t *testing.T) {
	t.Parallel()
	const own = "/h/node-mark-offline"
	for _, tt := range []struct {
		host, mark, helper string
		warns              bool
	}{
		{"n01", "1", own, false}, {"n01.example.org", "1", own, false}, {"node1", "1", own, false}, {"", "1", own, false},
		{"n02", "1", own, true}, {"n02", "0", own, false}, {"n02", "1", "/site/helper", false},
	} {
		n, _, errs := withVars(map[string]string{
			"HOSTNAME": tt.host, "SYSCONFIGDIR": "/etc/default", "NAME": "nhc", "NHC_RM": "slurm", "MARK_OFFLINE": tt.mark,
			"HELPERDIR": "/h", "OFFLINE_NODE": tt.helper,
		})
		n.host = "n01"
		n.DoubtHost()
		want := "HOSTNAME=" + tt.host + ", which a line or a script has set, does not name the node: it is node1; set SLURMD_NODENAME in /etc/default/nhc"
		if tt.warns != strings.Contains(errs.String(), want) || !tt.warns && errs.Len() > 0 {
			t.Errorf("%+v: %q", tt, errs)
		}
	}
}

func TestPastOf(t *testing.T) {
	t.Parallel()
	if dir, spare := PastOf("node1"); dir != "/var/lib/nhc-gpu/node1" || spare != "/run/nhc-gpu/node1/past" {
		t.Errorf("%q and %q", dir, spare)
	}
}

// A run without an end has no deadline for Slurm; another one has a moment after its end.
func TestActing(t *testing.T) {
	t.Parallel()
	n, _, _ := withVars(nil)
	ctx, cancel := n.Acting()
	if _, limited := ctx.Deadline(); limited {
		t.Error("a run without an end has a deadline")
	}
	cancel()
	n.Budget = session.Budget{Began: time.Now().Add(-time.Hour)}
	n.Budget.Give(time.Second)
	ctx, cancel = n.Acting()
	if end, _ := ctx.Deadline(); time.Until(end) > session.Grace || time.Until(end) < 0 {
		t.Errorf("after its end a run acts for %s", time.Until(end))
	}
	if cancel(); ctx.Err() == nil {
		t.Error("the context is not cancelled")
	}
}

func TestMemoryError(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, "<nil>"},
		{broken, "read memory: broken"},
		{fmt.Errorf("%w", run.ErrNoState), "no state directory"}, // reported before
	} {
		if got := fmt.Sprint(memoryError("read", tt.err)); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

// Only slurmd's health check waits for the guard, and leaves time for the calls to Slurm.
func TestLongestWait(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, tt := range []struct {
		role slurm.Role
		left time.Duration // of the budget; 0: no limit
		want time.Duration
	}{
		{slurm.HealthCheck, 30 * time.Second, 15 * time.Second}, {slurm.HealthCheck, 14 * time.Second, 0}, {slurm.HealthCheck, 0, 0},
		{slurm.Prolog, 30 * time.Second, 0}, {slurm.Epilog, 30 * time.Second, 0}, {slurm.Manual, 30 * time.Second, 0},
	} {
		n := &Node{Role: tt.role, Budget: session.Budget{Began: now}}
		n.Budget.Give(tt.left)
		if got := n.longestWait(now); got != tt.want {
			t.Errorf("%s with %s: %s, want %s", tt.role, tt.left, got, tt.want)
		}
	}
}
