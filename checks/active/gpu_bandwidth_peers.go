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
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuPair has two GPUs that reach each other, and the slower rate of both directions.
type gpuPair struct {
	a, b *loadedGPU
	kind string // their connection: "nvlink", "nvlink x2", "pcie near"
	size uint64 // of the copy, bytes
	rate float64
}

// Names of the test of copies between GPUs in measures.
const (
	peerTest  = "device_to_device"
	peerRanks = 2
)

// peerEnd is a GPU with its buffers for copies from and to others.
type peerEnd struct {
	*loadedGPU

	from, to cuda.Memory
	noise    pattern // content of from; different on every GPU
	p        *patterns
}

// peerWays divides the size of copies over PCIe, so that all pairs of 16 GPUs are done in time.
const peerWays = 4

// measurePeers measures every pair of GPUs each way. It reports the pairs measured until the time is
// up or a job starts. Neighbors come first: if copies never end, pairs without a common GPU show
// whether the cause is one GPU.
func (b *bandwidth) measurePeers(gpus []*loadedGPU) {
	size, ends, ok := b.openPeerEnds(gpus)
	if !ok {
		return
	}
	var pairs, unreached []gpuPair
	var broken []brokenPair
	var lost []*nvml.GPU // no more work is possible on them
	for apart := 1; apart < len(ends); apart++ {
		for i, y := range ends[apart:] {
			x := ends[i]
			if b.r.ctx.Err() != nil {
				break
			}
			if slices.Contains(lost, x.gpu) || slices.Contains(lost, y.gpu) {
				continue
			}
			b.r.at("gpu%d and gpu%d: copies between them", x.gpu.Index, y.gpu.Index)
			p, reached, wrong := b.each(x, y, size)
			if wrong != nil {
				wrong.kind = p.kind
				wrong.interrupted = wrong.hasError() && b.r.ctx.Err() != nil
				lost = append(lost, b.listLost(wrong, x, y)...)
				broken = append(broken, *wrong)
			} else if reached {
				pairs = append(pairs, p)
			} else {
				unreached = append(unreached, p)
			}
		}
	}
	if len(pairs) > 0 || !b.reportCommonCause(broken) {
		b.reportBrokenPairs(slices.Clone(broken)) // it deletes them
	}
	if b.r.ctx.Err() == nil {
		b.reportUnreached(unreached, pairs, broken)
	}
	if len(broken) == 0 || len(pairs) > 0 {
		b.judgePairs(pairs, len(gpus))
	}
}

// listLost returns the GPUs of a broken pair that can do no more work: a copy never ends, or left an
// error that every later call of the same context returns. If both GPUs have an error, it blames
// the error that another GPU cannot cause.
func (b *bandwidth) listLost(wrong *brokenPair, pair ...*peerEnd) (list []*nvml.GPU) {
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

// brokenPair has two GPUs with failed copies between them.
type brokenPair struct {
	at, other *nvml.GPU // at: the GPU with the failed call, or that sent the wrong data
	kind      string    // their connection
	err       error
	wrong     wrongWords

	interrupted bool // the test had ended before the error, and may be its cause
}

// hasError reports whether the copies have failed, but not by wrong data or since they never end.
func (p brokenPair) hasError() bool { return p.err != nil && !errors.Is(p.err, errStuck) }

// has reports whether a GPU is one of the pair.
func (p brokenPair) has(g *nvml.GPU) bool { return p.at == g || p.other == g }

// reportCommonCause reports broken pairs once, without a GPU, and returns true, if no pair is good, and
// the copies of at least three GPUs have wrong data or never end. The same GPUs copy from and to the
// node correctly: the IOMMU, ACS or the fabric is a likelier cause than each of them. A pair that the
// end of the test interrupted does not count. If the test has ended early and one GPU is in all pairs with
// wrong data, it is the cause.
func (b *bandwidth) reportCommonCause(broken []brokenPair) bool {
	broken = slices.DeleteFunc(slices.Clone(broken), func(p brokenPair) bool { return p.interrupted })
	ended := b.r.ctx.Err() != nil
	gpus := map[*nvml.GPU]bool{}
	for _, p := range broken {
		if p.hasError() {
			return false
		}
		gpus[p.at], gpus[p.other] = true, true
	}
	if len(gpus) < enoughPeers {
		return false
	}
	for g := range gpus {
		if ended && !slices.ContainsFunc(broken, func(p brokenPair) bool { return p.err != nil || !p.has(g) }) {
			return false
		}
	}
	first := broken[max(slices.IndexFunc(broken, func(p brokenPair) bool { return p.err == nil }), 0)] // wrong data are worse
	f := checks.Finding{Severity: checks.Fail, Remedy: checks.FixConfig}
	if strings.HasPrefix(first.kind, "nvlink") {
		f.Remedy = checks.CheckFabric
	}
	pairs := fmt.Sprintf("all %d pairs of GPUs that were tried (first: gpu%d and gpu%d)", len(broken), first.at.Index, first.other.Index)
	if first.err == nil {
		f.Code, f.Want, f.Got = "gpu.bandwidth.bit", "none", first.wrong.String()
		b.r.report(checks.Device{}, f, "wrong words after copies between %s", pairs)
	} else {
		f.Code, f.Want = "active.stuck", "an end within "+patience(b.r).Round(time.Second/10).String()
		b.r.report(checks.Device{}, f, "copies between %s: %v", pairs, first.err)
	}
	return true
}

// reportBrokenPairs reports broken pairs: once for the GPU that they have in common, otherwise for the
// GPU that returned the error. Memory of a faulty GPU fails at all others. An interrupted pair only
// leaves its GPU untested.
func (b *bandwidth) reportBrokenPairs(broken []brokenPair) {
	broken = slices.DeleteFunc(broken, func(p brokenPair) bool {
		if p.interrupted {
			b.r.reportFailure(p.at, "copies", p.err)
		}
		return p.interrupted
	})
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
			what = fmt.Sprintf("copies from and to %d other GPUs (first: gpu%d)", count[worst], other.Index)
		}
		switch {
		case errors.Is(first.err, errStuck):
			b.r.reportFailure(worst, what, first.err)
		case first.err != nil:
			b.r.reportError(worst, what, first.err)
		default:
			b.r.report(checks.GPUDevice(worst), checks.Finding{Code: "gpu.bandwidth.bit", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "none", Got: first.wrong.String()}, "wrong words after %s", what)
		}
		broken = slices.DeleteFunc(broken, func(p brokenPair) bool { return p.has(worst) })
	}
}

