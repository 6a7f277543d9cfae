package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// SetNVMLLibrary names the library that NVML is loaded from, in place of the
// system's libnvidia-ml.so.1. It counts until NVML is first asked.
func (h *Host) SetNVMLLibrary(path string) { h.nvmlLibrary = path }

// SetNVML makes a snapshot, or an error, the answer of [Host.NVML]: a recorded
// one, or that of a test.
func (h *Host) SetNVML(n *NVML, err error) {
	h.cache["nvml"] = cached[*nvmlSession]{&nvmlSession{snapshot: n, have: AllGroups}, err}
}

// nvmlSession is NVML in this process: loaded once, never unloaded, since the
// process ends with the run.
type nvmlSession struct {
	lib      nvml.Interface
	devices  []nvml.Device // nil for a GPU that gives no handle
	has      map[string]bool
	doing    func(string)
	snapshot *NVML
	have     Group
}

// NVML asks NVML for some groups, those that it has not been asked for yet. It
// may hang as long as the driver does, or end the process: call it only in the
// worker of the nvml lane. doing hears of every call before it is made.
func (h *Host) NVML(groups Group, doing func(call string)) (*NVML, error) {
	s, err := once(h, "nvml", func() (*nvmlSession, error) { return h.openNVML(doing) })
	if err != nil {
		return nil, err
	}
	if missing := groups &^ s.have; missing != 0 {
		s.doing = doing
		s.read(missing)
		s.have |= missing
	}
	return s.snapshot, nil
}

// openNVML finds the library.
func (h *Host) openNVML(doing func(string)) (*nvmlSession, error) {
	name := h.nvmlLibrary
	if name == "" && h.root != "/" {
		return nil, fmt.Errorf("load libnvidia-ml.so.1: %w below %s; NVML_LIBRARY names one", ErrOtherNode, h.root)
	}
	var opts []nvml.LibraryOption
	if name != "" {
		if err := guarded(name); err != nil {
			return nil, fmt.Errorf("load %s of %s: %w", name, SettingNVML, err)
		}
		opts = append(opts, nvml.WithLibraryPath(name))
	} else {
		name = "libnvidia-ml.so.1"
	}
	return h.startNVML(nvml.New(opts...), name, doing)
}

// startNVML loads the library and asks who the GPUs are. After an error no
// further call of NVML is made: the library would end the process.
func (h *Host) startNVML(lib nvml.Interface, name string, doing func(string)) (*nvmlSession, error) {
	if doing == nil {
		doing = func(string) {}
	}
	s := &nvmlSession{lib: lib, has: map[string]bool{}, doing: doing, snapshot: &NVML{Taken: time.Now()}}
	doing("nvmlInit")
	if ret := s.lib.Init(); ret == nvml.ERROR_LIBRARY_NOT_FOUND {
		return nil, fmt.Errorf("load %s: %w", name, ErrNoLibrary)
	} else if ret != nvml.SUCCESS {
		return nil, &NVMLError{"nvmlInit", int(ret)}
	}
	n := s.snapshot
	n.Driver = text(ask(s, "nvmlSystemGetDriverVersion", "", s.lib.SystemGetDriverVersion))
	n.Library = text(ask(s, "nvmlSystemGetNVMLVersion", "", s.lib.SystemGetNVMLVersion))
	if _, version, ok := strings.Cut(n.Library.Value, "."); ok { // 12.570.124.06: CUDA's number is first
		n.Library.Value = version
	}
	n.CC = is(ask(s, "nvmlSystemGetConfComputeState", "", func() (uint32, nvml.Return) {
		state, ret := s.lib.SystemGetConfComputeState()
		return state.CcFeature, ret
	}))
	count := ask(s, "nvmlDeviceGetCount_v2", "", s.lib.DeviceGetCount)
	if count.Err != nil {
		return nil, count.Err
	}
	if count.Value < 0 || count.Value > maxGPUs {
		return nil, fmt.Errorf("nvmlDeviceGetCount: %d GPUs, want at most %d", count.Value, maxGPUs)
	}
	for i := range count.Value {
		s.identify(i)
	}
	if views, err := h.GPUViews(); err == nil {
		nameLost(n, views)
	}
	return s, nil
}

