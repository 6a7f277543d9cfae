package checks

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestGPUVBIOS(t *testing.T)     { testCheck(t, "check_gpu_vbios") }
func TestVBIOSVersion(t *testing.T) { testCheck(t, "check_vbios_version") }

var (
	_ = table("check_gpu_vbios", vbiosScenarios)
	_ = table("check_vbios_version", vbiosScenarios)
)

func vbiosScenarios(name string) []scenario {
	other := gpu3(func(g *probe.GPU) { g.VBIOS = probe.Known("96.00.89.00.01") })
	says := func(severity Severity, code, want, text string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.vbios" + code, Severity: severity, Want: want, Got: "96.00.89.00.01"}, text)
	}
	differs := func(i int) Finding {
		return gpuFinding(name, i, Finding{Code: "gpu.vbios.differ", Severity: Warn, Want: "96.00.30.00.01", Got: "96.00.89.00.01"}, "VBIOS is not that of gpu2")
	}
	errored := onGPUs("one cannot be read", nil, gpu3(func(g *probe.GPU) { g.VBIOS = probe.Failed[string](errOdd) }),
		gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: "+oddText))
	errored.broken = true
	return append(gpuCommon(name),
		onGPUs("as wanted", of("96.00.30.00.01"), nil).orTable(map[string]any{"version": "96.00.30.00.01"}),
		onGPUs("a match string", of("96.*"), nil),
		onGPUs("all alike", nil, nil),
		onGPUs("two models", nil, func(n *probe.NVML) {
			n.GPUs[3].Name, n.GPUs[3].VBIOS = probe.Known("NVIDIA T400"), probe.Known("90.17.9D.00.15")
		}),
		onGPUs("one is another", of("96.00.30.00.01"), other, says(Fail, "", "96.00.30.00.01", "VBIOS")),
		onGPUs("one differs", nil, other, says(Warn, ".differ", "96.00.30.00.01", "VBIOS is not that of the others")),
		onGPUs("two of four differ", nil, func(n *probe.NVML) {
			n.GPUs[3].VBIOS, n.GPUs[4].VBIOS, n.GPUs = probe.Known("96.00.89.00.01"), probe.Known("96.00.89.00.01"), n.GPUs[2:6]
		}, differs(3), differs(4)),
		onGPUs("one GPU alone", nil, func(n *probe.NVML) { n.GPUs = n.GPUs[:1] },
			Finding{Code: "gpu.vbios.one", Severity: Skip, Message: name + ":  no two GPUs of one model to compare, and no VERSION"}),
		onGPUs("one GPU alone, and a version", of("96.*"), func(n *probe.NVML) { n.GPUs = n.GPUs[:1] }),
		onGPUs("garbage", of("96.00.30.00.01"), gpu3(func(g *probe.GPU) { g.VBIOS = probe.Known("?%s") }),
			gpuFinding(name, 3, Finding{Code: "gpu.vbios", Severity: Fail, Want: "96.00.30.00.01", Got: "?%s"}, "VBIOS")),
		errored, gpuDumb(name),
	)
}
