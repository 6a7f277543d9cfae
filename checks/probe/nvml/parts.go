package nvml

import (
	"cmp"
	"encoding/hex"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/ebitengine/purego"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file reads the values of a GPU, group by group.

// query reads one GPU.
type query struct {
	s   *nvmlSession
	g   *GPU
	d   nvml.Device
	who string
}

var parts = []struct {
	group Group
	read  func(query)
}{
	{GroupRecovery, query.readRecovery}, {GroupECC, query.readECC}, {GroupRows, query.readRows}, {GroupModes, query.readModes},
	{GroupTemperature, query.readTemperature}, {GroupPower, query.readPower}, {GroupClocks, query.readClocks}, {GroupThrottle, query.readThrottleReasons},
	{GroupPCIe, query.readLink}, {GroupProcesses, query.readProcesses}, {GroupInforom, query.readInforom},
	{GroupNVLinks, query.readNVLinks}, {GroupNVLinkErrors, query.readNVLinkErrors}, {GroupMIG, query.readMIG},
	{GroupNVLinkSpeed, query.readNVLinkSpeed}, {GroupNVLinkFar, query.readNVLinkFar}, {GroupNVLinkCounts, query.readNVLinkCounts},
	{GroupP2P, query.readP2P}, {GroupFabric, query.readFabric}, {GroupMemory, query.readMemory},
	{GroupBoard, query.readBoard},
}

func (q query) readBoard() {
	q.g.PartNumber = text(ask(q.s, "nvmlDeviceGetBoardPartNumber", q.who, q.d.GetBoardPartNumber))
}

func (q query) readRecovery() {
	v := q.fields(nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, nvml.FI_DEV_RESET_STATUS, nvml.FI_DEV_DRAIN_AND_RESET_STATUS)
	q.g.Recovery = Recovery{Action: number(v[0]), Reset: is(number(v[1])), DrainReset: is(number(v[2]))}
}

func (q query) readECCMode() {
	e := &q.g.ECC
	if e.On.Known { // another group has read it
		return
	}
	e.On, e.Pending = q.modes("nvmlDeviceGetEccMode", func() (on, pending uint64, ret nvml.Return) {
		now, next, ret := q.d.GetEccMode()
		return uint64(uint32(now)), uint64(uint32(next)), ret
	})
	if e.On.Known && !e.On.Value {
		e.Default = is(ask(q.s, "nvmlDeviceGetDefaultEccMode", q.who, q.d.GetDefaultEccMode))
	}
}

func (q query) readECC() {
	q.readECCMode()
	e := &q.g.ECC
	if !e.On.Known || e.On.Value { // the counters of a GPU without ECC are not supported
		e.DRAM = q.counts(nvml.MEMORY_LOCATION_DRAM)
		e.SRAM = q.counts(nvml.MEMORY_LOCATION_SRAM)
		if e.SRAM == (ECCCounts{}) { // Volta counts by location
			e.SRAM = q.counts(nvml.MEMORY_LOCATION_L1_CACHE, nvml.MEMORY_LOCATION_L2_CACHE, nvml.MEMORY_LOCATION_REGISTER_FILE,
				nvml.MEMORY_LOCATION_TEXTURE_SHM, nvml.MEMORY_LOCATION_CBU)
		}
		if r := e.SRAM.Uncorrected; !r.Known && r.Err == nil {
			e.SRAM.Uncorrected = q.countMIG(nvml.MEMORY_LOCATION_SRAM)
		}
	}
	e.SRAMThreshold = is(ask(q.s, "nvmlDeviceGetSramEccErrorStatus", q.who, func() (uint32, nvml.Return) {
		s, ret := q.d.GetSramEccErrorStatus()
		return s.BThresholdExceeded, ret
	}))
	e.Unrepairable = is(ask(q.s, "nvmlDeviceGetUnrepairableMemoryFlag_v1", q.who, func() (uint32, nvml.Return) {
		s, ret := q.d.GetUnrepairableMemoryFlag_v1()
		return s.BUnrepairableMemory, ret
	}))
	e.RepairPending = is(ask(q.s, "nvmlDeviceGetRepairStatus", q.who, func() (uint32, nvml.Return) {
		s, ret := q.d.GetRepairStatus()
		return s.BChannelRepairPending | s.BTpcRepairPending, ret
	}))
}

// counts adds up the errors of the locations that the GPU supports.
func (q query) counts(places ...nvml.MemoryLocation) ECCCounts {
	sum := func(kind nvml.MemoryErrorType, since nvml.EccCounterType) (total Reading[uint64]) {
		for _, place := range places {
			r := unknownIsUnsupported(ask(q.s, "nvmlDeviceGetMemoryErrorCounter", q.who, func() (uint64, nvml.Return) {
				return q.d.GetMemoryErrorCounter(kind, since, place)
			}))
			total = plus(total, r)
		}
		return total
	}
	return ECCCounts{
		Corrected:            sum(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC),
		Uncorrected:          sum(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC),
		CorrectedAggregate:   sum(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC),
		UncorrectedAggregate: sum(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC),
	}
}

func (q query) readRows() {
	r := &q.g.Rows
	r.Remapped = ask(q.s, "nvmlDeviceGetRemappedRows", q.who, func() (m RemappedRows, ret nvml.Return) {
		m.Corrected, m.Uncorrected, m.Pending, m.Failed, ret = q.d.GetRemappedRows()
		return m, ret
	})
	if !r.Remapped.Known && r.Remapped.Err == nil { // as with MIG devices
		q.readMIGMode()
		mig := q.g.Modes.MIG
		v := q.fields(nvml.FI_DEV_REMAPPED_COR, nvml.FI_DEV_REMAPPED_UNC, nvml.FI_DEV_REMAPPED_PENDING, nvml.FI_DEV_REMAPPED_FAILURE)
		says := slices.ContainsFunc(v, func(f Reading[int64]) bool { return f.Value != 0 || f.Err != nil })
		if says || mig.Value || mig.Err != nil { // else 0 can mean that the GPU has no row remapper
			r.Remapped.Value = RemappedRows{int(v[0].Value), int(v[1].Value), v[2].Value != 0, v[3].Value != 0}
			for _, f := range v { // one of them can show a fault although another one fails
				r.Remapped.Known, r.Remapped.Err = r.Remapped.Known || f.Known, cmp.Or(r.Remapped.Err, f.Err)
			}
		}
	}
	r.Histogram = ask(q.s, "nvmlDeviceGetRowRemapperHistogram", q.who, func() (RowHistogram, nvml.Return) {
		h, ret := q.d.GetRowRemapperHistogram()
		return RowHistogram{int(h.Max), int(h.High), int(h.Partial), int(h.Low), int(h.None)}, ret
	})
	r.Banks = q.readBanks()
	if r.Remapped.Known {
		return // a GPU that remaps rows retires no pages
	}
	retired := func(cause nvml.PageRetirementCause) Reading[int] {
		return ask(q.s, "nvmlDeviceGetRetiredPages", q.who, func() (int, nvml.Return) {
			pages, ret := q.listRetiredPages("nvmlDeviceGetRetiredPages", cause)
			return len(pages), ret
		})
	}
	r.RetiredSBE = retired(nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS)
	r.RetiredDBE = retired(nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR)
	r.RetiredPending = is(ask(q.s, "nvmlDeviceGetRetiredPagesPendingStatus", q.who, q.d.GetRetiredPagesPendingStatus))
}

// readBanks reads the bank remapper, which newer drivers and GPUs have.
func (q query) readBanks() (r Reading[RemappedBanks]) {
	v := q.fields(nvml.FI_DEV_ACTIVE_BANK_REMAPPINGS, nvml.FI_DEV_INACTIVE_BANK_REMAPPINGS, nvml.FI_DEV_BANK_REMAPPER_HISTOGRAM_NONE, nvml.FI_DEV_PENDING_BANK_REMAPPING)
	r.Value = RemappedBanks{int(v[0].Value), int(v[1].Value), int(v[2].Value), v[3].Value != 0}
	for _, f := range v { // one of them can show a fault although another one fails
		r.Known, r.Err = r.Known || f.Known, cmp.Or(r.Err, f.Err)
	}
	return r
}

// computeModes are the names of the compute modes.
var computeModes = map[nvml.ComputeMode]string{
	nvml.COMPUTEMODE_DEFAULT: "default", nvml.COMPUTEMODE_PROHIBITED: "prohibited", nvml.COMPUTEMODE_EXCLUSIVE_PROCESS: "exclusive",
	nvml.COMPUTEMODE_EXCLUSIVE_THREAD: "exclusive-thread",
}

func (q query) readModes() {
	q.readECCMode()
	m := &q.g.Modes
	m.Persistence = is(ask(q.s, "nvmlDeviceGetPersistenceMode", q.who, q.d.GetPersistenceMode))
	m.Compute = as(ask(q.s, "nvmlDeviceGetComputeMode", q.who, q.d.GetComputeMode), func(c nvml.ComputeMode) string {
		if name, ok := computeModes[c]; ok {
			return name
		}
		return "unknown"
	})
	q.readMIGMode()
}

func temperatureOf(d nvml.Device) func() (uint32, nvml.Return) {
	return func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) }
}