// nameLost gives those GPUs the PCI addresses that NVML cannot tell, if it is
// clear which they are: the driver's own that NVML does not name.
func nameLost(n *NVML, views GPUViews) {
	named := map[string]bool{}
	var lost []*GPU
	for i := range n.GPUs {
		if named[n.GPUs[i].PCI] = true; n.GPUs[i].PCI == "" {
			lost = append(lost, &n.GPUs[i])
		}
	}
	var left []DriverGPU
	for _, d := range views.Driver {
		if !named[d.Address] && !d.Excluded {
			left = append(left, d)
		}
	}
	if len(left) != len(lost) {
		return
	}
	for i, g := range lost { // both are in the order of the bus
		g.PCI = left[i].Address
		if left[i].Minor >= 0 {
			g.Minor = Known(left[i].Minor)
		}
		if left[i].UUID != "" {
			g.UUID = Known(left[i].UUID)
		}
	}
}

// maxGPUs is more than any node holds.
const maxGPUs = 256

// ask makes one call, if the library has it. who is behind the name of the call
// in errors: "(3)".
func ask[T any](s *nvmlSession, symbol, who string, call func() (T, nvml.Return)) Reading[T] {
	if !s.can(symbol) {
		return Reading[T]{}
	}
	s.doing(symbol + who)
	v, ret := call()
	switch ret {
	case nvml.SUCCESS:
		return Known(v)
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH,
		nvml.ERROR_VGPU_ECC_NOT_SUPPORTED, nvml.ERROR_DEPRECATED:
		return Reading[T]{}
	}
	return Failed[T](&NVMLError{symbol + who, int(ret)})
}

// can says whether the library has a function: a call of one that it has not
// would end the process.
func (s *nvmlSession) can(symbol string) bool {
	ok, known := s.has[symbol]
	if !known {
		ok = s.lib.Extensions().LookupSymbol(symbol) == nil
		s.has[symbol] = ok
	}
	return ok
}

// either asks the first of some names that the library has.
func (s *nvmlSession) either(symbols ...string) string {
	for _, name := range symbols {
		if s.can(name) {
			return name
		}
	}
	return symbols[len(symbols)-1]
}

// as changes the type of a reading.
func as[T, U any](r Reading[U], change func(U) T) Reading[T] {
	if !r.Known {
		return Reading[T]{Err: r.Err}
	}
	return Known(change(r.Value))
}

func text(r Reading[string]) Reading[string] { return as(r, oneLine) }

func is[N ~int32 | ~uint32 | ~uint64 | ~int](r Reading[N]) Reading[bool] {
	return as(r, func(n N) bool { return n != 0 })
}

func number[N ~int32 | ~uint32 | ~uint64 | ~int64](r Reading[N]) Reading[int] {
	return as(r, func(n N) int { return int(n) })
}

// unknownIsUnsupported is for calls with a number that an older driver may not
// know: it calls that an invalid argument.
func unknownIsUnsupported[T any](r Reading[T]) Reading[T] {
	if e, ok := errors.AsType[*NVMLError](r.Err); ok && nvml.Return(e.Code) == nvml.ERROR_INVALID_ARGUMENT {
		return Reading[T]{}
	}
	return r
}

// identify gets the handle of a GPU and asks who it is. One that answers nothing
// of what the driver knows by heart is as good as one without a handle: each
// further call might take its time, too.
func (s *nvmlSession) identify(i int) {
	g := GPU{Index: i}
	who := fmt.Sprintf("(%d)", i)
	handle := ask(s, "nvmlDeviceGetHandleByIndex_v2", who, func() (nvml.Device, nvml.Return) { return s.lib.DeviceGetHandleByIndex(i) })
	d := handle.Value
	if !handle.Known {
		if g.Err = handle.Err; g.Err == nil {
			g.Err = &NVMLError{"nvmlDeviceGetHandleByIndex" + who, int(nvml.ERROR_NOT_SUPPORTED)}
		}
		s.add(nil, g)
		return
	}
	pci := ask(s, s.either("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2"), who, d.GetPciInfo)
	if pci.Known {
		g.PCI = fmt.Sprintf("%04x:%02x:%02x.0", pci.Value.Domain, pci.Value.Bus, pci.Value.Device)
	}
	g.Name = text(ask(s, "nvmlDeviceGetName", who, d.GetName))
	g.UUID = text(ask(s, "nvmlDeviceGetUUID", who, d.GetUUID))
	if pci.Err != nil && g.Name.Err != nil && g.UUID.Err != nil {
		s.add(nil, GPU{Index: i, Err: pci.Err})
		return
	}
	g.Serial = text(ask(s, "nvmlDeviceGetSerial", who, d.GetSerial))
	g.Minor = ask(s, "nvmlDeviceGetMinorNumber", who, d.GetMinorNumber)
	g.VBIOS = text(ask(s, "nvmlDeviceGetVbiosVersion", who, d.GetVbiosVersion))
	g.Inforom = text(ask(s, "nvmlDeviceGetInforomImageVersion", who, d.GetInforomImageVersion))
	s.add(d, g)
}

