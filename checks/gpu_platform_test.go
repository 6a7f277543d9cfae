package checks

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// less is a figure of gpu3 that is below that of its platform.
func less(check, code, text, want, got string) Finding {
	return gpuFinding(check, 3, Finding{Code: code, Severity: Warn, Want: want, Got: got}, text)
}

var _ = table("check_gpu_power", func(string) []scenario {
	default500 := gpu3(func(g *probe.GPU) {
		g.Power.Limit, g.Power.Default, g.Power.Enforced = probe.Known(uint32(500000)), probe.Known(uint32(500000)), probe.Known(uint32(500000))
	})
	const power = "gpu.power.default"
	past := fmt.Sprintf(`{%q:{"default":700}}`, fakenvml.UUID(3))
	all500 := func(n *probe.NVML) {
		for i := range n.GPUs {
			p := &n.GPUs[i].Power
			p.Limit, p.Default, p.Enforced = probe.Known(uint32(500000)), probe.Known(uint32(500000)), probe.Known(uint32(500000))
		}
	}
	two := onGPUs("one of two has a lower default", nil, func(n *probe.NVML) {
		default500(n)
		n.GPUs = n.GPUs[2:4]
	}, less(gpuPowerName, power, "default power limit is less than that of the others", "at least 700 W", "500 W"))
	wild := hgx()
	wild.PowerLimit = 701 // what is lost by rounding
	return []scenario{
		onGPUs("as its platform", nil, nil).on(hgx()), onGPUs("as its platform, but for a watt", nil, nil).on(wild),
		onGPUs("default below that of the platform", nil, default500,
			less(gpuPowerName, power, "default power limit is less than that of HGX H100", "at least 700 W", "500 W")).on(hgx()),
		onGPUs("default below that of the others", nil, default500,
			less(gpuPowerName, power, "default power limit is less than that of the others", "at least 700 W", "500 W")),
		onGPUs("default below what it was", nil, all500,
			less(gpuPowerName, power, "default power limit is less than this GPU has had before", "at least 700 W", "500 W")).holding("past/gpu-power.json", past),
		two, onGPUs("all defaults low, and no platform", nil, all500),
		onGPUs("the past is garbage", nil, nil).holding("past/gpu-power.json", "x"),
		onGPUs("another default than the platform's, as wanted", of("500"), default500, others700()...).on(hgx()),
	}
})

var _ = table("check_gpu_clocks", func(string) []scenario {
	clock := func(change func(*probe.Clocks)) func(*probe.NVML) {
		return gpu3(func(g *probe.GPU) { change(&g.Clocks) })
	}
	low := clock(func(c *probe.Clocks) {
		c.MaxGraphics, c.AppGraphics, c.DefaultGraphics = probe.Known(uint32(1830)), probe.Known(uint32(1830)), probe.Known(uint32(1830))
		c.MaxMemory, c.AppMemory, c.DefaultMemory = probe.Known(uint32(2000)), probe.Known(uint32(2000)), probe.Known(uint32(2000))
	})
	const clocks = "check_gpu_clocks"
	return []scenario{
		onGPUs("as its platform", nil, nil).on(hgx()),
		onGPUs("clocks below those of the platform", nil, low,
			less(clocks, "gpu.clocks.max", "highest graphics clock is less than that of HGX H100", "at least 1980 MHz", "1830 MHz"),
			less(clocks, "gpu.clocks.max", "highest memory clock is less than that of HGX H100", "at least 2619 MHz", "2000 MHz")).on(hgx()),
		onGPUs("clocks below those of the others", of("1800"), low,
			less(clocks, "gpu.clocks.max", "highest memory clock is less than that of the others", "at least 2619 MHz", "2000 MHz")),
	}
})

var _ = table("check_gpu_count", func(string) []scenario {
	seven := onGPUs("one of eight has never been there", nil, func(n *probe.NVML) { n.GPUs = n.GPUs[:7] },
		Finding{Code: "gpu.count", Severity: Fail, Want: "8 GPUs", Got: "7", Message: "check_gpu_count:  want 8 GPUs, got 7: no HGX H100 has 7"}).on(hgx())
	seven.files = fakenvml.Files(fakenvml.H100, 7)
	four := onGPUs("half a board", nil, func(n *probe.NVML) { n.GPUs = n.GPUs[:4] }).on(hgx())
	four.files = fakenvml.Files(fakenvml.H100, 4)
	wanted := onGPUs("as many as are wanted, whatever the platform", of("7"), func(n *probe.NVML) { n.GPUs = n.GPUs[:7] }).on(hgx())
	wanted.files = fakenvml.Files(fakenvml.H100, 7)
	return []scenario{onGPUs("as its platform", nil, nil).on(hgx()), seven, four, wanted, onGPUs("a platform of any size", nil, nil).on(&Platform{Name: "cards"}),
		onGPUs("more than the platform has", nil, nil).on(&Platform{Name: "small", GPUs: []int{4}})}
})

// others700 are the failures of seven GPUs of 700 W that should have 500 W.
func others700() (list []Finding) {
	for i := range 8 {
		if i != 3 {
			list = append(list, gpuFinding(gpuPowerName, i, Finding{Code: "gpu.power.limit", Severity: Fail, Want: "500 W", Got: "700 W", Remedy: FixConfig}, "power limit"))
		}
	}
	return list
}

