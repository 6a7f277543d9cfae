package run

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
)

// seen is one call of Engine.Doing, with the number of steps that had begun and had a result.
type seen struct {
	check, what    string
	elapsed, bound time.Duration
	results        int
}

// watched runs a plan, and returns the calls of Doing.
func watched(t *testing.T, p *plan.Plan) (list []seen) {
	t.Helper()
	rec := &recorder{stopAt: -1}
	var mu sync.Mutex
	e := &Engine{Pool: newTestPool(t, ""), Deadline: time.Now().Add(30 * time.Second)}
	e.Doing = func(s *plan.Step, what string, elapsed, bound time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		v := seen{what: what, elapsed: elapsed, bound: bound, results: len(rec.results)}
		if s != nil {
			v.check = s.Name
		}
		list = append(list, v)
	}
	if err := e.Do(t.Context(), p, rec); err != nil {
		t.Fatal(err)
	}
	return list
}

// Doing is called while an active test runs, and once at its end, before the observer gets the
// result; for other checks it is not called.
func TestDoing(t *testing.T) {
	t.Parallel()
	p := buildPlan(0, "check_rogue ok", "check_rogue phases", "check_rogue ok")
	p.Steps[1].Active, p.Steps[1].Barrier, p.Steps[1].Bound = true, true, 9*time.Second
	list := watched(t, p)
	if len(list) < 4 {
		t.Fatalf("%+v", list)
	}
	last := list[len(list)-1]
	if last != (seen{results: 1}) {
		t.Errorf("the end is %+v", last)
	}
	var whats []string
	for i, v := range list[:len(list)-1] {
		if v.check != "check_rogue" || v.bound != 9*time.Second || v.results != 1 || v.elapsed <= 0 || i > 0 && v.elapsed <= list[i-1].elapsed {
			t.Errorf("%+v", v)
		}
		whats = append(whats, v.what)
	}
	got := slices.Compact(whats)
	for _, early := range []string{"", "rogue phases"} { // the worker starts, and has not named a phase yet
		if len(got) > 0 && got[0] == early {
			got = got[1:]
		}
	}
	if !slices.Equal(got, []string{"phase 1", "phase 2"}) {
		t.Errorf("%q", got)
	}
}

// Doing is not called for a check that is not active, or if only the last result is read.
func TestDoingOfOthers(t *testing.T) {
	t.Parallel()
	p := buildPlan(0, "check_rogue phases", "check_rogue phases")
	p.Steps[1].Active, p.Steps[1].OnlyOld = true, true
	if list := watched(t, p); len(list) > 0 {
		t.Errorf("%+v", list)
	}
}

// A worker that never started has no action.
func TestDoingOfNobody(t *testing.T) {
	t.Parallel()
	if what := newTestPool(t, "").Doing(checks.NVML); what != "" {
		t.Errorf("%q", what)
	}
}
