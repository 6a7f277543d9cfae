package monitor

import (
	"slices"
	"time"
)

// The bell wakes a run for the first event of a kind, at once or after the time in its row. Further events wait: each
// run for it doubles the pause after it, up to longest, until the kind has been quiet for that long.
// So a storm costs few runs, and the last event of each kind is followed by a run.
const (
	shortest = 5 * time.Second
	longest  = 5 * time.Minute
)

// Bell collects events until a run is due. The zero value is ready. Time is an input.
type Bell struct {
	kinds map[Kind]*pause
}

// pause is what the bell knows about a kind.
type pause struct {
	rings bool          // there are events that no run has followed
	long  time.Duration // the pause after the last run
	until time.Time     // no run before that
	ran   time.Time     // the last run
	tries int           // runs in a row without a verdict
	was   struct {      // before the last run
		long time.Duration
		ran  time.Time
	}
}

// Ring adds events of a kind, and reports whether it is the first since the last run.
func (b *Bell) Ring(k Kind, now time.Time) (first bool) {
	if b.kinds == nil {
		b.kinds = map[Kind]*pause{}
	}
	if b.kinds[k] == nil {
		b.kinds[k] = new(pause)
	}
	p := b.kinds[k]
	first = !p.rings
	if at := now.Add(time.Duration(rowOf(k).After) * time.Second); first && p.until.Before(at) {
		p.until = at
	}
	p.rings = true
	return first
}

// Due returns the kinds for which a run is due now, in a fixed order, and the time of the next that
// waits, zero for none.
func (b *Bell) Due(now time.Time) (kinds []Kind, next time.Time) {
	for k, p := range b.kinds {
		switch {
		case !p.rings:
		case !p.until.After(now), p.until.Sub(now) > longest: // the clock was set back
			kinds = append(kinds, k)
		case next.IsZero() || p.until.Before(next):
			next = p.until
		}
	}
	slices.Sort(kinds)
	return kinds, next
}

// Retry rings for kinds whose run could not be made. Their next run starts at the time, and does not lengthen
// their pause.
func (b *Bell) Retry(kinds []Kind, at time.Time) {
	for _, k := range kinds {
		b.Ring(k, at)
		p := b.kinds[k]
		p.until, p.long, p.ran = at, p.was.long, p.was.ran
	}
}

// mostTries is how many runs follow an event that all end without a verdict. A run that cannot be ended
// leaves processes behind; then the next health check is as good.
const mostTries = 4

// Failed rings again for kinds whose run has ended without a verdict, after the usual pause. It reports
// whether there were too many: then the events count as followed.
func (b *Bell) Failed(kinds []Kind) (over bool) {
	for _, k := range kinds {
		p := b.kinds[k]
		if p == nil {
			continue
		}
		if p.tries++; p.tries >= mostTries {
			p.tries, over = 0, true
			continue
		}
		p.rings = true
	}
	return over
}

// Judged records that the run for some kinds had a verdict.
func (b *Bell) Judged(kinds []Kind) {
	for _, k := range kinds {
		if p := b.kinds[k]; p != nil {
			p.tries = 0
		}
	}
}

// Ran records that a run for some kinds begins: events from now on need another one.
func (b *Bell) Ran(kinds []Kind, now time.Time) {
	for _, k := range kinds {
		p := b.kinds[k]
		if p == nil {
			continue
		}
		p.was.long, p.was.ran = p.long, p.ran
		if now.Sub(p.ran) > p.long+longest || p.long == 0 {
			p.long = shortest / 2
		}
		if p.long = min(2*p.long, longest); rowOf(k).Steady {
			p.long = shortest
		}
		p.rings, p.ran = false, now
		p.until = now.Add(p.long)
	}
}
