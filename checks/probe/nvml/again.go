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
		n.GPUs[i].Processes, n.GPUs[i].Memory = Reading[[]GPUProcess]{}, Reading[GPUMemory]{}
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