func (q query) readTemperature() {
	t := &q.g.Temperature
	t.GPU = number(ask(q.s, "nvmlDeviceGetTemperature", q.who, temperatureOf(q.d)))
	t.Margin = number(ask(q.s, "nvmlDeviceGetMarginTemperature", q.who, func() (int32, nvml.Return) {
		m, ret := q.d.GetMarginTemperature()
		return m.MarginTemperature, ret
	}))
	v := q.fields(nvml.FI_DEV_MEMORY_TEMP, nvml.FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, nvml.FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT)
	t.HBM, t.MarginMax, t.MarginSlowdown, t.MarginShutdown = number(v[0]), number(v[1]), number(v[2]), number(v[3])
	limit := func(which nvml.TemperatureThresholds) Reading[int] {
		return number(unknownIsUnsupported(ask(q.s, "nvmlDeviceGetTemperatureThreshold", q.who, func() (uint32, nvml.Return) { return q.d.GetTemperatureThreshold(which) })))
	}
	t.MaxGPU, t.MaxHBM = limit(nvml.TEMPERATURE_THRESHOLD_GPU_MAX), limit(nvml.TEMPERATURE_THRESHOLD_MEM_MAX)
	t.Slowdown, t.Shutdown = limit(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN), limit(nvml.TEMPERATURE_THRESHOLD_SHUTDOWN)
}

