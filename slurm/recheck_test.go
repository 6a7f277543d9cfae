package slurm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// watched returns a controller with a clock set by the test. It asks again after 30 minutes.
func watched(t *testing.T, f *fake) (*Controller, *time.Time) {
	t.Helper()
	c := controller(t, f)
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	c.Settings, c.Now = SettingsFrom(env("")), func() time.Time { return now }
	return c, &now
}

// faulty returns a verdict about one device, with a number that changes in its text.
func faulty(device string, number int) Verdict {
	return Verdict{Message: fmt.Sprintf("%s: %d errors", device, number), Code: "gpu.ecc", Device: device}
}

// reads counts the questions of runs every five minutes, for some time.
func reads(t *testing.T, c *Controller, now *time.Time, d time.Duration, verdict func(int) Verdict) (asked int) {
	t.Helper()
	for i := range int(d / (5 * time.Minute)) {
		*now = now.Add(5 * time.Minute)
		o, err := c.Act(t.Context(), verdict(i), HealthCheck)
		if err != nil || o.Action != None {
			t.Errorf("run %d: %+v, %v, want nothing done", i, o, err)
		}
		asked += o.Calls
	}
	return asked
}

// A fault with another number in each run costs a read and a write, and then one read every half
// hour; the reason and its time stay.
func TestUnchangedFaultIsSpared(t *testing.T) {
	t.Parallel()
	f := &fake{state: "MIXED"}
	c, now := watched(t, f)
	act(t, c, healthy, "read")
	act(t, c, faulty("gpu3", 1), "read", "DRAIN NHC: gpu3: 1 errors")
	if asked := reads(t, c, now, 24*time.Hour, func(i int) Verdict { return faulty("gpu3", i) }); asked < 24*2 || asked > 24*4 {
		t.Errorf("%d reads a day, want one in 15 to 30 minutes", asked)
	}
	f.calls = nil
	f.is(t, "MIXED+DRAIN", "NHC: gpu3: 1 errors")
	act(t, c, faulty("gpu5", 1), "read", "DRAIN NHC: gpu5: 1 errors") // another device
	act(t, c, faulty("gpu5", 2))
	act(t, c, healthy, "read", "RESUME") // immediately
	act(t, c, healthy, "read")
	act(t, c, healthy)
}

// A line that bash runs can find different faults: a function of the site reports another fault with
// another text. A text with another number is the same fault, unless the number names a
// device.
func TestFaultOfShellLine(t *testing.T) {
	t.Parallel()
	says := func(message string) Verdict {
		return Verdict{Message: message, Cause: Cause{Check: "site_check", File: "/etc/nhc/nhc.conf"}}
	}
	f := &fake{state: "IDLE"}
	c, _ := watched(t, f)
	act(t, c, says("site:  load 23.4 exceeds 20"), "read", "DRAIN NHC: site:  load 23.4 exceeds 20")
	act(t, c, says("site:  load 7.25 exceeds 20"))
	act(t, c, says("site:  load 7.25 exceeds 20 [job 17 18]"))
	f.is(t, "IDLE+DRAIN", "NHC: site:  load 23.4 exceeds 20")
	act(t, c, says("site:  GPU 3 lost"), "read", "DRAIN NHC: site:  GPU 3 lost")
	act(t, c, says("site:  GPU 5 lost"), "read", "DRAIN NHC: site:  GPU 5 lost")
	act(t, c, says("site:  mlx5_0 down for 3 s"), "read", "DRAIN NHC: site:  mlx5_0 down for 3 s")
	act(t, c, says("site:  mlx5_0 down for 9 s"))
	act(t, c, says("site:  mlx5_1 down for 9 s"), "read", "DRAIN NHC: site:  mlx5_1 down for 9 s")
	long := "site:  " + strings.Repeat("x", 3*MaxReason)
	act(t, c, says(long), "read", "DRAIN "+Reason(long))
	act(t, c, says(long))
	if m, err := c.recall(); err != nil || len(m.Fault) > 2*mostFaultText {
		t.Errorf("%d bytes, %v", len(m.Fault), err)
	}
}

