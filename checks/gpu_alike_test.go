package checks

import (
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

var _ = table("check_gpu_count", func(string) []scenario {
	says := func(f Finding, text string) Finding { return gpuFinding(gpuCountName, 3, f, text) }
	total := func(g *probe.GPU, mib uint64) { g.Memory = probe.Known(probe.GPUMemory{Total: mib << 20}) }
	less := func(name string, mib uint64, severity Severity, remedy Remedy, got string) scenario {
		return onGPUs(name, of("8"), gpu3(func(g *probe.GPU) { total(g, mib) }),
			says(Finding{Code: "gpu.memory.size", Severity: severity, Remedy: remedy, Want: "81920 MiB", Got: got}, "memory is less than that of the others"))
	}
	first := func(n int, change func(n *probe.NVML)) func(*probe.NVML) {
		return func(v *probe.NVML) { v.GPUs = v.GPUs[:n]; change(v) }
	}
	few := func(s scenario, n int) scenario {
		for i := n; i < 8; i++ {
			s = s.lacking("proc/driver/nvidia/gpus/" + fakenvml.Address(i) + "/information")
			dir := "sys/bus/pci/devices/" + fakenvml.Address(i) + "/"
			for f := range s.files {
				if len(f) > len(dir) && f[:len(dir)] == dir {
					delete(s.files, f)
				}
			}
		}
		return s
	}
	// otherModel makes GPUs from one on of another model, whose device is device and whose class is class.
	otherModel := func(s scenario, from, to int, class string) scenario {
		for i := from; i < to; i++ {
			s.nvml.GPUs[i].Name = probe.Known("NVIDIA X")
			dir := "sys/bus/pci/devices/" + fakenvml.Address(i) + "/"
			s.files[dir+"device"], s.files[dir+"class"] = "0x1234\n", class+"\n"
			total(&s.nvml.GPUs[i], 4096)
		}
		return s
	}
	same := says(Finding{Code: "gpu.uuid.same", Severity: Fail, Remedy: RebootNode}, "has the UUID of gpu1 0000:11:00.0")
	same.Device.UUID = fakenvml.UUID(1)
	old := func(g *probe.GPU, mib uint64) {
		g.Memory, g.MemoryTotal = probe.Reading[probe.GPUMemory]{}, probe.Known(mib<<20)
	}
	// olds are GPUs of a driver before 510, of which gpu3 has that much memory.
	olds := func(mib uint64) func(*probe.NVML) {
		return func(n *probe.NVML) {
			for i := range n.GPUs {
				old(&n.GPUs[i], 80<<10)
			}
			old(&n.GPUs[3], mib)
		}
	}
	nameless := func(what string, change func(*probe.GPU)) scenario {
		s := onGPUs("NVML does not tell a "+what, of("8"), gpu3(func(g *probe.GPU) { g.NameErr = errOdd; change(g) }),
			says(Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: "+oddText))
		s.broken = true
		return s
	}
	unread := onGPUs("memory that cannot be read", of("8"), gpu3(func(g *probe.GPU) { g.Memory = probe.Failed[probe.GPUMemory](errOdd) }),
		says(Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: "+oddText))
	unread.broken = true
	twins := onGPUs("two with one UUID", of("8"), gpu3(func(g *probe.GPU) { g.UUID = probe.Known(fakenvml.UUID(1)) }), same)
	twins.still = true
	still := func(s scenario) scenario { // of two that differ the second is named
		s.still = true
		return s
	}
	return []scenario{
		onGPUs("one without memory", of("8"), gpu3(func(g *probe.GPU) { total(g, 0) }),
			says(Finding{Code: "gpu.memory.size", Severity: Fail, Remedy: ReseatOrRMA, Want: "more than 0 MiB", Got: "0 MiB"}, "has no memory")),
		onGPUs("one with another name", of("8"), gpu3(func(g *probe.GPU) { g.Name = probe.Known("NVIDIA X"); total(g, 40960) }),
			says(Finding{Code: "gpu.model.differ", Severity: Warn, Want: "NVIDIA H100 80GB HBM3", Got: "NVIDIA X"}, "model is not that of the others, but the board is"),
			says(Finding{Code: "gpu.memory.size", Severity: Fail, Remedy: ReseatOrRMA, Want: "81920 MiB", Got: "40960 MiB"}, "memory is less than that of the others")),
		still(few(onGPUs("one of two with another name", of("2"), first(2, func(n *probe.NVML) { n.GPUs[1].Name = probe.Known("NVIDIA A") }),
			gpuFinding(gpuCountName, 1, Finding{Code: "gpu.model.differ", Severity: Warn, Want: "NVIDIA H100 80GB HBM3", Got: "NVIDIA A"}, "model is not that of gpu0, but the board is")), 2)),
		few(onGPUs("vGPUs have names of their own", of("2"), first(2, func(n *probe.NVML) {
			n.GPUs[1].Name, n.GPUs[0].VGPU, n.GPUs[1].VGPU = probe.Known("NVIDIA H100-10C"), probe.Known(true), probe.Known(true)
		})), 2),
		nameless("name", func(g *probe.GPU) { g.Name = probe.Failed[string](errOdd) }),
		nameless("UUID, which the driver's files tell", func(*probe.GPU) {}),
		few(onGPUs("one alone without memory", of("1"), first(1, func(n *probe.NVML) { total(&n.GPUs[0], 0) }),
			gpuFinding(gpuCountName, 0, Finding{Code: "gpu.memory.size", Severity: Fail, Remedy: ReseatOrRMA, Want: "more than 0 MiB", Got: "0 MiB"}, "has no memory")), 1),
		few(onGPUs("one alone without memory, of an old driver", of("1"), first(1, func(n *probe.NVML) { old(&n.GPUs[0], 0) }),
			gpuFinding(gpuCountName, 0, Finding{Code: "gpu.memory.size", Severity: Fail, Remedy: ReseatOrRMA, Want: "more than 0 MiB", Got: "0 MiB"}, "has no memory")), 1),
		onGPUs("an old driver", of("8"), olds(80<<10)),
		onGPUs("one with half its memory, of an old driver", of("8"), olds(40<<10),
			says(Finding{Code: "gpu.memory.size", Severity: Fail, Remedy: ReseatOrRMA, Want: "81920 MiB", Got: "40960 MiB"}, "memory is less than that of the others")),
		less("one with half its memory", 40960, Fail, ReseatOrRMA, "40960 MiB"),
		less("one with a little less memory", 79000, Warn, NoRemedy, "79000 MiB"),
		onGPUs("one with hardly less memory", of("8"), gpu3(func(g *probe.GPU) { total(g, 81559) })),
		onGPUs("ECC takes its part", of("8"), gpu3(func(g *probe.GPU) { g.ECC.On = probe.Known(false); total(g, 76800) })),
		onGPUs("MIG has its own memory", of("8"), gpu3(func(g *probe.GPU) { g.Modes.MIG = probe.Known(true); total(g, 4096) })),
		onGPUs("memory that is not told", of("8"), gpu3(func(g *probe.GPU) { g.Memory = probe.Reading[probe.GPUMemory]{} })),
		unread,
		few(onGPUs("one of two has less", of("2"), first(2, func(n *probe.NVML) { total(&n.GPUs[1], 40960) }),
			gpuFinding(gpuCountName, 1, Finding{Code: "gpu.memory.size", Severity: Warn, Want: "81920 MiB", Got: "40960 MiB"}, "memory is less than that of the others")), 2),
		onGPUs("four with half the memory", of("8"), func(n *probe.NVML) {
			for i := range 4 {
				total(&n.GPUs[i], 81900)
			}
		}),

		twins,
		otherModel(onGPUs("one of another model", of("8"), nil,
			says(Finding{Code: "gpu.model.differ", Severity: Warn, Want: "NVIDIA H100 80GB HBM3", Got: "NVIDIA X"}, "model is not that of the others")), 3, 4, "0x030200"),
		otherModel(onGPUs("one display card", of("8"), nil), 3, 4, "0x030000"),
		otherModel(onGPUs("two models by design", of("8"), nil), 0, 4, "0x030200"),
		otherModel(onGPUs("two of another model", of("8"), nil), 0, 2, "0x030200"),
		otherModel(few(onGPUs("four and one", of("5"), first(5, func(*probe.NVML) {})), 5), 4, 5, "0x030200"),
	}
})
