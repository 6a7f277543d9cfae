package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// The runs of a node share a directory with the ledger of stuck processes, the lanes that the last
// run needed, the last call to Slurm, and locks. A worker reads and writes it (worker/state.go), so
// a run continues without this state if the directory does not answer.

// stateDir is the supervisor's side of that directory. Without a dir nothing is stored.
type stateDir struct {
	mu    sync.Mutex
	dir   string
	gone  error // the directory does not answer; this run sends it no more requests, and no worker looks into it
	kind  string
	lanes []string  // see StartAsBefore
	end   time.Time // of the run

	crashes bool   // earlier runs have crashed, see countCrash
	drill   []byte // the rehearsal, see Pool.Drill
	monitor []byte // the ledger of the monitor, see Pool.Monitor
}

// ErrNoState means that the run has no state directory.
var ErrNoState = errors.New("no state directory")

// goneError means that the directory does not answer. Warnings contains it.
type goneError struct{ error }

func (e goneError) Unwrap() error { return e.error }

// Is makes it an [ErrNoState].
func (e goneError) Is(target error) bool { return target == ErrNoState }

// These bound a request to the state directory: normally, and after the end of the run.
const (
	stateLimit = 1500 * time.Millisecond
	lateLimit  = 500 * time.Millisecond
)

// OpenState makes dir the state directory of the runs, and reads its files that every run needs. If lock is
// set, it takes that lock for the life of this process, or until [Pool.Unlock]; holder is the process that has
// it. A health check waits for a run of the monitor, but at most partWait: that run can take longer than
// slurmd's limit. After an error the run has no state; doubts are errors of single files.
func (p *Pool) OpenState(dir, kind, lock string) (holder *wire.Holder, doubts []error, err error) {
	p.state.mu.Lock()
	p.state.dir, p.state.kind = dir, kind
	p.state.mu.Unlock()
	p.mu.Lock()
	p.version++ // of the variables, which have the directory
	p.mu.Unlock()
	req := &wire.Request{Op: wire.OpOpen, Name: nameLaneFile(kind)}
	if lock != "" {
		req.Args = []string{lock, kind}
	}
	resp, err := p.stateCall(req, "open", "")
	if err != nil {
		p.state.mu.Lock()
		p.state.dir = ""
		p.state.mu.Unlock()
		return nil, nil, err
	}
	for _, d := range resp.Doubts {
		doubts = append(doubts, errors.New(d))
	}
	lines := append(resp.Lines, make([][]byte, wire.OpenedFiles)...)
	if err := p.ledger.parse(lines[wire.OpenedLedger]); err != nil {
		doubts = append(doubts, fmt.Errorf("read %s: %w", filepath.Join(dir, wire.LedgerFile), err))
	}
	p.state.mu.Lock()
	p.state.crashes = len(lines[wire.OpenedCrashes]) > 0
	p.state.drill, p.state.monitor = lines[wire.OpenedDrill], lines[wire.OpenedMonitor]
	p.state.lanes = strings.Fields(string(lines[wire.OpenedLanes]))
	p.state.mu.Unlock()
	if holder = resp.Busy; holder != nil && holder.Part && kind != wire.KindMonitor {
		if holder, err = p.lock(lock, kind, partWait); err != nil {
			doubts = append(doubts, err)
		}
	}
	return holder, doubts, nil
}

// partWait is how long a health check waits for a run of the monitor.
const partWait = 5 * time.Second

// Drill returns the file of a rehearsal, as OpenState has read it; empty if there is none.
func (p *Pool) Drill() []byte {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	return p.state.drill
}

// Monitor returns the ledger of the monitor, as OpenState has read it; empty if there is none.
func (p *Pool) Monitor() []byte {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	return p.state.monitor
}

// SetEnd sets the end of the run. A later request to the state directory gets little time.
func (p *Pool) SetEnd(end time.Time) {
	p.state.mu.Lock()
	defer p.state.mu.Unlock()
	p.state.end = end
}

// Load reads a file of the state directory, nil if it is missing.
func (p *Pool) Load(name string) ([]byte, error) {
	resp, err := p.stateCall(&wire.Request{Op: wire.OpLoad, Name: name}, "read", name)
	if err != nil {
		return nil, err
	}
	return resp.Data, nil
}

