package gpu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// What check_gpu_nvlink makes of links that are up: how fast they are, where they
// lead to, and whether the GPUs can get at each other by them.

// speedSlack is what a link may lack of its platform's speed, in percent: some
// drivers tell it before, some after what error correction takes.
const speedSlack = 10

func (r *linkRun) judgeSpeed(g *nvml.GPU, up []bool) {
	speeds, known := Value(r.GPUs, g.NVLink.Speed)
	if !known {
		return
	}
	p := r.platform(g)
	least, severity, than := r.Speed, checks.Fail, ""
	if least <= 0 {
		least, severity, than = p.NVLinkBandwidth*(100-speedSlack)/100, checks.Warn, ", less than "+p.Name
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
		r.Report(g, checks.Finding{Code: "gpu.nvlink.speed", Severity: severity, Remedy: checks.ResetGPU, Want: fmt.Sprintf("at least %d MB/s", least), Got: fmt.Sprintf("%d MB/s", lowest)},
			"%s slow%s", linkList(slow), than)
	}
}

// usualSpeed is that of most links of a model on this node.
func (r *linkRun) usualSpeed(model string) (usual int) {
	times := map[int]int{}
	for i := range r.NVML.GPUs {
		if g := &r.NVML.GPUs[i]; g.Name.Value == model && !withMIG(g) {
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

func (r *linkRun) judgeEnds(g *nvml.GPU, up []bool) {
	idle, _ := Value(r.GPUs, g.NVLink.Idle)
	ends, _ := Value(r.GPUs, g.NVLink.Far)
	Value(r.GPUs, g.NVLink.FarPCI)
	Value(r.GPUs, g.NVLink.PeerP2P)
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
		r.Report(g, checks.Finding{Code: "gpu.nvlink.traffic", Severity: checks.Warn, Remedy: checks.CheckFabric}, "%s up, but closed to traffic", linkList(shut))
	}
	if len(lost) > 0 {
		r.Report(g, checks.Finding{Code: "gpu.nvlink.far", Severity: checks.Warn, Remedy: checks.CheckFabric, Want: usual, Got: "unknown"}, "other end, where %s up", linkList(lost))
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
			case known && there != nvml.P2POK:
				bad[a][b] = there
			case back != "" && back != nvml.P2POK:
				bad[a][b] = back
			case known && back != "":
				good++
			}
		}
	}
	for i := range r.NVML.GPUs {
		g := &r.NVML.GPUs[i]
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
		f := checks.Finding{Code: "gpu.nvlink.p2p", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: nvml.P2POK, Got: why}
		if good == 0 || strings.Contains(why, "disabled") {
			f.Severity = checks.Warn
		}
		slices.Sort(with)
		who := strings.Join(with, ", ")
		if len(with) > 2 {
			who = fmt.Sprintf("%d of %d GPUs", len(with), len(names)-1)
		}
		r.Report(g, f, "NVLink traffic with %s", who)
	}
}

// joined are the GPUs by name that have links up, all to NVSwitches. Confidential
// computing closes peer-to-peer traffic.
func (r *linkRun) joined() map[string]*nvml.GPU {
	names := map[string]*nvml.GPU{}
	if r.NVML.CC.Value {
		return names
	}
	for i := range r.NVML.GPUs {
		g := &r.NVML.GPUs[i]
		if g.Err == nil && !withMIG(g) && linksUp(g.NVLinks.Value) > 0 && r.far[g.Name.Value] == "switch" {
			names[fmt.Sprintf("gpu%d", g.Index)] = g
		}
	}
	return names
}
