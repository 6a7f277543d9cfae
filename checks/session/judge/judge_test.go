package judge

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/session/sessiontest"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// scenario is a run of the lines of nhc.conf on a node. DIR is the directory of the node.
type scenario struct {
	name    string
	words   string // settings
	toml    string // nhc.toml
	lines   string
	slurm   string // what sinfo prints, "idle none" if empty
	prepare func(*testing.T, *sessiontest.Node)
	own     bool      // the lines are those of nhc-prolog.conf or nhc-epilog.conf
	job     slurm.Job // of a prolog or an epilog; without an ID: job 7 with all GPUs
	want    string    // what the run prints, sends and returns
}

// newJudge returns the judge of a scenario that has its plan.
func newJudge(t *testing.T, role slurm.Role, s scenario) (*Judge, *sessiontest.Node) {
	t.Helper()
	n := sessiontest.New(t, role, strings.Fields(s.words)...)
	if s.slurm != "" {
		n.Write(t, "slurm", s.slurm+"\n")
	}
	if s.prepare != nil {
		s.prepare(t, n)
	}
	j, files := New(n.Node, "nhc-test", false, -1)
	t.Cleanup(j.bash.Close)
	if role.AroundJob() {
		j.job.Job = s.job
		if s.job.ID == "" {
			j.job.Job = slurm.Job{ID: "7", User: "alice", UID: 1000, Share: slurm.AllGPUs}
		}
	}
	files.Own = s.own
	var err error
	if files.Config, err = conf.ParseTOML("nhc.toml", []byte(s.toml)); err != nil {
		t.Fatal(err)
	}
	files.SetBudget()
	j.BeginJob()
	j.Start()
	if errs := files.UseLines(n.Dir+"/nhc.conf", []byte(strings.ReplaceAll(s.lines, "DIR", n.Dir))); len(errs) > 0 {
		t.Fatal(errs)
	}
	n.Set.Put("CONFFILE", n.Dir+"/nhc.conf", true)
	j.MakePlan()
	j.Prepare()
	return j, n
}

var variable = []struct {
	of   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\(\d+s\)`), "(Ns)"}, {regexp.MustCompile(`PID \d+`), "PID N"}, {regexp.MustCompile(`\[\d+\]:`), "[N]:"},
	{regexp.MustCompile(`(?m)^(\w+): \[\d+\] - `), "$1: [T] - "}, {regexp.MustCompile(`/proc/self/fd/\d+: (eval: )?line \d+`), "bash"}, {regexp.MustCompile("`"), "'"},
	{regexp.MustCompile(`, \d+ s: `), ", N s: "},
}

// transcript returns what a run has done.
func transcript(n *sessiontest.Node, exit string) string {
	var b strings.Builder
	add := func(title, text string) {
		for line := range strings.Lines(text) {
			b.WriteString(title + ": " + strings.TrimRight(line, "\n") + "\n")
		}
	}
	add("out", n.Out.String())
	add("err", n.Err.String())
	add("log", n.Read("log"))
	add("syslog", n.Read("syslog"))
	add("scontrol", n.Read("scontrol"))
	add("helper", n.Read("helper"))
	add("result", n.Read("result"))
	add("exit", exit)
	text := strings.ReplaceAll(b.String(), n.Dir, "DIR")
	for _, v := range variable {
		text = v.of.ReplaceAllString(text, v.with)
	}
	return text
}

// run makes the run of a scenario and compares what it does.
func (s scenario) run(t *testing.T, role slurm.Role) {
	t.Helper()
	j, n := newJudge(t, role, s)
	j.RunPlan(nil)
	exit := ""
	if role.AroundJob() {
		exit = fmt.Sprint(j.FinishJob())
	} else {
		status, doubt := j.Finish()
		j.LeaveResult(status, "")
		if exit = fmt.Sprint(status); doubt != nil {
			exit += " unknown: " + *doubt
		}
	}
	if diff := cmp.Diff(strings.TrimLeft(s.want, "\n"), transcript(n, exit)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
		if os.Getenv("PASTE") != "" {
			fmt.Printf("@@ %s\n%s@@\n", s.name, transcript(n, exit))
		}
	}
}

