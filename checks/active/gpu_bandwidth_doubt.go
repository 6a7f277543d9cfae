package active

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

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
