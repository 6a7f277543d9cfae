package active

import (
	"cmp"
	"context"
	"slices"
	"time"

	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/gpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// gpuBandwidth measures how fast each GPU copies from and to the node's memory, in each direction
// and in both at once, and from and to every other GPU that it reaches directly. It fails if a
// GPU is slower than HOST or PEER, slower than the platform's floor, or far from its peers, and
// if the copied data are wrong. HOST is in GB/s (10^9 bytes) for each direction alone; PEER is in
// GB/s for each pair of GPUs, over NVLink or PCIe. Without them there is no limit on the line.
//
// The GPUs copy one after another, since they share switches, root ports and the node's memory.
// The copy engines make the copies, of 512 MiB (-b SIZE), between the GPU and pinned memory on
// its own NUMA node. Compare the numbers with those of nvbandwidth: host_to_device_memcpy_ce,
// device_to_host_memcpy_ce and device_to_device_memcpy_read_ce. Copies between GPUs that have
// only PCIe have a quarter of the size. The number for both directions at once is their sum.
//
// If the NUMA node has hardly any free memory because of the page cache, the buffers can come
// from another node: a low rate then only warns, and the finding gives this reason. A GPU in a
// slot with fewer lanes or of an older generation than its peers only warns, too.
//
// A GPU that is slow to all others is one finding; a pair that alone is slow names both. If copies
// between no two of three or more GPUs are correct, the finding names no GPU. A GPU that
// reaches no other GPU directly, while others of its model do, fails if PEER is set, otherwise it
// warns. With PEER a single pair that does not reach each other warns, too.
// check_gpu_bw is AzureHPC's name; its third number is ignored. check_cuda_bw is their older
// name; it takes HOST and a directory, which is ignored. -t SECONDS (40) is the time limit. The
// check locks no clocks.
//
//	gpu* || check_gpu_bandwidth 48 335
type gpuBandwidth struct {
	active
	Host    float64       `arg:"1" toml:"host" in:"0.5:1000 min"` // GB/s from and to the node's memory, each; 0: no limit
	Peer    float64       `arg:"2" toml:"peer" in:"0.5:2000 min"` // GB/s between two GPUs, each way; 0: no limit
	Surplus []string      `arg:"*"`                               // AzureHPC's third number: it is for AMD's links and ignored
	Size    checks.Size   `opt:"b" toml:"size"`                   // size of one copy
	Time    time.Duration `opt:"t" toml:"time"`                   // time limit
	name    string
}

// cudaBandwidth measures copies between each GPU and the node, as check_gpu_bandwidth does, with
// the arguments of AzureHPC's older test: HOST, and a directory, which is ignored.
type cudaBandwidth struct {
	active
	Host float64       `arg:"1" toml:"host" in:"0.5:1000 min"` // GB/s from and to the node's memory, each; 0: no limit
	Dir  string        `arg:"2" toml:"directory"`              // directory of AzureHPC's program; ignored
	Size checks.Size   `opt:"b" toml:"size"`                   // size of one copy
	Time time.Duration `opt:"t" toml:"time"`                   // time limit
}

const (
	azureBandwidthName = "check_gpu_bw"

	bandwidthSize = 512 << 20
)

func bandwidthDo() map[string]string {
	return activeDo("gpu.bandwidth", "See check_gpu_pcie and dmesg for the link, nvidia-smi topo -m for the devices between GPU and CPU. Reseat the GPU or its riser, or swap it with another slot to see whether the fault moves with it."+checks.ReseatLimits, map[string]string{
		"gpu.bandwidth.pair":   "Only this pair of GPUs is slow. On NVLink see the links between them (nvidia-smi nvlink -s -i ADDRESS) and check_gpu_nvlink; on PCIe see ACS and the IOMMU on the switch between them.",
		"gpu.bandwidth.bit":    "A copy was corrupted and no ECC reported it: keep the node out of service. Swap GPU and riser to find the faulty part, and run a memory test of the node. Between GPUs on PCIe the cause can be the IOMMU or ACS of the switch, above all if the finding names no GPU: compare with iommu=pt; on NVLink see check_gpu_nvlink and check_gpu_fabric." + checks.ReseatLimits,
		"gpu.bandwidth.memory": "Each NUMA node and each GPU needs room for two copies of the size (-b): see which processes use the memory, or set a smaller size.",
		"gpu.bandwidth.reach":  "CUDA allows no direct copies to or from the GPU: see nvidia-smi topo -p2p r, the IOMMU and ACS, on NVLink check_gpu_fabric and check_gpu_nvlink. If no GPUs of the board reach each other, remove PEER from the line.",
	})
}

func init() {
	for _, name := range []string{"check_gpu_bandwidth", azureBandwidthName} {
		checks.Register(checks.Info{
			Name: name, Usage: "[HOST [PEER]] [-b SIZE] [-t TIME] [--max-age AGE]", Summary: "GPUs copy from and to the node, and each other, as fast as they should",
			Lane: checks.CUDA, Active: true, Do: bandwidthDo, DoOf: cudaDo,
			New: func() checks.Check {
				return &gpuBandwidth{name: name, Size: bandwidthSize, Time: timeOf(timeOfOthers).Bound}
			},
		})
	}
	checks.Register(checks.Info{
		Name: "check_cuda_bw", Usage: "[HOST [DIRECTORY]] [-b SIZE] [-t TIME] [--max-age AGE]", Summary: "GPUs copy from and to the node as fast as they should",
		Lane: checks.CUDA, Active: true, DoOf: cudaDo,
		New: func() checks.Check { return &cudaBandwidth{Size: bandwidthSize, Time: timeOf(timeOfOthers).Bound} },
	})
}

func (c *gpuBandwidth) Bound() time.Duration { return c.Time }

func (c *gpuBandwidth) Validate() error {
	return cmp.Or(validateBytes(c.Size), validateTime(c.Time))
}

// Bind also accepts AzureHPC's third number.
func (c *gpuBandwidth) Bind(args []string) error {
	if err := checks.BindUsable(c, args); err != nil {
		return err
	}
	if n := len(c.Surplus); n > 1 || n == 1 && c.name != azureBandwidthName {
		return &checks.UsageError{Kind: checks.Surplus, Word: c.Surplus[n-1], Want: "at most 2"}
	}
	return nil
}

func (c *cudaBandwidth) Bound() time.Duration { return c.Time }

func (c *cudaBandwidth) Validate() error {
	return cmp.Or(validateBytes(c.Size), validateTime(c.Time))
}

func (c *gpuBandwidth) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	_, _ = gpu.AskNVML(env, c.name, nvml.GroupPCIe|nvml.GroupP2P|nvml.GroupNVLinkFar) // errors are reported below
	r, findings := c.beginGPUs(ctx, env, activeTest{Check: c.name, Code: "gpu.bandwidth", Bound: c.Bound(), Of: c})
	if r == nil {
		return findings
	}
	b := &bandwidth{r: r, host: c.Host, peer: c.Peer, size: c.Size}
	b.run(true)
	return r.done()
}

