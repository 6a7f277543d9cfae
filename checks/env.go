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

// Env is what a running check may use.
type Env struct {
	Host      *probe.Host         // the node
	Line      string              // the check line as written, LBNL's $CHECK
	Timeout   time.Duration       // TIMEOUT of the whole run; 0 means none
	Job       *Job                // the job that the run is for; nil: there is none
	Vars      map[string]string   // NHC variables that checks read: MAX_SYS_UID ...
	Arrays    map[string][]string // the same of arrays: NHC_MCHECK_DELIM, NHC_MCHECK_COMMAND
	Doing     func(what string)   // names a call that might block, so that a hang can be reported by name; may be nil
	AskPorts  PortAsker           // asks bad ports for what is plugged in; nil: no port is asked
	GPUStates func() []GPUState   // what the driver says of the GPUs now; nil: nobody has asked it
	Platform  PlatformOf          // what is known of a kind of GPU; may be nil
	Periodic  bool                // slurmd has started the run, as its health check
	Learn     bool                // what active tests measure becomes the baseline of this node
	Slurm     *jobscan.SlurmGPUs  // what Slurm's configuration says of the node, for checks with Info.Slurm; nil: nothing
	Hold      bool                // no action is carried out, see acts

	WantedGPUs int // how many GPUs a line of check_gpu_count wants of this node; 0: none says a number

	held []string // actions that were not carried out because of Hold
	said []string // last lines of commands' standard error, see [Env.SaidBy]
}

// PortAnswer is what the worker's helper has read of a port.
type PortAnswer struct {
	PCI         string             `json:"pci"`
	NetDev      string             `json:"netdev,omitempty"` // "": it has none
	Transceiver *network.Module    `json:"transceiver,omitempty"`
	Devlink     []network.Reporter `json:"devlink,omitempty"`
}

// PortAsker answers for as many of some ports as it can within a time.
type PortAsker func(ask []PortAnswer, limit time.Duration) []PortAnswer

// WithDeadline returns ctx with the time at which the supervisor gives the step up. Nothing is
// cancelled then: a command killed at that moment would look like a failure of the node, and the
// supervisor reports the check that has not answered. A context derived from it has a timer only
// for a time before that one.
func WithDeadline(ctx context.Context, at time.Time) context.Context { return stepContext{ctx, at} }

type stepContext struct {
	context.Context

	at time.Time
}

func (c stepContext) Deadline() (time.Time, bool) { return c.at, true }

// Room is how long a check may wait: three quarters of what its step has left.
func Room(ctx context.Context) time.Duration {
	at, ok := ctx.Deadline()
	if !ok {
		return forEver
	}
	return max(time.Until(at)*3/4, 0)
}

// forEver is more than any run takes.
const forEver = time.Hour

// spare is a time that the step has left for what it can do without: a quarter of the rest
// at most.
func spare(ctx context.Context, most time.Duration) time.Duration {
	at, ok := ctx.Deadline()
	if !ok {
		return most
	}
	return min(most, time.Until(at)/4)
}

// At names what the check is about to do, for the report should it never return.
func (e *Env) At(format string, args ...any) {
	if e.Doing != nil {
		e.Doing(fmt.Sprintf(format, args...))
	}
}

// Lookup is the value of a variable as the checks of nhc.conf see it.
func (e *Env) Lookup(name string) string {
	if v, ok := e.Vars[name]; ok {
		return v
	}
	return e.Host.Getenv(name)
}

// array is the value of an array as the checks of nhc.conf see it. A plain
// variable is one with one element.
func (e *Env) array(name string) []string {
	if a, ok := e.Arrays[name]; ok {
		return a
	}
	if v := e.Vars[name]; v != "" {
		return []string{v}
	}
	return nil
}

// Matcher matches strings as LBNL's mcheck does. What is wrong with the
// expressions goes to notes, once each; one that cannot be told to match does not.
func (e *Env) Matcher(notes *[]Finding) func(s, expr string) bool {
	note := func(severity Severity, text string) {
		f := Finding{Code: "config.match", Severity: severity, Message: text, Remedy: FixConfig}
		if !slices.Contains(*notes, f) {
			*notes = append(*notes, f)
		}
	}
	m := match.Matcher{
		External: match.Externals(e.array("NHC_MCHECK_DELIM"), e.array("NHC_MCHECK_COMMAND")),
		Warn:     func(text string) { note(Warn, text) },
	}
	if m.External != nil {
		m.Run = e.external(func(err error) { note(Unknown, err.Error()) })
	}
	return func(s, expr string) bool {
		ok, err := m.Match(s, expr)
		if err != nil {
			note(Unknown, err.Error())
		}
		return ok
	}
}

// external runs the site's own matchers, each string and expression once. What
// they print is dropped. LBNL NHC evaluates the string as a part of the command;
// here it is handed over as $1, for it may be a command line, a path or an
// output that any user has chosen.
func (e *Env) external(broken func(error)) func(match.External, string, string) bool {
	type pair struct{ command, s string }
	known := map[pair]bool{}
	return func(x match.External, s, expr string) bool {
		p := pair{x.Line("$1", expr), s}
		ok, seen := known[p]
		if seen {
			return ok
		}
		// Unquoted, so that runs of blanks collapse; without pathname expansion, as in LBNL NHC.
		c := e.Shell("shopt -s extglob; set -f; eval $2", "nhc", s, p.command)
		e.At("run external matcher %s", x.Command)
		exit := e.Host.Run(context.Background(), c)
		if exit.Err != nil {
			broken(fmt.Errorf("run external matcher %q: %w", x.Command, exit.Err))
		}
		known[p] = exit.Status == 0 && exit.Err == nil && !exit.Stuck
		return known[p]
	}
}

// Abs makes a path of the configuration absolute: a relative one begins where
// the shell lines before it have gone.
func (e *Env) Abs(p string) string {
	if pwd := e.Vars["PWD"]; pwd != "" && p != "" && !strings.HasPrefix(p, "/") {
		return pwd + "/" + p
	}
	return p
}

// Command is a program as the configuration asks for it: it runs where the
// shell lines before it have gone.
func (e *Env) Command(argv ...string) probe.Command {
	return probe.Command{Argv: argv, Dir: e.Vars["PWD"]}
}

// Shell is a command line of the configuration, run by bash. Words are $0, $1 ...
func (e *Env) Shell(line string, words ...string) probe.Command {
	return e.Command(append([]string{"/bin/bash", "-c", line}, words...)...)
}
