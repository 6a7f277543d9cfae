package gpu

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

const nvlinkBoot = "11111111-2222-3333-4444-555555555555"

// inBoot adds the boot id.
func inBoot(s checktest.Scenario) checktest.Scenario {
	return s.Holding("proc/sys/kernel/random/boot_id", nvlinkBoot+"\n")
}

func TestGPUNVLink(t *testing.T)    { checktest.Run(t, "check_gpu_nvlink") }
func TestNVLinkStatus(t *testing.T) { checktest.Run(t, "check_nvlink_status") }

var (
	_ = checktest.Table("check_gpu_nvlink", nvlinkScenarios)
	_ = checktest.Table("check_nvlink_status", nvlinkScenarios)
)

func nvlinkScenarios(name string) (list []checktest.Scenario) {
	list = append(list, checktest.GPUCommon(name)...)
	list = append(list, nvlinkDown(name)...)
	list = append(list, nvlinkSpeed(name)...)
	list = append(list, nvlinkPeers(name)...)
	list = append(list, nvlinkErrorScenarios(name)...)
	list = append(list, nvlinkBroken(name)...)
	return list
}

// nvlinkSays returns a function that makes findings about gpu3.
func nvlinkSays(check string) func(severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
	return func(severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		return checktest.GPUFinding(check, 3, checks.Finding{Code: "gpu.nvlink." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
}

// lowered takes down some links of a GPU.
func lowered(links ...int) func(*nvml.GPU) {
	return func(g *nvml.GPU) {
		up, speed := checktest.Repeat(18, true), checktest.Repeat(18, 26562)
		far, ends := checktest.Repeat(18, "switch"), append([]string(nil), g.NVLink.FarPCI.Value...)
		for _, link := range links {
			up[link], speed[link], far[link], ends[link] = false, 0, "", ""
		}
		g.NVLinks, g.NVLink.Speed, g.NVLink.Far, g.NVLink.FarPCI = nvml.Known(up), nvml.Known(speed), nvml.Known(far), nvml.Known(ends)
	}
}

func allGPUs(change func(*nvml.GPU)) func(*nvml.Snapshot) {
	return func(n *nvml.Snapshot) {
		for i := range n.GPUs {
			change(&n.GPUs[i])
		}
	}
}

var everyLink = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}

// hadLinks returns the stored links of some GPUs: all were up.
func hadLinks(gpus ...int) string {
	past := map[string]linkPlaces{}
	for _, i := range gpus {
		l := checktest.Linked(i, 18, 0, "switch")
		past[fakenvml.UUID(i)] = linkPlaces{Up: checktest.Repeat(18, true), Far: l.FarPCI.Value}
	}
	text, _ := json.Marshal(past)
	return string(text)
}

func hgxLinks() *checks.Platform {
	p := checktest.Hgx()
	p.NVLinks, p.NVLinkBandwidth = 18, 26562
	return p
}

// direct connects the links of a GPU to other GPUs.
func direct(g *nvml.GPU) { g.NVLink.Far = nvml.Known(checktest.Repeat(18, "gpu")) }

func nvlinkDown(name string) (list []checktest.Scenario) {
	const file = "past/gpu-nvlinks.json"
	says := nvlinkSays(name)
	down := func(severity checks.Severity, got, text string) checks.Finding {
		return says(severity, "down", checks.ResetGPU, "18 up", got, text)
	}
	bridged := func(n *nvml.Snapshot) {
		allGPUs(direct)(n)
		lowered(everyLink...)(&n.GPUs[3])
	}
	unlinked := func(g *nvml.GPU) { // a link that is down has no counters
		lowered(everyLink...)(g)
		g.NVLink.Counts = nvml.Reading[nvml.LinkCounts]{}
	}
	nothingToJudge := checks.Finding{Code: "gpu.unsupported", Severity: checks.Skip, Message: name + ":  not supported by these GPUs or their driver"}
	var all []checks.Finding
	for i := range 8 {
		all = append(all, checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.nvlink.down", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: "18 up", Got: "0"}, "all NVLinks are down"))
	}
	first := append([]checks.Finding(nil), all...)
	for i := range first {
		first[i].Severity = checks.Warn
	}
	v100 := checktest.OnV100s("V100, one link down in a mesh", nil, func(n *nvml.Snapshot) {
		n.GPUs[3].NVLinks = nvml.Known([]bool{true, true, false, true, true, true})
	}, says(checks.Warn, "down", checks.ResetGPU, "6 up", "5", "NVLink 2 is down"))
	nvl := &checks.Platform{Name: "H100 NVL", NVLinks: 12}
	half := hgxLinks()
	half.NVLinkGPUs, half.NVSwitchGPUs = 16, 8
	switched := hgxLinks()
	switched.NVSwitchGPUs = 8
	quad := hgxLinks()
	quad.NVLinkGPUs = 16
	quarter := func(n *nvml.Snapshot) { // links to GPUs that are not in the node, not the same number to each
		allGPUs(direct)(n)
		for i := range n.GPUs {
			lowered(everyLink[11+i%2:]...)(&n.GPUs[i])
			n.GPUs[i].NVLink.Far = nvml.Known(checktest.Repeat(18, "gpu"))
		}
	}
	unbridged := func(n *nvml.Snapshot) {
		quarter(n)
		for i := range n.GPUs {
			if i >= 4 {
				unlinked(&n.GPUs[i])
			}
		}
	}
	one := checktest.OnGPUs("one rented GPU of a board, without links", nil, func(n *nvml.Snapshot) {
		n.GPUs = n.GPUs[3:4]
		unlinked(&n.GPUs[0])
	}, nothingToJudge).On(hgxLinks())
	two := checktest.OnGPUs("a pair, one link less than before and than the platform", nil, func(n *nvml.Snapshot) {
		n.GPUs = n.GPUs[2:4]
		for i := range n.GPUs {
			lowered(5)(&n.GPUs[i])
			direct(&n.GPUs[i])
		}
	}, checktest.GPUFinding(name, 2, checks.Finding{Code: "gpu.nvlink.down", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: "18 up", Got: "17"}, "NVLink 5 is down, before that connected to 0000:06:00.0"),
		down(checks.Fail, "17", "NVLink 5 is down, before that connected to 0000:06:00.0")).On(hgxLinks()).Holding(file, hadLinks(2, 3))
	list = append(list,
		checktest.OnGPUs("healthy", nil, nil), checktest.OnV100s("an old GPU", nil, nil), checktest.OnGPUs("as on its platform", nil, nil).On(hgxLinks()),
		checktest.OnGPUs("the stored state is garbage", nil, nil).Holding(file, "x"),
		checktest.OnGPUs("as wanted", checktest.Of("-n", "18"), nil).OrTable(map[string]any{"links": int64(18)}),
		checktest.OnGPUs("down by design on all", nil, allGPUs(lowered(12, 13, 14, 15, 16, 17))),
		checktest.OnGPUs("fewer than the platform, as wanted", checktest.Of("-n", "12"), allGPUs(lowered(12, 13, 14, 15, 16, 17))).On(hgxLinks()),
		checktest.OnGPUs("one link down", nil, checktest.Gpu3(lowered(7)), down(checks.Fail, "17", "NVLink 7 is down")),
		checktest.OnGPUs("one link down, its far end is known", nil, checktest.Gpu3(lowered(7)), down(checks.Fail, "17", "NVLink 7 is down, before that connected to 0000:08:00.0")).Holding(file, hadLinks(3)),
		checktest.OnGPUs("NVLinks to two switches down", nil, checktest.Gpu3(lowered(6, 7)), down(checks.Fail, "16", "NVLinks 6, 7 are down")).Holding(file, hadLinks(3)),
		checktest.OnGPUs("fewer than wanted", checktest.Of("-n", "18"), checktest.Gpu3(lowered(4, 7)), down(checks.Fail, "16", "NVLinks 4, 7 are down")),
		checktest.OnGPUs("all links down", nil, checktest.Gpu3(lowered(everyLink...)), down(checks.Fail, "0", "all NVLinks are down")).On(hgxLinks()),
		checktest.OnGPUs("NVML reports no link", nil, checktest.Gpu3(func(g *nvml.GPU) { g.NVLinks, g.NVLink = nvml.Reading[[]bool]{}, nvml.NVLink{} }),
			down(checks.Fail, "0", "all NVLinks are down")),
		checktest.OnGPUs("NVML reports no link any more", nil, allGPUs(func(g *nvml.GPU) { g.NVLinks, g.NVLink = nvml.Reading[[]bool]{}, nvml.NVLink{} }),
			down(checks.Fail, "0", "all NVLinks are down")).On(hgxLinks()).Holding(file, hadLinks(3)),
		checktest.OnGPUs("all links of all GPUs down, and they were up before", nil, allGPUs(lowered(everyLink...)), all...).On(hgxLinks()).Holding(file, hadLinks(0, 1, 2, 3, 4, 5, 6, 7)),
		booting(checktest.OnGPUs("all links of all GPUs down a minute after a boot", nil, allGPUs(lowered(everyLink...)), checks.Finding{Code: "gpu.nvlink.boot", Severity: checks.Skip,
			Message: name + ":  not judged in the first 300 s after a boot, booted 60 s ago: " + startingGPUs("all NVLinks are down, want 18 up, got 0")}).On(hgxLinks()), 60).
			Holding(file, hadLinks(0, 1, 2, 3, 4, 5, 6, 7)),
		booting(checktest.OnGPUs("all links of all GPUs down five minutes after a boot", nil, allGPUs(lowered(everyLink...)), all...).On(hgxLinks()), 300).
			Holding(file, hadLinks(0, 1, 2, 3, 4, 5, 6, 7)),
		booting(checktest.OnGPUs("one link down a minute after a boot", nil, checktest.Gpu3(lowered(7)), down(checks.Fail, "17", "NVLink 7 is down")).On(hgxLinks()), 60),
		booting(checktest.OnGPUs("one link to an NVSwitch down a minute after a boot", nil, checktest.Gpu3(lowered(7)), checks.Finding{Code: "gpu.nvlink.boot", Severity: checks.Skip,
			Message: name + ":  not judged in the first 300 s after a boot, booted 60 s ago: " + checks.GPUDevice(&checktest.H100s().GPUs[3]).String() + ": NVLink 7 is down, want 18 up, got 17"}).On(switched), 60),
		booting(checktest.OnGPUs("one link to an NVSwitch down five minutes after a boot", nil, checktest.Gpu3(lowered(7)), down(checks.Fail, "17", "NVLink 7 is down")).On(switched), 300),
		checktest.OnGPUs("all links of all GPUs down, in the first run", nil, allGPUs(lowered(everyLink...)), first...).On(hgxLinks()),
		checktest.OnGPUs("all links of all GPUs down, without a reference", nil, allGPUs(unlinked), nothingToJudge),
		checktest.OnGPUs("a GPU of a board without links", nil, bridged, down(checks.Warn, "0", "all NVLinks are down")).On(hgxLinks()),
		checktest.OnGPUs("cards with bridges, one has lost its links", nil, bridged, down(checks.Fail, "0", "all NVLinks are down")).On(hgxLinks()).Holding(file, hadLinks(3)),
		checktest.OnGPUs("MIG on one GPU", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Modes.MIG = nvml.Known(true); lowered(everyLink...)(g) })),
		checktest.OnGPUs("MIG on all GPUs after the next reset", nil, allGPUs(func(g *nvml.GPU) { g.Modes.MIGPending = nvml.Known(true) })),
		checktest.OnGPUs("MIG after the next reset, and no link is up", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Modes.MIGPending = nvml.Known(true); lowered(everyLink...)(g) }),
			down(checks.Fail, "0", "all NVLinks are down")),
		checktest.OnGPUs("MIG off after the next reset", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Modes.MIG = nvml.Known(true); lowered(everyLink...)(g) })),
		checktest.OnGPUs("MIG on all", nil, allGPUs(func(g *nvml.GPU) { g.Modes.MIG = nvml.Known(true); lowered(everyLink...)(g) }),
			checks.Finding{Code: "gpu.nvlink.mig", Severity: checks.Skip, Message: name + ":  NVLinks are not judged: MIG is on"}),
		v100, one, two, checktest.GPUDumb(name),
	)
	list = append(list,
		checktest.OnGPUs("no card with a bridge", nil, allGPUs(unlinked), nothingToJudge).On(nvl),
		checktest.OnGPUs("as many cards with bridges as without", nil, unbridged).On(&checks.Platform{Name: "A100 PCIe"}),
		checktest.OnGPUs("a card without the bridge of the others", nil, bridged).On(&checks.Platform{Name: "H200 NVL", NVLinks: 18}),
		checktest.OnGPUs("cards with bridges of a platform, one has lost its links", nil, bridged, down(checks.Fail, "0", "all NVLinks are down")).On(&checks.Platform{Name: "H200 NVL", NVLinks: 18}).Holding(file, hadLinks(3)),
		checktest.OnGPUs("a part of a mesh", nil, quarter).On(quad),
		checktest.OnGPUs("a part of a mesh without a link between its GPUs", nil, allGPUs(unlinked), nothingToJudge).On(quad),
		checktest.OnGPUs("a part of a board with NVSwitches, no link up", nil, allGPUs(unlinked), first...).On(half),
		checktest.OnGPUs("a part of a mesh, links that were up", nil, quarter, checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.nvlink.down", Severity: checks.Warn, Remedy: checks.ResetGPU, Want: "18 up", Got: "12"},
			"NVLinks 12, 13, 14, 15, 16, 17 are down")).On(quad).Holding(file, hadLinks(3)),
		checktest.OnGPUs("a whole mesh, one link down", nil, func(n *nvml.Snapshot) {
			lowered(5)(&n.GPUs[3])
			allGPUs(direct)(n)
		}, down(checks.Fail, "17", "NVLink 5 is down")).On(hgxLinks()),
	)
	return append(list, fewerOfAll(name)...)
}

