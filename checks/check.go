// Package checks is what every check needs: the registry, parameters, findings, advice, and the
// data that families of checks share. The checks stand in the packages below it.
//
// A check is one file: a doc comment, a struct whose fields are its
// parameters, an init function that registers it, and Run. Adding one edits no
// other file. Checks never touch the machine themselves: all they learn comes
// from the [probe.Host] in their [Env], so that a test can put a tree of files
// in its place.
package checks

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// Check is one bound check. Its fields are its parameters, filled by [Bind]
// (nhc.conf words) or [BindTable] (TOML).
type Check interface {
	// Run looks at the node and says what it found. No finding, or none worse
	// than Warn, is a pass. Run may block for ever: it is only ever called in a
	// worker process, under the deadline of its step, which ctx has ([WithDeadline]).
	Run(ctx context.Context, env *Env) []Finding
}

// Namer is a check that a line can give another name for its messages (-C).
type Namer interface {
	// CalledAs returns that name.
	CalledAs() string
}

// Validator is a check that refuses some values of its parameters.
type Validator interface {
	// Validate returns what is wrong with the parameters. [BindTable] calls it; a Bind of
	// the check's own does, too.
	Validate() error
}

// Lane is a class of checks that share one worker process, so that what hangs
// in one lane does not hold up the others.
type Lane string

// The lanes. Local reads files, mounts, /proc and /sys; Cmd runs commands, each
// alone; the others stand for the vendor library they load.
const (
	Local Lane = "local"
	Cmd   Lane = "cmd"
	NVML  Lane = "nvml"
	DCGM  Lane = "dcgm"
	CUDA  Lane = "cuda" // NCCL and cuBLASLt, too, which work in its contexts
	Shell Lane = "shell"
)

// Worker is the lane whose worker runs the steps of this one. A command does not
// hang its worker, so that one process serves files and commands.
func (l Lane) Worker() Lane {
	if l == Cmd {
		return Local
	}
	return l
}

// Vendor says whether the lane loads a vendor library: after a hang in such a
// lane the rest of it is not run, since the next call would hang too.
func (l Lane) Vendor() bool { return l == NVML || l == DCGM || l == CUDA }

// ClassShell is the class of the lines that bash runs.
const ClassShell = "shell"

// Class is the family of a check, by which a site gives policies: "gpu", "fs",
// "ps": the word behind check_, but "gpu" for all that looks at GPUs, whatever a
// job has left there apart, and "active" for the tests that load the node.
func (i Info) Class() string {
	if i.Active {
		return ClassActive
	}
	family, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(i.Name, "check_"), "all_"), "num_"), "_")
	if family != ClassJob && (i.Lane.Vendor() || family == "nv" || family == "nvsmi" || family == "rccl") {
		return "gpu"
	}
	return family
}

// Classes lists the classes of all checks, and that of shell lines, sorted.
func Classes() []string {
	set := map[string]bool{ClassShell: true}
	for _, info := range registry {
		set[info.Class()] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// Info describes a check to the registry.
type Info struct {
	Name    string        // the word in nhc.conf: check_fs_mount
	Usage   string        // what may stand behind the word: "[-0] -f FS ..."
	Summary string        // one line, for lists
	Lane    Lane          // the worker it runs in
	Timeout time.Duration // deadline of one step; 0 means the lane's own
	New     func() Check  // a check with its defaults

	// Acts says whether a bound check may change something on the node: such a
	// step runs alone, after every earlier step has passed. Nil means it never does.
	Acts func(Check) bool

	// Active says that the check loads the node to measure it, see active: it runs
	// alone, never beside a job, for no longer than its [Bounded] says.
	Active bool

	// Slurm says whether a bound check judges by Slurm's configuration, Env.Slurm.
	// Nil means it never does.
	Slurm func(Check) bool

	// Waits says that the check may wait for something to go by itself: it has two
	// thirds of the run, and must end before its context's deadline.
	Waits bool

	// BadUsage turns a usage error into the finding that LBNL NHC gives for it
	// when the step's turn comes. Nil means that a usage error is an error of
	// the configuration: reported with its position, draining nobody.
	BadUsage func(line string, err *UsageError) Finding

	// Vars are the variables of nhc.conf that the check reads, with the values
	// they have if nobody sets them.
	Vars map[string]string

	// Do says what to do about each code that the check's findings bear, for an
	// administrator at night: one or two sentences. Checks that share a code
	// share its advice. [RegisterAdvice] has the advice on codes of a whole family. It is a
	// function so that a run without findings makes no tables of texts.
	Do func() map[string]string

	// DoOf is the advice on codes that are made of data, "gpu.xid.79"; "" for
	// those of other checks. Nil means that there are none.
	DoOf func(code string) string
}

// shared has the advice on codes that belong to no single check.
var shared = []func() map[string]string{commonDo}

// RegisterAdvice adds what to do about codes that several checks share. It is called from
// init functions.
func RegisterAdvice(do func() map[string]string) { shared = append(shared, do) }

// SharedAdvice is what to do about codes that belong to no single check.
var SharedAdvice = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for _, do := range shared {
		advise(all, do())
	}
	return all
})

// advice is what to do about the codes of findings. A run that finds nothing does not pay for it.
var advice = sync.OnceValue(func() map[string]string {
	all := maps.Clone(SharedAdvice())
	for _, name := range Names() {
		advise(all, registry[name].Advice())
	}
	return all
})

