package run

import (
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// StuckProcess is a process that no signal could end, left behind by a run.
type StuckProcess struct {
	PID   int         `json:"pid"`
	Start uint64      `json:"start"` // clock ticks since boot when it was started
	Lane  checks.Lane `json:"lane"`
	Step  string      `json:"step"`  // the check line it was running
	Doing string      `json:"doing"` // the call it never came back from
	State string      `json:"state"`
	Wchan string      `json:"wchan"`
	Since time.Time   `json:"since"`
}

// Hung describes a stuck process as the hang that it still is.
func (c StuckProcess) Hung() *checks.Hung {
	return &checks.Hung{PID: c.PID, State: c.State, Wchan: c.Wchan, Doing: c.Doing, Stuck: true, For: time.Since(c.Since)}
}

// Ledger is the list of stuck processes. A worker keeps it in a file between runs, so that later
// runs report a hang at once and add no further process to it (see [Pool.OpenState]).
type Ledger struct {
	mu             sync.Mutex
	stuckProcesses []StuckProcess
	unsaved        []StuckProcess // of this run, not in the file yet
}

const ledgerFile = "ledger.json"

// parse takes over the entries of the file, except those whose process has ended.
func (l *Ledger) parse(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	var old []StuckProcess
	if err := json.Unmarshal(data, &old); err != nil {
		return err
	}
	old = slices.DeleteFunc(old, func(c StuckProcess) bool { return !alive(c.PID, c.Start) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stuckProcesses = append(l.stuckProcesses, old...)
	return nil
}

// Find tells which stuck process stands in the way of a step: in a lane of a vendor
// library any, elsewhere one that was left by the very same line.
func (l *Ledger) Find(lane checks.Lane, step string) (StuckProcess, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.stuckProcesses {
		if c.Lane == lane && (lane.Vendor() || c.Step == step) && alive(c.PID, c.Start) {
			return c, true
		}
	}
	return StuckProcess{}, false
}

// Doing are the calls that processes of a lane have not come back from.
func (l *Ledger) Doing(lane checks.Lane) (calls []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.stuckProcesses {
		if c.Lane == lane && c.Doing != "" && alive(c.PID, c.Start) {
			calls = append(calls, c.Doing)
		}
	}
	return calls
}

// add enters stuck processes. [Pool.keepLedger] writes them to the file.
func (l *Ledger) add(cs ...StuckProcess) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stuckProcesses, l.unsaved = append(l.stuckProcesses, cs...), append(l.unsaved, cs...)
}

// takeUnsaved returns the entries that are not yet written, once.
func (l *Ledger) takeUnsaved() []StuckProcess {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.unsaved
	l.unsaved = nil
	return list
}

// StuckProcesses lists what is in the ledger.
func (l *Ledger) StuckProcesses() []StuckProcess {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.stuckProcesses)
}
