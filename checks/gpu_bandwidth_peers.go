package checks

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// gpuPair are two GPUs that reach each other, and how fast they copy: each way.
type gpuPair struct {
	a, b *loadedGPU
	kind string // what joins them: "nvlink", "nvlink x2", "pcie near"
	rate float64
}

// peerCopy is the test of copies between GPUs, and its algorithm: the source's copy
// engine writes.
const (
	peerTest  = "device_to_device"
	peerRanks = 2
)

// ofPeers measures every pair of GPUs each way.
func (b *bandwidth) ofPeers(gpus []*loadedGPU) {
	size, memory, ok := b.peerBuffers(gpus)
	if !ok {
		return
	}
	var pairs []gpuPair
	var broken []brokenPair
	for i, x := range gpus {
		for j, y := range gpus[i+1:] {
			if b.r.ctx.Err() != nil {
				return
			}
			p := gpuPair{a: x, b: y, kind: b.joined(x, y)}
			b.r.at("gpu%d and gpu%d: copies between them", x.gpu.Index, y.gpu.Index)
			reached, err := b.each(&p, size, memory[i], memory[i+1+j])
			if err != nil {
				broken = append(broken, brokenPair{x.gpu, y.gpu, err})
				continue
			}
			if reached {
				pairs = append(pairs, p)
			}
		}
	}
	b.failedPairs(broken)
	b.judgePairs(pairs, size, len(gpus))
}

// brokenPair are two GPUs between which copies went wrong.
type brokenPair struct {
	a, b *probe.GPU
	err  error
}

// failedPairs reports pairs that went wrong: once for the GPU that they have in common,
// where there is one.
func (b *bandwidth) failedPairs(broken []brokenPair) {
	for len(broken) > 0 {
		of := map[*probe.GPU]int{}
		worst := broken[0].a
		for _, p := range broken {
			of[p.a]++
			of[p.b]++
		}
		for _, p := range broken {
			for _, g := range []*probe.GPU{p.a, p.b} {
				if of[g] > of[worst] {
					worst = g
				}
			}
		}
		first := slices.IndexFunc(broken, func(p brokenPair) bool { return p.a == worst || p.b == worst })
		other := broken[first].b
		if other == worst {
			other = broken[first].a
		}
		what := fmt.Sprintf("copies from and to gpu%d %s", other.Index, other.PCI)
		if of[worst] > 1 {
			what = fmt.Sprintf("copies from and to %d other GPUs, gpu%d the first", of[worst], other.Index)
		}
		b.r.failed(worst, what, broken[first].err)
		broken = slices.DeleteFunc(broken, func(p brokenPair) bool { return p.a == worst || p.b == worst })
	}
}

// peerBuffers are two buffers on each GPU: to read from, and to write to.
func (b *bandwidth) peerBuffers(gpus []*loadedGPU) (size uint64, memory [][]probe.CUDAMemory, ok bool) {
	size = uint64(b.size)
	for _, l := range gpus {
		fits, err := l.fitting(b.size, 2)
		if err != nil {
			b.tooSmall(l, err)
			return 0, nil, false
		}
		size = min(size, fits)
	}
	for _, l := range gpus {
		m, err := l.allocs(size, 2)
		if err != nil {
			b.r.failed(l.gpu, "copies between GPUs", err)
			return 0, nil, false
		}
		memory = append(memory, m)
	}
	return size, memory, true
}

// each measures a pair both ways; the slower one counts.
func (b *bandwidth) each(p *gpuPair, size uint64, ofA, ofB []probe.CUDAMemory) (reached bool, err error) {
	there, err := p.a.c.CanReach(p.b.c)
	if err != nil || !there {
		return false, err
	}
	back, err := p.b.c.CanReach(p.a.c)
	if err != nil || !back {
		return false, err
	}
	if err := cmp.Or(p.a.c.EnablePeer(p.b.c), p.b.c.EnablePeer(p.a.c)); err != nil {
		return false, err
	}
	to, err := p.a.rate(b.r.ctx, size, peerSample, func() error { return p.a.c.CopyToPeer(p.b.c, ofB[1], ofA[0], size, p.a.stream) })
	if err != nil {
		return false, err
	}
	from, err := p.b.rate(b.r.ctx, size, peerSample, func() error { return p.b.c.CopyToPeer(p.a.c, ofA[1], ofB[0], size, p.b.stream) })
	p.rate = min(to, from)
	return true, err
}

