package slurm

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// What is advised of HealthCheckProgram, Prolog and Epilog, and of what becomes
// of a job whose prolog fails.

// StartKeys are the keys of slurm.conf by which slurmd starts this program.
var StartKeys = map[Role]string{HealthCheck: "HealthCheckProgram", Prolog: "Prolog", Epilog: "Epilog"}

// starts is what a site does to have this program started.
func (a *adviser) starts(role Role) string {
	if role == HealthCheck {
		return "HealthCheckProgram=/usr/sbin/nhc-gpu"
	}
	key := StartKeys[role]
	name := strings.ToLower(key)
	for _, pattern := range a.conf.Programs(key) {
		if strings.ContainsAny(pattern, "*?[") {
			return "install -D -t " + printable(filepath.Dir(pattern)) + " " + shared(name)
		}
	}
	return fmt.Sprintf("%s=/etc/slurm/%s.d/*, and on each node: install -D -t /etc/slurm/%s.d %s", key, name, name, shared(name))
}

// shared is the script for Prolog= or Epilog= as it is installed.
func shared(name string) string { return "/usr/share/nhc-gpu/slurm/" + name + ".d/50-nhc-gpu" }

// started is about what slurmd starts in a role, and whether it is this program.
func (a *adviser) started(role Role) {
	key := StartKeys[role]
	patterns := a.conf.Programs(key)
	if len(patterns) == 0 {
		a.notOurs(role, key+" is not set")
		return
	}
	setting := key + " = " + printable(strings.Join(patterns, ", "))
	var ours, others []string
	looked, direct := true, false
	for _, pattern := range patterns {
		found, ok := a.wiring.Found[pattern]
		looked = looked && ok
		if ok && len(found) == 0 {
			a.nothingThere(role, setting, pattern)
		}
		for _, p := range found {
			if p.Bad != "" {
				a.cannotStart(role, setting, p)
			}
			direct = direct || p.Direct
			switch {
			case p.Ours:
				ours = append(ours, p.Path)
			case p.Bad == "":
				others = append(others, p.Path)
			}
		}
	}
	a.ours[role] = len(ours)
	switch {
	case !looked:
		a.ours[role] = max(1, len(ours)) // it may be, and its limits matter then
	case len(ours) == 0 && len(others) > 0:
		a.notOurs(role, setting)
	case len(ours) > 1:
		a.warn(setting, "", "starts this program %d times, as %s: leave one there", len(ours), strings.Join(ours, ", "))
	}
	if len(ours) > 0 && len(others) > 0 {
		a.remark(setting, "", "starts %s, too: slurmd runs them one after the other, z to a, and none after one that fails; each has its own PrologEpilogTimeout, and BatchStartTimeout is for all of them",
			strings.Join(others, ", "))
	}
	if role != HealthCheck && direct {
		a.remark(setting, a.starts(role), "a node on which the program is missing is drained with its next job: the script lets the job run")
	}
}

func (a *adviser) notOurs(role Role, setting string) {
	text := "nothing is looked at " + beside(role) + " a job"
	if role == HealthCheck {
		text = "faults are only found around jobs, if at all, and no node that was drained comes back"
	}
	if !strings.HasSuffix(setting, " is not set") {
		text = "does not start this program: " + text
	}
	if role == HealthCheck || a.wiring.Around || a.ours[Prolog] > 0 {
		a.warn(setting, a.starts(role), "%s", text)
	} else {
		a.remark(setting, a.starts(role), "%s", text)
	}
}

func beside(role Role) string {
	if role == Prolog {
		return "before"
	}
	return "after"
}

// nothingThere and cannotStart are faults that drain nodes (22.05, 24.11 and 26.05
// run): "Unable to create list of paths", "can not be executed".
func (a *adviser) nothingThere(role Role, setting, pattern string) {
	if role == HealthCheck {
		a.warn(setting, "", "there is no such file on this node: it is never checked")
		return
	}
	a.warn(setting, a.starts(role), "nothing on this node fits %s: %s", printable(pattern), drains(role))
}

