package gpu

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// less returns the finding of a figure of gpu3 that is too low.
func less(check, code, text, want, got string) checks.Finding {
	return checktest.GPUFinding(check, 3, checks.Finding{Code: code, Severity: checks.Warn, Want: want, Got: got}, text)
}

var _ = checktest.Table("check_gpu_power", func(string) []checktest.Scenario {
	default500 := checktest.Gpu3(func(g *nvml.GPU) {
		g.Power.Limit, g.Power.Default, g.Power.Enforced = nvml.Known(uint32(500000)), nvml.Known(uint32(500000)), nvml.Known(uint32(500000))
	})
	const power = "gpu.power.default"
	past := fmt.Sprintf(`{%q:{"default":700}}`, fakenvml.UUID(3))
	all500 := func(n *nvml.Snapshot) {
		for i := range n.GPUs {
			p := &n.GPUs[i].Power
			p.Limit, p.Default, p.Enforced = nvml.Known(uint32(500000)), nvml.Known(uint32(500000)), nvml.Known(uint32(500000))
		}
	}
	two := checktest.OnGPUs("one of two has a lower default", nil, func(n *nvml.Snapshot) {
		default500(n)
		n.GPUs = n.GPUs[2:4]
	}, less(gpuPowerName, power, "default power limit is lower than that of the other GPUs", "at least 700 W", "500 W"))
	wild := checktest.Hgx()
	wild.PowerLimit = 701 // a rounding difference
	return []checktest.Scenario{
		checktest.OnGPUs("as on its platform", nil, nil).On(checktest.Hgx()), checktest.OnGPUs("as on its platform, one watt less", nil, nil).On(wild),
		checktest.OnGPUs("default below that of the platform", nil, default500,
			less(gpuPowerName, power, "default power limit is lower than that of HGX H100", "at least 700 W", "500 W")).On(checktest.Hgx()),
		checktest.OnGPUs("default below that of the others", nil, default500,
			less(gpuPowerName, power, "default power limit is lower than that of the other GPUs", "at least 700 W", "500 W")),
		checktest.OnGPUs("default lower than before", nil, all500,
			less(gpuPowerName, power, "default power limit is lower than this GPU had before", "at least 700 W", "500 W")).Holding("past/gpu-power.json", past),
		two, checktest.OnGPUs("all defaults low, no platform", nil, all500),
		checktest.OnGPUs("the stored state is garbage", nil, nil).Holding("past/gpu-power.json", "x"),
		checktest.OnGPUs("another default than the platform's, as wanted", checktest.Of("500"), default500, others700()...).On(checktest.Hgx()),
	}
})

var _ = checktest.Table("check_gpu_clocks", func(string) []checktest.Scenario {
	clock := func(change func(*nvml.Clocks)) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) { change(&g.Clocks) })
	}
	low := clock(func(c *nvml.Clocks) {
		c.MaxGraphics, c.AppGraphics, c.DefaultGraphics = nvml.Known(uint32(1830)), nvml.Known(uint32(1830)), nvml.Known(uint32(1830))
		c.MaxMemory, c.AppMemory, c.DefaultMemory = nvml.Known(uint32(2000)), nvml.Known(uint32(2000)), nvml.Known(uint32(2000))
	})
	const clocks = "check_gpu_clocks"
	return []checktest.Scenario{
		checktest.OnGPUs("as on its platform", nil, nil).On(checktest.Hgx()),
		checktest.OnGPUs("clocks below those of the platform", nil, low,
			less(clocks, "gpu.clocks.max", "highest graphics clock is lower than that of HGX H100", "at least 1980 MHz", "1830 MHz"),
			less(clocks, "gpu.clocks.max", "highest memory clock is lower than that of HGX H100", "at least 2619 MHz", "2000 MHz")).On(checktest.Hgx()),
		checktest.OnGPUs("clocks below those of the other GPUs", checktest.Of("1800"), low,
			less(clocks, "gpu.clocks.max", "highest memory clock is lower than that of the other GPUs", "at least 2619 MHz", "2000 MHz")),
	}
})

