package session

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/policy"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// KnownFault is a fault that a check reports, and the severity that it gives the fault.
type KnownFault struct {
	Code, Check string
	Severity    checks.Severity
}

// Planned is the plan of the runs in one context.
type Planned struct {
	Context string
	Plan    *plan.Plan
	Off     string // why these runs act on no failure; "": they do
}

// The actions of [Covered], in rising order, between and beside those of a policy.
const (
	NotChecked = "not checked"
	ByShell    = "shell line" // a line of bash runs the check, and decides
)

var coverRanks = []string{NotChecked, string(conf.Nothing), checks.Warn.String(), checks.Unknown.String(), string(conf.Observed), ByShell, string(conf.Drain), string(conf.FailJob)}

// Covered is what a configuration does about a fault.
type Covered struct {
	Code     string          `json:"code"`
	Severity checks.Severity `json:"severity"`          // below fail: no configuration acts on it
	Action   string          `json:"action"`            // the strongest of all runs
	Context  string          `json:"context,omitempty"` // of these runs
	Check    string          `json:"check,omitempty"`
	Line     string          `json:"line,omitempty"` // its place
	By       string          `json:"by"`             // what decides
}

// Acted reports whether a failure drains the node or fails the job, or whether no configuration would
// do so.
func (c *Covered) Acted() bool {
	return c.Severity < checks.Fail || slices.Index(coverRanks, c.Action) >= slices.Index(coverRanks, ByShell)
}

// Cover returns what a configuration does about each fault, sorted by code. It judges lines and
// policies, not the arguments of the lines.
func Cover(faults []KnownFault, plans []Planned, c *conf.Config) (list []Covered) {
	byCode := map[string][]KnownFault{}
	for _, f := range faults {
		if f.Severity > checks.Skip && !IsConfigError(f.Code) {
			byCode[f.Code] = append(byCode[f.Code], f)
		}
	}
	for _, code := range slices.Sorted(maps.Keys(byCode)) {
		list = append(list, coverCode(byCode[code], plans, c))
	}
	return list
}

// coverCode returns the strongest action on the faults of one code; among equals a policy on a failure
// decides.
func coverCode(faults []KnownFault, plans []Planned, c *conf.Config) Covered {
	slices.SortStableFunc(faults, func(a, b KnownFault) int { return cmp.Compare(b.Severity, a.Severity) })
	best := Covered{Code: faults[0].Code, Severity: faults[0].Severity, Action: NotChecked, By: unchecked(faults, plans)}
	for _, f := range faults {
		for _, p := range plans {
			for i := range p.Plan.Steps {
				got := coverStep(f, &p.Plan.Steps[i], c, p.Context)
				if got.Action != NotChecked && f.Severity == checks.Fail && p.Off != "" {
					got.Action, got.By = string(conf.Nothing), p.Off
				}
				if slices.Index(coverRanks, got.Action) > slices.Index(coverRanks, best.Action) {
					got.Code, got.Severity, got.Context = best.Code, best.Severity, p.Context
					best = got
				}
			}
		}
	}
	return best
}

// coverStep returns what a step does about a fault.
func coverStep(f KnownFault, s *plan.Step, c *conf.Config, context string) Covered {
	got := Covered{Action: NotChecked, Check: f.Check, Line: s.Pos.String()}
	switch {
	case s.Kind == plan.ShellLine && slices.Contains(strings.FieldsFunc(s.Text, isNoWord), f.Check):
		got.Action, got.By = ByShell, "the shell line decides"
	case s.Kind != plan.Native || checks.FullName(s.Name) != f.Check || s.Usage != nil:
	case f.Severity < checks.Fail:
		got.Action, got.By = f.Severity.String(), "the check reports no failure"
	default:
		action, by := effectOf(c, s, f.Code, context)
		got.Action, got.By = string(action), by
	}
	return got
}

func isNoWord(r rune) bool { return r != '_' && (r < 'a' || r > 'z') && (r < '0' || r > '9') }

// effectOf returns what a failure with a code does in a step of a run, and which policy decides that.
func effectOf(c *conf.Config, s *plan.Step, code, context string) (action conf.Action, by string) {
	p := policy.For(c, s.Policy, policy.Subject{Code: code, Check: s.Name, Class: s.Class})
	action, by = p.Action, decider(c, s, code)
	if p.Contexts != nil && !slices.Contains(p.Contexts, context) {
		return conf.Warn, by
	}
	if p.Strikes.Counts() && context == conf.HealthCheck {
		by += ", strikes " + p.Strikes.String()
	}
	if p.Hours != nil {
		by += ", " + p.Hours.String()
	}
	return action, by
}

// decider returns the policy that sets the action, in the order of [policy.For].
func decider(c *conf.Config, s *plan.Step, code string) string {
	var names []string
	for prefix := code; conf.IsCode(prefix); prefix = prefix[:strings.LastIndexByte(prefix, '.')] {
		names = append(names, prefix)
	}
	if c == nil {
		c = &conf.Config{}
	}
	find := func(names ...string) string {
		if i := slices.IndexFunc(names, func(name string) bool { return c.Policies[name].Action != "" }); i >= 0 {
			return fmt.Sprintf("[policy.%s] %s", quoteCode(names[i]), c.Places[names[i]])
		}
		return ""
	}
	table := ""
	if of := c.Of(s.Name, s.Class).Action; s.Table != nil && s.Policy.Action != of {
		table = "action of the [[check]]"
	}
	return cmp.Or(find(names...), table, find(s.Name, s.Class), "the default")
}

// quoteCode returns the name of a policy as nhc.toml has it.
func quoteCode(name string) string {
	if conf.IsCode(name) {
		return `"` + name + `"`
	}
	return name
}

// unchecked returns why no run reports the faults of a code.
func unchecked(faults []KnownFault, plans []Planned) string {
	for _, f := range faults {
		for _, p := range plans {
			for _, s := range p.Plan.Skipped {
				if s.Kind == plan.Native && checks.FullName(s.Name) == f.Check && !Unasked(&s.Step) {
					return fmt.Sprintf("%s: not run as %s: %s", s.Pos, p.Context, s.Because)
				}
			}
		}
	}
	var names []string
	for _, f := range faults {
		if !slices.Contains(names, f.Check) {
			names = append(names, f.Check)
		}
	}
	if len(names) > 2 {
		names = append(names[:2], fmt.Sprintf("%d more", len(names)-2))
	}
	return "no line has " + strings.Join(names, " or ")
}
