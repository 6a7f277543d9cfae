package run

import (
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// Ledger is the list of stuck processes. A worker keeps it in a file between runs, so that later
// runs report a hang at once and add no further process to it (see [Pool.OpenState]).
type Ledger struct {
	mu             sync.Mutex
	stuckProcesses []wire.StuckProcess
	unsaved        []wire.StuckProcess // of this run, not in the file yet
}

// parse adds the entries of the file, except those whose process has ended.
func (l *Ledger) parse(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	var old []wire.StuckProcess
	if err := json.Unmarshal(data, &old); err != nil {
		return errors.New("not a valid list of stuck processes: ignored, and replaced at the next hang")
	}
	old = slices.DeleteFunc(old, func(c wire.StuckProcess) bool { return !process.Alive(c.PID, c.Start) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stuckProcesses = append(l.stuckProcesses, old...)
	return nil
}

// Find returns the stuck process that prevents a step: in a lane of a vendor library any, elsewhere
// one that the same line left behind.
func (l *Ledger) Find(lane checks.Lane, step string) (wire.StuckProcess, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.stuckProcesses {
		if c.Lane == lane && (lane.Vendor() || c.Step == step) && process.Alive(c.PID, c.Start) {
			return c, true
		}
	}
	return wire.StuckProcess{}, false
}

// Doing returns the blocked calls of a lane's stuck processes.
func (l *Ledger) Doing(lane checks.Lane) (calls []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.stuckProcesses {
		if c.Lane == lane && c.Doing != "" && process.Alive(c.PID, c.Start) {
			calls = append(calls, c.Doing)
		}
	}
	return calls
}

// add adds stuck processes to the list. [Pool.keepLedger] writes them to the file.
func (l *Ledger) add(cs ...wire.StuckProcess) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stuckProcesses, l.unsaved = append(l.stuckProcesses, cs...), append(l.unsaved, cs...)
}

// takeUnsaved returns the entries that are not yet written, once.
func (l *Ledger) takeUnsaved() []wire.StuckProcess {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.unsaved
	l.unsaved = nil
	return list
}

// StuckProcesses lists all entries of the ledger.
func (l *Ledger) StuckProcesses() []wire.StuckProcess {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.stuckProcesses)
}