// The same holds for a node that a person has drained, whether the checks pass or not.
func TestPersonsDrainIsSpared(t *testing.T) {
	t.Parallel()
	for _, verdict := range []func(int) Verdict{
		func(i int) Verdict { return faulty("gpu3", i) },
		func(int) Verdict { return healthy },
	} {
		f := &fake{state: "IDLE+DRAIN", reason: "disk swap"}
		c, now := watched(t, f)
		act(t, c, verdict(0), "read")
		if asked := reads(t, c, now, 24*time.Hour, verdict); asked < 24*2 || asked > 24*4 {
			t.Errorf("%d reads a day, want one in 15 to 30 minutes", asked)
		}
		f.is(t, "IDLE+DRAIN", "disk swap")
	}
}

// A failing node that a person resumes is drained again within half an hour, and immediately if a
// job starts there or slurmd reports the node as healthy.
func TestResumedByPersonIsSeen(t *testing.T) {
	t.Parallel()
	resumed := func() (*fake, *Controller, *time.Time) {
		f := &fake{state: "IDLE"}
		c, now := watched(t, f)
		c.NodeIsHealthy = "yes"
		act(t, c, failing, "read", "DRAIN "+ourReason)
		c.NodeIsHealthy = "yes" // slurmd does not know it yet
		act(t, c, failing)
		c.NodeIsHealthy = "no"
		act(t, c, failing)
		f.state, f.reason = "IDLE", ""
		return f, c, now
	}
	f, c, now := resumed()
	*now = now.Add(30 * time.Minute)
	act(t, c, failing, "read", "DRAIN "+ourReason)
	f.is(t, "IDLE+DRAIN", ourReason)

	f, c, _ = resumed()
	c.NodeIsHealthy = "yes"
	act(t, c, failing, "read", "DRAIN "+ourReason)
	f.is(t, "IDLE+DRAIN", ourReason)

	f, c, _ = resumed()
	if _, err := c.Act(t.Context(), healthy, Prolog); err != nil || f.calls != nil {
		t.Errorf("prolog: %v, calls %q", err, f.calls)
	}
	act(t, c, failing, "read", "DRAIN "+ourReason)

	f, c, _ = resumed() // a failing prolog asks Slurm itself
	if o, err := c.Act(t.Context(), failing, Prolog); err != nil || o.Action != Drain {
		t.Errorf("prolog: %+v, %v, want a drain", o, err)
	}
	f.is(t, "IDLE+DRAIN", ourReason)
}

// A change of SLURM_NODE_IS_HEALTHY is a reason to ask Slurm; an unchanged value is
// not.
func TestNodeIsHealthyAsksOnce(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"IDLE", "IDLE+DRAIN", "IDLE+MAINTENANCE+RESERVED"} {
		f := &fake{state: "IDLE"}
		c, _ := watched(t, f)
		c.NodeIsHealthy = "yes"
		act(t, c, healthy, "read")
		act(t, c, healthy)
		f.state, c.NodeIsHealthy = state, "no"
		act(t, c, healthy, "read")
		for range 40 {
			act(t, c, healthy)
		}
		f.state, c.NodeIsHealthy = "IDLE", "yes"
		if state == "IDLE" {
			act(t, c, healthy) // the node was seen in service
		} else {
			act(t, c, healthy, "read")
		}
		act(t, c, healthy)
		c.NodeIsHealthy = "no"
		act(t, c, healthy, "read")
	}
}

