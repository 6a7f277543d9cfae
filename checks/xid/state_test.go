package xid

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// NVML's state takes precedence over the log.
func TestXidState(t *testing.T) {
	t.Parallel()
	clean := checks.GPUState{PCI: "0000:C1:00.0", RemapPending: new(false), RemapFailed: new(false)}
	for _, c := range []struct {
		name  string
		xid   int
		state checks.GPUState
		want  []string
	}{
		{"63, nothing pending", 63, clean, nil},
		{"63, pending", 63, checks.GPUState{PCI: c1, RemapPending: new(true), RemapFailed: new(false)}, []string{"fail xid.63 reset-gpu a remapping is pending"}},
		{"63, failed", 63, checks.GPUState{PCI: c1, RemapPending: new(true), RemapFailed: new(true)}, []string{"fail xid.63 reseat-or-rma remapping has failed"}},
		{"63, half known", 63, checks.GPUState{PCI: c1, RemapPending: new(false)}, []string{"warn xid.63"}},
		{"63, another GPU pending", 63, checks.GPUState{PCI: "0000:18:00.0", RemapPending: new(true)}, []string{"warn xid.63"}},
		{"64, nothing pending", 64, clean, []string{"warn xid.64  no remapping is pending"}},
		{"64, failed", 64, checks.GPUState{PCI: c1, RemapFailed: new(true)}, []string{"fail xid.64 reseat-or-rma remapping has failed"}},
		{"177, no row pending", 177, clean, []string{"warn xid.177"}},
		{"177, pending", 177, checks.GPUState{PCI: c1, RemapPending: new(true)}, []string{"fail xid.177 reset-gpu a remapping is pending"}},
		{"177, the bank pending", 177, checks.GPUState{PCI: c1, RemapPending: new(false), RemapFailed: new(false), BankPending: new(true)}, []string{"fail xid.177 reset-gpu a remapping is pending"}},
		{"177, no bank pending", 177, checks.GPUState{PCI: c1, BankPending: new(false)}, nil},
		{"177, another GPU's bank pending", 177, checks.GPUState{PCI: "0000:18:00.0", BankPending: new(true)}, []string{"warn xid.177"}},
		{"63, pages, none pending", 63, checks.GPUState{PCI: c1, RetirePending: new(false)}, nil},
		{"63, pages, one pending", 63, checks.GPUState{PCI: c1, RetirePending: new(true)}, []string{"fail xid.63 reset-gpu a page retirement is pending"}},
		{"64, pages, none pending", 64, checks.GPUState{PCI: c1, RetirePending: new(false)}, []string{"fail xid.64 reset-gpu"}},
		{"94, nothing pending", 94, clean, []string{"warn xid.94 restart-app"}},
		{"94, pending", 94, checks.GPUState{PCI: c1, RemapPending: new(true)}, []string{"fail xid.94 reset-gpu a remapping is pending"}},
		{"48, beyond the threshold", 48, checks.GPUState{PCI: c1, SRAMThreshold: new(true)}, []string{"fail xid.48 reseat-or-rma SRAM errors are beyond their threshold"}},
		{"48, below it", 48, checks.GPUState{PCI: c1, SRAMThreshold: new(false)}, []string{"fail xid.48 reset-gpu"}},
		{"74, every link up", 74, checks.GPUState{PCI: c1, Links: []bool{true, true}}, []string{"warn xid.74  every link is up"}},
		{"74, some link down", 74, checks.GPUState{PCI: c1, Links: []bool{true, false}}, []string{"fail xid.74 reset-gpu"}},
		{"74, no links", 74, checks.GPUState{PCI: c1}, []string{"fail xid.74 reset-gpu"}},
		{"95, A100 without MIG", 95, checks.GPUState{PCI: c1, Name: "NVIDIA A100-SXM4-80GB", MIG: new(false)}, []string{"fail xid.95 reboot-node on an A100 without MIG"}},
		{"95, A100 with MIG", 95, checks.GPUState{PCI: c1, Name: "NVIDIA A100-SXM4-80GB", MIG: new(true)}, []string{"fail xid.95 reset-gpu"}},
		{"95, H100 without MIG", 95, checks.GPUState{PCI: c1, Name: "NVIDIA H100 80GB HBM3", MIG: new(false)}, []string{"fail xid.95 reset-gpu"}},
		{"62, no recovery needed", 62, checks.GPUState{PCI: c1, Recovery: new(0)}, []string{"warn xid.62  the driver requests no recovery"}},
		{"79, no recovery needed", 79, checks.GPUState{PCI: c1, Recovery: new(0)}, []string{"warn xid.79  the driver requests no recovery"}},
		{"54, no recovery needed", 54, checks.GPUState{PCI: c1, Recovery: new(0)}, []string{"fail xid.54 reseat-or-rma"}},
		{"109, reset needed", 109, checks.GPUState{PCI: c1, Recovery: new(1)}, []string{"fail xid.109 reset-gpu the driver requests a GPU reset"}},
		{"92, IMEX", 92, checks.GPUState{PCI: c1, Recovery: new(5)}, []string{"warn xid.92 check-fabric the driver requests a recovery of the IMEX domain"}},
		{"62, IMEX", 62, checks.GPUState{PCI: c1, Recovery: new(5)}, []string{"fail xid.62 reset-gpu the driver requests a recovery of the IMEX domain"}},
		{"69, IMEX", 69, checks.GPUState{PCI: c1, Recovery: new(5)}, []string{"warn xid.69 check-fabric the driver requests a recovery of the IMEX domain"}},
		{"62, drain P2P", 62, checks.GPUState{PCI: c1, Recovery: new(3)}, []string{"fail xid.62 reset-gpu the driver requests an end of peer-to-peer traffic (drain P2P)"}},
		{"69, drain P2P", 69, checks.GPUState{PCI: c1, Recovery: new(3)}, []string{"warn xid.69 restart-app the driver requests an end of peer-to-peer traffic (drain P2P)"}},
		{"63, pending, and no recovery needed", 63, checks.GPUState{PCI: c1, RemapPending: new(true), Recovery: new(0)}, []string{"fail xid.63 reset-gpu a remapping is pending"}},
		{"37, reset needed: another check's", 37, checks.GPUState{PCI: c1, Recovery: new(1)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newXidMachine(t)
			m.gpus = []checks.GPUState{{PCI: "garbage"}, c.state}
			m.xid(c.xid, "x")
			m.look(c.want...)
		})
	}
}