func (c *cudaBandwidth) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	_, _ = gpu.AskNVML(env, "check_cuda_bw", nvml.GroupPCIe) // as above
	r, findings := c.beginGPUs(ctx, env, activeTest{Check: "check_cuda_bw", Code: "gpu.bandwidth", Bound: c.Bound(), Of: c})
	if r == nil {
		return findings
	}
	b := &bandwidth{r: r, host: c.Host, size: c.Size}
	b.run(false)
	return r.done()
}

// bandwidth is a running test.
type bandwidth struct {
	r          *activeRun
	host, peer float64
	size       checks.Size
	sample     time.Duration           // duration of a sample of copies from and to the node
	pinned     map[string]pinnedMemory // buffers of the node, by the near CPUs
	both       []measure               // rates of both directions at once, by GPU
	wrong      []*nvml.GPU             // GPUs with wrong data in copies from and to the node
	alone      []float64               // sum of the rates of the two directions alone, by GPU
}

// pinnedMemory has two buffers of the node's memory.
type pinnedMemory struct {
	up, down []byte
	doubt    string // why they may not be near to the GPU, "" if they are
}

// Approximate durations of a sample over PCIe, and of one over NVLink.
const (
	hostSample = 60 * time.Millisecond
	peerSample = 5 * time.Millisecond
)

