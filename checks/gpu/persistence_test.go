package gpu

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestGPUPersistence(t *testing.T) { checktest.Run(t, "check_gpu_persistence") }

var _ = checktest.Table("check_gpu_persistence", func(name string) []checktest.Scenario {
	off := checktest.Gpu3(func(g *nvml.GPU) { g.Modes.Persistence = nvml.Known(false) })
	says := func(severity checks.Severity, text string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.persistence", Severity: severity, Want: "on", Got: "off", Remedy: checks.FixConfig}, text)
	}
	acting := func(s checktest.Scenario) checktest.Scenario {
		s.Acts = true
		return s
	}
	settable := acting(checktest.OnGPUs("turned on", checktest.Of("-s"), func(n *nvml.Snapshot) { off(n); n.Settable = true },
		checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.mended", Severity: checks.Warn}, "persistence mode was off and is on now")))
	return append(checktest.GPUCommon(name),
		checktest.OnGPUs("on", nil, nil), checktest.OnV100s("on an old GPU", nil, nil),
		acting(checktest.OnGPUs("-s, and it is on", checktest.Of("-s"), nil)).OrTable(map[string]any{"set": true}),
		checktest.OnGPUs("off", nil, off, says(checks.Warn, "persistence mode")),
		checktest.OnGPUs("off, and -f", checktest.Of("-f"), off, says(checks.Fail, "persistence mode")).OrTable(map[string]any{"fail": true}),
		settable,
		acting(checktest.OnGPUs("off, and a process uses the GPU", checktest.Of("-s"), func(n *nvml.Snapshot) {
			off(n)
			n.Settable, n.GPUs[3].Processes = true, nvml.Known([]nvml.GPUProcess{{PID: 77}})
		}, says(checks.Warn, "persistence mode is not turned on while the GPU is in use (processes: 1)"))),
		acting(checktest.OnGPUs("cannot be turned on", checktest.Of("-s"), off, says(checks.Fail, "persistence mode cannot be turned on: a recorded node cannot be changed"))),
		checktest.GPUDumb(name),
	)
})
