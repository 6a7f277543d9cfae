// Package remedy chooses the repair of a node that has failed: which remedy is next for its faults,
// what speaks against it now, and when the tries are over. The package is pure.
package remedy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// HoldCode is the code of a fault that no remedy has repaired. Only a person ends it.
const HoldCode = "remedy.hold"

// Record is the memory of remedies of a node. It survives a boot.
type Record struct {
	Version  int       `json:"version"`
	Attempts []Attempt `json:"attempts,omitempty"` // the oldest first
	Holds    []Hold    `json:"holds,omitempty"`
	Boot     string    `json:"boot,omitempty"`    // in which the record was made
	Restore  *Restore  `json:"restore,omitempty"` // what the reset of a GPU must put back; nil: nothing
}

const version = 1

// Fault identifies a fault that is repaired.
type Fault struct {
	Code   string        `json:"code"`
	Device checks.Device `json:"device,omitzero"`
	Check  string        `json:"check"`
}

func (f Fault) String() string {
	return f.Code + checks.Before(" of ", f.Device.String(), "")
}

// is reports whether both are the same fault of the same device.
func (f Fault) is(other Fault) bool {
	return f.Code == other.Code && (f.Device == other.Device || f.Device.Of(other.Device))
}

// Attempt is one remedy that was begun for a fault.
type Attempt struct {
	Fault

	Name  string    `json:"name"` // of the site's remedy
	Do    string    `json:"do"`
	Begin time.Time `json:"begin"` // UTC
	Boot  string    `json:"boot"`  // in which it was begun
	Drill bool      `json:"drill,omitempty"`
	Done  bool      `json:"done"` // its result is known
	Error string    `json:"error,omitempty"`

	Unanswered bool `json:"unanswered,omitempty"` // Slurm did not answer the request of a reboot, and no run has seen the request since
}

// Restore is the state before the reset of GPUs. It is stored before anything is stopped.
type Restore struct {
	Boot     string   `json:"boot"` // of that state
	Services []string `json:"services,omitempty"`
	GPUs     []Modes  `json:"gpus,omitempty"`
}

// Modes are the settings of a GPU that a reset loses.
type Modes struct {
	GPU    string   `json:"gpu"` // PCI address, or UUID
	Values []string `json:"values"`
}

// Hold is a fault that the remedies have not repaired.
type Hold struct {
	Fault

	Since time.Time `json:"since"`
	Tried []string  `json:"tried,omitempty"` // in the order of their first try
	Why   string    `json:"why,omitempty"`   // another cause of the hold
}

// Finding returns the finding of a hold.
func (h *Hold) Finding() checks.Finding {
	f := checks.Finding{Code: HoldCode, Severity: checks.Fail, Device: h.Device, Remedy: checks.ReseatOrRMA, Check: h.Check}
	if h.Why != "" {
		f.Remedy = checks.NoRemedy
		return f.Phrase(h.Check, "%s: repair the node, then run nhc-gpu clear --remedy", h.Why)
	}
	return f.Phrase(h.Check, "%s has returned after %s: replace the part, then run nhc-gpu clear --remedy", h.Code, strings.Join(h.Tried, ", "))
}

// NewRecord returns an empty record.
func NewRecord() Record { return Record{Version: version} }

// Parse reads a record. No data is a damaged one: a power cut can leave an empty file.
func Parse(data []byte) (r Record, err error) {
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("the record of remedies is damaged: %w", err)
	}
	if r.Version != version {
		return r, fmt.Errorf("the record of remedies has version %d, want %d", r.Version, version)
	}
	return r, nil
}

// keepAttempts is how long attempts are stored: the longest window.
const keepAttempts = 90 * 24 * time.Hour

// Begin adds the attempts of a remedy, and drops those that no window covers.
func (r *Record) Begin(n *Next, boot string, now time.Time) {
	r.Attempts = slices.DeleteFunc(r.Attempts, func(a Attempt) bool { return a.Done && now.Sub(a.Begin) > keepAttempts })
	for _, f := range n.Faults {
		r.Attempts = append(r.Attempts, Attempt{Fault: f, Name: n.Name, Do: n.Do, Drill: n.Drill, Begin: now.UTC().Truncate(time.Second), Boot: boot})
	}
}

// Open returns the attempts whose result is unknown.
func (r *Record) Open() (list []*Attempt) {
	for i := range r.Attempts {
		if !r.Attempts[i].Done {
			list = append(list, &r.Attempts[i])
		}
	}
	return list
}

// Survived reports whether the record was made in an earlier boot: on a node without a disk it never is.
func (r *Record) Survived(boot string) bool { return r.Boot != "" && boot != "" && r.Boot != boot }

// UnknownError is the error of a check that could not look for a fault.
type UnknownError struct {
	Err   error
	Early bool // the node has just booted: this ends by itself
}

func (e UnknownError) Error() string { return e.Err.Error() }