// manyGPUs: with this number of GPUs or more, samples over PCIe take half as long, so that 16
// GPUs are done in time.
const manyGPUs = 9

func (b *bandwidth) run(peers bool) {
	b.pinned, b.sample = map[string]pinnedMemory{}, hostSample
	gpus, done := openGPUs(b.r)
	defer done()
	if len(gpus) == 0 || !b.hasRoomFor(gpus) {
		return
	}
	if len(gpus) >= manyGPUs {
		b.sample /= 2
	}
	var well []*loadedGPU
	for _, l := range gpus {
		if b.r.ctx.Err() != nil {
			break
		}
		fits, err := b.measureHost(l)
		if err != nil {
			b.r.reportFailure(l.gpu, "copies from and to the host", err)
		}
		if fits && err == nil {
			markDone(b.r, l.gpu)
		}
		if fits && err == nil && !slices.Contains(b.wrong, l.gpu) { // a fault between it and another GPU would be its own again
			well = append(well, l)
		}
	}
	b.judgeBothWays()
	b.clearDoubts(gpus)
	if peers && b.r.ctx.Err() == nil {
		b.measurePeers(well)
	}
}

// hasRoomFor reports whether the node has the memory to pin.
func (b *bandwidth) hasRoomFor(gpus []*loadedGPU) bool {
	nodes := map[string]bool{}
	for _, l := range gpus {
		nodes[l.c.GPU.Near()] = true
	}
	b.r.at("read /proc/meminfo")
	memory, err := probe.ReadMemory(b.r.env.Host)
	if err != nil {
		b.r.failures = true
		b.r.findings = append(b.r.findings, checks.Unreadable(err)...)
		return false
	}
	want, free := uint64(b.size)*2*uint64(len(nodes)), memory.Free<<10
	if want > free/2 {
		b.r.failures = true
		b.r.report(checks.Device{}, checks.Finding{Code: "gpu.bandwidth.memory", Severity: checks.Unknown, Want: "at least " + checks.Size(2*want).String(), Got: checks.Size(free).String()},
			"free memory of the node (half of it may be pinned)")
		return false
	}
	return true
}

// pin returns two buffers on the NUMA node of a GPU; GPUs of one node share them.
func (b *bandwidth) pin(l *loadedGPU, size uint64) (m pinnedMemory, err error) {
	near := l.c.GPU.Near()
	if have, ok := b.pinned[near]; ok && uint64(len(have.up)) >= size {
		return pinnedMemory{have.up[:size], have.down[:size], have.doubt}, nil
	}
	m.doubt = b.describeFarMemory(near, 2*size)
	if m.up, err = l.c.HostAlloc(size); err == nil {
		m.down, err = l.c.HostAlloc(size)
	}
	if err == nil {
		b.pinned[near] = m
	}
	return m, err
}

// measureHost measures the copies between a GPU and the node. It reports a GPU with too little free
// memory for them.
func (b *bandwidth) measureHost(l *loadedGPU) (fits bool, err error) {
	size, err := l.fitSize(b.size, 2)
	if err != nil {
		b.reportTooSmall(l, err)
		return false, nil
	}
	host, err := b.pin(l, size)
	if err != nil {
		return true, err
	}
	memory, err := l.allocateBuffers(size, 2)
	if err != nil {
		return true, err
	}
	one := 0.
	m := measure{Algorithm: "ce", Size: int64(size), Ranks: 1, Device: checks.GPUDevice(l.gpu), Model: l.gpu.Name.Value, Unit: "GB/s", Doubt: host.doubt, Unlike: cmp.Or(b.describeUnplaced(l), compareSlot(b.r, l.gpu))}
	for _, t := range []struct {
		test, what string
		least      float64
		copy       func() error
	}{
		{"host_to_device", "copy from the host", b.host, func() error { return l.c.CopyToDevice(memory[0], host.up, l.stream) }},
		{"device_to_host", "copy to the host", b.host, func() error { return l.c.CopyToHost(host.down, memory[1], l.stream) }},
	} {
		b.r.at("gpu%d: %s", l.gpu.Index, t.what)
		if m.Value, err = l.rate(b.r.ctx, size, b.sample, t.copy); err != nil {
			return true, err
		}
		m.Test, m.What, m.Least = t.test, t.what, t.least
		b.r.record(m)
		one += m.Value
	}
	b.r.at("gpu%d: copies from and to the host at once", l.gpu.Index)
	other, err := l.c.NewStream()
	if err != nil {
		return true, err
	}
	m.Test, m.What, m.Least = "both_ways", "copies from and to the host at once", 0
	if m.Value, err = l.rate(b.r.ctx, 2*size, b.sample, l.bothWays(other, memory, host.up, host.down)); err != nil {
		return true, err
	}
	b.both = append(b.both, m)
	b.alone = append(b.alone, one)
	b.r.at("gpu%d: verify copies", l.gpu.Index)
	return true, cmp.Or(b.verify(l, memory, host.down), l.freeBuffers(memory))
}

