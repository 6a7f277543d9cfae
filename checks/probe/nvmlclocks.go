package probe

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// SMClocks are the clocks of the multiprocessors now, in MHz, by NVML's index of the GPU.
// Nothing is known of a recorded node. As all of NVML it is for one goroutine at a time.
func (h *Host) SMClocks() []Reading[uint32] {
	s, err := once(h, "nvml", func() (*nvmlSession, error) { return h.openNVML(nil) })
	if err != nil {
		return nil
	}
	clocks := make([]Reading[uint32], len(s.snapshot.GPUs))
	s.doing = func(string) {}
	for i, d := range s.devices {
		if d != nil {
			clocks[i] = ask(s, "nvmlDeviceGetClockInfo", "", func() (uint32, nvml.Return) { return d.GetClockInfo(nvml.CLOCK_SM) })
		}
	}
	return clocks
}