// AskAgain reports whether the next health check looks for the fault of an attempt again. age is the time since the
// attempt began, limit is the time that it may take.
func AskAgain(err error, age, limit time.Duration) bool {
	unknown, ok := errors.AsType[UnknownError](err)
	return ok && (unknown.Early || age < limit+Oldest)
}

// StillThere returns an error if a run has found the fault of an attempt again, also if the policy gives
// it no effect yet, and an [UnknownError] if it could not look, or what starts after a boot is not judged yet.
func StillThere(e *event.Event, open []*Attempt) (unknown error) {
	for _, a := range open {
		seen, early := false, false
		for i := range e.Results {
			r := &e.Results[i]
			if a.is(Fault{Code: r.Code, Device: r.Device}) && r.Severity > checks.Skip && !r.Drill {
				return fmt.Errorf("afterwards %s", r.Message)
			}
			if r.Check == a.Check {
				seen = seen || r.Severity != checks.Unknown
				early = early || r.Early()
			}
		}
		switch {
		case early:
			unknown = UnknownError{fmt.Errorf("afterwards %s has not judged all yet: the node has just booted", a.Check), true}
		case !seen && unknown == nil:
			unknown = UnknownError{Err: fmt.Errorf("afterwards %s had no result", a.Check)}
		}
	}
	return unknown
}

// Clear ends the holds of a device or a code, and forgets their attempts; "" is all of them.
func (r *Record) Clear(word string) (cleared []string) {
	named := func(f Fault) bool {
		return word == "" || word == f.Code || slices.Contains([]string{f.Device.Name, f.Device.PCI, f.Device.UUID, f.Device.Serial}, word)
	}
	r.Holds = slices.DeleteFunc(r.Holds, func(h Hold) bool {
		if named(h.Fault) {
			cleared = append(cleared, h.String())
		}
		return named(h.Fault)
	})
	r.Attempts = slices.DeleteFunc(r.Attempts, func(a Attempt) bool {
		if text := a.String(); named(a.Fault) && !slices.Contains(cleared, text) {
			cleared = append(cleared, text)
		}
		return named(a.Fault)
	})
	return cleared
}

// Next is the remedy that is due.
type Next struct {
	conf.Remedy
	Faults []Fault
	Drill  bool // of a fault that is not there: nothing is carried out

	Holds []Hold // faults whose remedies are used up; then there is no remedy
	Why   string // why there is no remedy, "" if there is one
}

// CanBoot reports whether a remedy can end with a boot, which only a record on the disk outlives.
func CanBoot(do string, command bool) bool {
	return do == conf.RebootNode || do == conf.PowerCycle || command
}

// Choose returns the remedy for the failures of a run. All of them must have one: a node that a person
// must repair anyway is not rebooted before. Of several the greatest is carried out, since it has the
// effects of the others.
func Choose(rows []conf.Remedy, platforms []string, results []event.Result, r Record, now time.Time) (n Next) {
	type choice struct {
		fault Fault
		name  string
	}
	var chosen []choice
	n.Why = "the last run found no fault"
	hung := "" // why a mount that hangs gets no remedy; that of another fault, such as of its network, may repair it
	for i := range results {
		f := &results[i]
		if f.Severity != checks.Fail {
			continue
		}
		fault := Fault{Code: f.Code, Device: f.Device, Check: f.Check}
		ladder := ladderOf(rows, platforms, f)
		row, tried := firstLeft(ladder, fault, f.Drill, r, now)
		switch {
		case f.Code == HoldCode:
			return Next{Why: f.Message}
		case f.Code == "":
			return Next{Why: "a line of bash has failed, for which there is no remedy: " + f.Line}
		case len(ladder) == 0:
			why := fmt.Sprintf("%s: remedy %s: no [remedy] of nhc.toml permits it", fault, cmp.Or(string(f.Remedy), "none"))
			if f.Code != "probe.hung" || f.Remedy != checks.NoRemedy {
				return Next{Why: why}
			}
			hung = why
			continue
		case row == nil:
			n.Drill = n.Drill || f.Drill
			n.Holds = append(n.Holds, Hold{Fault: fault, Since: now.UTC().Truncate(time.Second), Tried: tried})
			continue
		case n.Do == "" || rank(row.Do) > rank(n.Do):
			n.Remedy = *row
		}
		chosen, n.Drill = append(chosen, choice{fault, row.Name}), n.Drill || f.Drill
		n.Why = ""
	}
	for _, c := range chosen { // a boot has the effects of the others
		if c.name == n.Name || rank(n.Do) >= rank(conf.RebootNode) {
			n.Faults = append(n.Faults, c.fault)
		}
	}
	if chosen == nil && hung != "" {
		n.Why = hung
	}
	if n.Holds != nil {
		n.Remedy, n.Faults = conf.Remedy{}, nil
		n.Why = fmt.Sprintf("%s: %s did not help: a person must repair the node", n.Holds[0].Fault, strings.Join(n.Holds[0].Tried, ", "))
	}
	return n
}

