package checks

import (
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// What makes a copy slow and is no fault of the GPU.

// farMemory says why memory that is allocated now for GPUs near to some CPUs may come
// from another NUMA node, over which copies are slower: the kernel goes there sooner
// than it takes memory from the page cache, and it goes where the process may run.
func (b *bandwidth) farMemory(near string, size uint64) string {
	cpus := probe.ParseCPUs(near)
	if len(cpus) == 0 {
		return ""
	}
	allowed, err := b.r.env.Host.AllowedCPUs()
	if err == nil && !slices.ContainsFunc(cpus, func(cpu int) bool { return slices.Contains(allowed, cpu) }) {
		return fmt.Sprintf("its memory may be far from the GPU: this process may not run on CPUs %s", near)
	}
	m, known, err := b.r.env.Host.MemoryNear(cpus)
	if err != nil || !known || m.Free >= size+m.Total/100 { // of which the kernel keeps up to 1 % back
		return ""
	}
	return fmt.Sprintf("its memory may be far from the GPU: of %v of the NUMA node of CPUs %s %v are free", Size(m.Total), near, Size(m.Free))
}

// lessSlot says in what the PCIe slot of a GPU is less than that of another one of the
// same model, "" if it is not, or if NVML does not tell.
func (b *bandwidth) lessSlot(g *probe.GPU) string {
	for _, other := range b.r.gpus {
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

func slotOf(g *probe.GPU) gpuSlot {
	gen, width := g.Link.MaxGen, g.Link.MaxWidth
	if !gen.Known || !width.Known || gen.Value < 1 || gen.Value > 16 {
		return gpuSlot{}
	}
	return gpuSlot{gen.Value, width.Value, width.Value << (gen.Value - 1)}
}

func (s gpuSlot) String() string { return fmt.Sprintf("Gen%d x%d", s.gen, s.width) }
