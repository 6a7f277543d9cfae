package checks

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestGPUMode(t *testing.T) { testCheck(t, "check_gpu_mode") }

var _ = table("check_gpu_mode", func(name string) []scenario {
	says := func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.mode." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	mig := gpu3(func(g *probe.GPU) { g.Modes.MIG, g.Modes.MIGPending = probe.Known(true), probe.Known(true) })
	exclusive := gpu3(func(g *probe.GPU) { g.Modes.Compute = probe.Known("exclusive") })
	unlikeGPU2 := func(i int) Finding {
		return gpuFinding(name, i, Finding{Code: "gpu.mode.differ", Severity: Warn, Want: "default", Got: "exclusive", Remedy: FixConfig}, "compute mode is not that of gpu2")
	}
	closed := func(g *probe.GPU) { g.Modes.Compute = probe.Known("prohibited") }
	noECC := gpu3(func(g *probe.GPU) { g.ECC.On, g.ECC.Pending = probe.Known(false), probe.Known(false) })
	cc := func(want, got string) Finding {
		f := Finding{Code: "gpu.mode.cc", Severity: Fail, Want: want, Got: got, Remedy: FixConfig}
		f.Message = name + ":  confidential computing" + wantGot(f)
		return f
	}
	bad := func(what, word, want string) Finding {
		return Finding{Code: "config.value", Severity: Unknown, Want: want, Got: word, Remedy: FixConfig, Message: name + ":  " + what + ` "` + word + `", want ` + want}
	}
	ccBroken := onGPUs("confidential computing cannot be read", of("-C", "off"), func(n *probe.NVML) { n.CC = probe.Failed[bool](errOdd) },
		Finding{Code: "gpu.error", Severity: Unknown, Message: name + ":  could not tell: " + oddText})
	ccBroken.broken = true
	return append(gpuCommon(name, "-m", "off"),
		onGPUs("as wanted", of("-m", "off", "-c", "default", "-e", "on", "-C", "off"), nil).
			orTable(map[string]any{"mig": "off", "compute": "default", "ecc": "on", "cc": "off"}),
		onGPUs("all alike", nil, nil),
		onV100s("an old GPU", of("-m", "off", "-C", "off"), nil),
		onGPUs("all in MIG mode", of("-m", "on"), func(n *probe.NVML) {
			for i := range n.GPUs {
				n.GPUs[i].Modes.MIG, n.GPUs[i].Modes.MIGPending = probe.Known(true), probe.Known(true)
			}
		}),
		onGPUs("one in MIG mode", of("-m", "off"), mig, says(Fail, "mig", FixConfig, "off", "on", "MIG mode")),
		onGPUs("one in MIG mode, others not", nil, mig),
		onGPUs("one exclusive, others not", nil, exclusive, says(Warn, "differ", FixConfig, "default", "exclusive", "compute mode is not that of the others")),
		onGPUs("one without ECC, others with", nil, noECC, says(Warn, "differ", FixConfig, "on", "off", "ECC is not that of the others")),
		onGPUs("two exclusive of four", nil, func(n *probe.NVML) {
			n.GPUs[3].Modes.Compute, n.GPUs[4].Modes.Compute, n.GPUs = probe.Known("exclusive"), probe.Known("exclusive"), n.GPUs[2:6]
		}, unlikeGPU2(3), unlikeGPU2(4)),
		onGPUs("one prohibited, others not", nil, gpu3(closed), says(Fail, "differ", FixConfig, "default", "prohibited", "no program can use the GPU: compute mode is not that of the others")),
		onGPUs("one prohibited of two", nil, func(n *probe.NVML) { gpu3(closed)(n); n.GPUs = n.GPUs[3:5] },
			says(Fail, "differ", FixConfig, "default", "prohibited", "no program can use the GPU: compute mode is not that of the others")),
		onGPUs("all prohibited", nil, allGPUs(closed), allOf(func(i int) Finding {
			return gpuFinding(name, i, Finding{Code: "gpu.mode.compute", Severity: Warn, Want: "default or exclusive", Got: "prohibited", Remedy: FixConfig}, "no program can use the GPU: compute mode")
		})...),
		onGPUs("one GPU, prohibited", nil, func(n *probe.NVML) { gpu3(closed)(n); n.GPUs = n.GPUs[3:4] },
			says(Warn, "compute", FixConfig, "default or exclusive", "prohibited", "no program can use the GPU: compute mode")),
		onGPUs("all prohibited, as wanted", of("-c", "prohibited"), allGPUs(closed)),
		onV100s("MIG on a GPU that has it not", of("-m", "on"), nil, allOf(func(i int) Finding {
			return gpuFinding(name, i, Finding{Code: "gpu.mode.mig", Severity: Fail, Want: "on", Got: "not supported", Remedy: FixConfig}, "MIG mode")
		})...),
		onGPUs("exclusive", of("-c", "default"), exclusive, says(Fail, "compute", FixConfig, "default", "exclusive", "compute mode")),
		onGPUs("ECC off", of("-e", "on"), noECC, says(Fail, "ecc", FixConfig, "on", "off", "ECC")),
		onGPUs("MIG mode changes", of("-m", "off"), gpu3(func(g *probe.GPU) { g.Modes.MIGPending = probe.Known(true) }),
			says(Warn, "pending", "", "", "", "MIG mode is off, and will be on after a reset")),
		onGPUs("confidential computing off", of("-C", "on"), nil, cc("on", "off")),
		onGPUs("confidential computing on", of("-C", "off"), func(n *probe.NVML) { n.CC = probe.Known(true) }, cc("off", "on")),
		onV100s("confidential computing on a GPU that has it not", of("-C", "on"), nil, cc("on", "not supported")),
		onGPUs("a mode nobody knows", of("-m", "maybe"), nil, bad("MIG mode", "maybe", "on or off")),
		onGPUs("a compute mode nobody knows", of("-c", "x"), nil, bad("compute mode", "x", "default or exclusive or prohibited")),
		onGPUs("confidential what", of("-C", "1"), nil, bad("confidential computing", "1", "on or off")),
		ccBroken, gpuDumb(name, "-m", "off"),
	)
})
