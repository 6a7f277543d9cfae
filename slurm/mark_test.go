package slurm

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// passing is the verdict of a healthy run that takes back what was drained for by some
// checks, and no other.
func passing(has ...string) Verdict {
	return Verdict{Healthy: true, Lacks: func(c Cause) string {
		if slices.Contains(has, c.Check) {
			return ""
		}
		return "which this run does not have"
	}}
}

func by(check, message string) Verdict {
	return Verdict{Message: message, Cause: Cause{Check: check, Line: check + " 8", File: "/etc/nhc/" + check + ".conf"}}
}

func byEpilog(check, message string) Verdict {
	return Verdict{Message: message, Cause: Cause{Check: check, Job: true}}
}

// acting runs Act for a role, and wants these calls.
func acting(t *testing.T, c *Controller) func(v Verdict, role Role, calls ...string) Outcome {
	t.Helper()
	return func(v Verdict, role Role, calls ...string) Outcome {
		t.Helper()
		f := c.Runner.(*fake)
		f.calls = nil
		out, err := c.Act(t.Context(), v, role)
		if err != nil || !slices.Equal(f.calls, calls) {
			t.Fatalf("calls %q, %v, want %q", f.calls, err, calls)
		}
		return out
	}
}

// What an epilog has drained the node for is not taken back by a health check that
// does not look at it.
func TestDrainOfEpilogStands(t *testing.T) {
	t.Parallel()
	const left = "check_job_leftovers"
	f := &fake{state: "IDLE"}
	act := acting(t, controller(t, f))
	act(byEpilog(left, "x"), Epilog, "read", "DRAIN NHC: x")
	if out := act(passing("check_gpu_count"), HealthCheck, "read"); !out.Kept || out.Why != "drained by check_job_leftovers, which this run does not have" {
		t.Errorf("a run without the check: %+v", out)
	}
	act(Verdict{Message: "y"}, HealthCheck, "read", "DRAIN NHC: y")
	if out := act(passing("check_gpu_count"), HealthCheck, "read", "DRAIN NHC: x"); !out.Kept {
		t.Errorf("with a fault of its own in between: %+v", out)
	}
	if out := act(passing(left), HealthCheck, "read", "RESUME"); out.Action != Resume {
		t.Errorf("a run with the check: %+v", out)
	}

	// A person resumes: from then on it is as if nothing had been.
	act(byEpilog(left, "x"), Epilog, "read", "DRAIN NHC: x")
	f.state, f.reason = "IDLE", ""
	act(passing(), HealthCheck, "read")
	act(Verdict{Message: "z"}, HealthCheck, "read", "DRAIN NHC: z")
	act(passing(), HealthCheck, "read", "RESUME")
}

// Two files have drained the node, each for a fault of its own: each takes back its own,
// and the reason is what is left.
func TestDrainsOfTwoFiles(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	act := acting(t, controller(t, f))
	act(by("check_gpu_gemm", "wrong"), Manual, "read", "DRAIN NHC: wrong")
	act(by("check_fs_mount", "no /home"), HealthCheck, "read", "DRAIN NHC: no /home")
	out := act(passing("check_fs_mount"), HealthCheck, "read", "DRAIN NHC: wrong")
	if !out.Kept || out.Action != Renew || out.Why != "drained by check_gpu_gemm (/etc/nhc/check_gpu_gemm.conf), which this run does not have" {
		t.Errorf("outcome %+v", out)
	}
	act(passing("check_fs_mount"), HealthCheck, "read")
	act(passing("check_gpu_gemm"), Manual, "read", "RESUME")
}

// A fault that has another message is the same; so is one that is found again.
func TestMarkIsRenewed(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	c := controller(t, f)
	act := acting(t, c)
	act(by("check_gpu_gemm", "slow"), Manual, "read", "DRAIN NHC: slow")
	act(by("check_gpu_gemm", "slower"), Manual, "read")
	m, err := c.recall()
	if err != nil || len(m.Marks) != 1 || m.Marks[0].Message != "slow" {
		t.Errorf("marks %+v, %v", m.Marks, err)
	}
	for i := range mostMarks + 3 {
		act(by("check_"+strings.Repeat("x", i), "slow"), Manual, "read")
	}
	if m, err = c.recall(); err != nil || len(m.Marks) != mostMarks {
		t.Errorf("%d marks, %v", len(m.Marks), err)
	}
}

// Somebody resumes the node, and before a healthy run sees that another file fails: what
// was before is over.
func TestMarksOfResumedNode(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	act := acting(t, controller(t, f))
	act(by("check_gpu_gemm", "wrong"), Manual, "read", "DRAIN NHC: wrong")
	f.state, f.reason = "IDLE", ""
	act(by("check_fs_mount", "no /home"), HealthCheck, "read", "DRAIN NHC: no /home")
	act(passing("check_fs_mount"), HealthCheck, "read", "RESUME")
}

// The state of a node that nobody understands forgets nothing.
func TestMarksOfUnknownState(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	act := acting(t, controller(t, f))
	act(by("check_gpu_gemm", "wrong"), Manual, "read", "DRAIN NHC: wrong")
	f.state = "SOMETHING+DRAIN"
	act(passing(), HealthCheck, "read")
	f.state = "IDLE+DRAIN"
	if out := act(passing(), HealthCheck, "read"); !out.Kept {
		t.Errorf("outcome %+v", out)
	}
}