var _ = checktest.Table("check_gpu_count", func(string) []checktest.Scenario {
	seven := checktest.OnGPUs("one of eight was never seen", nil, func(n *nvml.Snapshot) { n.GPUs = n.GPUs[:7] },
		checks.Finding{Code: "gpu.count", Severity: checks.Fail, Want: "8 GPUs", Got: "7", Message: "check_gpu_count:  want 8 GPUs, got 7: no HGX H100 has 7"}).On(checktest.Hgx())
	seven.Files = fakenvml.Files(fakenvml.H100, 7)
	four := checktest.OnGPUs("half a board", nil, func(n *nvml.Snapshot) { n.GPUs = n.GPUs[:4] }).On(checktest.Hgx())
	four.Files = fakenvml.Files(fakenvml.H100, 4)
	wanted := checktest.OnGPUs("the wanted number, not one of the platform", checktest.Of("7"), func(n *nvml.Snapshot) { n.GPUs = n.GPUs[:7] }).On(checktest.Hgx())
	wanted.Files = fakenvml.Files(fakenvml.H100, 7)
	return []checktest.Scenario{checktest.OnGPUs("as on its platform", nil, nil).On(checktest.Hgx()), seven, four, wanted, checktest.OnGPUs("a platform of any size", nil, nil).On(&checks.Platform{Name: "cards"}),
		checktest.OnGPUs("more than the platform has", nil, nil).On(&checks.Platform{Name: "small", GPUs: []int{4}})}
})

// others700 returns the failures of seven GPUs with 700 W that should have 500 W.
func others700() (list []checks.Finding) {
	for i := range 8 {
		if i != 3 {
			list = append(list, checktest.GPUFinding(gpuPowerName, i, checks.Finding{Code: "gpu.power.limit", Severity: checks.Fail, Want: "500 W", Got: "700 W", Remedy: checks.FixConfig}, "power limit"))
		}
	}
	return list
}

var _ = checktest.Table("check_gpu_pcie", func(string) (list []checktest.Scenario) {
	link := func(change func(*nvml.Link)) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) { change(&g.Link) })
	}
	fewer := func(n *nvml.Snapshot) {
		for i := range n.GPUs {
			n.GPUs[i].Link.Width = nvml.Known(8)
		}
	}
	eight := checktest.Hgx()
	eight.PCIeWidth = 8
	fails := checktest.GPUFinding(gpuPCIeName, 3, checks.Finding{Code: "gpu.pcie.width", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "x8", Got: "x4"}, "PCIe width")
	gen4 := func(n *nvml.Snapshot) {
		for i := range n.GPUs {
			n.GPUs[i].Link.Gen, n.GPUs[i].Link.MaxGen = nvml.Known(4), nvml.Known(4)
		}
	}
	five := checktest.Hgx()
	five.PCIeGen = 0
	past := fmt.Sprintf(`{%q:{"generation":5,"width":16}}`, fakenvml.UUID(3))
	list = append(list,
		checktest.OnGPUs("as on its platform", nil, nil).On(checktest.Hgx()),
		checktest.OnGPUs("a platform with slots of eight lanes", nil, fewer).On(eight),
		checktest.OnGPUs("slots of eight lanes, as wanted", checktest.Of("5", "8"), fewer),
		checktest.OnGPUs("fewer lanes than the platform has", nil, func(n *nvml.Snapshot) {
			fewer(n)
			link(func(l *nvml.Link) { l.Width = nvml.Known(4) })(n)
		}, fails).On(eight),
		checktest.OnGPUs("fewer lanes than it had, as many as the platform has", nil, fewer,
			less(gpuPCIeName, "gpu.pcie.width", "PCIe width is lower than this GPU had before", "at least 16 lanes", "8 lanes")).On(eight).Holding("past/gpu-pcie-link.json", past),
		checktest.OnGPUs("lower generation than it had", nil, gen4,
			less(gpuPCIeName, "gpu.pcie.gen", "PCIe generation of the GPU and the slot is lower than this GPU had before", "at least 5", "4")).On(five).Holding("past/gpu-pcie-link.json", past),
	)
	var want []checks.Finding
	for i := range 8 {
		want = append(want, checktest.GPUFinding(gpuPCIeName, i, checks.Finding{Code: "gpu.pcie.gen", Severity: checks.Warn, Want: "at least 5", Got: "4"},
			"PCIe generation of the GPU and the slot is lower than that of HGX H100"))
	}
	list = append(list, checktest.OnGPUs("lower generation than the platform has", nil, gen4, want...).On(checktest.Hgx()))
	return list
})