// Nodes that fail together do not ask together.
func TestRecheckIsSpread(t *testing.T) {
	t.Parallel()
	now := time.Now()
	slots := map[time.Duration]int{}
	for i := range 5000 {
		c := &Controller{Node: fmt.Sprintf("gpu%04d", i), Now: func() time.Time { return now }}
		d := c.next(DefaultRecheck).Sub(now.Truncate(time.Second)).Truncate(time.Minute)
		if again := c.next(DefaultRecheck).Sub(now.Truncate(time.Second)).Truncate(time.Minute); again != d {
			t.Errorf("%s asks after %v, then after %v", c.Node, d, again)
		}
		slots[d]++
	}
	for d, n := range slots {
		if d < 14*time.Minute || d > DefaultRecheck || n > 600 {
			t.Errorf("%d of 5000 nodes ask again after %v", n, d)
		}
	}
	if len(slots) < 14 {
		t.Errorf("the nodes ask within %d minutes", len(slots))
	}
}

// A wrong clock delays nothing.
func TestRecheckClock(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE+DRAIN", reason: "disk swap"}
	c, now := watched(t, f)
	act(t, c, healthy, "read")
	*now = now.Add(-24 * time.Hour)
	act(t, c, healthy, "read")
	act(t, c, healthy)
}

// A drain that Slurm refuses is retried every ten minutes, and reported once a day; another fault
// retries immediately.
func TestRefusedDrain(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE", on: always(func(*fake, string) (Output, error) { return failed(1, "Access/permission denied") }, "DRAIN")}
	c, now := watched(t, f)
	tries, reported, errs := 0, 0, 0
	for i := range 24 * 12 {
		o, err := c.Act(t.Context(), faulty("gpu3", i), HealthCheck)
		if !o.Pending || err != nil && !o.Refused {
			t.Fatalf("run %d: %+v, %v, want a drain pending", i, o, err)
		}
		if err != nil {
			errs++
			if !o.Repeats {
				reported++
			}
		}
		tries += o.Calls / 2
		*now = now.Add(5 * time.Minute)
	}
	if reported != 1 || tries != errs || tries < 24*6/2 || tries > 24*12+1 {
		t.Errorf("a day: %d tries, %d errors, %d reported, want a try in 5 to 10 minutes, and one report", tries, errs, reported)
	}
	f.calls = nil
	o, err := c.Act(t.Context(), faulty("gpu3", 0), HealthCheck)
	if err == nil || o.Repeats {
		t.Errorf("the day after: %+v, %v, want a report", o, err)
	}
	f.calls = nil
	if o, err = c.Act(t.Context(), faulty("gpu5", 0), HealthCheck); err == nil || o.Calls != 2 {
		t.Errorf("another fault: %+v, %v, want a try", o, err)
	}
	*now = now.Add(time.Minute)
	if o, err = c.Deliver(t.Context()); err != nil || o.Calls != 0 || !o.Pending {
		t.Errorf("no verdict: %+v, %v, want no try", o, err)
	}
	*now = now.Add(10 * time.Minute)
	f.on, f.calls = nil, nil
	act(t, c, faulty("gpu5", 0), "read", "DRAIN NHC: gpu5: 0 errors")
}

// A node that Slurm does not know may register soon: the next run asks, and later ones every ten
// minutes.
func TestUnknownNode(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE", on: always(func(*fake, string) (Output, error) {
		return Output{Status: 1, Stdout: []byte("Node gpu01 not found\n")}, nil
	}, "read")}
	c, now := watched(t, f)
	o, err := c.Act(t.Context(), failing, HealthCheck)
	if !NoSuchNode(err) || !o.Refused || o.Repeats || !o.Pending {
		t.Errorf("outcome %+v, %v", o, err)
	}
	if o, err = c.Act(t.Context(), failing, HealthCheck); !NoSuchNode(err) || !o.Repeats {
		t.Errorf("the next run: %+v, %v", o, err)
	}
	if o, err = c.Act(t.Context(), failing, HealthCheck); err != nil || o.Calls != 0 || !o.Pending {
		t.Errorf("the run after that: %+v, %v", o, err)
	}
	*now = now.Add(10 * time.Minute)
	f.on, f.calls = nil, nil
	act(t, c, failing, "read", "DRAIN "+ourReason)
}

