package policy

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Replay finds what a policy would have done on recorded events, and compares it with the drains
// and resumes of that time. An event has the failures of its run, those included that its own
// policy held back.
type Replay struct {
	site  *conf.Config
	lines map[string]conf.Policy // of the [[check]] tables, by the check
	nodes map[string]*replayed

	Left []string // the checks whose [[check]] tables differ, so that their policies cannot be replayed

	Events   int
	Late     int // events that were older than the one before of their node: they are skipped
	From, To time.Time
	by       map[string]*Effects
}

// Effects are the effects of a policy on the nodes, for one code.
type Effects struct {
	Code     string `json:"code"`
	Done     Effect `json:"done"`     // as recorded
	Replayed Effect `json:"replayed"` // with the policy
}

// Effect counts drains and resumes, and sums up the time that nodes were drained.
type Effect struct {
	Drains  int     `json:"drains"`
	Resumes int     `json:"resumes"`
	Hours   float64 `json:"node_hours"`
}

// Plus returns the sum of two effects.
func (e Effect) Plus(other Effect) Effect {
	return Effect{e.Drains + other.Drains, e.Resumes + other.Resumes, e.Hours + other.Hours}
}

// replayed is the state of a node in the replay.
type replayed struct {
	last time.Time
	runs map[string]*counted // by the context

	done, replayed drained
}

// counted are the runs of a context that count: those of health checks and by hand.
type counted struct {
	run     int64
	strikes Strikes

	healthy int
	since   time.Time // of the first healthy run in a row
}

// drained is a drain that lasts; the zero value is none.
type drained struct {
	by    *Effect
	at    time.Time
	rule  conf.Policy
	check string
}

func (d *drained) begin(by *Effect, at time.Time, rule conf.Policy, check string) {
	if d.by == nil {
		by.Drains++
		*d = drained{by, at, rule, check}
	}
}

func (d *drained) end(at time.Time, resumed bool) {
	if d.by == nil {
		return
	}
	d.by.Hours += at.Sub(d.at).Hours()
	if resumed {
		d.by.Resumes++
	}
	*d = drained{}
}

// NewReplay returns a replay of a site's policies, nil for the defaults alone.
func NewReplay(site *conf.Config) *Replay {
	r := &Replay{site: site, lines: map[string]conf.Policy{}, nodes: map[string]*replayed{}, by: map[string]*Effects{}}
	if site == nil {
		return r
	}
	for i, e := range site.Checks { // an event does not name the table of a check
		other := func(o conf.Entry) bool {
			return o.Name == e.Name && (o.Hosts != "*" || o.Action != e.Action || !slices.Equal(o.Contexts, e.Contexts) || (o.Contexts == nil) != (e.Contexts == nil))
		}
		switch {
		case slices.ContainsFunc(site.Checks[:i], func(o conf.Entry) bool { return o.Name == e.Name }):
		case !slices.ContainsFunc(site.Checks, other):
			r.lines[e.Name] = e.Policy
		case slices.ContainsFunc(site.Checks, func(o conf.Entry) bool { return o.Name == e.Name && (o.Action != "" || o.Contexts != nil) }):
			r.Left = append(r.Left, e.Name)
		}
	}
	return r
}

// Nodes returns the number of nodes.
func (r *Replay) Nodes() int { return len(r.nodes) }

// Add replays the next event. The events of a node must come in the order of their times.
func (r *Replay) Add(e *event.Event) {
	if e.Context == "" || len(e.Results) == 0 && e.Slurm == nil {
		return // a command of a person
	}
	r.Events++
	n := r.nodes[e.Node]
	if n == nil {
		n = &replayed{runs: map[string]*counted{}}
		r.nodes[e.Node] = n
	}
	if e.Time.Before(n.last) {
		r.Late++
		return
	}
	n.last = e.Time
	if r.From.IsZero() || e.Time.Before(r.From) {
		r.From = e.Time
	}
	if e.Time.After(r.To) {
		r.To = e.Time
	}
	r.compare(n, e)
	r.replay(n, e)
}

// compare records the drain or the resume of that time.
func (r *Replay) compare(n *replayed, e *event.Event) {
	s := e.Slurm
	if s == nil || !s.Sent {
		return
	}
	switch s.Action {
	case "drain":
		code := "no code"
		if i := slices.IndexFunc(e.Results, func(x event.Result) bool { return x.Severity == checks.Fail }); i >= 0 {
			code = codeOf(&e.Results[i])
		}
		for i := range e.Results { // the reason names the worst of several
			if c := e.Results[i].Code; c != "" && strings.Contains(s.Reason, "["+c+"]") {
				code = codeOf(&e.Results[i])
			}
		}
		n.done.begin(&r.of(code).Done, e.Time, conf.Policy{}, "")
	case "resume":
		n.done.end(e.Time, true)
	}
}

