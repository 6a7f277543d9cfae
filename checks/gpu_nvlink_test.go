package checks

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

const nvlinkBoot = "11111111-2222-3333-4444-555555555555"

// inBoot is a node whose boot is known.
func (s scenario) inBoot() scenario {
	return s.holding("proc/sys/kernel/random/boot_id", nvlinkBoot+"\n")
}

func TestGPUNVLink(t *testing.T)    { testCheck(t, "check_gpu_nvlink") }
func TestNVLinkStatus(t *testing.T) { testCheck(t, "check_nvlink_status") }

var (
	_ = table("check_gpu_nvlink", nvlinkScenarios)
	_ = table("check_nvlink_status", nvlinkScenarios)
)

func nvlinkScenarios(name string) (list []scenario) {
	list = append(list, gpuCommon(name)...)
	list = append(list, nvlinkDown(name)...)
	list = append(list, nvlinkSpeed(name)...)
	list = append(list, nvlinkPeers(name)...)
	list = append(list, nvlinkErrorScenarios(name)...)
	list = append(list, nvlinkBroken(name)...)
	return list
}

// nvlinkSays makes the findings of a check about gpu3.
func nvlinkSays(check string) func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
	return func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return gpuFinding(check, 3, Finding{Code: "gpu.nvlink." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
}

// lowered is a GPU of which some links are down.
func lowered(links ...int) func(*probe.GPU) {
	return func(g *probe.GPU) {
		up, speed := repeat(18, true), repeat(18, 26562)
		far, ends := repeat(18, "switch"), append([]string(nil), g.NVLink.FarPCI.Value...)
		for _, link := range links {
			up[link], speed[link], far[link], ends[link] = false, 0, "", ""
		}
		g.NVLinks, g.NVLink.Speed, g.NVLink.Far, g.NVLink.FarPCI = probe.Known(up), probe.Known(speed), probe.Known(far), probe.Known(ends)
	}
}

func allGPUs(change func(*probe.GPU)) func(*probe.NVML) {
	return func(n *probe.NVML) {
		for i := range n.GPUs {
			change(&n.GPUs[i])
		}
	}
}

var everyLink = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}

// hadLinks is what is kept of gpu3, all of whose links were up.
func hadLinks(gpus ...int) string {
	past := map[string]linkPlaces{}
	for _, i := range gpus {
		l := linked(i, 18, 0, "switch")
		past[fakenvml.UUID(i)] = linkPlaces{Up: repeat(18, true), Far: l.FarPCI.Value}
	}
	text, _ := json.Marshal(past)
	return string(text)
}

func hgxLinks() *Platform {
	p := hgx()
	p.NVLinks, p.NVLinkBandwidth = 18, 26562
	return p
}

// direct is a GPU whose links lead to other GPUs.
func direct(g *probe.GPU) { g.NVLink.Far = probe.Known(repeat(18, "gpu")) }