func (q query) readPower() {
	q.g.Power = Power{
		Draw:     ask(q.s, "nvmlDeviceGetPowerUsage", q.who, q.d.GetPowerUsage),
		Limit:    ask(q.s, "nvmlDeviceGetPowerManagementLimit", q.who, q.d.GetPowerManagementLimit),
		Default:  ask(q.s, "nvmlDeviceGetPowerManagementDefaultLimit", q.who, q.d.GetPowerManagementDefaultLimit),
		Enforced: ask(q.s, "nvmlDeviceGetEnforcedPowerLimit", q.who, q.d.GetEnforcedPowerLimit),
	}
}

func (q query) readClocks() {
	clock := func(symbol string, kind nvml.ClockType, get func(nvml.ClockType) (uint32, nvml.Return)) Reading[uint32] {
		return ask(q.s, symbol, q.who, func() (uint32, nvml.Return) { return get(kind) })
	}
	q.g.Clocks = Clocks{
		MaxGraphics: clock("nvmlDeviceGetMaxClockInfo", nvml.CLOCK_GRAPHICS, q.d.GetMaxClockInfo),
		MaxMemory:   clock("nvmlDeviceGetMaxClockInfo", nvml.CLOCK_MEM, q.d.GetMaxClockInfo),
		AppGraphics: clock("nvmlDeviceGetApplicationsClock", nvml.CLOCK_GRAPHICS, q.d.GetApplicationsClock),
		AppMemory:   clock("nvmlDeviceGetApplicationsClock", nvml.CLOCK_MEM, q.d.GetApplicationsClock),

		DefaultGraphics: clock("nvmlDeviceGetDefaultApplicationsClock", nvml.CLOCK_GRAPHICS, q.d.GetDefaultApplicationsClock),
		DefaultMemory:   clock("nvmlDeviceGetDefaultApplicationsClock", nvml.CLOCK_MEM, q.d.GetDefaultApplicationsClock),
	}
}

