package launch

import (
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// clock estimates how long a sweep still takes: by the rounds of the present stage that were measured,
// and by the forecasts of the others.
type clock struct {
	ahead    []sweep.Forecast // of the stages, in their order
	stage    sweep.Stage
	measured time.Duration // rounds of the stage
	count    int           // of them
}

// newClock makes the forecasts of all stages. A stage without a plan has none.
func newClock(o *Options, nodes []sweep.Node) *clock {
	c := new(clock)
	for _, stage := range o.Stages {
		f := sweep.Forecast{Stage: stage}
		if sweep.Unfit(stage, len(nodes)) == "" {
			if plan, err := o.Plan(stage, nodes, o.Seed, 1); err == nil { // the stage returns the error
				for _, d := range plan.Fleet() {
					if d.Note != "" { // before any test: a name that is wrong
						o.Log("stage %s: %s: %s", stage, d.Plane, d.Note)
					}
				}
				f = sweep.Foresee(stage, plan, o.Ramp)
			}
		}
		c.ahead = append(c.ahead, f)
	}
	return c
}

// at returns the place of a stage.
func (c *clock) at(stage sweep.Stage) int {
	return slices.IndexFunc(c.ahead, func(f sweep.Forecast) bool { return f.Stage == stage })
}

// rounds returns the rounds that a stage was forecast to have.
func (c *clock) rounds(stage sweep.Stage) int { return c.ahead[c.at(stage)].Rounds }

// measure takes the duration of a round of the present stage.
func (c *clock) measure(round time.Duration) {
	c.measured += round
	c.count++
}

// left estimates how long the sweep still takes if a stage has a number of rounds left. The first call
// for a stage begins it.
func (c *clock) left(stage sweep.Stage, rounds int) (about time.Duration) {
	if c.stage != stage {
		c.stage, c.measured, c.count = stage, 0, 0
	}
	at := c.at(stage)
	switch f := c.ahead[at]; {
	case c.count > 0:
		about = c.measured / time.Duration(c.count)
	case f.Rounds > 0:
		about = f.About / time.Duration(f.Rounds)
	}
	about *= time.Duration(rounds)
	for _, f := range c.ahead[at+1:] {
		about += f.About
	}
	return about
}