func nvlinkDown(name string) (list []scenario) {
	const file = "past/gpu-nvlinks.json"
	says := nvlinkSays(name)
	down := func(severity Severity, got, text string) Finding {
		return says(severity, "down", ResetGPU, "18 up", got, text)
	}
	bridged := func(n *probe.NVML) {
		allGPUs(direct)(n)
		lowered(everyLink...)(&n.GPUs[3])
	}
	unlinked := func(g *probe.GPU) { // a link that is down has no counters
		lowered(everyLink...)(g)
		g.NVLink.Counts = probe.Reading[probe.LinkCounts]{}
	}
	nothingToJudge := Finding{Code: "gpu.unsupported", Severity: Skip, Message: name + ":  not supported by these GPUs or their driver"}
	var all []Finding
	for i := range 8 {
		all = append(all, gpuFinding(name, i, Finding{Code: "gpu.nvlink.down", Severity: Fail, Remedy: ResetGPU, Want: "18 up", Got: "0"}, "every NVLink is down"))
	}
	first := append([]Finding(nil), all...)
	for i := range first {
		first[i].Severity = Warn
	}
	v100 := onV100s("V100, one link down in a mesh", nil, func(n *probe.NVML) {
		n.GPUs[3].NVLinks = probe.Known([]bool{true, true, false, true, true, true})
	}, says(Warn, "down", ResetGPU, "6 up", "5", "link 2 is down"))
	nvl := &Platform{Name: "H100 NVL", NVLinks: 12}
	half := hgxLinks()
	half.NVLinkGPUs, half.NVSwitchGPUs = 16, 8
	quad := hgxLinks()
	quad.NVLinkGPUs = 16
	quarter := func(n *probe.NVML) { // links to GPUs that are not here, not as many of each
		allGPUs(direct)(n)
		for i := range n.GPUs {
			lowered(everyLink[11+i%2:]...)(&n.GPUs[i])
			n.GPUs[i].NVLink.Far = probe.Known(repeat(18, "gpu"))
		}
	}
	unbridged := func(n *probe.NVML) {
		quarter(n)
		for i := range n.GPUs {
			if i >= 4 {
				unlinked(&n.GPUs[i])
			}
		}
	}
	one := onGPUs("one rented GPU of a board, without links", nil, func(n *probe.NVML) {
		n.GPUs = n.GPUs[3:4]
		unlinked(&n.GPUs[0])
	}, nothingToJudge).on(hgxLinks())
	two := onGPUs("a pair, one link less than the platform has and than they had", nil, func(n *probe.NVML) {
		n.GPUs = n.GPUs[2:4]
		for i := range n.GPUs {
			lowered(5)(&n.GPUs[i])
			direct(&n.GPUs[i])
		}
	}, gpuFinding(name, 2, Finding{Code: "gpu.nvlink.down", Severity: Fail, Remedy: ResetGPU, Want: "18 up", Got: "17"}, "link 5 is down, which led to 0000:06:00.0"),
		down(Fail, "17", "link 5 is down, which led to 0000:06:00.0")).on(hgxLinks()).holding(file, hadLinks(2, 3))
	list = append(list,
		onGPUs("healthy", nil, nil), onV100s("an old GPU", nil, nil), onGPUs("as its platform", nil, nil).on(hgxLinks()),
		onGPUs("the past is garbage", nil, nil).holding(file, "x"),
		onGPUs("as wanted", of("-n", "18"), nil).orTable(map[string]any{"links": int64(18)}),
		onGPUs("down by design on all", nil, allGPUs(lowered(12, 13, 14, 15, 16, 17))),
		onGPUs("fewer than the platform, as wanted", of("-n", "12"), allGPUs(lowered(12, 13, 14, 15, 16, 17))).on(hgxLinks()),
		onGPUs("one link down", nil, gpu3(lowered(7)), down(Fail, "17", "link 7 is down")),
		onGPUs("one link down, its end is known", nil, gpu3(lowered(7)), down(Fail, "17", "link 7 is down, which led to 0000:08:00.0")).holding(file, hadLinks(3)),
		onGPUs("links to two switches down", nil, gpu3(lowered(6, 7)), down(Fail, "16", "links 6, 7 are down")).holding(file, hadLinks(3)),
		onGPUs("fewer than wanted", of("-n", "18"), gpu3(lowered(4, 7)), down(Fail, "16", "links 4, 7 are down")),
		onGPUs("every link down", nil, gpu3(lowered(everyLink...)), down(Fail, "0", "every NVLink is down")).on(hgxLinks()),
		onGPUs("NVML knows of no link", nil, gpu3(func(g *probe.GPU) { g.NVLinks, g.NVLink = probe.Reading[[]bool]{}, probe.NVLink{} }),
			down(Fail, "0", "every NVLink is down")),
		onGPUs("NVML knows of no link any more", nil, allGPUs(func(g *probe.GPU) { g.NVLinks, g.NVLink = probe.Reading[[]bool]{}, probe.NVLink{} }),
			down(Fail, "0", "every NVLink is down")).on(hgxLinks()).holding(file, hadLinks(3)),
		onGPUs("every link of every GPU down, as never before", nil, allGPUs(lowered(everyLink...)), all...).on(hgxLinks()).holding(file, hadLinks(0, 1, 2, 3, 4, 5, 6, 7)),
		onGPUs("every link of every GPU down, on the first run", nil, allGPUs(lowered(everyLink...)), first...).on(hgxLinks()),
		onGPUs("every link of every GPU down, and nothing says that it should not be", nil, allGPUs(unlinked), nothingToJudge),
		onGPUs("a GPU of a board without links", nil, bridged, down(Warn, "0", "every NVLink is down")).on(hgxLinks()),
		onGPUs("cards with bridges, one has lost its links", nil, bridged, down(Fail, "0", "every NVLink is down")).on(hgxLinks()).holding(file, hadLinks(3)),
		onGPUs("MIG on one GPU", nil, gpu3(func(g *probe.GPU) { g.Modes.MIG = probe.Known(true); lowered(everyLink...)(g) })),
		onGPUs("MIG on all", nil, allGPUs(func(g *probe.GPU) { g.Modes.MIG = probe.Known(true); lowered(everyLink...)(g) }),
			Finding{Code: "gpu.nvlink.mig", Severity: Skip, Message: name + ":  MIG is on, the NVLinks are not judged"}),
		v100, one, two, fewerOfAll(name), gpuDumb(name),
	)
	list = append(list,
		onGPUs("no card has a bridge", nil, allGPUs(unlinked), nothingToJudge).on(nvl),
		onGPUs("as many cards with bridges as without", nil, unbridged).on(&Platform{Name: "A100 PCIe"}),
		onGPUs("a card without the bridge of the others", nil, bridged).on(&Platform{Name: "H200 NVL", NVLinks: 18}),
		onGPUs("cards with bridges of a platform, one has lost its links", nil, bridged, down(Fail, "0", "every NVLink is down")).on(&Platform{Name: "H200 NVL", NVLinks: 18}).holding(file, hadLinks(3)),
		onGPUs("a part of a mesh", nil, quarter).on(quad),
		onGPUs("a part of a mesh without a link between its GPUs", nil, allGPUs(unlinked), nothingToJudge).on(quad),
		onGPUs("a part of a board with NVSwitches, no link up", nil, allGPUs(unlinked), first...).on(half),
		onGPUs("a part of a mesh, links that were up", nil, quarter, gpuFinding(name, 3, Finding{Code: "gpu.nvlink.down", Severity: Warn, Remedy: ResetGPU, Want: "18 up", Got: "12"},
			"links 12, 13, 14, 15, 16, 17 are down")).on(quad).holding(file, hadLinks(3)),
		onGPUs("a whole mesh, one link down", nil, func(n *probe.NVML) {
			lowered(5)(&n.GPUs[3])
			allGPUs(direct)(n)
		}, down(Fail, "17", "link 5 is down")).on(hgxLinks()),
	)
	return list
}

