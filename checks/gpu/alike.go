package gpu

import (
	"cmp"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// Comparison of each GPU's model, memory and UUID with the other GPUs of the node, for
// check_gpu_count.

// groupAlike are the groups that [GPUs.judgeAlike] needs.
const groupAlike = nvml.GroupMemory | nvml.GroupModes

// A GPU must have this percentage of the memory of its peers: below warnMemory the check warns,
// below failMemory it fails. ECC uses up to 7 % of GDDR memory, so the limit between GPUs with and
// without ECC is lower. The smallest unit that can fail is a channel: 8 % of the memory of a board
// with 12 channels, 12 to 20 % with HBM stacks.
const (
	warnMemory    = 98
	warnMemoryECC = 92
	failMemory    = 90
)

// minForOdd is the smallest number of GPUs among which one of another model is reported: sites
// build smaller nodes from different cards.
const minForOdd = 8

// judgeAlike compares the GPUs with each other. wanted is the number in nhc.conf or Slurm's Gres,
// 0 if there is none.
func (s *GPUs) judgeAlike(wanted int) {
	peers := map[string][]*nvml.GPU{} // by model
	uuids := map[string]*nvml.GPU{}
	ids, _ := pci.GPUIDs(s.Env.Host) // without them the name of a GPU is its model
	device := map[string]string{}    // PCI device by address and by name
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
		if err := cmp.Or(g.NameErr, readMemoryTotal(g).Err); err != nil && !nvml.IsGPUState(err) {
			s.Report(g, checks.Finding{Code: "gpu.error", Severity: checks.Unknown}, "cannot be read: %v", err)
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

// judgeNames reports GPUs with another name than most GPUs with the same board (PCI device and
// subsystem); without a majority the first GPU is the reference. It returns the expected name of
// each of them, and of GPUs without a name.
func (s *GPUs) judgeNames(boards map[string][]*nvml.GPU) map[*nvml.GPU]string {
	odd := map[*nvml.GPU]string{}
	for _, list := range boards {
		count := map[string]int{}
		named := slices.DeleteFunc(slices.Clone(list), func(g *nvml.GPU) bool { return !g.Name.Known })
		for _, g := range named {
			count[g.Name.Value]++
		}
		want, reference := checks.Commonest(count), "the others"
		if len(named) > 0 && 2*count[want] <= len(named) {
			want, reference = named[0].Name.Value, checks.GPUName(named[0])
		}
		for _, g := range list {
			got := g.Name.Value
			if got != want {
				odd[g] = want
			}
			if got != want && g.Name.Known {
				s.Report(g, checks.Finding{Code: "gpu.model.differ", Severity: checks.Warn, Want: want, Got: got}, "model differs from that of %s, but the board is the same", reference)
			}
		}
	}
	return odd
}

// readMemoryTotal returns the size of a GPU's memory in bytes, from the reading that the driver
// supports.
func readMemoryTotal(g *nvml.GPU) nvml.Reading[uint64] {
	if m := g.Memory; m.Known || m.Err != nil {
		return nvml.Reading[uint64]{Value: m.Value.Total, Known: m.Known, Err: m.Err}
	}
	return g.MemoryTotal
}

// judgeMemory compares the memory of GPUs of one model. A GPU without memory always fails.
func (s *GPUs) judgeMemory(list []*nvml.GPU) {
	list = slices.DeleteFunc(slices.Clone(list), func(g *nvml.GPU) bool {
		return !readMemoryTotal(g).Known || mayHaveMIG(g)
	})
	count := map[uint64]int{}
	most := uint64(0) // the most common size; of two equally common ones the larger
	for _, g := range list {
		count[readMemoryTotal(g).Value]++
	}
	for total, n := range count {
		if n > count[most] || n == count[most] && total > most {
			most = total
		}
	}
	majority := len(list) > 2 && 2*count[most] > len(list)
	for _, g := range list {
		total := readMemoryTotal(g).Value
		least := uint64(warnMemory)
		if slices.ContainsFunc(list, func(o *nvml.GPU) bool { return readMemoryTotal(o).Value == most && o.ECC.On != g.ECC.On }) {
			least = warnMemoryECC
		}
		f := checks.Finding{Code: "gpu.memory.size", Severity: checks.Warn, Want: checks.MiB(most), Got: checks.MiB(total)}
		switch {
		case total == 0:
			f.Severity, f.Remedy, f.Want = checks.Fail, checks.RebootNode, "more than 0 MiB"
			s.Report(g, f, "has no memory")
			continue
		case majority && total*100 < most*failMemory:
			f.Severity, f.Remedy = checks.Fail, checks.RebootNode
		case total*100 >= most*least:
			continue
		}
		s.Report(g, f, "has less memory than the others")
	}
}

// judgeModel reports a single GPU of another model among many. It does not report a display card,
// nor a GPU if the others are as many as the site wants or as nodes of the platform have.
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
	if len(peers) != 2 || len(one) != 1 || n < minForOdd || n%2 != 0 || len(rest) == wanted || slices.Contains(s.findPlatform(rest[0]).GPUs, len(rest)) {
		return
	}
	if slices.Contains(pci.OfClass(s.Env.Host, "0300"), one[0].PCI) {
		return
	}
	s.Report(one[0], checks.Finding{Code: "gpu.model.differ", Severity: checks.Warn, Want: rest[0].Name.Value, Got: one[0].Name.Value}, "model differs from that of the others")
}
