package checks

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// fakeDCGM is an engine that says what it was told to.
type fakeDCGM struct {
	health  probe.DCGMHealth
	results []probe.DCGMResult
	err     error // of Health and Diag
	gpuErr  error // of GPUs
	gpus    []probe.DCGMGPU
	asked   probe.DCGMDiagRequest
	wait    bool // Diag takes until it is stopped
}

func (f *fakeDCGM) Via() string { return "nv-hostengine at here" }

func (f *fakeDCGM) Close() {}

func (f *fakeDCGM) GPUs(context.Context) ([]probe.DCGMGPU, error) { return f.gpus, f.gpuErr }

func (f *fakeDCGM) Health(context.Context, probe.DCGMSystem) (*probe.DCGMHealth, error) {
	if f.err != nil {
		return nil, f.err
	}
	return &f.health, nil
}

func (f *fakeDCGM) Diag(ctx context.Context, r probe.DCGMDiagRequest) ([]probe.DCGMResult, error) {
	f.asked = r
	if f.wait {
		<-ctx.Done()
		return nil, fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	return slices.Clone(f.results), f.err
}

// fromLast are the GPUs of a node as DCGM may count them: from the last.
func fromLast() (list []probe.DCGMGPU) {
	for i := range 8 {
		list = append(list, probe.DCGMGPU{ID: 7 - i, PCI: fakenvml.Address(i), UUID: fakenvml.UUID(i)})
	}
	return list
}

// onDCGM is a line on a node with eight H100, whose DCGM is e.
func onDCGM(name string, words []string, e *fakeDCGM, want ...Finding) scenario {
	s := onGPUs(name, words, nil, want...)
	if e.gpus == nil {
		e.gpus = fromLast()
	}
	s.dcgm = func(h *probe.Host) { h.SetDCGM(e, nil) }
	return s
}

// noDCGM is a line on a node whose DCGM is not to be asked.
func noDCGM(check, name string, words []string, err error, f Finding) scenario {
	f.Message = fmt.Sprintf("%s:  cannot ask DCGM: %v", check, err)
	s := onGPUs(name, words, nil, f)
	s.broken, s.dcgm = f.Severity != Fail, func(h *probe.Host) { h.SetDCGM(nil, err) }
	return s
}

// dcgmCommon are the scenarios of a DCGM that cannot be asked.
func dcgmCommon(check string, words ...string) []scenario {
	hung := &probe.DCGMHungError{Doing: "dcgmConnect", For: 8 * time.Second}
	none := fmt.Errorf("load libdcgm.so.4: %w", probe.ErrNoLibrary)
	mode := onGPUs("a mode that there is not", words, nil, Finding{Code: "config.value", Severity: Unknown, Want: "one of auto, standalone, embedded, dcgmi", Got: "both",
		Remedy: FixConfig, Message: check + ":  DCGM_MODE, want one of auto, standalone, embedded, dcgmi, got both"})
	mode.vars = map[string]string{"DCGM_MODE": "both"}
	other := onGPUs("a recorded node", words, nil, Finding{Code: "dcgm.library", Severity: Unknown,
		Message: check + ":  cannot ask DCGM: load libdcgm.so.4: not found for a recorded node below {root}; DCGM_LIBRARY names one"})
	other.broken = true
	return []scenario{
		noDCGM(check, "no DCGM", words, none, Finding{Code: "dcgm.library", Severity: Unknown}),
		noDCGM(check, "no engine", words, fmt.Errorf("nv-hostengine at localhost:5555: %w", probe.ErrNoEngine), Finding{Code: "dcgm.engine", Severity: Unknown}),
		noDCGM(check, "the engine hangs", words, hung, Finding{Code: "dcgm.hung", Severity: Warn, Got: hung.Error()}),
		noDCGM(check, "the engine hangs, which fails", append([]string{"-f"}, words...), hung, Finding{Code: "dcgm.hung", Severity: Fail, Got: hung.Error()}),
		noDCGM(check, "a library without a function", words, &probe.DCGMError{Call: "load libdcgm.so.4", Text: "it has no function dcgmInit"},
			Finding{Code: "dcgm.failed", Severity: Unknown}),
		mode, other,
	}
}

// dcgmGPU is an entity of a node of eight whose GPUs DCGM counts from the last.
func dcgmGPU(i int) probe.DCGMEntity { return probe.DCGMEntity{Kind: "gpu", ID: 7 - i} }
