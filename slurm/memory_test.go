package slurm

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMemoryKept(t *testing.T) {
	t.Parallel()
	c := controller(t, nil)
	want := Memory{
		BootID: "boot-1", Reported: ReportedDrained, Reason: "NHC: x", Unsettled: true,
		Pending: Pending{Message: "x", Since: time.Now().UTC().Truncate(time.Second)},
	}
	if err := c.save(want); err != nil {
		t.Fatal(err)
	}
	want.Version = memoryFormat
	got, err := c.recall()
	if err != nil || !reflect.DeepEqual(got, want) { // Act compares in this way
		t.Errorf("error %v (-want +got):\n%s", err, cmp.Diff(want, got))
	}
}

// Any damaged memory gives one warning, and the run continues without a
// memory.
func TestActSpoiltMemory(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{
		"garbage":     "\x00\xff{",
		"empty":       "",
		"half":        `{"version":1,"boot_id":"boot-1","told":"o`,
		"another":     `{"version":2,"boot_id":"boot-1","told":"ok"}`,
		"wrong types": `{"version":1,"told":[1]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fake{state: "IDLE"}
			c := controller(t, f)
			put(c, data)
			o := act(t, c, healthy, "read")
			if o.Warning == nil || !strings.Contains(o.Warning.Error(), "memory") || strings.Contains(o.Warning.Error(), "\n") {
				t.Errorf("warning %v, want one line about the memory", o.Warning)
			}
			if o = act(t, c, healthy); o.Warning != nil {
				t.Errorf("warning %v after the memory was written anew", o.Warning)
			}
		})
	}
}

// With an unusable state directory, every run asks and acts.
func TestActWithoutMemory(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	c.Dir = nil
	for range 2 {
		if o := act(t, c, healthy, "read"); o.Warning != nil {
			t.Errorf("warning %v", o.Warning)
		}
	}
	act(t, c, failing, "read", "DRAIN "+ourReason)

	c.Dir = &store{broken: errors.New("no answer")}
	for range 2 {
		if o := act(t, c, healthy, "read"); o.Warning == nil || !o.Kept || o.Why != "what drained it is unknown: its memory cannot be read: no answer" {
			t.Errorf("%+v, want the node kept, and a warning", o)
		}
	}
	f.state, f.reason = "IDLE", ""
	if o := act(t, c, healthy, "read"); o.Warning == nil || o.Kept {
		t.Errorf("%+v, want a warning", o)
	}
	f.on = always(timeout, "read")
	if o := undelivered(t, c, failing, "read"); o.Warning == nil {
		t.Error("no warning")
	}
}

func TestActFullDisk(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	c.Dir = &store{full: errors.New("no space left on device")}
	if o := act(t, c, failing, "read", "DRAIN "+ourReason); o.Warning == nil {
		t.Error("no warning")
	}
}

// A run that does not get the lock in time acts without it.
func TestActWithoutLock(t *testing.T) {
	t.Parallel()
	c := controller(t, &fake{state: "IDLE"})
	c.Dir.(*store).held = true
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if o, err := c.Act(ctx, failing, HealthCheck); err != nil || o.Action != Drain || o.Warning != nil {
		t.Errorf("Act: %+v, %v, want a drain", o, err)
	}
}

// Two runs act at the same time, one without the lock: the memory of neither is trusted.
func TestActSideBySide(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	other := *c
	f.on = func(f *fake, call string) (Output, error, bool) {
		if call == "read" { // while a health check reads, a prolog drains
			f.on = nil
			out := f.columns()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			o, err := other.Act(ctx, failing, Prolog)
			if err != nil || o.Action != Drain {
				t.Errorf("prolog: %+v, %v", o, err)
			}
			return out, nil, true
		}
		return Output{}, nil, false
	}
	if _, err := c.Act(t.Context(), healthy, HealthCheck); err != nil {
		t.Error(err)
	}
	f.is(t, "IDLE+DRAIN", ourReason)
	f.calls = nil
	act(t, c, healthy, "read", "RESUME") // the drain is seen; "ok" would have hidden it
}

func TestBootID(t *testing.T) {
	t.Parallel()
	if id := BootID(); len(id) != 36 || id != BootID() {
		t.Errorf("BootID() = %q", id)
	}
}

// slurmctld is slow, and a run that waits for the lock in vain finds a fault and cannot drain the node. The
// run before it, which passes, ends last: the pending drain and its cause stay.
func TestMemoryOfTwoRuns(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	late := Verdict{Message: "no route", Code: "net.route", Cause: Cause{Check: "check_net", File: "/etc/nhc/nhc.conf"}}
	f.on = func(f *fake, _ string) (Output, error, bool) {
		f.on = nil
		other := controller(t, &fake{on: always(timeout, "read")})
		other.Dir = c.Dir
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if out, err := other.Act(ctx, late, Monitor); err == nil || !out.Pending {
			t.Errorf("%+v, %v: want a pending drain", out, err)
		}
		return Output{}, nil, false
	}
	act(t, c, healthy, "read")
	m := memoryOf(t, c)
	if m.Pending.Message != late.Message || len(m.Marks) != 1 || m.Marks[0].Cause != late.Cause {
		t.Errorf("%+v, want the pending drain and its mark", m)
	}
	if o, err := c.Deliver(t.Context()); err != nil || o.Action != Drain {
		t.Errorf("%+v, %v: want the drain", o, err)
	}

	// The same, if the fault was known before.
	known := Mark{Cause: late.Cause, Since: time.Unix(100, 0)}
	before := Memory{Pending: Pending{Message: "no route"}, Marks: []Mark{known}}
	again := known
	again.Since = time.Unix(200, 0)
	for _, tt := range []struct {
		now  Memory
		want bool
	}{{before, false}, {Memory{Pending: before.Pending, Marks: []Mark{again}}, true}} {
		after := Memory{}
		after.takeOver(tt.now, before)
		if got := len(after.Marks) == 1 && after.Pending == before.Pending; got != tt.want {
			t.Errorf("%+v: taken over %v, want %v", tt.now, got, tt.want)
		}
	}
}

// A run takes over what another one has stored in the meantime about the hold of the same fault.
func TestTakeOverHold(t *testing.T) {
	t.Parallel()
	held := func(change func(*Pending)) Memory {
		p := Pending{Message: "a", Fault: "a", Held: "many"}
		change(&p)
		return Memory{Pending: p}
	}
	plain, reported := held(func(*Pending) {}), held(func(p *Pending) { p.Reported = true })
	for name, test := range map[string]struct{ before, now, after, want Memory }{
		"reported":         {plain, reported, plain, reported},
		"reported in part": {plain, held(func(p *Pending) { p.Reported, p.Again = true, true }), plain, held(func(p *Pending) { p.Reported, p.Again = true, true })},
		"reported before":  {reported, held(func(p *Pending) { p.Reported, p.Message = true, "b" }), plain, plain},
		"released":         {plain, held(func(p *Pending) { p.Held, p.Released = "", true }), plain, held(func(p *Pending) { p.Held, p.Released = "", true })},
		"another fault":    {plain, held(func(p *Pending) { p.Fault, p.Reported, p.Released = "b", true, true }), plain, plain},
		"drained":          {plain, reported, Memory{}, Memory{}},
		"drained, again":   {reported, held(func(p *Pending) { p.Reported, p.Since = true, time.Unix(9, 0) }), Memory{}, held(func(p *Pending) { p.Reported, p.Since = true, time.Unix(9, 0) })},
	} {
		after := test.after
		if after.takeOver(test.now, test.before); after.Pending != test.want.Pending {
			t.Errorf("%s: %+v, want %+v", name, after.Pending, test.want.Pending)
		}
	}
}

// A sweep with --maintenance puts a drained node into service for its test, and drains it again with the old
// reason. The drain is still that of the health check, which ends it when the node is healthy.
func TestDrainBehindMaintenance(t *testing.T) {
	t.Parallel()
	const night = "NHC: wrong"
	for name, tt := range map[string]struct {
		during []string // the states that health checks see
		reboot bool
	}{
		"not seen": {nil, false},
		"a job":    {[]string{"ALLOCATED+MAINTENANCE+RESERVED", "MIXED+COMPLETING+MAINTENANCE"}, false},
		"idle":     {[]string{"IDLE+MAINTENANCE+RESERVED", "ALLOCATED+MAINTENANCE"}, false},
		"a boot":   {[]string{"ALLOCATED+MAINTENANCE+RESERVED"}, true},
		"both":     {[]string{"IDLE+MAINTENANCE+RESERVED"}, true},
	} {
		f := &fake{state: "IDLE"}
		c, now := watched(t, f)
		check := func(v Verdict) Outcome {
			t.Helper()
			*now = now.Add(DefaultRecheck)
			out, err := c.Act(t.Context(), v, HealthCheck)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			return out
		}
		maintain := func(before string) {
			if tt.reboot {
				c.BootID = "boot-2"
			}
			f.reason = ""
			for _, f.state = range tt.during {
				for range 2 {
					if out := check(passing("check_fs_mount")); out.Action != None {
						t.Errorf("%s: %+v in %s", name, out, f.state)
					}
				}
			}
			f.state, f.reason = "IDLE+DRAIN", before
		}
		check(failing)
		maintain(ourReason)
		if out := check(healthy); out.Action != Resume {
			t.Errorf("%s: healthy: %+v, want it resumed", name, out)
		}
		f.is(t, "IDLE", "")

		// A fault that these health checks do not check.
		if !tt.reboot {
			check(healthy)
			check(by("check_gpu_gemm", "wrong"))
			maintain(night)
			if out := check(passing("check_fs_mount")); !out.Kept {
				t.Errorf("%s: a fault that is not checked: %+v, want it kept", name, out)
			}
			f.is(t, "IDLE+DRAIN", night)
			check(passing("check_gpu_gemm"))
			f.is(t, "IDLE", "")
		}

		// The drain of a person.
		check(healthy)
		check(failing)
		maintain("bad fan")
		if out := check(healthy); out.Action != None {
			t.Errorf("%s: a person's drain: %+v", name, out)
		}
	}
}

// A health check that finds another fault during the maintenance does not forget the first one, which it does not
// check.
func TestFaultsBehindMaintenance(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	act := acting(t, controller(t, f))
	act(by("check_gpu_gemm", "wrong"), Manual, "read", "DRAIN NHC: wrong")
	f.state, f.reason = "ALLOCATED+MAINTENANCE+RESERVED", ""
	act(by("check_fs_mount", "no /home"), HealthCheck, "read", "DRAIN NHC: no /home")
	f.state = "IDLE+DRAIN"
	if out := act(passing("check_fs_mount"), HealthCheck, "read", "DRAIN NHC: wrong"); !out.Kept {
		t.Errorf("%+v, want it kept", out)
	}
	act(passing("check_gpu_gemm"), Manual, "read", "RESUME")
}

// A person who resumes a node in a maintenance has resumed it for the faults of before, too, if it is in service
// afterwards.
func TestResumedInMaintenance(t *testing.T) {
	t.Parallel()
	for _, during := range []string{"ALLOCATED+MAINTENANCE+RESERVED", "ALLOCATED"} {
		f := &fake{state: "IDLE"}
		act := acting(t, controller(t, f))
		act(by("check_gpu_gemm", "wrong"), Manual, "read", "DRAIN NHC: wrong")
		f.state, f.reason = during, ""
		act(passing("check_fs_mount"), HealthCheck, "read")
		f.state = "IDLE"
		act(by("check_fs_mount", "no /home"), HealthCheck, "read", "DRAIN NHC: no /home")
		if out := act(passing("check_fs_mount"), HealthCheck, "read", "RESUME"); out.Kept {
			t.Errorf("%s: %+v, want it resumed", during, out)
		}
	}
}

// A drain that comes back over a newer one is still ours, whatever its form.
func TestReasonBehindMaintenance(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	act := acting(t, controller(t, f))
	act(by("burn", "burn failed"), HealthCheck, "read", "DRAIN NHC: burn failed")
	f.state, f.reason = "ALLOCATED+MAINTENANCE+RESERVED", ""
	act(by("check_fs_mount", "no /home"), HealthCheck, "read", "DRAIN NHC: no /home")
	f.state, f.reason = "IDLE+DRAIN", "NHC: burn failed"
	act(healthy, HealthCheck, "read", "RESUME")
}

// While a job runs in a maintenance, Slurm is asked in ten minutes, not by each health check. When it is over, a
// healthy node needs no call again.
func TestHealthyInMaintenance(t *testing.T) {
	t.Parallel()
	f := &fake{state: "ALLOCATED+MAINTENANCE+RESERVED"}
	c, now := watched(t, f)
	if out := act(t, c, healthy, "read"); out.Reported != ReportedMaintained {
		t.Errorf("%+v, want a node in service, in maintenance", out)
	}
	act(t, c, healthy)
	*now = now.Add(heldRecheck)
	act(t, c, healthy, "read")
	f.state, *now = "ALLOCATED", now.Add(heldRecheck)
	act(t, c, healthy, "read")
	*now = now.Add(24 * time.Hour)
	act(t, c, healthy)

	f.state = "ALLOCATED+MAINTENANCE+RESERVED"
	act(t, c, failing, "read", "DRAIN "+ourReason)
}

func TestByCheck(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]bool{
		"NHC: ib0 down (check_net_link) [net.link.down]":                true,
		"NHC: ib0 down (check_net_link) [net.link.down] : held for RMA": true,
		"NHC: check_fs_mount:  /home not mounted":                       true,
		"NHC: bob waits for a part":                                     false,
		"NHC: sweep slow TCP eth1 [sweep.tcp.slow]":                     false,
		"bad fan": false,
		"":        false,
	} {
		if got := ByCheck(reason); got != want {
			t.Errorf("%s: %v", reason, got)
		}
	}
}