// fewerOfAll is a node whose GPUs all have fewer links than the platform: nobody
// knows which.
func fewerOfAll(name string) scenario {
	var want []Finding
	for i := range 8 {
		want = append(want, gpuFinding(name, i, Finding{Code: "gpu.nvlink.down", Severity: Warn, Remedy: ResetGPU, Want: "18 up", Got: "12"}, "6 links of them down"))
	}
	return onGPUs("fewer than the platform on all", nil, allGPUs(lowered(12, 13, 14, 15, 16, 17)), want...).on(hgxLinks())
}

func nvlinkSpeed(name string) []scenario {
	says := nvlinkSays(name)
	slow := func(mbps int, links ...int) func(*probe.GPU) {
		return func(g *probe.GPU) {
			speeds := repeat(18, 26562)
			for _, link := range links {
				speeds[link] = mbps
			}
			g.NVLink.Speed = probe.Known(speeds)
		}
	}
	faster := hgxLinks()
	faster.NVLinkBandwidth = 53125
	var less []Finding
	for i := range 8 {
		less = append(less, gpuFinding(name, i, Finding{Code: "gpu.nvlink.speed", Severity: Warn, Remedy: ResetGPU, Want: "at least 47812 MB/s", Got: "26562 MB/s"},
			linkList(everyLink)+" slow, less than HGX H100"))
	}
	rounded := hgxLinks()
	rounded.NVLinkBandwidth = 28125
	return []scenario{
		onGPUs("as fast as wanted", of("-b", "26562"), nil).orTable(map[string]any{"bandwidth": int64(26562)}),
		onGPUs("a little less than the platform", nil, nil).on(rounded),
		onGPUs("a slow link", nil, gpu3(slow(13281, 4, 7)), says(Warn, "speed", ResetGPU, "at least 26562 MB/s", "13281 MB/s", "links 4, 7 are slow, less than the others")),
		onGPUs("a link without speed", nil, gpu3(slow(0, 4)), says(Warn, "speed", ResetGPU, "at least 26562 MB/s", "0 MB/s", "link 4 is slow, less than the others")),
		onGPUs("a link without speed, and a speed that is wanted", of("-b", "26562"), gpu3(slow(0, 4)), says(Fail, "speed", ResetGPU, "at least 26562 MB/s", "0 MB/s", "link 4 is slow")),
		onGPUs("no link tells a speed", of("-b", "26562"), allGPUs(func(g *probe.GPU) { g.NVLink.Speed = probe.Known(repeat(18, 0)) })),
		onGPUs("slower than wanted", of("-b", "26562"), gpu3(slow(13281, 7)), says(Fail, "speed", ResetGPU, "at least 26562 MB/s", "13281 MB/s", "link 7 is slow")),
		onGPUs("slower than the platform", nil, nil, less...).on(faster),
		onGPUs("closed to traffic", nil, gpu3(func(g *probe.GPU) {
			idle := repeat(18, false)
			idle[7] = true
			g.NVLink.Idle = probe.Known(idle)
		}), says(Warn, "traffic", CheckFabric, "", "", "link 7 is up, but closed to traffic")),
		onGPUs("a link to nothing", nil, gpu3(func(g *probe.GPU) {
			far := repeat(18, "switch")
			far[7] = "unknown"
			g.NVLink.Far = probe.Known(far)
		}), says(Warn, "far", CheckFabric, "switch", "unknown", "other end, where link 7 is up")),
		onGPUs("no far end is known", nil, allGPUs(func(g *probe.GPU) { g.NVLink.Far = probe.Known(repeat(18, "unknown")) })),
	}
}

