package xid

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

const (
	toReset  = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
	toReboot = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
	toNone   = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
)

// The driver ends Drain P2P and a recovery of the IMEX domain without a reset: errors before are not over.
func TestXidNoReset(t *testing.T) {
	t.Parallel()
	for _, was := range []string{"0x3 (Drain P2P)", "0x5 (Recover IMEX Domain)", "garbage"} {
		m := newXidMachine(t)
		m.xid(57, "x")
		m.xid(92, "x")
		m.xid(154, "GPU recovery action changed from "+was+" to 0x0 (None)")
		m.look("warn xid.92", "fail xid.57 reseat-or-rma")
	}
}

// A request to drain peer-to-peer traffic needs no reset.
func TestXidDrainP2P(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(154, "GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)")
	m.look("warn xid.154  the driver requests an end of peer-to-peer traffic (drain P2P)")
	m.say("NVRM: Xid (PCI:0000:18:00): 154, " + toReset) // one of eight
	m.look("warn xid.154  the driver requests an end of peer-to-peer traffic (drain P2P)", "fail xid.154 reset-gpu the driver requests a GPU reset")
}

func TestXidReset(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]string{
		"action": checktest.OnC1 + "154, " + toNone,
		"module": "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06  Release Build",
		"bus":    "vfio-pci 0000:c1:00.0: reset done",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newXidMachine(t)
			m.xid(62, "halt")
			m.xid(79, "off")
			for range 3 {
				m.look("fail xid.79 reboot-node", "fail xid.62 reset-gpu")
				m.up += 300
			}
			m.say(how)
			if name == "action" { // the driver's action None lowers a reboot to a warning
				m.look("warn xid.79  the driver requests no recovery")
			} else {
				m.look("fail xid.79 reboot-node")
			}
			m.xid(62, "halt")
			want := []string{"fail xid.79 reboot-node", "fail xid.62 reset-gpu"}
			if name == "action" {
				want[0] = "warn xid.79  the driver requests no recovery"
			}
			m.look(want...)
			m.reboot()
			m.look()
		})
	}
}

// The reset of another GPU does not end an error.
func TestXidResetOfAnother(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(62, "halt")
	m.say("vfio-pci 0000:18:00.0: reset done")
	m.say("NVRM: Xid (PCI:0000:18:00): 154, " + toNone)
	m.look("fail xid.62 reset-gpu")
}

// An application's fault is reported once; three processes with it point to the GPU.
func TestXidApp(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(69, "pid=1, name=a, x")
	m.look("warn xid.69 restart-app")
	m.look("ok xid.69 restart-app")
	m.up += 1000
	m.xid(69, "pid=2, name=a, x")
	m.look("warn xid.69 restart-app")
	m.up += 1000
	m.xid(69, "pid=3, name=a, x")
	m.look("warn xid.69  of 3 processes within 24 hours")
	m.look("warn xid.69  of 3 processes within 24 hours")
	m.up += day + 1
	m.look()
}

func TestXidRepeats(t *testing.T) {
	t.Parallel()
	warp := func(pid, gpc int) string {
		return fmt.Sprintf("pid=%d, name=a, Graphics SM Warp Exception on (GPC %d, TPC 0, SM 1): x", pid, gpc)
	}
	m := newXidMachine(t)
	m.xid(13, warp(1, 3))
	m.up += 1000
	m.xid(13, warp(2, 4))
	m.look("warn xid.13 restart-app")
	m.up += 1000
	m.xid(13, warp(1, 3)) // the same process
	m.look("warn xid.13 restart-app")
	m.up += 1000
	m.xid(13, warp(3, 4))
	m.look("warn xid.13  on GPC 4, TPC 0 of 2 processes within 24 hours")

	m = newXidMachine(t)
	hang := func(pid int, job string) {
		t.Helper()
		if job != "" {
			m.write(fmt.Sprintf("proc/%d/cgroup", pid), "0::/system.slice/slurmstepd.scope/job_"+job+"/step_0/user/task_0\n")
		}
		m.up += 1000
		m.xid(109, fmt.Sprintf("pid=%d, name=python, Ch 00000008, errorString CTX SWITCH TIMEOUT", pid))
	}
	for pid := range 4 { // the ranks of one application, and processes of unknown jobs
		hang(pid+1, map[bool]string{true: "70"}[pid < 2])
		m.look("warn xid.109")
	}
	hang(5, "71")
	m.look("fail xid.109 reset-gpu of 2 jobs within 24 hours")
	m.up += day
	m.look("fail xid.109 reset-gpu")
	m.say("vfio-pci 0000:c1:00.0: reset done")
	m.look()
}

