// Package checks holds the parts that all checks share: the registry, parameters, findings,
// advice, and the data that families of checks have in common. The checks themselves are in
// the packages below it.
//
// A check is one file: a doc comment, a struct with the parameters as fields, an init function
// that registers the check, and Run. A new check needs no edit of another Go file: only a row in
// codes.toml for each of its codes. Checks never
// access the machine directly: they read it through the [probe.Host] in their [Env], so a test
// can replace the machine by a tree of files.
package checks

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// Check is one bound check. Its fields are its parameters, filled by [Bind] from the arguments
// in nhc.conf or by [BindTable] from TOML.
type Check interface {
	// Run inspects the node and returns its findings. The check passes if no finding is
	// worse than Warn. Run can block forever: it must be called only in a worker process,
	// under the deadline of its step, which is in ctx ([WithDeadline]).
	Run(ctx context.Context, env *Env) []Finding
}

// Namer is a check whose name in messages can be set on its line (-C).
type Namer interface {
	// CalledAs returns that name.
	CalledAs() string
}

// Validator is a check that rejects some values of its parameters.
type Validator interface {
	// Validate returns the error in the parameters. [Bind] and [BindTable] call it; a Bind
	// method of the check must call it itself.
	Validate() error
}

// Lane is a class of checks that share one worker process. A hang in one lane does not delay
// the others.
type Lane string

// The lanes. Local reads files, mounts, /proc and /sys. Cmd runs commands, one at a time.
// The others are named after the vendor library that they load.
const (
	Local Lane = "local"
	Cmd   Lane = "cmd"
	NVML  Lane = "nvml"
	DCGM  Lane = "dcgm"
	CUDA  Lane = "cuda" // includes NCCL and cuBLASLt, which use CUDA's contexts
	Shell Lane = "shell"
)

// Worker returns the lane whose worker runs the steps of this lane. A command cannot hang its
// worker, so one process serves files and commands.
func (l Lane) Worker() Lane {
	if l == Cmd {
		return Local
	}
	return l
}

// Vendor reports whether the lane loads a vendor library. After a hang in such a lane, its
// remaining steps are skipped: the next call would hang, too.
func (l Lane) Vendor() bool { return l == NVML || l == DCGM || l == CUDA }

// FullName returns the name of a check with its prefix, which a table of nhc.toml can omit.
func FullName(name string) string { return "check_" + strings.TrimPrefix(name, "check_") }

// ClassShell is the class of the lines that bash runs.
const ClassShell = "shell"

// Class returns the class of a check, a group of checks with its own policies: "gpu", "fs", "ps".
// It is the part of the name after check_, with two exceptions: "gpu" for all checks of GPUs
// except those of what a job leaves behind, and "active" for the tests that load the node.
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
	Name    string        // the name in nhc.conf: check_fs_mount
	Usage   string        // the arguments: "[-0] -f FS ..."
	Summary string        // one line, for lists
	Lane    Lane          // the worker that runs it
	Timeout time.Duration // deadline of one step; 0 means the lane's default
	New     func() Check  // returns a check with its defaults

	// Acts reports whether a bound check can change something on the node. Such a
	// step runs alone, after every earlier step has passed. Nil means never.
	Acts func(Check) bool

	// Active is set if the check loads the node to measure it (package active). It runs alone,
	// never beside a job, and no longer than its [Bounded] allows.
	Active bool

	// Slurm reports whether a bound check needs Slurm's configuration, Env.Slurm.
	// Nil means never.
	Slurm func(Check) bool

	// Waits is set if the check waits for a condition that ends by itself. It gets
	// two thirds of the run's time, and must return before its context's deadline.
	Waits bool

	// BadUsage turns a usage error into the finding that LBNL NHC reports for it
	// when the step runs. Nil means that a usage error is an error of the configuration:
	// it is reported with its position and drains no node.
	BadUsage func(line string, err *UsageError) Finding

	// Vars are the variables of nhc.conf that the check reads, with their
	// defaults.
	Vars map[string]string

	// Do returns the advice on each code that the check reports, for an administrator at
	// night: one or two sentences. Checks that share a code share its advice.
	// [RegisterAdvice] adds the advice on codes of a whole family. Do is a function so that
	// a run without findings builds no tables of texts.
	Do func() map[string]string

	// DoOf returns the advice on codes with a number, such as "gpu.xid.79", and "" for
	// codes of other checks. Nil means that the check has no such codes.
	DoOf func(code string) string
}

