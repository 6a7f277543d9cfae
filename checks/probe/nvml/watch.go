package nvml

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Watch samples GPUs while a job runs. Calls take a lock of the driver that the job's calls need, too:
// a sample is one call for all fields of a GPU, and a few quick ones for values that have no field. It
// lists no processes and asks for no PCIe throughput, since these calls take milliseconds.
type Watch struct {
	s     *nvmlSession
	set   nvml.EventSet // nil if the driver has no events, or they ended with an error
	links []int         // for each GPU the number of its NVLinks with counters of their own, 0: the driver sums up
	last  []state
	had   [][]bool // for each GPU the fields that its last sample had
	gpm   []*gpm   // for each GPU, nil without
}

// state has the values of a GPU whose change is an event.
type state struct{ recovery, pending, failed, uncorrected Reading[int64] }

// Sample has the values of one GPU.
type Sample struct {
	State   error         // the GPU is lost, or requires a reset: see [IsGPUState]
	Skipped bool          // the GPU was not asked
	Took    time.Duration // by its calls

	Busy, Memory Reading[int]    // share of the last sampling period in which a kernel ran, and memory was used, %
	Power        Reading[int]    // mW
	Clock        Reading[uint32] // of the multiprocessors, MHz
	Margin       Reading[int]    // degrees below the limit at which it slows down
	Used         Reading[uint64] // bytes
	// Counters since the driver was loaded.
	NVLink, PCIe        Reading[uint64]   // bytes, both directions
	Capped              Reading[int64]    // ns with clocks lowered by the power limit,
	Slow                [3]Reading[int64] // by software for heat, by hardware for heat, by the power brake
	Errors, Uncorrected Reading[int64]    // corrected and uncorrected errors of the memory
	Rows                [2]Reading[int64] // remapped for corrected, uncorrected errors

	// Since the sample before, %; Hopper and newer.
	SM, Tensor, DRAM Reading[float64]
}

// These are the fields of a sample, in their order, and behind them those of NVLinks and PCIe.
var watched = []uint32{
	nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, nvml.FI_DEV_REMAPPED_PENDING, nvml.FI_DEV_REMAPPED_FAILURE, nvml.FI_DEV_ECC_DBE_VOL_TOTAL,
	nvml.FI_DEV_ECC_SBE_VOL_TOTAL, nvml.FI_DEV_REMAPPED_COR, nvml.FI_DEV_REMAPPED_UNC, nvml.FI_DEV_POWER_INSTANT,
	nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
	nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
	nvml.FI_DEV_PCIE_COUNT_TX_BYTES, nvml.FI_DEV_PCIE_COUNT_RX_BYTES,
}

// allLinks is the scope of a field that is summed up across all NVLinks.
const allLinks = math.MaxUint32

// WatchGPUs starts NVML, and registers for its events.
func WatchGPUs(h *probe.Host, doing func(call string)) (*Watch, error) {
	if _, err := Ask(h, 0, doing); err != nil {
		return nil, err
	}
	s, err := probe.Once(h, "nvml", func() (*nvmlSession, error) { return openNVML(h, doing) })
	switch {
	case err != nil:
		return nil, err
	case s.lib == nil:
		return nil, probe.ErrRecorded
	}
	w := &Watch{s: s, links: make([]int, len(s.devices)), last: make([]state, len(s.devices)), had: make([][]bool, len(s.devices)), gpm: make([]*gpm, len(s.devices))}
	s.doing = doing
	w.register()
	get := new(gpmRequest)
	s.each(func(q query) {
		links := q.readLinks()
		sums := q.scopedFields([]scoped{{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, allLinks}})
		if !sums[0].Known {
			w.links[q.g.Index] = len(links)
		}
		w.gpm[q.g.Index] = openGPM(q, get)
	})
	return w, nil
}

// each calls a function for each GPU that answers.
func (s *nvmlSession) each(call func(q query)) {
	defer func() { s.at = aboutNode }()
	for i, d := range s.devices {
		if d != nil && s.stateOf(i) == nil {
			s.at = i
			call(query{s, &s.snapshot.GPUs[i], d, fmt.Sprintf("(%d)", i)})
		}
	}
}