func TestParseRecheck(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"": DefaultRecheck, "0": 0, "60": time.Minute, "30m": DefaultRecheck, "-1": DefaultRecheck, "1e3": DefaultRecheck} {
		if got := SettingsFrom(env("SLURM_RECHECK=" + text)).Recheck; got != want {
			t.Errorf("SLURM_RECHECK=%s is %v, want %v", text, got, want)
		}
	}
}

// A reason is ours if nhc-gpu has written it. Without a memory its first word is enough.
func TestOwnershipByMemory(t *testing.T) {
	t.Parallel()
	const theirs = "NHC: hands off"
	f := &fake{state: "IDLE"}
	c, now := watched(t, f)
	act(t, c, healthy, "read")
	f.state, f.reason, c.NodeIsHealthy = "IDLE+DRAIN", theirs, "no" // the node was seen in service before
	act(t, c, healthy, "read")
	for range 5 {
		*now = now.Add(30 * time.Minute)
		act(t, c, healthy, "read")
		act(t, c, failing, "read")
	}
	f.is(t, "IDLE+DRAIN", theirs)

	f = &fake{state: "IDLE"}
	c, now = watched(t, f)
	act(t, c, failing, "read", "DRAIN "+ourReason)
	f.reason = theirs // a person takes over our drain
	for range 5 {
		act(t, c, healthy, "read")
		act(t, c, failing, "read")
		*now = now.Add(30 * time.Minute)
	}
	f.is(t, "IDLE+DRAIN", theirs)
	f.reason = ourReason + " : reboot issued"
	act(t, c, healthy, "read", "RESUME")

	f.state, f.reason, c.BootID = "IDLE+DRAIN", theirs, "boot-2"
	act(t, c, healthy, "read", "RESUME")
}

// A person may have resumed the node since: an epilog that fails asks, as a prolog does.
func TestFailingEpilogAsks(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c, _ := watched(t, f)
	for _, refused := range []bool{true, true, false, false} {
		f.state, f.reason = "IDLE", ""
		if o, err := c.Act(t.Context(), Verdict{Message: "check_x:  bad", Refused: refused}, Epilog); err != nil {
			t.Errorf("%+v, %v", o, err)
		}
		if !strings.Contains(f.state, "DRAIN") {
			t.Errorf("refused %v: the node is %s %q, want it drained again", refused, f.state, f.reason)
		}
	}
}

// 24.11 keeps the reason of a resumed node. If Slurm then drains it without a new reason, the drain
// is not ours, except for the status of our own prolog.
func TestOldReasonOfOurs(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE", keepsReason: true}
	c, _ := watched(t, f)
	act(t, c, failing, "read", "DRAIN "+ourReason)
	act(t, c, healthy, "read", "RESUME")
	act(t, c, healthy, "read")
	f.is(t, "IDLE", ourReason)
	f.state, c.NodeIsHealthy = "IDLE+DRAIN", "no"
	act(t, c, healthy, "read")
	f.is(t, "IDLE+DRAIN", ourReason)

	f.state, c.NodeIsHealthy = "IDLE", "yes"
	act(t, c, healthy, "read")
	f.on = always(refused, "read")
	if o, err := c.Act(t.Context(), Verdict{Message: "another", Refused: true}, Prolog); err == nil || !o.Pending {
		t.Errorf("prolog: %+v, %v, want a drain pending", o, err)
	}
	f.on, f.calls, f.state = nil, nil, "IDLE+DRAIN"
	act(t, c, Verdict{Message: "another"}, "read", "DRAIN NHC: another")
}

// Slurm is asked only once about a node that stays drained by us because the run has not checked the
// fault.
func TestKeptDrainIsSpared(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c, _ := watched(t, f)
	act := acting(t, c)
	act(by("check_gpu_gemm", "slow"), Manual, "read", "DRAIN NHC: slow")
	act(passing("check_fs_mount"), HealthCheck, "read")
	for range 3 {
		if out := act(passing("check_fs_mount"), HealthCheck); !out.Kept || out.Why != "drained by check_gpu_gemm (/etc/nhc/check_gpu_gemm.conf), which this run does not have" {
			t.Errorf("outcome %+v", out)
		}
	}
	act(passing("check_gpu_gemm"), Manual, "read", "RESUME")
}