// codeOf returns the code of a finding, or its check. A drill is apart: it is no fault to which a policy
// applies.
func codeOf(x *event.Result) string {
	code := cmp.Or(x.Code, x.Check)
	if x.Drill {
		return "drill." + code
	}
	return code
}

func (r *Replay) of(code string) *Effects {
	if r.by[code] == nil {
		r.by[code] = &Effects{Code: code}
	}
	return r.by[code]
}

// replay applies the policies to the findings of an event.
func (r *Replay) replay(n *replayed, e *event.Event) {
	c := n.runs[e.Context]
	if c == nil {
		c = &counted{}
		n.runs[e.Context] = c
	}
	failed, healthy := r.judge(n, e, c.begin(e))
	if failed {
		for _, other := range n.runs {
			other.healthy = 0
		}
	}
	if e.Part || e.Context != conf.HealthCheck && e.Context != conf.Manual {
		return // it has not seen the rest of the node
	}
	switch {
	case !healthy:
		c.healthy = 0
	case c.healthy == 0:
		c.healthy, c.since = 1, e.Time
	default:
		c.healthy++
	}
	looked := n.replayed.by != nil && r.runs(n.replayed.check, e.Context) // only such a run resumes the node
	if healthy && looked && Waits(n.replayed.rule, c.healthy, c.since, e.Time) == "" {
		n.replayed.end(e.Time, true)
	}
}

// begin begins the run of an event. As on the node, each context counts its own runs, those around a job act at
// once, and those of the monitor come as often as events and do not count.
func (c *counted) begin(e *event.Event) Run {
	run := Run{Context: e.Context, Now: e.Time.Local()}
	switch {
	case e.AroundJob():
	case e.Part || e.Context == conf.Monitor:
		run.Count = func(*checks.Finding, int) (int, bool) { return 0, true }
	default:
		c.run++
		run.Count = func(f *checks.Finding, of int) (int, bool) {
			count, _ := c.strikes.Add(KeyOf(f), c.run, of, e.Time)
			return count, true
		}
	}
	return run
}

// judge begins a drain for each failure that the policies leave. healthy is false also if a failure has too few
// strikes, or a result is unknown.
func (r *Replay) judge(n *replayed, e *event.Event, run Run) (failed, healthy bool) {
	healthy = true
	apply := func(f checks.Finding) {
		rule := r.rule(f.Code, f.Check)
		switch f = Apply(f, rule, run); {
		case f.Severity == checks.Fail:
			failed, healthy = true, false
			n.replayed.begin(&r.of(cmp.Or(f.Code, f.Check)).Replayed, e.Time, rule, f.Check)
		case strings.HasPrefix(f.Held, strike):
			healthy = false
		}
	}
	for i := range e.Results {
		x := &e.Results[i]
		f := checks.Finding{Code: x.Code, Check: x.Check, Device: x.Device, Severity: checks.Fail}
		switch {
		case !r.runs(x.Check, e.Context):
		case x.Early():
			healthy = false
		case x.Drill, x.Code == StaysUnknown, x.Code == UnknownGPU: // the last two follow from the unknown results
		case x.Severity == checks.Fail || x.Would != "":
			apply(f)
		case x.Severity == checks.Unknown:
			healthy = false
			for _, code := range StayCodes(x.Code, classOf(x.Check), laneOf(x.Check)) {
				f.Code = code
				if rule := r.rule(code, f.Check); run.Count != nil {
					if count, _ := run.Count(&f, rule.Strikes.Of); count >= rule.Strikes.N {
						apply(f)
					}
				}
			}
		}
	}
	return failed, healthy
}

// runs reports whether a check would have run in a context.
func (r *Replay) runs(check, context string) bool {
	in := r.lines[check].Or(r.site.Of(check, classOf(check))).Contexts
	return in == nil || slices.Contains(in, context)
}

// rule returns the policy of a finding of a check.
func (r *Replay) rule(code, check string) conf.Policy {
	return For(r.site, r.lines[check], Subject{code, check, classOf(check)})
}

func classOf(check string) string {
	if check == event.Shell {
		return checks.ClassShell
	}
	info, ok := checks.Lookup(check)
	if !ok {
		return ""
	}
	return info.Class()
}

func laneOf(check string) checks.Lane {
	info, _ := checks.Lookup(check)
	return info.Lane
}

// Effects ends the replay and returns its effects by code, the most drains first. Drains that have
// not ended last until the end of the events.
func (r *Replay) Effects() (list []Effects) {
	for _, n := range r.nodes {
		n.done.end(r.To, false)
		n.replayed.end(r.To, false)
	}
	for _, code := range slices.Sorted(maps.Keys(r.by)) {
		list = append(list, *r.by[code])
	}
	slices.SortStableFunc(list, func(a, b Effects) int { return b.Replayed.Drains + b.Done.Drains - a.Replayed.Drains - a.Done.Drains })
	return list
}
