package checktest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/hostengine"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// FakeDCGM is an engine with fixed answers.
type FakeDCGM struct {
	Says    hostengine.Health
	Results []hostengine.Result
	Err     error // returned by Health and Diag
	GPUErr  error // returned by GPUs
	Listed  []hostengine.GPU
	Asked   hostengine.DiagRequest
	Wait    bool // Diag runs until it is stopped
}

// Via implements [hostengine.Engine].
func (f *FakeDCGM) Via() string { return "nv-hostengine at here" }

// Close implements [hostengine.Engine].
func (f *FakeDCGM) Close() {}

// GPUs implements [hostengine.Engine].
func (f *FakeDCGM) GPUs(context.Context) ([]hostengine.GPU, error) { return f.Listed, f.GPUErr }

// Health implements [hostengine.Engine].
func (f *FakeDCGM) Health(context.Context, hostengine.System) (*hostengine.Health, error) {
	return &f.Says, f.Err
}

// Diag implements [hostengine.Engine].
func (f *FakeDCGM) Diag(ctx context.Context, r hostengine.DiagRequest) ([]hostengine.Result, error) {
	f.Asked = r
	if f.Wait {
		<-ctx.Done()
		return nil, fmt.Errorf("stopped: %w", context.Cause(ctx))
	}
	return slices.Clone(f.Results), f.Err
}

// FromLast returns the GPUs of a node in reverse order: DCGM can number them differently.
func FromLast() (list []hostengine.GPU) {
	for i := range 8 {
		list = append(list, hostengine.GPU{ID: 7 - i, PCI: fakenvml.Address(i), UUID: fakenvml.UUID(i)})
	}
	return list
}

// OnDCGM returns a scenario on a node with eight H100 and the DCGM engine e.
func OnDCGM(name string, words []string, e *FakeDCGM, want ...checks.Finding) Scenario {
	s := OnGPUs(name, words, nil, want...)
	if e.Listed == nil {
		e.Listed = FromLast()
	}
	s.dcgm = func(h *probe.Host) { hostengine.Set(h, e, nil) }
	return s
}

// noDCGM returns a scenario on a node whose DCGM cannot be queried.
func noDCGM(check, name string, words []string, err error, f checks.Finding) Scenario {
	f.Message = fmt.Sprintf("%s:  cannot ask DCGM: %v", check, err)
	s := OnGPUs(name, words, nil, f)
	s.Broken, s.dcgm = f.Severity != checks.Fail, func(h *probe.Host) { hostengine.Set(h, nil, err) }
	return s
}

// DCGMCommon returns the scenarios of a DCGM that cannot be queried.
func DCGMCommon(check string, words ...string) []Scenario {
	hung := &hostengine.HungError{Doing: "dcgmConnect", For: 8 * time.Second}
	none := fmt.Errorf("load libdcgm.so.4: %w", probe.ErrNoLibrary)
	mode := OnGPUs("a mode that there is not", words, nil, checks.Finding{Code: "config.value", Severity: checks.Unknown, Want: "one of auto, standalone, embedded, dcgmi", Got: "both",
		Remedy: checks.FixConfig, Message: check + ":  DCGM_MODE, want one of auto, standalone, embedded, dcgmi, got both"})
	mode.Vars = map[string]string{"DCGM_MODE": "both"}
	other := OnGPUs("a recorded node", words, nil, checks.Finding{Code: "dcgm.library", Severity: checks.Unknown,
		Message: check + ":  cannot ask DCGM: load libdcgm.so.4: not found for a recorded node below {root}; DCGM_LIBRARY names one"})
	other.Broken = true
	return []Scenario{
		noDCGM(check, "no DCGM", words, none, checks.Finding{Code: "dcgm.library", Severity: checks.Unknown}),
		noDCGM(check, "no engine", words, fmt.Errorf("nv-hostengine at localhost:5555: %w", hostengine.ErrNoEngine), checks.Finding{Code: "dcgm.engine", Severity: checks.Unknown}),
		noDCGM(check, "the engine hangs", words, hung, checks.Finding{Code: "dcgm.hung", Severity: checks.Warn, Got: hung.Error()}),
		noDCGM(check, "the engine hangs, which fails", append([]string{"-f"}, words...), hung, checks.Finding{Code: "dcgm.hung", Severity: checks.Fail, Got: hung.Error()}),
		noDCGM(check, "a library without a function", words, &hostengine.Error{Call: "load libdcgm.so.4", Text: "it lacks the function dcgmInit"},
			checks.Finding{Code: "dcgm.failed", Severity: checks.Unknown}),
		mode, other,
	}
}

// DCGMGPU returns the entity of a GPU, by its NVML index, on a node of [FromLast].
func DCGMGPU(i int) hostengine.Entity { return hostengine.Entity{Kind: "gpu", ID: 7 - i} }
