package run

import (
	"context"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
)

// watchEvery is how often somebody who watches hears what an active test does.
const watchEvery = 200 * time.Millisecond

// await waits for what became of a step, and tells meanwhile what it does.
func (e *Engine) await(ctx context.Context, s *plan.Step, result <-chan Outcome) (o Outcome, came bool) {
	var tick <-chan time.Time
	if e.Doing != nil && s.Active && !s.OnlyOld {
		ticker := time.NewTicker(watchEvery)
		defer ticker.Stop()
		tick = ticker.C
		defer e.Doing(nil, "", 0, 0)
	}
	began := time.Now()
	for {
		select {
		case o = <-result:
			return o, true
		case <-ctx.Done():
			return o, false
		case <-tick:
			e.Doing(s, e.Pool.Doing(s.Lane), time.Since(began), s.Bound)
		}
	}
}