// Hopper logs 136 while links still train, for every link; Blackwell logs it once, for a mask of links.
func TestXidTraining(t *testing.T) {
	t.Parallel()
	up := make([]bool, 18)
	for i := range up {
		up[i] = true
	}
	down := slices.Clone(up)
	down[17] = false
	hopper := make([]string, len(up))
	for i := range hopper {
		hopper[i] = fmt.Sprintf("NVLink: Link training failed for link %d(0x0, 0x0, 0x5, 0x0, 0x0, 0x0, 0x0)", i)
	}
	blackwell := []string{"NVLink: Link training failed for links 0x0000000000020001(0x22, 0x22, 0x0, 0x0, 0x0, 0x0, 0x0)"}
	for _, c := range []struct {
		name  string
		lines []string
		links []bool
		want  string
	}{
		{"every link is up", hopper, up, "warn xid.136  its links are up"},
		{"one link did not come up", hopper, down, "fail xid.136 reset-gpu link 17 is down"},
		{"NVML cannot be queried", hopper, nil, "fail xid.136 reset-gpu"},
		{"a mask, every link is up", blackwell, up, "warn xid.136  every link is up"},
		{"a mask, one link did not come up", blackwell, down, "fail xid.136 reset-gpu"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newXidMachine(t)
			m.gpus = []checks.GPUState{{PCI: c1, Links: c.links}}
			for _, line := range c.lines {
				m.xid(136, line)
			}
			m.look(c.want)
		})
	}
}