// An edited reason is left as it is where nothing is known of the message.
func TestMarksOfEarlierVersions(t *testing.T) {
	t.Parallel()
	for text, kept := range map[string]bool{
		`"check":"check_job_leftovers"`: true,
		`"reason":"NHC: x"`:             false, // an earlier version marked nothing but what prologs and epilogs did
	} {
		f := &fake{state: "IDLE+DRAIN", reason: "NHC: x"}
		c := controller(t, f)
		data := `{"version":1,"boot_id":"boot-1","told":"drained",` + text + "}\n"
		put(c, data)
		out, err := c.Act(t.Context(), passing("check_fs_mount"), HealthCheck)
		if err != nil || out.Kept != kept || (out.Action == Resume) == kept {
			t.Errorf("%s: outcome %+v, %v", text, out, err)
		}
		out, err = c.Act(t.Context(), passing("check_job_leftovers"), HealthCheck)
		if err != nil || kept && out.Action != Resume {
			t.Errorf("%s: outcome %+v, %v", text, out, err)
		}
	}
}

// A drain that could not be delivered is delivered by a run without its check; one that
// the run has looked at is void, and the reason is what is left.
func TestPendingDrainStands(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]Verdict{"epilog": byEpilog("check_job_leftovers", "x"), "night": by("check_gpu_gemm", "x")} {
		f := &fake{state: "IDLE", on: always(refused, "read")}
		c := controller(t, f)
		if out, err := c.Act(t.Context(), v, Manual); err == nil || !out.Pending {
			t.Fatalf("%s: %+v, %v", name, out, err)
		}
		f.on = nil
		if out, err := c.Act(t.Context(), passing(), HealthCheck); err != nil || out.Action != Drain || f.reason != "NHC: x" {
			t.Errorf("%s: %+v, %v, reason %q, want the drain delivered", name, out, err, f.reason)
		}
		if out, err := c.Act(t.Context(), passing(), HealthCheck); err != nil || !out.Kept {
			t.Errorf("%s: %+v, %v, want it kept", name, out, err)
		}

		f.on = always(refused, "read")
		if out, err := c.Act(t.Context(), by("check_fs_mount", "y"), HealthCheck); err == nil || !out.Pending {
			t.Fatalf("%s: %+v, %v", name, out, err)
		}
		f.on, f.calls = nil, nil
		if out, err := c.Act(t.Context(), passing("check_fs_mount"), HealthCheck); err != nil || !out.Kept || !slices.Equal(f.calls, []string{"read"}) {
			t.Errorf("%s: %+v, %v, calls %q, want nothing done", name, out, err, f.calls)
		}
	}
}

// A fault that could not be told when it was found is not lost because the run that comes
// next does not look at it: another drain took its place, the node was in maintenance, or
// slurmctld had just started.
func TestOwedDrainIsDelivered(t *testing.T) {
	t.Parallel()
	night, health := by("check_gpu_gemm", "wrong"), by("check_fs_mount", "no /home")
	f := &fake{state: "IDLE", on: always(refused, "read")}
	c := controller(t, f)
	for _, v := range []Verdict{night, health} {
		if out, err := c.Act(t.Context(), v, Manual); err == nil || !out.Pending {
			t.Fatalf("%+v, %v", out, err)
		}
	}
	f.on = nil
	acting(t, c)(passing("check_fs_mount"), HealthCheck, "read", "DRAIN NHC: wrong")
	if out := acting(t, c)(passing("check_fs_mount"), HealthCheck, "read"); !out.Kept {
		t.Errorf("%+v, want it kept", out)
	}

	for _, state := range []string{"IDLE+MAINTENANCE+RESERVED", "UNKNOWN", "DOWN+NOT_RESPONDING"} {
		f := &fake{state: state}
		c := controller(t, f)
		now := time.Now()
		c.Now, c.Settings.Recheck = func() time.Time { return now }, DefaultRecheck
		act := acting(t, c)
		act(night, Manual, "read")
		act(passing("check_fs_mount"), HealthCheck, "read")
		if strings.Contains(state, "MAINTENANCE") { // within the budget
			act(passing("check_fs_mount"), HealthCheck)
		}
		f.state, now = "IDLE", now.Add(heldRecheck)
		act(passing("check_fs_mount"), HealthCheck, "read", "DRAIN NHC: wrong")
		if out := act(passing("check_fs_mount"), HealthCheck); !out.Kept {
			t.Errorf("%s: %+v, want it kept", state, out)
		}
		act(passing("check_gpu_gemm"), Manual, "read", "RESUME")

		// Its own file has passed before the node could be drained.
		f.state = state
		act(night, Manual, "read")
		act(passing("check_gpu_gemm"), Manual, "read")
		f.state, now = "IDLE", now.Add(heldRecheck)
		act(passing("check_fs_mount"), HealthCheck, "read")
	}

	// What a person has drained is theirs, and so is the moment when it returns.
	f = &fake{state: "IDLE+DRAIN", reason: "new DIMMs"}
	c = controller(t, f)
	c.Settings.Recheck = DefaultRecheck
	acting(t, c)(night, Manual, "read")
	acting(t, c)(passing("check_fs_mount"), HealthCheck, "read")
	f.state, f.reason = "IDLE", ""
	c.Now = func() time.Time { return time.Now().Add(DefaultRecheck) }
	acting(t, c)(passing("check_fs_mount"), HealthCheck, "read")
}