// joined says what is between two GPUs, as far as NVML tells: pairs are compared with
// those that have the same. In a mesh the number of links belongs to it.
func (b *bandwidth) joined(x, y *loadedGPU) string {
	if x.gpu.NVLink.PeerP2P.Value[gpuName(y.gpu)] == probe.P2POK {
		links := 0
		for _, far := range x.gpu.NVLink.FarPCI.Value {
			if far == y.gpu.PCI {
				links++
			}
		}
		if links > 0 {
			return fmt.Sprintf("nvlink x%d", links)
		}
		return "nvlink"
	}
	if x.c.GPU.Near() == y.c.GPU.Near() {
		return "pcie near"
	}
	return "pcie far"
}

func gpuName(g *probe.GPU) string { return fmt.Sprintf("gpu%d", g.Index) }

// judgePairs makes measures of the pairs: one for each GPU, the median of its pairs, so
// that a GPU that is slow to all others is one finding. Where a GPU has one pair only
// it is the pair that is measured. What is slow besides is a pair of its own.
func (b *bandwidth) judgePairs(pairs []gpuPair, size uint64, gpus int) {
	if len(pairs) == 0 {
		if b.peer > 0 && gpus > 1 {
			b.r.report(Device{}, Finding{Code: "gpu.bandwidth.reach", Severity: Skip}, "no two GPUs reach each other directly")
		}
		return
	}
	byKind := map[string][]gpuPair{}
	for _, p := range pairs {
		byKind[p.kind] = append(byKind[p.kind], p)
	}
	for _, kind := range slices.Sorted(maps.Keys(byKind)) {
		b.judgeKind(kind, byKind[kind], size)
	}
}

func (b *bandwidth) judgeKind(kind string, pairs []gpuPair, size uint64) {
	of := map[*loadedGPU][]float64{}
	var gpus []*loadedGPU
	var all []float64
	for _, p := range pairs {
		all = append(all, p.rate)
		for _, l := range []*loadedGPU{p.a, p.b} {
			if of[l] == nil {
				gpus = append(gpus, l)
			}
			of[l] = append(of[l], p.rate)
		}
	}
	slices.SortFunc(gpus, func(x, y *loadedGPU) int { return x.gpu.Index - y.gpu.Index })
	m := measure{Test: peerTest, Algorithm: "ce", Size: int64(size), Ranks: peerRanks, Peers: kind, Unit: "GB/s", Least: b.peer}
	limit := max(m.off(median(all), toleranceOf(peerTest).Peers), b.peer)
	slow := map[*loadedGPU]bool{}
	for _, l := range gpus {
		if len(of[l]) < 2 {
			continue
		}
		m.Device, m.Model, m.Value = gpuDevice(l.gpu), l.gpu.Name.Value, median(of[l])
		m.What = "copies from and to each other GPU by " + kind
		slow[l] = m.worse(limit)
		b.r.measured(m)
	}
	for _, p := range pairs {
		if len(of[p.a]) > 1 && len(of[p.b]) > 1 {
			if m.Value = p.rate; !slow[p.a] && !slow[p.b] && len(pairs) >= enoughPeers && m.worse(limit) {
				b.pairFinding(p, &m, limit)
			}
			continue
		}
		m.Device, m.Model, m.Value = gpuDevice(p.a.gpu), p.a.gpu.Name.Value, p.rate
		m.What = fmt.Sprintf("copies from and to gpu%d %s by %s", p.b.gpu.Index, p.b.gpu.PCI, kind)
		m.Peers = kind + " pair"
		b.r.measured(m)
	}
}

// pairFinding is about two GPUs that are slow to each other, and to no other.
func (b *bandwidth) pairFinding(p gpuPair, m *measure, limit float64) {
	b.r.report(gpuDevice(p.a.gpu), Finding{Code: "gpu.bandwidth.pair", Severity: Fail, Remedy: CheckFabric, Want: m.atLeast(limit), Got: rate(p.rate, m.Unit)},
		"copies from and to gpu%d %s by %s, both of which are faster with others", p.b.gpu.Index, p.b.gpu.PCI, p.kind)
}
