package checks

import (
	"fmt"
	"testing"
)

const (
	toReset  = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
	toReboot = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
	toNone   = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
)

func TestXidReset(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]string{
		"action": onC1 + "154, " + toNone,
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
			if name == "action" { // the driver's word takes a reboot back as far as a warning
				m.look("warn xid.79 reboot-node the driver asks for no recovery")
			} else {
				m.look("fail xid.79 reboot-node")
			}
			m.xid(62, "halt")
			want := []string{"fail xid.79 reboot-node", "fail xid.62 reset-gpu"}
			if name == "action" {
				want[0] = "warn xid.79 reboot-node the driver asks for no recovery"
			}
			m.look(want...)
			m.reboot()
			m.look()
		})
	}
}

// Another GPU's reset is no business of this one.
func TestXidResetOfAnother(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(62, "halt")
	m.say("vfio-pci 0000:18:00.0: reset done")
	m.say("NVRM: Xid (PCI:0000:18:00): 154, " + toNone)
	m.look("fail xid.62 reset-gpu")
}

// An application's fault is told once; three jobs with it are no application's.
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
	m.xid(109, "x")
	m.look("warn xid.109")
	m.up += 1000
	m.xid(109, "x")
	m.look("fail xid.109 reset-gpu of 2 events within 24 hours")
	m.up += day
	m.look("fail xid.109 reset-gpu")
	m.say("vfio-pci 0000:c1:00.0: reset done")
	m.look()
}

// What comes back is worse than it was.
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
	m.look("fail xid.79 reseat-or-rma again within a week")

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

func TestXidPairs(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.xid(163, "disengaged")
	m.look("fail xid.163 reset-gpu")
	m.up += 60
	m.xid(162, "reengaged")
	m.look()
	m.up += 600
	m.xid(163, "disengaged")
	m.look("fail xid.163 reset-gpu")

	m = newXidMachine(t) // 45 and 43 follow what explains them
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
	m.look("fail xid.62 reset-gpu the driver asks for a GPU reset")
	m.up += 10
	m.xid(154, toReboot)
	m.look("fail xid.62 reboot-node the driver asks for a reboot of the node")

	m = newXidMachine(t) // also what is else an application's fault
	m.xid(94, "pid=1, name=a, contained")
	m.xid(154, toReset)
	m.look("fail xid.94 reset-gpu the driver asks for a GPU reset")

	m = newXidMachine(t) // what only follows is not the reason
	m.xid(45, "pid=1, name=a, Ch 1")
	m.xid(154, toReset)
	m.look("fail xid.154 reset-gpu the driver asks for a GPU reset")

	m = newXidMachine(t) // an action of tomorrow asks for the most
	m.xid(154, "GPU recovery action changed from 0x0 (None) to 0x9 (Rotate)")
	m.look("fail xid.154 reboot-node the driver asks for action 0x9, which is unknown to this version of nhc-gpu")
	m = newXidMachine(t)
	m.xid(154, "something else")
	m.look("warn xid.154  the driver asks for something that cannot be read")

	m = newXidMachine(t) // a non-fatal NVLink5 error acts by the 154 that follows
	m.xid(145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x0)")
	m.look("warn xid.145  RLW_SRC_TRACK on link 17, non-fatal")
	m.xid(154, toReset)
	m.look("fail xid.145 reset-gpu RLW_SRC_TRACK on link 17, non-fatal, the driver asks for a GPU reset")

	m = newXidMachine(t) // the last word holds for the whole boot
	m.xid(79, "off")
	m.xid(154, toReboot)
	m.look("fail xid.79 reboot-node the driver asks for a reboot of the node")
	m.xid(154, toNone)
	m.look("warn xid.79 reboot-node the driver asks for no recovery")
	m.up += 2 * day
	m.look("warn xid.79 reboot-node the driver asks for no recovery")
	m.up += 6 * day
	m.look("warn xid.79 reboot-node the driver asks for no recovery")
	m.look() // forgotten after a week

	m = newXidMachine(t) // a hold is no less one
	m.xid(54, "power")
	m.xid(154, toNone)
	m.look("fail xid.54 reseat-or-rma")
}

