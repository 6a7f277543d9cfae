package nvml

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
)

// Set makes a snapshot, or an error, the answer of [Ask], for a recorded node or a test.
func Set(h *probe.Host, n *Snapshot, err error) {
	s := &nvmlSession{snapshot: n, have: AllGroups, at: aboutNode}
	for i := 0; n != nil && i < len(n.GPUs); i++ {
		s.at = i
		s.note(stateIn(reflect.ValueOf(n.GPUs[i])))
	}
	probe.Remember(h, "nvml", s, err)
}

// nvmlSession is NVML in this process. It is loaded once and never unloaded, because the process
// ends with the run.
type nvmlSession struct {
	lib      nvml.Interface
	path     string        // of the library
	handle   uintptr       // of the library for listOf; 0: not opened yet
	devices  []nvml.Device // nil for a GPU without a handle
	has      map[string]bool
	doing    func(string)
	address  map[int]string // of GPUs by index: from the driver's files, if the number matches, until NVML returns it
	snapshot *Snapshot
	have     Group

	at     int // index of the GPU of the current call; aboutNode
	noting sync.Mutex
	states map[int]error // the states of GPUs, see [GPUsInState]; by index
}

// Ask reads some groups, unless it has read them before. It may hang as long as the driver does, or
// end the process: call it only in the worker of the nvml lane. It calls doing before every call.
func Ask(h *probe.Host, groups Group, doing func(call string)) (*Snapshot, error) {
	s, err := probe.Once(h, "nvml", func() (*nvmlSession, error) { return openNVML(h, doing) })
	if err != nil {
		return nil, err
	}
	if missing := groups &^ s.have; missing != 0 {
		s.doing = doing
		s.read(missing)
		s.have |= missing
	}
	s.spread()
	return s.snapshot, nil
}

// Guard sets a function that [Ask] calls before it starts NVML, because that would load the
// driver's module. If may returns an error, Ask returns that error instead.
func Guard(h *probe.Host, may func() error) { *probe.Kept[func() error](h, nvmlGuard) = may }

const nvmlGuard = "nvml guard"

// MayStart calls the guard, for a process that is about to use NVML in another one. nil means yes.
func MayStart(h *probe.Host) error {
	if may := *probe.Kept[func() error](h, nvmlGuard); may != nil {
		return may()
	}
	return nil
}

// openNVML finds the library and starts it.
func openNVML(h *probe.Host, doing func(string)) (*nvmlSession, error) {
	if err := MayStart(h); err != nil {
		return nil, err
	}
	return probe.LoadLibrary(h, &probe.LibNVML, 0, func(path string) (*nvmlSession, error) {
		return startNVML(h, nvml.New(nvml.WithLibraryPath(path)), path, doing)
	})
}

// startNVML loads the library and identifies the GPUs. After an error nothing may call NVML again,
// because the library would end the process.
func startNVML(h *probe.Host, lib nvml.Interface, name string, doing func(string)) (*nvmlSession, error) {
	if doing == nil {
		doing = func(string) {}
	}
	s := &nvmlSession{lib: lib, path: name, has: map[string]bool{}, doing: doing, snapshot: &Snapshot{Taken: time.Now()}, at: aboutNode}
	doing("nvmlInit")
	ret := s.lib.Init()
	if ret == nvml.ERROR_LIBRARY_NOT_FOUND { // by go-nvml or by the library
		if err := probe.WhyNotLoaded(name); err != nil {
			return nil, err
		}
		if ret = s.lib.Init(); ret == nvml.ERROR_LIBRARY_NOT_FOUND { // it would load now
			return nil, probe.IsStub(name, &Error{"nvmlInit", int(ret)})
		}
	}
	if ret != nvml.SUCCESS {
		return nil, notLetIn(h, &Error{"nvmlInit", int(ret)})
	}
	nvidia.DriverStarted(h)
	n := s.snapshot
	n.Driver = text(ask(s, "nvmlSystemGetDriverVersion", "", s.lib.SystemGetDriverVersion))
	n.Library = text(ask(s, "nvmlSystemGetNVMLVersion", "", s.lib.SystemGetNVMLVersion))
	if _, version, _ := strings.Cut(n.Library.Value, "."); IsVersion(version) && !IsVersion(n.Library.Value) { // 12.570.124.06: CUDA's version is first
		n.Library.Value = version
	}
	n.CC = is(ask(s, "nvmlSystemGetConfComputeState", "", func() (uint32, nvml.Return) {
		state, ret := s.lib.SystemGetConfComputeState()
		return state.CcFeature, ret
	}))
	count := ask(s, s.either("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"), "", s.lib.DeviceGetCount)
	switch {
	case count.Err != nil:
		return nil, count.Err
	case !count.Known:
		return nil, &Error{"nvmlDeviceGetCount", int(nvml.ERROR_NOT_SUPPORTED)}
	}
	if count.Value < 0 || count.Value > nvidia.MaxGPUs {
		return nil, fmt.Errorf("nvmlDeviceGetCount: %d GPUs, want at most %d", count.Value, nvidia.MaxGPUs)
	}
	views, viewsErr := nvidia.ReadGPUViews(h)
	s.address = matchByOrder(views, count.Value)
	for i := range count.Value {
		s.at = i
		s.identify(i)
	}
	s.at = aboutNode
	if viewsErr == nil {
		nameLost(n, views)
		s.findDrained(views)
	}
	return s, nil
}

