package xid

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// xidJudge makes findings of the events of a ledger.
type xidJudge struct {
	policy  *xidPolicy
	ledger  *xidLedger
	now     int64                             // Unix time
	hours   int64                             // for how long an event that drains nobody counts, seconds
	passes  int                               // runs without a line after which an event is over; 0: never
	ask     func() map[string]checks.GPUState // what the driver says of the GPUs now, which takes a process of its own; or nil
	states  map[string]checks.GPUState
	rows    map[checks.XidKey]xidRow
	decoded map[string]decodedXid
}

type decodedXid struct {
	class checks.XidClass
	what  string
}

// xidCase is one error of one GPU: the events that still count.
type xidCase struct {
	gpu    string
	key    checks.XidKey
	row    xidRow
	class  checks.XidClass
	remedy checks.Remedy
	notes  []string
	events []*xidEvent // the oldest first

	byState bool // what NVML says now makes it drain the node
}

func (c *xidCase) last() *xidEvent { return c.events[len(c.events)-1] }

func (c *xidCase) note(text string) {
	if text != "" && !slices.Contains(c.notes, text) {
		c.notes = append(c.notes, text)
	}
}

// raise makes a case worse.
func (c *xidCase) raise(class checks.XidClass, note string) {
	if class.Rank() > c.class.Rank() {
		c.class, c.remedy = class, classRemedy(class, c.row.Remedy)
		c.note(note)
	}
}

func (j *xidJudge) row(k checks.XidKey) xidRow {
	r, ok := j.rows[k]
	if !ok {
		r = j.policy.row(k)
		if j.rows == nil {
			j.rows = map[checks.XidKey]xidRow{}
		}
		j.rows[k] = r
	}
	return r
}

// cases are what the ledger comes to, GPU by GPU.
func (j *xidJudge) cases() []*xidCase {
	groups := map[xidSame][]*xidEvent{}
	for i := range j.ledger.Events {
		e := &j.ledger.Events[i]
		groups[e.place().xidSame] = append(groups[e.place().xidSame], e)
	}
	var cases []*xidCase
	for same, events := range groups {
		slices.SortStableFunc(events, func(a, b *xidEvent) int { return cmp.Compare(a.First, b.First) })
		if c := j.one(same, events, groups); c != nil {
			cases = append(cases, c)
		}
	}
	slices.SortFunc(cases, func(a, b *xidCase) int {
		return strings.Compare(a.order(), b.order())
	})
	if j.ask != nil && slices.ContainsFunc(cases, func(c *xidCase) bool { return c.class != checks.XidIgnore }) {
		j.states = j.ask()
	}
	for _, c := range cases {
		if s, ok := j.states[c.gpu]; ok && c.class != checks.XidAuthority {
			c.decide(s)
		}
	}
	qualify(cases)
	cases = j.authority(cases)
	return slices.DeleteFunc(cases, func(c *xidCase) bool {
		return c.class == checks.XidIgnore || c.class == checks.XidFollow && j.follows(c)
	})
}

func (c *xidCase) order() string { return fmt.Sprintf("%s %v %05d", c.gpu, c.key.Switch, c.key.Code) }

// one makes a case of the events of one error, nil if none of them counts.
func (j *xidJudge) one(same xidSame, events []*xidEvent, all map[xidSame][]*xidEvent) *xidCase {
	c := &xidCase{gpu: same.gpu, key: same.key, row: j.row(same.key), class: checks.XidIgnore}
	until := j.takenBack(same, all)
	for i, e := range events {
		class, notes := j.classOf(e, &c.row, events[:i])
		if j.over(e, class, &c.row) || e.Last <= until {
			continue
		}
		switch {
		case class.Rank() > c.class.Rank():
			c.class, c.notes = class, notes
			if c.row.Class != checks.XidAuthority { // of which the last word counts
				c.events = nil
			}
		case class.Rank() < c.class.Rank() && c.row.Class != checks.XidAuthority:
			continue
		}
		c.events = append(c.events, e)
	}
	if len(c.events) == 0 {
		return nil
	}
	c.remedy = c.row.remedyOf(c.class, c.last().Text)
	j.repeated(c)
	return c
}

// takenBack is when another Xid took this one back: 162 does so with 163.
func (j *xidJudge) takenBack(same xidSame, all map[xidSame][]*xidEvent) (until int64) {
	until = -1
	for other, events := range all {
		if other.gpu != same.gpu || other.key.Switch != same.key.Switch || other.key == same.key {
			continue
		}
		if r := j.row(other.key); r.Clears != 0 && r.Clears == same.key.Code {
			for _, e := range events {
				if e.Boot == j.ledger.Boot {
					until = max(until, e.Last)
				}
			}
		}
	}
	return until
}

