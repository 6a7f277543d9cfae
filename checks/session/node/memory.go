package node

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Files of the state directory of a node.
const (
	memoryFile  = wire.MemoryFile
	memoryLock  = "lock"
	RunLock     = "run.lock"
	MonitorLock = "monitor.lock"
)

// nodeState is the stored state of a node, which a worker keeps in its state directory.
type nodeState struct{ pool *run.Pool }

func (s nodeState) Load() ([]byte, error) {
	data, err := s.pool.Load(memoryFile)
	return data, memoryError("read", err)
}

func (s nodeState) Save(data []byte) error {
	return memoryError("write", s.pool.Save(memoryFile, data))
}

// unusableState replaces the stored state if its directory cannot be opened, which has been reported: what
// earlier runs stored is unknown.
type unusableState struct{ err error }

func (s unusableState) Load() ([]byte, error) { return nil, reportedError{s.err} }

func (s unusableState) Save([]byte) error { return reportedError{s.err} }

func (s unusableState) Lock(time.Duration) (unlock func(), err error) {
	return nil, reportedError{s.err}
}

// reportedError is an error that has been reported.
type reportedError struct{ error }

func (e reportedError) Unwrap() error { return e.error }

// Is makes it a [run.ErrNoState].
func (e reportedError) Is(target error) bool { return target == run.ErrNoState }

func memoryError(verb string, err error) error {
	if err == nil || errors.Is(err, run.ErrNoState) { // already reported
		return err
	}
	return fmt.Errorf("%s memory: %w", verb, err)
}

func (s nodeState) Lock(wait time.Duration) (unlock func(), err error) {
	holder, err := s.pool.Lock(memoryLock, wait)
	switch {
	case err != nil:
		return nil, memoryError("lock", err)
	case holder != nil:
		return nil, &slurm.BusyError{PID: holder.PID, Age: holder.Age}
	}
	return func() { s.pool.Unlock(memoryLock) }, nil
}

// ReadMoment returns the present time, on all clocks.
func ReadMoment() slurm.Moment {
	var up unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) // without it durations are unknown
	return slurm.Moment{Time: time.Now().UTC().Truncate(time.Second), Boot: slurm.BootID(), Uptime: float64(up.Nano()) / 1e9}
}