// fewerOfAll returns nodes with 12 links on all GPUs: fewer than the platform, or than wanted.
func fewerOfAll(name string) []checktest.Scenario {
	const text = "too few NVLinks are up"
	of := func(severity checks.Severity, remedy checks.Remedy, text string) (want []checks.Finding) {
		for i := range 8 {
			want = append(want, checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.nvlink.down", Severity: severity, Remedy: remedy, Want: "18 up", Got: "12"}, text))
		}
		return want
	}
	all, wanted := allGPUs(lowered(12, 13, 14, 15, 16, 17)), checktest.Of("-n", "18")
	before := of(checks.Fail, checks.FixConfig, text+", as on most GPUs of this model")
	before[3] = checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.nvlink.down", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: "18 up", Got: "12"}, "NVLinks 12, 13, 14, 15, 16, 17 are down")
	return []checktest.Scenario{
		checktest.OnGPUs("fewer than the platform on all GPUs", nil, all, of(checks.Warn, checks.ResetGPU, text)...).On(hgxLinks()),
		checktest.OnGPUs("fewer than wanted on all GPUs", wanted, all, of(checks.Fail, checks.FixConfig, text+", as on most GPUs of this model")...),
		checktest.OnGPUs("fewer than wanted and than the platform on all GPUs", wanted, all, of(checks.Fail, checks.ResetGPU, text)...).On(hgxLinks()),
		checktest.OnGPUs("fewer than wanted on all GPUs, one had more before", wanted, all, before...).Holding("past/gpu-nvlinks.json", hadLinks(3)),
	}
}

func nvlinkSpeed(name string) []checktest.Scenario {
	says := nvlinkSays(name)
	slow := func(mbps int, links ...int) func(*nvml.GPU) {
		return func(g *nvml.GPU) {
			speeds := checktest.Repeat(18, 26562)
			for _, link := range links {
				speeds[link] = mbps
			}
			g.NVLink.Speed = nvml.Known(speeds)
		}
	}
	faster := hgxLinks()
	faster.NVLinkBandwidth = 53125
	var less, wanted []checks.Finding
	for i := range 8 {
		wanted = append(wanted, checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.nvlink.speed", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "at least 53125 MB/s", Got: "26562 MB/s"},
			formatLinks(everyLink)+" slow, as most links of this model"))
		less = append(less, checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.nvlink.speed", Severity: checks.Warn, Remedy: checks.ResetGPU, Want: "at least 47812 MB/s", Got: "26562 MB/s"},
			formatLinks(everyLink)+" slow, less than HGX H100"))
	}
	rounded := hgxLinks()
	rounded.NVLinkBandwidth = 28125
	return []checktest.Scenario{
		checktest.OnGPUs("as fast as wanted", checktest.Of("-b", "26562"), nil).OrTable(map[string]any{"bandwidth": int64(26562)}),
		checktest.OnGPUs("a little slower than the platform", nil, nil).On(rounded),
		checktest.OnGPUs("a slow link", nil, checktest.Gpu3(slow(13281, 4, 7)), says(checks.Warn, "speed", checks.ResetGPU, "at least 26562 MB/s", "13281 MB/s", "NVLinks 4, 7 are slow, less than the others")),
		checktest.OnGPUs("a link without speed", nil, checktest.Gpu3(slow(0, 4)), says(checks.Warn, "speed", checks.ResetGPU, "at least 26562 MB/s", "0 MB/s", "NVLink 4 is slow, less than the others")),
		checktest.OnGPUs("a link without speed, and a speed that is wanted", checktest.Of("-b", "26562"), checktest.Gpu3(slow(0, 4)), says(checks.Fail, "speed", checks.ResetGPU, "at least 26562 MB/s", "0 MB/s", "NVLink 4 is slow")),
		checktest.OnGPUs("no link reports its speed", checktest.Of("-b", "26562"), allGPUs(func(g *nvml.GPU) { g.NVLink.Speed = nvml.Known(checktest.Repeat(18, 0)) })),
		checktest.OnGPUs("slower than wanted", checktest.Of("-b", "26562"), checktest.Gpu3(slow(13281, 7)), says(checks.Fail, "speed", checks.ResetGPU, "at least 26562 MB/s", "13281 MB/s", "NVLink 7 is slow")),
		checktest.OnGPUs("all links slower than wanted", checktest.Of("-b", "53125"), nil, wanted...),
		checktest.OnGPUs("slower than the platform", nil, nil, less...).On(faster),
		checktest.OnGPUs("closed to traffic", nil, checktest.Gpu3(func(g *nvml.GPU) {
			idle := checktest.Repeat(18, false)
			idle[7] = true
			g.NVLink.Idle = nvml.Known(idle)
		}), says(checks.Warn, "traffic", checks.CheckFabric, "", "", "NVLink 7 is up, but closed to traffic")),
		checktest.OnGPUs("a link with an unknown far end", nil, checktest.Gpu3(func(g *nvml.GPU) {
			far := checktest.Repeat(18, "switch")
			far[7] = "unknown"
			g.NVLink.Far = nvml.Known(far)
		}), says(checks.Warn, "far", checks.CheckFabric, "switch", "unknown", "far end of NVLink 7")),
		checktest.OnGPUs("no far end is known", nil, allGPUs(func(g *nvml.GPU) { g.NVLink.Far = nvml.Known(checktest.Repeat(18, "unknown")) })),
	}
}

