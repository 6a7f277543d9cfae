package hostengine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
	"github.com/ebitengine/purego"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file uses libdcgm.so.4 by NVIDIA's go-dcgm. go-dcgm finds a function when it is first
// called, and ends the process if the library lacks it. So this code looks for each function first.

// dcgmLibrary is the library in this process. It is never unloaded, because the process ends with
// the run.
type dcgmLibrary struct {
	handle uintptr // of dlopen
	doing  func(string)
	hung   error // a call of nv-hostengine that never returned: no further calls are made
}

// loadDCGM loads the library. go-dcgm loads libdcgm.so.4 and gets this file, since glibc compares
// the DT_SONAME of libraries, not the names of their files. Its symbols must be global.
func loadDCGM(h *probe.Host, doing func(string)) (*dcgmLibrary, error) {
	lib, err := probe.Once(h, "dcgm library", func() (*dcgmLibrary, error) {
		for _, v := range os.Environ() {
			if name, _, _ := strings.Cut(v, "="); leadsDCGM(name) {
				_ = os.Unsetenv(name)
			}
		}
		return probe.LoadLibrary(h, &probe.LibDCGM, 0, func(path string) (*dcgmLibrary, error) {
			doing("load " + path)
			handle, err := probe.OpenLibrary(path, purego.RTLD_LAZY|purego.RTLD_GLOBAL)
			if err != nil {
				if path != probe.LibDCGM.Names[0] && fileExists(path) { // the file exists, but is not a library
					return nil, &Error{Call: "load " + path, Text: probe.OneLine(err.Error())}
				}
				return nil, fmt.Errorf("load %s: %w", path, probe.ErrNoLibrary)
			}
			l := &dcgmLibrary{handle: handle}
			return l, l.complete(path)
		})
	})
	if err == nil {
		lib.doing = doing
		err = lib.hung
	}
	return lib, err
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// dcgmFunctions are the functions that are called. DCGM 4.0 has all of them.
var dcgmFunctions = []string{
	"dcgmInit", "dcgmShutdown", "dcgmConnect_v2", "dcgmDisconnect", "dcgmStartEmbedded", "dcgmStopEmbedded", "errorString",
	"dcgmGetEntityGroupEntities", "dcgmEntitiesGetLatestValues", "dcgmUpdateAllFields",
	"dcgmGroupCreate", "dcgmGroupAddEntity", "dcgmGroupDestroy", "dcgmHealthGet", "dcgmHealthSet", "dcgmHealthCheck",
	"dcgmActionValidate_v2", "dcgmStopDiagnostic",
}

func (l *dcgmLibrary) complete(path string) error {
	for _, name := range dcgmFunctions {
		if _, err := probe.Dlsym(l.handle, name); err != nil {
			return &Error{Call: "load " + path, Text: "it lacks the function " + name}
		}
	}
	return nil
}

// dcgmAnswer is the time limit of nv-hostengine for one answer. For most answers it queries the
// driver, which may be slow on a busy node.
const dcgmAnswer = 8 * time.Second

// libEngine is an engine that the library uses.
type libEngine struct {
	lib     *dcgmLibrary
	address string // of nv-hostengine; "": the engine is in this process
	limit   time.Duration
	cleanup func()
	gpus    []GPU
}

// standalone connects to a running nv-hostengine.
func (l *dcgmLibrary) standalone(ctx context.Context, address string) (Engine, error) {
	l.doing("connect to nv-hostengine at " + address)
	if err := knock(ctx, address); err != nil {
		return nil, err
	}
	network, target := splitAddress(address)
	e := &libEngine{lib: l, address: address, limit: dcgmAnswer}
	socket := "0"
	if network == "unix" {
		socket = "1"
	}
	cleanup, err := ask(ctx, e, "dcgmConnect", func() (func(), error) { return dcgm.Init(dcgm.Standalone, target, socket) })
	if err != nil {
		return nil, err
	}
	e.cleanup = cleanup
	return e, nil
}

// embedded starts an engine in this process. If it hangs, the driver hangs.
func (l *dcgmLibrary) embedded() (Engine, error) {
	e := &libEngine{lib: l}
	cleanup, err := ask(context.Background(), e, "dcgmStartEmbedded", func() (func(), error) { return dcgm.Init(dcgm.Embedded) })
	if err != nil {
		return nil, err
	}
	e.cleanup = cleanup
	return e, nil
}

func (e *libEngine) Via() string {
	if e.address == "" {
		return "DCGM in this process"
	}
	return "nv-hostengine at " + e.address
}

// ask makes a call of the library. It abandons a call of nv-hostengine after a while, and then
// makes no other call, because the thread of the first one waits forever.
func ask[T any](ctx context.Context, e *libEngine, name string, f func() (T, error)) (v T, err error) {
	if e.lib.hung != nil {
		return v, e.lib.hung
	}
	e.lib.doing(name)
	if e.limit == 0 {
		v, err = f()
		return v, convertFailure(name, err)
	}
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		v, err := f()
		done <- answer{v, err}
	}()
	timer := time.NewTimer(e.limit)
	defer timer.Stop()
	select {
	case a := <-done:
		err = convertFailure(name, a.err)
		if d, ok := errors.AsType[*Error](err); ok && d.timedOut() {
			err = &HungError{Doing: name, For: e.limit}
		}
		return a.value, err
	case <-timer.C:
		e.lib.hung = &HungError{Doing: name, For: e.limit}
	case <-ctx.Done():
		e.lib.hung = fmt.Errorf("%s: %w", name, context.Cause(ctx))
	}
	return v, e.lib.hung
}

