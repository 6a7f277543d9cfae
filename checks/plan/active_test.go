package plan

import (
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"

	"slices"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// An active test runs alone and for at most the time that it declares. Around a job it is
// skipped; a prolog only reads its last result, which needs no worker of a library.
func TestActiveSteps(t *testing.T) {
	t.Parallel()
	lines := []conf.Line{{Check: "check_gpu_soak 60"}, {Check: "check_gpu_soak --max-age 24h 60"}}
	idle := Build(lines, Options{Timeout: 10 * time.Minute})
	if len(idle.Steps) != 2 || len(idle.Skipped) != 0 || idle.Problems != nil {
		t.Fatalf("%+v", idle)
	}
	for i, s := range idle.Steps {
		if !s.Active || !s.Barrier || s.OnlyOld || s.Class != checks.ClassActive || s.Timeout < time.Minute || s.Timeout > 3*time.Minute {
			t.Errorf("step %d: %+v", i, s)
		}
	}
	if idle.Steps[0].MaxAge != 0 || idle.Steps[1].MaxAge != 24*time.Hour {
		t.Errorf("max-age: %v, %v", idle.Steps[0].MaxAge, idle.Steps[1].MaxAge)
	}
	prolog := Build(lines, Options{Timeout: 10 * time.Minute, Context: conf.Prolog})
	if len(prolog.Steps) != 1 || !prolog.Steps[0].OnlyOld || len(prolog.Skipped) != 1 {
		t.Errorf("prolog: %+v, skipped %+v", prolog.Steps, prolog.Skipped)
	}
	if slices.Contains(prolog.Lanes(), checks.CUDA) {
		t.Errorf("the lanes of a prolog that looks at a result are %v", prolog.Lanes())
	}
	if epilog := Build(lines, Options{Timeout: 10 * time.Minute, Context: conf.Epilog}); len(epilog.Steps) != 0 || len(epilog.Skipped) != 2 {
		t.Errorf("epilog: %+v", epilog.Steps)
	}
	own := Build(lines, Options{Timeout: 10 * time.Minute, Context: conf.Prolog, Own: true})
	if len(own.Steps) != 2 || own.Steps[0].OnlyOld || !own.Steps[1].OnlyOld {
		t.Errorf("lines for a prolog alone: %+v", own.Steps)
	}
	policy := &conf.Config{Policies: map[string]conf.Policy{checks.ClassActive: {Contexts: []string{conf.Epilog}}}}
	if none := Build(lines, Options{Context: conf.Prolog, Policies: policy}); len(none.Steps) != 0 {
		t.Errorf("a policy keeps them out: %+v", none.Steps)
	}
}

// A test that takes longer than the run allows never runs.
func TestActiveFits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		active bool
		bound  time.Duration
		run    time.Duration
		want   bool
	}{
		{true, 25 * time.Second, 30 * time.Second, false}, // the same time as for a vendor's library
		{true, 24 * time.Second, 30 * time.Second, true},
		{true, time.Hour, 0, true},
		{false, time.Hour, 30 * time.Second, true},
	} {
		s := Step{Active: c.active, Bound: c.bound}
		if got := s.Fits(c.run); got != c.want {
			t.Errorf("%s in %s: %v, want %v", c.bound, c.run, got, c.want)
		}
	}
}
