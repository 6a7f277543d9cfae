// Package event describes a run as one event, and writes it in the formats that sites collect.
// docs/schema/event.json is the schema of the event. The package is pure.
package event

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Schema is the version of the event. It rises when a field changes its meaning or disappears; a new
// field does not change it.
const Schema = 1

// Event is what a run found and what it did.
type Event struct {
	Schema       int             `json:"schema"`
	Version      string          `json:"version"` // of nhc-gpu
	Node         string          `json:"node"`
	Time         time.Time       `json:"time"`             // the end of the run, UTC
	Run          int64           `json:"run,omitempty"`    // the number of the run in this context, from 1
	Boot         string          `json:"boot,omitempty"`   // the kernel's boot ID
	Context      string          `json:"context"`          // healthcheck, prolog, epilog, manual, monitor or sweep
	Mode         string          `json:"mode"`             // enforce or observe
	Part         bool            `json:"part,omitempty"`   // only the checks that an event concerns
	Job          string          `json:"job,omitempty"`    // of a prolog, an epilog or a sweep
	Config       string          `json:"config,omitempty"` // the file of the lines
	Verdict      checks.Severity `json:"verdict"`          // the worst severity; skip counts as ok
	Exit         int             `json:"exit"`             // exit status of the run
	Milliseconds float64         `json:"milliseconds"`     // duration of the run
	Message      string          `json:"message,omitempty"`
	Stopped      bool            `json:"stopped,omitempty"` // the run ended before its last check, after a failure or a signal
	Results      []Result        `json:"results"`
	Lines        []Result        `json:"-"`                      // the checks and lines of the configuration of a part, made or not; nil: not known
	Slurm        *Action         `json:"slurm,omitempty"`        // nil: the run did not decide about the node
	Healthy      int             `json:"healthy_runs,omitempty"` // healthy runs in a row, with this one
	HealthySince time.Time       `json:"healthy_since,omitzero"` // the first of them
	Drained      time.Time       `json:"-"`                      // when another run drained the node, if this run knows: no earlier run counts as healthy
	Found        bool            `json:"-"`                      // it has found the fault of a drain that its policy does not let act now: it is no healthy run
	Changed      []string        `json:"changed,omitempty"`      // the kinds of changes since the last run of this context, see Compare
	Since        time.Time       `json:"since,omitzero"`         // when the verdict began
	Outputs      []Failure       `json:"outputs,omitempty"`      // the outputs that failed in the run before
	Evidence     string          `json:"evidence,omitempty"`     // the archive that was kept when the fault began
	Drill        *Drill          `json:"drill,omitempty"`        // nil: no rehearsal is under way
	Other        bool            `json:"other,omitempty"`        // of a kept event: a run of another file than the node's
	Accepted     []Result        `json:"accepted,omitempty"`     // of a kept event: findings of earlier runs that a person has accepted, and that no run has judged since
}

// Result is one finding, or a check that passed.
type Result struct {
	Check        string          `json:"check"`          // its name; "shell" for a line of bash
	Line         string          `json:"line,omitempty"` // as written
	Code         string          `json:"code,omitempty"` // of the finding, empty for a check that passed
	Severity     checks.Severity `json:"severity"`
	Device       checks.Device   `json:"device,omitzero"`
	Want         string          `json:"want,omitempty"`
	Got          string          `json:"got,omitempty"`
	Remedy       checks.Remedy   `json:"remedy,omitempty"`
	Do           string          `json:"do,omitempty"`      // advice on this finding, if that on its code does not fit
	Would        string          `json:"would,omitempty"`   // the action that the policy would have taken
	Held         string          `json:"held,omitempty"`    // why it did not: strikes, hours, contexts, observed only
	Message      string          `json:"message,omitempty"` // for a check that passed: what it has found
	Milliseconds float64         `json:"milliseconds"`      // duration of the line
	Drill        bool            `json:"drill,omitempty"`   // of a rehearsal: the fault is not there

	Jobs string `json:"jobs,omitempty"` // that were running when the fault began, or that it is about: their IDs

	Unarchived bool `json:"unarchived,omitempty"` // the archive about it could not be written

	Silenced *checks.Silenced `json:"silenced,omitempty"` // a person has accepted this failure, which is a warning then
	Other    bool             `json:"other,omitempty"`    // of a kept event: a line of another file than the node's has found this accepted failure
}

