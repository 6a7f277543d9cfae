package checks

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// Env is the environment of a running check.
type Env struct {
	Host      *probe.Host         // the node
	Line      string              // the line as written, LBNL's $CHECK
	Timeout   time.Duration       // TIMEOUT of the whole run; 0 means none
	Job       *Job                // the job of a prolog or an epilog, or nil
	Vars      map[string]string   // NHC variables that checks read: MAX_SYS_UID ...
	Arrays    map[string][]string // arrays that checks read: NHC_MCHECK_DELIM, NHC_MCHECK_COMMAND ...
	Doing     func(what string)   // names a call that can block, for the report of a hang; can be nil
	AskPorts  PortAsker           // reads the transceivers of bad ports; nil: no port is read
	GPUStates func() []GPUState   // the state of the GPUs according to the driver; nil: the driver was not queried
	Platform  PlatformOf          // finds the platform of a GPU model; can be nil
	Periodic  bool                // slurmd started the run as its health check
	Part      bool                // the monitor started the run for an event; its unit lets it load no driver
	Learn     bool                // measurements of active tests become this node's baseline
	Slurm     *jobscan.SlurmGPUs  // the node's GPUs in Slurm's configuration, for checks with Info.Slurm; nil: unknown
	DryRun    bool                // no action is carried out, see [Env.Acts]

	WantedGPUs int // number of GPUs that a check_gpu_count line requires of this node; 0: no line has a number

	held []string // see [Env.Held]
	fact []string // see [Env.Fact]
	said []string // last lines of commands' standard error, see [Env.SaidBy]
}

// PortAnswer is the data that the worker's helper has read from a port.
type PortAnswer struct {
	PCI         string             `json:"pci"`
	NetDev      string             `json:"netdev,omitempty"` // "" if it has none
	Transceiver *network.Module    `json:"transceiver,omitempty"`
	Devlink     []network.Reporter `json:"devlink,omitempty"`
}

// PortAsker reads as many of the given ports as it can within limit.
type PortAsker func(ask []PortAnswer, limit time.Duration) []PortAnswer

// WithDeadline returns ctx with the time at which the supervisor abandons the step. The deadline
// cancels nothing: a command killed at that moment would look like a failure of the node, and
// the supervisor reports the check that has not answered. A context derived from it has a timer
// only for an earlier deadline.
func WithDeadline(ctx context.Context, at time.Time) context.Context { return stepContext{ctx, at} }

type stepContext struct {
	context.Context

	at time.Time
}

func (c stepContext) Deadline() (time.Time, bool) { return c.at, true }

// Room returns how long a check can wait: three quarters of its step's remaining time.
func Room(ctx context.Context) time.Duration {
	at, ok := ctx.Deadline()
	if !ok {
		return forEver
	}
	return max(time.Until(at)*3/4, 0)
}

// forEver is longer than any run.
const forEver = time.Hour

// allotSpare returns the time for an optional part of a step: at most a quarter of the remaining
// time, and at most most.
func allotSpare(ctx context.Context, most time.Duration) time.Duration {
	at, ok := ctx.Deadline()
	if !ok {
		return most
	}
	return min(most, time.Until(at)/4)
}

// At names the next call of the check, for the report if that call never returns.
func (e *Env) At(format string, args ...any) {
	if e.Doing != nil {
		e.Doing(fmt.Sprintf(format, args...))
	}
}

// Fact records a value that the check has found: "8 GPUs", "hottest 61 C". --check prints the
// facts of a check that passes, in order.
func (e *Env) Fact(format string, args ...any) { e.fact = append(e.fact, fmt.Sprintf(format, args...)) }

// Facts returns the facts of [Env.Fact] on one line.
func (e *Env) Facts() string { return oneLine(strings.Join(e.fact, ", ")) }

// Lookup returns the value of a variable as the checks of nhc.conf see it.
func (e *Env) Lookup(name string) string {
	if v, ok := e.Vars[name]; ok {
		return v
	}
	return e.Host.Getenv(name)
}

// lookupArray returns the value of an array as the checks of nhc.conf see it. A plain variable is
// an array with one element.
func (e *Env) lookupArray(name string) []string {
	if a, ok := e.Arrays[name]; ok {
		return a
	}
	if v := e.Vars[name]; v != "" {
		return []string{v}
	}
	return nil
}

// Matcher returns a function that matches strings as LBNL's mcheck does. It appends each error
// of an expression to notes once. An invalid expression matches nothing.
func (e *Env) Matcher(notes *[]Finding) func(s, expr string) bool {
	note := func(severity Severity, text string) {
		f := Finding{Code: "config.match", Severity: severity, Message: text, Remedy: FixConfig}
		if !slices.Contains(*notes, f) {
			*notes = append(*notes, f)
		}
	}
	m := match.Matcher{
		External: match.Externals(e.lookupArray("NHC_MCHECK_DELIM"), e.lookupArray("NHC_MCHECK_COMMAND")),
		Warn:     func(text string) { note(Warn, text) },
	}
	if m.External != nil {
		m.Run = e.runExternal(func(err error) { note(Unknown, err.Error()) })
	}
	return func(s, expr string) bool {
		ok, err := m.Match(s, expr)
		if err != nil {
			note(Unknown, err.Error())
		}
		return ok
	}
}

