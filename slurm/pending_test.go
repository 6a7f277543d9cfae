package slurm

import (
	"strings"
	"testing"
)

// undelivered runs Act and expects it to fail.
func undelivered(t *testing.T, c *Controller, v Verdict, calls ...string) Outcome {
	t.Helper()
	o, err := c.Act(t.Context(), v, HealthCheck)
	if err == nil || o.Pending == v.Healthy {
		t.Errorf("outcome %+v, error %v, want an error, a drain pending", o, err)
	}
	called(t, c, o, calls...)
	return o
}

func TestActUnreachable(t *testing.T) {
	t.Parallel()
	down := map[string]answer{
		"timeout": timeout, "refused": refused, "not found": notFound, "lost": lost,
		"127":     func(*fake, string) (Output, error) { return Output{Status: 127}, nil },
		"garbage": func(*fake, string) (Output, error) { return Output{Stdout: []byte("\x00\xff NodeName")}, nil },
		"silence": func(*fake, string) (Output, error) { return Output{}, nil },
	}
	for name, a := range down {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{state: "IDLE"}
			c := controller(t, f)
			act(t, c, healthy, "read")
			reads := []string{"read"}
			if name != "timeout" && name != "refused" && name != "lost" {
				reads = []string{"read", "read"} // sinfo, scontrol
			}

			f.on = always(a, "read", "DRAIN", "RESUME")
			undelivered(t, c, failing, reads...)
			undelivered(t, c, failing, reads...)
			f.on = nil // slurmctld is back: the drain is delivered, once
			act(t, c, failing, "read", "DRAIN "+ourReason)
			act(t, c, failing, "read")

			f.on = always(a, "read", "DRAIN", "RESUME")
			undelivered(t, c, healthy, reads...)
			f.on = nil
			act(t, c, healthy, "read", "RESUME")
			f.is(t, "IDLE", "")
		})
	}
}

// A healthy verdict cancels a pending drain, even if Slurm does not answer.
func TestActHealthyVoidsPending(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	act(t, c, healthy, "read")
	f.on = always(refused, "read")
	undelivered(t, c, failing, "read")
	undelivered(t, c, healthy, "read")
	f.on = nil
	deliver(t, c)
	act(t, c, healthy, "read")
	act(t, c, healthy)
	f.is(t, "IDLE", "")
}

func deliver(t *testing.T, c *Controller, calls ...string) {
	t.Helper()
	o, err := c.Deliver(t.Context())
	if err != nil {
		t.Errorf("Deliver: %v", err)
	}
	called(t, c, o, calls...)
}

func TestDeliver(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	deliver(t, c)
	f.on = always(timeout, "read")
	undelivered(t, c, failing, "read")
	since := memoryOf(t, c).Pending.Since
	if o, err := c.Deliver(t.Context()); err == nil || !o.Pending {
		t.Errorf("outcome %+v, error %v, want it still pending", o, err)
	}
	if got := memoryOf(t, c).Pending; got.Message != failing.Message || !got.Since.Equal(since) || since.IsZero() {
		t.Errorf("pending %+v, want the first try's", got)
	}
	f.on, f.calls = nil, nil
	deliver(t, c, "read", "DRAIN "+ourReason)
	deliver(t, c)
	f.is(t, "IDLE+DRAIN", ourReason)

	// A reboot cancels a pending drain.
	f.on = always(timeout, "read")
	undelivered(t, c, failing, "read")
	f.on = nil
	c.BootID = "boot-2"
	deliver(t, c)
}

// A run of the monitor that passes has checked a part of the node: it delivers a drain that an earlier run
// could not deliver.
func TestPartDelivers(t *testing.T) {
	t.Parallel()
	part := Verdict{Healthy: true, Part: true}
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	actAs := func(v Verdict, calls ...string) {
		t.Helper()
		o, err := c.Act(t.Context(), v, Monitor)
		if err != nil {
			t.Error(err)
		}
		called(t, c, o, calls...)
	}
	actAs(part)
	f.on = always(timeout, "read")
	undelivered(t, c, failing, "read")
	if o, err := c.Act(t.Context(), part, Monitor); err == nil || !o.Pending {
		t.Errorf("outcome %+v, error %v, want it still pending", o, err)
	}
	f.on, f.calls = nil, nil
	actAs(part, "read", "DRAIN "+ourReason)
	actAs(part)
	f.is(t, "IDLE+DRAIN", ourReason)
}

