package launch

import (
	"encoding/json"
	"os"
	"path/filepath"
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

// The list of sweeps has the time that a running one still takes: less with each second, and never below 0.
func TestTimeLeftInList(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		ago, about time.Duration // of the last line
		least      time.Duration
		most       time.Duration
	}{
		"just written": {0, time.Hour, 30 * time.Minute, time.Hour},
		"later":        {20 * time.Minute, time.Hour, 10 * time.Minute, 40 * time.Minute},
		"late":         {2 * time.Hour, time.Hour, 0, 0},
	} {
		base := t.TempDir()
		if err := os.Chmod(base, 0o700); err != nil {
			t.Fatal(err)
		}
		r, err := create(base, Meta{ID: "x"})
		if err != nil {
			t.Fatal(err)
		}
		data, _ := json.Marshal(line{Stage: sweep.StageTCP, Round: 1, At: time.Now().Add(-tt.ago), About: tt.about})
		if err := os.WriteFile(filepath.Join(r.dir, resultsFile), append(data, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
		if list, err := List(base); err != nil || !list[0].Running || list[0].About < tt.least || list[0].About > tt.most {
			t.Errorf("%s: %+v, %v", name, list, err)
		}
		r.close()
		if list, err := List(base); err != nil || list[0].Running || list[0].About != 0 {
			t.Errorf("%s, not running: %+v, %v", name, list, err)
		}
	}
}