// If a state prevents the drain of a failing node, Slurm is asked sooner again.
func TestHeldIsAskedSooner(t *testing.T) {
	t.Parallel()
	for state, most := range map[string]time.Duration{
		"IDLE+MAINTENANCE+RESERVED":     10 * time.Minute,
		"DOWN":                          10 * time.Minute,
		"DOWN+NOT_RESPONDING":           0,
		"UNKNOWN+POWERED_DOWN":          0,
		"IDLE+DRAIN+MAINTENANCE":        30 * time.Minute,
		"MIXED+DRAIN+REBOOT_REQUESTED":  10 * time.Minute,
		"UNKNOWN+DRAIN+INVALID_REG":     0,
		"DOWN+DRAIN+REBOOT_ISSUED":      0,
		"IDLE+DRAIN+NOT_RESPONDING":     30 * time.Minute,
		"MIXED+DRAIN+COMPLETING+FUTURE": 30 * time.Minute,
	} {
		f := &fake{state: state, reason: "theirs"}
		c, now := watched(t, f)
		act(t, c, failing, "read")
		if most > 0 {
			act(t, c, failing)
		}
		*now = now.Add(most)
		act(t, c, failing, "read")
	}
}

// The next run verifies a write to a node that registers soon: Slurm may have discarded
// it.
func TestDrainDuringRebootIsAsserted(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"DOWN+REBOOT_ISSUED", "UNKNOWN", "IDLE+NOT_RESPONDING", "IDLE+CLOUD+POWERING_UP"} {
		f := &fake{state: state}
		c, _ := watched(t, f)
		act(t, c, failing, "read", "DRAIN "+ourReason)
		f.state, f.reason = "IDLE", ""
		act(t, c, failing, "read", "DRAIN "+ourReason)
		act(t, c, failing)
		f.is(t, "IDLE+DRAIN", ourReason)
	}
}

// sinfo is taken from the directory of the site's scontrol; if it has no answer, scontrol is asked.
func TestReadCommands(t *testing.T) {
	t.Parallel()
	const format = "StateComplete:200,User:60,Reason:2048"
	for _, tt := range []struct {
		setting string
		has     string // the existing programs
		want    []string
	}{
		{"", "sinfo", []string{"sinfo -h -N -n gpu01 -O " + format}},
		{"SLURM_SCONTROL=/opt/slurm/bin/scontrol", "/opt/slurm/bin/sinfo", []string{"/opt/slurm/bin/sinfo -h -N -n gpu01 -O " + format}},
		{"SLURM_SCONTROL=/site/wrap", "/site/wrap", []string{"/site/sinfo -h -N -n gpu01 -O " + format, "/site/wrap -o show node gpu01"}},
		{"SLURM_SINFO_ARGS=-ho '%t %E' -n", "sinfo", []string{"sinfo -ho %t %E -n gpu01"}},
	} {
		var calls []string
		c := controller(t, nil)
		c.Settings = SettingsFrom(env(tt.setting))
		c.Runner = runner(func(_ context.Context, argv, _ []string) (Output, error) {
			calls = append(calls, strings.Join(argv, " "))
			switch {
			case argv[0] != tt.has:
				return Output{Status: 127}, nil
			case slices.Contains(argv, "show"):
				return Output{Stdout: []byte("NodeName=gpu01 State=IDLE+DRAIN CPUs=1 Reason=x [alice@2026-11-21T06:23:00]\n")}, nil
			case slices.Contains(argv, "-O"):
				return (&fake{state: "IDLE+DRAIN", reason: "x"}).columns(), nil
			}
			return Output{Stdout: []byte("drain x\n")}, nil
		})
		node, err := c.Read(t.Context())
		if err != nil || node.State.Class != Drained || node.Reason != "x" || !slices.Equal(calls, tt.want) {
			t.Errorf("%s: %+v, %v, calls %q, want %q", tt.setting, node, err, calls, tt.want)
		}
	}
}