// IsVersion reports whether a text has the form of a driver's version: it begins with a number of three digits.
func IsVersion(text string) bool {
	branch, _, _ := strings.Cut(text, ".")
	n, err := strconv.Atoi(branch)
	return err == nil && n >= 100 && n < 1000
}

// notLetIn adds to an unknown error that this process may not open the driver's device: a device cgroup can
// lack it.
func notLetIn(h *probe.Host, e *Error) error {
	if nvml.Return(e.Code) != nvml.ERROR_UNKNOWN {
		return e
	}
	fd, err := unix.Open(h.Path("/dev/nvidiactl"), unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	if err != unix.EPERM && err != unix.EACCES {
		return e
	}
	return fmt.Errorf("%w; %w: open /dev/nvidiactl: %w", e, ErrNotPermitted, err)
}

// matchByOrder returns the addresses of the driver's GPUs by index, if NVML has the same number: both
// are in the order of the bus.
func matchByOrder(views nvidia.GPUViews, count int) map[int]string {
	addresses := map[int]string{}
	for i, d := range views.Used() {
		addresses[i] = d.Address
	}
	if len(addresses) != count {
		return map[int]string{}
	}
	return addresses
}

// call announces a call and its GPU, so that a report can name the GPU if the call never returns.
func (s *nvmlSession) call(symbol, who string) {
	what := symbol + who
	if address := s.address[s.at]; address != "" {
		what += " of gpu" + strconv.Itoa(s.at) + " " + address
	}
	s.doing(what)
}

// nameLost sets the PCI address of each GPU without one in NVML, if it is unambiguous: the driver's
// own addresses that NVML does not return. It takes a missing UUID from the driver's files.
func nameLost(n *Snapshot, views nvidia.GPUViews) {
	named := map[string]bool{}
	var lost []*GPU
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if named[g.PCI] = true; g.PCI == "" {
			lost = append(lost, g)
		}
		at := slices.IndexFunc(views.Driver, func(d nvidia.DriverGPU) bool { return g.PCI != "" && d.Address == g.PCI && d.UUID != "" })
		if g.UUID.Err != nil && at >= 0 {
			g.UUID = Known(views.Driver[at].UUID)
		}
	}
	var left []nvidia.DriverGPU
	for _, d := range views.Used() {
		if !named[d.Address] {
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

// findDrained finds the GPUs of the node that NVML does not show because "nvidia-smi drain" has set them aside: "any new
// NVML process will no longer see this GPU" (nvml.h, nvmlDeviceModifyDrainState). An error means no more than that the
// state is unknown.
func (s *nvmlSession) findDrained(views nvidia.GPUViews) {
	const symbol = "nvmlDeviceQueryDrainState"
	for _, address := range views.Own() {
		var p nvml.PciInfo
		_, err := fmt.Sscanf(address, "%x:%x:%x.", &p.Domain, &p.Bus, &p.Device)
		shown := slices.ContainsFunc(s.snapshot.GPUs, func(g GPU) bool { return g.PCI == address })
		if err != nil || shown || !s.offers(symbol) {
			continue
		}
		setText(p.BusId[:], fmt.Sprintf("%08X:%02X:%02X.0", p.Domain, p.Bus, p.Device))
		setText(p.BusIdLegacy[:], fmt.Sprintf("%04X:%02X:%02X.0", p.Domain, p.Bus, p.Device))
		s.call(symbol, "("+address+")")
		if state, ret := s.lib.DeviceQueryDrainState(&p); ret == nvml.SUCCESS && state == nvml.FEATURE_ENABLED {
			s.snapshot.Drained = append(s.snapshot.Drained, address)
		}
	}
}

// setText fills a text of C, which ends with a zero.
func setText[C ~int8 | ~uint8](to []C, text string) {
	for i := range min(len(text), len(to)-1) {
		to[i] = C(text[i])
	}
}

// ask makes one call, if the library has it. who follows the name of the call in errors: "(3)".
func ask[T any](s *nvmlSession, symbol, who string, call func() (T, nvml.Return)) Reading[T] {
	if !s.offers(symbol) {
		return Reading[T]{}
	}
	if err := s.stateOf(s.at); err != nil { // further calls could be slow, and would not return more
		return Failed[T](err)
	}
	s.call(symbol, who)
	v, ret := call()
	switch ret {
	case nvml.SUCCESS:
		if err := checkBound(symbol, who, v); err != nil {
			return Failed[T](err)
		}
		return Known(v)
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_ARGUMENT_VERSION_MISMATCH,
		nvml.ERROR_VGPU_ECC_NOT_SUPPORTED, nvml.ERROR_DEPRECATED:
		return Reading[T]{}
	case nvml.ERROR_NO_PERMISSION:
		if isValue(symbol) && !privileged() {
			return Reading[T]{}
		}
	}
	err := &Error{symbol + who, int(ret)}
	s.note(err)
	return Failed[T](err)
}

// isValue reports whether a call reads a value of a GPU. If NVML refuses a value to an ordinary
// user, it is unknown, and the GPU is not faulty.
func isValue(symbol string) bool {
	return strings.Contains(symbol, "DeviceGet") && !strings.Contains(symbol, "HandleBy") || strings.Contains(symbol, "DeviceValidate")
}

// privileged reports whether the driver treats this process as an administrator's. It assumes so if
// that cannot be read: then a refusal stays an error.
var privileged = sync.OnceValue(func() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) != nil || data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
})

// offers reports whether the library has a function: calling a missing one would end the process.
func (s *nvmlSession) offers(symbol string) bool {
	ok, known := s.has[symbol]
	if !known {
		ok = s.lib.Extensions().LookupSymbol(symbol) == nil
		s.has[symbol] = ok
	}
	return ok
}

// either returns the first of some names that the library has.
func (s *nvmlSession) either(symbols ...string) string {
	for _, name := range symbols {
		if s.offers(name) {
			return name
		}
	}
	return symbols[len(symbols)-1]
}

// as converts the type of a reading.
func as[T, U any](r Reading[U], change func(U) T) Reading[T] {
	if !r.Known {
		return Reading[T]{Err: r.Err}
	}
	return Reading[T]{Value: change(r.Value), Known: true, Err: r.Err}
}

// plus adds a part to a total.
func plus(total, part Reading[uint64]) Reading[uint64] {
	return Reading[uint64]{total.Value + part.Value, total.Known || part.Known, cmp.Or(total.Err, part.Err)}
}

func text(r Reading[string]) Reading[string] { return as(r, probe.OneLine) }

// requireText rejects an empty text, which names nothing.
func requireText(call string, r Reading[string]) Reading[string] {
	if r.Known && r.Value == "" {
		return Failed[string](fmt.Errorf("%s: empty", call))
	}
	return r
}

func is[N ~int32 | ~uint32 | ~uint64 | ~int](r Reading[N]) Reading[bool] {
	return as(r, func(n N) bool { return n != 0 })
}

func number[N ~int32 | ~uint32 | ~uint64 | ~int64](r Reading[N]) Reading[int] {
	return as(r, func(n N) int { return int(n) })
}

// unknownIsUnsupported is for calls with a number that an older driver may not know: it returns
// "invalid argument" then.
func unknownIsUnsupported[T any](r Reading[T]) Reading[T] {
	if e, ok := errors.AsType[*Error](r.Err); ok && nvml.Return(e.Code) == nvml.ERROR_INVALID_ARGUMENT {
		return Reading[T]{}
	}
	return r
}

// identify gets the handle of a GPU and its identity. A GPU that does not even return the values
// that the driver has cached counts as one without a handle, because each further call might be
// slow, too.
func (s *nvmlSession) identify(i int) {
	g := GPU{Index: i}
	who := fmt.Sprintf("(%d)", i)
	symbol := s.either("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
	handle := ask(s, symbol, who, func() (nvml.Device, nvml.Return) { return s.lib.DeviceGetHandleByIndex(i) })
	d := handle.Value
	if !handle.Known {
		if g.Err = handle.Err; g.Err == nil {
			g.Err = &Error{"nvmlDeviceGetHandleByIndex" + who, int(nvml.ERROR_NOT_SUPPORTED)}
		}
		s.add(nil, g)
		return
	}
	pci := ask(s, s.either("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2"), who, d.GetPciInfo)
	if g.PCI = addressOf(pci.Value); g.PCI != "" {
		s.address[i] = g.PCI
	}
	g.Name = requireText("nvmlDeviceGetName"+who, text(ask(s, "nvmlDeviceGetName", who, d.GetName)))
	g.UUID = requireText("nvmlDeviceGetUUID"+who, text(ask(s, "nvmlDeviceGetUUID", who, d.GetUUID)))
	g.NameErr = cmp.Or(g.Name.Err, g.UUID.Err)
	if pci.Err != nil && g.Name.Err != nil && g.UUID.Err != nil {
		s.add(nil, GPU{Index: i, Err: pci.Err})
		return
	}
	g.Serial = text(ask(s, "nvmlDeviceGetSerial", who, d.GetSerial))
	g.Minor = ask(s, "nvmlDeviceGetMinorNumber", who, d.GetMinorNumber)
	g.VBIOS = text(ask(s, "nvmlDeviceGetVbiosVersion", who, d.GetVbiosVersion))
	g.Inforom = text(ask(s, "nvmlDeviceGetInforomImageVersion", who, d.GetInforomImageVersion))
	g.VGPU = as(ask(s, "nvmlDeviceGetVirtualizationMode", who, d.GetVirtualizationMode), func(m nvml.GpuVirtualizationMode) bool {
		return m == nvml.GPU_VIRTUALIZATION_MODE_VGPU
	})
	s.add(d, g)
}

// addressOf returns an address by its numbers, or by the text if these are 0: there is no GPU at 0000:00:00.0. It
// returns "" if the text has none, either.
func addressOf(p nvml.PciInfo) string {
	if p.Domain == 0 && p.Bus == 0 && p.Device == 0 {
		var text []byte
		for _, c := range p.BusId {
			if c == 0 {
				break
			}
			text = append(text, byte(c))
		}
		_, err := fmt.Sscanf(string(text), "%x:%x:%x.", &p.Domain, &p.Bus, &p.Device)
		if err != nil || p.Domain == 0 && p.Bus == 0 && p.Device == 0 {
			return ""
		}
	}
	return fmt.Sprintf("%04x:%02x:%02x.0", p.Domain, p.Bus, p.Device)
}

func (s *nvmlSession) add(d nvml.Device, g GPU) {
	s.devices = append(s.devices, d)
	s.snapshot.GPUs = append(s.snapshot.GPUs, g)
}

// read reads some groups of every GPU.
func (s *nvmlSession) read(groups Group) {
	if s.doing == nil {
		s.doing = func(string) {}
	}
	defer func() { s.at = aboutNode }()
	for i, d := range s.devices {
		if d == nil || s.stateOf(i) != nil {
			continue
		}
		s.at = i
		q := query{s, &s.snapshot.GPUs[i], d, fmt.Sprintf("(%d)", i)}
		for _, part := range parts {
			if groups&part.group != 0 {
				part.read(q)
			}
		}
	}
}

// scoped is a field of a part of the GPU, such as one NVLink.
type scoped struct{ id, scope uint32 }

// fields reads values by their numbers in one call.
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
		call := "field " + strconv.Itoa(int(ids[i].id)) + " of nvmlDeviceGetFieldValues" + q.who
		switch ret := nvml.Return(v.NvmlReturn); {
		case !all.Known:
			out[i].Err = all.Err
		case ret == nvml.SUCCESS:
			if out[i] = decodeField(call, ids[i].id, v); out[i].Known {
				if err := fieldBounds()[ids[i].id].check(call, uint64(out[i].Value)); err != nil {
					out[i] = Failed[int64](err)
				}
			}
		case ret == nvml.ERROR_NO_PERMISSION && !privileged():
		case ret != nvml.ERROR_NOT_SUPPORTED && ret != nvml.ERROR_INVALID_ARGUMENT && ret != nvml.ERROR_DEPRECATED: // the first two: not known to this driver
			err := &Error{call, int(ret)}
			q.s.note(err)
			out[i].Err = err
		}
	}
	return out
}