// shared holds the advice on codes that several checks report.
var shared = []func() map[string]string{adviseCommon}

// RegisterAdvice adds advice on codes that several checks report. Call it from init
// functions.
func RegisterAdvice(do func() map[string]string) { shared = append(shared, do) }

// SharedAdvice returns the advice on codes that several checks report.
var SharedAdvice = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	for _, do := range shared {
		advise(all, do())
	}
	return all
})

// advice returns the advice on all codes. It is built lazily: a run without findings never
// needs it.
var advice = sync.OnceValue(func() map[string]string {
	all := maps.Clone(SharedAdvice())
	for _, name := range Names() {
		advise(all, registry[name].Advice())
	}
	return all
})

// advise adds do to all. It returns the codes that already have different advice; that advice
// stays.
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

// AdviceConflicts returns the codes that two checks give different advice for.
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

// Advice returns the advice on the codes of the check.
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

// BearsAny reports whether a code of the check can begin with a prefix. A prefix that no check bears, gpu.xid.79, counts
// for all checks of its class.
func BearsAny(check, prefix string) bool {
	codes := slices.DeleteFunc(Codes(), func(code string) bool { return !strings.HasPrefix(code, prefix) })
	begins := func(name string) bool {
		info, _ := Lookup(name)
		return info.Bears(prefix) || slices.ContainsFunc(codes, info.Bears)
	}
	if begins(check) {
		return true
	}
	info, _ := Lookup(check)
	class, _, _ := strings.Cut(prefix, ".")
	return info.Name != "" && info.Class() == class && !slices.ContainsFunc(Names(), begins)
}

// adviseCommon returns the advice on codes that any check can report.
func adviseCommon() map[string]string {
	return map[string]string{
		"config.command":   "Correct the name in the line, or install the command; nhc-gpu lint lists such lines. CONFIG_ERRORS=drain drains the node for them.",
		"config.usage":     "Correct the line in nhc.conf; docs/reference/checks lists the arguments of each check.",
		"config.value":     "Correct the number in nhc.conf.",
		"config.match":     "Correct the match string in nhc.conf: a glob, /regular expression/ or {node range}.",
		"probe.unreadable": "As root, read the file that the message names; look at its mount and at dmesg. The check has no result and does not change the node's state.",
		"probe.locked":     "Ask the user of the process, or end it: its memory is locked, as by a FUSE mount that does not answer, or its environment exceeds 1 MiB. ps may block, too. Checks use its name only.",
		"probe.contained":  "Nothing: run the check on the node itself, or give the container /dev/kmsg.",

		// Codes that the supervisor and the workers report for any check.
		"probe.hung":        "The driver, mount or device in the message does not answer. A mount: repair its file server or the network; a reboot does not help. A GPU, adapter or local disk: search dmesg for it, then reboot the node. A process in state D can block the shutdown: be ready for a power cycle by the BMC.",
		"probe.died":        "The check's process crashed, usually in a vendor library: look at dmesg and the core dump, and report the crash to the vendor.",
		"probe.crashed":     "NVIDIA's library crashes every process that uses it: try nvidia-smi, look at dmesg, reboot the node. If it still crashes, reinstall the driver.",
		"probe.error":       "The check could not run; the message gives the reason.",
		"probe.lost":        "An earlier check in the same library hung, crashed or used all the time: look at that check.",
		"probe.slow":        "The check still makes progress, and needs more time than the run has. If it asks NVML, enable persistence mode (nvidia-persistenced); else raise TIMEOUT in /etc/sysconfig/nhc.",
		"probe.scan":        "The check still lists processes or their files: a user has very many. End these processes, or raise TIMEOUT in /etc/sysconfig/nhc. The node is not drained for it.",
		"probe.interrupted": "A signal ended the run: start it again.",
		"run.timeout":       "The run reached its TIMEOUT: find the line that took so long, or raise TIMEOUT in /etc/sysconfig/nhc.",
		"monitor.silent":    "The monitor of this node does not run, or one of its sources of events does not answer: systemctl restart nhc-gpu-monitor; journalctl -u nhc-gpu-monitor has its last lines. Health checks go on.",
		"remedy.hold":       "The remedies of nhc.toml did not repair the node. Replace the part (nhc-gpu rma DEVICE lists what a vendor asks for), then run nhc-gpu clear --remedy.",
		"unknown.stays":     "The result of this check has been unknown for many runs: the message repeats the last one. Repair what the check needs, or remove the line.",
		"unknown.gpu":       "For hours the check could read nothing of this GPU, or could not run: try nvidia-smi, search dmesg for NVRM, reboot the node. [policy.\"unknown.gpu\"] action = \"warn\" in nhc.toml keeps the node in service.",
		"shell.not-run":     "Run nhc-gpu --check without --no-shell: bash runs the line.",
		"shell.broken":      "bash did not start, or ended before the run: try bash -c true, search dmesg for the OOM killer.",
		"scripts.unusable":  "The scripts in /etc/nhc/scripts were not read; the message gives the reason. The built-in checks ran.",
	}
}

