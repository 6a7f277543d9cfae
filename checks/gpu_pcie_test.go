package checks

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

func TestGPUPCIe(t *testing.T) { testCheck(t, "check_gpu_pcie") }

var _ = table("check_gpu_pcie", func(name string) []scenario {
	const file = "past/gpu-pcie.json"
	aer := func(s scenario, file, content string) scenario {
		return s.holding("sys/bus/pci/devices/"+fakenvml.Address(3)+"/"+file, content)
	}
	link := func(change func(l *probe.Link)) func(*probe.NVML) {
		return gpu3(func(g *probe.GPU) { change(&g.Link) })
	}
	n := func(n int) probe.Reading[int] { return probe.Known(n) }
	says := func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.pcie." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	watts := func(w uint32) probe.Reading[uint32] { return probe.Known(w * 1000) }
	slow := func(w probe.Work) func(*probe.NVML) { // the driver never says that the GPU is idle
		return gpu3(func(g *probe.GPU) { g.Link.Gen, g.Link.Work, g.Throttle.Now = n(1), w, probe.Known(uint64(0)) })
	}
	idle := probe.Work{Busy: n(0), State: n(0), Draw: watts(71), Limit: watts(700)} // Hopper idles in P0
	busy := probe.Work{Busy: n(98), State: n(0), Draw: watts(650), Limit: watts(700)}
	inMIG := probe.Work{State: n(0), Draw: watts(351), Limit: watts(700)}
	second, third := before300(`{"in_a_row":1}`), before300(`{"in_a_row":2}`)
	tooSlow := says(Warn, "slow", ReseatOrRMA, "5", "1", "PCIe generation at work, in 3 runs in a row")
	each := func(change func(l *probe.Link)) func(*probe.NVML) {
		return allGPUs(func(g *probe.GPU) { change(&g.Link) })
	}
	two := func(change func(l *probe.Link)) func(*probe.NVML) { // two GPUs, of which the first differs
		return func(n *probe.NVML) {
			n.GPUs = n.GPUs[2:4]
			change(&n.GPUs[1].Link)
		}
	}
	eight := func(l *probe.Link) { l.Width = n(8) }
	lost := says(Fail, "width", ReseatOrRMA, "x16", "x8", "PCIe width")
	replays := func(count int) func(*probe.NVML) { return link(func(l *probe.Link) { l.Replays = n(count) }) }
	odd := onGPUs("one cannot be read", nil, link(func(l *probe.Link) { l.Width = probe.Failed[int](errOdd) }),
		gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: "+oddText))
	odd.broken = true
	unreadableAER := onGPUs("unreadable AER counters", nil, nil, gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown},
		"could not tell: read /sys/bus/pci/devices/"+fakenvml.Address(3)+"/aer_dev_fatal: is a directory"))
	delete(unreadableAER.files, "sys/bus/pci/devices/"+fakenvml.Address(3)+"/aer_dev_fatal")
	unreadableAER = aer(unreadableAER, "aer_dev_fatal/", "")
	unreadableAER.broken = true
	garbage := aer(onGPUs("garbage in AER counters", nil, nil), "aer_dev_fatal", "TOTAL_ERR_FATAL \xff\n")
	garbage.broken = true
	return append(gpuLacks(name, "PCIe width", func(g *probe.GPU) { g.Link.Width = probe.Reading[int]{} }), append(gpuCommon(name),
		onGPUs("healthy", nil, nil), onV100s("an old GPU", nil, nil),
		onGPUs("as wanted", of("5", "16"), nil).orTable(map[string]any{"gen": int64(5), "width": int64(16)}),
		onGPUs("no past, many replays", nil, replays(100000)),
		onGPUs("an idle link is slow, and no bit says that it is idle", nil, slow(idle)).holding(file, third),
		onGPUs("an idle link in P8", nil, slow(probe.Work{Busy: n(100), State: n(8)})).holding(file, third),
		onGPUs("a slow link of a GPU that tells nothing of its work", nil, slow(probe.Work{})).holding(file, third),
		onGPUs("a slow link with MIG, at little power", nil, slow(probe.Work{State: n(0), Draw: watts(350), Limit: watts(700)})).holding(file, third),
		onGPUs("a slow link at work, once", nil, slow(busy)),
		onGPUs("a slow link at work, twice", nil, slow(busy)).holding(file, second),
		onGPUs("a slow link at work, three times", nil, slow(busy), tooSlow).holding(file, third),
		onGPUs("a slow link with MIG at work, three times", nil, slow(inMIG), tooSlow).holding(file, third),
		inSlot(onGPUs("a slot of eight lanes", nil, link(func(l *probe.Link) { l.Width = n(8) })), "8"),
		inSlot(onGPUs("lanes lost in a slot of eight", nil, link(func(l *probe.Link) { l.Width = n(4) }), says(Fail, "width", ReseatOrRMA, "x8", "x4", "PCIe width")), "8"),
		inSlot(onGPUs("lanes lost in a slot of sixteen", nil, link(func(l *probe.Link) { l.Width = n(8) }), says(Fail, "width", ReseatOrRMA, "x16", "x8", "PCIe width")), "16"),
		inSlot(onGPUs("lanes lost in a slot that does not tell", nil, link(func(l *probe.Link) { l.Width = n(8) }), says(Fail, "width", ReseatOrRMA, "x16", "x8", "PCIe width")), "255"),
		inSlot(onGPUs("more lanes wanted than the slot has", of("5", "16"), link(func(l *probe.Link) { l.Width = n(8) }),
			says(Fail, "width", ReseatOrRMA, "x16", "x8", "PCIe width")), "8"),
		inSlot(onGPUs("a slot with fewer lanes than the platform's", nil, link(func(l *probe.Link) { l.Width = n(8) }),
			says(Warn, "width", "", "x16", "x8", "PCIe slot has fewer lanes than that of HGX H100")), "8").on(hgx()),
		onGPUs("lanes lost", nil, link(eight), lost),
		inSlot(onGPUs("a floor of eight lanes hides nothing in a slot of sixteen", nil, link(eight), lost), "16").on(floorOf(8)),
		onGPUs("a floor of eight lanes, no slot is shown", nil, link(eight)).on(floorOf(8)),
		onGPUs("below the floor, no slot is shown", nil, link(func(l *probe.Link) { l.Width = n(4) }), says(Fail, "width", ReseatOrRMA, "x8", "x4", "PCIe width")).on(floorOf(8)),
		inSlot(onGPUs("a port that a virtual machine has made up", nil, link(eight)), "32", "1b36", "0x060400").on(floorOf(8)),
		onGPUs("all have half the lanes, and no slot is shown", nil, each(eight)),
		inSlot(onGPUs("all have half the lanes of their slots", nil, each(eight), says(Warn, "width", "", "x16", "x8", "PCIe width, as all GPUs of its model")), "16"),
		onGPUs("one of two has fewer lanes", nil, two(eight), lost),
		onGPUs("one of two slots is too old", nil, two(func(l *probe.Link) { l.MaxGen, l.Gen = n(4), n(4) }),
			says(Warn, "differ", "", "5", "4", "PCIe generation is not that of the others")),
		onGPUs("fewer lanes than wanted", of("5", "16"), link(func(l *probe.Link) { l.Width, l.MaxWidth = n(8), n(8) }),
			says(Fail, "width", ReseatOrRMA, "x16", "x8", "PCIe width"), says(Warn, "differ", "", "16", "8", "PCIe width is not that of the others")),
		onGPUs("a slot that is too old", of("5"), link(func(l *probe.Link) { l.MaxGen, l.Gen = n(4), n(4) }),
			says(Fail, "gen", ReseatOrRMA, "5", "4", "PCIe generation that GPU and slot can do"),
			says(Warn, "differ", "", "5", "4", "PCIe generation is not that of the others")),
		onGPUs("one slot differs", nil, link(func(l *probe.Link) { l.MaxGen, l.Gen = n(4), n(4) }),
			says(Warn, "differ", "", "5", "4", "PCIe generation is not that of the others")),
		inSlot(onGPUs("a generation below the platform's", nil, link(func(l *probe.Link) { l.MaxGen, l.Gen = n(4), n(4) }),
			says(Warn, "gen", "", "at least 5", "4", "PCIe generation of GPU and slot is less than that of HGX"),
			says(Warn, "differ", "", "5", "4", "PCIe generation is not that of the others")), "16", "1000", "0x060400").on(&Platform{Name: "HGX", PCIeGen: 5}),
		inSlot(onGPUs("a generation that a virtual machine has made up", nil, link(func(l *probe.Link) { l.MaxGen, l.Gen = n(4), n(4) }),
			says(Warn, "differ", "", "5", "4", "PCIe generation is not that of the others")), "32", "1b36", "0x060400").on(&Platform{Name: "HGX", PCIeGen: 5}),

		onGPUs("some replays", nil, replays(140)).holding(file, before300(`{"replays":100}`)),
		onGPUs("many replays", nil, replays(141), says(Warn, "corrected", ReseatOrRMA, "at most 8 a minute", "8.2", "PCIe replays")).
			holding(file, before300(`{"replays":100}`)),
		onGPUs("more replays than allowed", of("-r", "1"), replays(110), says(Fail, "corrected", ReseatOrRMA, "at most 1 a minute", "2.0", "PCIe replays")).
			holding(file, before300(`{"replays":100}`)).orTable(map[string]any{"rate": int64(1)}),
		aer(onGPUs("corrected errors", of("-r", "100"), nil, says(Fail, "corrected", ReseatOrRMA, "at most 100 a minute", "200.0", "corrected PCIe errors")),
			"aer_dev_correctable", "TOTAL_ERR_COR 1001\n").holding(file, before300(`{"aer":{"Corrected":1}}`)),
		aer(onGPUs("fatal errors", nil, nil, says(Fail, "fatal", RebootNode, "0", "2", "fatal PCIe errors since the last run")),
			"aer_dev_fatal", "TOTAL_ERR_FATAL 3\n").holding(file, before300(`{"aer":{"Fatal":1}}`)),
		aer(onGPUs("fatal errors of long ago", nil, nil), "aer_dev_fatal", "TOTAL_ERR_FATAL 3\n").holding(file, before300(`{"aer":{"Fatal":3}}`)),
		aer(onGPUs("fatal errors before the first run", nil, nil, says(Warn, "fatal", RebootNode, "0", "3", "fatal PCIe errors since the node was booted")),
			"aer_dev_fatal", "TOTAL_ERR_FATAL 3\n"),
		aer(onGPUs("uncorrected errors", nil, nil, says(Warn, "nonfatal", "", "0", "5", "uncorrected PCIe errors since the last run")),
			"aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 5\n").holding(file, before300(`{}`)),
		odd, unreadableAER, garbage, gpuPCIeDumb(),
	)...)
})