// register creates the set of events. A driver can lack them.
func (w *Watch) register() {
	const wanted = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError | nvml.EventTypeDramRetirementEvent | nvml.EventTypeDramRetirementFailure |
		nvml.EventTypeFatalPoisonError | nvml.EventTypeGpuUnavailableError | nvml.EventTypeGpuRecoveryAction
	s := w.s
	if !s.offers("nvmlEventSetWait_v2") {
		return
	}
	set := ask(s, "nvmlEventSetCreate", "", s.lib.EventSetCreate)
	if !set.Known {
		return
	}
	s.each(func(q query) {
		has := ask(s, "nvmlDeviceGetSupportedEventTypes", q.who, q.d.GetSupportedEventTypes)
		if types := has.Value & wanted; types != 0 {
			on := ask(s, "nvmlDeviceRegisterEvents", q.who, func() (bool, nvml.Return) { return true, q.d.RegisterEvents(types, set.Value) })
			if on.Known {
				w.set = set.Value
			}
		}
	})
	if w.set == nil {
		w.freeEvents(set.Value, s.doing)
	}
}

// GPUs returns the identities of the GPUs, in the order of their samples.
func (w *Watch) GPUs() []GPU { return w.s.snapshot.GPUs }

// Unasked lists the GPUs that gave no answer at the start: they have no samples.
func (w *Watch) Unasked() (list []int) {
	for i, d := range w.s.devices {
		if d == nil {
			list = append(list, i)
		}
	}
	return list
}

// Limits returns the power limits, W; 0 if unknown.
func (w *Watch) Limits(doing func(string)) []float64 {
	limits := make([]float64, len(w.s.devices))
	w.s.doing = doing
	w.s.each(func(q query) {
		limits[q.g.Index] = float64(ask(q.s, "nvmlDeviceGetEnforcedPowerLimit", q.who, q.d.GetEnforcedPowerLimit).Value) / 1000
	})
	return limits
}

// Enough is the time after which a GPU is not asked for its remaining values.
const Enough = time.Second

// Sample reads all GPUs, except those for which skip is true. changed lists the GPUs that need a check: one that
// is lost, asks for a recovery, or has new errors that were not corrected.
func (w *Watch) Sample(doing func(string), skip func(gpu int) bool) (samples []Sample, changed []string) {
	w.s.doing = doing
	samples = make([]Sample, len(w.s.devices))
	for i := range samples {
		samples[i].State = w.s.stateOf(i)
	}
	w.s.each(func(q query) {
		i := q.g.Index
		if skip(i) {
			samples[i].Skipped = true
			return
		}
		began := time.Now()
		sample, now := w.sample(q, func() bool { return time.Since(began) >= Enough })
		samples[i] = sample
		samples[i].Took = time.Since(began)
		if samples[i].State = w.s.stateOf(i); samples[i].State != nil {
			changed = append(changed, fmt.Sprintf("gpu%d: %v", i, samples[i].State))
		} else if was := w.last[i]; was != (state{}) {
			changed = append(changed, now.since(i, was)...)
		}
		w.last[i] = now.or(w.last[i])
	})
	return samples, changed
}

// or returns the values, and those of an earlier sample for the ones that this sample lacks.
func (s state) or(was state) state {
	for _, v := range []struct{ now, was *Reading[int64] }{
		{&s.recovery, &was.recovery}, {&s.pending, &was.pending}, {&s.failed, &was.failed}, {&s.uncorrected, &was.uncorrected},
	} {
		if !v.now.Known {
			*v.now = *v.was
		}
	}
	return s
}

// since lists the changes of a GPU.
func (s state) since(gpu int, was state) (list []string) {
	for _, v := range []struct {
		name     string
		was, now Reading[int64]
	}{
		{"recovery action", was.recovery, s.recovery}, {"pending remapping of rows", was.pending, s.pending},
		{"failed remapping of rows", was.failed, s.failed}, {"uncorrected errors of the memory", was.uncorrected, s.uncorrected},
	} {
		if v.was.Known && v.now.Known && v.now.Value != v.was.Value && v.now.Value != 0 {
			list = append(list, fmt.Sprintf("gpu%d: %s %d, was %d", gpu, v.name, v.now.Value, v.was.Value))
		}
	}
	return list
}

func (w *Watch) sample(q query, enough func() bool) (out Sample, now state) {
	fields := make([]scoped, 0, len(watched)+2)
	for _, id := range watched {
		fields = append(fields, scoped{id: id})
	}
	if n := w.links[q.g.Index]; n == 0 {
		fields = append(fields, scoped{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, allLinks}, scoped{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, allLinks})
	} else {
		for link := range n {
			fields = append(fields, scoped{nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, uint32(link)}, scoped{nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES, uint32(link)})
		}
	}
	v := q.scopedFields(fields)
	now = state{v[0], v[1], v[2], v[3]}
	if w.had[q.g.Index] == nil {
		w.had[q.g.Index] = make([]bool, len(v))
	}
	had := w.had[q.g.Index]
	links := bytesOf(v[len(watched):], had[len(watched):], 1<<10)
	if w.links[q.g.Index] > 0 {
		links = bytesOf(v[len(watched):], had[len(watched):], 1)
	}
	out = Sample{
		Uncorrected: v[3], Errors: total(v[3:5], had[3:5]), Rows: [2]Reading[int64]{v[5], v[6]},
		Power: number(v[7]), Capped: v[8], Slow: [3]Reading[int64]{v[9], v[10], v[11]},
		PCIe: bytesOf(v[12:14], had[12:14], 1), NVLink: links,
	}
	for _, read := range others {
		if enough() {
			return out, now
		}
		read(q, &out)
	}
	if !enough() {
		w.gpm[q.g.Index].read(q, &out)
	}
	return out, now
}

