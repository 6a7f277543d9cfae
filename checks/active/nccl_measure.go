package active

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// Limits of an operation's run, and of a piece of it: between two pieces the test looks for a
// job.
const (
	ncclPiece      = 200 * time.Millisecond
	ncclIterations = 20 // default of -n, as nccl-tests
	ncclUsual      = 1 << 30
	ncclReserve    = 1 << 30  // bytes of a GPU's memory that NCCL and the driver need
	ncclPairBytes  = 64 << 20 // bytes that a pair of GPUs exchanges
	ncclShare      = 0.6      // part of the remaining time for the operation itself
)

// planSizes returns the sizes in bytes, the largest last.
func (t *ncclRun) planSizes() (sizes []int64, ok bool) {
	begin, end := int64(t.Begin), int64(t.End)
	switch {
	case begin == 0 && end == 0:
		begin = t.chooseSize()
		end = begin
	case begin == 0:
		begin = end
	case end == 0:
		end = begin
	}
	factor := int64(max(t.Factor, 2))
	for s := begin; s <= end; s *= factor {
		sizes = append(sizes, s)
		if s > math.MaxInt64/factor {
			break
		}
	}
	if t.op.Block(begin, t.ranks[0].n) < 1 {
		t.failures = true
		t.report(checks.Device{}, checks.Finding{Code: "config.value", Severity: checks.Unknown, Want: "a larger size", Got: sizeText(begin)}, "size too small for %s", t.op.Name)
		return nil, false
	}
	return sizes, true
}

// chooseSize returns the largest size with a floor of the platform, otherwise 1 GiB, or the
// size that fits.
func (t *ncclRun) chooseSize() int64 {
	free := t.findFreeMemory()
	fits := func(size int64) bool { return uint64(2*size) <= free }
	p, _ := checks.NodePlatform(t.env)
	best := int64(0)
	for _, f := range p.Floors {
		if f.Test == t.test && f.Ranks == t.ranks[0].n && f.Size > best && fits(f.Size) {
			best = f.Size
		}
	}
	if best > 0 {
		return best
	}
	size := int64(ncclUsual)
	for size > 1<<20 && !fits(size) {
		size /= 2
	}
	return size
}

// findFreeMemory returns the memory that every GPU has for buffers, bytes. A small GPU, as in tests,
// reserves a quarter.
func (t *ncclRun) findFreeMemory() uint64 {
	least := uint64(math.MaxUint64)
	for _, g := range t.ranks {
		free, _, err := g.Context.MemInfo()
		if err != nil {
			t.reportFailure(g.gpu, "cannot read the free memory", err)
			return 0
		}
		least = min(least, free-min(free/4, ncclReserve))
	}
	return least
}

// allocate allocates the buffers, after a look at the free memory.
func (t *ncclRun) allocate(size int64) bool {
	free := t.findFreeMemory()
	if t.broken {
		return false
	}
	n := t.ranks[0].n
	block := t.op.Block(size, n)
	t.most = size
	t.room = max(t.op.Sent(block, n), t.op.Received(block, n), min(ncclPairBytes, int64(free/4))/4)
	if need := uint64(2 * 4 * t.room); need > free {
		t.failures = true
		t.report(checks.Device{}, checks.Finding{Code: "nccl.memory", Severity: checks.Unknown, Want: sizeText(int64(need)), Got: sizeText(int64(free))}, "too little free memory on a GPU for %s of %s", t.op.Name, sizeText(size))
		return false
	}
	for _, g := range t.ranks {
		t.at("%s: allocate memory", checks.GPUDevice(g.gpu).Name)
		if err := g.Allocate(t.room); err != nil {
			t.reportFailure(g.gpu, "cannot allocate the buffers", err)
			return false
		}
	}
	return true
}

// measure runs the operation for every size; with --repeats until it reaches -w.
func (t *ncclRun) measure(sizes []int64) {
	for i, size := range sizes {
		last := i == len(sizes)-1
		var best *measure
		for range max(t.Repeats, 1) {
			m, ok := t.one(size, len(sizes)-i)
			if !ok {
				return
			}
			if best == nil || m.Value > best.Value {
				best = &m
			}
			if t.Least <= 0 || !last || !best.worse(t.Least) {
				break
			}
		}
		if last {
			best.Least = t.Least
		}
		t.record(*best)
	}
}

