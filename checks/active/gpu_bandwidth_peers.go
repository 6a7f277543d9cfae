package active

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuPair are two GPUs that reach each other, and how fast they copy: each way.
type gpuPair struct {
	a, b *loadedGPU
	kind string // what joins them: "nvlink", "nvlink x2", "pcie near"
	size uint64 // of what was copied, bytes
	rate float64
}

// The test of copies between GPUs, as measures have it.
const (
	peerTest  = "device_to_device"
	peerRanks = 2
)

// peerEnd is a GPU with its buffers for copies from and to others.
type peerEnd struct {
	*loadedGPU

	from, to cuda.Memory
	noise    pattern // what is in from, and in no other GPU's
	p        *patterns
}

// peerWays is by how many times smaller copies are over PCIe than over NVLink, so that
// all pairs of 16 GPUs are done in time.
const peerWays = 4

// ofPeers measures every pair of GPUs each way. What was found until the time is up, or
// a job comes, is told.
func (b *bandwidth) ofPeers(gpus []*loadedGPU) {
	size, ends, ok := b.peerEnds(gpus)
	if !ok {
		return
	}
	var pairs []gpuPair
	var broken []brokenPair
	var lost []*nvml.GPU // no more work can be done on them
	for i, x := range ends {
		for _, y := range ends[i+1:] {
			if b.r.ctx.Err() != nil {
				break
			}
			if slices.Contains(lost, x.gpu) || slices.Contains(lost, y.gpu) {
				continue
			}
			b.r.at("gpu%d and gpu%d: copies between them", x.gpu.Index, y.gpu.Index)
			p, reached, wrong := b.each(x, y, size)
			if wrong != nil {
				lost = append(lost, b.lost(wrong, x, y)...)
				broken = append(broken, *wrong)
			} else if reached {
				pairs = append(pairs, p)
			}
		}
	}
	b.failedPairs(broken)
	b.judgePairs(pairs, len(gpus))
}

// lost returns the GPUs of a broken pair on which no more work can be done: a copy never
// ends, or has left an error that every later call of the same context meets. Where both
// GPUs have an error the one that cannot be of the other counts.
func (b *bandwidth) lost(wrong *brokenPair, pair ...*peerEnd) (list []*nvml.GPU) {
	if errors.Is(wrong.err, errStuck) {
		abandon(b.r) // the copy uses both contexts
		return []*nvml.GPU{wrong.at}
	}
	if wrong.err == nil {
		return nil
	}
	for _, e := range pair {
		_, err := e.c.Done(e.stream)
		if err == nil {
			continue
		}
		list = append(list, e.gpu)
		if e.gpu == wrong.other && ofPeer(wrong.err) && !ofPeer(err) {
			wrong.at, wrong.other, wrong.err = e.gpu, wrong.at, err
		}
	}
	return list
}

// brokenPair are two GPUs between which copies went wrong.
type brokenPair struct {
	at, other *nvml.GPU // at is the one whose call failed, or that has sent what was wrong
	err       error
	wrong     wrongWords
}

// has says whether a GPU is one of the pair.
func (p brokenPair) has(g *nvml.GPU) bool { return p.at == g || p.other == g }

// failedPairs reports pairs that went wrong: once for the GPU that they have in common,
// where there is one, else for the one at which it was seen: the memory of a GPU that
// fails is seen to fail at all others.
func (b *bandwidth) failedPairs(broken []brokenPair) {
	for len(broken) > 0 {
		count, weight := map[*nvml.GPU]int{}, map[*nvml.GPU]int{}
		worst := broken[0].at
		for _, p := range broken {
			count[p.at]++
			count[p.other]++
			weight[p.at] += 2
			weight[p.other]++
		}
		for _, p := range broken {
			for _, g := range []*nvml.GPU{p.at, p.other} {
				if count[g] > count[worst] || count[g] == count[worst] && weight[g] > weight[worst] {
					worst = g
				}
			}
		}
		first := broken[slices.IndexFunc(broken, func(p brokenPair) bool { return p.has(worst) })]
		other := first.other
		if other == worst {
			other = first.at
		}
		what := fmt.Sprintf("copies from and to gpu%d %s", other.Index, other.PCI)
		if count[worst] > 1 {
			what = fmt.Sprintf("copies from and to %d other GPUs, gpu%d the first", count[worst], other.Index)
		}
		if first.err != nil {
			b.r.failed(worst, what, first.err)
		} else {
			b.r.report(checks.GPUDevice(worst), checks.Finding{Code: "gpu.bandwidth.bit", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "none", Got: first.wrong.String()}, "wrong words after %s", what)
		}
		broken = slices.DeleteFunc(broken, func(p brokenPair) bool { return p.has(worst) })
	}
}

// peerEnds has each GPU take two buffers, and fill the one that is read with noise of
// its own.
func (b *bandwidth) peerEnds(gpus []*loadedGPU) (size uint64, ends []*peerEnd, ok bool) {
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
		e, err := newPeerEnd(l, size)
		if err != nil {
			b.r.failed(l.gpu, "copies between GPUs", err)
			continue
		}
		ends = append(ends, e)
	}
	return size, ends, true
}

func newPeerEnd(l *loadedGPU, size uint64) (*peerEnd, error) {
	p, err := newPatterns(l)
	if err != nil {
		return nil, err
	}
	m, err := l.allocs(size, 2)
	if err != nil {
		return nil, err
	}
	e := &peerEnd{l, m[0], m[1], pattern{kind: patternRandom, value: 0x5eed + uint32(l.gpu.Index)}, p}
	return e, p.write(e.from, size, 0, e.noise)
}

