package gpu

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestGPURecovery(t *testing.T) { checktest.Run(t, "check_gpu_recovery") }

var _ = checktest.Table("check_gpu_recovery", func(name string) []checktest.Scenario {
	wants := func(action int) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) { g.Recovery.Action = nvml.Known(action) })
	}
	says := func(code string, remedy checks.Remedy, text string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.recovery." + code, Severity: checks.Fail, Remedy: remedy}, text)
	}
	common := checktest.GPUCommon(name)
	odd := checktest.OnGPUs("another error", nil, checktest.Gpu3(func(g *nvml.GPU) {
		g.Recovery.Action = nvml.Failed[int](&nvml.Error{Call: "field 230", Code: 999})
	}),
		checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error", Severity: checks.Unknown}, "cannot be read: field 230: unknown error (NVML error 999)"))
	odd.Broken = true
	// cannot returns a scenario in which the driver does not return its action for any GPU. code: of the findings.
	cannot := func(title, code string, change func(g *nvml.GPU, err *nvml.Error)) checktest.Scenario {
		s := checktest.OnGPUs(title, nil, func(n *nvml.Snapshot) {
			for i := range n.GPUs {
				change(&n.GPUs[i], &nvml.Error{Call: fmt.Sprintf("field 230 of nvmlDeviceGetFieldValues(%d)", i), Code: 999})
			}
		}, allOf(func(i int) checks.Finding {
			return checktest.GPUFinding(name, i, checks.Finding{Code: code, Severity: checks.Unknown},
				fmt.Sprintf("cannot be read: field 230 of nvmlDeviceGetFieldValues(%d): unknown error (NVML error 999)", i))
		})...)
		s.Broken = true
		return s
	}
	noAction := func(g *nvml.GPU, err *nvml.Error) { g.Recovery = nvml.Recovery{Action: nvml.Failed[int](err)} }
	otherCall := cannot("another call fails for one GPU", "gpu.error", noAction)
	otherCall.NVML.GPUs[3].Recovery.Action = nvml.Failed[int](checktest.ErrOdd)
	otherCall.Want[3] = checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText)
	status := checktest.OnGPUs("another error, and the reset status", nil, checktest.Gpu3(func(g *nvml.GPU) {
		g.Recovery = nvml.Recovery{Action: nvml.Failed[int](checktest.ErrOdd), Reset: nvml.Known(true)}
	}), says("reset", checks.ResetGPU, "the driver requests a reset of the GPU"),
		checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText))
	status.Broken = true
	atInit := func(scene string, code int, f checks.Finding, text string) checktest.Scenario {
		f.Severity, f.Message, f.Whole = checks.Fail, name+":  "+text, true
		s := checktest.OnGPUs(scene, nil, nil, f)
		s.NVML, s.NVMLErr, s.Broken = nil, &nvml.Error{Call: "nvmlInit", Code: code}, true
		return s
	}
	return append(common,
		atInit("lost, at the first call", 15, checks.Finding{Code: "gpu.recovery.lost", Remedy: checks.RebootNode, Got: "lost"}, "a GPU is lost (nvmlInit: NVML error 15)"),
		atInit("reset required, at the first call", 16, checks.Finding{Code: "gpu.recovery.reset", Remedy: checks.ResetGPU, Got: "reset required"}, "a GPU requires a reset (nvmlInit: NVML error 16)"),
		checktest.OnGPUs("healthy", nil, nil).OrTable(map[string]any{}),
		checktest.OnV100s("an old GPU", nil, nil),
		checktest.OnGPUs("an old driver", nil, checktest.Gpu3(func(g *nvml.GPU) {
			g.Recovery = nvml.Recovery{Reset: nvml.Known(false), DrainReset: nvml.Known(false)}
		})),
		checktest.OnGPUs("reset", nil, wants(1), says("reset", checks.ResetGPU, "the driver requests a reset of the GPU")),
		checktest.OnGPUs("reboot", nil, wants(2), says("reboot", checks.RebootNode, "the driver requests a reboot of the node")),
		checktest.OnGPUs("drain P2P", nil, wants(3),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.recovery.p2p", Severity: checks.Warn}, "the driver requests that traffic between GPUs be drained (Drain P2P)")),
		checktest.OnGPUs("drain P2P of seven GPUs, and a reset of one", nil, func(n *nvml.Snapshot) {
			for i := range n.GPUs {
				n.GPUs[i].Recovery.Action = nvml.Known(3)
			}
			wants(1)(n)
		}, allOf(func(i int) checks.Finding {
			if i == 3 {
				return says("reset", checks.ResetGPU, "the driver requests a reset of the GPU")
			}
			return checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.recovery.p2p", Severity: checks.Warn}, "the driver requests that traffic between GPUs be drained (Drain P2P)")
		})...),
		checktest.OnGPUs("drain and reset", nil, wants(4), says("reset", checks.ResetGPU, "the driver requests an end of the jobs and a reset of the GPU")),
		checktest.OnGPUs("IMEX", nil, wants(5),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.recovery.fabric", Severity: checks.Warn, Remedy: checks.CheckFabric}, "the driver requests a recovery of the IMEX domain")),
		checktest.OnGPUs("bus reset", nil, wants(6), says("reset", checks.ResetGPU, "the driver requests a reset of the GPU's bus")),
		checktest.OnGPUs("system reboot", nil, wants(7), says("reboot", checks.RebootNode, "the driver requests a reboot of the system")),
		checktest.OnGPUs("an unknown action", nil, wants(99), says("unknown", checks.RebootNode, "the driver requests an unknown action, 99")),
		checktest.OnGPUs("the reset status, old driver", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Recovery = nvml.Recovery{DrainReset: nvml.Known(true)} }),
			says("reset", checks.ResetGPU, "the driver requests a reset of the GPU")),
		checktest.OnGPUs("no power cable", nil, checktest.Gpu3(func(g *nvml.GPU) {
			*g = nvml.GPU{Index: 3, Err: checktest.ErrPower, PCI: g.PCI, UUID: g.UUID, Serial: g.Serial}
		}), checktest.Gpu3In(name, checktest.ErrPower)),
		checktest.OnGPUs("no interrupts", nil, checktest.Gpu3(func(g *nvml.GPU) {
			*g = nvml.GPU{Index: 3, Err: checktest.ErrIRQ, PCI: g.PCI, UUID: g.UUID, Serial: g.Serial}
		}), checktest.Gpu3In(name, checktest.ErrIRQ)),
		checktest.OnGPUs("no interrupts, at a later call", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Recovery.Action = nvml.Failed[int](checktest.ErrIRQ) }), checktest.Gpu3In(name, checktest.ErrIRQ)),
		atInit("no power cable, at the first call", 8, checks.Finding{Code: "gpu.recovery.power", Remedy: checks.ReseatOrRMA, Got: "no power cable"}, "a GPU has no power cable attached (nvmlInit: NVML error 8)"),
		checktest.OnGPUs("reset required, at a later call", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Minor.Err = checktest.ErrReset }), checktest.Gpu3In(name, checktest.ErrReset)),
		checktest.OnGPUs("lost takes precedence over other errors", nil, checktest.Gpu3(func(g *nvml.GPU) {
			g.Name.Err, g.Minor.Err, g.VBIOS.Err = checktest.ErrOdd, checktest.ErrReset, checktest.ErrLost
		}), checktest.Gpu3In(name, checktest.ErrLost)),
		checktest.OnGPUs("all of eight", nil, func(n *nvml.Snapshot) {
			for i := range n.GPUs {
				n.GPUs[i].Recovery.Action = nvml.Known(2)
			}
		}, allOf(func(i int) checks.Finding {
			return checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.recovery.reboot", Severity: checks.Fail, Remedy: checks.RebootNode}, "the driver requests a reboot of the node")
		})...),
		odd, checktest.GPUDumb(name), otherCall, status,
		cannot("the driver returns the action of no GPU", "gpu.error.value", noAction),
		cannot("the driver returns nothing of any GPU", "gpu.error", func(g *nvml.GPU, err *nvml.Error) {
			noAction(g, err)
			g.Temperature.GPU, g.Power.Draw = nvml.Failed[int](err), nvml.Failed[uint32](err)
		}),
		checktest.OnGPUs("no serial number, only for messages", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Serial = nvml.Failed[string](checktest.ErrOdd) })),
	)
})

// allOf returns the same finding for each of eight GPUs.
func allOf(of func(i int) checks.Finding) (list []checks.Finding) {
	for i := range 8 {
		list = append(list, of(i))
	}
	return list
}
