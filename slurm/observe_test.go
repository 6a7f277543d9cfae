package slurm

import "testing"

// With Observe every decision is made, and no write is sent.
func TestActObserves(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	c.Observe = true
	act(t, c, healthy, "read")
	act(t, c, healthy)
	if o := act(t, c, failing, "read"); o.Action != Drain || o.Reason != ourReason {
		t.Errorf("%+v, want a drain", o)
	}
	f.is(t, "IDLE", "")
	if o := act(t, c, failing, "read"); o.Action != None { // it would be drained by now
		t.Errorf("the same again: %+v, want none", o)
	}
	other := Verdict{Message: "another fault"}
	if o := act(t, c, other, "read"); o.Action != Renew || o.Reason != "NHC: another fault" {
		t.Errorf("%+v, want a new reason", o)
	}
	if o := act(t, c, healthy, "read"); o.Action != Resume {
		t.Errorf("%+v, want a resume", o)
	}
	f.is(t, "IDLE", "")
	act(t, c, healthy, "read")
	act(t, c, healthy)

	// A person drains the node meanwhile: that is what counts.
	act(t, c, failing, "read")
	f.state, f.reason = "IDLE+DRAIN", "disk swap"
	if o := act(t, c, other, "read"); o.Action != None || o.Why != "drained for another reason (disk swap, by root)" {
		t.Errorf("%+v, want none", o)
	}
	f.is(t, "IDLE+DRAIN", "disk swap")
}

// A node that a run without Observe has drained would be resumed, once.
func TestActObservesADrain(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	act(t, c, failing, "read", "DRAIN "+ourReason)
	c.Observe = true
	if o := act(t, c, healthy, "read"); o.Action != Resume {
		t.Errorf("%+v, want a resume", o)
	}
	if o := act(t, c, healthy, "read"); o.Action != None {
		t.Errorf("%+v, want none", o)
	}
	act(t, c, healthy)
	f.is(t, "IDLE+DRAIN", ourReason)

	c.Observe = false
	act(t, c, healthy, "read", "RESUME")
	f.is(t, "IDLE", "")
}

// A node that a prolog has drained would not be resumed by a health check.
func TestActObservesAMark(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	v := failing
	v.Cause = Cause{Check: "check_job_left", Job: true}
	act(t, c, v, "read", "DRAIN "+ourReason)
	c.Observe = true
	passes := healthy
	passes.Lacks = func(Mark) string { return "which this run does not look at" }
	if o := act(t, c, passes, "read"); o.Action != None || !o.Kept {
		t.Errorf("%+v, want a node that is kept", o)
	}
}

// A drain that was pending when the site began to observe is over: nothing is sent, then or
// later.
func TestActObservesWithAPendingDrain(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE", on: func(*fake, string) (Output, error, bool) {
		return Output{Status: 1, Stderr: []byte("Unable to contact slurm controller")}, nil, true
	}}
	c := controller(t, f)
	if _, err := c.Act(t.Context(), failing, HealthCheck); err == nil {
		t.Fatal("no error of a dead slurmctld")
	}
	f.on, f.calls = nil, nil
	c.Observe = true
	if out, err := c.Deliver(t.Context()); err != nil || out.Action != None || len(f.calls) > 0 {
		t.Errorf("%+v, %v, calls %q", out, err, f.calls)
	}
	if o := act(t, c, failing, "read"); o.Action != Drain { // not before the run that finds it again
		t.Errorf("%+v, want a drain", o)
	}
	act(t, c, healthy, "read")
	c.Observe = false
	if out, err := c.Deliver(t.Context()); err != nil || out.Action != None {
		t.Errorf("%+v, %v", out, err)
	}
	f.is(t, "IDLE", "")
	act(t, c, failing, "read", "DRAIN "+ourReason)
}

// After the runs with Observe the first drain leaves a settled memory: a person who extends its reason has taken it
// over.
func TestActAfterObserving(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	c.Observe = true
	act(t, c, healthy, "read")
	c.Observe = false
	act(t, c, by("check_gpu_gemm", "wrong"), "read", "DRAIN NHC: wrong")
	if m := memoryOf(t, c); m.Reported != ReportedDrained || m.Unsettled || !m.Known {
		t.Errorf("%+v, want a settled memory", m)
	}
	f.reason = "NHC: wrong, and I keep it"
	act(t, c, passing("check_gpu_gemm"), "read")
	f.is(t, "IDLE+DRAIN", "NHC: wrong, and I keep it")
}