func (q query) readThrottleReasons() {
	t := &q.g.Throttle
	t.Now = q.s.readThrottle(q.d, q.who)
	v := q.fields(nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
		nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN)
	ns := func(r Reading[int64]) Reading[uint64] {
		return as(r, func(n int64) uint64 { return uint64(max(n, 0)) })
	}
	t.PowerCap, t.Thermal, t.HardwareThermal, t.PowerBrake = ns(v[0]), ns(v[1]), ns(v[2]), ns(v[3])
}

func (q query) readLink() {
	q.g.Link = Link{
		Gen:       ask(q.s, "nvmlDeviceGetCurrPcieLinkGeneration", q.who, q.d.GetCurrPcieLinkGeneration),
		Width:     ask(q.s, "nvmlDeviceGetCurrPcieLinkWidth", q.who, q.d.GetCurrPcieLinkWidth),
		MaxGen:    ask(q.s, "nvmlDeviceGetMaxPcieLinkGeneration", q.who, q.d.GetMaxPcieLinkGeneration),
		MaxWidth:  ask(q.s, "nvmlDeviceGetMaxPcieLinkWidth", q.who, q.d.GetMaxPcieLinkWidth),
		GPUMaxGen: ask(q.s, "nvmlDeviceGetGpuMaxPcieLinkGeneration", q.who, q.d.GetGpuMaxPcieLinkGeneration),
		Replays:   ask(q.s, "nvmlDeviceGetPcieReplayCounter", q.who, q.d.GetPcieReplayCounter),
	}
	if l := &q.g.Link; l.Gen.Known && l.Gen.Value < l.MaxGen.Value {
		l.Work = q.readWork()
	}
}

func (q query) readWork() Work {
	state := number(ask(q.s, "nvmlDeviceGetPerformanceState", q.who, q.d.GetPerformanceState))
	if state.Value == int(nvml.PSTATE_UNKNOWN) {
		state = Reading[int]{}
	}
	return Work{
		Busy: number(ask(q.s, "nvmlDeviceGetUtilizationRates", q.who, func() (uint32, nvml.Return) {
			u, ret := q.d.GetUtilizationRates()
			return u.Gpu, ret
		})),
		State: state,
		Draw:  ask(q.s, "nvmlDeviceGetPowerUsage", q.who, q.d.GetPowerUsage),
		Limit: ask(q.s, "nvmlDeviceGetEnforcedPowerLimit", q.who, q.d.GetEnforcedPowerLimit),
	}
}

// memoryUnknown is NVML_VALUE_NOT_AVAILABLE.
const memoryUnknown = ^uint64(0)

func (q query) readMemory() {
	if q.g.Memory.Known { // another group has read it
		return
	}
	q.g.Memory = ask(q.s, "nvmlDeviceGetMemoryInfo_v2", q.who, func() (GPUMemory, nvml.Return) {
		m, ret := q.d.GetMemoryInfo_v2()
		return GPUMemory{m.Total, m.Free, m.Used}, ret
	})
	if q.g.Memory.Known || q.g.Memory.Err != nil {
		return
	}
	// Drivers before 510 count more than the memory in use, but the total is the same.
	q.g.MemoryTotal = ask(q.s, "nvmlDeviceGetMemoryInfo", q.who, func() (uint64, nvml.Return) {
		m, ret := q.d.GetMemoryInfo()
		return m.Total, ret
	})
}

