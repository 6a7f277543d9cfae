package probe

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// bound is the largest value of a reading that can be true. A bus that does not answer
// reads as all ones, which is more than any check asks for.
type bound struct {
	most uint64 // 0: there is no bound
	unit string
}

// bounds are those of calls that return one number, or the sizes of the memory. Each leaves
// room for several generations of GPUs beyond today's.
var bounds = map[string]bound{
	// PCI Express Base Specification: generation 7 is of 2025; widths go up to x32.
	"nvmlDeviceGetCurrPcieLinkGeneration":   {8, ""},
	"nvmlDeviceGetMaxPcieLinkGeneration":    {8, ""},
	"nvmlDeviceGetGpuMaxPcieLinkGeneration": {8, ""},
	"nvmlDeviceGetCurrPcieLinkWidth":        {32, "lanes"},
	"nvmlDeviceGetMaxPcieLinkWidth":         {32, "lanes"},
	// The highest today is 14,001 MHz: GDDR7 of 28 Gbit/s, as nvidia-smi shows an RTX 5090.
	"nvmlDeviceGetMaxClockInfo":             {50_000, "MHz"},
	"nvmlDeviceGetApplicationsClock":        {50_000, "MHz"},
	"nvmlDeviceGetDefaultApplicationsClock": {50_000, "MHz"},
	"nvmlDeviceGetClockInfo":                {50_000, "MHz"},
	// The highest today is 1,400 W: GB300.
	"nvmlDeviceGetPowerUsage":                  {10_000_000, "mW"},
	"nvmlDeviceGetPowerManagementLimit":        {10_000_000, "mW"},
	"nvmlDeviceGetPowerManagementDefaultLimit": {10_000_000, "mW"},
	"nvmlDeviceGetEnforcedPowerLimit":          {10_000_000, "mW"},
	// nvml.h, nvmlUtilization_t: percent.
	"nvmlDeviceGetUtilizationRates": {100, "%"},
	// The most today is 288 GB: B300.
	"nvmlDeviceGetMemoryInfo":    {1 << 50, "bytes"},
	"nvmlDeviceGetMemoryInfo_v2": {1 << 50, "bytes"},
}

// fieldBounds are those of the numbered values. NVLink 5 has 50,000 MB/s a link, which some
// drivers give as 53,125.
var fieldBounds = fieldBoundsOf(bound{1_000_000, "MB/s"}, append([]uint32{nvml.FI_DEV_NVLINK_GET_SPEED, nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON}, speedFields...))

func fieldBoundsOf(b bound, ids []uint32) map[uint32]bound {
	all := map[uint32]bound{}
	for _, id := range ids {
		all[id] = b
	}
	return all
}

// exceeded is an error if one of the values that a call returned is beyond the bound.
func (b bound) exceeded(call string, values ...uint64) error {
	for _, v := range values {
		if b.most > 0 && v > b.most {
			return fmt.Errorf("%s: implausible value %d, want at most %d%s", call, v, b.most, spaced(b.unit))
		}
	}
	return nil
}

func spaced(unit string) string {
	if unit == "" {
		return ""
	}
	return " " + unit
}

// implausible is an error if what a call returned is beyond its bound.
func implausible(symbol, who string, v any) error {
	b, bounded := bounds[symbol]
	if !bounded {
		return nil
	}
	switch v := v.(type) {
	case int:
		return b.exceeded(symbol+who, uint64(max(v, 0)))
	case uint32:
		return b.exceeded(symbol+who, uint64(v))
	case uint64:
		return b.exceeded(symbol+who, v)
	case GPUMemory:
		return b.exceeded(symbol+who, v.Total, v.Free, v.Used)
	}
	return fmt.Errorf("%s%s: a %T has no bound", symbol, who, v)
}
