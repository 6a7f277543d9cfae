package wire

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// CutTo cuts the limit of a step to what is left of the run. A long one, a step in a
// vendor's library or an active test, which may take most of it, leaves a sixth of the
// run for what comes after its hang; late in the run, half of what is left.
func CutTo(left, limit, timeout time.Duration, long bool) time.Duration {
	if long {
		left = max(left-timeout/6, left/2)
	}
	if left = max(left, time.Millisecond); limit == 0 || left < limit {
		return left
	}
	return limit
}

// Within is how long a check may take from now on before its worker is given up,
// 0 for ever.
func (r *Request) Within(info checks.Info) time.Duration {
	if r.End == 0 {
		return r.Limit
	}
	return CutTo(r.End-Monotonic(), r.Limit, r.Timeout, info.Lane.Vendor() || info.Active)
}

// Monotonic is the time on the kernel's clock that nobody sets.
func Monotonic() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
