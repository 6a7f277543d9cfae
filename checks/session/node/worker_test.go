package node_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sessiontest"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

func TestUseManager(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, command, set, rm string
		marks, over            bool
	}{
		{name: "found", command: "scontrol", rm: "slurm", marks: true},
		{name: "another one", command: "pbsnodes", rm: "pbs", marks: true},
		{name: "none", command: "ls"},
		{name: "named", set: "pbs", rm: "pbs", marks: true},
		{name: "the load sensor of SGE", command: "qselect", rm: "sge", marks: true, over: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := sessiontest.New(t, slurm.HealthCheck)
			n.Script(t, "empty/"+tt.command, "")
			n.Set.Vars["PATH"], n.Set.Vars["NHC_RM"] = n.Dir+"/empty", tt.set
			find := n.ManagerRequest()
			o := n.Pool.Call(n.Ctx, checks.Local, find, time.Minute)
			if tt.set != "" {
				find, o = nil, run.Outcome{}
			}
			exit, over := n.UseManager(find, o)
			if got := n.Set.Get("NHC_RM"); got != tt.rm || over != tt.over || (exit == 2) != tt.over || n.Set.Marks() != tt.marks {
				t.Errorf("NHC_RM=%s, marks %v, exit %d, over %v", got, n.Set.Marks(), exit, over)
			}
			if (n.Err.String() != "") != tt.over {
				t.Errorf("printed %q", n.Err)
			}
		})
	}
	n := sessiontest.New(t, slurm.HealthCheck, "NHC_RM=")
	if n.UseManager(n.ManagerRequest(), run.Outcome{}); !strings.Contains(n.Err.String(), "find the resource manager: interrupted") || n.Set.Marks() {
		t.Errorf("without an answer: marks %v, %q", n.Set.Marks(), n.Err)
	}
}

// Each error of Slurm is reported in its own way.
func TestCarryOut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		scontrol string
		state    string
		observes bool
		verdict  slurm.Verdict
		done     bool
		out, err string
	}{
		{name: "drained", verdict: slurm.Verdict{Message: "bad"}, done: true, out: "nhc-gpu:  node node1 drained: NHC: bad (before: in service)\n"},
		{name: "would drain", observes: true, verdict: slurm.Verdict{Message: "bad"}, done: true, out: "nhc-gpu:  would drain node node1: NHC: bad (MODE=observe: nothing is sent)\n"},
		{name: "in service", verdict: slurm.Verdict{Healthy: true}, done: true},
		{name: "slurmctld does not answer", scontrol: "echo 'Unable to contact slurm controller' >&2; exit 1", verdict: slurm.Verdict{Message: "bad"}, err: "Unable to contact slurm controller"},
		{name: "an unknown state", scontrol: "exit 1", state: "", verdict: slurm.Verdict{Message: "bad"}, err: "drain node node1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := sessiontest.New(t, slurm.HealthCheck)
			if tt.observes {
				n.Set.Put("MODE", "observe", true)
			}
			if tt.scontrol != "" {
				n.Script(t, "bin/scontrol", tt.scontrol)
			}
			if done := n.CarryOut(tt.verdict); done != tt.done || n.Out.String() != tt.out || !strings.Contains(n.Err.String(), tt.err) || (n.Err.String() != "") != (tt.err != "") {
				t.Errorf("done %v, want %v; %q and %q, want %q and %q", done, tt.done, n.Out, n.Err, tt.out, tt.err)
			}
			if n.Did == nil || (n.Did.Error != "") != (tt.err != "") {
				t.Errorf("in the event: %+v", n.Did)
			}
		})
	}
}