// Drill is a rehearsal that was under way during the run.
type Drill struct {
	Code   string        `json:"code"`
	Device checks.Device `json:"device,omitzero"`
	Until  time.Time     `json:"until"` // UTC
}

// Action is a decision about the node at Slurm.
type Action struct {
	Action string `json:"action"`           // none, drain, renew, resume
	Sent   bool   `json:"sent"`             // false: nothing was due, the mode is observe, the guard holds the drain, or the delivery failed
	Held   bool   `json:"held,omitempty"`   // the guard holds the drain
	Owner  string `json:"owner"`            // who holds the node: nhc, other, "" for no one
	Helper bool   `json:"helper,omitempty"` // the site's own OFFLINE_NODE or ONLINE_NODE got it, as in each run
	Reason string `json:"reason,omitempty"`
	Why    string `json:"why,omitempty"`
	Error  string `json:"error,omitempty"` // why the decision was not delivered
}

// Failure is an output that failed.
type Failure struct {
	Output string `json:"output"`          // history, jsonl, textfile, journald, syslog, command or evidence
	Error  string `json:"error,omitempty"` // empty with privacy
}

// The names of results that are not those of a check.
const (
	Shell     = "shell"            // a line of bash
	JobHealth = "check_job_health" // its findings are about running jobs, and only observed by default

	Whole = "nhc-gpu" // the whole run: its configuration cannot be used, or there is no recent run
)

// Milliseconds returns a duration in milliseconds, with one decimal.
func Milliseconds(d time.Duration) float64 {
	return math.Round(float64(d.Microseconds())/100) / 10
}

// Parse reads an event.
func Parse(data []byte) (*Event, error) {
	e := new(Event)
	err := json.Unmarshal(data, e)
	return e, err
}

// Line returns the event as one line of JSON, without a newline.
func (e *Event) Line() []byte {
	data, err := json.Marshal(e)
	if err != nil {
		panic("event: " + err.Error()) // TestLine
	}
	return data
}

// Judge sets the verdict to the worst severity of the results.
func (e *Event) Judge() {
	e.Verdict = checks.OK
	for i := range e.Results {
		if s := e.Results[i].Severity; s > checks.Skip {
			e.Verdict = max(e.Verdict, s)
		}
	}
}

// Findings returns the results that are neither ok nor skipped.
func (e *Event) Findings() (list []Result) {
	for _, r := range e.Results {
		if r.Severity > checks.Skip {
			list = append(list, r)
		}
	}
	return list
}

// Has reports whether the code of the result begins with one of some prefixes.
func (r *Result) Has(prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return p != "" && strings.HasPrefix(r.Code, p) })
}

// noResult are the beginnings of codes of checks that had no result, whatever their severity.
var noResult = []string{"config.", "probe.", "run."}

// blinds reports whether the check had no result, and could have found a code with one of some prefixes.
func (r *Result) blinds(prefixes []string) bool {
	switch {
	case r.Severity != checks.Unknown && (r.Severity != checks.Fail || r.Code != "" && !r.Has(noResult)):
		return false
	case r.Check == Whole: // the results of a run that has failed as a whole are there
		return r.Severity == checks.Unknown
	}
	return slices.ContainsFunc(prefixes, func(p string) bool { return p != "" && checks.BearsAny(r.Check, p) })
}

// Only keeps the results whose code begins with one of some prefixes, and those of checks that had no result and
// could have found such a code, and judges the event by them.
func (e *Event) Only(prefixes []string) {
	e.Results = slices.DeleteFunc(slices.Clone(e.Results), func(r Result) bool { return !r.Has(prefixes) && !r.blinds(prefixes) })
	if e.Stopped && len(e.Results) == 0 {
		e.Results = []Result{{Check: Whole, Severity: checks.Unknown, Message: "nhc-gpu:  the run ended at a failure of another check: these checks may not have run"}}
	}
	e.Judge()
}

