package checks

import "github.com/nhc-gpu/nhc-gpu/checks/probe"

func init() {
	for _, name := range []string{"check_gpu_vbios", "check_vbios_version"} {
		other := gpu3(func(g *probe.GPU) { g.VBIOS = probe.Known("96.00.89.00.01") })
		says := func(code, want, text string) Finding {
			return gpuFinding(name, 3, Finding{Code: "gpu.vbios" + code, Severity: Fail, Want: want, Got: "96.00.89.00.01"}, text)
		}
		errored := onGPUs("one cannot be read", nil, gpu3(func(g *probe.GPU) { g.VBIOS = probe.Failed[string](errLost) }),
			gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: "+lostText))
		errored.broken = true
		testCheck(name, append(gpuCommon(name),
			onGPUs("as wanted", of("96.00.30.00.01"), nil).orTable(map[string]any{"version": "96.00.30.00.01"}),
			onGPUs("a match string", of("96.*"), nil),
			onGPUs("all alike", nil, nil),
			onGPUs("two models", nil, func(n *probe.NVML) {
				n.GPUs[3].Name, n.GPUs[3].VBIOS = probe.Known("NVIDIA T400"), probe.Known("90.17.9D.00.15")
			}),
			onGPUs("one is another", of("96.00.30.00.01"), other, says("", "96.00.30.00.01", "VBIOS")),
			onGPUs("one differs", nil, other, says(".differ", "96.00.30.00.01", "VBIOS is not that of the others")),
			onGPUs("garbage", of("96.00.30.00.01"), gpu3(func(g *probe.GPU) { g.VBIOS = probe.Known("?%s") }),
				gpuFinding(name, 3, Finding{Code: "gpu.vbios", Severity: Fail, Want: "96.00.30.00.01", Got: "?%s"}, "VBIOS")),
			errored, gpuDumb(name),
		)...)
	}
}
