package checks

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestGPURecovery(t *testing.T) { testCheck(t, "check_gpu_recovery") }

var _ = table("check_gpu_recovery", func(name string) []scenario {
	wants := func(action int) func(*probe.NVML) {
		return gpu3(func(g *probe.GPU) { g.Recovery.Action = probe.Known(action) })
	}
	says := func(code string, remedy Remedy, text string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.recovery." + code, Severity: Fail, Remedy: remedy}, text)
	}
	common := gpuCommon(name)
	odd := onGPUs("another error", nil, gpu3(func(g *probe.GPU) {
		g.Recovery.Action = probe.Failed[int](&probe.NVMLError{Call: "field 230", Code: 999})
	}),
		gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: field 230: unknown error (NVML error 999)"))
	odd.broken = true
	atInit := func(scene string, code int, f Finding, text string) scenario {
		f.Severity, f.Message, f.Whole = Fail, name+":  "+text, true
		s := onGPUs(scene, nil, nil, f)
		s.nvml, s.nvmlErr, s.broken = nil, &probe.NVMLError{Call: "nvmlInit", Code: code}, true
		return s
	}
	return append(common,
		atInit("lost, NVML says at once", 15, Finding{Code: "gpu.recovery.lost", Remedy: RebootNode, Got: "lost"}, "a GPU is lost (nvmlInit: NVML error 15)"),
		atInit("reset required, NVML says at once", 16, Finding{Code: "gpu.recovery.reset", Remedy: ResetGPU, Got: "reset required"}, "a GPU requires a reset (nvmlInit: NVML error 16)"),
		onGPUs("healthy", nil, nil).orTable(map[string]any{}),
		onV100s("an old GPU", nil, nil),
		onGPUs("an old driver", nil, gpu3(func(g *probe.GPU) {
			g.Recovery = probe.Recovery{Reset: probe.Known(false), DrainReset: probe.Known(false)}
		})),
		onGPUs("reset", nil, wants(1), says("reset", ResetGPU, "the driver wants a reset of the GPU")),
		onGPUs("reboot", nil, wants(2), says("reboot", RebootNode, "the driver wants a reboot of the node")),
		onGPUs("drain P2P", nil, wants(3), says("p2p", ResetGPU, "the driver wants traffic between GPUs to end")),
		onGPUs("drain and reset", nil, wants(4), says("reset", ResetGPU, "the driver wants jobs to end, and a reset of the GPU")),
		onGPUs("IMEX", nil, wants(5), says("fabric", CheckFabric, "the driver wants the IMEX domain to be recovered")),
		onGPUs("bus reset", nil, wants(6), says("reset", ResetGPU, "the driver wants a reset of the GPU's bus")),
		onGPUs("system reboot", nil, wants(7), says("reboot", RebootNode, "the driver wants a reboot of the system")),
		onGPUs("a number of the future", nil, wants(99), says("unknown", RebootNode, "the driver wants recovery action 99, which is not known here")),
		onGPUs("reset status of an old driver", nil, gpu3(func(g *probe.GPU) { g.Recovery = probe.Recovery{DrainReset: probe.Known(true)} }),
			says("reset", ResetGPU, "the driver wants a reset of the GPU")),
		onGPUs("no power cable", nil, gpu3(func(g *probe.GPU) {
			*g = probe.GPU{Index: 3, Err: errPower, PCI: g.PCI, UUID: g.UUID, Serial: g.Serial}
		}), gpu3In(name, errPower)),
		onGPUs("no interrupts", nil, gpu3(func(g *probe.GPU) { *g = probe.GPU{Index: 3, Err: errIRQ, PCI: g.PCI, UUID: g.UUID, Serial: g.Serial} }), gpu3In(name, errIRQ)),
		onGPUs("a call says no interrupts", nil, gpu3(func(g *probe.GPU) { g.Recovery.Action = probe.Failed[int](errIRQ) }), gpu3In(name, errIRQ)),
		atInit("no power cable, NVML says at once", 8, Finding{Code: "gpu.recovery.power", Remedy: ReseatOrRMA, Got: "no power cable"}, "a GPU has no power cable attached (nvmlInit: NVML error 8)"),
		onGPUs("a call says reset required", nil, gpu3(func(g *probe.GPU) { g.Minor.Err = errReset }), gpu3In(name, errReset)),
		onGPUs("lost weighs more than other errors", nil, gpu3(func(g *probe.GPU) {
			g.Name.Err, g.Minor.Err, g.VBIOS.Err = errOdd, errReset, errLost
		}), gpu3In(name, errLost)),
		onGPUs("all of eight", nil, func(n *probe.NVML) {
			for i := range n.GPUs {
				n.GPUs[i].Recovery.Action = probe.Known(2)
			}
		}, allOf(func(i int) Finding {
			return gpuFinding(name, i, Finding{Code: "gpu.recovery.reboot", Severity: Fail, Remedy: RebootNode}, "the driver wants a reboot of the node")
		})...),
		odd, gpuDumb(name),
	)
})

// allOf is the same finding of each of eight GPUs.
func allOf(of func(i int) Finding) (list []Finding) {
	for i := range 8 {
		list = append(list, of(i))
	}
	return list
}