// judgeBothWays compares what GPUs copy in both directions at once. It skips a GPU that is slow
// in one direction alone, which is a finding of its own.
func (b *bandwidth) judgeBothWays() {
	usual := map[string][]float64{} // by model
	for i, m := range b.both {
		usual[m.Model] = append(usual[m.Model], b.alone[i])
	}
	for i, m := range b.both {
		if b.alone[i] < m.off(median(usual[m.Model]), toleranceOf(m.Test).Peers/2) {
			m.Peers = "slow alone"
		}
		b.r.record(m)
	}
}

// bothWays returns an operation of one copy each way that start together; the GPU's stream
// continues when both are done.
func (l *loadedGPU) bothWays(other cuda.Stream, memory []cuda.Memory, up, down []byte) func() error {
	fork, errFork := l.c.NewEvent()
	join, errJoin := l.c.NewEvent()
	return func() error {
		return cmp.Or(errFork, errJoin, l.c.Record(fork, l.stream), l.c.Wait(other, fork),
			l.c.CopyToDevice(memory[0], up, l.stream), l.c.CopyToHost(down, memory[1], other),
			l.c.Record(join, other), l.c.Wait(l.stream, join))
	}
}

// verify copies random data from the GPU to the node and back, and compares every bit.
func (b *bandwidth) verify(l *loadedGPU, memory []cuda.Memory, host []byte) error {
	p, err := newPatterns(l)
	if err != nil {
		return err
	}
	noise, size := pattern{kind: patternRandom, value: 0x5eed}, uint64(len(host))
	err = cmp.Or(p.write(memory[0], size, 0, noise), l.c.CopyToHost(host, memory[0], l.stream),
		l.c.CopyToDevice(memory[1], host, l.stream), p.verify(memory[1], size, 0, noise))
	if err != nil {
		return err
	}
	wrong, err := p.wrong(b.r.ctx)
	if err != nil || wrong.count == 0 {
		return err
	}
	b.wrong = append(b.wrong, l.gpu)
	b.r.wrongData = "gpu.bandwidth.bit"
	b.r.report(checks.GPUDevice(l.gpu), checks.Finding{Code: b.r.wrongData, Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "none", Got: wrong.String()},
		"wrong words after a copy to the host and back")
	return nil
}

func (b *bandwidth) reportTooSmall(l *loadedGPU, err error) {
	b.r.failures = true
	b.r.report(checks.GPUDevice(l.gpu), checks.Finding{Code: "gpu.bandwidth.memory", Severity: checks.Unknown}, "too little free memory: %v", err)
}

// External causes of slow copies.

