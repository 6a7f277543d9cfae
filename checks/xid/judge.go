package xid

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// xidJudge classifies the events of a ledger.
type xidJudge struct {
	policy  *xidPolicy
	ledger  *xidLedger
	now     int64                             // Unix time
	hours   int64                             // how long an event that does not drain the node counts, seconds
	passes  int                               // runs without a line after which an event is over; 0: never
	ask     func() map[string]checks.GPUState // reads the states of the GPUs in another process; or nil
	states  map[string]checks.GPUState
	gpus    func() []string // PCI addresses of the node's GPUs; or nil
	rows    map[checks.XidKey]xidRow
	decoded map[string]decodedXid
}

type decodedXid struct {
	class checks.XidClass
	what  string
}

// xidCase is one error of one GPU, with the events that still count.
type xidCase struct {
	gpu    string
	key    checks.XidKey
	row    xidRow
	class  checks.XidClass
	remedy checks.Remedy
	notes  []string
	events []*xidEvent // the oldest first
	all    []*xidEvent // with those that no longer count

	byState bool // it drains the node because of NVML's current state
}

func (c *xidCase) last() *xidEvent { return c.events[len(c.events)-1] }

func (c *xidCase) note(text string) {
	if text != "" && !slices.Contains(c.notes, text) {
		c.notes = append(c.notes, text)
	}
}

// raise gives a case a worse class.
func (c *xidCase) raise(class checks.XidClass, note string) {
	if class.Rank() > c.class.Rank() {
		c.class, c.remedy = class, classRemedy(class, c.row.Remedy)
		c.note(note)
	}
}