func (q query) readProcesses() {
	q.readMemory()
	q.g.NUMA = ask(q.s, "nvmlDeviceGetNumaNodeId", q.who, q.d.GetNumaNodeId)
	if hasLongRecords(q.s.snapshot.Library.Value) {
		return
	}
	seen := map[int]int{}
	var list []GPUProcess
	var failed error
	known := false
	for _, name := range []string{"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"} {
		symbol := q.s.either(name+"_v3", name+"_v2", name)
		r := ask(q.s, symbol, q.who, func() ([]nvml.ProcessInfo, nvml.Return) { return q.listProcesses(symbol) })
		failed = cmp.Or(failed, r.Err)
		if !r.Known && r.Err == nil && strings.Contains(name, "GetCompute") { // then it is unknown whether there are any
			return
		}
		known = known || r.Known
		for _, p := range r.Value {
			used := p.UsedGpuMemory
			if used == memoryUnknown {
				used = 0
			}
			if at, ok := seen[int(p.Pid)]; ok { // a process can be in two lists, or on two MIG instances
				list[at].Memory = max(list[at].Memory, used)
				continue
			}
			seen[int(p.Pid)] = len(list)
			list = append(list, GPUProcess{int(p.Pid), used})
		}
	}
	// After an error there may be more processes than the list has.
	q.g.Processes = Reading[[]GPUProcess]{Value: list, Known: known && failed == nil, Err: failed}
}

// hasLongRecords reports whether the library writes a record of 32 bytes for each process instead of
// 24. 535.43 to 535.86 do, beyond the end of the caller's buffer
// (github.com/NVIDIA/go-nvml/issues/75).
func hasLongRecords(library string) bool {
	release, minor, _ := strings.Cut(library, ".")
	minor, _, _ = strings.Cut(minor, ".")
	n, err := strconv.Atoi(minor)
	return release == "535" && err == nil && n >= 43 && n < 98
}

// readInforom reads the board's flash memory, which takes some milliseconds.
func (q query) readInforom() {
	q.g.InforomValid = ask(q.s, "nvmlDeviceValidateInforom", q.who, func() (bool, nvml.Return) { return true, q.d.ValidateInforom() })
}

// MaxLinks bounds the NVLinks of a GPU. NVML does not report their number: after a second error the list has so many.
const MaxLinks = nvml.NVLINK_MAX_LINKS

// readNVLinks reads link by link; the first missing link ends the list. After a second error the other links are
// not asked: the GPU, and not a link, does not answer.
func (q query) readNVLinks() {
	if q.g.NVLinks.Known { // another group has read them
		return
	}
	var up, unread []bool
	var failed error
	known, errs := false, 0
	for link := range MaxLinks {
		r := Failed[nvml.EnableState](failed)
		if errs < 2 {
			r = unknownIsUnsupported(ask(q.s, "nvmlDeviceGetNvLinkState", q.who, func() (nvml.EnableState, nvml.Return) { return q.d.GetNvLinkState(link) }))
		}
		if !r.Known && r.Err == nil {
			break
		}
		if r.Err != nil {
			failed = cmp.Or(failed, r.Err)
			errs++
		}
		known = known || r.Known
		up, unread = append(up, r.Value == nvml.FEATURE_ENABLED), append(unread, !r.Known)
	}
	q.countSleeping(up, unread)
	if failed == nil {
		unread = nil
	}
	q.g.NVLinksUnread = unread
	if q.g.NVLinks.Err = failed; known {
		q.g.NVLinks.Value, q.g.NVLinks.Known = up, true
	}
}

// This part reads the fabric that connects GPUs: NVSwitches of the board, or the NVLink domain of a
// rack.

// Fabric is a GPU's place in the fabric, with the numbers of nvml.h.
type Fabric struct {
	State   int    // see FabricNotSupported...
	Status  int    // an nvmlReturn_t, valid in the state completed
	Clique  uint32 // GPUs that can reach each other
	Cluster string // UUID of the domain, in hexadecimal digits; "" if it is all zero
	Mask    uint32 // of the health; 0 if unknown
	Summary int    // of the health, driver 570 and later; 0 if unknown
}