// each measures a pair both ways, and verifies what was copied; the slower one counts.
func (b *bandwidth) each(x, y *peerEnd, size uint64) (p gpuPair, reached bool, wrong *brokenPair) {
	p = gpuPair{a: x.loadedGPU, b: y.loadedGPU, kind: x.joined(y.loadedGPU), size: size, rate: math.Inf(1)}
	if !strings.HasPrefix(p.kind, "nvlink") && size > peerWays*leastBuffer {
		p.size /= peerWays
	}
	directions := [][2]*peerEnd{{x, y}, {y, x}}
	for _, d := range directions {
		can, err := d[0].c.CanReach(d[1].c)
		if err != nil {
			return p, false, &brokenPair{at: d[0].gpu, other: d[1].gpu, err: err}
		}
		if !can {
			return p, false, nil
		}
	}
	for _, d := range directions {
		if err := d[0].c.EnablePeer(d[1].c); err != nil {
			return p, false, &brokenPair{at: d[0].gpu, other: d[1].gpu, err: err}
		}
		defer func() {
			if wrong == nil || !errors.Is(wrong.err, errStuck) {
				_ = d[0].c.DisablePeer(d[1].c) // where it cannot, there is an error to tell already
			}
		}()
	}
	for _, d := range directions {
		rate, err := d[1].rate(b.r.ctx, p.size, peerSample, func() error { return d[1].c.CopyFromPeer(d[0].c, d[1].to, d[0].from, p.size, d[1].stream) })
		if err != nil {
			return p, false, &brokenPair{at: d[1].gpu, other: d[0].gpu, err: err}
		}
		p.rate = min(p.rate, rate)
		words, err := d[1].arrived(b.r.ctx, p.size, d[0].noise)
		if err != nil {
			return p, false, &brokenPair{at: d[1].gpu, other: d[0].gpu, err: err}
		}
		if words.count > 0 {
			return p, false, &brokenPair{at: d[0].gpu, other: d[1].gpu, wrong: words}
		}
	}
	return p, true, nil
}

// arrived looks at every bit of what another GPU has copied here.
func (e *peerEnd) arrived(ctx context.Context, size uint64, noise pattern) (wrongWords, error) {
	if err := cmp.Or(e.p.clear(), e.p.verify(e.to, size, 0, noise)); err != nil {
		return wrongWords{}, err
	}
	return e.p.wrong(ctx)
}

// judgePairs makes measures of the pairs: one for each GPU, the median of its pairs, so
// that a GPU that is slow to all others is one finding. Where a GPU has one pair only
// it is the pair that is measured. What is slow besides is a pair of its own.
func (b *bandwidth) judgePairs(pairs []gpuPair, gpus int) {
	if len(pairs) == 0 {
		if b.peer > 0 && gpus > 1 {
			b.r.report(checks.Device{}, checks.Finding{Code: "gpu.bandwidth.reach", Severity: checks.Skip}, "no two GPUs reach each other directly")
		}
		return
	}
	byKind := map[string][]gpuPair{}
	for _, p := range pairs { // those of unlike models are no peers
		models := []string{p.a.gpu.Name.Value, p.b.gpu.Name.Value}
		slices.Sort(models)
		key := strings.Join(append(models, p.kind), "|")
		byKind[key] = append(byKind[key], p)
	}
	for _, key := range slices.Sorted(maps.Keys(byKind)) {
		b.judgeKind(byKind[key][0].kind, byKind[key])
	}
}

// peerAlgorithm is that of copies between GPUs that are joined in some way: "ce" for
// those that NVSwitches join, which is what platforms have a floor for. By links of
// their own, and over PCIe, they can do less.
func peerAlgorithm(kind string) string {
	if kind == nvSwitched {
		return "ce"
	}
	return "ce " + kind
}

func (b *bandwidth) judgeKind(kind string, pairs []gpuPair) {
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
	m := measure{Test: peerTest, Algorithm: peerAlgorithm(kind), Size: int64(pairs[0].size), Ranks: peerRanks, Peers: kind, Unit: "GB/s", Least: b.peer}
	limit := max(m.off(median(all), toleranceOf(peerTest).Peers), b.peer)
	slow := map[*loadedGPU]bool{}
	for _, l := range gpus {
		if len(of[l]) < 2 {
			continue
		}
		m.Device, m.Model, m.Value = checks.GPUDevice(l.gpu), l.gpu.Name.Value, median(of[l])
		m.What, m.Unlike = "copies from and to each other GPU by "+kind, unlikePeers(b.r, l, kind)
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
		m.Device, m.Model, m.Value = checks.GPUDevice(p.a.gpu), p.a.gpu.Name.Value, p.rate
		m.What, m.Other = "copies from and to "+anotherGPU+" by "+kind, checks.GPUDevice(p.b.gpu).String()
		m.Peers, m.Unlike = kind+" pair", cmp.Or(unlikePeers(b.r, p.a, kind), unlikePeers(b.r, p.b, kind))
		b.r.measured(m)
	}
}

// pairFinding is about two GPUs that are slow to each other, and to no other. Over PCIe
// that may be how the board is made, and only warns where no number was asked for.
func (b *bandwidth) pairFinding(p gpuPair, m *measure, limit float64) {
	severity, remedy := checks.Fail, checks.CheckFabric
	if !strings.HasPrefix(p.kind, "nvlink") && !(p.rate < b.peer) {
		severity, remedy = checks.Warn, checks.NoRemedy
	}
	b.r.report(checks.GPUDevice(p.a.gpu), checks.Finding{Code: "gpu.bandwidth.pair", Severity: severity, Remedy: remedy, Want: m.atLeast(limit), Got: rate(p.rate, m.Unit)},
		"copies from and to gpu%d %s by %s, both of which are faster with others", p.b.gpu.Index, p.b.gpu.PCI, p.kind)
}