// one measures one size; left is the number of remaining sizes.
func (t *ncclRun) one(size int64, left int) (m measure, ok bool) {
	n := t.ranks[0].n
	block := t.op.Block(size, n)
	doing := fmt.Sprintf("%s of %s on %d GPUs", t.op.Name, sizeText(size), len(t.ranks))
	from := t.lib.Log(0).End
	if !t.prepare(t.op, block, doing) {
		return m, false
	}
	work := func() error { return t.enqueue(t.op, block) }
	if _, ok := t.timed(doing+" (warm-up)", 1, work); !ok { // connections are made
		return m, false
	}
	each, ok := t.timed(doing, 1, work)
	if !ok {
		return m, false
	}
	piece, all := t.planPieces(slices.Max(each), left)
	total := make([]time.Duration, len(t.ranks))
	for done := 0; done < all; done += piece {
		now := min(piece, all-done)
		if each, ok = t.timed(doing, now, work); !ok {
			return m, false
		}
		for i := range total {
			total[i] += each[i]
		}
	}
	if !t.verify(t.op, block, doing) {
		return m, false
	}
	seconds := slices.Max(total).Seconds() / float64(all)
	return t.bandwidth(t.op.Bytes(block, n), seconds, t.algorithm(from)), true
}

// planPieces returns how often to run an operation of a given duration, and how often without a look
// for jobs.
func (t *ncclRun) planPieces(took time.Duration, left int) (piece, all int) {
	took = max(took, time.Microsecond)
	all = max(t.Iterations, 1)
	if t.Iterations == 0 {
		all = ncclIterations
	}
	budget := time.Duration(ncclShare * float64(t.activeTest.Bound) / float64(left*max(t.Repeats, 1)))
	if end, ok := t.ctx.Deadline(); ok {
		budget = min(budget, time.Duration(ncclShare*float64(time.Until(end))/float64(left)))
	}
	all = max(min(all, int(budget/took)), 1)
	return max(min(int(ncclPiece/took), all), 1), all
}

func (t *ncclRun) bandwidth(bytes int64, seconds float64, algorithm string) measure {
	n := t.ranks[0].n
	what := fmt.Sprintf("bus bandwidth of %s, %s by %s", t.op.Name, sizeText(bytes), algorithm)
	if t.groups() > 1 {
		what = fmt.Sprintf("bus bandwidth of each of %d %s at once, %s by %s", t.groups(), t.op.Name, sizeText(bytes), algorithm)
	}
	if t.NoP2P {
		what += ", over the network"
	}
	test := t.test
	if t.groups() > 1 {
		test = "multi_" + test
	}
	return measure{
		Test: test, Algorithm: algorithm, Size: bytes, Ranks: n, Model: t.listModels(), Peers: t.classifyLinks(),
		What: what, Value: t.op.BusBW(bytes, n, seconds), Unit: "GB/s",
	}
}

// algorithm returns the algorithm that NCCL has logged since the log had this length, "auto" if
// none: no floor is for that.
func (t *ncclRun) algorithm(from int64) string {
	switch used := t.lib.Log(from).Algorithms; {
	case t.op.Sends:
		return "p2p"
	case len(used) == 1:
		return used[0]
	case len(used) == 0 && t.Algorithm != "":
		return t.Algorithm
	}
	return "auto"
}

// listModels returns the models of the GPUs.
func (t *ncclRun) listModels() string {
	var names []string
	for _, g := range t.ranks {
		if name := g.gpu.Name.Value; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, " and ")
}

// classifyLinks returns the kind of connection of the GPUs.
func (t *ncclRun) classifyLinks() string {
	if t.NoP2P {
		return "network"
	}
	if n, err := t.again(nvml.GroupNVLinks); err == nil && slices.ContainsFunc(n.GPUs, func(g nvml.GPU) bool { return slices.Contains(g.NVLinks.Value, true) }) {
		return "nvlink"
	}
	return "pcie"
}
