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

// gpuBandwidth measures how fast each GPU copies from and to the node's memory, both at
// once, and from and to every other GPU that it reaches directly. It fails where a GPU
// is slower than HOST or PEER, in GB/s (10^9 bytes), or than the platform's floor, or
// far from its peers; and where a copy, to the node or to a GPU, is not what was copied. HOST is for each of the
// two directions alone; PEER is for each pair of GPUs, by NVLink or PCIe.
//
// The GPUs copy one after another, since they share switches, root ports and the
// node's memory: what they do at once is no GPU's own. Copies are made by the copy
// engines, of 512 MiB (-b) and pinned memory on the GPU's own NUMA node, as by
// nvbandwidth's host_to_device_memcpy_ce, device_to_host_memcpy_ce and
// device_to_device_memcpy_read_ce: their numbers compare to these. Copies between GPUs
// that have only PCIe are of a quarter of the size. Both directions at once are given
// as their sum.
//
// Where that node has hardly any free memory, the page cache having it, the buffers may
// come from another: what is then slow from or to the node only warns, and says so. So
// does what is far from its peers in a slot of fewer lanes or an older generation.
//
// A GPU that is slow to all others is one finding; a pair that alone is slow names both.
// check_gpu_bw is AzureHPC's name of it, whose third number is ignored; check_cuda_bw is their older one, with HOST
// alone and a directory that is not needed here. No clocks are locked.
//
//	gpu* || check_gpu_bandwidth 48 335
type gpuBandwidth struct {
	active
	Host    float64       `arg:"1" toml:"host"` // GB/s from and to the node's memory, each; 0: no limit
	Peer    float64       `arg:"2" toml:"peer"` // GB/s between two GPUs, each way; 0: no limit
	Surplus []string      `arg:"*"`             // AzureHPC's third number, which is for AMD's links
	Size    checks.Size   `opt:"b" toml:"size"` // of one copy, 512M
	Time    time.Duration `opt:"t" toml:"time"` // the most that it takes, 40s
	name    string
}

// cudaBandwidth is gpuBandwidth in the words of AzureHPC's older test.
type cudaBandwidth struct {
	active
	Host float64       `arg:"1" toml:"host"`      // GB/s from and to the node's memory, each; 0: nothing is asked for
	Dir  string        `arg:"2" toml:"directory"` // where AzureHPC has a program for it: not used
	Size checks.Size   `opt:"b" toml:"size"`      // of one copy, 512M
	Time time.Duration `opt:"t" toml:"time"`      // the most that it takes, 40s
}

const (
	azureBandwidthName = "check_gpu_bw"

	bandwidthSize = 512 << 20
)

