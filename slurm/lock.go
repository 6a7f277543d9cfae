package slurm

import (
	"errors"
	"fmt"
	"time"
)

// ErrBusy means that another process holds the lock. The returned error is a
// [*BusyError].
var ErrBusy = errors.New("another run is at work")

// BusyError names the process that holds a lock.
type BusyError struct {
	PID int           // 0 if unknown
	Age time.Duration // since it took the lock
}

func (e *BusyError) Error() string {
	if e.PID == 0 {
		return ErrBusy.Error()
	}
	return fmt.Sprintf("%v (pid %d, for %s)", ErrBusy, e.PID, e.Age.Round(time.Second))
}

// Is makes a BusyError an [ErrBusy].
func (e *BusyError) Is(target error) bool { return target == ErrBusy }
