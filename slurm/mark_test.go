package slurm

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// passing returns the verdict of a healthy run that can clear the drains of some checks and no
// others.
func passing(has ...string) Verdict {
	return Verdict{Healthy: true, Lacks: func(c Mark) string {
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

// acting returns a function that runs Act for a role and expects these calls.
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

// A health check that does not look at the fault does not resume a node that an epilog
// drained.
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

	// A person resumes the node: all marks are gone.
	act(byEpilog(left, "x"), Epilog, "read", "DRAIN NHC: x")
	f.state, f.reason = "IDLE", ""
	act(passing(), HealthCheck, "read")
	act(Verdict{Message: "z"}, HealthCheck, "read", "DRAIN NHC: z")
	act(passing(), HealthCheck, "read", "RESUME")
}

// A boot empties the memory of a drain. A run that has not judged all yet after the boot does not resume the node;
// the next one asks Slurm again, and does.
func TestEarlyAfterBoot(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE+DRAIN", reason: "NHC: gpu3 0000:66:00.0: all NVLinks are down (check_gpu_nvlink)"}
	c := controller(t, f)
	act := acting(t, c)
	early := passing()
	early.Early = true
	if c.question(Memory{}, early) == c.question(Memory{}, passing()) {
		t.Error("a later run would not ask Slurm")
	}
	if out := act(early, HealthCheck, "read"); !out.Kept || out.Why != "not all is judged yet after the boot" {
		t.Errorf("outcome %+v", out)
	}
	act(early, HealthCheck, "read")
	act(passing(), HealthCheck, "read", "RESUME")
	act(passing(), HealthCheck, "read")
	if out := act(early, HealthCheck); out.Kept {
		t.Errorf("a node in service: %+v", out)
	}
}

// Two files have drained the node, each for its own fault. Each clears its own drain, and the reason
// names the remaining fault.
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

// A fault with another message, or detected again, is the same fault.
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

// A stuck process does not take the place of a fault of the same line that its end does not answer.
func TestMarkOfStuckProcess(t *testing.T) {
	t.Parallel()
	c := controller(t, &fake{state: "IDLE"})
	act := acting(t, c)
	left := by("check_job_leftovers", "train.py runs on")
	left.Code = "job.left.process"
	act(left, Manual, "read", "DRAIN NHC: train.py runs on")
	left.Message, left.Code = "train.py cannot be ended", checks.JobStuck
	act(left, Manual, "read", "DRAIN NHC: train.py cannot be ended")
	if m, err := c.recall(); err != nil || len(m.Marks) != 1 || m.Marks[0].Code() != "job.left.process" {
		t.Errorf("marks %+v, %v", m.Marks, err)
	}
}

// Another user resumes the node, and another file fails before a healthy run sees that: the old
// marks are gone.
func TestMarksOfResumedNode(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE"}
	act := acting(t, controller(t, f))
	act(by("check_gpu_gemm", "wrong"), Manual, "read", "DRAIN NHC: wrong")
	f.state, f.reason = "IDLE", ""
	act(by("check_fs_mount", "no /home"), HealthCheck, "read", "DRAIN NHC: no /home")
	act(passing("check_fs_mount"), HealthCheck, "read", "RESUME")
}

// An unknown state of the node deletes no mark.
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

// An edited reason stays if no message is stored. A drain without a cause ends with any run that passes.
func TestMarksWithoutMessage(t *testing.T) {
	t.Parallel()
	for text, kept := range map[string]bool{
		`"marks":[{"check":"check_job_leftovers","job":true}]`: true,
		`"reason":"NHC: x"`: false,
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

func TestMarkIs(t *testing.T) {
	t.Parallel()
	var m Memory
	m.mark(Verdict{Message: "gpu3 is lost", Code: "gpu.count.lost", Device: "gpu3 0000:66:00.0", Cause: Cause{Check: "check_gpu_count"}}, time.Now())
	m.mark(Verdict{Message: "check_file_test:  x", Code: "file.test", Cause: Cause{Check: "check_file_test", Line: "check_file_test -f x"}}, time.Now())
	gpu, file := m.Marks[0], m.Marks[1]
	if !gpu.Is("check_gpu_temp", "gpu.count.lost", "gpu3 0000:66:00.0") || gpu.Is("check_gpu_count", "gpu.count.lost", "gpu5") || gpu.Is("check_gpu_count", "gpu.ecc", "gpu3 0000:66:00.0") {
		t.Errorf("%+v: want the same code and device alone", gpu)
	}
	if !file.Is("check_file_test", "file.test", "") || file.Is("check_file_stat", "file.test", "") || file.Is("check_file_test", "file.other", "") {
		t.Errorf("%+v: want the same check and code alone", file)
	}
}

// A run without the check delivers a pending drain. A drain for a fault that the run has checked is
// cancelled, and the reason names the remaining faults.
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

// A fault whose drain could not be delivered is not lost if the next run does not check it: another
// drain was delivered instead, the node was in maintenance, or slurmctld had just
// started.
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

	for _, state := range []string{"IDLE+MAINTENANCE+RESERVED", "UNKNOWN+POWERED_DOWN", "DOWN+NOT_RESPONDING"} {
		f := &fake{state: state}
		c := controller(t, f)
		now := time.Now()
		c.Now, c.Settings.Recheck = func() time.Time { return now }, DefaultRecheck
		act := acting(t, c)
		act(night, Manual, "read")
		act(passing("check_fs_mount"), HealthCheck, "read")
		if strings.Contains(state, "MAINTENANCE") { // MAINTENANCE
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

	// A drain by a person stays until that person resumes the node.
	f = &fake{state: "IDLE+DRAIN", reason: "new DIMMs"}
	c = controller(t, f)
	c.Settings.Recheck = DefaultRecheck
	acting(t, c)(night, Manual, "read")
	acting(t, c)(passing("check_fs_mount"), HealthCheck, "read")
	f.state, f.reason = "IDLE", ""
	c.Now = func() time.Time { return time.Now().Add(DefaultRecheck) }
	acting(t, c)(passing("check_fs_mount"), HealthCheck, "read")
}
