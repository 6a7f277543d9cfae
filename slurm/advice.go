package slurm

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Wiring is what slurm.conf does not say of how this program is started.
type Wiring struct {
	// Budget is how long a run may take, by its role.
	Budget map[Role]time.Duration
	// Found is what there is on this node of HealthCheckProgram=, Prolog= and
	// Epilog=, by pattern; one that is missing here was not looked at.
	Found map[string][]Program
	// Around says that the site has configured what is checked around a job.
	Around bool
}

// Program is a file that slurmd starts, or would.
type Program struct {
	Path   string
	Bad    string // why slurmd cannot start it; "": it can
	Ours   bool   // it is this program, or a script that starts it
	Direct bool   // it is this program itself
}

// Advice is what is to be said of one setting.
type Advice struct {
	Remark  bool   // worth knowing; false: Slurm gets in this program's way
	Setting string // and its value
	Text    string // what comes of it
	Fix     string // a line of slurm.conf that mends it, or a command; may be ""
}

// actMargin is what a run has for telling slurmctld, beyond its budget, before
// Slurm ends it: one call that gets no answer. slurmd leaves it 10 ms between
// SIGTERM and SIGKILL (run_command.c), in which nothing can be told.
const actMargin = DefaultDeadline

// limit is a time after which Slurm does something about a run.
type limit struct {
	key   string        // of slurm.conf
	or    string        // the key that holds where it is not set
	fixed time.Duration // the time where neither is set, or where it is 0
	role  Role
	early time.Duration // how much sooner than the setting says
	all   bool          // for all programs of the role together, not for each
	then  string        // what Slurm does
}

// limits are those of slurm.conf(5), 22.05 to 26.05.
var limits = []limit{
	// "the time that HealthCheckProgram is allowed to run"; 60 s before 26.05, and where it is 0
	{key: "HealthCheckTimeout", fixed: time.Minute, role: HealthCheck, then: "slurmd kills it then, and what it was about to tell is lost"},
	// PrologTimeout and EpilogTimeout from 25.05 on
	{key: "PrologTimeout", or: "PrologEpilogTimeout", role: Prolog, then: `it is cut short where slurm.conf can be read on the node, else slurmd kills it and drains the node with "Prolog error" in place of our reason`},
	{key: "EpilogTimeout", or: "PrologEpilogTimeout", role: Epilog, then: `it is cut short where slurm.conf can be read on the node, else slurmd kills it and drains the node with "Epilog error" in place of our reason`},
	// "before being considered missing"; "also applied to launch tasks and avoid aborting srun commands due to long running Prolog scripts"
	{key: "BatchStartTimeout", role: Prolog, all: true, then: "slurmctld may take a batch job for lost then whose prolog is at work, and srun may give up"},
	// "expected to complete in less time than MessageTimeout"; slurmd's timer runs off 2 s before it (req.c)
	{key: "MessageTimeout", role: Prolog, early: 2 * time.Second, all: true, then: `its user is told "Prolog hung on node" then`},
}

// Advise says where Slurm would forestall this program, or kill it.
func Advise(c Config, w Wiring) []Advice {
	a := &adviser{conf: c, wiring: w, ours: map[Role]int{}}
	for _, role := range []Role{HealthCheck, Prolog, Epilog} {
		a.started(role)
	}
	for i := range limits {
		a.limit(&limits[i])
	}
	a.interval()
	a.nodeState()
	a.prologFlags()
	a.requeue()
	a.others()
	return a.list
}

type adviser struct {
	conf   Config
	wiring Wiring
	ours   map[Role]int // how often slurmd starts this program
	list   []Advice
}

// setting is a key and its value, for people.
func (a *adviser) setting(key string) string {
	if value := a.conf.Value(key); value != "" {
		return key + " = " + printable(value)
	}
	return key + " is not set"
}

func (a *adviser) warn(setting, fix, format string, args ...any) {
	a.list = append(a.list, Advice{Setting: setting, Text: fmt.Sprintf(format, args...), Fix: fix})
}

func (a *adviser) remark(setting, fix, format string, args ...any) {
	a.list = append(a.list, Advice{Remark: true, Setting: setting, Text: fmt.Sprintf(format, args...), Fix: fix})
}

