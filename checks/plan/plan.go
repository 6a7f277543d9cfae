// Package plan turns the lines of a configuration into steps: which check, with
// which words, in which worker, behind which barrier. It is a pure function of
// its input and touches no machine.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-multierror"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Kind says how a step is carried out.
type Kind int

// The kinds of steps.
const (
	Native    Kind = iota // a registered check, in the worker of its lane
	ShellLine             // anything else: verbatim, in the one bash of the run
	Assign                // literal assignments: settings of the run, also told to bash
)

func (k Kind) String() string { return [...]string{"native", "shell", "assign"}[k] }

// Var is one assignment that was carried out while planning.
type Var struct {
	Name, Value string
	Export      bool
}

// Step is one check line, ready to run.
type Step struct {
	Index   int
	Pos     conf.Pos
	Text    string // as written; LBNL's $CHECK
	Kind    Kind
	Lane    checks.Lane
	Name    string          // native: the check
	Args    []string        // native: its words, expanded
	Table   map[string]any  // native: its parameters, where they came from TOML
	Vars    []Var           // native: what earlier lines assigned
	Usage   *checks.Finding // native: the error in its arguments; it is not run
	Lacks   string          // native: the argument that it needs and does not have, where LBNL NHC runs it all the same
	Sets    []Var           // assign
	Barrier bool            // may change something, or runs a command: alone, after all earlier steps have passed
	Timeout time.Duration   // deadline of the step; 0: none but the run's
	Why     string          // shell: why it is no native step
	Garbled bool            // shell: the line is not the grammar of a shell
	Command string          // shell: the command, where no earlier line can have defined it
	Calls   []string        // shell: the commands in the line, where nothing earlier can have defined them
	NewPath bool            // shell: an earlier line has set PATH, where Command may be
	Class   string          // of the check, see [checks.Info.Class]
	Active  bool            // native: it loads the node, see [checks.Info.Active]
	Bound   time.Duration   // native: the most that an active test takes, by its own word
	MaxAge  time.Duration   // native: a result of an active test that is no older counts in place of a run
	OnlyOld bool            // native: it is not run, only its last result is looked at
	Policy  conf.Policy     // of the site; its action is never empty
}

// Plan is all steps of a run, in order.
type Plan struct {
	Steps []Step
	Left  []Left // what is not run in this context
	// Problems are the errors of the configuration that LBNL NHC has no
	// verdict for: each drains nobody and is reported with its position.
	Problems *multierror.Error
}

// Left is a step that is left out, and why.
type Left struct {
	Step

	Because string
}

// Lanes are those of the native steps, but of active tests whose last result will do
// as a rule: they are not worth a worker that waits for them.
func (p *Plan) Lanes() (lanes []checks.Lane) {
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Kind == Native && s.Usage == nil && s.MaxAge == 0 && !slices.Contains(lanes, s.Lane) {
			lanes = append(lanes, s.Lane)
		}
	}
	return lanes
}

// NeedsShell says whether any step needs a bash.
func (p *Plan) NeedsShell() bool {
	for i := range p.Steps {
		if p.Steps[i].Kind == ShellLine {
			return true
		}
	}
	return false
}

// Options is what the planner knows beside the lines.
type Options struct {
	Vars      map[string]string // variables as bash will have them: settings and environment
	Timeout   time.Duration     // TIMEOUT of the run; 0: none
	Functions map[string]bool   // shell functions that site scripts define
	Sourced   bool              // site scripts or a sysconfig file ran in bash: its variables are not known here
	Trace     bool              // -x: everything that can is run by bash, which prints it
	InPlace   func(string) bool // says whether a line stays in the main shell where others are forked (-f)

	Context  string       // of the run, as in nhc.toml; "": everything is planned
	Own      bool         // the lines are for this context alone: nhc-prolog.conf
	NoGPUs   string       // why nothing of GPUs is looked at; "": it is
	Policies *conf.Config // of the site; may be nil
}

// longestStep bounds a native step where the run has no deadline or a long
// one: no local read takes that long on a node that works.
const longestStep = 10 * time.Second

// longestVendor is that of a step in a vendor's library where the run has no
// deadline.
const longestVendor = 25 * time.Second

// activeGrace is what an active test has beyond its own bound: to load its library,
// to wake the GPUs, to clean up.
const activeGrace = 15 * time.Second

// Fits says whether a run of some length, 0 for ever, leaves a step the time that it
// says itself it may take; else it is never run.
func (s *Step) Fits(run time.Duration) bool {
	return !s.Active || run <= 0 || s.Bound < checks.Usable(run)
}