// signedFields are margins: negative 32-bit numbers, whatever type a driver reports.
var signedFields = []uint32{nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, nvml.FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, nvml.FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT}

func decodeField(call string, id uint32, v nvml.FieldValue) Reading[int64] {
	raw := binary.NativeEndian.Uint64(v.Value[:])
	kind := nvml.ValueType(v.ValueType)
	if slices.Contains(signedFields, id) && kind != nvml.VALUE_TYPE_UNSIGNED_SHORT && kind != nvml.VALUE_TYPE_DOUBLE {
		kind = nvml.VALUE_TYPE_SIGNED_INT
	}
	switch kind {
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

// SetPersistence turns persistence mode on, and updates the snapshot.
func SetPersistence(h *probe.Host, gpu int, doing func(string)) error {
	s, err := probe.Once(h, "nvml", func() (*nvmlSession, error) { return openNVML(h, doing) })
	switch {
	case err != nil:
		return err
	case gpu < 0 || gpu >= len(s.snapshot.GPUs):
		return fmt.Errorf("no GPU %d", gpu)
	case s.lib == nil && !s.snapshot.Settable:
		return probe.ErrRecorded
	case s.lib != nil:
		if doing != nil {
			s.doing = doing
		}
		s.at = gpu
		defer func() { s.at = aboutNode }()
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
