package checks

import (
	"testing"
	"time"
)

// A test that has too little time is Unknown; in slurmd's health check a line with a
// result that may be old is none of its concern. What the last run has found counts.
func TestActiveLacksTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		maxAge   time.Duration
		periodic bool
		job      *Job
		failed   bool // the last run has found a fault
		want     Severity
	}{
		"by hand":                   {want: Unknown},
		"by hand, an old result":    {maxAge: time.Hour, want: Unknown},
		"health check":              {periodic: true, want: Unknown},
		"in place of the last run":  {periodic: true, maxAge: time.Hour, want: Skip},
		"the last run has failed":   {periodic: true, maxAge: time.Hour, failed: true, want: Fail},
		"a job's prolog, by itself": {maxAge: time.Hour, job: &Job{ID: "7"}, want: Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, root := trialEnv(t, nil)
			check := func() *trial {
				return &trial{active: active{MaxAge: c.maxAge}, do: func(r *activeRun) {
					r.report(Device{}, Finding{Code: "trial.bad", Severity: Fail}, "bad")
				}}
			}
			if c.failed {
				if findings := check().Run(t.Context(), env); Worst(findings) != Fail {
					t.Fatal(brief(findings))
				}
			}
			env = again(env, root, h100s())
			env.Job, env.Periodic, env.Deadline = c.job, c.periodic, time.Now().Add(10*time.Second-time.Millisecond)
			findings := check().Run(t.Context(), env)
			f := findings[0]
			if Worst(findings) != c.want || f.Code != "active.time" || f.Want != "10s" || f.Got == f.Want {
				t.Errorf("worst %s of %q, got %s", Worst(findings), brief(findings), f.Got)
			}
		})
	}
}