// strict returns a platform with error limits.
func strict() *checks.Platform {
	p := checktest.Hgx()
	p.RemappedRows, p.SRAMErrors, p.DRAMErrors = 8, 100, 1000
	return p
}

var _ = checktest.Table("check_gpu_remap", func(string) []checktest.Scenario {
	rows := checktest.Gpu3(func(g *nvml.GPU) { g.Rows.Remapped = nvml.Known(nvml.RemappedRows{Uncorrected: 8}) })
	return []checktest.Scenario{
		checktest.OnGPUs("more rows than the platform allows", nil, rows, checktest.GPUFinding(gpuRemapName, 3,
			checks.Finding{Code: "gpu.remap.many", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "fewer than 8", Got: "8"}, "rows remapped for uncorrected errors")).On(strict()),
		checktest.OnGPUs("more rows than the platform allows, but not more than nhc.conf", checktest.Of("9"), rows).On(strict())}
})

var _ = checktest.Table("check_gpu_ecc", func(string) []checktest.Scenario {
	errs := checktest.Gpu3(func(g *nvml.GPU) {
		g.ECC.SRAM.Corrected, g.ECC.DRAM.Corrected = nvml.Known(uint64(101)), nvml.Known(uint64(1001))
	})
	many := func(what, want, got string) checks.Finding {
		return checktest.GPUFinding(gpuECCName, 3, checks.Finding{Code: "gpu.ecc.many", Severity: checks.Warn, Want: want, Got: got}, "corrected "+what+" errors since the driver was loaded")
	}
	return []checktest.Scenario{checktest.OnGPUs("more errors than the platform allows", nil, errs, many("SRAM", "at most 100", "101"), many("DRAM", "at most 1000", "1001")).On(strict())}
})

// A node can have two kinds of GPUs, each with its own platform.
func TestGroupPlatforms(t *testing.T) {
	t.Parallel()
	ids := []pci.ID{{Address: "a", Device: "2330", Subsystem: "10de:16c1"}, {Address: "b", Device: "2330", Subsystem: "10de:16c0"},
		{Address: "c", Device: "1fb0"}, {Address: "d", Device: "2330", Subsystem: "10de:16c1"}}
	p := checktest.Hgx()
	got := checks.GroupPlatforms(ids, func(device, subsystem string, gpus int) *checks.Platform {
		if device == "2330" && subsystem == "10de:16c1" && gpus == 3 {
			return p
		}
		return nil
	})
	want := []checks.PlatformGroup{{Device: "2330", Subsystem: "10de:16c1", Addresses: []string{"a", "b", "d"}, Platform: p}, {Device: "1fb0", Subsystem: "", Addresses: []string{"c"}, Platform: nil}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	for i, want := range []string{
		"HGX H100 (conf/profiles/h100.toml); 3 GPUs, PCI device 10de:2330, subsystem 10de:16c1", "unknown; 1 GPU, PCI device 10de:1fb0",
	} {
		if tell := got[i].String(); tell != want {
			t.Errorf("%q, want %q", tell, want)
		}
	}
	if got := checks.GroupPlatforms(ids[:1], nil); got[0].Platform != nil {
		t.Errorf("%+v", got)
	}
}
