package active

import (
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// A test with too little time is unknown, but skipped where that is so in every run: in slurmd's
// health check, and in a run that is always too short. The result of the last run counts.
func TestActiveLacksTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		maxAge   time.Duration
		periodic bool
		job      *checks.Job
		failed   bool // the last run has found a fault
		timeout  time.Duration
		want     checks.Severity
	}{
		"by hand":                                 {want: checks.Unknown},
		"by hand, an old result":                  {maxAge: time.Hour, want: checks.Unknown},
		"by hand, a run that is too short":        {timeout: 12 * time.Second, want: checks.Skip},
		"by hand, a run that is just long enough": {timeout: 13 * time.Second, want: checks.Unknown},
		"too short, and the last run has failed":  {timeout: 12 * time.Second, maxAge: time.Hour, failed: true, want: checks.Fail},
		"health check":                            {periodic: true, want: checks.Skip},
		"in place of the last run":                {periodic: true, maxAge: time.Hour, want: checks.Skip},
		"the last run has failed":                 {periodic: true, maxAge: time.Hour, failed: true, want: checks.Fail},
		"a job's prolog, by itself":               {maxAge: time.Hour, job: &checks.Job{ID: "7"}, want: checks.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, root := trialEnv(t, nil)
			check := func() *trial {
				return &trial{active: active{MaxAge: c.maxAge}, do: func(r *activeRun) {
					r.report(checks.Device{}, checks.Finding{Code: "trial.bad", Severity: checks.Fail}, "bad")
				}}
			}
			if c.failed {
				if findings := check().Run(t.Context(), env); checks.Worst(findings) != checks.Fail {
					t.Fatal(brief(findings))
				}
			}
			env = again(env, root, checktest.H100s())
			env.Timeout = c.timeout
			env.Job, env.Periodic = c.job, c.periodic
			findings := check().Run(checks.WithDeadline(t.Context(), time.Now().Add(10*time.Second-time.Millisecond)), env)
			f := findings[0]
			if checks.Worst(findings) != c.want || f.Code != "active.time" || f.Want != "10s" || f.Got == f.Want {
				t.Errorf("worst %s of %q, got %s", checks.Worst(findings), brief(findings), f.Got)
			}
		})
	}
}