func nvlinkPeers(name string) []scenario {
	const why = "NVLink: not supported"
	say := func(i int, severity Severity, got, text string) Finding {
		return gpuFinding(name, i, Finding{Code: "gpu.nvlink.p2p", Severity: severity, Remedy: CheckFabric, Want: "ok", Got: got}, text)
	}
	peers := func(n *probe.NVML, gpu int, why string, of ...int) {
		p := maps.Clone(n.GPUs[gpu].NVLink.PeerP2P.Value)
		for _, i := range of {
			p[fmt.Sprintf("gpu%d", i)] = why
		}
		n.GPUs[gpu].NVLink.PeerP2P = probe.Known(p)
	}
	alone := func(n *probe.NVML) {
		peers(n, 3, why, 0, 1, 2, 4, 5, 6, 7)
		for i := range 8 {
			if i != 3 {
				peers(n, i, why, 3)
			}
		}
	}
	all := func(n *probe.NVML) {
		for i := range 8 {
			for peer := range 8 {
				if peer != i {
					peers(n, i, why, peer)
				}
			}
		}
	}
	var none []Finding
	for i := range 8 {
		none = append(none, say(i, Warn, why, "NVLink traffic with 7 of 7 GPUs"))
	}
	off := "read: disabled by a setting of the driver"
	return []scenario{
		onGPUs("one GPU is cut off", nil, alone, say(3, Fail, why, "NVLink traffic with 7 of 7 GPUs")),
		onGPUs("a pair, one way", nil, func(n *probe.NVML) { peers(n, 3, "write: unknown", 5) },
			say(3, Fail, "write: unknown", "NVLink traffic with gpu5"), say(5, Fail, "write: unknown", "NVLink traffic with gpu3")),
		onGPUs("no pair at all", nil, all, none...),
		onGPUs("switched off", nil, func(n *probe.NVML) { peers(n, 3, off, 5); peers(n, 5, off, 3) },
			say(3, Warn, off, "NVLink traffic with gpu5"), say(5, Warn, off, "NVLink traffic with gpu3")),
		onGPUs("confidential computing closes it", nil, func(n *probe.NVML) { all(n); n.CC = probe.Known(true) }),
		onGPUs("no switch", nil, func(n *probe.NVML) { all(n); allGPUs(direct)(n) }),
	}
}

func nvlinkBroken(name string) (list []scenario) {
	odd := func(title string, change func(*probe.GPU)) scenario {
		s := onGPUs(title, nil, gpu3(change), gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: "+oddText))
		s.broken = true
		return s
	}
	list = append(list,
		odd("links that cannot be read", func(g *probe.GPU) { g.NVLinks, g.NVLink = probe.Failed[[]bool](errOdd), probe.NVLink{} }),
		odd("counters that cannot be read", func(g *probe.GPU) { g.NVLink.Counts = probe.Failed[probe.LinkCounts](errOdd) }),
		odd("speeds that cannot be read", func(g *probe.GPU) { g.NVLink.Speed = probe.Failed[[]int](errOdd) }),
		odd("peers that cannot be read", func(g *probe.GPU) { g.NVLink.PeerP2P = probe.Failed[probe.PeerP2P](errOdd) }),
	)
	past := onGPUs("the past of the errors is garbage", nil, nil,
		Finding{Code: "gpu.past", Severity: Warn, Message: name + ":  read /past/gpu-nvlink-errors.json: invalid character 'x' looking for beginning of value"}).
		holding("past/gpu-nvlink-errors.json", "x")
	past.broken = true
	list = append(list, past)
	return list
}

// AzureHPC's check looks at no word.
func TestNVLinkWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		words []string
		ok    bool
		links int
	}{
		{azureNVLinkName, of("12"), true, 0}, {azureNVLinkName, of("-n", "12"), true, 12}, {gpuNVLinkName, of("12"), false, 0}, {gpuNVLinkName, of("-n", "12"), true, 12},
	} {
		check := &gpuNVLink{name: c.name}
		if err := Bind(check, c.words); (err == nil) != c.ok || check.Links != c.links {
			t.Errorf("%s %v: %+v, %v", c.name, c.words, check, err)
		}
	}
}
