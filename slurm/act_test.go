package slurm

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestActSteady(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	act(t, c, healthy, "read") // without memory, one call
	act(t, c, healthy)
	act(t, c, healthy)

	c.NodeIsHealthy = "yes"
	act(t, c, healthy)
	c.NodeIsHealthy = "no"
	act(t, c, healthy, "read")
	c.NodeIsHealthy = ""
	act(t, c, healthy)

	c.BootID = "boot-2"
	act(t, c, healthy, "read")
	act(t, c, healthy)

	c.BootID = "" // unknown: no memory is valid
	act(t, c, healthy, "read")
	act(t, c, healthy, "read")
}

func TestActDrainsAndResumes(t *testing.T) {
	t.Parallel()
	for _, keeps := range []bool{false, true} {
		f := &fake{state: "MIXED", keepsReason: keeps}
		c := controller(t, f)
		act(t, c, healthy, "read")
		o := act(t, c, failing, "read", "DRAIN "+ourReason)
		if o.Action != Drain || o.Reason != ourReason {
			t.Errorf("outcome %+v, want a drain", o)
		}
		f.is(t, "MIXED+DRAIN", ourReason)
		act(t, c, failing, "read") // no second call
		act(t, c, Verdict{Message: "another fault"}, "read", "DRAIN NHC: another fault")
		f.reason += " : Not responding"
		o = act(t, c, healthy, "read", "RESUME")
		if o.Action != Resume {
			t.Errorf("outcome %+v, want a resume", o)
		}
		if strings.Contains(f.state, "DRAIN") || (f.reason != "") != keeps {
			t.Errorf("node is %s, reason %q", f.state, f.reason)
		}
		act(t, c, healthy, "read") // verify that it is in service
		act(t, c, healthy)
		// 24.11: an old reason of any user does not hide a new fault.
		f.reason = "disk swap pending"
		act(t, c, failing, "read", "DRAIN "+ourReason)
		f.is(t, "MIXED+DRAIN", ourReason)
	}
}

func TestActLeavesAlone(t *testing.T) {
	t.Parallel()
	for _, node := range []fake{
		{state: "IDLE+DRAIN", reason: "disk swap pending"},
		{state: "MIXED+DRAIN+REBOOT_REQUESTED", reason: "Reboot ASAP"},
		{state: "DOWN+DRAIN+REBOOT_ISSUED", reason: "disk swap pending : reboot issued"},
		{state: "DOWN+NOT_RESPONDING", reason: "disk swap pending"},
		{state: "DOWN+NOT_RESPONDING+POWERED_DOWN", reason: "Not responding"},
		{state: "DOWN", reason: "Not responding"},
		{state: "UNKNOWN+DRAIN+INVALID_REG", reason: ourReason},
		{state: "IDLE+MAINTENANCE+RESERVED"},
		{state: "UNKNOWN+POWERED_DOWN"},
		{state: "FUTURE"},
	} {
		f := &node
		c := controller(t, f)
		state, reason := f.state, f.reason
		for range 2 { // each run asks: another user can change it
			act(t, c, failing, "read")
			act(t, c, healthy, "read")
		}
		f.is(t, state, reason)
	}
}

// A failing node whose slurmd slurmctld awaits is drained before it registers, unless a person has to
// return the node to service. A healthy one is left alone.
func TestActDrainsBeforeSlurmd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		node  fake
		calls []string
	}{
		{fake{state: "UNKNOWN"}, []string{"read"}},
		{fake{state: "UNKNOWN", reason: "a person's, of the last drain"}, []string{"read"}},
		{fake{state: "DOWN+NOT_RESPONDING", reason: "Not responding", returns: 1}, []string{"read", "config"}},
		{fake{state: "DOWN+NOT_RESPONDING", reason: "Not responding", returns: 2}, []string{"read", "config"}},
	} {
		f := &tt.node
		c := controller(t, f)
		state := f.state
		act(t, c, healthy, "read")
		act(t, c, failing, append(tt.calls, "DRAIN "+ourReason)...)
		act(t, c, failing, "read")
		f.is(t, state+"+DRAIN", ourReason)
		act(t, c, healthy, "read", "RESUME")
	}
	for _, answer := range []func(*fake, string) (Output, error, bool){nil, always(timeout, "config"), always(refused, "config")} {
		f := &fake{state: "DOWN+NOT_RESPONDING", reason: "Not responding", on: answer}
		c := controller(t, f)
		act(t, c, failing, "read", "config")
		f.is(t, "DOWN+NOT_RESPONDING", "Not responding")
	}
}

