package slurm

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrBusy says that another process holds the lock. The error at hand is a
// [*BusyError].
var ErrBusy = errors.New("another run is at work")

// BusyError names the process that holds a lock.
type BusyError struct {
	PID int           // 0 if it left no trace
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

// Lock takes the lock on the memory, waiting for another run no longer than
// wait, and then says [ErrBusy]. Any other error means that there can be no
// lock. The kernel drops the lock of a process that dies.
func (d *StateDir) Lock(wait time.Duration) (unlock func(), err error) {
	return d.lock("lock", wait)
}

// TryRun takes the lock that slurmd does not hold for us: it starts the next
// health check while the last one runs. The second finds [ErrBusy]. Runs in any
// other role never wait for, or keep out, another.
func (d *StateDir) TryRun(role Role) (done func(), err error) {
	if role != HealthCheck {
		return func() {}, nil
	}
	return d.lock("run.lock", 0)
}

// lockPoll is how often a held lock is tried again: flock itself would wait
// without a bound.
const lockPoll = 20 * time.Millisecond

func (d *StateDir) lock(name string, wait time.Duration) (func(), error) {
	if d == nil {
		return func() {}, nil
	}
	f, err := d.open(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("take lock: %w", err)
	}
	for end := time.Now().Add(wait); ; time.Sleep(lockPoll) {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			sign(f)
			return func() { f.Close() }, nil
		}
		busy := errors.Is(err, unix.EWOULDBLOCK)
		if busy && time.Now().Before(end) || errors.Is(err, unix.EINTR) {
			continue
		}
		defer f.Close()
		if busy {
			return nil, holder(f)
		}
		return nil, fmt.Errorf("take lock %s: %w", f.Name(), err)
	}
}

// sign leaves who holds the lock and since when in its file. It is for the
// report alone: on a full disk the lock holds all the same.
func sign(f *os.File) {
	if f.Truncate(0) == nil {
		fmt.Fprintf(f, "%d %d\n", os.Getpid(), time.Now().Unix())
	}
}

func holder(f *os.File) *BusyError {
	var e BusyError
	var since int64
	if n, err := fmt.Fscan(f, &e.PID, &since); n < 2 || err != nil {
		return &BusyError{}
	}
	e.Age = max(0, time.Since(time.Unix(since, 0)))
	return &e
}
