// Package session decides what a run does besides its checks: how long each part may take, which
// job or node is to blame for a failure, how a site's policy changes it, and which run can resume a
// drained node. It is pure: it does not act.
package session

import "time"

// The time limits of the parts of a run.
const (
	Reading = 5 * time.Second        // a file of the configuration, which can be on a dead file server
	Record  = 2 * time.Second        // the work for a job's record: it must not delay the verdict
	Helper  = 10 * time.Second       // a helper of the site's own
	Grace   = 500 * time.Millisecond // acting after the end of the run
	Facts   = time.Second            // a question about the node after the end of the run
	least   = 100 * time.Millisecond // the minimum for any call
)

// SlurmdLimit leaves ten of the 60 seconds that slurmd allows a health check (run_command in its
// source) for acting and for a slow start.
const SlurmdLimit = 50 * time.Second

// actMargin is the part of Slurm's time limit of a prolog or an epilog that is reserved for marking
// the node and exiting: slurmd sends SIGKILL 10 ms after SIGTERM.
const actMargin = 2 * time.Second

// Asked holds the time limits that apply to a run. A duration of 0 means no limit.
type Asked struct {
	Timeout    time.Duration // TIMEOUT
	Role       time.Duration // the limit in nhc.toml for a prolog, an epilog or a health check
	Slurm      time.Duration // the limit in slurm.conf for a prolog or an epilog
	Line       bool          // -e: one line, without a TIMEOUT
	Job        bool          // the run is before or after a job
	Check      bool          // the run is slurmd's health check
	Background bool          // the run is the background half of a detached run
}

// Allowed returns how long the run may take, 0 for no limit: TIMEOUT, but never so long that slurmd
// would end the run. slurmd cannot end the background half of a detached run; that half gets its
// TIMEOUT, and always has a limit, because the next run waits for its end.
func (a Asked) Allowed() time.Duration {
	d := a.Timeout
	if a.Line {
		d = 0
	}
	if a.Role > 0 && (d == 0 || d > a.Role || !a.Job) {
		d = a.Role
	}
	if limit := max(a.Slurm-actMargin, a.Slurm/2); a.Job && limit > 0 && (d == 0 || d > limit) {
		d = limit
	}
	if a.Check && (d == 0 || d > SlurmdLimit && !a.Background) {
		d = SlurmdLimit
	}
	return d
}

// Budget is the time budget of a run.
type Budget struct {
	Began time.Time
	End   time.Time // zero: no end
}

// Give sets the end of the run.
func (b *Budget) Give(allowed time.Duration) {
	b.End = time.Time{}
	if allowed > 0 {
		b.End = b.Began.Add(allowed)
	}
}

// Limited reports whether the run has an end.
func (b Budget) Limited() bool { return !b.End.IsZero() }

// Within returns limit, or the remaining time if that is less, but at least 100 ms.
func (b Budget) Within(limit time.Duration, now time.Time) time.Duration {
	return b.within(limit, least, 1, now)
}

// Reading returns the time limit for a file of the configuration: at most a third of the remaining
// time, since all of them can be on the same dead server.
func (b Budget) Reading(now time.Time) time.Duration { return b.within(Reading, least, 3, now) }

// Facts returns the time limit for a question of the report about the node, after the checks.
func (b Budget) Facts(limit time.Duration, now time.Time) time.Duration {
	return b.within(limit, Facts, 1, now)
}

func (b Budget) within(limit, least, parts time.Duration, now time.Time) time.Duration {
	if !b.Limited() {
		return limit
	}
	return min(limit, max(b.End.Sub(now)/parts, least))
}

// Acting returns when to give up draining or resuming the node, zero for never. This can be after
// the end of the run, because acting is its purpose.
func (b Budget) Acting(now time.Time) time.Time {
	if !b.Limited() {
		return time.Time{}
	}
	return later(b.End, now).Add(Grace)
}

// Marking returns when a helper of the site that marks the node is ended. It has the rest of the run.
func (b Budget) Marking(now time.Time) time.Time {
	if b.Limited() {
		return b.Acting(now)
	}
	return now.Add(Helper)
}

// Helping returns when another command of the site is ended.
func (b Budget) Helping(now time.Time) time.Time {
	end := now.Add(Helper)
	if b.Limited() && end.After(b.End) {
		return b.Acting(now)
	}
	return end
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
