package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// lookAround determines the distribution. It is unknown if the root file system does not
// answer.
func (r *oneRun) lookAround() {
	const sign = "/etc/debian_version"
	f, err := r.pool.Call(r.ctx, checks.Local, &run.Request{Op: run.OpRead, Path: sign, Line: "read " + sign}, lookLimit).File("read " + sign)
	r.set.Distribution(err == nil && !f.Missing)
}

const lookLimit = 2 * time.Second

// openState reads the memory of earlier runs of the node. Any error there costs one
// warning, and the run continues without a memory. busy reports that another health
// check of slurmd is at work. Only root has anything to remember: only root acts.
func (r *oneRun) openState(lock string) (busy error) {
	r.lookAround()
	busy = r.openStateOf(lock)
	if !r.node.told && busy == nil {
		r.findName()
	}
	return busy
}

// findName determines this node's name in Slurm if slurmd has not given it: in slurm.conf
// it may differ from the host name.
func (r *oneRun) findName() {
	host, err := os.Hostname()
	if err != nil {
		return
	}
	resp, err := r.pool.Call(r.ctx, checks.Local,
		&run.Request{Op: run.OpNodes, Name: host, Path: r.set.Get("SLURM_CONF"), Line: "read Slurm's configuration"}, slurmConfLimit).Answer()
	switch {
	case err != nil: // no slurm.conf here: the host name it is
	case len(resp.Jobs) == 1:
		r.rename(resp.Jobs[0])
	case len(resp.Jobs) > 1:
		r.node.bad = fmt.Errorf("name this node: slurm.conf has %d nodes on host %s (%s, ...): set SLURMD_NODENAME in %s, or as an argument",
			len(resp.Jobs), host, strings.Join(resp.Jobs[:2], ", "), filepath.Join(r.set.Get("SYSCONFIGDIR"), "nhc"))
	default:
		r.unnamed = true
	}
}

// nameFromSettings takes the name that the site has set. The name from slurmd takes
// precedence: several slurmd may share a host.
func (r *oneRun) nameFromSettings() {
	name := r.set.Get("SLURMD_NODENAME")
	if name == "" || r.node.told && r.node.role != slurm.Manual {
		return
	}
	r.unnamed = false
	r.rename(name)
}

// rename gives the node another name: the memory of earlier runs is in that directory.
func (r *oneRun) rename(name string) {
	if name == r.node.name && r.node.bad == nil {
		return
	}
	if r.node.name, r.node.bad = slurm.NodeName(func(string) string { return name }, ""); r.node.bad != nil {
		r.node.bad = fmt.Errorf("name this node: SLURMD_NODENAME is %q: want letters, digits, and - or _ after the first", name)
	}
	r.set.Past, r.set.Spare = r.node.past()
	_ = r.openStateOf("")
}

func (r *oneRun) openStateOf(lock string) (busy error) {
	if os.Geteuid() != 0 || r.node.bad != nil {
		return nil
	}
	holder, doubts, err := r.pool.OpenState(filepath.Join(stateRoot, r.node.name), r.kind(), lock)
	if err != nil {
		r.warn(fmt.Errorf("%w: this run remembers nothing of earlier ones", err))
		r.set.Spare = "" // which is there, too
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
