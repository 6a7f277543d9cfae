package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Files of the state directory of a node.
const (
	memoryFile = "slurm.json"
	memoryLock = "lock"
	runLock    = "run.lock"
)

// nodeState is the memory of a node, which a worker keeps in its state directory.
type nodeState struct{ pool *run.Pool }

func (s nodeState) Load() ([]byte, error) {
	data, err := s.pool.Load(memoryFile)
	return data, memoryError("read", err)
}

func (s nodeState) Save(data []byte) error {
	return memoryError("write", s.pool.Save(memoryFile, data))
}

func memoryError(verb string, err error) error {
	if err == nil || errors.Is(err, run.ErrNoState) { // which was reported
		return err
	}
	return fmt.Errorf("%s memory: %w", verb, err)
}

func (s nodeState) Lock(wait time.Duration) (unlock func(), err error) {
	busy, err := s.pool.Lock(memoryLock, wait)
	switch {
	case err != nil:
		return nil, memoryError("lock", err)
	case busy != nil:
		return nil, &slurm.BusyError{PID: busy.PID, Age: busy.Age}
	}
	return func() { s.pool.Unlock(memoryLock) }, nil
}

// lookAround finds out which distribution this is. A root file system that does not answer
// is none that is known.
func (r *oneRun) lookAround() {
	const sign = "/etc/debian_version"
	f, err := r.pool.Call(r.ctx, checks.Local, &run.Request{Op: run.OpRead, Path: sign, Line: "read " + sign}, lookLimit).File("read " + sign)
	r.set.distribution(err == nil && !f.Missing)
}

const lookLimit = 2 * time.Second

// openState finds out what earlier runs of the node have left. Whatever is wrong with it
// costs one warning: the run goes on without a memory. busy reports that another health
// check of slurmd is at work. Only root has anything to remember: only root acts.
func (r *oneRun) openState(lock string) (busy error) {
	r.lookAround()
	if os.Geteuid() != 0 || r.node.bad != nil {
		return nil
	}
	holder, doubts, err := r.pool.OpenState(filepath.Join(stateRoot, r.node.name), r.kind(), lock)
	if err != nil {
		r.warn(fmt.Errorf("%w: this run remembers nothing of earlier ones", err))
		r.set.spare = "" // which is there, too
		return nil
	}
	r.node.dir = nodeState{r.pool}
	if len(doubts) > 0 {
		r.warn(errors.Join(doubts...))
	}
	if holder != nil {
		return &slurm.BusyError{PID: holder.PID, Age: holder.Age}
	}
	return nil
}
