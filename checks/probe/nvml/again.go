package nvml

import (
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// GPUProcesses reads the processes on the GPUs and the used memory again, for a caller that waits
// for both to disappear. It updates the snapshot. A recorded snapshot does not change.
func GPUProcesses(h *probe.Host, doing func(call string)) (*Snapshot, error) {
	n, err := Ask(h, GroupProcesses, doing)
	s, _ := probe.Once(h, "nvml", func() (*nvmlSession, error) { return nil, err })
	if err != nil || s.lib == nil {
		return n, err
	}
	for i := range n.GPUs {
		n.GPUs[i].forget(GroupProcesses)
	}
	s.doing = doing
	s.read(GroupProcesses)
	s.spread()
	return n, nil
}

// AskAgain reads some groups again and returns a separate snapshot, so that a caller can compare it
// with the first. A recorded snapshot does not change. Like all of NVML it is not safe for
// concurrent use.
func AskAgain(h *probe.Host, groups Group, doing func(call string)) (*Snapshot, error) {
	n, err := Ask(h, groups, doing)
	s, _ := probe.Once(h, "nvml", func() (*nvmlSession, error) { return nil, err })
	if err != nil || s.lib == nil {
		return n, err
	}
	old := s.snapshot
	fresh := *old
	fresh.Taken = time.Now()
	fresh.GPUs = slices.Clone(old.GPUs)
	for i := range fresh.GPUs {
		fresh.GPUs[i].forget(groups)
	}
	s.snapshot, s.doing = &fresh, doing
	s.read(groups)
	s.spread()
	s.snapshot = old
	return &fresh, nil
}

// forget removes the values of some groups that read would keep, or would not overwrite in each case.
func (g *GPU) forget(groups Group) {
	has := func(some Group) bool { return groups&some != 0 }
	if has(GroupECC) {
		g.ECC = ECC{}
	}
	if has(GroupModes) {
		g.Modes = Modes{}
		g.ECC.On, g.ECC.Pending, g.ECC.Default = Reading[bool]{}, Reading[bool]{}, Reading[bool]{}
	}
	if has(GroupRows) {
		g.Rows = Rows{}
	}
	if has(GroupMIG) {
		g.MIG = Reading[[]string]{}
	}
	if has(GroupProcesses | GroupMemory) {
		g.Memory = Reading[GPUMemory]{}
	}
	if has(GroupProcesses) {
		g.Processes = Reading[[]GPUProcess]{}
	}
	if has(GroupNVLinks | GroupNVLinkErrors | GroupNVLinkSpeed | GroupNVLinkFar | GroupNVLinkCounts | GroupP2P) {
		g.NVLinks = Reading[[]bool]{}
	}
	if has(GroupNVLinkSpeed) {
		g.NVLink.Speed, g.NVLink.Idle = Reading[[]int]{}, Reading[[]bool]{}
	}
	if has(GroupNVLinkErrors | GroupNVLinkCounts) {
		g.NVLink.Counts, g.NVLink.BER = Reading[LinkCounts]{}, Reading[[]float64]{}
	}
	if has(GroupP2P) {
		g.NVLink.PeerP2P = Reading[PeerP2P]{}
	}
}
