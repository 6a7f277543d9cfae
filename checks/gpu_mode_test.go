package checks

import "github.com/nhc-gpu/nhc-gpu/checks/probe"

func init() {
	const name = gpuModeName
	says := func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.mode." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	mig := gpu3(func(g *probe.GPU) { g.Modes.MIG, g.Modes.MIGPending = probe.Known(true), probe.Known(true) })
	exclusive := gpu3(func(g *probe.GPU) { g.Modes.Compute = probe.Known("exclusive") })
	noECC := gpu3(func(g *probe.GPU) { g.ECC.On, g.ECC.Pending = probe.Known(false), probe.Known(false) })
	cc := func(want, got string) Finding {
		f := Finding{Code: "gpu.mode.cc", Severity: Fail, Want: want, Got: got, Remedy: FixConfig}
		f.Message = name + ":  confidential computing" + wantGot(f)
		return f
	}
	bad := func(what, word, want string) Finding {
		return Finding{Code: "config.value", Severity: Unknown, Want: want, Got: word, Remedy: FixConfig, Message: name + ":  " + what + ` "` + word + `", want ` + want}
	}
	ccBroken := onGPUs("confidential computing cannot be read", of("-C", "off"), func(n *probe.NVML) { n.CC = probe.Failed[bool](errLost) },
		Finding{Code: "gpu.error", Severity: Unknown, Message: name + ":  could not tell: " + lostText})
	ccBroken.broken = true
	testCheck(name, append(gpuCommon(name, "-m", "off"),
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
		onGPUs("one in MIG mode, others not", nil, mig, says(Warn, "differ", FixConfig, "off", "on", "MIG mode is not that of the others")),
		onGPUs("one exclusive, others not", nil, exclusive, says(Fail, "differ", FixConfig, "default", "exclusive", "compute mode is not that of the others")),
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
	)...)
}
