package slurm

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// This file has the advice on HealthCheckProgram, Prolog and Epilog, and on the jobs whose prolog
// fails.

// StartKeys holds the keys of slurm.conf that make slurmd start this program.
var StartKeys = map[Role]string{HealthCheck: "HealthCheckProgram", Prolog: "Prolog", Epilog: "Epilog"}

// showStart returns what a site must do so that slurmd starts this program.
func (a *adviser) showStart(role Role) string {
	if role == HealthCheck {
		return "HealthCheckProgram=/usr/sbin/nhc-gpu"
	}
	key := StartKeys[role]
	name := strings.ToLower(key)
	for _, pattern := range a.conf.Programs(key) {
		if strings.ContainsAny(pattern, "*?[") {
			return "install -D -t " + printable(filepath.Dir(pattern)) + " " + scriptFor(name)
		}
	}
	return fmt.Sprintf("%s=/etc/slurm/%s.d/*, and on each node: install -D -t /etc/slurm/%s.d %s", key, name, name, scriptFor(name))
}

// scriptFor returns the installed script for Prolog= or Epilog=.
func scriptFor(name string) string { return "/usr/share/nhc-gpu/slurm/" + name + ".d/50-nhc-gpu" }

// adviseStarted checks which programs slurmd starts in a role, and whether this program is one.
func (a *adviser) adviseStarted(role Role) {
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
			a.adviseMissing(role, setting, pattern)
		}
		for _, p := range found {
			if p.Bad != "" {
				a.adviseUnusable(role, setting, p)
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
		a.ours[role] = max(1, len(ours)) // it may be this program, and then its limits matter
	case len(ours) == 0 && len(others) > 0:
		a.notOurs(role, setting)
	case len(ours) > 1:
		a.warn(setting, "", "starts this program %d times, as %s: keep only one of them", len(ours), strings.Join(ours, ", "))
	}
	if len(ours) > 0 && len(others) > 0 {
		a.remark(setting, "", "also starts %s: slurmd runs them in sequence, from z to a, and stops after one that fails; PrologEpilogTimeout applies to each, BatchStartTimeout to all together",
			strings.Join(others, ", "))
	}
	if role != HealthCheck && direct {
		a.remark(setting, a.showStart(role), "if the program is missing on a node, the next job drains it; with the script the job runs")
	}
}

func (a *adviser) notOurs(role Role, setting string) {
	text := "nothing is checked " + beside(role) + " a job"
	if role == HealthCheck {
		text = "faults are found only around jobs, if at all, and no drained node is resumed"
	}
	if !strings.HasSuffix(setting, " is not set") {
		text = "does not start this program: " + text
	}
	if role == HealthCheck || a.wiring.Around || a.ours[Prolog] > 0 {
		a.warn(setting, a.showStart(role), "%s", text)
	} else {
		a.remark(setting, a.showStart(role), "%s", text)
	}
}

func beside(role Role) string {
	if role == Prolog {
		return "before"
	}
	return "after"
}

// adviseMissing and adviseUnusable report faults that drain nodes (tested with 22.05, 24.11 and
// 26.05): "Unable to create list of paths", "can not be executed".
func (a *adviser) adviseMissing(role Role, setting, pattern string) {
	if role == HealthCheck {
		a.warn(setting, "", "the file does not exist on this node: the node is never checked")
		return
	}
	a.warn(setting, a.showStart(role), "no file on this node matches %s: %s", printable(pattern), drains(role))
}

func (a *adviser) adviseUnusable(role Role, setting string, p Program) {
	if role == HealthCheck {
		a.warn(setting, "", "%s: %s: this node is never checked", p.Path, p.Bad)
		return
	}
	a.warn(setting, "", "%s: %s: %s; remove it, or make it executable", p.Path, p.Bad, drains(role))
}

func drains(role Role) string {
	if role == Prolog {
		return `slurmd drains the node with "Prolog error" before its next job, and requeues the job`
	}
	return `slurmd drains the node with "Epilog error" after its next job`
}

