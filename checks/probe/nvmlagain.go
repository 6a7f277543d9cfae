package probe

// GPUProcesses asks NVML once more which processes are on the GPUs, and how much of
// their memory is in use, for who waits for both to go. The snapshot has it from
// then on. What was recorded does not change.
func (h *Host) GPUProcesses(doing func(call string)) (*NVML, error) {
	n, err := h.NVML(GroupProcesses, doing)
	s, _ := once(h, "nvml", func() (*nvmlSession, error) { return nil, err })
	if err != nil || s.lib == nil {
		return n, err
	}
	for i := range n.GPUs {
		n.GPUs[i].Processes, n.GPUs[i].Memory = Reading[[]GPUProcess]{}, Reading[GPUMemory]{}
	}
	s.doing = doing
	s.read(GroupProcesses)
	return n, nil
}
