// Package session decides what a run does beside its checks, without doing it: how long each
// part may take, whose fault a failure is, what a site's policy makes of it, and who takes
// back a drain. It is pure.
package session

import "time"

// What each part of a run may take.
const (
	Reading = 5 * time.Second        // a file of the configuration, which may lie on a file server that is dead
	Record  = 2 * time.Second        // what is done for a job's record: it must not cost the verdict
	Helper  = 10 * time.Second       // a helper of the site's own
	Grace   = 500 * time.Millisecond // acting, beyond the end of the run
	Facts   = time.Second            // a question about the node, beyond the end of the run
	least   = 100 * time.Millisecond // anything: a call without time would tell nothing
)

// SlurmdLimit leaves ten of the 60 seconds that slurmd gives a health check (run_command of
// its source) for acting and for a slow start.
const SlurmdLimit = 50 * time.Second

// actMargin is what Slurm's limit of a prolog or an epilog has to leave for marking the
// node and leaving: slurmd kills what it has asked to end 10 ms before.
const actMargin = 2 * time.Second

// Asked is who has a say in the time of a run. A duration of 0 says nothing.
type Asked struct {
	Timeout    time.Duration // TIMEOUT
	Role       time.Duration // nhc.toml's, for prolog, epilog or a health check
	Slurm      time.Duration // slurm.conf's limit of a prolog or an epilog
	Line       bool          // -e: one line, which has no TIMEOUT
	Job        bool          // the run is before or after a job
	Check      bool          // slurmd's health check
	Background bool          // the half of a detached run that slurmd does not wait for
}

// Allowed is how long the run may take, 0 for ever: TIMEOUT, and never so long that
// slurmd would be the one to end it. The background half of a detached run is out of
// slurmd's reach and has the TIMEOUT it is given, but not none: the next run waits for its
// end.
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

// Budget is the time of a run.
type Budget struct {
	Began time.Time
	End   time.Time // zero: there is none
}

// Give sets the end by what is allowed.
func (b *Budget) Give(allowed time.Duration) {
	b.End = time.Time{}
	if allowed > 0 {
		b.End = b.Began.Add(allowed)
	}
}

// Limited says whether the run has an end.
func (b Budget) Limited() bool { return !b.End.IsZero() }

// Within is limit, or what is left of the run if that is less, and no less than 100 ms.
func (b Budget) Within(limit time.Duration, now time.Time) time.Duration {
	return b.within(limit, least, 1, now)
}

// Reading is what a file of the configuration may take: never more than a third of what is
// left, since all of them may lie on the same dead server.
func (b Budget) Reading(now time.Time) time.Duration { return b.within(Reading, least, 3, now) }

// Facts is what a question about the node may take that the report asks behind the checks.
func (b Budget) Facts(limit time.Duration, now time.Time) time.Duration {
	return b.within(limit, Facts, 1, now)
}

func (b Budget) within(limit, least, parts time.Duration, now time.Time) time.Duration {
	if !b.Limited() {
		return limit
	}
	return min(limit, max(b.End.Sub(now)/parts, least))
}

// Acting is when draining or resuming the node is given up, zero for never. It may go on
// beyond the end of the run, which is why it acts.
func (b Budget) Acting(now time.Time) time.Time {
	if !b.Limited() {
		return time.Time{}
	}
	return later(b.End, now).Add(Grace)
}

// Helping is when a helper of the site's own is ended.
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
