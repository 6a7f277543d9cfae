package hostengine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file runs the diagnostic by the library's own functions: go-dcgm's RunDiag accepts no list
// of tests, drops all results if one test could not run, and cannot be stopped.

// dcgmCalls are those functions: dcgm_agent.h of DCGM 4.6. A handle is that of a connection; all
// return a dcgmReturn_t.
type dcgmCalls struct {
	connect    func(address string, params unsafe.Pointer, handle unsafe.Pointer) int32
	disconnect func(handle uintptr) int32
	validate   func(handle uintptr, run unsafe.Pointer, response unsafe.Pointer) int32
	stop       func(handle uintptr) int32
	text       func(code int32) string
}

func (l *dcgmLibrary) bindCalls() *dcgmCalls {
	c := &dcgmCalls{}
	for name, f := range map[string]any{"dcgmConnect_v2": &c.connect, "dcgmDisconnect": &c.disconnect,
		"dcgmActionValidate_v2": &c.validate, "dcgmStopDiagnostic": &c.stop, "errorString": &c.text} {
		purego.RegisterLibFunc(f, l.handle, name)
	}
	return c
}

func (c *dcgmCalls) failure(call string, code int32) error {
	if code == 0 {
		return nil
	}
	return &Error{Call: call, Code: int(code), Text: probe.OneLine(c.text(code))}
}

// dcgmEmbeddedHandle is the handle of the engine in this process: dcgm_test_apis.h.
const dcgmEmbeddedHandle = 0x7fffffff

// These are added to a diagnostic's time: for the library to notice that it is over, and to end
// after a request to stop.
const (
	dcgmDiagMore = 30 * time.Second
	dcgmDiagEnd  = 2 * time.Second
)

// diagRun is a diagnostic in progress on its own connection. That connection is busy, so the
// request to stop uses another one.
type diagRun struct {
	*libEngine

	calls *dcgmCalls
	work  uintptr
	other uintptr
}

// Diag runs a diagnostic. When the context ends, or this process gets a signal to end, it makes
// DCGM stop, since DCGM's tests run in another process.
func (e *libEngine) Diag(ctx context.Context, r DiagRequest) ([]Result, error) {
	d := &diagRun{libEngine: e, calls: e.lib.bindCalls(), work: dcgmEmbeddedHandle, other: dcgmEmbeddedHandle}
	if e.address != "" {
		for _, h := range []*uintptr{&d.work, &d.other} {
			handle, err := d.connect(ctx)
			if err != nil {
				return nil, err
			}
			*h = handle
			defer d.disconnect(handle)
		}
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGTERM)
	defer signal.Stop(told)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-told:
			cancel(errors.New("the run was ended"))
		case <-ctx.Done():
		}
	}()
	return d.run(ctx, r)
}

func (d *diagRun) connect(ctx context.Context) (uintptr, error) {
	network, target := splitAddress(d.address)
	params := dcgmConnectParams{Version: dcgmVersionOf(unsafe.Sizeof(dcgmConnectParams{}), 2), TimeoutMs: uint32(dcgmKnock.Milliseconds())}
	if network == "unix" {
		params.UnixSocket = 1
	}
	return ask(ctx, d.libEngine, "dcgmConnect_v2", func() (uintptr, error) {
		var handle uintptr
		code := d.calls.connect(target, unsafe.Pointer(&params), unsafe.Pointer(&handle))
		return handle, d.calls.failure("dcgmConnect_v2", code)
	})
}

func (d *diagRun) disconnect(handle uintptr) {
	if d.lib.hung == nil {
		_ = d.call(context.Background(), "dcgmDisconnect", func() error { d.calls.disconnect(handle); return nil })
	}
}

// run waits for the diagnostic. It can return results together with an error.
func (d *diagRun) run(ctx context.Context, r DiagRequest) ([]Result, error) {
	type answer struct {
		results []Result
		err     error
	}
	run, response := encodeRequest(r), &dcgmDiagResponse{}
	response.Version = dcgmVersionOf(unsafe.Sizeof(*response), 12)
	done := make(chan answer, 1)
	d.lib.doing(fmt.Sprintf("dcgmActionValidate_v2, level %d", r.Level))
	go func() {
		code := d.calls.validate(d.work, unsafe.Pointer(run), unsafe.Pointer(response))
		done <- answer{response.results(), d.calls.failure("dcgmActionValidate_v2", code)}
	}()
	timer := time.NewTimer(r.Timeout + dcgmDiagMore)
	defer timer.Stop()
	select {
	case a := <-done:
		return a.results, a.err
	case <-timer.C:
		d.stop()
		d.lib.hung = &HungError{Doing: "dcgmActionValidate_v2", For: r.Timeout + dcgmDiagMore}
		return nil, d.lib.hung
	case <-ctx.Done():
	}
	d.stop()
	select {
	case a := <-done:
		return a.results, fmt.Errorf("stopped: %w", context.Cause(ctx))
	case <-time.After(dcgmDiagEnd):
	}
	d.killTests()
	d.lib.hung = &HungError{Doing: "dcgmStopDiagnostic", For: dcgmDiagEnd}
	return nil, fmt.Errorf("stopped: %w; %w", context.Cause(ctx), d.lib.hung)
}

