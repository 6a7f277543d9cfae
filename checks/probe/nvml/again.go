package nvml

import (
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// GPUProcesses asks NVML once more which processes are on the GPUs, and how much of
// their memory is in use, for who waits for both to go. The snapshot has it from
// then on. What was recorded does not change.
func GPUProcesses(h *probe.Host, doing func(call string)) (*Snapshot, error) {
	n, err := Ask(h, GroupProcesses, doing)
	s, _ := probe.Once(h, "nvml", func() (*nvmlSession, error) { return nil, err })
	if err != nil || s.lib == nil {
		return n, err
	}
	for i := range n.GPUs {
		n.GPUs[i].Processes, n.GPUs[i].Memory = Reading[[]GPUProcess]{}, Reading[GPUMemory]{}
	}
	s.doing = doing
	s.read(GroupProcesses)
	s.spread()
	return n, nil
}

// AskAgain asks NVML anew for some groups, and gives a snapshot of its own: who
// watches what goes on compares it with the first. What was recorded does not
// change. As all of NVML it is for one goroutine at a time.
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
		if g := &fresh.GPUs[i]; groups&GroupProcesses != 0 {
			g.Processes, g.Memory = Reading[[]GPUProcess]{}, Reading[GPUMemory]{}
		}
	}
	s.snapshot, s.doing = &fresh, doing
	s.read(groups)
	s.spread()
	s.snapshot = old
	return &fresh, nil
}