func bandwidthDo() map[string]string {
	return activeDo("gpu.bandwidth", "See check_gpu_pcie and dmesg for the link, nvidia-smi topo -m for what is between; reseat the GPU or its riser, or swap it to see whether the fault moves along.", map[string]string{
		"gpu.bandwidth.pair":   "The two GPUs named are slow to each other alone: see the links between them with nvidia-smi nvlink -s -i, and check_gpu_nvlink; on PCIe, ACS or an IOMMU on the switch between them.",
		"gpu.bandwidth.bit":    "A copy has changed on its way, and no ECC has told: drain the node. Swap GPU and riser to see which it is, and run a memory test of the node. Between GPUs on PCIe it may be the IOMMU or ACS of the switch: compare with iommu=pt; by NVLink see check_gpu_nvlink.",
		"gpu.bandwidth.memory": "Two copies of the size (-b) are wanted on each NUMA node, and on each GPU: see who has the memory, or give a smaller size.",
		"gpu.bandwidth.reach":  "PEER is asked for, and no two GPUs reach each other: see nvidia-smi topo -p2p r, the IOMMU and ACS; or leave PEER out.",
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

// Bound is the most that the test takes.
func (c *gpuBandwidth) Bound() time.Duration { return c.Time }

// Validate refuses nothing to copy, and no time at all.
func (c *gpuBandwidth) Validate() error {
	return cmp.Or(usableBytes(c.Size), usableTime(c.Time))
}

// Bind is BindTags, and what the test could not do.
func (c *gpuBandwidth) Bind(args []string) error {
	if err := checks.BindUsable(c, args); err != nil {
		return err
	}
	if n := len(c.Surplus); n > 1 || n == 1 && c.name != azureBandwidthName {
		return &checks.UsageError{Kind: checks.Surplus, Word: c.Surplus[n-1], Want: "at most 2"}
	}
	return nil
}

// Bound is the most that the test takes.
func (c *cudaBandwidth) Bound() time.Duration { return c.Time }

// Validate refuses nothing to copy, and no time at all.
func (c *cudaBandwidth) Validate() error {
	return cmp.Or(usableBytes(c.Size), usableTime(c.Time))
}

// Bind is BindTags, and what the test could not do.
func (c *cudaBandwidth) Bind(args []string) error { return checks.BindUsable(c, args) }

func (c *gpuBandwidth) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	_, _ = gpu.AskNVML(env, c.name, nvml.GroupPCIe|nvml.GroupP2P|nvml.GroupNVLinkFar) // what cannot be asked is said below
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

// bandwidth is such a test under way.
type bandwidth struct {
	r          *activeRun
	host, peer float64
	size       checks.Size
	sample     time.Duration           // of copies from and to the node
	pinned     map[string]pinnedMemory // buffers of the node, by the CPUs that are near
	both       []measure               // of both directions at once, for each GPU
	wrong      []*nvml.GPU             // whose copies from and to the node were wrong
	alone      []float64               // what the two directions of it did one after another, added up
}

// pinnedMemory are two buffers of the node's memory.
type pinnedMemory struct {
	up, down []byte
	doubt    string // why they may not be near to the GPU, "" if there is no reason to think so
}

// sample is about how long a sample takes of a copy over PCIe, and of one over NVLink.
const (
	hostSample = 60 * time.Millisecond
	peerSample = 5 * time.Millisecond
)

// manyGPUs is from how many on a sample of copies over PCIe is half as long, so that
// those of 16 are done in time.
const manyGPUs = 9

func (b *bandwidth) run(peers bool) {
	b.pinned, b.sample = map[string]pinnedMemory{}, hostSample
	gpus, done := openGPUs(b.r)
	defer done()
	if len(gpus) == 0 || !b.roomFor(gpus) {
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
		fits, err := b.ofHost(l)
		if err != nil {
			b.r.failed(l.gpu, "copies from and to the host", err)
		}
		if fits && err == nil {
			finished(b.r, l.gpu)
		}
		if fits && err == nil && !slices.Contains(b.wrong, l.gpu) { // what is wrong between it and another would be its fault again
			well = append(well, l)
		}
	}
	b.judgeBothWays()
	b.dispel(gpus)
	if peers && b.r.ctx.Err() == nil {
		b.ofPeers(well)
	}
}

// roomFor asks whether the node has the memory that is going to be pinned.
func (b *bandwidth) roomFor(gpus []*loadedGPU) bool {
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
			"free memory of the node, of which half may be pinned")
		return false
	}
	return true
}

// pinnedFor are two buffers on the NUMA node of a GPU; GPUs of one node share them.
func (b *bandwidth) pinnedFor(l *loadedGPU, size uint64) (m pinnedMemory, err error) {
	near := l.c.GPU.Near()
	if have, ok := b.pinned[near]; ok && uint64(len(have.up)) >= size {
		return pinnedMemory{have.up[:size], have.down[:size], have.doubt}, nil
	}
	m.doubt = b.farMemory(near, 2*size)
	if m.up, err = l.c.HostAlloc(size); err == nil {
		m.down, err = l.c.HostAlloc(size)
	}
	if err == nil {
		b.pinned[near] = m
	}
	return m, err
}

// ofHost measures the copies between a GPU and the node. A GPU whose free memory does
// not fit them is reported.
func (b *bandwidth) ofHost(l *loadedGPU) (fits bool, err error) {
	size, err := l.fitting(b.size, 2)
	if err != nil {
		b.tooSmall(l, err)
		return false, nil
	}
	host, err := b.pinnedFor(l, size)
	if err != nil {
		return true, err
	}
	memory, err := l.allocs(size, 2)
	if err != nil {
		return true, err
	}
	one := 0.
	m := measure{Algorithm: "ce", Size: int64(size), Ranks: 1, Device: checks.GPUDevice(l.gpu), Model: l.gpu.Name.Value, Unit: "GB/s", Doubt: host.doubt, Unlike: lessSlot(b.r, l.gpu)}
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
		b.r.measured(m)
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
	return true, cmp.Or(b.verify(l, memory, host.down), l.frees(memory))
}

// judgeBothWays compares what GPUs do in both directions at once. One that is slow in
// one direction alone is a finding for that, and is left out here.
func (b *bandwidth) judgeBothWays() {
	usual := median(b.alone)
	for i, m := range b.both {
		if b.alone[i] < m.off(usual, toleranceOf(m.Test).Peers/2) {
			m.Peers = "slow alone"
		}
		b.r.measured(m)
	}
}

// bothWays is one copy each way, which begin together; the GPU's stream goes on when
// both are done.
func (l *loadedGPU) bothWays(other cuda.Stream, memory []cuda.Memory, up, down []byte) func() error {
	fork, errFork := l.c.NewEvent()
	join, errJoin := l.c.NewEvent()
	return func() error {
		return cmp.Or(errFork, errJoin, l.c.Record(fork, l.stream), l.c.Wait(other, fork),
			l.c.CopyToDevice(memory[0], up, l.stream), l.c.CopyToHost(down, memory[1], other),
			l.c.Record(join, other), l.c.Wait(l.stream, join))
	}
}

// verify sends noise from the GPU to the node and back, and looks at every bit of it.
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

func (b *bandwidth) tooSmall(l *loadedGPU, err error) {
	b.r.failures = true
	b.r.report(checks.GPUDevice(l.gpu), checks.Finding{Code: "gpu.bandwidth.memory", Severity: checks.Unknown}, "too little of its memory is free: %v", err)
}

// What makes a copy slow and is no fault of the GPU.

// farMemory says why memory that is allocated now for GPUs near to some CPUs may come
// from another NUMA node, over which copies are slower: the kernel goes there sooner
// than it takes memory from the page cache, and it goes where the process may run.
func (b *bandwidth) farMemory(near string, size uint64) string {
	cpus := cpu.ParseCPUs(near)
	nodes, err := pci.ReadNUMANodes(b.r.env.Host)
	if err != nil || len(nodes) < 2 || len(cpus) == 0 {
		return "" // there is no other
	}
	allowed, err := cpu.AllowedCPUs(b.r.env.Host)
	if err == nil && !slices.ContainsFunc(cpus, func(cpu int) bool { return slices.Contains(allowed, cpu) }) {
		return fmt.Sprintf("its memory may be far from the GPU: this process may not run on CPUs %s", near)
	}
	m, known, err := cpu.MemoryNear(b.r.env.Host, cpus)
	if err != nil || !known || m.Free >= size+m.Total/100 { // of which the kernel keeps up to 1 % back
		return ""
	}
	return fmt.Sprintf("its memory may be far from the GPU: of %v of the NUMA node of CPUs %s %v are free", checks.Size(m.Total), near, checks.Size(m.Free))
}

// dispel takes the doubt from what is slow while another GPU is not that copies from and
// to the same buffers: far memory would slow both.
func (b *bandwidth) dispel(gpus []*loadedGPU) {
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

// unlikePeers says why GPUs may differ in what they exchange by how the node is made, "" if
// nothing is known.
func unlikePeers(r *activeRun, l *loadedGPU, kind string) string {
	switch {
	case kind == nvUntold:
		return "of links between two GPUs there may be more than between others"
	case !strings.Contains(kind, "pcie"):
		return ""
	case kind == joinedFar:
		return "not every two sockets need be joined alike"
	case len(l.c.GPU.Above()) == 0:
		return "the kernel does not tell what is between the GPUs"
	}
	return lessSlot(r, l.gpu)
}

// lessSlot says in what the PCIe slot of a GPU is less than that of another one of the
// same model, "" if it is not, or if NVML does not tell.
func lessSlot(r *activeRun, g *nvml.GPU) string {
	for _, other := range r.gpus {
		if own, best := slotOf(g), slotOf(other); other.Name.Value == g.Name.Value && own.rate > 0 && own.rate < best.rate {
			return fmt.Sprintf("its slot is %s, that of gpu%d %s", own, other.Index, best)
		}
	}
	return ""
}

// gpuSlot is what GPU and slot can do together.
type gpuSlot struct {
	gen, width int
	rate       int // lanes of the first generation that it stands for; 0: not told
}

func slotOf(g *nvml.GPU) gpuSlot {
	gen, width := g.Link.MaxGen, g.Link.MaxWidth
	if !gen.Known || !width.Known || gen.Value < 1 || gen.Value > 16 {
		return gpuSlot{}
	}
	return gpuSlot{gen.Value, width.Value, width.Value << (gen.Value - 1)}
}

func (s gpuSlot) String() string { return fmt.Sprintf("Gen%d x%d", s.gen, s.width) }
