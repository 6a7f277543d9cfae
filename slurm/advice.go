package slurm

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Wiring describes how this program is started, as far as slurm.conf does not.
type Wiring struct {
	// Budget is the time limit of a run, by role.
	Budget map[Role]time.Duration

	// Found holds the files on this node for HealthCheckProgram=, Prolog= and Epilog=, by
	// pattern. A pattern that is not in the map was not examined.
	Found map[string][]Program
	// Around is set if the site has configured checks around a job.
	Around bool
	// Reboots is set if a remedy reboots the node through Slurm.
	Reboots bool
}

// Program is a file that slurmd starts.
type Program struct {
	Path   string
	Bad    string // why slurmd cannot start it, "" if it can
	Ours   bool   // this program, or a script that starts it
	Direct bool   // this program itself
}

// Advice is a comment on one setting.
type Advice struct {
	Remark  bool   // worth knowing; false: the setting prevents this program from working
	Setting string // the setting and its value
	Text    string // the consequence
	Fix     string // the line of slurm.conf, or the command, that fixes it; can be ""
}

// callMargin is the time for one unanswered call to slurmctld, which a run needs in addition to its
// budget before Slurm ends it. slurmd allows only 10 ms between SIGTERM and SIGKILL
// (run_command.c).
const callMargin = DefaultDeadline

// limit is a time after which Slurm acts on a run.
type limit struct {
	key   string        // key in slurm.conf
	or    string        // the key that applies if this one is not set
	fixed time.Duration // the time if neither is set, or if it is 0
	role  Role
	early time.Duration // Slurm acts this much earlier than the setting says
	all   bool          // the limit is for all programs of the role together
	then  string        // the action of Slurm
}

// limits lists the limits in slurm.conf(5), 22.05 to 26.05.
var limits = []limit{
	// "the time that HealthCheckProgram is allowed to run"; 60 s before 26.05, or if it is 0
	{key: "HealthCheckTimeout", fixed: time.Minute, role: HealthCheck, then: "slurmd kills it after that, and its result is lost"},
	// PrologTimeout and EpilogTimeout from 25.05 on
	{key: "PrologTimeout", or: "PrologEpilogTimeout", role: Prolog, then: `the run stops earlier if the node can read slurm.conf; otherwise slurmd kills it and drains the node with "Prolog error" instead of nhc-gpu's reason`},
	{key: "EpilogTimeout", or: "PrologEpilogTimeout", role: Epilog, then: `the run stops earlier if the node can read slurm.conf; otherwise slurmd kills it and drains the node with "Epilog error" instead of nhc-gpu's reason`},
	// "before being considered missing"; "also applied to launch tasks and avoid aborting srun commands
	// due to long running Prolog scripts"
	{key: "BatchStartTimeout", role: Prolog, all: true, then: "after that slurmctld can declare a batch job lost while its prolog runs, and srun can give up"},
	// "expected to complete in less time than MessageTimeout"; slurmd's timer expires 2 s earlier (req.c)
	{key: "MessageTimeout", role: Prolog, early: 2 * time.Second, all: true, then: `after that the user gets the message "Prolog hung on node"`},
}

// Advise returns where Slurm prevents this program from working, or would kill it.
func Advise(c Config, w Wiring) []Advice {
	a := &adviser{conf: c, wiring: w, ours: map[Role]int{}}
	for _, role := range []Role{HealthCheck, Prolog, Epilog} {
		a.adviseStarted(role)
	}
	for i := range limits {
		a.limit(&limits[i])
	}
	a.adviseInterval()
	a.adviseNodeState()
	a.advisePrologFlags()
	a.adviseRequeue()
	a.adviseOthers()
	a.adviseReboot()
	return a.list
}

type adviser struct {
	conf   Config
	wiring Wiring
	ours   map[Role]int // number of times that slurmd starts this program
	list   []Advice
}

