package checks

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestGPUPersistence(t *testing.T) { testCheck(t, "check_gpu_persistence") }

var _ = table("check_gpu_persistence", func(name string) []scenario {
	off := gpu3(func(g *probe.GPU) { g.Modes.Persistence = probe.Known(false) })
	says := func(severity Severity, text string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.persistence", Severity: severity, Want: "on", Got: "off", Remedy: FixConfig}, text)
	}
	acting := func(s scenario) scenario {
		s.acts = true
		return s
	}
	settable := acting(onGPUs("turned on", of("-s"), func(n *probe.NVML) { off(n); n.Settable = true },
		gpuFinding(name, 3, Finding{Code: "gpu.mended", Severity: Warn}, "persistence mode was off, and was turned on")))
	return append(gpuCommon(name),
		onGPUs("on", nil, nil), onV100s("on an old GPU", nil, nil),
		acting(onGPUs("nothing to turn on", of("-s"), nil)).orTable(map[string]any{"set": true}),
		onGPUs("off", nil, off, says(Warn, "persistence mode")),
		onGPUs("off, and that fails", of("-f"), off, says(Fail, "persistence mode")).orTable(map[string]any{"fail": true}),
		settable,
		acting(onGPUs("a job has the GPU", of("-s"), func(n *probe.NVML) {
			off(n)
			n.Settable, n.GPUs[3].Processes = true, probe.Known([]probe.GPUProcess{{PID: 77}})
		}, says(Warn, "persistence mode is not turned on while it is in use (1 user)"))),
		acting(onGPUs("cannot be turned on", of("-s"), off, says(Fail, "persistence mode cannot be turned on: a recorded node cannot be changed"))),
		gpuDumb(name),
	)
})
