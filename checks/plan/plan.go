// Package plan turns the lines of a configuration into steps: check, arguments, worker and
// barrier. It is a pure function of its input and does not access the machine.
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
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// Kind is how a step runs.
type Kind int

// The kinds of steps.
const (
	Native    Kind = iota // a registered check, in the worker of its lane
	ShellLine             // anything else: verbatim, in the one bash of the run
	Assign                // literal assignments: settings of the run, which bash gets, too
)

func (k Kind) String() string { return [...]string{"native", "shell", "assign"}[k] }

// Var is one assignment that the planner evaluated.
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
	Args    []string        // native: its arguments, expanded
	Table   map[string]any  // native: its parameters from TOML
	Vars    []Var           // native: the assignments of earlier lines
	Usage   *checks.Finding // native: the error in its arguments; the step does not run
	Lacks   string          // native: a required argument that is missing, if LBNL NHC runs the check nevertheless
	Sets    []Var           // assign
	Barrier bool            // it can change something, or runs a command: it runs alone, after all earlier steps have passed
	Timeout time.Duration   // deadline of the step; 0: only the run's deadline
	Why     string          // shell: why it is not a native step
	Garbled bool            // shell: the line has a syntax error
	Command string          // shell: the command, if no earlier line can have defined it
	Calls   []string        // shell: the commands in the line that nothing earlier can have defined
	NewPath bool            // shell: an earlier line sets PATH, which can contain Command
	Class   string          // of the check, see [checks.Info.Class]
	Active  bool            // native: it loads the node, see [checks.Info.Active]
	Bound   time.Duration   // native: the longest time that an active test takes, as it declares
	MaxAge  time.Duration   // native: a result of an active test that is not older replaces a run
	OnlyOld bool            // native: it does not run; only its last result is read
	Policy  conf.Policy     // the site's policy for the check
}

// Plan holds all steps of a run, in order.
type Plan struct {
	Steps   []Step
	Skipped []Skipped // the steps that are skipped in this context
	// Problems are the errors of the configuration that LBNL NHC has no message for.
	// They drain no node, and are reported with their position.
	Problems *multierror.Error
}

// Skipped is a skipped step, and why.
type Skipped struct {
	Step

	Because string
}

// Lanes returns the lanes of the native steps. It omits those of active tests that usually
// need only their last result: no worker should wait for them.
func (p *Plan) Lanes() (lanes []checks.Lane) {
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Kind == Native && s.Usage == nil && s.MaxAge == 0 && !slices.Contains(lanes, s.Lane) {
			lanes = append(lanes, s.Lane)
		}
	}
	return lanes
}

// NeedsShell reports whether any step needs bash.
func (p *Plan) NeedsShell() bool {
	for i := range p.Steps {
		if p.Steps[i].Kind == ShellLine {
			return true
		}
	}
	return false
}

// Options is the input of the planner besides the lines.
type Options struct {
	Vars      map[string]string   // variables as bash will have them: settings and environment
	Arrays    map[string][]string // arrays of the settings; lines with one are left to bash
	Timeout   time.Duration       // TIMEOUT of the run; 0: none
	Functions map[string]bool     // shell functions that site scripts define
	Sourced   bool                // site scripts or a sysconfig file ran in bash; their variables are not known here
	Trace     bool                // -x: bash runs everything that it can, and prints it
	InPlace   func(string) bool   // reports whether a line runs in the main shell although -f forks

	Context  string         // the run's context, as in nhc.toml; "": plan everything
	Own      bool           // the lines are only for this context: nhc-prolog.conf
	NoGPUs   string         // why checks of GPUs are skipped; "": they are not
	Events   []monitor.Kind // of a run of the monitor: the kinds of the events before it
	Policies *conf.Config   // the site's policies; can be nil
}

// longestStep limits a native step if the run has no deadline or a long one: no local read
// takes longer on a working node.
const longestStep = 10 * time.Second

// longestVendor is the same limit for a step in a vendor's library, if the run has no
// deadline.
const longestVendor = 25 * time.Second

// activeGrace is the time that an active test gets in addition to its own bound: to load its
// library, to wake the GPUs, to clean up.
const activeGrace = 15 * time.Second

// Fits reports whether a run of this length, 0 for no limit, has enough time for the bound that
// the step declares; otherwise the step never runs.
func (s *Step) Fits(run time.Duration) bool {
	return !s.Active || run <= 0 || s.Bound < checks.Usable(run)
}