// The driver's verdict at the end of an Xid 94 or 95 takes precedence over the table.
func TestXidVerdict(t *testing.T) {
	t.Parallel()
	const yes, drain, no = ". RST: Yes, D-RST: No", ". RST: No, D-RST: Yes", ". RST: No, D-RST: No"
	a100 := checks.GPUState{PCI: c1, Name: "NVIDIA A100-SXM4-80GB", MIG: new(false), RemapPending: new(false), RemapFailed: new(false)}
	mig := a100
	mig.MIG = new(true)
	pending := a100
	pending.RemapPending = new(true)
	for _, c := range []struct {
		name  string
		xid   int
		text  string
		state *checks.GPUState // nil: NVML cannot be queried
		want  string
	}{
		{"95, reset", 95, "Uncontained: LTC TAG (0x2, 0x1)" + yes, nil, "fail xid.95 reset-gpu"},
		{"95, no reset", 95, "Uncontained: LTC (0x2, 0x1)" + no, nil, "warn xid.95  the driver requests no reset"},
		{"95, no verdict", 95, "Uncontained", nil, "fail xid.95 reset-gpu"},
		{"95, reset, A100", 95, "Uncontained" + yes, &a100, "fail xid.95 reboot-node on an A100 without MIG"},
		{"95, no reset, A100", 95, "Uncontained" + no, &a100, "warn xid.95  the driver requests no reset"},
		{"95, reset, A100 with MIG", 95, "Uncontained" + yes, &mig, "fail xid.95 reset-gpu"},
		{"95, drain and reset, A100", 95, "Uncontained" + drain, &a100, "fail xid.95 reset-gpu"},
		{"94, no reset", 94, "Contained" + no, nil, "warn xid.94 restart-app"},
		{"94, no reset, but a row is pending", 94, "Contained" + no, &pending, "fail xid.94 reset-gpu a remapping is pending"},
		{"94, reset", 94, "Contained: PMU" + yes, nil, "fail xid.94 reset-gpu the driver requests a reset"},
		{"94, reset, no row is pending", 94, "Contained: PMU" + yes, &a100, "fail xid.94 reset-gpu the driver requests a reset"},
		{"94, drain and reset", 94, "Contained" + drain, &mig, "fail xid.94 reset-gpu the driver requests a reset"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m := newXidMachine(t)
			if c.state != nil {
				m.gpus = []checks.GPUState{*c.state}
			}
			m.xid(c.xid, c.text)
			m.look(c.want)
		})
	}
	m := newXidMachine(t) // in one burst
	m.xid(94, "Contained"+no)
	m.xid(94, "Contained: PMU"+yes)
	m.xid(95, "Uncontained"+no)
	m.look("warn xid.95  the driver requests no reset", "fail xid.94 reset-gpu the driver requests a reset")
	m.xid(95, "Uncontained"+yes)
	m.look("fail xid.94 reset-gpu the driver requests a reset", "fail xid.95 reset-gpu")
}

// Only a power cycle clears a security fault. The driver calls the GPU lost, but logs no Xid 79.
func TestXidSecurityFault(t *testing.T) {
	t.Parallel()
	const lost = "NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus."
	m := newXidMachine(t)
	m.xid(110, "SEC_FAULT: _FSP_SCPM")
	m.xid(110, "SEC_FAULT: _FUNCTION_LOCKDOWN")
	m.say(lost)
	m.say("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.") // another one of eight
	m.look("fail xid.79 reboot-node", "fail xid.110 power-cycle")
	for _, f := range m.check.Run(t.Context(), m.env()) {
		if f.Code == "gpu.xid.110" && (!strings.HasSuffix(f.Message, "power the node off and on: neither a GPU reset nor a reboot clears it. If it returns, contact the vendor") || !strings.Contains(f.Advice(), "Power the node off")) {
			t.Errorf("%s: %s", f.Message, f.Advice())
		}
	}
	m.xid(154, toReset)
	m.look("fail xid.79 reboot-node", "fail xid.110 power-cycle the driver requests a GPU reset")
	m.say("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06  Release Build") // a reset is not enough
	m.look("fail xid.79 reboot-node", "fail xid.110 power-cycle the driver requests a GPU reset")
	m.reboot()
	m.look()

	m.xid(110, "SEC_FAULT: _FSP_SCPM")
	m.xid(154, toReboot)
	m.look("fail xid.110 power-cycle the driver requests a reboot of the node")
	m.up += 2 * xidBurst // later it is another fault
	m.say(lost)
	m.look("fail xid.79 reboot-node the driver requests a reboot of the node", "fail xid.110 power-cycle")

	m = newXidMachine(t)
	m.say(lost)
	m.look("fail xid.79 reboot-node")
	m = newXidMachine(t)
	m.xid(110, "SEC_FAULT: _FSP_SCPM")
	m.xid(79, "GPU has fallen off the bus.")
	m.look("fail xid.79 reboot-node", "fail xid.110 power-cycle")
}

// NVML that was queried, and does not report what decides, is not called unqueried.
func TestXidNotReported(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		states []checks.GPUState
		want   string
	}{
		{nil, "NVML decides, but it was not queried"},
		{[]checks.GPUState{{PCI: "0000:18:00.0"}}, "NVML decides, but it was not queried"},
		{[]checks.GPUState{{PCI: c1}}, "NVML decides, but does not report it of this GPU"},
		{[]checks.GPUState{{PCI: c1, MIG: new(true)}}, "NVML decides, but does not report remapped rows of a GPU with MIG devices"},
	} {
		m := newXidMachine(t)
		m.gpus = c.states
		m.xid(63, "x")
		got := m.check.Run(t.Context(), m.env())
		if len(got) != 1 || !strings.HasSuffix(got[0].Message, ": "+c.want) {
			t.Errorf("%+v, want %q", got, c.want)
		}
	}
}

