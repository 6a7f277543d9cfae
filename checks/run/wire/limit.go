package wire

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// CutTo cuts the limit of a step to the time left of the run. A long step, which is one in a
// vendor's library or an active test, can take most of the run. It leaves a sixth of the run for
// the steps after its hang; late in the run, half of the time left.
func CutTo(left, limit, timeout time.Duration, long bool) time.Duration {
	if long {
		left = max(left-timeout/6, left/2)
	}
	if left = max(left, time.Millisecond); limit == 0 || left < limit {
		return left
	}
	return limit
}

// Within returns how long a check may take from now on before the supervisor abandons its worker, 0
// for no limit.
func (r *Request) Within(info checks.Info) time.Duration {
	if r.End == 0 {
		return r.Limit
	}
	return CutTo(r.End-Monotonic(), r.Limit, r.Timeout, info.Lane.Vendor() || info.Active)
}

// Monotonic returns the time on the kernel's clock that no user can set.
func Monotonic() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