// Build plans lines in order.
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
		b.planLine(line)
	}
	return b.plan
}

// BuildTables plans the entries of a TOML configuration.
func BuildTables(entries []conf.Entry, opts Options) *Plan {
	opts.Own = false // each entry names its contexts
	b := &builder{opts: opts, plan: new(Plan)}
	for _, e := range entries {
		s := Step{Pos: e.Pos, Text: e.Name, Kind: Native, Name: e.Name, Table: e.Params, Policy: e.Policy}
		info, ok := checks.Lookup(e.Name)
		if !ok {
			s.Usage = b.reportProblem(e.Pos, e.Name, errors.New("no check has this name; docs/reference/checks lists all"))
			b.add(s)
			continue
		}
		c := info.New()
		b.planNative(&s, info, c, checks.BindTable(c, e.Params))
		b.add(s)
	}
	return b.plan
}

type builder struct {
	opts     Options
	vars     map[string]string
	set      []Var    // assignments since the last shell line
	exported []string // names exported by them
	funcs    map[string]bool
	unknown  bool     // a shell line can have set variables; their values are not known here
	typed    bool     // a shell line has declared variables, possibly read-only ones
	path     bool     // a shell line has set PATH: bash calls the checks that run commands
	pos      conf.Pos // position of the shell line that is analysed
	opaque   conf.Pos // the shell line that can have changed anything: bash calls the native checks
	plan     *Plan
}

func (b *builder) add(s Step) {
	s.Policy = s.Policy.Or(b.opts.Policies.Of(s.Name, s.Class))
	if why := b.explainSkip(&s); why != "" {
		b.plan.Skipped = append(b.plan.Skipped, Skipped{s, why})
		return
	}
	s.Index = len(b.plan.Steps)
	b.plan.Steps = append(b.plan.Steps, s)
}

// explainSkip returns why a step is skipped in the context of the run, "" if it is not. Around a
// job or after an event, only cheap steps without side effects run by default: checks of this program
// that read files or a vendor's library.
func (b *builder) explainSkip(s *Step) (why string) {
	around := b.opts.Context == conf.Prolog || b.opts.Context == conf.Epilog
	woken := b.opts.Context == conf.Monitor
	switch {
	case b.opts.Context == "" || s.Kind == Assign:
		return ""
	case (s.Class == "gpu" || s.Lane.Vendor()) && b.opts.NoGPUs != "":
		return b.opts.NoGPUs
	case s.Class == checks.ClassJob && b.opts.Context == conf.Prolog:
		return "the job has not started yet"
	case s.OnlyOld && s.Policy.Contexts == nil: // this is cheap
		return ""
	case s.Policy.Contexts != nil:
		if !slices.Contains(s.Policy.Contexts, b.opts.Context) {
			return "its contexts are " + cmp.Or(strings.Join(s.Policy.Contexts, ", "), "none")
		}
		return ""
	case woken && !monitor.Concerns(b.opts.Events, s.Class):
		return "the event does not concern it"
	case woken && (s.Name == "check_hw_ib" || s.Name == "check_hw_eth"): // they have no strikes
		return "a link that flaps must not drain the node"
	case !around && !woken || b.opts.Own:
		return ""
	case s.Kind == ShellLine:
		return "a shell line can take long or change something"
	case s.Active:
		return "it loads the node; with --max-age a prolog reads its last result"
	case s.Barrier && s.Class != checks.ClassJob: // the site wrote it for the epilog
		return "it runs commands or changes something"
	}
	return ""
}

// Add appends the steps of another plan.
func (p *Plan) Add(other *Plan) {
	for _, s := range other.Steps {
		s.Index = len(p.Steps)
		p.Steps = append(p.Steps, s)
	}
	p.Skipped = append(p.Skipped, other.Skipped...)
	if other.Problems != nil {
		p.Problems = multierror.Append(p.Problems, other.Problems.Errors...)
	}
}

