package gpu

import (
	"cmp"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// What a GPU is, compared with the others of the node: check_gpu_count reports a GPU that
// is not what it should be, as it does one that is missing.

// groupAlike is what NVML has to be asked for [GPUs.judgeAlike].
const groupAlike = nvml.GroupMemory | nvml.GroupModes

// The share of the memory of its peers that a GPU has to have, percent: below warnMemory
// it warns, below failMemory it fails. ECC takes up to 7 % of GDDR memory for itself, so
// GPUs with ECC and without are compared less closely. The least part that fails as a whole
// is a channel: 8 % of the memory of a board with 12 of them, 12 to 20 % with stacks of HBM.
const (
	warnMemory    = 98
	warnMemoryECC = 92
	failMemory    = 90
)

// mostOdd is the least number of GPUs of a node among which one of another model is odd:
// smaller ones are built of what there is.
const mostOdd = 8

// judgeAlike compares the GPUs, of which the site counts so many; 0: it does not say.
func (s *GPUs) judgeAlike(wanted int) {
	peers := map[string][]*nvml.GPU{} // by model
	uuids := map[string]*nvml.GPU{}
	ids, _ := pci.GPUIDs(s.Env.Host) // without them a GPU's name says what it is
	device := map[string]string{}    // of GPUs by address, and of one of a name
	boards := map[string][]*nvml.GPU{}
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		at := slices.IndexFunc(ids, func(id pci.ID) bool { return id.Address == g.PCI })
		if at < 0 {
			continue
		}
		device[g.PCI], device[g.Name.Value] = ids[at].Device, ids[at].Device
		if id := ids[at]; id.Subsystem != "" && g.Err == nil && !g.VGPU.Value {
			board := id.Device + " " + id.Subsystem
			boards[board] = append(boards[board], g)
		}
	}
	odd := s.judgeNames(boards)
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		if g.Err != nil {
			continue
		}
		if err := cmp.Or(g.NameErr, memoryTotal(g).Err); err != nil && !nvml.IsGPUState(err) {
			s.Report(g, checks.Finding{Code: "gpu.error", Severity: checks.Unknown}, "could not tell: %v", err)
		}
		model := cmp.Or(device[g.PCI], device[g.Name.Value]) + " " + cmp.Or(odd[g], g.Name.Value)
		peers[model] = append(peers[model], g)
		if g.UUID.Known && uuids[g.UUID.Value] != nil {
			s.Report(g, checks.Finding{Code: "gpu.uuid.same", Severity: checks.Fail, Remedy: checks.RebootNode}, "has the UUID of %s", checks.GPUDevice(uuids[g.UUID.Value]))
		} else if g.UUID.Known {
			uuids[g.UUID.Value] = g
		}
	}
	for _, list := range peers {
		s.judgeMemory(list)
	}
	s.judgeModel(peers, wanted)
	slices.SortStableFunc(s.Findings, func(a, b checks.Finding) int { return cmp.Compare(a.Device.PCI, b.Device.PCI) })
}

// judgeNames finds GPUs whose name is not that of most others of one board, by device and
// subsystem on the PCI bus: of the first, if no name is that of most. It returns the name
// that each of them should have, also those whose name is unknown.
func (s *GPUs) judgeNames(boards map[string][]*nvml.GPU) map[*nvml.GPU]string {
	odd := map[*nvml.GPU]string{}
	for _, list := range boards {
		count := map[string]int{}
		named := slices.DeleteFunc(slices.Clone(list), func(g *nvml.GPU) bool { return !g.Name.Known })
		for _, g := range named {
			count[g.Name.Value]++
		}
		want, than := checks.Commonest(count), "the others"
		if len(named) > 0 && 2*count[want] <= len(named) {
			want, than = named[0].Name.Value, checks.GPUName(named[0])
		}
		for _, g := range list {
			got := g.Name.Value
			if got != want {
				odd[g] = want
			}
			if got != want && g.Name.Known {
				s.Report(g, checks.Finding{Code: "gpu.model.differ", Severity: checks.Warn, Want: want, Got: got}, "model is not that of %s, but the board is", than)
			}
		}
	}
	return odd
}

// memoryTotal is how many bytes of memory a GPU has, in the form in which the driver tells it.
func memoryTotal(g *nvml.GPU) nvml.Reading[uint64] {
	if m := g.Memory; m.Known || m.Err != nil {
		return nvml.Reading[uint64]{Value: m.Value.Total, Known: m.Known, Err: m.Err}
	}
	return g.MemoryTotal
}

// judgeMemory compares the memory of GPUs of one model. A GPU without any fails by itself.
func (s *GPUs) judgeMemory(list []*nvml.GPU) {
	list = slices.DeleteFunc(slices.Clone(list), func(g *nvml.GPU) bool {
		return !memoryTotal(g).Known || g.Modes.MIG.Value || g.Modes.MIGPending.Value
	})
	count := map[uint64]int{}
	most := uint64(0) // what most have; of two it is the higher
	for _, g := range list {
		count[memoryTotal(g).Value]++
	}
	for total, n := range count {
		if n > count[most] || n == count[most] && total > most {
			most = total
		}
	}
	majority := len(list) > 2 && 2*count[most] > len(list)
	for _, g := range list {
		total := memoryTotal(g).Value
		least := uint64(warnMemory)
		if slices.ContainsFunc(list, func(o *nvml.GPU) bool { return memoryTotal(o).Value == most && o.ECC.On != g.ECC.On }) {
			least = warnMemoryECC
		}
		f := checks.Finding{Code: "gpu.memory.size", Severity: checks.Warn, Want: checks.MiB(most), Got: checks.MiB(total)}
		switch {
		case total == 0:
			f.Severity, f.Remedy, f.Want = checks.Fail, checks.ReseatOrRMA, "more than 0 MiB"
			s.Report(g, f, "has no memory")
			continue
		case majority && total*100 < most*failMemory:
			f.Severity, f.Remedy = checks.Fail, checks.ReseatOrRMA
		case total*100 >= most*least:
			continue
		}
		s.Report(g, f, "memory is less than that of the others")
	}
}

// judgeModel finds the one GPU among many that is of another model. A display card is none
// of them, nor is one beside as many GPUs as the site counts, or as such nodes have.
func (s *GPUs) judgeModel(peers map[string][]*nvml.GPU, wanted int) {
	var one, rest []*nvml.GPU
	for _, list := range peers {
		if len(list) == 1 {
			one = append(one, list...)
		} else {
			rest = append(rest, list...)
		}
	}
	n := len(one) + len(rest)
	if len(peers) != 2 || len(one) != 1 || n < mostOdd || n%2 != 0 || len(rest) == wanted || slices.Contains(s.platform(rest[0]).GPUs, len(rest)) {
		return
	}
	if slices.Contains(pci.OfClass(s.Env.Host, "0300"), one[0].PCI) {
		return
	}
	s.Report(one[0], checks.Finding{Code: "gpu.model.differ", Severity: checks.Warn, Want: rest[0].Name.Value, Got: one[0].Name.Value}, "model is not that of the others")
}
