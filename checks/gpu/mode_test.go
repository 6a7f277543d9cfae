package gpu

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestGPUMode(t *testing.T) { checktest.Run(t, "check_gpu_mode") }

var _ = checktest.Table("check_gpu_mode", func(name string) []checktest.Scenario {
	says := func(severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.mode." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	mig := checktest.Gpu3(func(g *nvml.GPU) { g.Modes.MIG, g.Modes.MIGPending = nvml.Known(true), nvml.Known(true) })
	exclusive := checktest.Gpu3(func(g *nvml.GPU) { g.Modes.Compute = nvml.Known("exclusive") })
	unlikeGPU2 := func(i int) checks.Finding {
		return checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.mode.differ", Severity: checks.Warn, Want: "default", Got: "exclusive", Remedy: checks.FixConfig}, "compute mode differs from that of gpu2")
	}
	closed := func(g *nvml.GPU) { g.Modes.Compute = nvml.Known("prohibited") }
	noECC := checktest.Gpu3(func(g *nvml.GPU) { g.ECC.On, g.ECC.Pending = nvml.Known(false), nvml.Known(false) })
	cc := func(want, got string) checks.Finding {
		f := checks.Finding{Code: "gpu.mode.cc", Severity: checks.Fail, Want: want, Got: got, Remedy: checks.FixConfig}
		f.Message = name + ":  confidential computing" + checktest.WantGot(f)
		return f
	}
	bad := func(what, word, want string) checks.Finding {
		return checks.Finding{Code: "config.value", Severity: checks.Unknown, Want: want, Got: word, Remedy: checks.FixConfig, Message: name + ":  " + what + ` "` + word + `", want ` + want}
	}
	ccBroken := checktest.OnGPUs("confidential computing cannot be read", checktest.Of("-C", "off"), func(n *nvml.Snapshot) { n.CC = nvml.Failed[bool](checktest.ErrOdd) },
		checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown, Message: name + ":  confidential computing cannot be read: " + checktest.OddText})
	ccBroken.Broken = true
	return append(checktest.GPUCommon(name, "-m", "off"),
		checktest.OnGPUs("as wanted", checktest.Of("-m", "off", "-c", "default", "-e", "on", "-C", "off"), nil).
			OrTable(map[string]any{"mig": "off", "compute": "default", "ecc": "on", "cc": "off"}),
		checktest.OnGPUs("all alike", nil, nil),
		checktest.OnV100s("an old GPU", checktest.Of("-m", "off", "-C", "off"), nil),
		checktest.OnGPUs("all in MIG mode", checktest.Of("-m", "on"), func(n *nvml.Snapshot) {
			for i := range n.GPUs {
				n.GPUs[i].Modes.MIG, n.GPUs[i].Modes.MIGPending = nvml.Known(true), nvml.Known(true)
			}
		}),
		checktest.OnGPUs("one in MIG mode", checktest.Of("-m", "off"), mig, says(checks.Fail, "mig", checks.FixConfig, "off", "on", "MIG mode")),
		checktest.OnGPUs("one in MIG mode, others not", nil, mig),
		checktest.OnGPUs("one exclusive, others not", nil, exclusive, says(checks.Warn, "differ", checks.FixConfig, "default", "exclusive", "compute mode differs from that of the others")),
		checktest.OnGPUs("one without ECC, others with", nil, noECC, says(checks.Warn, "differ", checks.FixConfig, "on", "off", "ECC differs from that of the others")),
		checktest.OnGPUs("two exclusive of four", nil, func(n *nvml.Snapshot) {
			n.GPUs[3].Modes.Compute, n.GPUs[4].Modes.Compute, n.GPUs = nvml.Known("exclusive"), nvml.Known("exclusive"), n.GPUs[2:6]
		}, unlikeGPU2(3), unlikeGPU2(4)),
		checktest.OnGPUs("one prohibited, others not", nil, checktest.Gpu3(closed), says(checks.Fail, "differ", checks.FixConfig, "default", "prohibited", "no program can use the GPU: compute mode differs from that of the others")),
		checktest.OnGPUs("one prohibited of two", nil, func(n *nvml.Snapshot) { checktest.Gpu3(closed)(n); n.GPUs = n.GPUs[3:5] },
			says(checks.Fail, "differ", checks.FixConfig, "default", "prohibited", "no program can use the GPU: compute mode differs from that of the others")),
		checktest.OnGPUs("all prohibited", nil, allGPUs(closed), allOf(func(i int) checks.Finding {
			return checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.mode.compute", Severity: checks.Warn, Want: "default or exclusive", Got: "prohibited", Remedy: checks.FixConfig}, "no program can use the GPU: compute mode")
		})...),
		checktest.OnGPUs("one GPU, prohibited", nil, func(n *nvml.Snapshot) { checktest.Gpu3(closed)(n); n.GPUs = n.GPUs[3:4] },
			says(checks.Warn, "compute", checks.FixConfig, "default or exclusive", "prohibited", "no program can use the GPU: compute mode")),
		checktest.OnGPUs("all prohibited, as wanted", checktest.Of("-c", "prohibited"), allGPUs(closed)),
		checktest.OnV100s("MIG on a GPU without MIG", checktest.Of("-m", "on"), nil, allOf(func(i int) checks.Finding {
			return checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.mode.mig", Severity: checks.Fail, Want: "on", Got: "not supported", Remedy: checks.FixConfig}, "MIG mode")
		})...),
		checktest.OnGPUs("exclusive", checktest.Of("-c", "default"), exclusive, says(checks.Fail, "compute", checks.FixConfig, "default", "exclusive", "compute mode")),
		checktest.OnGPUs("ECC off", checktest.Of("-e", "on"), noECC, says(checks.Fail, "ecc", checks.FixConfig, "on", "off", "ECC")),
		checktest.OnGPUs("MIG mode changes", checktest.Of("-m", "off"), checktest.Gpu3(func(g *nvml.GPU) { g.Modes.MIGPending = nvml.Known(true) }),
			says(checks.Warn, "pending", "", "", "", "MIG mode is off and will be on after a reset")),
		checktest.OnGPUs("confidential computing off", checktest.Of("-C", "on"), nil, cc("on", "off")),
		checktest.OnGPUs("confidential computing on", checktest.Of("-C", "off"), func(n *nvml.Snapshot) { n.CC = nvml.Known(true) }, cc("off", "on")),
		checktest.OnV100s("confidential computing on a GPU without it", checktest.Of("-C", "on"), nil, cc("on", "not supported")),
		checktest.OnGPUs("an unknown mode", checktest.Of("-m", "maybe"), nil, bad("MIG mode", "maybe", "on or off")),
		checktest.OnGPUs("an unknown compute mode", checktest.Of("-c", "x"), nil, bad("compute mode", "x", "default or exclusive or prohibited")),
		checktest.OnGPUs("an unknown value for confidential computing", checktest.Of("-C", "1"), nil, bad("confidential computing", "1", "on or off")),
		ccBroken, checktest.GPUDumb(name, "-m", "off"),
	)
})