func TestAskSlurm(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, conf string
		bad        error
		want       string // the row
	}{
		{name: "a node with GPUs", conf: "NodeName=node1 Gres=gpu:8\n", want: "8 GPUs ("},
		{name: "another node", conf: "NodeName=node9 Gres=gpu:8\n", want: "unknown: slurm.conf has no node node1"},
		{name: "no file", want: "unknown: "},
		{name: "the node has no name", conf: "NodeName=node1 Gres=gpu:8\n", bad: errors.New("no name")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := sessiontest.New(t, slurm.HealthCheck)
			n.Bad = tt.bad
			n.Set.Put("SLURM_CONF", n.Dir+"/slurm.conf", true)
			if tt.conf != "" {
				n.Write(t, "slurm.conf", tt.conf)
			}
			n.AskSlurm()
			rows := n.SlurmRows()
			if tt.want == "" {
				if rows != nil {
					t.Errorf("%+v, want no row", rows)
				}
				return
			}
			if len(rows) != 1 || !strings.HasPrefix(rows[0].Message, tt.want) {
				t.Errorf("%+v, want %s", rows, tt.want)
			}
			n.Write(t, "slurm.conf", "NodeName=node1 Gres=gpu:4\n")
			n.AskSlurm()
			if diff := gocmp.Diff(rows, n.SlurmRows()); diff != "" {
				t.Errorf("the file is read twice (-want +got)\n%s", diff)
			}
		})
	}
}

// The checks get the number of GPUs that a line wants.
func TestPrepareChecks(t *testing.T) {
	t.Parallel()
	step := func(name string, args ...string) plan.Step {
		return plan.Step{Kind: plan.Native, Name: name, Args: args}
	}
	for _, tt := range []struct {
		name  string
		steps []plan.Step
		want  int
	}{
		{"no line", nil, 0},
		{"a number", []plan.Step{step("check_gpu_count", "8")}, 8},
		{"the larger of two", []plan.Step{step("check_gpu_count", "8"), step("check_gpu_count", "4")}, 8},
		{"a wrong line", []plan.Step{step("check_gpu_count", "x")}, 0},
		{"a table", []plan.Step{{Kind: plan.Native, Name: "check_gpu_count", Table: map[string]any{"want": int64(4)}}}, 4},
		{"a line of bash", []plan.Step{{Kind: plan.ShellLine, Name: "check_gpu_count", Args: []string{"8"}}}, 0},
	} {
		n := sessiontest.New(t, slurm.HealthCheck)
		if n.PrepareChecks(&plan.Plan{Steps: tt.steps}); n.Set.WantedGPUs != tt.want || n.Err.String() != "" {
			t.Errorf("%s: %d GPUs, want %d; %s", tt.name, n.Set.WantedGPUs, tt.want, n.Err)
		}
	}
}

// A report shows the platform and the devices of the node.
func TestRows(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.Manual)
	if err := fakenvml.Write(n.Dir+"/root", fakenvml.Files(fakenvml.H100, 8)); err != nil {
		t.Fatal(err)
	}
	n.Set.Put("HOSTROOT", n.Dir+"/root", false)
	rows := n.PlatformRows()
	if len(rows) != 1 || rows[0].Severity != checks.OK || !strings.Contains(rows[0].Message, "HGX H100") {
		t.Errorf("platform %+v", rows)
	}
	n.Pool.SetVars(n.Set.WorkerVars())
	if rows = n.Facts(checks.Local); len(rows) < 3 {
		t.Errorf("facts %+v", rows)
	}
	var lanes []string
	for _, r := range n.Facts("nonsense", checks.NVML) {
		lanes = append(lanes, r.Name)
	}
	if len(lanes) < 2 {
		t.Errorf("rows of %v", lanes)
	}
	if _, err := n.Ask("nonsense", nil); err == nil {
		t.Error("a question that no worker knows has an answer")
	}
	n.Pool.Close()
	stopped, cancel := n.Acting()
	cancel()
	n.Ctx = stopped
	if rows = n.PlatformRows(); len(rows) != 1 || rows[0].Severity != checks.Unknown {
		t.Errorf("platform of a run that was stopped: %+v", rows)
	}
	if rows = n.Facts(checks.Local); len(rows) != 1 || rows[0].Severity != checks.Unknown || rows[0].Name != "local" {
		t.Errorf("facts of a run that was stopped: %+v", rows)
	}
	if _, err := node.GPUHolders(n.Node); err == nil || !strings.HasPrefix(err.Error(), "list the processes on the GPUs: ") {
		t.Errorf("processes of a run that was stopped: %v", err)
	}
}