// advise adds to all advice and returns the codes that have other advice already, which stays.
// A test wants none.
func advise(all, do map[string]string) (conflicts []string) {
	for code, text := range do {
		if old, ok := all[code]; !ok {
			all[code] = text
		} else if old != text {
			conflicts = append(conflicts, code)
		}
	}
	return conflicts
}

// AdviceConflicts are the codes that two checks have different advice on.
func AdviceConflicts() (codes []string) {
	all := map[string]string{}
	for _, do := range shared {
		codes = append(codes, advise(all, do())...)
	}
	for _, name := range Names() {
		codes = append(codes, advise(all, registry[name].Advice())...)
	}
	return codes
}

// Advice returns what Do says.
func (i Info) Advice() map[string]string {
	if i.Do == nil {
		return nil
	}
	return i.Do()
}

// Bears reports whether a code is one of the check's own.
func (i Info) Bears(code string) bool {
	return i.Advice()[code] != "" || i.DoOf != nil && i.DoOf(code) != ""
}

// commonDo is the advice on codes that any check may give.
func commonDo() map[string]string {
	return map[string]string{
		"config.command":   "Correct the name in the line, or install the command; nhc-gpu lint lists such lines. CONFIG_ERRORS=drain drains the node for them.",
		"config.usage":     "Correct the line in nhc.conf; docs/reference/checks lists the arguments of each check.",
		"config.value":     "Correct the number in nhc.conf.",
		"config.match":     "Correct the match string in nhc.conf: a glob, /regular expression/ or {node range}.",
		"probe.unreadable": "Try to read what the message names, as root; see its mount and dmesg. The check could not tell, and leaves the node as it is.",
		"probe.contained":  "Nothing: run the check on the node itself, or give the container /dev/kmsg.",

		// Those that any check may come to without a word of its own.
		"probe.hung":        "The driver, mount or device that is named did not answer: see dmesg for it. docs/reference/run.md has the rest.",
		"probe.died":        "The check's process ended in mid-run, often by a fault in a vendor's library: see dmesg and the core dump, report it there.",
		"probe.crashed":     "NVIDIA's library ends every process that uses it: try nvidia-smi, see dmesg, reboot the node. If it goes on install the driver again.",
		"probe.error":       "The check could not be carried out; the message says why.",
		"probe.lost":        "A check before it in the same library hung, died or used all the time: see that check.",
		"probe.slow":        "NVML takes longer than the run has: switch on persistence mode (nvidia-persistenced), or give the run more time.",
		"probe.interrupted": "The run was ended from outside: start it again.",
		"run.timeout":       "TIMEOUT of the whole run was over: see which line took so long, or raise TIMEOUT in /etc/sysconfig/nhc.",
		"shell.not-run":     "Run nhc-gpu --check without --no-shell: bash runs the line.",
		"shell.broken":      "bash could not be started or ended in mid-run: try bash -c true, see dmesg for the OOM killer.",
		"scripts.unusable":  "The scripts of /etc/nhc/scripts were not read; the message says why. Built-in checks were run.",
	}
}

// WhatToDo is what to do about a finding of this code, "" if nobody knows.
func WhatToDo(code string) string {
	if do, ok := advice()[code]; ok {
		return do
	}
	for _, info := range registry {
		if info.DoOf == nil {
			continue
		}
		if do := info.DoOf(code); do != "" {
			return do
		}
	}
	return ""
}

// registry has all checks by name.
var registry = map[string]Info{}

// Register adds a check. It is called from init functions and panics on a
// duplicate or an incomplete Info, which is a mistake in the program.
func Register(info Info) {
	if info.Name == "" || info.New == nil || info.Lane == "" || info.Summary == "" {
		panic(fmt.Sprintf("checks: incomplete registration of %q", info.Name))
	}
	if _, ok := registry[info.Name]; ok {
		panic(fmt.Sprintf("checks: %s registered twice", info.Name))
	}
	registry[info.Name] = info
}

// Lookup finds a check by its word in nhc.conf.
func Lookup(name string) (Info, bool) {
	info, ok := registry[name]
	return info, ok
}

// Variables are the variables that checks read, with their defaults.
func Variables() map[string]string {
	vars := map[string]string{}
	for _, info := range registry {
		maps.Copy(vars, info.Vars)
	}
	return vars
}

// Names lists every registered check, sorted.
func Names() []string {
	names := make([]string, 0, len(registry))
	for n := range registry {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// ClassActive is the class of the active tests.
const ClassActive = "active"

// ClassJob is the class of the checks that look at what a job leaves behind.
const ClassJob = "job"

// Bounded is an active check, which knows how long it may take.
type Bounded interface {
	Check
	// Bound is the most that the test takes with its parameters.
	Bound() time.Duration
	// Freshness is how old a result may be that counts in place of a run.
	Freshness() time.Duration
}

// Usable returns the time that a run of this length leaves an active test: a sixth is
// kept for the steps after a hang.
func Usable(run time.Duration) time.Duration { return run - run/6 }

// folds are called in turn with what a check has found.
var folds []func(env *Env, check string, findings []Finding) []Finding

// RegisterFold adds a function that is called with the findings of each check, whose name
// begins its messages, and returns what is to be reported. Call it from init.
func RegisterFold(fold func(env *Env, check string, findings []Finding) []Finding) {
	folds = append(folds, fold)
}

// Look runs a check and returns its findings, as the folds of all families leave them.
// name is the one that its messages begin with.
func Look(ctx context.Context, env *Env, name string, c Check) []Finding {
	findings := c.Run(ctx, env)
	for _, fold := range folds {
		findings = fold(env, name, findings)
	}
	return findings
}