// key identifies a finding over several runs.
type key struct {
	code     string
	severity checks.Severity
	device   checks.Device
	line     string // of a finding without a code
	jobs     string // of a finding about running jobs
	drill    bool
}

func (r *Result) key() key {
	k := key{code: r.Code, severity: r.Severity, drill: r.Drill}
	if r.hardware() != "" { // users choose the names of others
		k.device = r.Device
	}
	if r.Code == "" {
		k.line = r.Line
	}
	if r.Check == JobHealth {
		k.jobs = r.Jobs
	}
	return k
}

// keys returns the keys of findings, each once.
func keys(findings []Result) (list []key) {
	for _, r := range findings {
		if k := r.key(); !slices.Contains(list, k) {
			list = append(list, k)
		}
	}
	return list
}

// The kinds of a change, [Event.Changed].
const (
	FirstRun   = "first-run"
	NewVerdict = "verdict"
	NewFinding = "findings"
	NewMode    = "mode"
	Drained    = "drained"
	Renewed    = "renewed"
	Resumed    = "resumed"
	Undeliver  = "not-delivered"
	NewOwner   = "owner"
	Cleared    = "cleared"
	Silenced   = "silenced"
	Held       = "held"     // by the guard
	Released   = "released" // the guard no longer holds the drain
	Rehearsed  = "drill"
	Remedied   = "remedy" // a remedy began or ended
)

// ByPerson reports whether the event is the action of a person, or a remedy, which Message describes,
// and no run.
func (e *Event) ByPerson() bool {
	return slices.ContainsFunc(e.Changed, func(kind string) bool {
		return kind == Cleared || kind == Silenced || kind == Rehearsed || kind == Remedied
	})
}

// Real returns the event as it would be without a drill.
func (e *Event) Real() *Event {
	if e.Drill == nil {
		return e
	}
	copied := *e
	copied.Drill, copied.Results = nil, slices.Clone(e.Results)
	for i, r := range copied.Results {
		if r.Drill {
			copied.Results[i] = Result{Check: r.Check, Line: r.Line, Milliseconds: r.Milliseconds}
		}
	}
	copied.Judge()
	return &copied
}

// Compare sets Changed and Since by the run before, which is nil for the first, and takes over its
// failed outputs.
func (e *Event) Compare(old *Event) {
	e.Changed, e.Since, e.Outputs = nil, e.Time, nil
	if old != nil {
		e.Outputs = old.Outputs
	}
	e.Run, e.Healthy, e.HealthySince = 1, 0, time.Time{}
	if old != nil {
		e.Run = old.Run + 1
	}
	if e.isHealthy() && !e.Found {
		e.Healthy, e.HealthySince = 1, e.Time
		if old != nil && old.Healthy > 0 && !old.HealthySince.Before(e.Drained) {
			e.Healthy, e.HealthySince = old.Healthy+1, NotAfter(old.HealthySince, e.Time)
		}
	}
	if old != nil && old.Verdict == e.Verdict && !old.Since.IsZero() {
		e.Since = old.Since
	}
	add := func(kind string, yes bool) {
		if yes {
			e.Changed = append(e.Changed, kind)
		}
	}
	add(FirstRun, old == nil && !e.Part)
	if old == nil {
		old = &Event{Verdict: e.Verdict, Mode: e.Mode}
	}
	if e.Part { // the next one can be about other checks
		told := func(e *Event) []key {
			return keys(slices.DeleteFunc(e.Findings(), func(r Result) bool { return r.Severity != checks.Fail && !r.observed() }))
		}
		known := told(old)
		add(NewFinding, slices.ContainsFunc(told(e), func(k key) bool { return !slices.Contains(known, k) }))
	} else {
		add(NewVerdict, old.Verdict != e.Verdict)
		add(NewFinding, !sameKeys(keys(old.Findings()), keys(e.Findings())))
	}
	add(NewMode, old.Mode != e.Mode)
	now, before := e.Slurm.or(), old.Slurm.or()
	decided := now.Action+now.Reason != before.Action+before.Reason
	sent := now.Sent && !now.Helper
	add(Drained, now.Action == "drain" && !now.Held && (sent || decided || before.Held))
	add(Held, now.Held && !before.Held)
	add(Released, e.Slurm != nil && before.Held && !now.Held)
	add(Renewed, now.Action == "renew" && (sent || decided))
	add(Resumed, now.Action == "resume" && (sent || decided && (!now.Helper || before.Action == "drain")))
	add(Undeliver, now.Error != "" && now.Error != before.Error)
	add(NewOwner, e.Slurm != nil && now.Owner != before.Owner && !slices.Contains(e.Changed, Drained) && !slices.Contains(e.Changed, Resumed))
}