// gpuPCIeDumb: the kernel's counters are no concern of NVML's, so that even a GPU
// that tells nothing is judged by them.
func gpuPCIeDumb() scenario {
	s := gpuDumb(gpuPCIeName)
	for i := range 8 {
		for _, f := range []string{"aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal"} {
			delete(s.files, "sys/bus/pci/devices/"+fakenvml.Address(i)+"/"+f)
		}
	}
	return s
}

// floorOf is a platform whose boards are also in slots with so many lanes.
func floorOf(lanes int) *Platform { return &Platform{Name: "L40S", PCIeWidth: lanes} }

// inSlot plugs GPU 3 into a port with so many lanes, of a maker and class if they are given.
func inSlot(s scenario, lanes string, of ...string) scenario {
	const port, devices = "0000:00:01.0", "sys/bus/pci/devices/"
	at := "sys/devices/pci0000:00/" + port + "/" + fakenvml.Address(3) + "/"
	for f, content := range s.files {
		if name, ok := strings.CutPrefix(f, devices+fakenvml.Address(3)+"/"); ok {
			delete(s.files, f)
			s.files[at+name] = content
		}
	}
	s.files["sys/devices/pci0000:00/"+port+"/max_link_width"] = lanes + "\n"
	if len(of) == 2 {
		s.files["sys/devices/pci0000:00/"+port+"/vendor"], s.files["sys/devices/pci0000:00/"+port+"/class"] = "0x"+of[0]+"\n", of[1]+"\n"
	}
	s.links = map[string]string{
		devices + fakenvml.Address(3): "../../../devices/pci0000:00/" + port + "/" + fakenvml.Address(3),
		devices + port:                "../../../devices/pci0000:00/" + port,
	}
	return s
}