// runExternal runs the site's own matchers, once for each string and expression, and drops their
// output. LBNL NHC evaluates the string as a part of the command. Here the string is passed as
// $1: any user can choose it (a command line, a path, an output), so bash must not evaluate it.
func (e *Env) runExternal(broken func(error)) func(match.External, string, string) bool {
	type pair struct{ command, s string }
	known := map[pair]bool{}
	return func(x match.External, s, expr string) bool {
		p := pair{x.Line("$1", expr), s}
		ok, seen := known[p]
		if seen {
			return ok
		}
		// Unquoted, so runs of blanks collapse; set -f: no pathname expansion. LBNL NHC does the same.
		c := e.Shell("set -f; eval $2", "nhc", s, p.command)
		for name, value := range e.Vars { // also those that are not exported
			if name != "SHELLOPTS" && strings.Contains(x.Command, name) {
				c.Env = append(c.Env, name+"="+value)
			}
		}
		e.At("run external matcher %s", x.Command)
		exit := e.Host.Run(context.Background(), c)
		switch {
		case exit.Err != nil:
			broken(fmt.Errorf("run external matcher %q: %w", x.Command, exit.Err))
		case exit.Status == probe.NotFound: // a function of the site is only in the run's own bash
			broken(fmt.Errorf("run external matcher %q: not found", x.Command))
		}
		known[p] = exit.Status == 0 && exit.Err == nil && !exit.Stuck
		return known[p]
	}
}

// Abs makes a path of the configuration absolute. A relative path starts at the directory
// that earlier shell lines changed to.
func (e *Env) Abs(p string) string {
	if pwd := e.Vars["PWD"]; pwd != "" && p != "" && !strings.HasPrefix(p, "/") {
		return pwd + "/" + p
	}
	return p
}

// Command returns a command of the configuration. It runs in the directory that earlier shell
// lines changed to.
func (e *Env) Command(argv ...string) probe.Command {
	return probe.Command{Argv: argv, Dir: e.Vars["PWD"]}
}

// Shell returns a command line of the configuration, run by bash. words are $0, $1 ...
func (e *Env) Shell(line string, words ...string) probe.Command {
	return e.Command(append([]string{"/bin/bash", "-c", line}, words...)...)
}

// After a boot, links train, and the subnet manager and the fabric manager set up the networks. That
// takes up to minutes and is not a fault.

// BootSettle is how long networks and their services start after a boot.
const BootSettle = 5 * time.Minute

// SinceBoot returns the time since the boot, and whether networks may still be starting.
func (e *Env) SinceBoot() (up time.Duration, starting bool) {
	ticks, err := probe.Uptime(e.Host)
	if err != nil {
		return 0, false
	}
	up = time.Duration(ticks/probe.ClockTicks) * time.Second
	return up, up < BootSettle
}

// BeforeJob reports whether the run decides on the start of a job.
func (e *Env) BeforeJob() bool { return e.Job != nil && !e.Job.Ended }

// Booting reports whether networks may still be starting, and no job needs them yet: a later run judges
// them.
func (e *Env) Booting() bool {
	_, starting := e.SinceBoot()
	return starting && !e.BeforeJob()
}

// NotYet reports whether a code means that a check has not judged something, since it may still be
// starting after a boot. Such a skip is no answer.
func NotYet(code string) bool { return strings.HasSuffix(code, ".boot") }

// Settle returns findings of a check. While [Env.Booting] it replaces the warnings and failures about
// something that starts by skip, whose code is one of [NotYet].
func (e *Env) Settle(findings []Finding, check string, skip Finding, starts func(Finding) bool) []Finding {
	if !e.Booting() {
		return findings
	}
	var starting []string
	findings = slices.DeleteFunc(findings, func(f Finding) bool {
		if f.Severity != Fail && f.Severity != Warn || !starts(f) {
			return false
		}
		starting = append(starting, f.Text(check))
		return true
	})
	if len(starting) == 0 {
		return findings
	}
	if more := len(starting) - 3; more > 0 {
		starting = append(starting[:3], fmt.Sprintf("%d more", more))
	}
	skip.Severity = Skip
	up, _ := e.SinceBoot()
	return append(findings, skip.Describe(check, "not judged in the first %.0f s after a boot, booted %.0f s ago: %s",
		BootSettle.Seconds(), up.Seconds(), strings.Join(starting, "; ")))
}