// A site's word on a code holds, whatever the driver asks for because of it.
func TestXidOverrideHolds(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.write("etc/nhc/xid.toml", "[[xid]]\ncode = 79\nclass = \"WATCH\"\n[[xid]]\ncode = 109\nclass = \"RESET\"\n")
	m.xid(79, "off")
	m.xid(154, toReboot)
	m.look("warn xid.79 reboot-node")
	m.up += 1000
	m.xid(109, "x")
	m.up += 1000
	m.xid(154, toNone)
	m.look() // that was a reset
	m.xid(109, "x")
	m.look("fail xid.109 reset-gpu")
	m.up += 1000
	m.xid(154, toReboot) // about something else
	m.look("fail xid.154 reboot-node the driver asks for a reboot of the node", "fail xid.109 reset-gpu")
}

// State beats log.
func TestXidState(t *testing.T) {
	t.Parallel()
	clean := GPUState{PCI: "0000:C1:00.0", RemapPending: new(false), RemapFailed: new(false)}
	for _, c := range []struct {
		name  string
		xid   int
		state GPUState
		want  []string
	}{
		{"63, nothing pending", 63, clean, nil},
		{"63, pending", 63, GPUState{PCI: c1, RemapPending: new(true), RemapFailed: new(false)}, []string{"fail xid.63 reset-gpu a remapping is pending"}},
		{"63, failed", 63, GPUState{PCI: c1, RemapPending: new(true), RemapFailed: new(true)}, []string{"fail xid.63 reseat-or-rma remapping has failed"}},
		{"63, half known", 63, GPUState{PCI: c1, RemapPending: new(false)}, []string{"warn xid.63"}},
		{"63, another GPU pending", 63, GPUState{PCI: "0000:18:00.0", RemapPending: new(true)}, []string{"warn xid.63"}},
		{"64, nothing pending", 64, clean, []string{"warn xid.64 reset-gpu no remapping is pending"}},
		{"64, failed", 64, GPUState{PCI: c1, RemapFailed: new(true)}, []string{"fail xid.64 reseat-or-rma remapping has failed"}},
		{"94, nothing pending", 94, clean, []string{"warn xid.94 restart-app"}},
		{"94, pending", 94, GPUState{PCI: c1, RemapPending: new(true)}, []string{"fail xid.94 reset-gpu a remapping is pending"}},
		{"48, beyond the threshold", 48, GPUState{PCI: c1, SRAMThreshold: new(true)}, []string{"fail xid.48 reseat-or-rma SRAM errors are beyond their threshold"}},
		{"48, below it", 48, GPUState{PCI: c1, SRAMThreshold: new(false)}, []string{"fail xid.48 reset-gpu"}},
		{"74, every link up", 74, GPUState{PCI: c1, Links: []bool{true, true}}, []string{"warn xid.74 reset-gpu every link is up"}},
		{"74, some link down", 74, GPUState{PCI: c1, Links: []bool{true, false}}, []string{"fail xid.74 reset-gpu"}},
		{"74, no links", 74, GPUState{PCI: c1}, []string{"fail xid.74 reset-gpu"}},
		{"95, A100 without MIG", 95, GPUState{PCI: c1, Name: "NVIDIA A100-SXM4-80GB", MIG: new(false)}, []string{"fail xid.95 reboot-node on an A100 without MIG"}},
		{"95, A100 with MIG", 95, GPUState{PCI: c1, Name: "NVIDIA A100-SXM4-80GB", MIG: new(true)}, []string{"fail xid.95 reset-gpu"}},
		{"95, H100 without MIG", 95, GPUState{PCI: c1, Name: "NVIDIA H100 80GB HBM3", MIG: new(false)}, []string{"fail xid.95 reset-gpu"}},
		{"62, no recovery needed", 62, GPUState{PCI: c1, Recovery: new(0)}, []string{"warn xid.62 reset-gpu the driver asks for no recovery"}},
		{"79, no recovery needed", 79, GPUState{PCI: c1, Recovery: new(0)}, []string{"warn xid.79 reboot-node the driver asks for no recovery"}},
		{"54, no recovery needed", 54, GPUState{PCI: c1, Recovery: new(0)}, []string{"fail xid.54 reseat-or-rma"}},
		{"109, reset needed", 109, GPUState{PCI: c1, Recovery: new(1)}, []string{"fail xid.109 reset-gpu the driver asks for a GPU reset"}},
		{"92, IMEX", 92, GPUState{PCI: c1, Recovery: new(5)}, []string{"fail xid.92 check-fabric the driver asks for a recovery of the IMEX domain"}},
		{"63, pending, and no recovery needed", 63, GPUState{PCI: c1, RemapPending: new(true), Recovery: new(0)}, []string{"fail xid.63 reset-gpu a remapping is pending"}},
		{"37, reset needed: another check's", 37, GPUState{PCI: c1, Recovery: new(1)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newXidMachine(t)
			m.gpus = []GPUState{{PCI: "garbage"}, c.state}
			m.xid(c.xid, "x")
			m.look(c.want...)
		})
	}
}