func (d *diagRun) stop() {
	_ = d.call(context.Background(), "dcgmStopDiagnostic", func() error {
		return d.calls.failure("dcgmStopDiagnostic", d.calls.stop(d.other))
	})
}

// killTests kills the processes that the engine in this process has started: DCGM's nvvs, which
// would continue to use the GPUs.
func (d *diagRun) killTests() {
	if d.address != "" {
		return
	}
	for _, pid := range probe.Children(os.Getpid()) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// encodeRequest converts a request to the library's form.
func encodeRequest(r DiagRequest) *dcgmRunDiag {
	run := &dcgmRunDiag{GroupID: dcgmGroupNull, Validate: uint32(r.Level), TimeoutSeconds: uint32(r.Timeout.Seconds())}
	run.Version = dcgmVersionOf(unsafe.Sizeof(*run), 10)
	var ids []string
	for _, id := range r.GPUs {
		ids = append(ids, strconv.Itoa(id))
	}
	copy(run.EntityIDs[:len(run.EntityIDs)-1], strings.Join(ids, ","))
	for i, parameter := range skipParameters(r.Exclude) {
		if i < len(run.TestParms) {
			copy(run.TestParms[i][:len(run.TestParms[i])-1], parameter)
		}
	}
	return run
}

// skipParameters returns the parameters that make DCGM skip tests: each test except "software" has one
// of this name, in nvvs of DCGM 3 and 4.
func skipParameters(tests []string) (parameters []string) {
	for _, t := range tests {
		if t != "software" {
			parameters = append(parameters, t+".is_allowed=false")
		}
	}
	return parameters
}

// results returns the results of all tests. It ignores entries beyond the library's arrays.
func (r *dcgmDiagResponse) results() (list []Result) {
	errs := r.Errors[:min(int(r.NumErrors), len(r.Errors))]
	told := make([]bool, len(errs))
	for i := range r.Tests[:min(int(r.NumTests), len(r.Tests))] {
		t := &r.Tests[i]
		notes := func(of dcgmEntityPair) (notes []Note) {
			for _, n := range t.ErrorIndices[:min(int(t.NumErrors), len(t.ErrorIndices))] {
				if int(n) < len(errs) && errs[n].Entity == of && !told[n] {
					told[n], notes = true, append(notes, errs[n].note())
				}
			}
			return notes
		}
		for _, n := range t.ResultIndices[:min(int(t.NumResults), len(t.ResultIndices))] {
			if int(n) < min(int(r.NumResults), len(r.Results)) {
				e := r.Results[n]
				list = append(list, Result{Test: readCString(t.Name[:]), Entity: e.Entity.entity(), Status: nameStatus(e.Result), Notes: notes(e.Entity)})
			}
		}
		if global := notes(dcgmEntityPair{}); len(global) > 0 {
			list = append(list, Result{Test: readCString(t.Name[:]), Status: nameStatus(t.Result), Notes: global})
		}
		for i := range errs { // of an entity without a result
			if more := notes(errs[i].Entity); len(more) > 0 {
				list = append(list, Result{Test: readCString(t.Name[:]), Entity: errs[i].Entity.entity(), Status: DCGMFail, Notes: more})
			}
		}
	}
	for i := range errs { // of the diagnostic itself
		if !told[i] {
			list = append(list, Result{Entity: errs[i].Entity.entity(), Status: DCGMFail, Notes: []Note{errs[i].note()}})
		}
	}
	return list
}

func (e *dcgmDiagError) note() Note {
	return Note{Code: int(e.Code), Message: probe.OneLine(readCString(e.Msg[:]))}
}

func (p dcgmEntityPair) entity() Entity {
	if p.Group == 0 {
		return Entity{}
	}
	return Entity{Kind: nameKind(uint(p.Group)), ID: int(p.ID)}
}

func nameStatus(result uint32) string {
	names := []string{DCGMPass, DCGMSkip, DCGMWarn, DCGMFail, DCGMNotRun}
	if int(result) < len(names) {
		return names[result]
	}
	return fmt.Sprintf("result %d", result)
}

// readCString converts a C string.
func readCString(b []byte) string {
	if n := bytes.IndexByte(b, 0); n >= 0 {
		b = b[:n]
	}
	return string(b)
}