// advisePrologFlags checks when and where a prolog runs.
func (a *adviser) advisePrologFlags() {
	const key = "PrologFlags"
	if a.ours[Prolog] == 0 {
		return
	}
	alloc := false
	for _, flag := range []string{"Alloc", "Contain", "NoHold", "DeferBatch", "ForceRequeueOnFail", "RunInJob", "X11"} { // all but the first imply it
		alloc = alloc || a.conf.Has(key, flag)
	}
	if !alloc {
		a.warn(a.showSetting(key), a.addWord(key, "Alloc"), "a prolog runs before the first step on its node, not before the job: other nodes of the job are checked late, or never")
	}
	if a.conf.Has(key, "RunInJob") {
		a.warn(a.showSetting(key), "", "prolog and epilog run inside the job's cgroup: if it hides other jobs' GPUs, these count as missing; remove RunInJob")
	}
	if a.conf.Has(key, "Serial") {
		a.remark(a.showSetting(key), "", "the prologs and epilogs of a node run one at a time: eight jobs that start together can take eight times %s", a.wiring.Budget[Prolog])
	}
}

// addWord returns a setting's list of words with one more.
func (a *adviser) addWord(key, word string) string {
	if value := a.conf.Value(key); value != "" {
		word = value + "," + word
	}
	return key + "=" + word
}

// adviseRequeue checks what happens to a job whose prolog fails.
func (a *adviser) adviseRequeue() {
	if a.ours[Prolog] == 0 {
		return
	}
	if key := "SchedulerParameters"; !a.conf.Has(key, "nohold_on_prolog_fail") {
		a.remark(a.showSetting(key), a.addWord(key, "nohold_on_prolog_fail"), "a job whose prolog fails is requeued and held, until scontrol release")
	}
	if a.conf.Value("JobRequeue") == "0" && !a.conf.Has("PrologFlags", "ForceRequeueOnFail") {
		a.remark(a.showSetting("JobRequeue"), "JobRequeue=1, or PrologFlags=ForceRequeueOnFail", "a job whose prolog fails is cancelled, unless it was submitted with --requeue")
	}
}

// adviseOthers checks settings that affect more than this program.
func (a *adviser) adviseOthers() {
	if user := a.conf.Value("SlurmdUser"); user != "" && !strings.HasPrefix(user, "root") {
		a.warn(a.showSetting("SlurmdUser"), "SlurmdUser=root", "this program then does not run as root: it cannot drain nodes, and stores no state")
	}
	// slurm.conf(5): "at least 5 times larger than MessageTimeout, otherwise it can lead to unexpected
	// draining of nodes"
	unkillable, known := a.readSeconds("UnkillableStepTimeout")
	if message, ok := a.readSeconds("MessageTimeout"); ok && known && message < time.Hour && unkillable < 5*message {
		a.warn(a.showSetting("UnkillableStepTimeout"), fmt.Sprintf("UnkillableStepTimeout=%.0f", (5*message).Seconds()),
			`less than five times MessageTimeout (%s): Slurm drains healthy nodes with "Kill task failed", and nhc-gpu does not resume them`, message)
	}
	const key, word = "SlurmctldParameters", "health_check_report"
	if a.ours[HealthCheck] > 0 && a.conf.AtLeast("26.05") && !a.conf.Has(key, word) {
		a.remark(a.showSetting(key), a.addWord(key, word), "with this, slurmd informs each health check whether its node is drained; it then detects a manual drain without a call to slurmctld")
	}
}

// leastResume is the shortest time in which a GPU server boots, from the request to slurmd's start: tests
// of the memory and of the devices alone take minutes.
const leastResume = 10 * time.Minute

// adviseReboot judges the settings that a reboot by a remedy needs.
func (a *adviser) adviseReboot() {
	if !a.wiring.Reboots {
		return
	}
	if a.conf.Value("RebootProgram") == "" {
		a.warn(a.showSetting("RebootProgram"), "RebootProgram=/sbin/reboot", "the remedy reboot-node is never carried out")
	}
	if d, ok := a.readSeconds("ResumeTimeout"); !ok || d < leastResume {
		a.warn(a.showSetting("ResumeTimeout"), "ResumeTimeout=1800", "Slurm sets a node down that does not boot in that time: a GPU server takes 10 to 30 minutes")
	}
}