var _ = table("check_gpu_pcie", func(string) (list []scenario) {
	link := func(change func(*probe.Link)) func(*probe.NVML) { return gpu3(func(g *probe.GPU) { change(&g.Link) }) }
	fewer := func(n *probe.NVML) {
		for i := range n.GPUs {
			n.GPUs[i].Link.Width = probe.Known(8)
		}
	}
	eight := hgx()
	eight.PCIeWidth = 8
	fails := gpuFinding(gpuPCIeName, 3, Finding{Code: "gpu.pcie.width", Severity: Fail, Remedy: ReseatOrRMA, Want: "x8", Got: "x4"}, "PCIe width")
	gen4 := func(n *probe.NVML) {
		for i := range n.GPUs {
			n.GPUs[i].Link.Gen, n.GPUs[i].Link.MaxGen = probe.Known(4), probe.Known(4)
		}
	}
	five := hgx()
	five.PCIeGen = 0
	past := fmt.Sprintf(`{%q:{"generation":5,"width":16}}`, fakenvml.UUID(3))
	list = append(list,
		onGPUs("as its platform", nil, nil).on(hgx()),
		onGPUs("a platform with slots of eight lanes", nil, fewer).on(eight),
		onGPUs("slots of eight lanes, as wanted", of("5", "8"), fewer),
		onGPUs("fewer lanes than the platform has", nil, func(n *probe.NVML) {
			fewer(n)
			link(func(l *probe.Link) { l.Width = probe.Known(4) })(n)
		}, fails).on(eight),
		onGPUs("fewer lanes than it had, as many as the platform has", nil, fewer,
			less(gpuPCIeName, "gpu.pcie.width", "PCIe width is less than this GPU has had before", "at least 16 lanes", "8 lanes")).on(eight).holding("past/gpu-pcie-link.json", past),
		onGPUs("lower generation than it had", nil, gen4,
			less(gpuPCIeName, "gpu.pcie.gen", "PCIe generation of GPU and slot is less than this GPU has had before", "at least 5", "4")).on(five).holding("past/gpu-pcie-link.json", past),
	)
	var want []Finding
	for i := range 8 {
		want = append(want, gpuFinding(gpuPCIeName, i, Finding{Code: "gpu.pcie.gen", Severity: Warn, Want: "at least 5", Got: "4"},
			"PCIe generation of GPU and slot is less than that of HGX H100"))
	}
	list = append(list, onGPUs("lower generation than the platform has", nil, gen4, want...).on(hgx()))
	return list
})

// strict is a platform with limits of errors.
func strict() *Platform {
	p := hgx()
	p.RemappedRows, p.SRAMErrors, p.DRAMErrors = 8, 100, 1000
	return p
}

var _ = table("check_gpu_remap", func(string) []scenario {
	rows := gpu3(func(g *probe.GPU) { g.Rows.Remapped = probe.Known(probe.RemappedRows{Uncorrected: 8}) })
	return []scenario{
		onGPUs("more rows than the platform allows", nil, rows, gpuFinding(gpuRemapName, 3,
			Finding{Code: "gpu.remap.many", Severity: Fail, Remedy: ReseatOrRMA, Want: "fewer than 8", Got: "8"}, "rows remapped for uncorrected errors")).on(strict()),
		onGPUs("more rows than the platform allows, but not nhc.conf", of("9"), rows).on(strict())}
})

var _ = table("check_gpu_ecc", func(string) []scenario {
	errs := gpu3(func(g *probe.GPU) {
		g.ECC.SRAM.Corrected, g.ECC.DRAM.Corrected = probe.Known(uint64(101)), probe.Known(uint64(1001))
	})
	many := func(what, want, got string) Finding {
		return gpuFinding(gpuECCName, 3, Finding{Code: "gpu.ecc.many", Severity: Warn, Want: want, Got: got}, "corrected "+what+" errors since the driver was loaded")
	}
	return []scenario{onGPUs("more errors than the platform allows", nil, errs, many("SRAM", "at most 100", "101"), many("DRAM", "at most 1000", "1001")).on(strict())}
})

// A node may have two kinds of GPU, each of its own platform.
func TestGroupPlatforms(t *testing.T) {
	t.Parallel()
	ids := []probe.PCIID{{Address: "a", Device: "2330", Subsystem: "10de:16c1"}, {Address: "b", Device: "2330", Subsystem: "10de:16c0"},
		{Address: "c", Device: "1fb0"}, {Address: "d", Device: "2330", Subsystem: "10de:16c1"}}
	p := hgx()
	got := GroupPlatforms(ids, func(device, subsystem string, gpus int) *Platform {
		if device == "2330" && subsystem == "10de:16c1" && gpus == 3 {
			return p
		}
		return nil
	})
	want := []PlatformGroup{{"2330", "10de:16c1", []string{"a", "b", "d"}, p}, {"1fb0", "", []string{"c"}, nil}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	for i, want := range []string{
		"HGX H100 (conf/profiles/h100.toml); 3 GPUs, PCI device 10de:2330, subsystem 10de:16c1", "unknown; 1 GPU, PCI device 10de:1fb0",
	} {
		if tell := got[i].Tell(); tell != want {
			t.Errorf("%q, want %q", tell, want)
		}
	}
	if got := GroupPlatforms(ids[:1], nil); got[0].Platform != nil {
		t.Errorf("%+v", got)
	}
}