func (j *xidJudge) findRow(k checks.XidKey) xidRow {
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

// findCases returns the errors of the ledger that still count, GPU by GPU.
func (j *xidJudge) findCases() []*xidCase {
	groups := map[xidSame][]*xidEvent{}
	for i := range j.ledger.Events {
		e := &j.ledger.Events[i]
		groups[e.place().xidSame] = append(groups[e.place().xidSame], e)
	}
	var cases []*xidCase
	for same, events := range groups {
		slices.SortStableFunc(events, func(a, b *xidEvent) int { return cmp.Compare(a.First, b.First) })
		if c := j.makeCase(same, events, groups); c != nil {
			cases = append(cases, c)
		}
	}
	slices.SortFunc(cases, func(a, b *xidCase) int {
		return strings.Compare(a.sortKey(), b.sortKey())
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
	cases = j.applyActions(cases)
	for _, c := range cases {
		c.applyAgain()
	}
	return slices.DeleteFunc(cases, func(c *xidCase) bool {
		return c.class == checks.XidIgnore || c.class == checks.XidFollow && j.follows(c)
	})
}

func (c *xidCase) sortKey() string { return fmt.Sprintf("%s %v %05d", c.gpu, c.key.Switch, c.key.Code) }

// makeCase returns the case of one error, nil if none of its events counts.
func (j *xidJudge) makeCase(same xidSame, events []*xidEvent, all map[xidSame][]*xidEvent) *xidCase {
	c := &xidCase{gpu: same.gpu, key: same.key, row: j.findRow(same.key), class: checks.XidIgnore, all: events}
	until := j.findClear(same, all)
	for _, e := range events {
		class, notes := j.classify(e, &c.row)
		if j.isOver(e, class, &c.row) || e.Last <= until {
			continue
		}
		switch {
		case class.Rank() > c.class.Rank():
			c.class, c.notes = class, notes
			if c.row.Class != checks.XidAuthority { // the last event of an authority counts
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
	c.remedy = c.row.chooseRemedy(c.class, c.last().Text)
	j.applyRepeat(c)
	return c
}

// findClear returns when another Xid last cleared this one, as 162 clears 163; -1 if none has.
func (j *xidJudge) findClear(same xidSame, all map[xidSame][]*xidEvent) (until int64) {
	until = -1
	for other, events := range all {
		if other.gpu != same.gpu || other.key.Switch != same.key.Switch || other.key == same.key {
			continue
		}
		if r := j.findRow(other.key); r.Clears != 0 && r.Clears == same.key.Code {
			for _, e := range events {
				if e.Boot == j.ledger.Boot {
					until = max(until, e.Last)
				}
			}
		}
	}
	return until
}

// classify returns the class of one event.
func (j *xidJudge) classify(e *xidEvent, r *xidRow) (class checks.XidClass, notes []string) {
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
		class, _, _ = explainAction(e.Action)
	case e.Asks != "" && r.override == "":
		class, notes = e.verdict(class)
	case e.Key.Switch && e.Nonfatal && r.Nonfatal != "":
		class = r.Nonfatal
	case e.Key.Switch && e.Nonfatal && class.Rank() > checks.XidWatch.Rank():
		class = checks.XidWatch
	}
	if e.Raised.Rank() > class.Rank() && r.override == "" {
		if class = e.Raised; slices.Contains(r.Again, class) {
			notes = append(notes, again)
		}
	}
	return class, notes
}

// verdict returns the class of an event by the driver's verdict in its lines, and a note if it changes the class.
func (e *xidEvent) verdict(class checks.XidClass) (checks.XidClass, []string) {
	switch {
	case e.Asks != asksNothing && !class.Drains():
		return checks.XidReset, []string{"the driver requests a reset"}
	case e.Asks == asksNothing && class.Drains():
		return checks.XidWatch, []string{"the driver requests no reset"}
	}
	return class, nil
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

const again = "again within a week"

// applyAgain raises a case that drains the node, and has drained it before. The events keep the class,
// since the older ones are forgotten after a week.
func (c *xidCase) applyAgain() {
	if !c.class.Drains() {
		return
	}
	worst := c.class
	for _, e := range c.events {
		n := c.countEpisodes(e)
		if n == 0 {
			continue
		}
		if up := c.row.Again[min(n, len(c.row.Again))-1]; up.Rank() > c.class.Rank() {
			e.Raised = up
			if up.Rank() > worst.Rank() {
				worst = up
			}
		}
	}
	if worst != c.class {
		c.raise(worst, again)
		c.events = slices.DeleteFunc(c.events, func(e *xidEvent) bool { return e.Raised != worst })
	}
}

// countEpisodes returns how often the error has drained the node in the week before the event, where a
// reset or a reboot separates two episodes.
func (c *xidCase) countEpisodes(e *xidEvent) int {
	r := &c.row
	if len(r.Again) == 0 {
		return 0
	}
	type episode struct {
		boot  string
		epoch int
	}
	seen := map[episode]bool{}
	for _, b := range c.all[:slices.Index(c.all, e)] {
		if b.Drained && (b.Boot != e.Boot || b.Epoch != e.Epoch) && b.Last >= e.First-xidMemory && (r.Same != "link" || b.Link == e.Link) {
			seen[episode{b.Boot, b.Epoch}] = true
		}
	}
	return len(seen)
}

// isOver reports whether an event no longer counts.
func (j *xidJudge) isOver(e *xidEvent, class checks.XidClass, r *xidRow) bool {
	switch {
	case r.Class == checks.XidAuthority: // the last action of a boot applies to the whole boot
		return e.Boot != j.ledger.Boot
	case class == checks.XidHold:
		return false
	case e.Boot != j.ledger.Boot:
		return true
	case j.passes > 0 && e.Passes >= j.passes:
		return true
	case class == checks.XidReboot, class.Drains() && r.Remedy == checks.PowerCycle:
		return false
	case e.Epoch < j.ledger.epoch(e.GPU):
		return true
	case e.Key.Switch && j.gpus != nil && j.ledger.allReset(j.gpus(), e.Seq):
		return true
	}
	return !class.Drains() && e.Last < j.now-j.hours
}

// applyRepeat raises a case with too many events.
func (j *xidJudge) applyRepeat(c *xidCase) {
	rule := c.row.Repeat
	if rule == nil && c.row.Class == checks.XidApp && c.row.override == "" {
		rule = &checks.Repeat{Events: 3, Hours: 24, Class: checks.XidDiag, Jobs: true} // three jobs with the same fault point to the GPU
	}
	if rule == nil {
		return
	}
	counts := map[string]map[string]bool{} // events, or their jobs, by place
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
					continue // two processes can belong to one application
				}
				one, jobless = e.PID, "processes" // all events without a process count as one
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

// qualify adds the details that one Xid gives of another: 171 and 172 give the place of a 48.
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

// follows removes the events of a case that other errors of the GPU explain, and reports whether none
// is left.
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
		if r := j.findRow(other.Key); r.Class == checks.XidIgnore || r.Class == checks.XidFollow {
			continue
		}
		if e.near(other) {
			return true
		}
	}
	return false
}

// near reports whether two events belong to one incident.
func (e *xidEvent) near(other *xidEvent) bool {
	return e.Boot == other.Boot && other.First <= e.Last+xidBurst && e.First <= other.Last+xidBurst
}