// Save replaces a file of the state directory atomically.
func (p *Pool) Save(name string, data []byte) error {
	_, err := p.stateCall(&wire.Request{Op: wire.OpSave, Name: name, Data: data}, "write", name)
	return err
}

// SaveAgain is Save that also asks a directory that has not answered before, for a process that lives on.
func (p *Pool) SaveAgain(name string, data []byte) error {
	p.setGone(nil)
	return p.Save(name, data)
}

// setGone records whether the directory does not answer. The next request to each worker has that.
func (p *Pool) setGone(err error) {
	p.state.mu.Lock()
	changed := (err != nil) != (p.state.gone != nil)
	p.state.gone = err
	p.state.mu.Unlock()
	if changed {
		p.mu.Lock()
		p.version++
		p.mu.Unlock()
	}
}

// Lock takes a lock of the state directory for this process. It waits for the holder at most for
// wait; holder is then the process that has the lock.
func (p *Pool) Lock(name string, wait time.Duration) (holder *wire.Holder, err error) {
	return p.lock(name, "", wait)
}

func (p *Pool) lock(name, kind string, wait time.Duration) (holder *wire.Holder, err error) {
	resp, err := p.stateCall(&wire.Request{Op: wire.OpLock, Name: name, Args: []string{kind}, Timeout: max(wait, 0)}, "lock", name)
	if err != nil {
		return nil, err
	}
	return resp.Busy, nil
}

// Unlock releases a lock. If that fails, the lock ends with this process.
func (p *Pool) Unlock(name string) {
	_, _ = p.stateCall(&wire.Request{Op: wire.OpUnlock, Name: name}, "unlock", name)
}

// stateCall sends a request about the state directory. After the directory has not answered once,
// stateCall returns the same error for each later request.
func (p *Pool) stateCall(r *wire.Request, verb, name string) (*wire.Response, error) {
	p.state.mu.Lock()
	dir, gone, end := p.state.dir, p.state.gone, p.state.end
	p.state.mu.Unlock()
	switch {
	case gone != nil:
		return nil, goneError{gone}
	case dir == "":
		return nil, ErrNoState
	}
	r.Path, r.Line = dir, verb+" "+filepath.Join(dir, name)
	limit := stateLimit
	if !end.IsZero() {
		limit = max(lateLimit, min(limit, time.Until(end)))
	}
	o := p.Call(context.Background(), p.chooseIdleLane(), r, limit+r.Timeout)
	resp, err := o.AnswerTo(r.Line)
	if err != nil && o.answer == nil {
		p.setGone(err)
		if r.Op != wire.OpOpen { // whose caller reports the error
			p.mu.Lock()
			p.warn = append(p.warn, err)
			p.mu.Unlock()
		}
		err = goneError{err}
	}
	return resp, err
}

// chooseIdleLane returns the lane that gets such a request: the local one if its worker is idle, else the
// lane that runs scontrol. So an action after a failure does not wait for the remaining checks.
func (p *Pool) chooseIdleLane() checks.Lane {
	p.mu.Lock()
	claim, worker := p.claims[checks.Local], p.workers[checks.Local]
	p.mu.Unlock()
	if worker == nil || claim != nil && !claim.TryLock() {
		return execLane
	}
	if claim != nil {
		claim.Unlock()
	}
	return checks.Local
}

func usesState(r *wire.Request) bool {
	return slices.Contains([]wire.Op{wire.OpOpen, wire.OpLoad, wire.OpSave, wire.OpLock, wire.OpUnlock, wire.OpStuck}, r.Op)
}

// keepLedger writes new entries of the ledger to the file.
func (p *Pool) keepLedger() {
	fresh := p.ledger.takeUnsaved()
	if len(fresh) == 0 {
		return
	}
	data, err := json.Marshal(fresh)
	if err == nil {
		_, err = p.stateCall(&wire.Request{Op: wire.OpStuck, Data: data}, "write", wire.LedgerFile)
	}
	if err != nil && !errors.Is(err, ErrNoState) {
		p.mu.Lock()
		p.warn = append(p.warn, err)
		p.mu.Unlock()
	}
}