func (a *adviser) cannotStart(role Role, setting string, p Program) {
	if role == HealthCheck {
		a.warn(setting, "", "%s: %s: this node is never checked", p.Path, p.Bad)
		return
	}
	a.warn(setting, "", "%s: %s: %s; take it away, or make it a program", p.Path, p.Bad, drains(role))
}

func drains(role Role) string {
	if role == Prolog {
		return `slurmd drains the node with "Prolog error" before its next job, and requeues that`
	}
	return `slurmd drains the node with "Epilog error" after its next job`
}

// prologFlags is about when a prolog is run, and where.
func (a *adviser) prologFlags() {
	const key = "PrologFlags"
	if a.ours[Prolog] == 0 {
		return
	}
	alloc := false
	for _, flag := range []string{"Alloc", "Contain", "NoHold", "DeferBatch", "ForceRequeueOnFail", "RunInJob", "X11"} { // all but the first imply it
		alloc = alloc || a.conf.Has(key, flag)
	}
	if !alloc {
		a.warn(a.setting(key), a.with(key, "Alloc"), "a prolog runs before the first step on its node, not before the job: other nodes of the job are looked at late, or never")
	}
	if a.conf.Has(key, "RunInJob") {
		a.warn(a.setting(key), "", "prolog and epilog run inside the job's cgroup: where that hides the GPUs of others they count as missing; do without RunInJob")
	}
	if a.conf.Has(key, "Serial") {
		a.remark(a.setting(key), "", "the prologs and epilogs of a node wait for each other: eight jobs that start at once may take eight times %s", a.wiring.Budget[Prolog])
	}
}

// with is a list of words with one more.
func (a *adviser) with(key, word string) string {
	if value := a.conf.Value(key); value != "" {
		word = value + "," + word
	}
	return key + "=" + word
}

// requeue is about what becomes of a job whose prolog fails.
func (a *adviser) requeue() {
	if a.ours[Prolog] == 0 {
		return
	}
	if key := "SchedulerParameters"; !a.conf.Has(key, "nohold_on_prolog_fail") {
		a.remark(a.setting(key), a.with(key, "nohold_on_prolog_fail"), "a job whose prolog fails is requeued and held, until scontrol release")
	}
	if a.conf.Value("JobRequeue") == "0" && !a.conf.Has("PrologFlags", "ForceRequeueOnFail") {
		a.remark(a.setting("JobRequeue"), "JobRequeue=1, or PrologFlags=ForceRequeueOnFail", "a job whose prolog fails is cancelled, unless it was submitted with --requeue")
	}
}

// others are settings that are about more than this program.
func (a *adviser) others() {
	if user := a.conf.Value("SlurmdUser"); user != "" && !strings.HasPrefix(user, "root") {
		a.warn(a.setting("SlurmdUser"), "SlurmdUser=root", "this program is not root then: it can drain no node, and remembers nothing")
	}
	// slurm.conf(5): "at least 5 times larger than MessageTimeout, otherwise it can lead to unexpected draining of nodes"
	unkillable, known := a.seconds("UnkillableStepTimeout")
	if message, ok := a.seconds("MessageTimeout"); ok && known && message < time.Hour && unkillable < 5*message {
		a.warn(a.setting("UnkillableStepTimeout"), fmt.Sprintf("UnkillableStepTimeout=%.0f", (5*message).Seconds()),
			`less than five times MessageTimeout (%s): nodes are drained with "Kill task failed" that are well, and we leave such a drain alone`, message)
	}
	const key, word = "SlurmctldParameters", "health_check_report"
	if a.ours[HealthCheck] > 0 && a.conf.AtLeast("26.05") && !a.conf.Has(key, word) {
		a.remark(a.setting(key), a.with(key, word), "slurmd could tell each health check whether its node is drained: it would find a drain by hand without asking slurmctld")
	}
}