func nvlinkPeers(name string) []checktest.Scenario {
	const why = "NVLink: not supported"
	say := func(i int, severity checks.Severity, got, text string) checks.Finding {
		return checktest.GPUFinding(name, i, checks.Finding{Code: "gpu.nvlink.p2p", Severity: severity, Remedy: checks.CheckFabric, Want: "ok", Got: got}, text)
	}
	peers := func(n *nvml.Snapshot, gpu int, why string, of ...int) {
		p := maps.Clone(n.GPUs[gpu].NVLink.PeerP2P.Value)
		for _, i := range of {
			p[fmt.Sprintf("gpu%d", i)] = why
		}
		n.GPUs[gpu].NVLink.PeerP2P = nvml.Known(p)
	}
	alone := func(n *nvml.Snapshot) {
		peers(n, 3, why, 0, 1, 2, 4, 5, 6, 7)
		for i := range 8 {
			if i != 3 {
				peers(n, i, why, 3)
			}
		}
	}
	all := func(n *nvml.Snapshot) {
		for i := range 8 {
			for peer := range 8 {
				if peer != i {
					peers(n, i, why, peer)
				}
			}
		}
	}
	var none []checks.Finding
	for i := range 8 {
		none = append(none, say(i, checks.Warn, why, "NVLink traffic with 7 of 7 GPUs"))
	}
	off := "read: disabled by a setting of the driver"
	halves := func(change func(f *nvml.Fabric)) func(*nvml.Snapshot) { // no traffic between GPUs 0 to 3 and 4 to 7
		return func(n *nvml.Snapshot) {
			for i := range 4 {
				peers(n, i, why, 4, 5, 6, 7)
				peers(n, i+4, why, 0, 1, 2, 3)
				inFabric(change)(&n.GPUs[i+4])
			}
		}
	}
	var split []checks.Finding
	for i := range 8 {
		split = append(split, say(i, checks.Fail, why, "NVLink traffic with 4 of 7 GPUs"))
	}
	two := checks.Finding{Code: "gpu.nvlink.p2p", Severity: checks.Warn, Remedy: checks.CheckFabric, Message: name + ":  the GPUs of this node are in 2 partitions of the fabric"}
	return []checktest.Scenario{
		checktest.OnGPUs("one GPU is cut off", nil, alone, say(3, checks.Fail, why, "NVLink traffic with 7 of 7 GPUs")),
		checktest.OnGPUs("one GPU is cut off, in a partition of its own", nil, func(n *nvml.Snapshot) {
			alone(n)
			inFabric(func(f *nvml.Fabric) { f.Clique = 7 })(&n.GPUs[3])
		}, say(3, checks.Fail, why, "NVLink traffic with 7 of 7 GPUs")),
		checktest.OnGPUs("two partitions", nil, halves(func(f *nvml.Fabric) { f.Clique = 7 }), two),
		checktest.OnGPUs("two clusters", nil, halves(func(f *nvml.Fabric) { f.Cluster = "ab" }), two),
		checktest.OnGPUs("two halves of one partition", nil, halves(nil), split...),
		checktest.OnGPUs("two halves, one has not joined its partition", nil, halves(func(f *nvml.Fabric) { f.Clique, f.State = 7, nvml.FabricInProgress }), split...),
		checktest.OnGPUs("two partitions, a pair of one", nil, func(n *nvml.Snapshot) {
			halves(func(f *nvml.Fabric) { f.Clique = 7 })(n)
			peers(n, 5, why, 6)
		}, two, say(5, checks.Fail, why, "NVLink traffic with gpu6"), say(6, checks.Fail, why, "NVLink traffic with gpu5")),
		checktest.OnGPUs("a pair, one way", nil, func(n *nvml.Snapshot) { peers(n, 3, "write: unknown", 5) },
			say(3, checks.Fail, "write: unknown", "NVLink traffic with gpu5"), say(5, checks.Fail, "write: unknown", "NVLink traffic with gpu3")),
		checktest.OnGPUs("no pair at all", nil, all, none...),
		checktest.OnGPUs("peer-to-peer access disabled", nil, func(n *nvml.Snapshot) { peers(n, 3, off, 5); peers(n, 5, off, 3) },
			say(3, checks.Warn, off, "NVLink traffic with gpu5"), say(5, checks.Warn, off, "NVLink traffic with gpu3")),
		checktest.OnGPUs("confidential computing blocks peer-to-peer access", nil, func(n *nvml.Snapshot) { all(n); n.CC = nvml.Known(true) }),
		checktest.OnGPUs("no switch", nil, func(n *nvml.Snapshot) { all(n); allGPUs(direct)(n) }),
	}
}