// timedOut reports whether the library itself timed out waiting for nv-hostengine. go-dcgm returns
// the code of only some calls.
func (e *Error) timedOut() bool {
	return e.Code == dcgmTimeout || e.Code == 0 && strings.HasSuffix(": "+e.Text, ": Timeout")
}

// call is ask for a call without a result.
func (e *libEngine) call(ctx context.Context, name string, f func() error) error {
	_, err := ask(ctx, e, name, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// convertFailure converts the error of a call.
func convertFailure(call string, err error) error {
	if err == nil {
		return nil
	}
	if d, ok := errors.AsType[*dcgm.Error](err); ok {
		return &Error{Call: call, Code: int(d.Code), Text: probe.OneLine(d.Error())}
	}
	return &Error{Call: call, Text: probe.OneLine(err.Error())}
}

func (e *libEngine) Close() {
	if e.cleanup == nil || e.lib.hung != nil {
		return
	}
	_ = e.call(context.Background(), "dcgmDisconnect", func() error { e.cleanup(); return nil })
	e.cleanup = nil
}

// GPUs reads the addresses and UUIDs of all GPUs in one call.
func (e *libEngine) GPUs(ctx context.Context) ([]GPU, error) {
	if e.gpus != nil {
		return e.gpus, nil
	}
	gpus, err := ask(ctx, e, "dcgmEntitiesGetLatestValues", listGPUs)
	if err == nil {
		e.gpus = gpus
	}
	return gpus, err
}

func listGPUs() ([]GPU, error) {
	ids, err := dcgm.GetEntityGroupEntities(dcgm.FE_GPU)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	var entities []dcgm.GroupEntityPair
	var gpus []GPU
	for _, id := range ids {
		entities = append(entities, dcgm.GroupEntityPair{EntityGroupId: dcgm.FE_GPU, EntityId: id})
		gpus = append(gpus, GPU{ID: int(id)})
	}
	values, err := dcgm.EntitiesGetLatestValues(entities, []dcgm.Short{dcgm.DCGM_FI_DEV_GPU_UUID, dcgm.DCGM_FI_DEV_PCI_BUS_ID}, dcgm.DCGM_FV_FLAG_LIVE_DATA)
	for _, v := range values {
		for i := range gpus {
			if gpus[i].ID == int(v.EntityID) {
				gpus[i].take(v.FieldID, v.String())
			}
		}
	}
	return gpus, err
}

// take stores the value of a field, unless it means that there is none: DCGM writes that in angle
// brackets, <<<NOT_SUPPORTED>>>.
func (g *GPU) take(field dcgm.Short, text string) {
	text = probe.OneLine(text)
	if strings.HasPrefix(text, "<<<") {
		return
	}
	if field == dcgm.DCGM_FI_DEV_GPU_UUID {
		g.UUID = text
		return
	}
	g.PCI = normalizeAddress(text)
}

// normalizeAddress converts a PCI address in the form of DCGM and NVML, 00000000:C1:00.0, to the kernel's
// form.
func normalizeAddress(text string) string {
	domain, rest, ok := strings.Cut(strings.ToLower(text), ":")
	if ok && len(domain) == 8 {
		domain = strings.TrimPrefix(domain, "0000")
	}
	return domain + ":" + rest
}
