package checks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// What check_gpu_nvlink makes of links that are up: how fast they are, where they
// lead to, and whether the GPUs can get at each other by them.

// speedSlack is what a link may lack of its platform's speed, in percent: some
// drivers tell it before, some after what error correction takes.
const speedSlack = 10

func (r *linkRun) judgeSpeed(g *probe.GPU, up []bool) {
	speeds, known := value(r.gpus, g.NVLink.Speed)
	if !known {
		return
	}
	p := r.platform(g)
	least, severity, than := r.Speed, Fail, ""
	if least <= 0 {
		least, severity, than = p.NVLinkBandwidth*(100-speedSlack)/100, Warn, ", less than "+p.Name
	}
	usual := r.usualSpeed(g.Name.Value)
	if usual == 0 { // no link tells its speed
		return
	}
	if r.Speed <= 0 && usual > least {
		least, than = usual, ", less than the others"
	}
	var slow []int
	lowest := least
	for link, speed := range speeds {
		if at(up, link) && speed < least {
			slow, lowest = append(slow, link), min(lowest, speed)
		}
	}
	if len(slow) > 0 {
		r.report(g, Finding{Code: "gpu.nvlink.speed", Severity: severity, Remedy: ResetGPU, Want: fmt.Sprintf("at least %d MB/s", least), Got: fmt.Sprintf("%d MB/s", lowest)},
			"%s slow%s", linkList(slow), than)
	}
}

// usualSpeed is that of most links of a model on this node.
func (r *linkRun) usualSpeed(model string) (usual int) {
	times := map[int]int{}
	for i := range r.nvml.GPUs {
		if g := &r.nvml.GPUs[i]; g.Name.Value == model && !withMIG(g) {
			for link, speed := range g.NVLink.Speed.Value {
				if at(g.NVLinks.Value, link) && speed > 0 {
					times[speed]++
				}
			}
		}
	}
	for speed, n := range times {
		if n > times[usual] || n == times[usual] && speed > usual {
			usual = speed
		}
	}
	return usual
}

func (r *linkRun) judgeEnds(g *probe.GPU, up []bool) {
	idle, _ := value(r.gpus, g.NVLink.Idle)
	ends, _ := value(r.gpus, g.NVLink.Far)
	value(r.gpus, g.NVLink.FarPCI)
	value(r.gpus, g.NVLink.PeerP2P)
	usual := r.far[g.Name.Value]
	var shut, lost []int
	for link := range up {
		if at(idle, link) {
			shut = append(shut, link)
		}
		if up[link] && usual != "" && at(ends, link) == "unknown" {
			lost = append(lost, link)
		}
	}
	if len(shut) > 0 {
		r.report(g, Finding{Code: "gpu.nvlink.traffic", Severity: Warn, Remedy: CheckFabric}, "%s up, but closed to traffic", linkList(shut))
	}
	if len(lost) > 0 {
		r.report(g, Finding{Code: "gpu.nvlink.far", Severity: Warn, Remedy: CheckFabric, Want: usual, Got: "unknown"}, "other end, where %s up", linkList(lost))
	}
}

// peers looks at all pairs of GPUs that NVSwitches join. The GPU that has more bad
// pairs than the other one is named for a pair, both if they have as many.
func (r *linkRun) peers() {
	names, bad, good := r.joined(), map[string]map[string]string{}, 0
	for a := range names {
		bad[a] = map[string]string{}
	}
	for a, g := range names {
		for b, o := range names {
			there, known := g.NVLink.PeerP2P.Value[b]
			back := o.NVLink.PeerP2P.Value[a]
			switch {
			case a == b:
			case known && there != probe.P2POK:
				bad[a][b] = there
			case back != "" && back != probe.P2POK:
				bad[a][b] = back
			case known && back != "":
				good++
			}
		}
	}
	for i := range r.nvml.GPUs {
		g := &r.nvml.GPUs[i]
		a := fmt.Sprintf("gpu%d", g.Index)
		var with []string
		why := ""
		for b, text := range bad[a] {
			if len(bad[b]) <= len(bad[a]) {
				with = append(with, b)
				if why == "" || text < why {
					why = text
				}
			}
		}
		if len(with) == 0 {
			continue
		}
		f := Finding{Code: "gpu.nvlink.p2p", Severity: Fail, Remedy: CheckFabric, Want: probe.P2POK, Got: why}
		if good == 0 || strings.Contains(why, "disabled") {
			f.Severity = Warn
		}
		slices.Sort(with)
		who := strings.Join(with, ", ")
		if len(with) > 2 {
			who = fmt.Sprintf("%d of %d GPUs", len(with), len(names)-1)
		}
		r.report(g, f, "NVLink traffic with %s", who)
	}
}

// joined are the GPUs by name that have links up, all to NVSwitches. Confidential
// computing closes peer-to-peer traffic.
func (r *linkRun) joined() map[string]*probe.GPU {
	names := map[string]*probe.GPU{}
	if r.nvml.CC.Value {
		return names
	}
	for i := range r.nvml.GPUs {
		g := &r.nvml.GPUs[i]
		if g.Err == nil && !withMIG(g) && linksUp(g.NVLinks.Value) > 0 && r.far[g.Name.Value] == "switch" {
			names[fmt.Sprintf("gpu%d", g.Index)] = g
		}
	}
	return names
}