// Build plans lines in their order.
func Build(lines []conf.Line, opts Options) *Plan {
	b := &builder{
		opts:    opts,
		vars:    maps.Clone(opts.Vars),
		funcs:   maps.Clone(opts.Functions),
		unknown: opts.Sourced,
		plan:    new(Plan),
	}
	if b.vars == nil {
		b.vars = map[string]string{}
	}
	if b.funcs == nil {
		b.funcs = map[string]bool{}
	}
	for _, line := range lines {
		b.line(line)
	}
	return b.plan
}

// BuildTables plans the entries of a TOML configuration.
func BuildTables(entries []conf.Entry, opts Options) *Plan {
	opts.Own = false // they name the contexts that they are for
	b := &builder{opts: opts, plan: new(Plan)}
	for _, e := range entries {
		s := Step{Pos: e.Pos, Text: e.Name, Kind: Native, Name: e.Name, Table: e.Params, Policy: e.Policy}
		info, ok := checks.Lookup(e.Name)
		if !ok {
			s.Usage = b.problem(e.Pos, e.Name, errors.New("no check of that name, docs/reference/checks has them all"))
			b.add(s)
			continue
		}
		c := info.New()
		b.native(&s, info, c, checks.BindTable(c, e.Params))
		b.add(s)
	}
	return b.plan
}

type builder struct {
	opts     Options
	vars     map[string]string
	set      []Var    // by the lines since the last shell line
	exported []string // names that they export
	funcs    map[string]bool
	unknown  bool     // a shell line may have set variables: their values are not known here
	typed    bool     // a shell line has declared variables, read-only ones perhaps
	path     bool     // a shell line has set PATH: checks that run commands are called by bash
	pos      conf.Pos // of the shell line whose effects are looked at
	opaque   conf.Pos // the shell line that may have changed anything: native checks are called by bash
	plan     *Plan
}

func (b *builder) add(s Step) {
	s.Policy = s.Policy.Or(b.opts.Policies.Of(s.Name, s.Class)).Or(conf.Policy{Action: conf.FailJob})
	if why := b.leftOut(&s); why != "" {
		b.plan.Left = append(b.plan.Left, Left{s, why})
		return
	}
	s.Index = len(b.plan.Steps)
	b.plan.Steps = append(b.plan.Steps, s)
}

// leftOut says why a step is not run in the context of the run. Around a job only
// what is cheap and changes nothing runs unasked: a check of this program that
// reads files or a vendor's library.
func (b *builder) leftOut(s *Step) (why string) {
	around := b.opts.Context == conf.Prolog || b.opts.Context == conf.Epilog
	switch {
	case b.opts.Context == "" || s.Kind == Assign:
		return ""
	case (s.Class == "gpu" || s.Lane.Vendor()) && b.opts.NoGPUs != "":
		return b.opts.NoGPUs
	case s.Class == checks.ClassJob && b.opts.Context == conf.Prolog:
		return "the job has left nothing yet"
	case s.OnlyOld && s.Policy.Contexts == nil: // that costs next to nothing
		return ""
	case s.Policy.Contexts != nil:
		if !slices.Contains(s.Policy.Contexts, b.opts.Context) {
			return "its contexts are " + cmp.Or(strings.Join(s.Policy.Contexts, ", "), "none")
		}
		return ""
	case !around || b.opts.Own:
		return ""
	case s.Kind == ShellLine:
		return "what a line for the shell costs and does is not known"
	case s.Active:
		return "it loads the node; with --max-age a prolog looks at its last result"
	case s.Barrier && s.Class != checks.ClassJob: // that is for an epilog, and the site has asked for it
		return "it runs commands, or changes something"
	}
	return ""
}

// Add appends the steps of another plan.
func (p *Plan) Add(other *Plan) {
	for _, s := range other.Steps {
		s.Index = len(p.Steps)
		p.Steps = append(p.Steps, s)
	}
	p.Left = append(p.Left, other.Left...)
	if other.Problems != nil {
		p.Problems = multierror.Append(p.Problems, other.Problems.Errors...)
	}
}

