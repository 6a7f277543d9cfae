package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// Each suspect's own history gets its event in a sweep of root. The report names the nodes whose history
// lacks it, and why.
func TestHistories(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		files   []string
		root    bool
		stopped bool
		history string // in the report, of gpu04
		written string // on gpu04
	}{
		"written":           {[]string{"mute-gpu04"}, true, false, sweep.Written, "event of gpu04\n"},
		"full":              {[]string{"mute-gpu04", "full-gpu04"}, true, false, "no space left on device", "event of gpu04\n"},
		"dead":              {[]string{"dies-gpu04"}, true, false, "node gpu04: its rank has ended", ""},
		"not root":          {[]string{"mute-gpu04"}, false, false, "", ""},
		"interrupted later": {[]string{"mute-gpu04"}, true, true, "the sweep was interrupted", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, o := fakeSlurm(t, 4)
			for _, f := range tt.files {
				put(t, dir, f, "")
			}
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			o.Root, o.limits.slack, o.Plan = tt.root, time.Second, pairRounds(1, time.Second)
			if tt.stopped {
				o.Stages = []sweep.Stage{sweep.StageTCP, sweep.StagePairs}
				o.Progress = func(p Progress) {
					if p.Stage == sweep.StagePairs {
						stop(errors.New("scancel"))
					}
				}
			}
			o.Events = func(r *sweep.Report) map[string][]byte {
				lines := map[string][]byte{}
				for _, s := range r.Suspects {
					lines[s.Node] = []byte("event of " + s.Node)
				}
				return lines
			}
			r, err := Run(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range r.Nodes {
				want := ""
				if n.Name == "gpu04" {
					want = tt.history
				}
				if n.History != want {
					t.Errorf("%s: history %q, want %q", n.Name, n.History, want)
				}
				written, _ := os.ReadFile(filepath.Join(dir, "history-"+n.Name))
				want = ""
				if n.Name == "gpu04" {
					want = tt.written
				}
				if string(written) != want {
					t.Errorf("%s has written %q, want %q", n.Name, written, want)
				}
			}
			for _, s := range resultsOf(r) {
				if strings.Contains(s, "event") {
					t.Errorf("the report has a result of a history: %s", s)
				}
			}
			if len(r.Stages[0].Results) != 2 {
				t.Errorf("results %v", resultsOf(r))
			}
		})
	}
}