// A drain that is set during a reboot is lost when the node registers.
func TestActAssertsAgainAfterReboot(t *testing.T) {
	t.Parallel()
	f := &fake{state: "DOWN+REBOOT_ISSUED", reason: "reboot requested : reboot issued"}
	c := controller(t, f)
	act(t, c, failing, "read", "DRAIN "+ourReason)
	f.state, f.reason = "IDLE", ""
	act(t, c, failing, "read", "DRAIN "+ourReason)
	f.is(t, "IDLE+DRAIN", ourReason)
}

// The drain of a node that is healthy during its reboot is not forgotten.
func TestActHealthyDuringReboot(t *testing.T) {
	t.Parallel()
	f := &fake{state: "DOWN+DRAIN+REBOOT_ISSUED", reason: ourReason + " : reboot issued"}
	c := controller(t, f)
	act(t, c, healthy, "read")
	f.state = "IDLE+DRAIN"
	act(t, c, healthy, "read", "RESUME")
	f.is(t, "IDLE", "")
}

// scontrol reboot nextstate=DOWN: the node stays down after its reboot, until the person has looked.
func TestActLeavesDownAfterReboot(t *testing.T) {
	t.Parallel()
	f := &fake{state: "DOWN", reason: ourReason + " : reboot issued : reboot complete"}
	c := controller(t, f)
	act(t, c, healthy, "read")
	f.is(t, "DOWN", ourReason+" : reboot issued : reboot complete")
}

// A passing node does not undo a person's order: it is resumed when the order has been carried
// out.
func TestActLeavesOrders(t *testing.T) {
	t.Parallel()
	for _, order := range []string{"REBOOT_REQUESTED", "REBOOT_ISSUED", "POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN"} {
		f := &fake{state: "MIXED"}
		c := controller(t, f)
		act(t, c, failing, "read", "DRAIN "+ourReason)
		f.state += "+" + order
		for range 2 {
			o := act(t, c, healthy, "read")
			if o.Action != None {
				t.Errorf("%s: outcome %+v, want nothing done", order, o)
			}
		}
		f.is(t, "MIXED+DRAIN+"+order, ourReason)
		f.state = "IDLE+DRAIN"
		act(t, c, healthy, "read", "RESUME")

		f.state = "MIXED+" + order // a failing node is drained nevertheless
		act(t, c, failing, "read", "DRAIN "+ourReason)
		f.is(t, "MIXED+"+order+"+DRAIN", ourReason)
	}
	f := &fake{state: "IDLE+FAIL", reason: ourReason}
	c := controller(t, f)
	act(t, c, Verdict{Message: "another fault"}, "read")
	act(t, c, healthy, "read")
	f.is(t, "IDLE+FAIL", ourReason)
	c.Settings = SettingsFrom(env("SLURM_SC_OFFLINE_ARGS=update State=FAIL"))
	act(t, c, healthy, "read", "RESUME")
}

func TestActAppliedDespiteError(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE", on: always(applied, "DRAIN", "RESUME")}
	c := controller(t, f)
	o := act(t, c, failing, "read", "DRAIN "+ourReason, "read")
	if o.Action != Drain || o.Pending {
		t.Errorf("outcome %+v, want a drain", o)
	}
	o = act(t, c, healthy, "read", "RESUME", "read")
	if o.Action != Resume {
		t.Errorf("outcome %+v, want a resume", o)
	}
	f.is(t, "IDLE", "")
}

// slurmctld can carry out a call that timed out after it has answered a later one, so one healthy
// answer is not enough.
func TestActAppliedLate(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE", on: always(timeout, "DRAIN")}
	c := controller(t, f)
	undelivered(t, c, failing, "read", "DRAIN "+ourReason, "read", "DRAIN "+ourReason)
	act(t, c, healthy, "read")
	f.serve("DRAIN " + ourReason)
	act(t, c, healthy, "read", "RESUME")
	act(t, c, healthy, "read")
	act(t, c, healthy)
	f.is(t, "IDLE", "")
}

