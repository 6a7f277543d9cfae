package gpu

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestGPUVBIOS(t *testing.T)     { checktest.Run(t, "check_gpu_vbios") }
func TestVBIOSVersion(t *testing.T) { checktest.Run(t, "check_vbios_version") }

var (
	_ = checktest.Table("check_gpu_vbios", vbiosScenarios)
	_ = checktest.Table("check_vbios_version", vbiosScenarios)
)

func vbiosScenarios(name string) []checktest.Scenario {
	other := checktest.Gpu3(func(g *nvml.GPU) { g.VBIOS = nvml.Known("96.00.89.00.01") })
	says := func(severity checks.Severity, code, want, text string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.vbios" + code, Severity: severity, Want: want, Got: "96.00.89.00.01"}, text)
	}
	differs := func(i int) checks.Finding {
		return checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.vbios.differ", Severity: checks.Warn, Want: "96.00.30.00.01", Got: "96.00.89.00.01"}, "VBIOS differs from that of gpu2")
	}
	errored := checktest.OnGPUs("one cannot be read", nil, checktest.Gpu3(func(g *nvml.GPU) { g.VBIOS = nvml.Failed[string](checktest.ErrOdd) }),
		checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText))
	errored.Broken = true
	return append(checktest.GPUCommon(name),
		checktest.OnGPUs("as wanted", checktest.Of("96.00.30.00.01"), nil).OrTable(map[string]any{"version": "96.00.30.00.01"}),
		checktest.OnGPUs("a match string", checktest.Of("96.*"), nil),
		checktest.OnGPUs("all alike", nil, nil),
		checktest.OnGPUs("two models", nil, func(n *nvml.Snapshot) {
			n.GPUs[3].Name, n.GPUs[3].VBIOS = nvml.Known("NVIDIA T400"), nvml.Known("90.17.9D.00.15")
		}),
		checktest.OnGPUs("one has another version", checktest.Of("96.00.30.00.01"), other, says(checks.Fail, "", "96.00.30.00.01", "VBIOS")),
		checktest.OnGPUs("one differs", nil, other, says(checks.Warn, ".differ", "96.00.30.00.01", "VBIOS differs from that of the others")),
		checktest.OnGPUs("two of four differ", nil, func(n *nvml.Snapshot) {
			n.GPUs[3].VBIOS, n.GPUs[4].VBIOS, n.GPUs = nvml.Known("96.00.89.00.01"), nvml.Known("96.00.89.00.01"), n.GPUs[2:6]
		}, differs(3), differs(4)),
		checktest.OnGPUs("a single GPU", nil, func(n *nvml.Snapshot) { n.GPUs = n.GPUs[:1] },
			checks.Finding{Code: "gpu.vbios.one", Severity: checks.Skip, Message: name + ":  no two GPUs of one model to compare, and no VERSION"}),
		checktest.OnGPUs("a single GPU, and a version", checktest.Of("96.*"), func(n *nvml.Snapshot) { n.GPUs = n.GPUs[:1] }),
		checktest.OnGPUs("garbage", checktest.Of("96.00.30.00.01"), checktest.Gpu3(func(g *nvml.GPU) { g.VBIOS = nvml.Known("?%s") }),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.vbios", Severity: checks.Fail, Want: "96.00.30.00.01", Got: "?%s"}, "VBIOS")),
		errored, checktest.GPUDumb(name),
	)
}