// A recovery of the IMEX domain only warns, since its cause can be on another node, but the driver asks for it.
func TestXidDomain(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.gpus = []checks.GPUState{{PCI: c1, Recovery: new(5)}}
	m.xid(154, "GPU recovery action changed from 0x0 (None) to 0x5 (Coordinated Reset)")
	got := m.check.Run(t.Context(), m.env())
	if len(got) != 1 || got[0].Severity != checks.Warn || got[0].Remedy != checks.CheckFabric || !strings.Contains(got[0].Advice(), "Do what the driver asks for") {
		t.Errorf("%+v, want a warning with the advice of its code", got)
	}
}

// With MIG devices NVML does not report whether a remapping is pending.
func TestXidMIG(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.gpus = []checks.GPUState{{PCI: c1, MIG: new(true)}}
	m.xid(63, "Row Remapper: New row")
	got := m.check.Run(t.Context(), m.env())
	const want = ": NVML decides, but does not report remapped rows of a GPU with MIG devices"
	if len(got) != 1 || got[0].Severity != checks.Warn || !strings.HasSuffix(got[0].Message, want) {
		t.Errorf("%+v, want a warning that ends in %q", got, want)
	}
}

// Only the link in the line is judged.
func TestXidLinkState(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, links string // of the GPU: u up, d down
		code        int
		lines       []string
		want        []string
	}{
		{"up again", "uuu", 74, []string{"NVLink: fatal error detected on link 1(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)"}, []string{"warn xid.74  if repeated run a field diagnostic, link 1 is up"}},
		{"another is down", "udu", 74, []string{"fatal error detected on link 2(0x0)"}, []string{"warn xid.74  link 2 is up"}},
		{"down", "udu", 74, []string{"fatal error detected on link 1(0x0)"}, []string{"fail xid.74 reset-gpu link 1 is down"}},
		{"one of two", "udu", 74, []string{"fatal error detected on link 1(0x0)", "fatal error detected on link 2(0x0)"}, []string{"fail xid.74 reset-gpu link 1 is down"}},
		{"a link that NVML does not know", "u", 74, []string{"fatal error detected on link 2(0x0)"}, []string{"fail xid.74 reset-gpu"}},
		{"unknown", "", 74, []string{"fatal error detected on link 2(0x0)"}, []string{"fail xid.74 reset-gpu"}},
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
			s := checks.GPUState{PCI: c1}
			for _, l := range c.links {
				s.Links = append(s.Links, l == 'u')
			}
			m.gpus = []checks.GPUState{s}
			for _, l := range c.lines {
				m.xid(c.code, l)
			}
			m.look(c.want...)
		})
	}
}

// A hold by NVML's state stays when NVML no longer reports the state: the memory
// must be replaced.
func TestXidStateHold(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.gpus = []checks.GPUState{{PCI: c1, SRAMThreshold: new(true), Recovery: new(0)}}
	m.xid(48, "DBE")
	hold := "fail xid.48 reseat-or-rma SRAM errors are beyond their threshold"
	m.look(hold)
	m.gpus = nil
	m.look("fail xid.48 reseat-or-rma")
	m.reboot()
	m.look("fail xid.48 reseat-or-rma")
	if done, err := Clear(m.env(), nil, "uid 0"); err != nil || len(done) != 1 {
		t.Errorf("%v, %v", done, err)
	}
	m.look()
}

// NVML's recovery action is newer than the log's.
func TestXidStateOverAuthority(t *testing.T) {
	t.Parallel()
	m := newXidMachine(t)
	m.gpus = []checks.GPUState{{PCI: c1, Index: 3, UUID: "GPU-x", Serial: "4711", Recovery: new(0)}}
	m.xid(154, toReboot)
	m.look()
	m.xid(62, "halt")
	env := m.env()
	got := m.check.Run(t.Context(), env)
	want := checks.Device{Kind: "gpu", Name: "gpu3", PCI: c1, UUID: "GPU-x", Serial: "4711"}
	if len(got) != 1 || got[0].Device != want {
		t.Errorf("%+v, want one about %+v", got, want)
	}
}
