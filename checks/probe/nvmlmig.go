package probe

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// What NVML is asked for the sake of a job alone.

// NVLinkErrors count the errors of all NVLinks of a GPU together, since the driver
// was loaded: fields 38, 45, 52 and 59.
type NVLinkErrors struct {
	CRCFlit, CRCData, Replay, Recovery Reading[int]
	// What NVLink 5 counts in their place, by the names of LinkCounts.
	Sums Reading[map[string]uint64]
}

func (q query) nvlinkErrors() {
	v := q.fields(nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
		nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL)
	e := NVLinkErrors{CRCFlit: number(v[0]), CRCData: number(v[1]), Replay: number(v[2]), Recovery: number(v[3])}
	if old := []Reading[int]{e.CRCFlit, e.CRCData, e.Replay, e.Recovery}; !slices.ContainsFunc(old, told[int]) { // no driver adds those of NVLink 5 up
		q.nvlinkCounts()
		e.Sums = as(q.g.NVLink.Counts, LinkCounts.sums)
	}
	q.g.NVLinkErrors = e
}

func told[T any](r Reading[T]) bool { return r.Known || r.Err != nil }

// sums are the counters of all links together.
func (c LinkCounts) sums() map[string]uint64 {
	sums := map[string]uint64{}
	for name, links := range c {
		for _, n := range links {
			sums[name] += n
		}
	}
	return sums
}

// mig lists the MIG devices of a GPU by their UUIDs; where MIG is off there is
// none. Their numbers have gaps.
func (q query) mig() {
	most := ask(q.s, "nvmlDeviceGetMaxMigDeviceCount", q.who, q.d.GetMaxMigDeviceCount)
	if !most.Known {
		q.g.MIG.Err = most.Err
		return
	}
	var list []string
	for i := range min(most.Value, maxMIG) {
		device := ask(q.s, "nvmlDeviceGetMigDeviceHandleByIndex", q.who, func() (nvml.Device, nvml.Return) {
			d, ret := q.d.GetMigDeviceHandleByIndex(i)
			if ret == nvml.ERROR_NOT_FOUND {
				return nil, nvml.ERROR_NOT_SUPPORTED
			}
			return d, ret
		})
		if device.Err != nil {
			q.g.MIG.Err = device.Err
			return
		}
		if !device.Known {
			continue
		}
		uuid := text(ask(q.s, "nvmlDeviceGetUUID", q.who, device.Value.GetUUID))
		if uuid.Err != nil {
			q.g.MIG.Err = uuid.Err
			return
		}
		list = append(list, uuid.Value)
	}
	q.g.MIG = Known(list)
}

// maxMIG bounds what a library says: today's GPUs have at most 7 devices.
const maxMIG = 64