// NVML's word is newer than the log's.
func TestXidStateOverAuthority(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.gpus = []GPUState{{PCI: c1, Index: 3, UUID: "GPU-x", Serial: "4711", Recovery: new(0)}}
	m.xid(154, toReboot)
	m.look()
	m.xid(62, "halt")
	env := m.env()
	got := m.check.Run(t.Context(), env)
	want := Device{Kind: "gpu", Name: "gpu3", PCI: c1, UUID: "GPU-x", Serial: "4711"}
	if len(got) != 1 || got[0].Device != want {
		t.Errorf("%+v, want one about %+v", got, want)
	}
}

// The link that the line names is asked for, not the others.
func TestXidLinkState(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, links string // of the GPU: u up, d down
		code        int
		lines       []string
		want        []string
	}{
		{"up again", "uuu", 74, []string{"NVLink: fatal error detected on link 1(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"}, []string{"warn xid.74 reset-gpu if repeated run a field diagnosis, link 1 is up"}},
		{"another is down", "udu", 74, []string{"fatal error detected on link 2(0x0)"}, []string{"warn xid.74 reset-gpu link 2 is up"}},
		{"down", "udu", 74, []string{"fatal error detected on link 1(0x0)"}, []string{"fail xid.74 reset-gpu link 1 is down"}},
		{"one of two", "udu", 74, []string{"fatal error detected on link 1(0x0)", "fatal error detected on link 2(0x0)"}, []string{"fail xid.74 reset-gpu link 1 is down"}},
		{"a link that NVML does not know", "u", 74, []string{"fatal error detected on link 2(0x0)"}, []string{"fail xid.74 reset-gpu"}},
		{"nobody knows", "", 74, []string{"fatal error detected on link 2(0x0)"}, []string{"fail xid.74 reset-gpu"}},
		{"149, up again", "uu", 149, []string{"NETIR_LINK_DOWN Link Fatal XC0 i0 Link 01 (0x00100011 0x00000000)"},
			[]string{"warn xid.149  NETIR_LINK_DOWN on link 1, link fatal, link 1 is up"}},
		{"149, down", "ud", 149, []string{"NETIR_LINK_DOWN Link Fatal XC0 i0 Link 01 (0x00100011 0x00000000)"},
			[]string{"fail xid.149 reset-gpu NETIR_LINK_DOWN on link 1, link fatal, link 1 is down"}},
		{"149, many bit errors, down", "ud", 149, []string{"NETIR_BER_EVENT Nonfatal XC0 i0 Link 01 (0x00000013 0x00000001)"},
			[]string{"fail xid.149 reset-gpu NETIR_BER_EVENT on link 1, non-fatal, INVESTIGATE_LINK_SI_AND_CABLES, link 1 is down"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newXidMachine(t)
			s := GPUState{PCI: c1}
			for _, l := range c.links {
				s.Links = append(s.Links, l == 'u')
			}
			m.gpus = []GPUState{s}
			for _, l := range c.lines {
				m.xid(c.code, l)
			}
			m.look(c.want...)
		})
	}
}

// What NVML has made a hold of stays one when NVML no longer says so: the memory
// is replaced, not booted.
func TestXidStateHold(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.gpus = []GPUState{{PCI: c1, SRAMThreshold: new(true), Recovery: new(0)}}
	m.xid(48, "DBE")
	hold := "fail xid.48 reseat-or-rma SRAM errors are beyond their threshold"
	m.look(hold)
	m.gpus = nil
	m.look("fail xid.48 reseat-or-rma")
	m.reboot()
	m.look("fail xid.48 reseat-or-rma")
	if done, err := ClearXids(m.env(), nil, "uid 0"); err != nil || len(done) != 1 {
		t.Errorf("%v, %v", done, err)
	}
	m.look()
}