// describeFarMemory returns why memory allocated now for GPUs near to some CPUs may come from another
// NUMA node, over which copies are slower: the kernel allocates there before it reclaims page
// cache, and where the process may run.
func (b *bandwidth) describeFarMemory(near string, size uint64) string {
	cpus := cpu.ParseCPUs(near)
	nodes, err := pci.ReadNUMANodes(b.r.env.Host)
	if err != nil || len(nodes) < 2 || len(cpus) == 0 {
		return "" // there is only one
	}
	allowed, err := cpu.AllowedCPUs(b.r.env.Host)
	if err == nil && !slices.ContainsFunc(cpus, func(cpu int) bool { return slices.Contains(allowed, cpu) }) {
		return fmt.Sprintf("its memory may be far from the GPU: this process may not run on CPUs %s", near)
	}
	m, known, err := cpu.MemoryNear(b.r.env.Host, cpus)
	if err != nil || !known || m.Free >= size+m.Total/100 { // the kernel holds back up to 1 %
		return ""
	}
	return fmt.Sprintf("its memory may be far from the GPU: the NUMA node of CPUs %s has %v, %v free", near, checks.Size(m.Total), checks.Size(m.Free))
}

// describeUnplaced returns unplaced if the NUMA node of a GPU is unknown: all CPUs count as near to
// it, and a virtual machine can hide the nodes.
func (b *bandwidth) describeUnplaced(l *loadedGPU) string {
	nodes, err := pci.ReadNUMANodes(b.r.env.Host)
	if err != nil {
		return ""
	}
	near, holds := cpu.ParseCPUs(l.c.GPU.Near()), 0
	for _, n := range nodes {
		if slices.ContainsFunc(cpu.ParseCPUs(n.CPUs), func(cpu int) bool { return slices.Contains(near, cpu) }) {
			holds++
		}
	}
	if holds > 1 || pci.ReadFunction(b.r.env.Host, l.gpu.PCI).NUMA < 0 && cpu.InVM(b.r.env.Host) {
		return unplaced
	}
	return ""
}

// clearDoubts removes the doubt about a slow GPU if another GPU that uses the same buffers is fast:
// far memory would slow both.
func (b *bandwidth) clearDoubts(gpus []*loadedGPU) {
	near, best := map[string]string{}, map[string]float64{}
	for _, l := range gpus {
		near[checks.GPUDevice(l.gpu).Name] = l.c.GPU.Near()
	}
	key := func(m *measure) string { return near[m.Device.Name] + "|" + m.alike() }
	for i := range b.r.measures {
		m := &b.r.measures[i]
		best[key(m)] = max(best[key(m)], m.Value)
	}
	for i := range b.r.measures {
		if m := &b.r.measures[i]; m.worse(m.off(best[key(m)], toleranceOf(m.Test).Peers)) {
			m.Doubt = ""
		}
	}
}

// describeUnlike returns the part of the node's design that can explain different rates between
// GPUs, "" if nothing is known.
func describeUnlike(r *activeRun, l *loadedGPU, kind string) string {
	switch {
	case kind == nvUntold:
		return "the number of NVLinks can differ between pairs"
	case !strings.Contains(kind, "pcie"):
		return ""
	case kind == joinedFar:
		return "sockets can be connected differently"
	case len(l.c.GPU.Above()) == 0:
		return "the kernel does not report the bridges between the GPUs"
	}
	return compareSlot(r, l.gpu)
}

// compareSlot describes how the PCIe slot of a GPU is worse than that of another one of the same
// model, "" if it is not, or if NVML does not report it.
func compareSlot(r *activeRun, g *nvml.GPU) string {
	for _, other := range r.gpus {
		if own, best := slotOf(g), slotOf(other); other.Name.Value == g.Name.Value && own.rate > 0 && own.rate < best.rate {
			return fmt.Sprintf("its slot is %s, that of gpu%d %s", own, other.Index, best)
		}
	}
	return ""
}

// gpuSlot is the fastest link that GPU and slot support together.
type gpuSlot struct {
	gen, width int
	rate       int // equivalent lanes of the first generation; 0: unknown
}

func slotOf(g *nvml.GPU) gpuSlot {
	gen, width := g.Link.MaxGen, g.Link.MaxWidth
	if !gen.Known || !width.Known || gen.Value < 1 || gen.Value > 16 {
		return gpuSlot{}
	}
	return gpuSlot{gen.Value, width.Value, width.Value << (gen.Value - 1)}
}

func (s gpuSlot) String() string { return fmt.Sprintf("Gen%d x%d", s.gen, s.width) }
