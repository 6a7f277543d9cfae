package gpu

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

var _ = checktest.Table("check_gpu_count", func(string) []checktest.Scenario {
	says := func(f checks.Finding, text string) checks.Finding {
		return checktest.GPUFinding(gpuCountName, 3, f, text)
	}
	total := func(g *nvml.GPU, mib uint64) { g.Memory = nvml.Known(nvml.GPUMemory{Total: mib << 20}) }
	less := func(name string, mib uint64, severity checks.Severity, remedy checks.Remedy, got string) checktest.Scenario {
		return checktest.OnGPUs(name, checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { total(g, mib) }),
			says(checks.Finding{Code: "gpu.memory.size", Severity: severity, Remedy: remedy, Want: "81920 MiB", Got: got}, "has less memory than the others"))
	}
	first := func(n int, change func(n *nvml.Snapshot)) func(*nvml.Snapshot) {
		return func(v *nvml.Snapshot) { v.GPUs = v.GPUs[:n]; change(v) }
	}
	few := func(s checktest.Scenario, n int) checktest.Scenario {
		for i := n; i < 8; i++ {
			s = s.Lacking("proc/driver/nvidia/gpus/" + fakenvml.Address(i) + "/information")
			dir := "sys/bus/pci/devices/" + fakenvml.Address(i) + "/"
			for f := range s.Files {
				if len(f) > len(dir) && f[:len(dir)] == dir {
					delete(s.Files, f)
				}
			}
		}
		return s
	}
	// otherModel makes some GPUs another model of the given class.
	otherModel := func(s checktest.Scenario, from, to int, class string) checktest.Scenario {
		for i := from; i < to; i++ {
			s.NVML.GPUs[i].Name = nvml.Known("NVIDIA X")
			dir := "sys/bus/pci/devices/" + fakenvml.Address(i) + "/"
			s.Files[dir+"device"], s.Files[dir+"class"] = "0x1234\n", class+"\n"
			total(&s.NVML.GPUs[i], 4096)
		}
		return s
	}
	same := says(checks.Finding{Code: "gpu.uuid.same", Severity: checks.Fail, Remedy: checks.RebootNode}, "has the UUID of gpu1 0000:11:00.0")
	same.Device.UUID = fakenvml.UUID(1)
	old := func(g *nvml.GPU, mib uint64) {
		g.Memory, g.MemoryTotal = nvml.Reading[nvml.GPUMemory]{}, nvml.Known(mib<<20)
	}
	// olds makes all GPUs those of a driver before 510, and gpu3 one with mib of memory.
	olds := func(mib uint64) func(*nvml.Snapshot) {
		return func(n *nvml.Snapshot) {
			for i := range n.GPUs {
				old(&n.GPUs[i], 80<<10)
			}
			old(&n.GPUs[3], mib)
		}
	}
	nameless := func(what string, change func(*nvml.GPU)) checktest.Scenario {
		s := checktest.OnGPUs("NVML gives no "+what, checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { g.NameErr = checktest.ErrOdd; change(g) }),
			says(checks.Finding{Code: "gpu.error", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText))
		s.Broken = true
		return s
	}
	unread := checktest.OnGPUs("memory cannot be read", checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { g.Memory = nvml.Failed[nvml.GPUMemory](checktest.ErrOdd) }),
		says(checks.Finding{Code: "gpu.error", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText))
	unread.Broken = true
	twins := checktest.OnGPUs("two with the same UUID", checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { g.UUID = nvml.Known(fakenvml.UUID(1)) }), same)
	twins.Still = true
	still := func(s checktest.Scenario) checktest.Scenario { // of two different ones the second is named
		s.Still = true
		return s
	}
	return []checktest.Scenario{
		checktest.OnGPUs("one without memory", checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { total(g, 0) }),
			says(checks.Finding{Code: "gpu.memory.size", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "more than 0 MiB", Got: "0 MiB"}, "has no memory")),
		checktest.OnGPUs("one with another name", checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { g.Name = nvml.Known("NVIDIA X"); total(g, 40960) }),
			says(checks.Finding{Code: "gpu.model.differ", Severity: checks.Warn, Want: "NVIDIA H100 80GB HBM3", Got: "NVIDIA X"}, "model differs from that of the others, but the board is the same"),
			says(checks.Finding{Code: "gpu.memory.size", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "81920 MiB", Got: "40960 MiB"}, "has less memory than the others")),
		still(few(checktest.OnGPUs("one of two with another name", checktest.Of("2"), first(2, func(n *nvml.Snapshot) { n.GPUs[1].Name = nvml.Known("NVIDIA A") }),
			checktest.GPUFinding(gpuCountName, 1, checks.Finding{Code: "gpu.model.differ", Severity: checks.Warn, Want: "NVIDIA H100 80GB HBM3", Got: "NVIDIA A"}, "model differs from that of gpu0, but the board is the same")), 2)),
		few(checktest.OnGPUs("vGPUs have names of their own", checktest.Of("2"), first(2, func(n *nvml.Snapshot) {
			n.GPUs[1].Name, n.GPUs[0].VGPU, n.GPUs[1].VGPU = nvml.Known("NVIDIA H100-10C"), nvml.Known(true), nvml.Known(true)
		})), 2),
		nameless("name", func(g *nvml.GPU) { g.Name = nvml.Failed[string](checktest.ErrOdd) }),
		nameless("UUID, but the driver's files do", func(*nvml.GPU) {}),
		few(checktest.OnGPUs("a single GPU without memory", checktest.Of("1"), first(1, func(n *nvml.Snapshot) { total(&n.GPUs[0], 0) }),
			checktest.GPUFinding(gpuCountName, 0, checks.Finding{Code: "gpu.memory.size", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "more than 0 MiB", Got: "0 MiB"}, "has no memory")), 1),
		few(checktest.OnGPUs("a single GPU without memory, old driver", checktest.Of("1"), first(1, func(n *nvml.Snapshot) { old(&n.GPUs[0], 0) }),
			checktest.GPUFinding(gpuCountName, 0, checks.Finding{Code: "gpu.memory.size", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "more than 0 MiB", Got: "0 MiB"}, "has no memory")), 1),
		checktest.OnGPUs("an old driver", checktest.Of("8"), olds(80<<10)),
		checktest.OnGPUs("one with half its memory, old driver", checktest.Of("8"), olds(40<<10),
			says(checks.Finding{Code: "gpu.memory.size", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "81920 MiB", Got: "40960 MiB"}, "has less memory than the others")),
		less("one with half its memory", 40960, checks.Fail, checks.RebootNode, "40960 MiB"),
		less("one with a little less memory", 79000, checks.Warn, checks.NoRemedy, "79000 MiB"),
		checktest.OnGPUs("one with almost the same memory", checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { total(g, 81559) })),
		checktest.OnGPUs("ECC uses some memory", checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { g.ECC.On = nvml.Known(false); total(g, 76800) })),
		checktest.OnGPUs("memory of a GPU with MIG", checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { g.Modes.MIG = nvml.Known(true); total(g, 4096) })),
		checktest.OnGPUs("memory is not reported", checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { g.Memory = nvml.Reading[nvml.GPUMemory]{} })),
		unread,
		few(checktest.OnGPUs("one of two has less", checktest.Of("2"), first(2, func(n *nvml.Snapshot) { total(&n.GPUs[1], 40960) }),
			checktest.GPUFinding(gpuCountName, 1, checks.Finding{Code: "gpu.memory.size", Severity: checks.Warn, Want: "81920 MiB", Got: "40960 MiB"}, "has less memory than the others")), 2),
		checktest.OnGPUs("four with half the memory", checktest.Of("8"), func(n *nvml.Snapshot) {
			for i := range 4 {
				total(&n.GPUs[i], 81900)
			}
		}),

		twins,
		otherModel(checktest.OnGPUs("one of another model", checktest.Of("8"), nil,
			says(checks.Finding{Code: "gpu.model.differ", Severity: checks.Warn, Want: "NVIDIA H100 80GB HBM3", Got: "NVIDIA X"}, "model differs from that of the others")), 3, 4, "0x030200"),
		otherModel(checktest.OnGPUs("one display card", checktest.Of("8"), nil), 3, 4, "0x030000"),
		otherModel(checktest.OnGPUs("two models by design", checktest.Of("8"), nil), 0, 4, "0x030200"),
		otherModel(checktest.OnGPUs("two of another model", checktest.Of("8"), nil), 0, 2, "0x030200"),
		otherModel(few(checktest.OnGPUs("four of one model and one of another", checktest.Of("5"), first(5, func(*nvml.Snapshot) {})), 5), 4, 5, "0x030200"),
	}
})