// forgotten are the codes of lost parts that no check misses if they are absent after a boot: the node would
// return without the part.
var forgotten = []string{"nvme.gone", "nvme.state", "nvme.log.dead", "ib.ports.gone", "ib.pcie.gone", "pcie.gone"}

// isForgotten reports whether a failure is the loss of such a part. An adapter has one failure for all messages of the
// kernel, with the code of the first; the strongest remedy is that of a message about its PCI slot.
func isForgotten(f *event.Result) bool {
	return slices.Contains(forgotten, f.Code) || strings.HasPrefix(f.Code, "nic.") && f.Remedy == checks.PowerCycle
}

// ladderOf returns the remedies that the site permits for a failure, the least first. A remedy with
// codes is for those. One without codes is for faults whose own remedy is a reset, a reboot or a power
// cycle, and not more than it; but not for parts whose loss no check finds after a boot.
func ladderOf(rows []conf.Remedy, platforms []string, f *event.Result) (ladder []conf.Remedy) {
	own := rank(string(f.Remedy)) // restart-app means the program of a user
	best := map[string]int{}
	for _, row := range rows {
		fit := -1
		for _, prefix := range row.Codes {
			if f.Code == prefix || strings.HasPrefix(f.Code, strings.TrimSuffix(prefix, ".")+".") {
				fit = max(fit, len(prefix))
			}
		}
		if row.Codes == nil && !isForgotten(f) && own > rank(conf.RestartApp) && rank(row.Do) >= own {
			fit = 0
		}
		if fit < 0 || row.Platforms != nil && !slices.ContainsFunc(row.Platforms, func(p string) bool { return slices.Contains(platforms, p) }) {
			continue
		}
		at := slices.IndexFunc(ladder, func(l conf.Remedy) bool { return l.Do == row.Do })
		switch {
		case at < 0:
			ladder = append(ladder, row)
		case fit > best[row.Do]:
			ladder[at] = row
		default:
			continue
		}
		best[row.Do] = fit
	}
	slices.SortFunc(ladder, func(a, b conf.Remedy) int { return cmp.Compare(rank(a.Do), rank(b.Do)) })
	return ladder
}

// rank returns the place of a remedy among those that can be carried out, from 1; 0: it cannot.
func rank(do string) int { return slices.Index(conf.RemedyWords, do) + 1 }

// firstLeft returns the first remedy of a ladder that has not been tried too often, nil for none. The tries for
// a fault do not count in a drill of it, which would hold a healthy node for them.
func firstLeft(ladder []conf.Remedy, fault Fault, drill bool, r Record, now time.Time) (row *conf.Remedy, tried []string) {
	for i := range ladder {
		n := 0
		for _, a := range r.Attempts {
			if a.Do == ladder[i].Do && !a.Drill && !drill && a.is(fault) && now.Sub(a.Begin) < ladder[i].Window {
				n++
			}
		}
		if n < ladder[i].Attempts {
			return &ladder[i], tried
		}
		tried = append(tried, fmt.Sprintf("%d x %s", n, ladder[i].Do))
	}
	return nil, tried
}

// Facts is what the remedy of a node depends on besides its faults.
type Facts struct {
	Age         time.Duration // of the last health check
	Forgetful   bool          // the record may not survive a boot
	Drill       bool          // a drill is under way
	OtherBoot   bool          // it was made before the last boot
	Observe     bool
	Ours        bool   // the node is drained by us
	State       string // as Slurm prints it
	Reason      string
	Order       string // a reboot or a power-down that is requested, "" for none
	Empty       bool   // no job has anything on the node
	Jobs        string // the jobs, "" if they are unknown
	Maintenance string // the reservation that has begun or begins soon, "" for none
	Repair      string // why no further node may be repaired now, "" if one may
	NoReboot    bool   // slurm.conf has no RebootProgram
}

// Oldest is the greatest age of a health check that a remedy follows.
const Oldest = 15 * time.Minute

// Against returns what speaks against a remedy now, "" for nothing.
func (f Facts) Against(do string, command bool) string {
	switch {
	case f.Drill:
		return "a drill is under way: nothing is done"
	case f.OtherBoot:
		return "no health check since the last boot"
	case f.Age > Oldest:
		return fmt.Sprintf("the last health check is %s old", f.Age.Round(time.Minute))
	case f.Observe:
		return "MODE=observe: nothing is done"
	case !f.Ours:
		return fmt.Sprintf("nhc-gpu does not hold the node: it is %s%s", f.State, checks.Before(" for ", f.Reason, ""))
	case f.Order != "":
		return "the node has an order: " + f.Order
	case !f.Empty:
		return "the node is not empty" + checks.Before(": job ", f.Jobs, "")
	case f.Maintenance != "":
		return "reservation " + f.Maintenance
	case f.Repair != "":
		return f.Repair
	case f.Forgetful && CanBoot(do, command):
		return "the record of remedies has not outlived a boot yet, so that the tries could not be counted"
	case do == conf.RebootNode && !command && f.NoReboot:
		return "slurm.conf has no RebootProgram"
	}
	return ""
}
