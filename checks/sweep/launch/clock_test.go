package launch

import (
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// The time left is that of the forecasts, until rounds of the stage were measured.
func TestClock(t *testing.T) {
	t.Parallel()
	c := &clock{ahead: []sweep.Forecast{
		{Stage: sweep.StageNode, Rounds: 2, About: 2 * time.Minute}, {Stage: sweep.StageReach, Skipped: "x"}, {Stage: sweep.StageTCP, Rounds: 10, About: time.Minute},
	}}
	for _, tt := range []struct {
		stage    sweep.Stage
		rounds   int
		measured time.Duration // a round, before
		want     time.Duration
	}{
		{sweep.StageNode, c.rounds(sweep.StageNode), 0, 3 * time.Minute},
		{sweep.StageNode, 1, 10 * time.Second, 70 * time.Second},
		{sweep.StageNode, 1, 30 * time.Second, 80 * time.Second},
		{sweep.StageNode, 0, 0, time.Minute},
		{sweep.StageReach, 5, 0, time.Minute},
		{sweep.StageTCP, 10, 0, time.Minute},
		{sweep.StageTCP, 20, time.Second, 20 * time.Second},
	} {
		if tt.measured > 0 {
			c.measure(tt.measured)
		}
		if got := c.left(tt.stage, tt.rounds); got != tt.want {
			t.Errorf("%s, %d rounds: %v, want %v", tt.stage, tt.rounds, got, tt.want)
		}
	}
}
