package gpu

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

func TestGPUPCIe(t *testing.T) { checktest.Run(t, "check_gpu_pcie") }

var _ = checktest.Table("check_gpu_pcie", func(name string) []checktest.Scenario {
	const file = "past/gpu-pcie.json"
	aer := func(s checktest.Scenario, file, content string) checktest.Scenario {
		return s.Holding("sys/bus/pci/devices/"+fakenvml.Address(3)+"/"+file, content)
	}
	link := func(change func(l *nvml.Link)) func(*nvml.Snapshot) {
		return checktest.Gpu3(func(g *nvml.GPU) { change(&g.Link) })
	}
	n := func(n int) nvml.Reading[int] { return nvml.Known(n) }
	says := func(severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.pcie." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	watts := func(w uint32) nvml.Reading[uint32] { return nvml.Known(w * 1000) }
	slow := func(w nvml.Work) func(*nvml.Snapshot) { // the driver reports no idle reason
		return checktest.Gpu3(func(g *nvml.GPU) { g.Link.Gen, g.Link.Work, g.Throttle.Now = n(1), w, nvml.Known(uint64(0)) })
	}
	idle := nvml.Work{Busy: n(0), State: n(0), Draw: watts(71), Limit: watts(700)} // Hopper idles in P0
	busy := nvml.Work{Busy: n(98), State: n(0), Draw: watts(650), Limit: watts(700)}
	inMIG := nvml.Work{State: n(0), Draw: watts(351), Limit: watts(700)}
	second, third := before300(`{"in_a_row":1}`), before300(`{"in_a_row":2}`)
	tooSlow := says(checks.Warn, "slow", checks.ReseatOrRMA, "5", "1", "PCIe generation under load, in 3 consecutive runs")
	each := func(change func(l *nvml.Link)) func(*nvml.Snapshot) {
		return allGPUs(func(g *nvml.GPU) { change(&g.Link) })
	}
	two := func(change func(l *nvml.Link)) func(*nvml.Snapshot) { // two GPUs, one of them changed
		return func(n *nvml.Snapshot) {
			n.GPUs = n.GPUs[2:4]
			change(&n.GPUs[1].Link)
		}
	}
	eight := func(l *nvml.Link) { l.Width = n(8) }
	lost := says(checks.Fail, "width", checks.ReseatOrRMA, "x16", "x8", "PCIe width")
	fourth := func(l *nvml.Link) { l.MaxGen, l.Gen = n(4), n(4) }
	const generation = "PCIe generation that the GPU and the slot support"
	ofAll := func(code, want, got, text string, remedy checks.Remedy) (list []checks.Finding) {
		for i := range 8 {
			f := checks.Finding{Code: "gpu.pcie." + code, Severity: checks.Fail, Remedy: remedy, Want: want, Got: got}
			list = append(list, checktest.GPUFinding(name, i, f, text+", as on most GPUs of this model"))
		}
		return list
	}
	oneLower := append(ofAll("gen", "5", "4", generation, checks.FixConfig), says(checks.Warn, "differ", "", "4", "3", "PCIe generation is lower than that of the other GPUs"))
	oneLower[3] = says(checks.Fail, "gen", checks.ReseatOrRMA, "5", "3", generation)
	replays := func(count int) func(*nvml.Snapshot) { return link(func(l *nvml.Link) { l.Replays = n(count) }) }
	odd := checktest.OnGPUs("one cannot be read", nil, link(func(l *nvml.Link) { l.Width = nvml.Failed[int](checktest.ErrOdd) }),
		checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText))
	odd.Broken = true
	unreadableAER := checktest.OnGPUs("unreadable AER counters", nil, nil, checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown},
		"cannot be read: read /sys/bus/pci/devices/"+fakenvml.Address(3)+"/aer_dev_fatal: is a directory"))
	delete(unreadableAER.Files, "sys/bus/pci/devices/"+fakenvml.Address(3)+"/aer_dev_fatal")
	unreadableAER = aer(unreadableAER, "aer_dev_fatal/", "")
	unreadableAER.Broken = true
	garbage := aer(checktest.OnGPUs("garbage in AER counters", nil, nil, checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown},
		"cannot be read: parse /sys/bus/pci/devices/"+fakenvml.Address(3)+"/aer_dev_fatal: invalid argument")), "aer_dev_fatal", "TOTAL_ERR_FATAL \xff\n")
	garbage.Broken = true
	return append(checktest.GPULacks(name, "PCIe width", func(g *nvml.GPU) { g.Link.Width = nvml.Reading[int]{} }), append(checktest.GPUCommon(name),
		checktest.OnGPUs("healthy", nil, nil), checktest.OnV100s("an old GPU", nil, nil),
		checktest.OnGPUs("as wanted", checktest.Of("5", "16"), nil).OrTable(map[string]any{"gen": int64(5), "width": int64(16)}),
		checktest.OnGPUs("many replays in the first run", nil, replays(100000)),
		checktest.OnGPUs("an idle link is slow, without an idle reason", nil, slow(idle)).Holding(file, third),
		checktest.OnGPUs("an idle link in P8", nil, slow(nvml.Work{Busy: n(100), State: n(8)})).Holding(file, third),
		checktest.OnGPUs("a slow link of a GPU without utilization and power", nil, slow(nvml.Work{})).Holding(file, third),
		checktest.OnGPUs("a slow link with MIG, at little power", nil, slow(nvml.Work{State: n(0), Draw: watts(350), Limit: watts(700)})).Holding(file, third),
		checktest.OnGPUs("a slow link under load, once", nil, slow(busy)),
		checktest.OnGPUs("a slow link under load, twice", nil, slow(busy)).Holding(file, second),
		checktest.OnGPUs("a slow link under load, three times", nil, slow(busy), tooSlow).Holding(file, third),
		checktest.OnGPUs("a slow link with MIG under load, three times", nil, slow(inMIG), tooSlow).Holding(file, third),
		inSlot(checktest.OnGPUs("a slot of eight lanes", nil, link(func(l *nvml.Link) { l.Width = n(8) })), "8"),
		inSlot(checktest.OnGPUs("lanes lost in a slot of eight", nil, link(func(l *nvml.Link) { l.Width = n(4) }), says(checks.Fail, "width", checks.ReseatOrRMA, "x8", "x4", "PCIe width")), "8"),
		inSlot(checktest.OnGPUs("lanes lost in a slot of sixteen", nil, link(func(l *nvml.Link) { l.Width = n(8) }), says(checks.Fail, "width", checks.ReseatOrRMA, "x16", "x8", "PCIe width")), "16"),
		inSlot(checktest.OnGPUs("lanes lost in a slot without a width", nil, link(func(l *nvml.Link) { l.Width = n(8) }), says(checks.Fail, "width", checks.ReseatOrRMA, "x16", "x8", "PCIe width")), "255"),
		inSlot(checktest.OnGPUs("more lanes wanted than the slot has", checktest.Of("5", "16"), link(func(l *nvml.Link) { l.Width = n(8) }),
			says(checks.Fail, "width", checks.ReseatOrRMA, "x16", "x8", "PCIe width")), "8"),
		inSlot(checktest.OnGPUs("a slot with fewer lanes than on the platform", nil, link(func(l *nvml.Link) { l.Width = n(8) }),
			says(checks.Warn, "width", "", "x16", "x8", "PCIe slot has fewer lanes than in HGX H100")), "8").On(checktest.Hgx()),
		checktest.OnGPUs("lanes lost", nil, link(eight), lost),
		inSlot(checktest.OnGPUs("a platform with eight lanes, lanes lost in a slot of sixteen", nil, link(eight), lost), "16").On(floorOf(8)),
		checktest.OnGPUs("a platform with eight lanes, no slot is shown", nil, link(eight)).On(floorOf(8)),
		checktest.OnGPUs("fewer lanes than the platform, no slot is shown", nil, link(func(l *nvml.Link) { l.Width = n(4) }), says(checks.Fail, "width", checks.ReseatOrRMA, "x8", "x4", "PCIe width")).On(floorOf(8)),
		inSlot(checktest.OnGPUs("an emulated port of a virtual machine", nil, link(eight)), "32", "1b36", "0x060400").On(floorOf(8)),
		checktest.OnGPUs("all have half the lanes, and no slot is shown", nil, each(eight)),
		inSlot(checktest.OnGPUs("all have half the lanes of their slots", nil, each(eight), says(checks.Warn, "width", "", "x16", "x8", "PCIe width, the same on all GPUs of this model")), "16"),
		checktest.OnGPUs("one of two has fewer lanes", nil, two(eight), lost),
		checktest.OnGPUs("one of two slots is too old", nil, two(func(l *nvml.Link) { l.MaxGen, l.Gen = n(4), n(4) }),
			says(checks.Warn, "differ", "", "5", "4", "PCIe generation is lower than that of the other GPUs")),
		checktest.OnGPUs("fewer lanes than wanted", checktest.Of("5", "16"), link(func(l *nvml.Link) { l.Width, l.MaxWidth = n(8), n(8) }),
			says(checks.Fail, "width", checks.ReseatOrRMA, "x16", "x8", "PCIe width"), says(checks.Warn, "differ", "", "16", "8", "PCIe width is lower than that of the other GPUs")),
		checktest.OnGPUs("a slot that is too old", checktest.Of("5"), link(func(l *nvml.Link) { l.MaxGen, l.Gen = n(4), n(4) }),
			says(checks.Fail, "gen", checks.ReseatOrRMA, "5", "4", "PCIe generation that the GPU and the slot support"),
			says(checks.Warn, "differ", "", "5", "4", "PCIe generation is lower than that of the other GPUs")),
		checktest.OnGPUs("all GPUs have a lower generation than wanted", checktest.Of("5", "16"), each(fourth), ofAll("gen", "5", "4", generation, checks.FixConfig)...),
		checktest.OnGPUs("generation and width in the wrong order", checktest.Of("16", "5"), nil, ofAll("gen", "16", "5", generation, checks.FixConfig)...),
		checktest.OnGPUs("all GPUs have fewer lanes than wanted", checktest.Of("5", "16"), each(eight), ofAll("width", "x16", "x8", "PCIe width", checks.FixConfig)...),
		checktest.OnGPUs("all GPUs have a lower generation than wanted, one an even lower one", checktest.Of("5"), func(n *nvml.Snapshot) {
			each(fourth)(n)
			n.GPUs[3].Link.MaxGen, n.GPUs[3].Link.Gen = nvml.Known(3), nvml.Known(3)
		}, oneLower...),
		checktest.OnGPUs("one slot differs", nil, link(func(l *nvml.Link) { l.MaxGen, l.Gen = n(4), n(4) }),
			says(checks.Warn, "differ", "", "5", "4", "PCIe generation is lower than that of the other GPUs")),
		inSlot(checktest.OnGPUs("a generation below the platform's", nil, link(func(l *nvml.Link) { l.MaxGen, l.Gen = n(4), n(4) }),
			says(checks.Warn, "gen", "", "at least 5", "4", "PCIe generation of the GPU and the slot is lower than that of HGX"),
			says(checks.Warn, "differ", "", "5", "4", "PCIe generation is lower than that of the other GPUs")), "16", "1000", "0x060400").On(&checks.Platform{Name: "HGX", PCIeGen: 5}),
		inSlot(checktest.OnGPUs("an emulated generation of a virtual machine", nil, link(func(l *nvml.Link) { l.MaxGen, l.Gen = n(4), n(4) }),
			says(checks.Warn, "differ", "", "5", "4", "PCIe generation is lower than that of the other GPUs")), "32", "1b36", "0x060400").On(&checks.Platform{Name: "HGX", PCIeGen: 5}),

		checktest.OnGPUs("some replays", nil, replays(140)).Holding(file, before300(`{"replays":100}`)),
		checktest.OnGPUs("many replays", nil, replays(141), says(checks.Warn, "corrected", checks.NoRemedy, "at most 8 per minute", "8.2", "PCIe replays")).
			Holding(file, before300(`{"replays":100}`)),
		checktest.OnGPUs("more replays than allowed", checktest.Of("-r", "1"), replays(110), says(checks.Fail, "corrected", checks.ReseatOrRMA, "at most 1 per minute", "2.0", "PCIe replays")).
			Holding(file, before300(`{"replays":100}`)).OrTable(map[string]any{"rate": int64(1)}),
		aer(checktest.OnGPUs("corrected errors", checktest.Of("-r", "100"), nil, says(checks.Fail, "corrected", checks.ReseatOrRMA, "at most 100 per minute", "200.0", "corrected PCIe errors")),
			"aer_dev_correctable", "TOTAL_ERR_COR 1001\n").Holding(file, before300(`{"aer":{"Corrected":1}}`)),
		aer(checktest.OnGPUs("fatal errors", nil, nil, says(checks.Fail, "fatal", checks.RebootNode, "0", "2", "fatal PCIe errors since the last run")),
			"aer_dev_fatal", "TOTAL_ERR_FATAL 3\n").Holding(file, before300(`{"aer":{"Fatal":1}}`)),
		aer(checktest.OnGPUs("old fatal errors", nil, nil), "aer_dev_fatal", "TOTAL_ERR_FATAL 3\n").Holding(file, before300(`{"aer":{"Fatal":3}}`)),
		aer(checktest.OnGPUs("fatal errors before the first run", nil, nil, says(checks.Warn, "fatal", checks.RebootNode, "0", "3", "fatal PCIe errors since boot")),
			"aer_dev_fatal", "TOTAL_ERR_FATAL 3\n"),
		aer(checktest.OnGPUs("uncorrected errors", nil, nil, says(checks.Warn, "nonfatal", "", "0", "5", "uncorrected PCIe errors since the last run")),
			"aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 5\n").Holding(file, before300(`{}`)),
		odd, unreadableAER, garbage, gpuPCIeDumb(),
	)...)
})