// Repeated errors escalate.
func TestXidAgain(t *testing.T) {
	t.Parallel()
	reset := "vfio-pci 0000:c1:00.0: reset done"
	m := newXidMachine(t)
	m.xid(79, "off")
	m.look("fail xid.79 reboot-node")
	m.reboot()
	m.look()
	m.xid(79, "off")
	m.look("fail xid.79 reseat-or-rma again within a week")
	m.reboot()
	m.look("fail xid.79 reseat-or-rma again within a week")
	m.boot += 30
	m.reboot()
	for range 3 { // the first error is forgotten, its effect is not
		m.look("fail xid.79 reseat-or-rma again within a week")
	}
	if done, err := Clear(m.env(), nil, "uid 0"); err != nil || len(done) != 1 {
		t.Errorf("%v, %v", done, err)
	}
	m.look()

	m = newXidMachine(t)
	m.xid(79, "off")
	m.look("fail xid.79 reboot-node")
	m.boot += 8 // more than a week
	m.reboot()
	m.xid(79, "off")
	m.look("fail xid.79 reboot-node")

	m = newXidMachine(t)
	m.xid(143, "init")
	m.look("fail xid.143 reset-gpu")
	m.say(reset)
	m.look()
	m.xid(143, "init")
	m.look("fail xid.143 reboot-node again within a week")
	m.reboot()
	m.look()
	m.xid(143, "init")
	m.look("fail xid.143 reseat-or-rma again within a week")

	m = newXidMachine(t)
	m.xid(74, "NVLink: fatal error detected on link 4(0x0)")
	m.look("fail xid.74 reset-gpu")
	m.say(reset)
	m.xid(74, "NVLink: fatal error detected on link 5(0x0)")
	m.look("fail xid.74 reset-gpu")
	m.say(reset)
	m.xid(74, "NVLink: fatal error detected on link 4(0x0)")
	m.look("fail xid.74 reseat-or-rma again within a week")
}

// An error that NVML has lowered to a warning does not count as one that returns.
func TestXidAgainOfNothing(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	healthy := []checks.GPUState{{PCI: c1, Recovery: new(0), Links: []bool{true, true, true, true, true}}}
	m.gpus = healthy
	const line, warn = "NVLink: fatal error detected on link 4(0x0)", "warn xid.74  link 4 is up"
	for range 3 {
		m.xid(74, line)
		m.look(warn)
		m.look(warn)
		m.reboot()
		m.look()
	}
	m.gpus = []checks.GPUState{{PCI: c1, Links: []bool{true, true, true, true, false}}}
	m.xid(74, line)
	m.look("fail xid.74 reset-gpu link 4 is down")
	m.reboot()
	m.gpus = healthy
	m.xid(74, line) // the link is up now
	m.look(warn)
	m.reboot()
	m.gpus = nil
	m.xid(74, line)
	m.look("fail xid.74 reseat-or-rma again within a week")
	m.gpus = healthy // only an operator clears it
	m.look("fail xid.74 reseat-or-rma again within a week")

	m = newXidMachine(t)
	m.gpus = []checks.GPUState{{PCI: c1, Recovery: new(0)}}
	for range 3 {
		m.xid(143, "init")
		m.look("warn xid.143  the driver requests no recovery")
		m.reboot()
	}
	m.gpus = []checks.GPUState{{PCI: c1, Recovery: new(1)}}
	m.xid(143, "init")
	m.look("fail xid.143 reset-gpu the driver requests a GPU reset")
	m.reboot()
	m.xid(143, "init")
	m.look("fail xid.143 reboot-node the driver requests a GPU reset, again within a week")
}

// Later errors, which are too many for the record, do not displace one that only an operator clears.
func TestXidAgainInAFlood(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(79, "off")
	m.look("fail xid.79 reboot-node")
	m.reboot()
	m.xid(79, "off")
	m.look("fail xid.79 reseat-or-rma again within a week")
	m.boot += 30
	m.reboot()
	for range 2 * xidMaxSame {
		m.up += 1000
		m.say("vfio-pci 0000:c1:00.0: reset done")
		m.xid(79, "off")
		m.look("fail xid.79 reseat-or-rma again within a week")
	}
}