// An administrator drains the node between the first and the second try.
func TestActAdminBetweenTries(t *testing.T) {
	t.Parallel()
	const theirs = "disk swap pending"
	f := &fake{state: "IDLE"}
	f.on = func(f *fake, call string) (Output, error, bool) {
		if strings.HasPrefix(call, "DRAIN") {
			f.serve("DRAIN " + theirs)
			return Output{TimedOut: true}, nil, true
		}
		return Output{}, nil, false
	}
	c := controller(t, f)
	o := act(t, c, failing, "read", "DRAIN "+ourReason, "read")
	if o.Action != None || o.Pending {
		t.Errorf("outcome %+v, want nothing done", o)
	}
	f.is(t, "IDLE+DRAIN", theirs)

	// Or takes over a node before it is resumed.
	f = &fake{state: "IDLE+DRAIN", reason: ourReason}
	f.on = func(f *fake, call string) (Output, error, bool) {
		if call == "RESUME" {
			f.reason = theirs
			return Output{TimedOut: true}, nil, true
		}
		return Output{}, nil, false
	}
	c = controller(t, f)
	o = act(t, c, healthy, "read", "RESUME", "read")
	if o.Action != None {
		t.Errorf("outcome %+v, want nothing done", o)
	}
	f.is(t, "IDLE+DRAIN", theirs)
}

func TestActRoles(t *testing.T) {
	t.Parallel()
	for _, role := range []Role{Prolog, Epilog} {
		f := &fake{state: "MIXED+DRAIN", reason: ourReason}
		c := controller(t, f)
		o, err := c.Act(t.Context(), healthy, role) // the devices of one job are healthy
		if err != nil {
			t.Errorf("%v: %v", role, err)
		}
		called(t, c, o)

		f.state, f.reason = "MIXED", ""
		o, err = c.Act(t.Context(), failing, role)
		if err != nil || o.Action != Drain {
			t.Errorf("%v: outcome %+v, error %v, want a drain", role, o, err)
		}
		called(t, c, o, "read", "DRAIN "+ourReason)
	}
}

func TestActBySinfo(t *testing.T) {
	t.Parallel()
	var calls []string
	c := controller(t, nil)
	c.Settings = SettingsFrom(env("SLURM_SINFO=/site/sinfo"))
	c.Runner = runner(func(_ context.Context, argv, _ []string) (Output, error) {
		calls = append(calls, strings.Join(argv, " "))
		return Output{Stdout: []byte("plnd disk swap pending\nidle none\n")}, nil
	})
	o, err := c.Act(t.Context(), failing, Manual)
	if err != nil || o.Action != Drain {
		t.Errorf("outcome %+v, error %v, want a drain", o, err)
	}
	want := "/site/sinfo -o %t %E -hn gpu01|scontrol update State=DRAIN NodeName=gpu01 Reason=" + ourReason
	if got := strings.Join(calls, "|"); got != want {
		t.Errorf("calls %s, want %s", got, want)
	}
}

// runner turns a function into a Runner.
type runner func(ctx context.Context, argv, env []string) (Output, error)

func (r runner) Run(ctx context.Context, argv, env []string) (Output, error) {
	return r(ctx, argv, env)
}

// Every call has its own deadline, and the deadline of the run also applies.
func TestActDeadlines(t *testing.T) {
	t.Parallel()
	c := controller(t, nil)
	c.Deadline = 20 * time.Millisecond
	c.Runner = runner(func(ctx context.Context, _, _ []string) (Output, error) {
		<-ctx.Done()
		return Output{TimedOut: true}, nil
	})
	start := time.Now()
	_, err := c.Act(t.Context(), failing, HealthCheck)
	if took := time.Since(start); err == nil || !strings.Contains(err.Error(), "read node gpu01: run sinfo: no answer within 20ms") || took > 10*time.Second {
		t.Errorf("error %v after %s", err, took)
	}

	c.Deadline = 0
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	start = time.Now()
	o, err := c.Act(ctx, failing, HealthCheck)
	if took := time.Since(start); err == nil || !o.Pending || took > 10*time.Second {
		t.Errorf("outcome %+v, error %v after %s", o, err, took)
	}
}

func TestErrorsSayWhat(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE", on: always(refused, "DRAIN")}
	_, err := controller(t, f).Act(t.Context(), failing, HealthCheck)
	want := "drain node gpu01: run scontrol: exit status 1: slurm_update error: Unable to contact slurm controller (connect failure)"
	if err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	f = &fake{on: always(notFound, "read")}
	if _, err = controller(t, f).Act(t.Context(), failing, HealthCheck); !errors.Is(err, errNotFound) {
		t.Errorf("error %v, want it to wrap %v", err, errNotFound)
	}
}

func BenchmarkActSteady(b *testing.B) {
	c := &Controller{Node: "gpu01", Runner: &fake{state: "IDLE"}, Dir: &store{}, BootID: "boot-1"}
	for b.Loop() {
		if _, err := c.Act(b.Context(), healthy, HealthCheck); err != nil {
			b.Fatal(err)
		}
	}
}