// others read the values that have no field.
var others = []func(q query, out *Sample){
	func(q query, out *Sample) {
		memory := uint32(0)
		out.Busy = number(ask(q.s, "nvmlDeviceGetUtilizationRates", q.who, func() (uint32, nvml.Return) {
			u, ret := q.d.GetUtilizationRates()
			memory = u.Memory
			return u.Gpu, ret
		}))
		if out.Busy.Known && memory <= 100 {
			out.Memory = Known(int(memory))
		}
	},
	func(q query, out *Sample) {
		if !out.Power.Known {
			out.Power = number(ask(q.s, "nvmlDeviceGetPowerUsage", q.who, q.d.GetPowerUsage))
		}
	},
	func(q query, out *Sample) {
		out.Clock = ask(q.s, "nvmlDeviceGetClockInfo", q.who, func() (uint32, nvml.Return) { return q.d.GetClockInfo(nvml.CLOCK_SM) })
	},
	func(q query, out *Sample) {
		out.Margin = number(ask(q.s, "nvmlDeviceGetMarginTemperature", q.who, func() (int32, nvml.Return) {
			m, ret := q.d.GetMarginTemperature()
			return m.MarginTemperature, ret
		}))
	},
	func(q query, out *Sample) {
		out.Used = as(ask(q.s, "nvmlDeviceGetMemoryInfo_v2", q.who, func() (GPUMemory, nvml.Return) {
			m, ret := q.d.GetMemoryInfo_v2()
			return GPUMemory{m.Total, m.Free, m.Used}, ret
		}), func(m GPUMemory) uint64 { return m.Used })
	},
}

// total adds up readings; had are those that were known in the sample before. The sum is known if some are, and these
// are the same as before: one that fails, or begins to answer, would let the sum jump.
func total(list []Reading[int64], had []bool) (sum Reading[int64]) {
	first, same := !slices.Contains(had, true), true
	for i, r := range list {
		sum.Known = sum.Known || r.Known
		sum.Value += r.Value
		same = same && r.Known == had[i]
		had[i] = r.Known
	}
	if !first && !same {
		return Reading[int64]{}
	}
	return sum
}

// bytesOf adds up counters of some unit.
func bytesOf(list []Reading[int64], had []bool, unit uint64) Reading[uint64] {
	return as(total(list, had), func(n int64) uint64 { return uint64(max(n, 0)) * unit })
}

// freeEvents frees a set of events that is not used again.
func (w *Watch) freeEvents(set nvml.EventSet, doing func(string)) {
	doing("nvmlEventSetFree")
	_ = w.s.lib.EventSetFree(set)
}

// Wait waits for an event, at most for limit. Without events of the driver it waits for the whole limit. An error is
// returned once: from then on there are no events.
func (w *Watch) Wait(limit time.Duration, doing func(string)) (event string, err error) {
	if w.set == nil || limit <= 0 {
		time.Sleep(limit)
		return "", nil
	}
	began := time.Now()
	doing("nvmlEventSetWait")
	const early = time.Millisecond - 1 // or it would wait twice
	data, ret := w.s.lib.EventSetWait(w.set, uint32((limit + early).Milliseconds()))
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_TIMEOUT: // it can be early
		time.Sleep(max(0, limit-time.Since(began)))
		return "", nil
	default: // which comes back at once and for good: the kernel's log and the samples remain
		w.freeEvents(w.set, doing)
		w.set = nil
		time.Sleep(max(0, limit-time.Since(began)))
		return "", &Error{"nvmlEventSetWait", int(ret)}
	}
	who := "a GPU"
	if i := slices.Index(w.s.devices, data.Device); i >= 0 {
		who = fmt.Sprintf("gpu%d", i)
	}
	if data.EventType == nvml.EventTypeXidCriticalError {
		return fmt.Sprintf("%s: Xid %d", who, data.EventData), nil
	}
	return fmt.Sprintf("%s: event %#x of NVML, %d", who, data.EventType, data.EventData), nil
}
