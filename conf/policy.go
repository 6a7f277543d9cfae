package conf

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/conf/tomltext"
)

// Action is the effect of a failure.
type Action string

// The actions, in rising order. FailJob is the default and has every effect of a failure. Drain
// drains the node and lets the job start. Observed reports the effect that the failure would have
// had. Warn only reports the failure. Nothing reports it only in reports that a user requests.
const (
	Nothing  Action = "none"
	Warn     Action = "warn"
	Observed Action = "observe"
	Drain    Action = "drain"
	FailJob  Action = "fail-job"
)

var actions = []Action{Nothing, Warn, Observed, Drain, FailJob}

// Acts reports whether a failure with this action drains the node.
func (a Action) Acts() bool { return a == Drain || a == FailJob || a == "" }

// Policy is what becomes of failures. The zero value of a field leaves the choice to a less
// specific policy.
type Policy struct {
	Contexts []string      // contexts where the check runs, or where the code has an effect; nil: all
	Action   Action        // "": FailJob
	Strikes  Strikes       // runs of the health check with the fault before it has an effect
	Passes   int           // healthy runs in a row before the node is resumed
	Cooldown time.Duration // how long the node must have been healthy before it is resumed; negative for none
	Hours    *Hours        // when the action has its effect; nil: always
	Remedy   string        // instead of the remedy of the finding
	Why      string        // the reason for the policy
}

// Strikes are the runs with a fault, of the last Of runs, that give it its effect.
type Strikes struct{ N, Of int }

// MostStrikes is the largest number of runs that strikes can look back to.
const MostStrikes = 500

// Counts reports whether one run with the fault is not enough.
func (s Strikes) Counts() bool { return s.N > 1 }

func (s Strikes) String() string { return fmt.Sprintf("%d of %d", s.N, s.Of) }

// Or returns p with its empty fields set from other.
func (p Policy) Or(other Policy) Policy {
	if p.Contexts == nil {
		p.Contexts = other.Contexts
	}
	p.Action = cmp.Or(p.Action, other.Action)
	p.Strikes = cmp.Or(p.Strikes, other.Strikes)
	p.Passes = cmp.Or(p.Passes, other.Passes)
	p.Cooldown = cmp.Or(p.Cooldown, other.Cooldown)
	p.Hours = cmp.Or(p.Hours, other.Hours)
	p.Remedy = cmp.Or(p.Remedy, other.Remedy)
	p.Why = cmp.Or(p.Why, other.Why)
	return p
}

// OfFindings returns the part of a check's policy that holds for its findings: its contexts are those
// where the check runs.
func (p Policy) OfFindings() Policy {
	p.Contexts = nil
	return p
}

// Of returns the policy of a check, by name and class.
func (c *Config) Of(name, class string) Policy {
	if c == nil {
		return Policy{}
	}
	return c.Policies[name].Or(c.Policies[class])
}

// OfCode returns the policy of a code alone: its own, then those of its prefixes, the longest first.
func (c *Config) OfCode(code string) (p Policy) {
	if c == nil {
		return p
	}
	for code != "" && IsCode(code) {
		p = p.Or(c.Policies[code])
		code = code[:max(strings.LastIndexByte(code, '.'), 0)]
	}
	return p
}

// IsCode reports whether the name of a policy is a code or a prefix of codes. The name of a class has
// no dot.
func IsCode(name string) bool { return strings.Contains(name, ".") }

func (d *decoder) policies(p toml.Primitive) (all map[string]Policy, places map[string]Pos) {
	var tables map[string]toml.Primitive
	if err := d.md.PrimitiveDecode(p, &tables); err != nil {
		d.add(err)
		return nil, nil
	}
	all, places = map[string]Policy{}, map[string]Pos{}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		var policy Policy
		if d.md.Type("policy", name) != "Hash" {
			d.value(tables[name], func(any) error { return fmt.Errorf("key policy.%s: want [policy.NAME]", name) })
			continue
		}
		d.table("policy."+name, tables[name], policy.keys())
		all[name], places[name] = policy, d.place(tables[name])
	}
	return all, places
}

// keys are the keys of a policy.
func (p *Policy) keys() map[string]func(any) error {
	text := func(to *string) func(any) error {
		return func(v any) error {
			s, ok := v.(string)
			if !ok || s == "" || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' }) {
				return fmt.Errorf("%s: want a text of one line", tomltext.Value(v))
			}
			*to = s
			return nil
		}
	}
	return map[string]func(any) error{
		"contexts": p.takeContexts, "action": p.takeAction, "strikes": p.takeStrikes, "passes": p.takePasses, "cooldown": p.takeCooldown, "hours": p.takeHours,
		"remedy": text(&p.Remedy), "why": text(&p.Why),
	}
}

func (p *Policy) takeContexts(v any) error {
	want := fmt.Errorf("%s: want a list of %s, such as [\"prolog\"]", tomltext.Value(v), strings.Join(contexts, ", "))
	list, ok := v.([]any)
	if !ok {
		return want
	}
	p.Contexts = []string{}
	for _, item := range list {
		name, ok := item.(string)
		if !ok || !slices.Contains(contexts, name) {
			return want
		}
		p.Contexts = append(p.Contexts, name)
	}
	return nil
}

func (p *Policy) takeAction(v any) error {
	name, _ := v.(string)
	if !slices.Contains(actions, Action(name)) {
		var known []string
		for _, a := range actions {
			known = append(known, string(a))
		}
		return fmt.Errorf("%s: want %s", tomltext.Value(v), spell.OneOf(name, known))
	}
	p.Action = Action(name)
	return nil
}

// takeStrikes reads "N of M", or a number N for N of N.
func (p *Policy) takeStrikes(v any) error {
	s := Strikes{}
	switch v := v.(type) {
	case int64:
		s = Strikes{int(min(max(v, 0), MostStrikes+1)), int(min(max(v, 0), MostStrikes+1))}
	case string:
		n, of, _ := strings.Cut(v, " of ")
		s.N, _ = strconv.Atoi(n)
		s.Of, _ = strconv.Atoi(of)
	}
	if s.N < 1 || s.N > s.Of || s.Of > MostStrikes {
		return fmt.Errorf("%s: want \"N of M\" runs, such as \"2 of 3\", with M at most %d", tomltext.Value(v), MostStrikes)
	}
	p.Strikes = s
	return nil
}

func (p *Policy) takePasses(v any) error {
	n, _ := v.(int64)
	if n < 1 || n > MostStrikes {
		return fmt.Errorf("%s: want a whole number of runs, 1 to %d", tomltext.Value(v), MostStrikes)
	}
	p.Passes = int(n)
	return nil
}

// takeCooldown reads minutes or hours: "30m", "2h", or "0m" for none.
func (p *Policy) takeCooldown(v any) error {
	const most = 31 * 24 * time.Hour
	text, _ := v.(string)
	d, err := time.ParseDuration(text)
	switch {
	case err == nil && d > most:
		return fmt.Errorf("%s: want at most %.0fh", tomltext.Value(v), most.Hours())
	case err != nil || d < 0:
		return fmt.Errorf("%s: want minutes or hours, such as \"30m\" or \"2h\"", tomltext.Value(v))
	}
	if p.Cooldown = d; d == 0 {
		p.Cooldown = -1
	}
	return nil
}

func (p *Policy) takeHours(v any) error {
	text, _ := v.(string)
	h, err := ParseHours(text)
	if err != nil {
		return fmt.Errorf("%s: %w", tomltext.Value(v), err)
	}
	p.Hours = h
	return nil
}