func (s *nvmlSession) add(d nvml.Device, g GPU) {
	s.devices = append(s.devices, d)
	s.snapshot.GPUs = append(s.snapshot.GPUs, g)
}

// read asks every GPU for some groups.
func (s *nvmlSession) read(groups Group) {
	if s.doing == nil {
		s.doing = func(string) {}
	}
	for i, d := range s.devices {
		if d == nil {
			continue
		}
		q := query{s, &s.snapshot.GPUs[i], d, fmt.Sprintf("(%d)", i)}
		for _, part := range parts {
			if groups&part.group != 0 {
				part.read(q)
			}
		}
	}
}

// scoped is a field of a part of the GPU, as of one NVLink.
type scoped struct{ id, scope uint32 }

// fields asks for values by their numbers, in one call.
func (q query) fields(ids ...uint32) []Reading[int64] {
	list := make([]scoped, len(ids))
	for i, id := range ids {
		list[i].id = id
	}
	return q.scopedFields(list)
}

func (q query) scopedFields(ids []scoped) []Reading[int64] {
	out := make([]Reading[int64], len(ids))
	values := make([]nvml.FieldValue, len(ids))
	for i, f := range ids {
		values[i].FieldId, values[i].ScopeId = f.id, f.scope
	}
	all := ask(q.s, "nvmlDeviceGetFieldValues", q.who, func() (bool, nvml.Return) { return true, q.d.GetFieldValues(values) })
	for i, v := range values {
		call := fmt.Sprintf("field %d of nvmlDeviceGetFieldValues%s", ids[i].id, q.who)
		switch ret := nvml.Return(v.NvmlReturn); {
		case !all.Known:
			out[i].Err = all.Err
		case ret == nvml.SUCCESS:
			out[i] = fieldValue(call, v)
		case ret != nvml.ERROR_NOT_SUPPORTED && ret != nvml.ERROR_INVALID_ARGUMENT && ret != nvml.ERROR_DEPRECATED: // the first two: not known to this driver
			out[i].Err = &NVMLError{call, int(ret)}
		}
	}
	return out
}

func fieldValue(call string, v nvml.FieldValue) Reading[int64] {
	raw := binary.NativeEndian.Uint64(v.Value[:])
	switch nvml.ValueType(v.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return Known(int64(uint32(raw)))
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return Known(int64(min(raw, math.MaxInt64)))
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return Known(int64(raw))
	case nvml.VALUE_TYPE_SIGNED_INT:
		return Known(int64(int32(raw)))
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return Known(int64(uint16(raw)))
	}
	return Failed[int64](fmt.Errorf("%s: value of unknown type %d", call, v.ValueType))
}

// SetPersistence turns persistence mode on. The snapshot has it on from then on.
func (h *Host) SetPersistence(gpu int, doing func(string)) error {
	s, err := once(h, "nvml", func() (*nvmlSession, error) { return h.openNVML(doing) })
	switch {
	case err != nil:
		return err
	case gpu < 0 || gpu >= len(s.snapshot.GPUs):
		return fmt.Errorf("no GPU %d", gpu)
	case s.lib == nil && !s.snapshot.Settable:
		return errRecorded
	case s.lib != nil:
		if doing != nil {
			s.doing = doing
		}
		r := ask(s, "nvmlDeviceSetPersistenceMode", fmt.Sprintf("(%d)", gpu), func() (bool, nvml.Return) {
			return true, s.devices[gpu].SetPersistenceMode(nvml.FEATURE_ENABLED)
		})
		if r.Err != nil {
			return r.Err
		}
		if !r.Known {
			return errors.New("not supported")
		}
	}
	s.snapshot.GPUs[gpu].Modes.Persistence = Known(true)
	return nil
}
