package nvml

import "github.com/NVIDIA/go-nvml/pkg/nvml"

func (q query) readMIGMode() {
	m := &q.g.Modes
	if m.MIG.Known { // another group has read it
		return
	}
	pending := 0
	m.MIG = is(ask(q.s, "nvmlDeviceGetMigMode", q.who, func() (on int, ret nvml.Return) {
		on, pending, ret = q.d.GetMigMode()
		return on, ret
	}))
	if m.MIG.Known {
		m.MIGPending = Known(pending != nvml.DEVICE_MIG_DISABLE)
	}
}

// readMIG lists the MIG devices of a GPU by their UUIDs, none if MIG is off. Their indexes have gaps.
func (q query) readMIG() {
	devices := q.listMIG()
	if !devices.Known {
		q.g.MIG.Err = devices.Err
		return
	}
	var list []string
	for _, d := range devices.Value {
		uuid := text(ask(q.s, "nvmlDeviceGetUUID", q.who, d.GetUUID))
		if uuid.Err != nil {
			q.g.MIG.Err = uuid.Err
			return
		}
		list = append(list, uuid.Value)
	}
	q.g.MIG = Known(list)
}

// listMIG returns the handles of the MIG devices.
func (q query) listMIG() (list Reading[[]nvml.Device]) {
	most := ask(q.s, "nvmlDeviceGetMaxMigDeviceCount", q.who, q.d.GetMaxMigDeviceCount)
	if !most.Known {
		return Reading[[]nvml.Device]{Err: most.Err}
	}
	for i := range min(most.Value, maxMIG) {
		device := ask(q.s, "nvmlDeviceGetMigDeviceHandleByIndex", q.who, func() (nvml.Device, nvml.Return) {
			d, ret := q.d.GetMigDeviceHandleByIndex(i)
			if ret == nvml.ERROR_NOT_FOUND {
				return nil, nvml.ERROR_NOT_SUPPORTED
			}
			return d, ret
		})
		if device.Err != nil {
			return Reading[[]nvml.Device]{Err: device.Err}
		}
		if device.Known {
			list.Value = append(list.Value, device.Value)
		}
	}
	list.Known = true
	return list
}

// maxMIG bounds the library's number: current GPUs have at most 7 devices.
const maxMIG = 64

// countMIG adds up the volatile uncorrected errors of a location over the MIG devices: with MIG on, NVML
// reports them only there (nvml.h, nvmlDeviceGetMemoryErrorCounter).
func (q query) countMIG(place nvml.MemoryLocation) (total Reading[uint64]) {
	if q.readMIGMode(); !q.g.Modes.MIG.Value {
		return total
	}
	devices := q.listMIG()
	if devices.Err != nil {
		return Reading[uint64]{Err: devices.Err}
	}
	for _, d := range devices.Value {
		r := ask(q.s, "nvmlDeviceGetMemoryErrorCounter", q.who, func() (uint64, nvml.Return) {
			return d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, place)
		})
		if r = unknownIsUnsupported(r); !r.Known {
			return r
		}
		total.Known = true
		total.Value += r.Value
	}
	return total
}