func runAll(t *testing.T, role slurm.Role, list []scenario) {
	t.Helper()
	t.Parallel()
	for _, s := range list {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.run(t, role)
		})
	}
}

// signalled returns a preparation of a node on which a signal has come.
func signalled(sig unix.Signal) func(*testing.T, *sessiontest.Node) {
	return func(_ *testing.T, n *sessiontest.Node) { *n.Sig = sessiontest.Signal(sig) }
}

// withHelper gives the node a helper of the site.
func withHelper(t *testing.T, n *sessiontest.Node) {
	t.Helper()
	n.Script(t, "bin/helper", `printf '%s\n' "$*" >>"${0%/bin/*}/helper"`)
	n.Set.Put("OFFLINE_NODE", n.Dir+"/bin/helper", true)
	n.Set.Put("ONLINE_NODE", n.Dir+"/bin/helper", true)
}

const badFile = "* || check_file_test -f DIR/none\n"

func TestHealthCheck(t *testing.T) {
	runAll(t, slurm.HealthCheck, []scenario{
		{name: "all pass", words: "VERBOSE=1", lines: "* || check_file_test -d DIR\n* || true\n", want: `
out: Node Health Check starting.
out: Running check:  "check_file_test -d DIR"
out: Running check:  "true"
out: Node Health Check completed successfully (Ns).
exit: 0
`},
		{name: "the run stops at the first failure", lines: badFile + "* || touch DIR/log\n", want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "a line of bash fails", lines: "* || check_mine\n* || false\n", want: `
out: ERROR:  nhc-test:  Health check unknown:  Check check_mine returned 127:  there is no command "check_mine"
out: Node Health Check failed.  Check false returned 1
out: ERROR:  nhc-test:  Health check failed:  Check false returned 1
out: nhc-gpu:  node node1 drained: NHC: Check false returned 1 (before: in service)
err: bash: check_mine: command not found
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: Check false returned 1
exit: 1
`},
		{name: "-a continues", words: "NHC_CHECK_ALL=1", lines: "* || false\n" + badFile + "* || check_gpu_count x\n", want: `
out: Node Health Check failed.  Check false returned 1
out: ERROR:  nhc-test:  Health check failed:  Check false returned 1
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: ERROR:  nhc-test:  Health check unknown:  DIR/nhc.conf:3: check_gpu_count: bad value "x", want a whole number; usage: check_gpu_count [WANT [nvidia]]
out: nhc-gpu:  node node1 drained: NHC: Check false returned 1 (before: in service)
out: ERROR:  nhc-test:  2 health checks failed.
syslog: Health check failed:  Check false returned 1
syslog: Health check failed:  check_file_test:  -f DIR/none returned 1.
syslog: Health check unknown:  DIR/nhc.conf:3: check_gpu_count: bad value "x", want a whole number; usage: check_gpu_count [WANT [nvidia]]
syslog: 2 health checks failed.
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: Check false returned 1
exit: 2
`},
		{name: "-a without a check of nhc-gpu marks at the first failure", words: "NHC_CHECK_ALL=1", lines: badFile + "* || check_file_test -f DIR/none2\n", want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none2 returned 1.
out: ERROR:  nhc-test:  2 health checks failed.
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
exit: 2
`},
		{name: "-q", words: "SILENT=1", lines: badFile, want: `
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "-f", words: "VERBOSE=1 NHC_CHECK_FORKED=1", lines: "* || true\n* || export X=1\n" + badFile, want: `
out: Node Health Check starting.
out: Running check:  "true" (forked PID N)
out: Running check:  "export X=1"
out: Running check:  "check_file_test -f DIR/none" (forked PID N)
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "-f a line fails", words: "NHC_CHECK_FORKED=1", lines: "* || false\n", want: `
out: Node Health Check failed.  Check false returned 1
out: ERROR:  nhc-test:  Health check failed:  Check false returned 1
out: nhc-gpu:  node node1 drained: NHC: Check false returned 1 (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: Check false returned 1
exit: 101
`},
		{name: "TS", words: "TS=1 VERBOSE=1", lines: "* || true\n", want: `
out: [T] - Node Health Check starting.
out: [T] - Running check:  "true"
out: [T] - Node Health Check completed successfully (Ns).
exit: 0
`},
		{name: "an error in a line", lines: "* || check_gpu_count x\n* || check_file_test -f\n", want: `
out: ERROR:  nhc-test:  Health check unknown:  DIR/nhc.conf:1: check_gpu_count: bad value "x", want a whole number; usage: check_gpu_count [WANT [nvidia]]
out: ERROR:  nhc-test:  Health check unknown:  check_file_test:  Syntax error:  Missing parameters.
exit: 3 unknown: DIR/nhc.conf:1: check_gpu_count: bad value "x", want a whole number; usage: check_gpu_count [WANT [nvidia]]
`},
		{name: "errors in the configuration drain", words: "CONFIG_ERRORS=drain", lines: "* || check_file_test -f\n", want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  Syntax error:  Missing parameters.
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  Syntax error:  Missing parameters. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  Syntax error:  Missing parameters.
exit: 1
`},
		{name: "a command that bash does not find", lines: "* || chekc_file_test -f /x\n", want: `
out: ERROR:  nhc-test:  Health check unknown:  Check chekc_file_test -f /x returned 127:  there is no command "chekc_file_test"; did you mean check_file_test?
err: bash: chekc_file_test: command not found
exit: 3 unknown: Check chekc_file_test -f /x returned 127:  there is no command "chekc_file_test"; did you mean check_file_test?
`},
		{name: "a line that bash cannot read", lines: "* || echo \"x\n", want: `
out: ERROR:  nhc-test:  Health check unknown:  Check echo "x returned 2:  bash cannot read the line: a quote or a bracket is missing
err: bash: unexpected EOF while looking for matching '"'
exit: 3 unknown: Check echo "x returned 2:  bash cannot read the line: a quote or a bracket is missing
`},
		{name: "such a line with CONFIG_ERRORS=drain", words: "CONFIG_ERRORS=drain", lines: "* || chekc_file_test -f /x\n", want: `
out: Node Health Check failed.  Check chekc_file_test -f /x returned 127
out: ERROR:  nhc-test:  Health check failed:  Check chekc_file_test -f /x returned 127
out: nhc-gpu:  node node1 drained: NHC: Check chekc_file_test -f /x returned 127 (before: in service)
err: bash: chekc_file_test: command not found
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: Check chekc_file_test -f /x returned 127
exit: 127
`},
		{name: "assignments", lines: "* || export MARK_OFFLINE=0\n* || MODE=guess\n* || test \"$MARK_OFFLINE\" = 0\n" + badFile, want: `
out: ERROR:  nhc-test:  Health check unknown:  DIR/nhc.conf:2: MODE=guess: want enforce or observe
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "bash changes a setting", lines: "* || eval MARK_OFFLINE=0\n" + badFile, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "a line exits with 0", lines: "* || exit 0\n" + badFile, want: `
exit: 0
`},
		{name: "a line exits with 5", lines: "* || exit 5\n", want: `
out: Node Health Check failed.  Check exit 5 returned 5
out: ERROR:  nhc-test:  Health check failed:  Check exit 5 returned 5
out: nhc-gpu:  node node1 drained: NHC: Check exit 5 returned 5 (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: Check exit 5 returned 5
exit: 5
`},
		{name: "a line calls a check that fails", lines: "* || check_file_test -f DIR/none; true\n", want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "a line calls a check that is wrong", lines: "* || check_gpu_count x; true\n", want: `
out: ERROR:  nhc-test:  Health check unknown:  check_gpu_count:  bad value "x", want a whole number; usage: check_gpu_count [WANT [nvidia]]
exit: 3 unknown: check_gpu_count:  bad value "x", want a whole number; usage: check_gpu_count [WANT [nvidia]]
`},
		{name: "a line calls a check that passes", words: "VERBOSE=1", lines: "* || check_file_test -d DIR && check_file_test -r DIR\n", want: `
out: Node Health Check starting.
out: Running check:  "check_file_test -d DIR && check_file_test -r DIR"
out: Node Health Check completed successfully (Ns).
exit: 0
`},
		{name: "a check dies in a subshell", lines: "* || (check_file_test -f DIR/none)\n", want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "a check dies in a subshell, and the line ends the shell", lines: "* || (check_file_test -f DIR/none) || exit 4\n", want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
exit: 4
`},
		{name: "a check dies in a substitution, and the line ends the shell", lines: "* || X=$(check_file_test -f DIR/none) || exit 4\n", want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
exit: 4
`},
		{name: "die", lines: "* || die 7 mine is broken\n", want: `
out: ERROR:  nhc-test:  Health check failed:  mine is broken
out: nhc-gpu:  node node1 drained: NHC: mine is broken (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: mine is broken
exit: 7
`},
		{name: "mcheck", lines: "* || mcheck node1 'node[1-3]'\n* || mcheck node9 '{node[1-3]}'\n", want: `
out: Node Health Check failed.  Check mcheck node9 '{node[1-3]}' returned 1
out: ERROR:  nhc-test:  Health check failed:  Check mcheck node9 '{node[1-3]}' returned 1
out: nhc-gpu:  node node1 drained: NHC: Check mcheck node9 '{node[1-3]}' returned 1 (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: Check mcheck node9 '{node[1-3]}' returned 1
exit: 1
`},
		{name: "the site's helper after a check", prepare: func(_ *testing.T, n *sessiontest.Node) {
			n.Set.Put("OFFLINE_NODE", `echo "line $CNUM: $CHECK;"`, false)
		}, lines: "* || true\n" + badFile, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: line 1: check_file_test -f DIR/none; node1 check_file_test:  -f DIR/none returned 1.
syslog: Health check failed:  check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "TIMEOUT", words: "TIMEOUT=1", lines: "* || sleep 60\n", want: `
out: ERROR:  nhc-test:  Health check failed:  Script timed out while executing "sleep 60".
out: nhc-gpu:  node node1 drained: NHC: Script timed out while executing 'sleep 60'. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: Script timed out while executing 'sleep 60'.
exit: 142
`},
		{name: "a signal", lines: "* || true\n* || false\n", prepare: signalled(unix.SIGTERM), want: `
out: ERROR:  nhc-test:  Health check failed:  Terminated by signal SIGTERM.
out: nhc-gpu:  node node1 drained: NHC: Terminated by signal SIGTERM. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: Terminated by signal SIGTERM.
exit: 143
`},
		{name: "LBNL NHC's watchdog", lines: "* || true\n", prepare: signalled(unix.SIGALRM), want: `
out: ERROR:  nhc-test:  Health check failed:  Script timed out while executing "true".
out: nhc-gpu:  node node1 drained: NHC: Script timed out while executing 'true'. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: Script timed out while executing 'true'.
exit: 142
`},

		{name: "observe", words: "MODE=observe", lines: badFile, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  would drain node node1: NHC: check_file_test:  -f DIR/none returned 1. (MODE=observe: nothing is sent)
exit: 1
`},
		{name: "MARK_OFFLINE=0", words: "MARK_OFFLINE=0", lines: badFile, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "no resource manager", words: "NHC_RM=", lines: badFile, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "another resource manager", words: "NHC_RM=pbs", lines: badFile, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
err: nhc-gpu: warning: mark node node1: resource manager "pbs": nhc-gpu itself supports only slurm; set OFFLINE_NODE and ONLINE_NODE to helpers for it
exit: 1
`},
		{name: "no name", lines: badFile, prepare: func(_ *testing.T, n *sessiontest.Node) { n.Bad = fmt.Errorf("no name") }, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
err: nhc-gpu: warning: no name
exit: 1
`},
		{name: "drained before with another reason", lines: badFile, slurm: "drain NHC: old", want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  node node1 has a new reason: NHC: check_file_test:  -f DIR/none returned 1. (before: drained by nhc-gpu for another reason (NHC: old))
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "resumed", lines: "* || true\n", slurm: "drain NHC: old", want: `
out: nhc-gpu:  node node1 resumed (before: drained by nhc-gpu (NHC: old))
scontrol: update State=RESUME NodeName=node1
exit: 0
`},
		{name: "drained by a person", lines: "* || true\n", slurm: "drain maintenance", want: `
exit: 0
`},
		{name: "resumed with observe", words: "MODE=observe", lines: "* || true\n", slurm: "drain NHC: old", want: `
out: nhc-gpu:  would resume node node1: drained by nhc-gpu (NHC: old) (MODE=observe: nothing is sent)
exit: 0
`},
		{name: "scontrol fails", lines: badFile, prepare: func(_ *testing.T, n *sessiontest.Node) { n.Set.Put("SLURM_SCONTROL", "false", true) }, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
err: nhc-gpu: warning: cannot drain node node1, the next run will retry: drain node node1: run false: exit status 1: 
exit: 1
`},
		{name: "a policy that only warns", toml: "[policy.file]\naction = \"warn\"\n", lines: badFile, want: `
out: check_file_test:  -f DIR/none returned 1.
exit: 0
`},
		{name: "a policy that does nothing", toml: "[policy.file]\naction = \"none\"\n", lines: badFile, want: `
exit: 0
`},

		{name: "the site's helper", lines: badFile, prepare: withHelper, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
syslog: Health check failed:  check_file_test:  -f DIR/none returned 1.
helper: node1 check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "the site's helper with observe", words: "MODE=observe", lines: badFile, prepare: withHelper, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  would run DIR/bin/helper for node node1: check_file_test:  -f DIR/none returned 1. (MODE=observe: nothing is sent)
exit: 1
`},
		{name: "the site's helper of a healthy node", lines: "* || true\n", prepare: withHelper, want: `
helper: node1
exit: 0
`},
		{name: "the site's helper of a line of bash", lines: "* || false\n", prepare: withHelper, want: `
out: Node Health Check failed.  Check false returned 1
out: ERROR:  nhc-test:  Health check failed:  Check false returned 1
syslog: Health check failed:  Check false returned 1
helper: node1 Check false returned 1
exit: 1
`},
		{name: "the site's helper, with observe on a healthy node", words: "MODE=observe", lines: "* || true\n", prepare: withHelper, want: `
exit: 0
`},
		{name: "a background run", lines: badFile, prepare: func(_ *testing.T, n *sessiontest.Node) { n.Background = true }, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
result: 1 check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "a background run that passes", lines: "* || true\n", prepare: func(_ *testing.T, n *sessiontest.Node) { n.Background = true }, want: `
result: 0
exit: 0
`},
	})
}

func TestProlog(t *testing.T) {
	runAll(t, slurm.Prolog, []scenario{
		{name: "passes", lines: "* || check_file_test -d DIR\n", want: `
exit: 0
`},
		{name: "refuses the job", lines: badFile + "* || touch DIR/log\n", want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
scontrol: show job 7
scontrol: update JobId=7 AdminComment=nhc-gpu: node node1 failed its health check before this job started: check_file_test [file.test]
exit: 1
`},
		{name: "every failure is reported", words: "NHC_CHECK_ALL=1", lines: badFile + "* || check_file_test -f DIR/none2\n", want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none2 returned 1.
out: ERROR:  nhc-test:  2 health checks failed.
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
scontrol: show job 7
scontrol: update JobId=7 AdminComment=nhc-gpu: node node1 failed its health check before this job started: check_file_test [file.test]
exit: 1
`},
		{name: "a prolog observes", words: "MODE=observe", lines: badFile, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  would end the prolog of job 7 with status 1 (MODE=observe: nothing is sent)
out: nhc-gpu:  would drain node node1: NHC: check_file_test:  -f DIR/none returned 1. (MODE=observe: nothing is sent)
exit: 0
`},
		{name: "policy drain lets the job run", toml: "[policy.file]\naction = \"drain\"\n", lines: badFile, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
exit: 0
`},
		{name: "only the exit status", toml: "[prolog]\nmark = \"exit\"\n", lines: badFile, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "unknown lets the job run", lines: "* || check_file_test -f\n", want: `
out: ERROR:  nhc-test:  Health check unknown:  check_file_test:  Syntax error:  Missing parameters.
exit: 0
`},
		{name: "a signal is no fault of the node", own: true, lines: "* || true\n* || false\n", prepare: signalled(unix.SIGTERM), want: `
out: ERROR:  nhc-test:  Health check unknown:  Terminated by signal SIGTERM.
syslog: Health check unknown:  Terminated by signal SIGTERM.
exit: 0
`},
		{name: "the watchdog", own: true, lines: "* || true\n", prepare: signalled(unix.SIGALRM), want: `
out: ERROR:  nhc-test:  Health check failed:  Script timed out while executing "true".
out: nhc-gpu:  node node1 drained: NHC: Script timed out while executing 'true'. (before: in service)
syslog: Health check failed:  Script timed out while executing "true".
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: Script timed out while executing 'true'.
scontrol: show job 7
scontrol: update JobId=7 AdminComment=nhc-gpu: node node1 failed its health check before this job started: a check
exit: 1
`},
		{name: "a line of its own file fails", own: true, lines: "* || false\n* || touch DIR/log\n", want: `
out: Node Health Check failed.  Check false returned 1
out: ERROR:  nhc-test:  Health check failed:  Check false returned 1
out: nhc-gpu:  node node1 drained: NHC: Check false returned 1 (before: in service)
syslog: Health check failed:  Check false returned 1
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: Check false returned 1
scontrol: show job 7
scontrol: update JobId=7 AdminComment=nhc-gpu: node node1 failed its health check before this job started: a check
exit: 1
`},
		{name: "-a also runs lines that can change something", own: true, words: "NHC_CHECK_ALL=1", lines: "* || false\n* || echo ran >DIR/log\n", want: `
out: Node Health Check failed.  Check false returned 1
out: ERROR:  nhc-test:  Health check failed:  Check false returned 1
out: ERROR:  nhc-test:  1 health checks failed.
out: nhc-gpu:  node node1 drained: NHC: Check false returned 1 (before: in service)
log: ran
syslog: Health check failed:  Check false returned 1
syslog: 1 health checks failed.
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: Check false returned 1
scontrol: show job 7
scontrol: update JobId=7 AdminComment=nhc-gpu: node node1 failed its health check before this job started: a check
exit: 1
`},
	})
}

// recorded gives the node a root directory with the files that an epilog reads.
func recorded(t *testing.T, n *sessiontest.Node) {
	t.Helper()
	n.Write(t, "root/proc/1/comm", "init\n")
	n.Write(t, "root/proc/stat", "btime 1000\n")
	n.Write(t, "root/dev/kmsg", "")
	n.Set.Put("HOSTROOT", n.Dir+"/root", false)
}

func TestEpilog(t *testing.T) {
	without := slurm.Job{ID: "7", User: "alice", UID: 1000}
	runAll(t, slurm.Epilog, []scenario{
		{name: "without a prolog", job: without, lines: "* || check_file_test -d /proc\n", prepare: recorded, want: `
out: nhc-gpu: job 7 of alice, GPUs unknown, no prolog: unknown: load libnvidia-ml.so.1: not found for a recorded node below DIR/root; NVML_LIBRARY names one
exit: 0
`},
		{name: "leaves the node faulty", job: without, lines: badFile, prepare: recorded, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
out: nhc-gpu: job 7 of alice, GPUs unknown, no prolog: unknown: load libnvidia-ml.so.1: not found for a recorded node below DIR/root; NVML_LIBRARY names one
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "leaves the node faulty, silently", job: without, words: "SILENT=1", lines: badFile, prepare: recorded, want: `
out: nhc-gpu:  node node1 drained: NHC: check_file_test:  -f DIR/none returned 1. (before: in service)
scontrol: update State=DRAIN NodeName=node1 Reason=NHC: check_file_test:  -f DIR/none returned 1.
exit: 1
`},
		{name: "an epilog observes", job: without, words: "MODE=observe", lines: badFile, prepare: recorded, want: `
out: ERROR:  nhc-test:  Health check failed:  check_file_test:  -f DIR/none returned 1.
out: nhc-gpu:  would end the epilog of job 7 with status 1 (MODE=observe: nothing is sent)
out: nhc-gpu:  would drain node node1: NHC: check_file_test:  -f DIR/none returned 1. (MODE=observe: nothing is sent)
out: nhc-gpu: job 7 of alice, GPUs unknown, no prolog: unknown: load libnvidia-ml.so.1: not found for a recorded node below DIR/root; NVML_LIBRARY names one
exit: 0
`},
	})
}