// NotAfter returns a stored time, or now if the clock was ahead when it was stored.
func NotAfter(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return t
}

// Join returns the event that is kept of a run of some checks: e itself, with the findings of the kept event
// before it that e has not judged, and whose lines the configuration still has. The worse of the two gives the rest.
func (e *Event) Join(old *Event) *Event {
	if old == nil {
		return e
	}
	left := old.without(func(r *Result) bool {
		found, gone := e.judges(r)
		return r.Check == Whole || found || gone || e.Lines != nil && len(r.among(e.Lines)) == 0
	})
	if len(left.Findings()) == 0 {
		return e
	}
	worse, other := e, left
	if left.Verdict > e.Verdict {
		worse, other = left, e
	}
	joined := *worse
	joined.Results = slices.Concat(worse.Results, other.Findings())
	joined.Run, joined.Time, joined.Mode, joined.Outputs, joined.Accepted = e.Run, e.Time, e.Mode, e.Outputs, e.Accepted
	joined.Slurm, joined.Evidence = cmp.Or(e.Slurm, old.Slurm), cmp.Or(worse.Evidence, other.Evidence)
	joined.Trim()
	return &joined
}

// After reports whether the run ended after an older one. If the clock was ahead at the old one, any run of
// the same boot that is not in the future did.
func (e *Event) After(old *Event, now time.Time) bool {
	ahead := old.Time.After(now) && !e.Time.After(now) && e.Boot == old.Boot && e.Boot != ""
	return ahead || e.Time.After(old.Time)
}

// Unless returns the event without the findings whose checks a later run of the node has passed.
func (e *Event) Unless(later *Event, now time.Time) *Event {
	if later == nil || !later.After(e, now) {
		return e
	}
	return e.without(func(r *Result) bool {
		_, gone := later.judges(r)
		return gone
	})
}

// judges reports whether the event has a finding of an earlier run, too, or has looked for it in vain. A check
// that is unknown or skipped on the device has not looked. Any later result replaces an unknown one.
func (e *Event) judges(r *Result) (found, gone bool) {
	list := r.among(e.Results)
	blind := false
	for _, now := range list {
		here := now.hardware() == r.hardware()
		blinded := r.Severity != checks.Unknown && (now.Severity == checks.Skip || now.Severity == checks.Unknown)
		found = found || here && now.Code == r.Code && now.Drill == r.Drill && now.Severity > checks.Skip && !blinded
		blind = blind || blinded && (here || now.hardware() == "" || r.hardware() == "")
	}
	return found, len(list) > 0 && !found && !blind
}

// among returns the results of the same line, or of the same check if one of the two has no line: with privacy
// there are none.
func (r *Result) among(list []Result) (same []Result) {
	for _, now := range list {
		if now.Line == r.Line && r.Line != "" || (now.Line == "" || r.Line == "") && now.Check == r.Check {
			same = append(same, now)
		}
	}
	return same
}

// without returns a judged copy of the event without some of its findings.
func (e *Event) without(gone func(*Result) bool) *Event {
	left := *e
	left.Results = slices.DeleteFunc(slices.Clone(e.Results), func(r Result) bool { return r.Severity > checks.Skip && gone(&r) })
	if left.Judge(); left.Verdict != e.Verdict {
		left.Since, left.Slurm = time.Time{}, nil
	}
	return &left
}