// The states: NVML_GPU_FABRIC_STATE_*.
const (
	FabricNotSupported = nvml.GPU_FABRIC_STATE_NOT_SUPPORTED
	FabricNotStarted   = nvml.GPU_FABRIC_STATE_NOT_STARTED
	FabricInProgress   = nvml.GPU_FABRIC_STATE_IN_PROGRESS
	FabricCompleted    = nvml.GPU_FABRIC_STATE_COMPLETED
)

// FabricNoResources is the status of a fabric whose state is completed although it is not.
const FabricNoResources = int(nvml.ERROR_INSUFFICIENT_RESOURCES)

// readFabric uses the newest call that the library has.
func (q query) readFabric() {
	const versioned = "nvmlDeviceGetGpuFabricInfoV"
	r := unknownIsUnsupported(ask(q.s, versioned, q.who, func() (Fabric, nvml.Return) {
		f, ret := q.d.GetGpuFabricInfoV().V3()
		return Fabric{int(f.State), int(int32(f.Status)), f.CliqueId, formatCluster(f.ClusterUuid), f.HealthMask, int(f.HealthSummary)}, ret
	}))
	if !r.Known && r.Err == nil {
		r = unknownIsUnsupported(ask(q.s, versioned, q.who, func() (Fabric, nvml.Return) {
			f, ret := q.d.GetGpuFabricInfoV().V2()
			return Fabric{int(f.State), int(int32(f.Status)), f.CliqueId, formatCluster(f.ClusterUuid), f.HealthMask, 0}, ret
		}))
	}
	if !r.Known && r.Err == nil {
		r = ask(q.s, "nvmlDeviceGetGpuFabricInfo", q.who, func() (Fabric, nvml.Return) {
			f, ret := q.d.GetGpuFabricInfo() // drivers before 545 have only this one
			return Fabric{int(f.State), int(int32(f.Status)), f.CliqueId, formatCluster(f.ClusterUuid), 0, 0}, ret
		})
	}
	if q.g.Fabric = r; r.Known && r.Value.State != FabricCompleted {
		q.readMIGMode() // it can be the reason
	}
}

func formatCluster(uuid [16]uint8) string {
	if uuid == ([16]uint8{}) {
		return ""
	}
	return hex.EncodeToString(uuid[:])
}

// NVML writes a list to the caller's buffer, and returns error 7 with the number of entries if the
// buffer is too small. go-nvml doubles its buffer on each such error, and trusts any number: a
// faulty library would use all memory of the node, or end the process. So this package calls the
// functions with a list itself.

// These are the initial and the maximum room for the entries of a list. A GPU retires at most 64
// pages; the contexts of 64 Ki processes, some 100 MiB each, exceed any GPU's memory.
const (
	firstRoom = 64
	mostRoom  = 1 << 16
)

// callForList calls a function of NVML with a growing buffer. It returns ERROR_INSUFFICIENT_SIZE if the
// list exceeds the maximum, or the returned length exceeds the buffer.
func callForList[T any](call func(count *uint32, first *T) nvml.Return) ([]T, nvml.Return) {
	for room := uint32(firstRoom); room <= mostRoom; {
		list, count := make([]T, room), room
		switch ret := call(&count, &list[0]); {
		case ret == nvml.SUCCESS && count <= room:
			return list[:count], ret
		case ret != nvml.ERROR_INSUFFICIENT_SIZE:
			if ret == nvml.SUCCESS {
				ret = nvml.ERROR_INSUFFICIENT_SIZE
			}
			return nil, ret
		}
		// Take twice the reported number, as the list grows; not every driver reports it.
		room = max(4*room, 2*min(count, mostRoom/2))
	}
	return nil, nvml.ERROR_INSUFFICIENT_SIZE
}