// showSetting formats a key and its value.
func (a *adviser) showSetting(key string) string {
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

// readSeconds reads a setting. It reports a value that is not a number of seconds once.
func (a *adviser) readSeconds(key string) (d time.Duration, ok bool) {
	d, ok, err := a.conf.Seconds(key)
	unread := key + " is not valid"
	if err != nil && !slices.ContainsFunc(a.list, func(o Advice) bool { return o.Setting == unread }) {
		a.remark(unread, "", "%v: this setting was not checked", err)
	}
	return d, ok
}

// findLimit returns the time of a limit, and the key that sets it; ok is false if there is no
// advice on it.
func (a *adviser) findLimit(l *limit) (d time.Duration, key string, ok bool) {
	for _, key := range []string{l.key, l.or} {
		if d, ok := a.readSeconds(key); ok && (d > 0 || l.fixed == 0) {
			return d, key, true
		}
	}
	return l.fixed, l.key, l.fixed > 0
}

// computeNeed returns the minimum for a limit, in whole seconds.
func (a *adviser) computeNeed(l *limit) time.Duration {
	budget := a.wiring.Budget[l.role]
	if l.all {
		budget *= time.Duration(a.ours[l.role])
	}
	return budget + l.early + callMargin
}

func (a *adviser) limit(l *limit) {
	d, key, ok := a.findLimit(l)
	if !ok || a.ours[l.role] == 0 || d >= a.computeNeed(l) {
		return
	}
	write := a.computeNeed(l)
	for i := range limits { // limits with the same setting
		if _, other, ok := a.findLimit(&limits[i]); ok && other == key && a.ours[limits[i].role] > 0 {
			write = max(write, a.computeNeed(&limits[i]))
		}
	}
	times := ""
	if n := a.ours[l.role]; l.all && n > 1 {
		times = fmt.Sprintf(", %d times", n)
	}
	text := fmt.Sprintf("%s=%.0f", key, roundUp(write).Seconds())
	if unkillable, ok := a.readSeconds("UnkillableStepTimeout"); key == "MessageTimeout" && ok && unkillable < 5*roundUp(write) {
		text += fmt.Sprintf(" and UnkillableStepTimeout=%.0f, see slurm.conf(5)", 5*roundUp(write).Seconds())
	}
	a.warn(a.showSetting(key), text,
		"%s can take %s%s, plus %s for a call to slurmctld: %s", article(l.role), a.wiring.Budget[l.role], times, callMargin, l.then)
}

// roundUp rounds up to a multiple of 15 seconds.
func roundUp(d time.Duration) time.Duration {
	const step = 15 * time.Second
	return (d + step - 1) / step * step
}

func article(role Role) string {
	return map[Role]string{HealthCheck: "a health check", Prolog: "a prolog", Epilog: "an epilog"}[role]
}

// adviseInterval checks HealthCheckInterval.
func (a *adviser) adviseInterval() {
	const key = "HealthCheckInterval"
	d, ok := a.readSeconds(key)
	budget := a.wiring.Budget[HealthCheck]
	switch {
	case !ok || a.conf.Value("HealthCheckProgram") == "":
	case d == 0:
		a.warn(a.showSetting(key), key+"=300", "slurmd never starts the health check: no fault is found, and no drained node is resumed")
	case d == time.Second:
		a.warn(a.showSetting(key), key+"=300", "slurmctld has no time to ping the nodes: a resumed node stays idle* and gets no job (seen with 22.05)")
	case a.ours[HealthCheck] > 0 && d <= budget:
		a.warn(a.showSetting(key), fmt.Sprintf("%s=%.0f", key, roundUp(2*budget).Seconds()),
			"a health check can take %s: slurmd starts the next one at the same time, and that one exits without a result", budget)
	}
}

// adviseNodeState checks that all nodes are covered.
func (a *adviser) adviseNodeState() {
	const key, right = "HealthCheckNodeState", "HealthCheckNodeState=ANY,CYCLE"
	if a.ours[HealthCheck] == 0 || a.conf.Value(key) == "" {
		return
	}
	has := func(word string) bool { return a.conf.Has(key, word) }
	switch {
	case has("START_ONLY") || has("REBOOT_ONLY"):
		a.warn(a.showSetting(key), right, "nodes are checked when slurmd starts, and never again")
	case !has("ANY") && !has("IDLE") && !strings.EqualFold(a.conf.Value(key), "CYCLE"):
		a.warn(a.showSetting(key), right, "a drained node without a job is not checked: nhc-gpu never resumes a node that it has drained")
	case !has("ANY") && has("IDLE") && (!has("ALLOC") || !has("MIXED")):
		a.remark(a.showSetting(key), right, "nodes with jobs are not checked")
	}
}