// isHealthy reports whether the run has found no fault, and could evaluate every check, also after a boot.
// A fault that the policy only observes is none, one that waits for further strikes is.
func (e *Event) isHealthy() bool {
	return e.Verdict <= checks.Warn && !slices.ContainsFunc(e.Results, func(r Result) bool { return r.Struck() || r.Early() })
}

// Outside reports whether the fault acts at other times or in other contexts only.
func (r *Result) Outside() bool { return strings.HasPrefix(r.Held, "outside ") }

// observed reports whether a policy only observes the fault: what it would have done is for the history.
func (r *Result) observed() bool { return r.Held == "observed only" }

// Struck reports whether the fault waits for further strikes.
func (r *Result) Struck() bool { return strings.HasPrefix(r.Held, "strike ") }

// Early reports whether the check has not judged something, since it may still be starting after a boot.
func (r *Result) Early() bool { return r.Severity == checks.Skip && checks.NotYet(r.Code) }

func (a *Action) or() Action {
	if a == nil {
		return Action{}
	}
	return *a
}

func sameKeys(a, b []key) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(k key) bool { return !slices.Contains(b, k) })
}

// AroundJob reports whether the run was a prolog or an epilog: it has not seen the whole node.
func (e *Event) AroundJob() bool { return e.Context == "prolog" || e.Context == "epilog" }

// The largest event: users can make many and long messages.
const (
	maxFindings = 200     // failures, and as many other findings
	maxText     = 1 << 10 // bytes
)

// Trim bounds the size of the event. Of many findings it removes only those that repeat an earlier one: users
// can make processes and files, but no lines, codes and hardware.
func (e *Event) Trim() {
	type kind struct {
		severity                  checks.Severity
		check, line, code, device string
	}
	seen, count := map[kind]bool{}, map[bool]int{}
	e.Results = slices.DeleteFunc(e.Results, func(r Result) bool {
		if r.Severity <= checks.Skip {
			return false
		}
		k, fails := kind{r.Severity, r.Check, r.Line, r.Code, r.hardware()}, r.Severity == checks.Fail
		surplus := count[fails] >= maxFindings && seen[k]
		seen[k] = true
		count[fails]++
		return surplus
	})
	for i := range e.Lines {
		e.Lines[i].Line = cut(e.Lines[i].Line, maxText)
	}
	for i := range e.Results {
		r := &e.Results[i]
		for _, text := range []*string{&r.Line, &r.Message, &r.Want, &r.Got, &r.Device.Name} {
			*text = cut(*text, maxText)
		}
	}
}

// Short returns the event without the results that are ok or skipped, for the history.
func (e *Event) Short() *Event {
	short := *e
	short.Results = append([]Result{}, e.Findings()...) // never null
	return &short
}

// hardware returns the name of the device if it is hardware, else "".
func (r *Result) hardware() string {
	if !r.Device.IsHardware() {
		return ""
	}
	return cmp.Or(r.Device.Name, r.Device.PCI)
}

// Private returns the event without texts and names that can contain users, processes, files and
// command lines. Codes, hardware devices and remedies stay.
func (e *Event) Private() *Event {
	p := *e
	p.Message, p.Config, p.Job, p.Evidence = "", "", "", ""
	if e.Drill != nil && !e.Drill.Device.IsHardware() {
		p.Drill = &Drill{Code: e.Drill.Code, Until: e.Drill.Until}
	}
	p.Results, p.Accepted = private(e.Results), private(e.Accepted)
	if e.Slurm != nil {
		s := *e.Slurm
		s.Reason, s.Why = "", ""
		if s.Error != "" {
			s.Error = "not delivered"
		}
		p.Slurm = &s
	}
	return &p
}

func private(list []Result) []Result {
	list = append([]Result{}, list...) // never null
	for i := range list {
		r := &list[i]
		r.Line, r.Message, r.Want, r.Got, r.Jobs = "", "", "", "", ""
		if r.hardware() == "" {
			r.Device = checks.Device{}
		}
		if r.Silenced != nil {
			r.Silenced = &checks.Silenced{Until: r.Silenced.Until, Since: r.Silenced.Since}
		}
	}
	return list
}
