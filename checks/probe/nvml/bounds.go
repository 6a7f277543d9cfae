package nvml

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// bound is the largest plausible value of a reading. A bus that does not answer reads as all ones,
// which exceeds the value that any check compares with. 32 ones are implausible below a bound, too.
type bound struct {
	most uint64 // 0: no bound
	unit string
}

// These are the bounds of counters, of rows and banks of memory, and of numbers of a list that later
// drivers may lengthen. A counter of nanoseconds needs 36 years for its bound; an H100 has 2,560 banks.
var (
	ofCounter = bound{1 << 60, ""}
	ofRows    = bound{1_000_000, ""}
	ofKind    = bound{255, ""}
)

// bounds are the bounds of calls that return one number, the sizes of the memory, or its rows. Each
// leaves room for several future generations of GPUs, except those of switches.
var bounds = map[string]bound{
	// PCI Express Base Specification: generation 7 was published in 2025; widths go up to x32.
	"nvmlDeviceGetCurrPcieLinkGeneration":   {8, ""},
	"nvmlDeviceGetMaxPcieLinkGeneration":    {8, ""},
	"nvmlDeviceGetGpuMaxPcieLinkGeneration": {8, ""},
	"nvmlDeviceGetCurrPcieLinkWidth":        {32, "lanes"},
	"nvmlDeviceGetMaxPcieLinkWidth":         {32, "lanes"},
	// The highest today is 14,001 MHz: GDDR7 at 28 Gbit/s, as nvidia-smi shows for an RTX 5090.
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
	// nvml.h, nvmlEnableState_t, NVML_DEVICE_MIG_ENABLE, and flags: off or on.
	"nvmlDeviceGetDefaultEccMode":            {1, ""},
	"nvmlDeviceGetEccMode":                   {1, ""},
	"nvmlDeviceGetMigMode":                   {1, ""},
	"nvmlDeviceGetNvLinkState":               {1, ""},
	"nvmlDeviceGetPersistenceMode":           {1, ""},
	"nvmlDeviceGetRepairStatus":              {1, ""},
	"nvmlDeviceGetRetiredPagesPendingStatus": {1, ""},
	"nvmlDeviceGetSramEccErrorStatus":        {1, ""},
	"nvmlDeviceGetUnrepairableMemoryFlag_v1": {1, ""},

	"nvmlDeviceGetMemoryErrorCounter":   ofCounter,
	"nvmlDeviceGetPcieReplayCounter":    ofCounter,
	"nvmlDeviceGetRemappedRows":         ofRows,
	"nvmlDeviceGetRowRemapperHistogram": ofRows,
	"nvmlDeviceGetComputeMode":          ofKind,
	"nvmlDeviceGetP2PStatus":            ofKind,
	// nvml.h, nvmlClocksEventReasons: the highest bit today is 8.
	"nvmlDeviceGetCurrentClocksEventReasons":    {1<<31 - 1, ""},
	"nvmlDeviceGetCurrentClocksThrottleReasons": {1<<31 - 1, ""},
}

// fieldBounds are the bounds of the numbered values. NVLink 5 has 50,000 MB/s per link, which some
// drivers report as 53,125.
var fieldBounds = sync.OnceValue(func() map[uint32]bound {
	all := map[uint32]bound{}
	add := func(b bound, ids ...uint32) {
		for _, id := range ids {
			all[id] = b
		}
	}
	add(bound{1_000_000, "MB/s"}, append([]uint32{nvml.FI_DEV_NVLINK_GET_SPEED, nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON}, speedFields...)...)
	add(ofKind, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, nvml.FI_DEV_RESET_STATUS, nvml.FI_DEV_DRAIN_AND_RESET_STATUS)
	add(ofRows, nvml.FI_DEV_REMAPPED_COR, nvml.FI_DEV_REMAPPED_UNC,
		nvml.FI_DEV_ACTIVE_BANK_REMAPPINGS, nvml.FI_DEV_INACTIVE_BANK_REMAPPINGS, nvml.FI_DEV_BANK_REMAPPER_HISTOGRAM_NONE)
	add(bound{1, ""}, nvml.FI_DEV_REMAPPED_PENDING, nvml.FI_DEV_REMAPPED_FAILURE, nvml.FI_DEV_PENDING_BANK_REMAPPING)
	add(ofCounter, nvml.FI_DEV_ECC_SBE_VOL_TOTAL, nvml.FI_DEV_ECC_DBE_VOL_TOTAL,
		nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
		nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
		nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
		nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL)
	for _, c := range slices.Concat(linkCounters...) {
		for link := range MaxLinks {
			add(ofCounter, c.field(link))
		}
	}
	return all
})

// check returns an error if one of the values of a call exceeds the bound, or is all ones.
func (b bound) check(call string, values ...uint64) error {
	for _, v := range values {
		switch {
		case b.most == 0:
		case v > b.most:
			return fmt.Errorf("%s: implausible value %d, want at most %d%s", call, v, b.most, spaced(b.unit))
		case v == math.MaxUint32:
			return fmt.Errorf("%s: implausible value %d, all ones", call, v)
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

// checkBound returns an error if the result of a call exceeds its bound.
func checkBound(symbol, who string, v any) error {
	b, bounded := bounds[symbol]
	if !bounded {
		return nil
	}
	switch v := v.(type) {
	case int:
		return b.check(symbol+who, uint64(max(v, 0)))
	case nvml.EnableState:
		return b.check(symbol+who, uint64(uint32(v)))
	case nvml.ComputeMode:
		return b.check(symbol+who, uint64(uint32(v)))
	case nvml.GpuP2PStatus:
		return b.check(symbol+who, uint64(uint32(v)))
	case uint32:
		return b.check(symbol+who, uint64(v))
	case uint64:
		return b.check(symbol+who, v)
	case GPUMemory:
		return b.check(symbol+who, v.Total, v.Free, v.Used)
	case RemappedRows:
		return b.check(symbol+who, uint64(v.Corrected), uint64(v.Uncorrected))
	case RowHistogram:
		return b.check(symbol+who, uint64(v.Max), uint64(v.High), uint64(v.Partial), uint64(v.Low), uint64(v.None))
	}
	return fmt.Errorf("%s%s: no bound for this type of value", symbol, who)
}
