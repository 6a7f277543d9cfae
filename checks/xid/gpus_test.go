package xid

import (
	"fmt"
	"testing"
)

// Processes of one job count as one application.
func TestXidJobs(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	crash := func(pid int, job string) {
		t.Helper()
		m.write(fmt.Sprintf("proc/%d/cgroup", pid), "0::/system.slice/slurmstepd.scope/job_"+job+"/step_0/user/task_0\n")
		m.up += 1000
		m.xid(31, fmt.Sprintf("pid=%d, name=python, MMU Fault", pid))
	}
	for pid := range 3 {
		crash(pid+1, "70")
		m.look("warn xid.31 restart-app")
	}
	crash(4, "71")
	m.look("warn xid.31  of 2 jobs within 24 hours")
	crash(5, "72")
	m.up += 1000 // the PID may be reused by now
	m.look("warn xid.31  of 3 processes within 24 hours")
	var l xidLedger
	if err := m.env().Host.Recall(xidLedgerName, &l); err != nil || len(l.Events) != 5 || l.Events[3].Job != "71" || l.Events[4].Job != "" {
		t.Errorf("%+v, %v", l.Events, err)
	}
}

// The errors of a GPU follow it to another slot; those of a GPU that was
// replaced end, and those of other GPUs do not.
func TestXidGPUMoves(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(54, "power")
	hold := "fail xid.54 reseat-or-rma"
	device := func() string {
		t.Helper()
		got := m.check.Run(t.Context(), m.env())
		if len(got) != 1 {
			t.Fatalf("%+v", got)
		}
		return got[0].Device.String() + " " + got[0].Device.UUID
	}
	m.look(hold)
	if got := device(); got != "gpu6 0000:c1:00.0 GPU-6" {
		t.Error(got)
	}
	m.reboot()
	m.write("proc/driver/nvidia/gpus/0000:18:00.0/information", "GPU UUID: GPU-6\n")
	m.write("proc/driver/nvidia/gpus/0000:c1:00.0/information", "GPU UUID: GPU-0\n")
	m.look(hold)
	if got := device(); got != "gpu0 0000:18:00.0 GPU-6" {
		t.Error(got)
	}
	m.reboot()
	m.write("proc/driver/nvidia/gpus/0000:18:00.0/information", "GPU UUID: GPU-new\n")
	m.look()
}