// seconds reads a setting; what is no number of seconds is said once.
func (a *adviser) seconds(key string) (d time.Duration, ok bool) {
	d, ok, err := a.conf.Seconds(key)
	unread := key + " cannot be read"
	if err != nil && !slices.ContainsFunc(a.list, func(o Advice) bool { return o.Setting == unread }) {
		a.remark(unread, "", "%v: it was not looked at", err)
	}
	return d, ok
}

// in is the time that a limit leaves, and the key that sets it; ok is false where
// nothing is said of it.
func (a *adviser) in(l *limit) (d time.Duration, key string, ok bool) {
	for _, key := range []string{l.key, l.or} {
		if d, ok := a.seconds(key); ok && (d > 0 || l.fixed == 0) {
			return d, key, true
		}
	}
	return l.fixed, l.key, l.fixed > 0
}

// need is what a limit has to be, in whole seconds.
func (a *adviser) need(l *limit) time.Duration {
	budget := a.wiring.Budget[l.role]
	if l.all {
		budget *= time.Duration(a.ours[l.role])
	}
	return budget + l.early + actMargin
}

func (a *adviser) limit(l *limit) {
	d, key, ok := a.in(l)
	if !ok || a.ours[l.role] == 0 || d >= a.need(l) {
		return
	}
	write := a.need(l)
	for i := range limits { // that have the same setting
		if _, other, ok := a.in(&limits[i]); ok && other == key && a.ours[limits[i].role] > 0 {
			write = max(write, a.need(&limits[i]))
		}
	}
	times := ""
	if n := a.ours[l.role]; l.all && n > 1 {
		times = fmt.Sprintf(", %d times", n)
	}
	text := fmt.Sprintf("%s=%.0f", key, roundUp(write).Seconds())
	if unkillable, ok := a.seconds("UnkillableStepTimeout"); key == "MessageTimeout" && ok && unkillable < 5*roundUp(write) {
		text += fmt.Sprintf(" and UnkillableStepTimeout=%.0f, see slurm.conf(5)", 5*roundUp(write).Seconds())
	}
	a.warn(a.setting(key), text,
		"%s may take %s%s, and %s to tell slurmctld: %s", article(l.role), a.wiring.Budget[l.role], times, actMargin, l.then)
}

// roundUp is the next multiple of 15 seconds.
func roundUp(d time.Duration) time.Duration {
	const step = 15 * time.Second
	return (d + step - 1) / step * step
}

func article(role Role) string {
	return map[Role]string{HealthCheck: "a health check", Prolog: "a prolog", Epilog: "an epilog"}[role]
}

// interval is about HealthCheckInterval.
func (a *adviser) interval() {
	const key = "HealthCheckInterval"
	d, ok := a.seconds(key)
	budget := a.wiring.Budget[HealthCheck]
	switch {
	case !ok || a.conf.Value("HealthCheckProgram") == "":
	case d == 0:
		a.warn(a.setting(key), key+"=300", "slurmd never starts the health check: no fault is found, and no node that was drained comes back")
	case d == time.Second:
		a.warn(a.setting(key), key+"=300", "slurmctld finds no time to ping the nodes: one that is resumed stays idle* and gets no job (22.05 run)")
	case a.ours[HealthCheck] > 0 && d <= budget:
		a.warn(a.setting(key), fmt.Sprintf("%s=%.0f", key, roundUp(2*budget).Seconds()),
			"a health check may take %s: slurmd starts the next beside it, which leaves without a verdict", budget)
	}
}

// nodeState is about the nodes that are not checked.
func (a *adviser) nodeState() {
	const key, right = "HealthCheckNodeState", "HealthCheckNodeState=ANY,CYCLE"
	if a.ours[HealthCheck] == 0 || a.conf.Value(key) == "" {
		return
	}
	has := func(word string) bool { return a.conf.Has(key, word) }
	switch {
	case has("START_ONLY") || has("REBOOT_ONLY"):
		a.warn(a.setting(key), right, "nodes are looked at when slurmd starts, and never after it")
	case !has("ANY") && !has("IDLE") && !strings.EqualFold(a.conf.Value(key), "CYCLE"):
		a.warn(a.setting(key), right, "a node that is drained and has no job is not looked at: one that we drain never comes back")
	case !has("ANY") && has("IDLE") && (!has("ALLOC") || !has("MIXED")):
		a.remark(a.setting(key), right, "nodes with jobs are not looked at")
	}
}