// reportUnreached reports each GPU that reaches no other directly, and with PEER the other pairs that
// do not reach each other. A board can be built so: it reports only pairs whose models and
// connection are those of a pair that reaches, or whose models reach through NVSwitches.
func (b *bandwidth) reportUnreached(unreached, pairs []gpuPair, broken []brokenPair) {
	usual, reaching, alone := map[string]bool{}, map[*nvml.GPU]bool{}, map[*nvml.GPU]bool{}
	for _, p := range pairs {
		usual[p.alike(p.kind)], reaching[p.a.gpu], reaching[p.b.gpu] = true, true, true
	}
	for _, p := range broken {
		reaching[p.at], reaching[p.other] = true, true
	}
	unreached = slices.DeleteFunc(unreached, func(p gpuPair) bool { return !usual[p.alike(p.kind)] && !usual[p.alike(nvSwitched)] })
	severity := checks.Warn
	if b.peer > 0 {
		severity = checks.Fail
	}
	for _, p := range unreached {
		for _, g := range []*nvml.GPU{p.a.gpu, p.b.gpu} {
			if reaching[g] || alone[g] {
				continue
			}
			alone[g] = true
			b.r.report(checks.GPUDevice(g), checks.Finding{Code: "gpu.bandwidth.reach", Severity: severity}, "reaches no other GPU directly; other GPUs of its model reach each other")
		}
	}
	for _, p := range unreached {
		if b.peer > 0 && !alone[p.a.gpu] && !alone[p.b.gpu] {
			b.r.report(checks.GPUDevice(p.a.gpu), checks.Finding{Code: "gpu.bandwidth.reach", Severity: checks.Warn},
				"does not reach gpu%d %s directly; both GPUs reach others", p.b.gpu.Index, p.b.gpu.PCI)
		}
	}
}

// alike returns the key of pairs that are compared: of the same models, by a kind of connection.
func (p gpuPair) alike(kind string) string {
	models := []string{p.a.gpu.Name.Value, p.b.gpu.Name.Value}
	slices.Sort(models)
	return strings.Join(append(models, kind), "|")
}

