package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// GPULoad has values of a GPU under load, read by four calls.
type GPULoad struct {
	Clock       Reading[uint32] // of the multiprocessors, MHz
	Temperature Reading[int]    // Celsius
	Power       Reading[uint32] // milliwatts; on most GPUs NVML returns the mean of a second
	Throttle    Reading[uint64] // see Throttle.Now
}

// GPULoads returns the current load of each GPU, by NVML's index. It makes few calls, because it is
// called repeatedly while rates are measured. For a recorded node it returns the recorded load.
// Like all of NVML it is not safe for concurrent use.
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
			Throttle:    s.readThrottle(d, ""),
		}
	}
	return loads
}

// readThrottle reads the reasons why the clocks are lower than possible.
func (s *nvmlSession) readThrottle(d nvml.Device, who string) Reading[uint64] {
	if s.offers("nvmlDeviceGetCurrentClocksEventReasons") {
		return ask(s, "nvmlDeviceGetCurrentClocksEventReasons", who, d.GetCurrentClocksEventReasons)
	}
	return ask(s, "nvmlDeviceGetCurrentClocksThrottleReasons", who, d.GetCurrentClocksThrottleReasons)
}