func memoryOf(t *testing.T, c *Controller) Memory {
	t.Helper()
	m, err := c.load()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A pending drain with a message of any length can be read again.
func TestDeliverLongMessage(t *testing.T) {
	t.Parallel()
	long := Verdict{Message: strings.Repeat("\n\"gpu\" ", 40_000)}
	f := &fake{state: "IDLE", on: always(timeout, "read")}
	c := controller(t, f)
	undelivered(t, c, long, "read")
	f.on = nil
	deliver(t, c, "read", "DRAIN "+Reason(long.Message))
	act(t, c, long, "read")
}

// slurmctld is down when a prolog refuses its job. slurmd reports it later and drains the node with
// its own reason; the next run replaces that by ours.
func TestRefusedWhileDown(t *testing.T) {
	t.Parallel()
	refusing := Verdict{Message: failing.Message, Refused: true}
	other := Verdict{Message: "another fault"}
	for _, words := range []string{"Prolog error", "Epilog error"} {
		for _, next := range []struct {
			name string
			run  func(*testing.T, *Controller)
			want string
		}{
			{"failing", func(t *testing.T, c *Controller) { act(t, c, failing, "read", "DRAIN "+ourReason) }, ourReason},
			{"otherwise", func(t *testing.T, c *Controller) { act(t, c, other, "read", "DRAIN NHC: another fault") }, "NHC: another fault"},
			{"no verdict", func(t *testing.T, c *Controller) { deliver(t, c, "read", "DRAIN "+ourReason) }, ourReason},
			{"well", func(t *testing.T, c *Controller) { act(t, c, healthy, "read") }, words},
		} {
			t.Run(words+", "+next.name, func(t *testing.T) {
				t.Parallel()
				f := &fake{state: "IDLE", on: always(refused, "read")}
				c := controller(t, f)
				undelivered(t, c, refusing, "read")
				undelivered(t, c, failing, "read") // the next run cannot deliver it, either
				f.on, f.state, f.reason = nil, "IDLE+DRAIN", words
				next.run(t, c)
				f.is(t, "IDLE+DRAIN", next.want)
				// Only once: later drains by Slurm have another cause.
				f.reason = words
				act(t, c, failing, "read")
				f.is(t, "IDLE+DRAIN", words)
			})
		}
	}
}

// Without a pending drain of a prolog or an epilog, Slurm's reason belongs to another failure; also
// after a reboot.
func TestSlurmsWordsAreNotOurs(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE+DRAIN", reason: "Prolog error"}
	c := controller(t, f)
	act(t, c, failing, "read")
	f.on = always(refused, "read")
	undelivered(t, c, failing, "read") // the run is a health check
	f.on = nil
	act(t, c, failing, "read")
	f.on = always(refused, "read")
	undelivered(t, c, Verdict{Message: failing.Message, Refused: true}, "read")
	f.on, c.BootID = nil, "boot-2"
	act(t, c, failing, "read")
	f.is(t, "IDLE+DRAIN", "Prolog error")
}

// The job in a pending drain is kept if the next run detects the same fault and no longer knows the
// job.
func TestPendingNamesTheJob(t *testing.T) {
	t.Parallel()
	named := Verdict{Message: Attributed(failing.Message, []string{"1234"})}
	f := &fake{state: "IDLE", on: always(refused, "read")}
	c := controller(t, f)
	undelivered(t, c, named, "read")
	undelivered(t, c, failing, "read")
	f.on = nil
	act(t, c, failing, "read", "DRAIN "+ourReason+" [job 1234]")
	act(t, c, failing, "read")

	f.on = always(refused, "read")
	undelivered(t, c, named, "read")
	f.on = nil
	act(t, c, Verdict{Message: "another fault"}, "read", "DRAIN NHC: another fault")
}