// openPeerEnds allocates two buffers on each GPU, and fills the one to be read with noise of its own.
func (b *bandwidth) openPeerEnds(gpus []*loadedGPU) (size uint64, ends []*peerEnd, ok bool) {
	size = uint64(b.size)
	for _, l := range gpus {
		fits, err := l.fitSize(b.size, 2)
		if err != nil {
			b.reportTooSmall(l, err)
			return 0, nil, false
		}
		size = min(size, fits)
	}
	for _, l := range gpus {
		e, err := newPeerEnd(l, size)
		if err != nil {
			b.r.reportFailure(l.gpu, "copies between GPUs", err)
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
	m, err := l.allocateBuffers(size, 2)
	if err != nil {
		return nil, err
	}
	e := &peerEnd{l, m[0], m[1], pattern{kind: patternRandom, value: 0x5eed + uint32(l.gpu.Index)}, p}
	return e, p.write(e.from, size, 0, e.noise)
}

// each measures a pair both ways, and verifies the data; the slower direction counts.
func (b *bandwidth) each(x, y *peerEnd, size uint64) (p gpuPair, reached bool, wrong *brokenPair) {
	p = gpuPair{a: x.loadedGPU, b: y.loadedGPU, kind: x.classifyLink(y.loadedGPU), size: size, rate: math.Inf(1)}
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
				_ = d[0].c.DisablePeer(d[1].c) // an earlier error is reported already
			}
		}()
	}
	for _, d := range directions {
		rate, err := d[1].rate(b.r.ctx, p.size, peerSample, func() error { return d[1].c.CopyFromPeer(d[0].c, d[1].to, d[0].from, p.size, d[1].stream) })
		if err != nil {
			return p, false, &brokenPair{at: d[1].gpu, other: d[0].gpu, err: err}
		}
		p.rate = min(p.rate, rate)
		words, err := d[1].verifyCopy(b.r.ctx, p.size, d[0].noise)
		if err != nil {
			return p, false, &brokenPair{at: d[1].gpu, other: d[0].gpu, err: err}
		}
		if words.count > 0 {
			return p, false, &brokenPair{at: d[0].gpu, other: d[1].gpu, wrong: words}
		}
	}
	return p, true, nil
}

// verifyCopy compares every bit of the data that another GPU copied here.
func (e *peerEnd) verifyCopy(ctx context.Context, size uint64, noise pattern) (wrongWords, error) {
	if err := cmp.Or(e.p.clear(), e.p.verify(e.to, size, 0, noise)); err != nil {
		return wrongWords{}, err
	}
	return e.p.wrong(ctx)
}

// judgePairs makes the measures of the pairs: one for each GPU, the median of its pairs, so that
// a GPU that is slow to all others is one finding. For a GPU with only one pair it is the pair's.
// Any other slow pair is a finding of its own.
func (b *bandwidth) judgePairs(pairs []gpuPair, gpus int) {
	if len(pairs) == 0 {
		if b.peer > 0 && gpus > 1 {
			b.r.report(checks.Device{}, checks.Finding{Code: "gpu.bandwidth.reach", Severity: checks.Skip}, "no two GPUs reach each other directly")
		}
		return
	}
	byKind := map[string][]gpuPair{}
	for _, p := range pairs { // pairs of different models are not compared
		byKind[p.alike(p.kind)] = append(byKind[p.alike(p.kind)], p)
	}
	for _, key := range slices.Sorted(maps.Keys(byKind)) {
		b.judgeKind(byKind[key][0].kind, byKind[key])
	}
}

// peerAlgorithm returns the algorithm of copies between GPUs of one kind of connection: "ce" for
// GPUs behind NVSwitches, since platforms have floors for these. Direct NVLinks and PCIe are
// slower.
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
		m.What, m.Unlike = "copies from and to each other GPU by "+kind, describeUnlike(b.r, l, kind)
		slow[l] = m.worse(limit)
		b.r.record(m)
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
		m.Peers, m.Unlike = kind+" pair", cmp.Or(describeUnlike(b.r, p.a, kind), describeUnlike(b.r, p.b, kind))
		b.r.record(m)
	}
}

// pairFinding reports two GPUs that are slow only to each other. Over PCIe the board's design can
// be the cause, so it only warns unless PEER is set.
func (b *bandwidth) pairFinding(p gpuPair, m *measure, limit float64) {
	severity, remedy := checks.Fail, checks.CheckFabric
	if !strings.HasPrefix(p.kind, "nvlink") && !(p.rate < b.peer) {
		severity, remedy = checks.Warn, checks.NoRemedy
	}
	b.r.report(checks.GPUDevice(p.a.gpu), checks.Finding{Code: "gpu.bandwidth.pair", Severity: severity, Remedy: remedy, Want: m.atLeast(limit), Got: rate(p.rate, m.Unit)},
		"copies from and to gpu%d %s by %s; both GPUs are faster with others", p.b.gpu.Index, p.b.gpu.PCI, p.kind)
}