// UnknownPolicy returns an error for each policy whose name is neither a check nor a class of
// checks, and for each setting of NCCL that the tests do not accept.
func UnknownPolicy(c *conf.Config) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(c.Policies)) {
		p := c.Policies[name]
		_, ok := checks.Lookup(name)
		switch {
		case conf.IsCode(name) && !checks.KnownCode(name), !conf.IsCode(name) && !ok && !slices.Contains(checks.Classes(), name):
			errs = append(errs, fmt.Errorf("%s: %s", c.Places[name], unknownPolicy(name)))
		case name == checks.ClassShell && !p.Action.Acts():
			errs = append(errs, fmt.Errorf("%s: policy.shell.action: %s: want drain or fail-job: a line of bash decides itself whether it fails or warns", c.Places[name], p.Action))
		case name == checks.ClassShell && (p.Strikes.Counts() || p.Hours != nil || p.Remedy != ""):
			errs = append(errs, fmt.Errorf("%s: policy.shell: want contexts, action, passes and cooldown alone: a line of bash decides itself when it fails", c.Places[name]))
		}
		if p.Remedy != "" && !checks.IsRemedy(p.Remedy) {
			errs = append(errs, fmt.Errorf("%s: policy.%s.remedy: %q: want %s", c.Places[name], name, p.Remedy, spell.OneOf(p.Remedy, checks.Remedies())))
		}
	}
	for _, word := range c.NCCLEnv {
		if err := checks.WrongNCCLEnv(word); err != nil {
			errs = append(errs, fmt.Errorf("%s: active.nccl_env: %w", c.NCCLEnvPlace, err))
		}
	}
	return errors.Join(errs...)
}

// unknownPolicy returns the error of a policy whose name nothing has, with the table that it stands for.
func unknownPolicy(name string) string {
	known, text := append(checks.Names(), checks.Classes()...), "no check and no class has this name"
	if conf.IsCode(name) {
		known, text = nil, "no code begins with it"
		for _, code := range checks.Codes() {
			for at, c := range code {
				if c == '.' {
					known = append(known, code[:at])
				}
			}
			known = append(known, code)
		}
	}
	want := "the code of a finding, the name of a check, or a class: " + strings.Join(checks.Classes(), ", ")
	if near := spell.Nearest(name, known); near != "" {
		want = fmt.Sprintf("[policy.%s]", near)
		if conf.IsCode(near) {
			want = fmt.Sprintf("[policy.%q]", near)
		}
	}
	return fmt.Sprintf("policy %q: %s: want %s", name, text, want)
}

func (b *builder) reportProblem(pos conf.Pos, name string, err error) *checks.Finding {
	err = fmt.Errorf("%s: %s: %w", pos, name, err)
	b.plan.Problems = multierror.Append(b.plan.Problems, err)
	return &checks.Finding{Code: "config.usage", Severity: checks.Unknown, Message: err.Error(), Remedy: checks.FixConfig}
}

// planNative completes a native step with its bound check c or with the error of binding.
func (b *builder) planNative(s *Step, info checks.Info, c checks.Check, err error) {
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
		s.Lacks = lacking(s, info, c)
		return
	}
	// In nhc.conf, the checks of LBNL NHC report a usage error as LBNL NHC does. TOML has no such rule.
	usage, isUsage := errors.AsType[*checks.UsageError](err)
	if isUsage && info.BadUsage != nil && s.Table == nil {
		f := info.BadUsage(s.Text, usage)
		s.Usage = &f
		return
	}
	s.Usage = b.reportProblem(s.Pos, info.Name, fmt.Errorf("%w; usage: %s %s", err, info.Name, info.Usage))
}

// lacking returns which argument a line needs and does not have, or cannot have, "" if there is none.
func lacking(s *Step, info checks.Info, c checks.Check) string {
	if d, ok := c.(checks.Contradicting); ok {
		if _, why := d.Contradiction(); why != "" {
			return why
		}
	}
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

// runsCommands reports whether a bound check runs commands, including those that change
// something.
func runsCommands(info checks.Info, c checks.Check) bool {
	return info.Active || info.Lane == checks.Cmd || info.Acts != nil && info.Acts(c)
}

// StepTimeout returns the deadline of a native step; timeout is TIMEOUT. A step gets half of
// the run, at most [longestStep], so that a hang leaves time for the following steps. A check
// that waits for a command has that command's own limit, and the run's: 0. A [checks.Waiter]
// gets the whole run, which without a timeout is 0, too. A vendor's library gets five sixths of the run: without persistence mode
// the driver takes a second or two to wake each GPU, and a slow node does not hang. A check that
// waits gets two thirds. An active test gets its own bound plus activeGrace.
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
	if w, ok := c.(checks.Waiter); ok && w.WaitsForCommand() {
		return timeout
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