// gpuPCIeDumb returns GPUs without any reading of NVML. It has no AER counters, because the kernel's
// counters are judged even for such a GPU.
func gpuPCIeDumb() checktest.Scenario {
	s := checktest.GPUDumb(gpuPCIeName)
	for i := range 8 {
		for _, f := range []string{"aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal"} {
			delete(s.Files, "sys/bus/pci/devices/"+fakenvml.Address(i)+"/"+f)
		}
	}
	return s
}

// floorOf returns a platform with boards that are also used in slots with fewer lanes.
func floorOf(lanes int) *checks.Platform { return &checks.Platform{Name: "L40S", PCIeWidth: lanes} }

// inSlot connects gpu3 to a port with a number of lanes, and optionally a vendor and a class.
func inSlot(s checktest.Scenario, lanes string, of ...string) checktest.Scenario {
	const port, devices = "0000:00:01.0", "sys/bus/pci/devices/"
	at := "sys/devices/pci0000:00/" + port + "/" + fakenvml.Address(3) + "/"
	for f, content := range s.Files {
		if name, ok := strings.CutPrefix(f, devices+fakenvml.Address(3)+"/"); ok {
			delete(s.Files, f)
			s.Files[at+name] = content
		}
	}
	s.Files["sys/devices/pci0000:00/"+port+"/max_link_width"] = lanes + "\n"
	if len(of) == 2 {
		s.Files["sys/devices/pci0000:00/"+port+"/vendor"], s.Files["sys/devices/pci0000:00/"+port+"/class"] = "0x"+of[0]+"\n", of[1]+"\n"
	}
	s.Links = map[string]string{
		devices + fakenvml.Address(3): "../../../devices/pci0000:00/" + port + "/" + fakenvml.Address(3),
		devices + port:                "../../../devices/pci0000:00/" + port,
	}
	return s
}