func TestXidPairs(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(163, "disengaged")
	m.look("warn xid.163")
	m.up += 60
	m.xid(162, "reengaged")
	m.look()
	m.up += 600
	m.xid(163, "disengaged")
	m.look("warn xid.163")

	m = newXidMachine(t) // 45 and 43 follow an error that explains them
	m.xid(48, "DBE")
	m.xid(171, "DRAM")
	m.up += 100
	m.xid(45, "pid=1, name=a, Ch 1")
	m.xid(43, "pid=1, name=a, Ch 1")
	m.look("fail xid.48 reset-gpu in DRAM")
	m.up += 1000
	m.xid(45, "pid=1, name=a, Ch 1")
	m.look("warn xid.45", "fail xid.48 reset-gpu in DRAM")
	m.look("ok xid.45", "fail xid.48 reset-gpu in DRAM")

	m = newXidMachine(t)
	m.xid(48, "DBE")
	m.xid(172, "SRAM")
	m.look("fail xid.48 reset-gpu in SRAM")
	m = newXidMachine(t)
	m.xid(172, "SRAM")
	m.look("warn xid.172")
}

func TestXidAuthority(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(62, "halt")
	m.xid(154, toReset)
	m.look("fail xid.62 reset-gpu the driver requests a GPU reset")
	m.up += 10
	m.xid(154, toReboot)
	m.look("fail xid.62 reboot-node the driver requests a reboot of the node")

	m = newXidMachine(t) // also of an application's fault
	m.xid(94, "pid=1, name=a, contained")
	m.xid(154, toReset)
	m.look("fail xid.94 reset-gpu the driver requests a GPU reset")

	m = newXidMachine(t) // an error that only follows is not the reason
	m.xid(45, "pid=1, name=a, Ch 1")
	m.xid(154, toReset)
	m.look("fail xid.154 reset-gpu the driver requests a GPU reset")

	m = newXidMachine(t) // an unknown action asks for a reboot
	m.xid(154, "GPU recovery action changed from 0x0 (None) to 0x9 (Rotate)")
	m.look("fail xid.154 reboot-node the driver requests action 0x9, which this version of nhc-gpu does not know")
	m = newXidMachine(t)
	m.xid(154, "something else")
	m.look("warn xid.154  the driver requests an unreadable action")

	m = newXidMachine(t) // the 154 that follows decides about a non-fatal NVLink5 error
	m.xid(145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x0)")
	m.look("warn xid.145  RLW_SRC_TRACK on link 17, non-fatal")
	m.xid(154, toReset)
	m.look("fail xid.145 reset-gpu RLW_SRC_TRACK on link 17, non-fatal, the driver requests a GPU reset")

	m = newXidMachine(t) // the last action applies to the whole boot
	m.xid(79, "off")
	m.xid(154, toReboot)
	m.look("fail xid.79 reboot-node the driver requests a reboot of the node")
	m.xid(154, toNone)
	m.look("warn xid.79  the driver requests no recovery")
	m.up += 2 * day
	m.look("warn xid.79  the driver requests no recovery")
	m.up += 6 * day
	m.look("warn xid.79  the driver requests no recovery")
	m.look() // forgotten after a week

	m = newXidMachine(t) // a hold stays
	m.xid(54, "power")
	m.xid(154, toNone)
	m.look("fail xid.54 reseat-or-rma")
}

// A site's override of a code takes precedence over the driver's recovery action.
func TestXidOverrideHolds(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.write("etc/nhc/xid.toml", "[[xid]]\ncode = 79\nclass = \"WATCH\"\n[[xid]]\ncode = 109\nclass = \"RESET\"\n")
	m.xid(79, "off")
	m.xid(154, toReboot)
	m.look("warn xid.79")
	m.up += 1000
	m.xid(109, "x")
	m.up += 1000
	m.xid(154, toNone)
	m.look() // that was a reset
	m.xid(109, "x")
	m.look("fail xid.109 reset-gpu")
	m.up += 1000
	m.xid(154, toReboot) // about something else
	m.look("fail xid.154 reboot-node the driver requests a reboot of the node", "fail xid.109 reset-gpu")
}
