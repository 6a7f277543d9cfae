package checks

import "github.com/nhc-gpu/nhc-gpu/checks/probe"

func init() {
	const name = "check_gpu_recovery"
	wants := func(action int) func(*probe.NVML) {
		return gpu3(func(g *probe.GPU) { g.Recovery.Action = probe.Known(action) })
	}
	says := func(code string, remedy Remedy, text string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.recovery." + code, Severity: Fail, Remedy: remedy}, text)
	}
	common := gpuCommon(name)
	for i, s := range common { // a lost GPU is what this check is about
		if s.name == "one GPU gives no handle" {
			common[i].broken, common[i].want = false, []Finding{says("lost", RebootNode, lostText)}
		}
	}
	reset := &probe.NVMLError{Call: "nvmlDeviceGetSerial(3)", Code: 16}
	odd := onGPUs("another error", nil, gpu3(func(g *probe.GPU) {
		g.Recovery.Action = probe.Failed[int](&probe.NVMLError{Call: "field 230", Code: 999})
	}),
		gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: field 230: unknown error (NVML error 999)"))
	odd.broken = true
	atInit := func(scene string, code int, f Finding, text string) scenario {
		f.Severity, f.Message = Fail, name+":  "+text
		s := onGPUs(scene, nil, nil, f)
		s.nvml, s.nvmlErr, s.broken = nil, &probe.NVMLError{Call: "nvmlInit", Code: code}, true
		return s
	}
	testCheck(name, append(common,
		atInit("lost, NVML says at once", 15, Finding{Code: "gpu.recovery.lost", Remedy: RebootNode}, "nvmlInit: the GPU is lost (NVML error 15)"),
		atInit("reset required, NVML says at once", 16, Finding{Code: "gpu.recovery.reset", Remedy: ResetGPU}, "nvmlInit: the GPU requires a reset (NVML error 16)"),
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
		onGPUs("a call says reset required", nil, gpu3(func(g *probe.GPU) { g.Serial.Err = reset }),
			says("reset", ResetGPU, "nvmlDeviceGetSerial(3): the GPU requires a reset (NVML error 16)")),
		onGPUs("lost weighs more than other errors", nil, gpu3(func(g *probe.GPU) {
			g.Name.Err, g.Serial.Err, g.VBIOS.Err = &probe.NVMLError{Code: 999}, reset, errLost
		}), says("lost", RebootNode, lostText)),
		onGPUs("all of eight", nil, func(n *probe.NVML) {
			for i := range n.GPUs {
				n.GPUs[i].Recovery.Action = probe.Known(2)
			}
		}, allOf(func(i int) Finding {
			return gpuFinding(name, i, Finding{Code: "gpu.recovery.reboot", Severity: Fail, Remedy: RebootNode}, "the driver wants a reboot of the node")
		})...),
		odd, gpuDumb(name),
	)...)
}

// allOf is the same finding of each of eight GPUs.
func allOf(of func(i int) Finding) (list []Finding) {
	for i := range 8 {
		list = append(list, of(i))
	}
	return list
}
