package run

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Corpse is a process that no signal could end, left behind by a run.
type Corpse struct {
	PID   int         `json:"pid"`
	Start uint64      `json:"start"` // clock ticks since boot when it was started
	Lane  checks.Lane `json:"lane"`
	Step  string      `json:"step"`  // the check line it was running
	Doing string      `json:"doing"` // the call it never came back from
	State string      `json:"state"`
	Wchan string      `json:"wchan"`
	Since time.Time   `json:"since"`
}

// Hung describes a corpse as the hang that it still is.
func (c Corpse) Hung() *checks.Hung {
	return &checks.Hung{PID: c.PID, State: c.State, Wchan: c.Wchan, Doing: c.Doing, Stuck: true, For: time.Since(c.Since)}
}

// Ledger is the list of corpses. A worker keeps it in a file between runs, so that later
// runs report a hang at once and add no further process to it (see [Pool.OpenState]).
type Ledger struct {
	mu      sync.Mutex
	corpses []Corpse
	unsaved []Corpse // of this run, not in the file yet
}

const ledgerFile = "ledger.json"

// parse takes over the entries of the file, except those whose process has ended.
func (l *Ledger) parse(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	var old []Corpse
	if err := json.Unmarshal(data, &old); err != nil {
		return err
	}
	old = slices.DeleteFunc(old, func(c Corpse) bool { return !alive(c.PID, c.Start) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.corpses = append(l.corpses, old...)
	return nil
}

// Find tells which corpse stands in the way of a step: in a lane of a vendor
// library any, elsewhere one that was left by the very same line.
func (l *Ledger) Find(lane checks.Lane, step string) (Corpse, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.corpses {
		if c.Lane == lane && (lane.Vendor() || c.Step == step) && alive(c.PID, c.Start) {
			return c, true
		}
	}
	return Corpse{}, false
}

// Doing are the calls that processes of a lane have not come back from.
func (l *Ledger) Doing(lane checks.Lane) (calls []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.corpses {
		if c.Lane == lane && c.Doing != "" && alive(c.PID, c.Start) {
			calls = append(calls, c.Doing)
		}
	}
	return calls
}

// add enters corpses. [Pool.keepLedger] writes them to the file.
func (l *Ledger) add(cs ...Corpse) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.corpses, l.unsaved = append(l.corpses, cs...), append(l.unsaved, cs...)
}

// takeUnsaved returns the entries that are not yet written, once.
func (l *Ledger) takeUnsaved() []Corpse {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.unsaved
	l.unsaved = nil
	return list
}

// Corpses lists what is in the ledger.
func (l *Ledger) Corpses() []Corpse {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.corpses)
}