// UnknownPolicy is an error for each policy whose name is neither a check nor a
// class of checks: it would be in force for nothing. So is one for each setting of NCCL
// that its tests do not take.
func UnknownPolicy(c *conf.Config) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Policies)) {
		_, ok := checks.Lookup(name)
		switch {
		case !ok && !slices.Contains(checks.Classes(), name):
			errs = append(errs, fmt.Errorf("%s: policy.%s: want the name of a check, or a class: %s", c.Places[name], name, strings.Join(checks.Classes(), ", ")))
		case name == checks.ClassShell && (c.Policies[name].Action == conf.Warn || c.Policies[name].Action == conf.Nothing):
			errs = append(errs, fmt.Errorf("%s: policy.shell.action: %s: want drain or fail-job: a line of bash says itself what is only a warning", c.Places[name], c.Policies[name].Action))
		}
	}
	for _, word := range c.NCCLEnv {
		if err := checks.WrongNCCLEnv(word); err != nil {
			errs = append(errs, fmt.Errorf("%s: active.nccl_env: %w", c.NCCLEnvPlace, err))
		}
	}
	return errors.Join(errs...)
}

func (b *builder) problem(pos conf.Pos, name string, err error) *checks.Finding {
	err = fmt.Errorf("%s: %s: %w", pos, name, err)
	b.plan.Problems = multierror.Append(b.plan.Problems, err)
	return &checks.Finding{Code: "config.usage", Severity: checks.Unknown, Message: err.Error(), Remedy: checks.FixConfig}
}

// native completes a step whose check c has been bound, or not (err).
func (b *builder) native(s *Step, info checks.Info, c checks.Check, err error) {
	s.Lane, s.Class = info.Lane, info.Class()
	s.Timeout = StepTimeout(info, c, b.opts.Timeout)
	if test, ok := c.(checks.Bounded); ok && info.Active {
		s.Active, s.Bound, s.MaxAge = true, test.Bound(), test.Freshness()
		s.OnlyOld = s.MaxAge > 0 && b.opts.Context == conf.Prolog
	}
	s.Barrier = runsCommands(info, c) || s.Class == checks.ClassJob && info.Acts != nil && b.opts.Policies.Role(b.opts.Context).End
	s.Vars = slices.Clip(b.set)
	if b.opts.Policies != nil && len(b.opts.Policies.NCCLEnv) > 0 && s.Active && info.Lane == checks.CUDA {
		s.Vars = append(s.Vars, Var{Name: checks.NCCLEnvSetting, Value: strings.Join(b.opts.Policies.NCCLEnv, "\n")})
	}
	if err == nil {
		s.Lacks = lacking(s, info)
		return
	}
	// In a line of nhc.conf LBNL NHC's verdict on its own checks stands; TOML is ours.
	usage, isUsage := errors.AsType[*checks.UsageError](err)
	if isUsage && info.BadUsage != nil && s.Table == nil {
		f := info.BadUsage(s.Text, usage)
		s.Usage = &f
		return
	}
	s.Usage = b.problem(s.Pos, info.Name, fmt.Errorf("%w; usage: %s %s", err, info.Name, info.Usage))
}

// lacking returns which argument a line needs and does not have, "" if it has all of them.
func lacking(s *Step, info checks.Info) string {
	for i, word := range strings.Fields(info.Usage) {
		if s.Table != nil || strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" {
			break // the next arguments are optional, or options
		}
		if i >= len(s.Args) || s.Args[i] == "" {
			return "no " + word + " is given; usage: " + info.Name + " " + info.Usage
		}
	}
	return ""
}

// runsCommands says whether a bound check runs commands, or changes something
// by one.
func runsCommands(info checks.Info, c checks.Check) bool {
	return info.Active || info.Lane == checks.Cmd || info.Acts != nil && info.Acts(c)
}

// StepTimeout gives a native step half of the run, so that a hang leaves time
// for what comes after it, and at most [longestStep]. A check that waits for a
// command has that command's own limit, and the run's: 0. A vendor's library has
// five sixths of the run: without persistence mode the driver takes a second or
// two to wake each GPU, and a node that is slow is not one that hangs. A check that
// waits has two thirds. An active test has what it says itself, and a moment more.
// timeout is TIMEOUT.
func StepTimeout(info checks.Info, c checks.Check, timeout time.Duration) time.Duration {
	if info.Timeout > 0 {
		return info.Timeout
	}
	if test, ok := c.(checks.Bounded); ok && info.Active {
		return test.Bound() + activeGrace
	}
	if info.Lane == checks.Cmd {
		return 0
	}
	if info.Waits && !info.Lane.Vendor() && timeout > 0 {
		return timeout * 2 / 3
	}
	if info.Lane.Vendor() {
		if timeout <= 0 {
			return longestVendor
		}
		return timeout * 5 / 6
	}
	if t := timeout / 2; t > 0 && t < longestStep {
		return t
	}
	return longestStep
}