// WhatToDo returns the advice on a code, "" if there is none.
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

// registry holds all checks by name.
var registry = map[string]Info{}

// Register adds a check. Call it from init functions. It panics on a duplicate or an
// incomplete Info: both are errors in the program.
func Register(info Info) {
	if info.Name == "" || info.New == nil || info.Lane == "" || info.Summary == "" {
		panic(fmt.Sprintf("checks: incomplete registration of %q", info.Name))
	}
	if _, ok := registry[info.Name]; ok {
		panic(fmt.Sprintf("checks: %s registered twice", info.Name))
	}
	registry[info.Name] = info
}

// Lookup finds a check by its name in nhc.conf.
func Lookup(name string) (Info, bool) {
	info, ok := registry[name]
	return info, ok
}

// Variables returns the variables that checks read, with their defaults.
func Variables() map[string]string {
	vars := map[string]string{}
	for _, info := range registry {
		maps.Copy(vars, info.Vars)
	}
	return vars
}

// Names lists every registered check, sorted.
func Names() []string { return slices.Sorted(maps.Keys(registry)) }

// ClassActive is the class of the active tests.
const ClassActive = "active"

// ClassJob is the class of the checks that look at what a job leaves behind.
const ClassJob = "job"

// Contradicting is a check whose arguments can exclude each other, so that it fails on every node.
type Contradicting interface {
	// Contradiction returns the argument that cannot be right, and why; two empty texts if
	// there is none.
	Contradiction() (word, why string)
}

// Doubtful is a check whose arguments are valid, and do not judge what they seem to judge.
type Doubtful interface {
	// Doubt returns the argument, the mistake, its effect, and better arguments; four empty texts if there
	// is no mistake.
	Doubt() (word, text, now, better string)
}

// Bounded is an active check. It limits its own duration.
type Bounded interface {
	Check
	// Bound returns the longest time that the test takes with its parameters.
	Bound() time.Duration
	// Freshness returns the greatest age of an earlier result that replaces a run.
	Freshness() time.Duration
}

// Waiter is a check that can wait for a command of the site, as long as the run lasts.
type Waiter interface {
	Check
	WaitsForCommand() bool
}

// Usable returns the part of a run's duration that an active test can use. One sixth is
// reserved for the steps after a hang.
func Usable(run time.Duration) time.Duration { return run - run/6 }

// folds are called in order with the findings of each check.
var folds []func(env *Env, check string, findings []Finding) []Finding

// RegisterFold adds a function that receives the findings of each check and returns the
// findings to report. check is the name that begins the messages. Call it from init.
func RegisterFold(fold func(env *Env, check string, findings []Finding) []Finding) {
	folds = append(folds, fold)
}

// Look runs a check, applies all folds and returns the findings. name is the name that begins
// the messages.
func Look(ctx context.Context, env *Env, name string, c Check) []Finding {
	findings := c.Run(ctx, env)
	for _, fold := range folds {
		findings = fold(env, name, findings)
	}
	return findings
}
