package nvml

import (
	"cmp"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func (q query) readMIGMode() {
	m := &q.g.Modes
	if m.MIG.Known { // another group has read it
		return
	}
	m.MIG, m.MIGPending = q.modes("nvmlDeviceGetMigMode", func() (on, pending uint64, ret nvml.Return) {
		now, next, ret := q.d.GetMigMode()
		return uint64(uint32(now)), uint64(uint32(next)), ret
	})
}

// modes reads a mode of a GPU: now, and after the next reset.
func (q query) modes(symbol string, call func() (on, pending uint64, ret nvml.Return)) (on, pending Reading[bool]) {
	var next uint64
	on = is(ask(q.s, symbol, q.who, func() (now uint64, ret nvml.Return) {
		now, next, ret = call()
		return now, ret
	}))
	if !on.Known {
		return on, pending
	}
	if err := bounds[symbol].check(symbol+q.who, next); err != nil {
		return on, Failed[bool](err)
	}
	return on, Known(next != 0)
}

// readMIG lists the MIG devices of a GPU by their UUIDs, none if MIG is off. Their indexes have gaps.
func (q query) readMIG() {
	devices := q.listMIG()
	failed := devices.Err
	var list []string
	for _, d := range devices.Value {
		uuid := text(ask(q.s, "nvmlDeviceGetUUID", q.who, d.GetUUID))
		if failed = cmp.Or(failed, uuid.Err); uuid.Err == nil {
			list = append(list, uuid.Value)
		}
	}
	q.g.MIG = Reading[[]string]{Value: list, Known: devices.Known, Err: failed}
}

// listMIG returns the handles of the MIG devices. One of them can be destroyed at any time.
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
		if device = unknownIsUnsupported(device); device.Known {
			list.Value = append(list.Value, device.Value)
		}
		list.Known, list.Err = list.Known || device.Err == nil, cmp.Or(list.Err, device.Err)
	}
	list.Known = list.Known || list.Err == nil
	return list
}

// maxMIG bounds the library's number: current GPUs have at most 7 devices.
const maxMIG = 64

// countMIG adds up the volatile uncorrected errors of a location over the MIG devices: with MIG on, NVML
// reports them only there (nvml.h, nvmlDeviceGetMemoryErrorCounter).
func (q query) countMIG(place nvml.MemoryLocation) (total Reading[uint64]) {
	if q.readMIGMode(); !q.g.Modes.MIG.Value {
		total.Err = q.g.Modes.MIG.Err
		return total
	}
	devices := q.listMIG()
	total.Err = devices.Err
	for _, d := range devices.Value {
		r := ask(q.s, "nvmlDeviceGetMemoryErrorCounter", q.who, func() (uint64, nvml.Return) {
			return d.GetMemoryErrorCounter(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC, place)
		})
		total = plus(total, unknownIsUnsupported(r))
	}
	return total
}