// Only one health check of slurmd runs at a time, until it lets the next one begin.
func TestOpenState(t *testing.T) {
	t.Parallel()
	need.Root(t, "only root's runs have a stored state")
	first := sessiontest.New(t, slurm.HealthCheck)
	name := "test-" + filepath.Base(filepath.Dir(first.Dir))
	t.Cleanup(func() { os.RemoveAll(filepath.Join(node.StateRoot, name)) })
	open := func(n *sessiontest.Node, role slurm.Role, lock string) error {
		n.Name, n.Role = name, role
		return n.OpenState(lock)
	}
	if err := open(first, slurm.HealthCheck, node.RunLock); err != nil {
		t.Fatal(err)
	}
	parent, err := process.ReadStat(os.Getppid()) // stands for another health check
	if err != nil {
		t.Fatal(err)
	}
	lock := filepath.Join(node.StateRoot, name, node.RunLock)
	if err := os.WriteFile(lock, fmt.Appendf(nil, wire.LockLine, os.Getppid(), time.Now().Unix(), parent.Start), 0o600); err != nil {
		t.Fatal(err)
	}
	second := sessiontest.New(t, slurm.HealthCheck)
	if err := open(second, slurm.HealthCheck, node.RunLock); !errors.Is(err, slurm.ErrBusy) {
		t.Errorf("a second health check: %v, want %v", err, slurm.ErrBusy)
	}
	prolog := sessiontest.New(t, slurm.Prolog)
	if err := open(prolog, slurm.Prolog, ""); err != nil {
		t.Errorf("a prolog beside a health check: %v", err)
	}
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	if err := open(first, slurm.HealthCheck, node.RunLock); err != nil {
		t.Fatal(err)
	}
	if first.LetNextRun(); !released(lock) {
		t.Error("a run that continues in the background keeps the lock")
	}
	third := sessiontest.New(t, slurm.HealthCheck)
	if err := open(third, slurm.HealthCheck, node.RunLock); err != nil {
		t.Errorf("after the first: %v", err)
	}

	// A drain that cannot be delivered is delivered by a later run, and only once.
	third.Script(t, "bin/scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
	if third.CarryOut(slurm.Verdict{Message: "bad"}) || !strings.Contains(third.Err.String(), "the next run will retry") {
		t.Errorf("not delivered: %q", third.Err)
	}
	observing := sessiontest.New(t, slurm.HealthCheck, "MODE=observe")
	if err := open(observing, slurm.HealthCheck, ""); err != nil {
		t.Fatal(err)
	}
	if observing.DeliverPending(); observing.Read("scontrol") != "" {
		t.Errorf("MODE=observe sends %q", observing.Read("scontrol"))
	}
	later := sessiontest.New(t, slurm.HealthCheck)
	if err := open(later, slurm.HealthCheck, ""); err != nil {
		t.Fatal(err)
	}
	if later.DeliverPending(); later.Did == nil || !later.Did.Sent || later.Did.Owner != event.OwnerNHC || later.Out.String() != "nhc-gpu:  node "+name+" drained: NHC: bad (before: in service)\n" {
		t.Errorf("a drain without a trace: %+v, %q", later.Did, later.Out)
	}
	later.Did = nil
	if later.DeliverPending(); later.Did != nil {
		t.Errorf("nothing is pending: %+v", later.Did)
	}
	if got, want := later.Read("scontrol"), "update State=DRAIN NodeName="+name+" Reason=NHC: bad\n"; got != want {
		t.Errorf("sent %q, want %q; %s", got, want, later.Err)
	}

	// A drain that fails is reported beside a broken memory, and by a run without a verdict.
	later.Write(t, "slurm", "idle none\n")
	later.Script(t, "bin/scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
	if err := os.WriteFile(filepath.Join(node.StateRoot, name, "slurm.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if later.CarryOut(slurm.Verdict{Message: "worse"}) || !later.Owes || !strings.Contains(later.Err.String(), "warning: read memory: ") || !strings.Contains(later.Err.String(), "cannot drain node") {
		t.Errorf("owes %v, %q", later.Owes, later.Err)
	}
	later.Owes, later.Did = false, nil
	if later.DeliverPending(); !later.Owes || later.Did == nil || later.Did.Error == "" {
		t.Errorf("without a verdict: owes %v, %+v", later.Owes, later.Did)
	}
}

// A run whose state directory cannot be used does not know what drained the node: it resumes nothing, and drains.
func TestUnusableState(t *testing.T) {
	t.Parallel()
	need.Root(t, "only root's runs have a stored state")
	n := sessiontest.New(t, slurm.HealthCheck)
	n.Name = "test-unusable-" + filepath.Base(filepath.Dir(n.Dir))
	dir := filepath.Join(node.StateRoot, n.Name)
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o775)); err != nil {
		t.Fatal(err)
	}
	if err := n.OpenState(""); err != nil || !strings.Contains(n.Err.String(), "mode 0775") {
		t.Errorf("%v, %q, want a warning", err, n.Err)
	}
	n.Write(t, "slurm", "drain NHC: night\n")
	if n.CarryOut(slurm.Verdict{Healthy: true}); n.Read("scontrol") != "" || !strings.Contains(n.Out.String(), "is not resumed: what drained it is unknown: its memory cannot be read: ") {
		t.Errorf("sent %q, %q, want the node kept", n.Read("scontrol"), n.Out)
	}
	n.Write(t, "slurm", "idle none\n")
	if n.CarryOut(slurm.Verdict{Message: "bad"}); n.Read("scontrol") != "update State=DRAIN NodeName="+n.Name+" Reason=NHC: bad\n" {
		t.Errorf("sent %q, want a drain; %s", n.Read("scontrol"), n.Err)
	}
	if strings.Count(n.Err.String(), "warning") != 1 {
		t.Errorf("%q, want one warning", n.Err)
	}
}

// If there is no state directory and none can be made, no run has stored anything: the run acts without a memory.
func TestNoState(t *testing.T) {
	t.Parallel()
	need.Root(t, "only root's runs have a stored state")
	n := sessiontest.New(t, slurm.HealthCheck)
	n.Name = "../../proc/nhc-gpu-test" // no user can make a directory there
	if err := n.OpenState(""); err != nil || !strings.Contains(n.Err.String(), "it does not exist: this run does not know the earlier ones\n") {
		t.Errorf("%v, %q, want a warning", err, n.Err)
	}
	n.Write(t, "slurm", "drain NHC: night\n")
	if n.CarryOut(slurm.Verdict{Healthy: true}); !strings.Contains(n.Read("scontrol"), "State=RESUME") {
		t.Errorf("sent %q, want the node resumed; %s", n.Read("scontrol"), n.Out)
	}
}

// A hold that neither the log nor syslog has taken is reported by the next run, also by one without a verdict.
func TestReportHold(t *testing.T) {
	t.Parallel()
	need.Root(t, "only root's runs have a stored state")
	if _, err := os.Stat("/dev/log"); err == nil {
		t.Skip("this machine has a syslog, which takes the report")
	}
	var name string
	run := func(logfile string) *sessiontest.Node {
		t.Helper()
		n := sessiontest.New(t, slurm.HealthCheck)
		n.Guard = conf.DefaultGuard()
		if name == "" {
			name = "test-hold-" + filepath.Base(filepath.Dir(n.Dir))
			t.Cleanup(func() { os.RemoveAll(filepath.Join(node.StateRoot, name)) })
		}
		n.Script(t, "bin/sinfo", `case "$*" in
*" -a "*) echo "main|idle|17|`+name+`,n[01-16]|none"; echo "main|drain|3|n[17-19]|NHC: bad" ;;
*) echo "idle none" ;;
esac`)
		if n.Name = name; n.OpenState("") != nil {
			t.Fatal("the state is in use")
		}
		if logfile != "" {
			n.Warm(t, "log")
			n.Set.Vars["LOGFILE"] = filepath.Join(n.Dir, logfile)
			if _, err := n.Log.Parse(n.Set); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	const held = "is held by guard: 3 of 20 nodes"
	bad := slurm.Verdict{Message: "bad"}
	n := run("none/log") // the log cannot be written
	if !n.CarryOut(bad) || n.Did == nil || !n.Did.Held {
		t.Fatalf("not held: %+v, %s", n.Did, n.Err)
	}
	n = run("") // LOGFILE is unknown
	if n.DeliverPending(); strings.Count(n.Out.String(), held) != 1 {
		t.Errorf("not reported: %q", n.Out)
	}
	if n = run("log"); !n.CarryOut(bad) || strings.Count(n.Read("log"), held) != 1 {
		t.Errorf("not logged: %q", n.Read("log"))
	}
	if n = run("log"); !n.CarryOut(bad) || n.Read("log") != "" {
		t.Errorf("logged again: %q", n.Read("log"))
	}
}

func released(lock string) bool {
	data, err := os.ReadFile(lock)
	return err == nil && len(bytes.TrimSpace(data)) == 0
}

// The name in slurm.conf is used if slurmd has not passed one.
func TestFindName(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	short, _, _ := strings.Cut(host, ".")
	for _, tt := range []struct {
		name, conf string
		unnamed    bool
		bad, want  string
	}{
		{name: "no file", want: "node1"},
		{name: "no node of this host", conf: "NodeName=other\n", unnamed: true, want: "node1"},
		{name: "two nodes of this host", conf: "NodeName=a,b NodeHostname=" + short + "," + short + "\n", bad: "slurm.conf has 2 nodes on host", want: "node1"},
	} {
		n := sessiontest.New(t, slurm.Manual)
		n.Named = false
		n.Set.Put("SLURM_CONF", n.Dir+"/slurm.conf", true)
		if tt.conf != "" {
			n.Write(t, "slurm.conf", tt.conf)
		}
		n.Bad = errors.New("no state") // so that this test leaves nothing in /run
		if err := n.OpenState(""); err != nil {
			t.Fatal(err)
		}
		if n.Name != tt.want || n.Unnamed != tt.unnamed || n.Bad != nil && !strings.Contains(n.Bad.Error(), cmp.Or(tt.bad, "no state")) {
			t.Errorf("%s: %q, unnamed %v, %v", tt.name, n.Name, n.Unnamed, n.Bad)
		}
	}
}

// LBNL NHC's helpers mark a node, and not with MODE=observe.
func TestMark(t *testing.T) {
	n := sessiontest.New(t, slurm.Manual)
	t.Setenv("PATH", n.Dir+"/bin:"+os.Getenv("PATH"))
	t.Setenv("SLURMD_NODENAME", "node1")
	t.Setenv("NHC_RM", "slurm")
	for _, tt := range []struct {
		mode, name string
		argv       []string
		said, sent string
	}{
		{"observe", "node-mark-offline", []string{"node-mark-offline", "node1", "bad"}, "is left as it is (MODE=observe)", ""},
		{"", "node-mark-offline", []string{"node-mark-offline", "node1", "bad disk"}, "", "update State=DRAIN NodeName=node1 Reason=NHC: bad disk\n"},
		{"", "node-mark-online", []string{"node-mark-online", "node1"}, "", "update State=RESUME NodeName=node1\n"},
	} {
		t.Setenv("MODE", tt.mode)
		out := new(sessiontest.Text)
		if status := node.Mark(out, tt.name, tt.argv); status != 0 || !strings.Contains(out.String(), tt.said) {
			t.Errorf("%s: status %d, %q", tt.name, status, out)
		}
		var sent string
		for line := range strings.Lines(n.Read("scontrol")) {
			if strings.HasPrefix(line, "update") {
				sent += line
			}
		}
		if sent != tt.sent {
			t.Errorf("%s: sent %q, want %q", tt.name, sent, tt.sent)
		}
		if err := os.Remove(n.Dir + "/scontrol"); err != nil && tt.sent != "" {
			t.Error(err)
		}
	}
}

// The helpers below HELPERDIR are looked for when one is to be called. Without one nhc-gpu marks the node.
func TestHelperDir(t *testing.T) {
	t.Parallel()
	for file, custom := range map[string]bool{"readme": false, "node-mark-online": true} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		n := sessiontest.New(t, slurm.HealthCheck, "HELPERDIR="+dir)
		if got := n.CustomHelper("OFFLINE_NODE"); got != custom || (n.Set.LostHelper == "") != custom {
			t.Errorf("HELPERDIR with %s: helper of the site %v, lost %q", file, got, n.Set.LostHelper)
		}
	}
}

// A helper that is this program marks no node of Slurm beside it. Other resource managers need it.
func TestHelperIsThisProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	offline, online := filepath.Join(dir, "node-mark-offline"), filepath.Join(dir, "node-mark-online")
	if err := os.Symlink(self, online); err != nil {
		t.Fatal(err)
	}
	if err := probetest.WriteProgram(offline, []byte("#!/bin/sh\n")); err != nil {
		t.Fatal(err)
	}
	for _, words := range [][]string{{"HELPERDIR=" + dir}, {"OFFLINE_NODE=" + offline, "ONLINE_NODE=" + online + " -v"}} {
		for rm, custom := range map[string]bool{"slurm": false, "pbs": true} {
			n := sessiontest.New(t, slurm.HealthCheck, append(words, "NHC_RM="+rm)...)
			if n.CustomHelper("ONLINE_NODE") != custom || !n.CustomHelper("OFFLINE_NODE") || n.Set.LostHelper != "" {
				t.Errorf("%q, %s: ONLINE_NODE is the site's own: %v, OFFLINE_NODE: %v, lost %q", words, rm, !custom, n.CustomHelper("OFFLINE_NODE"), n.Set.LostHelper)
			}
		}
	}
}

// While the memory directory does not answer, accepted faults are known by a copy, and none is added or ended.
func TestSilencesOfSilentMemory(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck)
	vars := n.Set.WorkerVars()
	vars.Spare = filepath.Join(n.Dir, "spare")
	n.Pool.SetVars(vars)
	n.Warm(t, node.AsideLane)
	change := func(codes ...string) error {
		return n.ChangeSilences(func([]checks.Silence) (list []checks.Silence, err error) {
			for _, c := range codes {
				list = append(list, checks.Silence{Code: c})
			}
			return list, nil
		})
	}
	known := func() (codes []string) {
		list, err := n.Silences()
		if err != nil {
			t.Error(err)
		}
		for i := range list {
			codes = append(codes, list[i].Code)
		}
		return codes
	}
	if err := change("nvme.wear"); err != nil {
		t.Fatal(err)
	}
	vars.Stuck = []string{"read " + n.Set.Past}
	n.Pool.SetVars(vars)
	if got := known(); !slices.Equal(got, []string{"nvme.wear"}) {
		t.Errorf("silent: %v", got)
	}
	if err := change(); !errors.Is(err, run.ErrSilent) {
		t.Errorf("ended: %v, want %v", err, run.ErrSilent)
	}
	vars.Stuck = nil
	n.Pool.SetVars(vars)
	if got := known(); !slices.Equal(got, []string{"nvme.wear"}) {
		t.Errorf("it answers: %v", got)
	}
}