func nvlinkBroken(name string) (list []checktest.Scenario) {
	odd := func(title, code string, change func(*nvml.GPU)) checktest.Scenario {
		s := checktest.OnGPUs(title, nil, checktest.Gpu3(change), checktest.GPUFinding(name, 3, checks.Finding{Code: code, Severity: checks.Unknown}, "cannot be read: "+checktest.OddText))
		s.Broken = true
		return s
	}
	const value = "gpu.error.value"
	list = append(list,
		odd("NVLinks that cannot be read", "gpu.error", func(g *nvml.GPU) { g.NVLinks, g.NVLink = nvml.Failed[[]bool](checktest.ErrOdd), nvml.NVLink{} }),
		odd("counters that cannot be read", value, func(g *nvml.GPU) { g.NVLink.Counts = nvml.Failed[nvml.LinkCounts](checktest.ErrOdd) }),
		odd("speeds that cannot be read", value, func(g *nvml.GPU) { g.NVLink.Speed = nvml.Failed[[]int](checktest.ErrOdd) }),
		odd("peers that cannot be read", value, func(g *nvml.GPU) { g.NVLink.PeerP2P = nvml.Failed[nvml.PeerP2P](checktest.ErrOdd) }),
		checktest.OnGPUs("addresses of far ends that cannot be read, only for messages", nil, allGPUs(func(g *nvml.GPU) { g.NVLink.FarPCI = nvml.Failed[[]string](checktest.ErrOdd) })),
	)
	past := checktest.OnGPUs("the stored errors are garbage", nil, nil,
		checks.Finding{Code: "gpu.past", Severity: checks.Warn, Message: name + ":  /past/gpu-nvlink-errors.json is damaged"}).
		Holding("past/gpu-nvlink-errors.json", "x")
	past.Broken = true
	list = append(list, past)
	return list
}

// AzureHPC's check ignores its arguments.
func TestNVLinkWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		words []string
		ok    bool
		links int
	}{
		{azureNVLinkName, checktest.Of("12"), true, 0}, {azureNVLinkName, checktest.Of("-n", "12"), true, 12}, {gpuNVLinkName, checktest.Of("12"), false, 0}, {gpuNVLinkName, checktest.Of("-n", "12"), true, 12},
	} {
		check := &gpuNVLink{name: c.name}
		if err := checks.Bind(check, c.words); (err == nil) != c.ok || check.Links != c.links {
			t.Errorf("%s %v: %+v, %v", c.name, c.words, check, err)
		}
	}
}
