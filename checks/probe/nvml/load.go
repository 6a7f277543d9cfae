package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// GPULoad is what NVML says of a GPU at work, by four calls.
type GPULoad struct {
	Clock       Reading[uint32] // of the multiprocessors, MHz
	Temperature Reading[int]    // Celsius
	Power       Reading[uint32] // milliwatts; NVML gives the mean of a second on most GPUs
	Throttle    Reading[uint64] // see Throttle.Now
}

// GPULoads returns the load of each GPU now, by NVML's index. It asks for little, as it
// is called again and again while rates are measured. Of a recorded node it returns what
// was recorded. As all of NVML it is for one goroutine at a time.
func GPULoads(h *probe.Host) []GPULoad {
	s, err := probe.Once(h, "nvml", func() (*nvmlSession, error) { return openNVML(h, nil) })
	if err != nil {
		return nil
	}
	loads := make([]GPULoad, len(s.snapshot.GPUs))
	if s.lib == nil {
		for i := range loads {
			g := &s.snapshot.GPUs[i]
			loads[i] = GPULoad{Temperature: g.Temperature.GPU, Power: g.Power.Draw, Throttle: g.Throttle.Now}
		}
		return loads
	}
	s.doing = func(string) {}
	defer func() { s.at = aboutNode }()
	for i, d := range s.devices {
		if d == nil {
			continue
		}
		s.at = i
		loads[i] = GPULoad{
			Clock:       ask(s, "nvmlDeviceGetClockInfo", "", func() (uint32, nvml.Return) { return d.GetClockInfo(nvml.CLOCK_SM) }),
			Temperature: number(ask(s, "nvmlDeviceGetTemperature", "", func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) })),
			Power:       ask(s, "nvmlDeviceGetPowerUsage", "", d.GetPowerUsage),
			Throttle:    s.throttleNow(d, ""),
		}
	}
	return loads
}

// throttleNow asks for the reasons for which the clocks are lower than they could be.
func (s *nvmlSession) throttleNow(d nvml.Device, who string) Reading[uint64] {
	if s.can("nvmlDeviceGetCurrentClocksEventReasons") {
		return ask(s, "nvmlDeviceGetCurrentClocksEventReasons", who, d.GetCurrentClocksEventReasons)
	}
	return ask(s, "nvmlDeviceGetCurrentClocksThrottleReasons", who, d.GetCurrentClocksThrottleReasons)
}