// findFunction finds a function of the library that go-nvml has loaded, and the library's handle of the
// GPU. A simulated library in a test has neither.
func (q query) findFunction(symbol string) (address, gpu uintptr, found bool) {
	if q.s.handle == 0 {
		handle, err := probe.OpenLibrary(q.s.path, purego.RTLD_LAZY|purego.RTLD_GLOBAL)
		if err != nil {
			return 0, 0, false
		}
		q.s.handle = handle
	}
	device := reflect.ValueOf(q.d)
	if device.Kind() != reflect.Struct {
		return 0, 0, false
	}
	handle := device.FieldByName("Handle")
	address, err := probe.Dlsym(q.s.handle, symbol)
	if err != nil || handle.Kind() != reflect.Pointer {
		return 0, 0, false
	}
	return address, handle.Pointer(), true
}

// listProcesses lists the processes of a GPU by one version of the call; the first version does not
// support MIG.
func (q query) listProcesses(symbol string) ([]nvml.ProcessInfo, nvml.Return) {
	address, gpu, found := q.findFunction(symbol)
	if !found {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	if strings.HasSuffix(symbol, "_v2") || strings.HasSuffix(symbol, "_v3") {
		return callForList(func(count *uint32, first *nvml.ProcessInfo) nvml.Return { return callList(address, count, first, gpu) })
	}
	list, ret := callForList(func(count *uint32, first *nvml.ProcessInfo_v1) nvml.Return {
		return callList(address, count, first, gpu)
	})
	return nvml.ProcessInfo_v1Slice(list).ToProcessInfoSlice(), ret
}

// listRetiredPages lists the addresses of the pages that were retired for a cause.
func (q query) listRetiredPages(symbol string, cause nvml.PageRetirementCause) ([]uint64, nvml.Return) {
	address, gpu, found := q.findFunction(symbol)
	if !found {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return callForList(func(count *uint32, first *uint64) nvml.Return {
		return callList(address, count, first, gpu, uintptr(cause))
	})
}

// callList calls a function whose last arguments are the number of entries and the buffer.
func callList[T any](address uintptr, count *uint32, first *T, arguments ...uintptr) nvml.Return {
	arguments = append(arguments, uintptr(unsafe.Pointer(count)), uintptr(unsafe.Pointer(first)))
	r, _, _ := purego.SyscallN(address, arguments...)
	runtime.KeepAlive(count)
	runtime.KeepAlive(first)
	return nvml.Return(int32(r))
}

// This part reads values that only checks of a job need.

// NVLinkErrors are the summed errors of all NVLinks of a GPU since the driver was loaded: fields
// 38, 45, 52 and 59.
type NVLinkErrors struct {
	CRCFlit, CRCData, Replay, Recovery Reading[int]
	// These are the counters of NVLink 5 instead, by the names of LinkCounts.
	Sums Reading[map[string]uint64]
}

func (q query) readNVLinkErrors() {
	v := q.fields(nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL,
		nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL)
	e := NVLinkErrors{CRCFlit: number(v[0]), CRCData: number(v[1]), Replay: number(v[2]), Recovery: number(v[3])}
	if old := []Reading[int]{e.CRCFlit, e.CRCData, e.Replay, e.Recovery}; !slices.ContainsFunc(old, answered[int]) { // no driver sums up those of NVLink 5
		q.readNVLinkCounts()
		e.Sums = as(q.g.NVLink.Counts, LinkCounts.sum)
		if err := cmp.Or(q.g.NVLinks.Err, q.g.NVLink.Counts.Err); err != nil { // a sum without a link would jump
			e.Sums = Failed[map[string]uint64](err)
		}
	}
	q.g.NVLinkErrors = e
}

func answered[T any](r Reading[T]) bool { return r.Known || r.Err != nil }

// sum adds up the counters of all links.
func (c LinkCounts) sum() map[string]uint64 {
	sums := map[string]uint64{}
	for name, links := range c {
		for _, n := range links {
			sums[name] += n
		}
	}
	return sums
}