// classOf is the class of one event; before are the older ones of its error.
func (j *xidJudge) classOf(e *xidEvent, r *xidRow, before []*xidEvent) (class checks.XidClass, notes []string) {
	class = r.Class
	switch {
	case class == checks.XidDecode:
		d := j.decode(e)
		class, notes = d.class, append(notes, d.what)
	case e.Key == (checks.XidKey{Code: xidNVLink}) && r.override == "":
		registers, _, what := decodeNVLink74(e.Text)
		if registers != "" {
			class = registers
		}
		if what != "" {
			notes = append(notes, what)
		}
	case class == checks.XidAuthority:
		class, _, _ = recoveryAction(e.Action)
	case e.Key.Switch && e.Nonfatal && r.Nonfatal != "":
		class = r.Nonfatal
	case e.Key.Switch && e.Nonfatal && class.Rank() > checks.XidWatch.Rank():
		class = checks.XidWatch
	}
	if n := episodes(e, r, before); n > 0 && class.Drains() {
		if up := r.Again[min(n, len(r.Again))-1]; up.Rank() > class.Rank() {
			class, notes = up, append(notes, "again within a week")
		}
	}
	if e.Raised.Rank() > class.Rank() && r.override == "" {
		class = e.Raised
	}
	return class, notes
}

func (j *xidJudge) decode(e *xidEvent) decodedXid {
	d, ok := j.decoded[e.Sub+e.Text]
	if !ok {
		d.class, d.what = decodeXid(e.Key.Code, e.Text, j.ledger.Driver)
		if j.decoded == nil {
			j.decoded = map[string]decodedXid{}
		}
		j.decoded[e.Sub+e.Text] = d
	}
	return d
}

// episodes is how often the error was there before a reset or a reboot, within
// the week before the event.
func episodes(e *xidEvent, r *xidRow, before []*xidEvent) int {
	if len(r.Again) == 0 {
		return 0
	}
	type episode struct {
		boot  string
		epoch int
	}
	seen := map[episode]bool{}
	for _, b := range before {
		if (b.Boot != e.Boot || b.Epoch != e.Epoch) && b.Last >= e.First-xidMemory && (r.Same != "link" || b.Link == e.Link) {
			seen[episode{b.Boot, b.Epoch}] = true
		}
	}
	return len(seen)
}

// over says whether an event no longer counts.
func (j *xidJudge) over(e *xidEvent, class checks.XidClass, r *xidRow) bool {
	switch {
	case r.Class == checks.XidAuthority: // the last word of a boot holds for all of it
		return e.Boot != j.ledger.Boot
	case class == checks.XidHold:
		return false
	case e.Boot != j.ledger.Boot:
		return true
	case j.passes > 0 && e.Passes >= j.passes:
		return true
	case class == checks.XidReboot:
		return false
	case e.Epoch < j.ledger.epoch(e.GPU):
		return true
	}
	return !class.Drains() && e.Last < j.now-j.hours
}

// repeated raises a case whose events come too often.
func (j *xidJudge) repeated(c *xidCase) {
	rule := c.row.Repeat
	if rule == nil && c.row.Class == checks.XidApp && c.row.override == "" {
		rule = &checks.Repeat{Events: 3, Hours: 24, Class: checks.XidDiag, Jobs: true} // three jobs with one fault are not three mistakes
	}
	if rule == nil {
		return
	}
	counts := map[string]map[string]bool{} // by place: the events, or the jobs they are of
	what, jobless := "events", "jobs"
	for _, e := range c.events {
		if e.Last < j.now-int64(rule.Hours)*60*60 {
			continue
		}
		place, one := "", fmt.Sprint(e.Boot, e.First, e.Sub)
		if rule.Same == "place" {
			if place = e.Place; place == "" {
				continue
			}
		}
		if rule.Jobs {
			if one = "job " + e.Job; e.Job == "" {
				if rule.Class.Drains() {
					continue // two processes may be one application
				}
				one, jobless = e.PID, "processes" // all that the driver knows no process of count as one
			}
			what = jobless
		}
		if counts[place] == nil {
			counts[place] = map[string]bool{}
		}
		counts[place][one] = true
	}
	for _, place := range slices.Sorted(maps.Keys(counts)) {
		n := counts[place]
		if len(n) < rule.Events {
			continue
		}
		note := fmt.Sprintf("of %d %s within %d hours", len(n), what, rule.Hours)
		if place != "" {
			note = "on " + place + " " + note
		}
		c.raise(rule.Class, note)
		if rule.Class.Drains() {
			c.last().Raised = rule.Class
		}
	}
}

// qualify notes what an Xid tells of another one: 171 and 172 say where the
// error of a 48 is.
func qualify(cases []*xidCase) {
	for _, c := range cases {
		if c.row.Qualifies == 0 {
			continue
		}
		for _, other := range cases {
			if other.gpu == c.gpu && other.key == (checks.XidKey{Code: c.row.Qualifies}) {
				_, where, _ := strings.Cut(c.row.Means, ": the error is ")
				other.note(where)
			}
		}
	}
}

// follows says whether other errors of the GPU explain one that only follows.
// What they do not explain stays.
func (j *xidJudge) follows(c *xidCase) bool {
	c.events = slices.DeleteFunc(c.events, j.explained)
	return len(c.events) == 0
}

func (j *xidJudge) explained(e *xidEvent) bool {
	for i := range j.ledger.Events {
		other := &j.ledger.Events[i]
		if other.GPU != e.GPU || other.Key == e.Key {
			continue
		}
		if r := j.row(other.Key); r.Class == checks.XidIgnore || r.Class == checks.XidFollow {
			continue
		}
		if e.near(other) {
			return true
		}
	}
	return false
}

// near says whether two events are of one incident.
func (e *xidEvent) near(other *xidEvent) bool {
	return e.Boot == other.Boot && other.First <= e.Last+xidBurst && e.First <= other.Last+xidBurst
}
