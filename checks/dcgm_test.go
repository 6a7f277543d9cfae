package checks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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
func (f *fakeDCGM) Close()      {}

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

func TestDCGMTable(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for i, r := range dcgmRows() {
		if r.Code != i || r.Name == "" || names[r.Name] || !slices.Contains([]dcgmClass{dcgmFails, dcgmWarns, dcgmTells}, r.Class) {
			t.Errorf("row %d: %+v", i, r)
		}
		names[r.Name] = true
		if dcgmWhy(&dcgmRows()[i]) == "" {
			t.Errorf("%s: source %q is none", r.Name, r.Source)
		}
		if r.Class != dcgmFails && r.Remedy != NoRemedy {
			t.Errorf("%s: a remedy for what does not fail", r.Name)
		}
		if doDCGM(fmt.Sprintf("%s%d", dcgmCode, i)) == "" {
			t.Errorf("%s: no advice", r.Name)
		}
	}
	if len(names) != 134 {
		t.Errorf("%d rows, want the 134 of DCGM 4.6", len(names))
	}
}

// A text is that of one row at most.
func TestDCGMTexts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"Detected 2 volatile double-bit ECC error(s) in GPU 3. Drain the GPU and reset it or reboot the node.": 4,
		"GPU 3's NvLink link 7 is currently down Run a field diagnostic on the GPU.":                           14,
		"GPU 3 had memory errors and row remappings are pending":                                               85,
		"GPU 3 had uncorrectable memory errors and row remapping failed.":                                      80,
		"GPU 0 requires a reset to recover from a fault. Recovery action: 1 (GPU_RESET).":                      125,
		"Detected more than 8 PCIe replays per minute for GPU 3 : 12":                                          -1,
		"GPU 3 had uncorrectable memory errors and 2 rows were remapped":                                       -1,
	} {
		got, found := -1, 0
		for _, r := range dcgmRows() {
			if r.Says != "" && strings.Contains(text, r.Says) {
				got, found = r.Code, found+1
			}
		}
		if got != want || found > 1 {
			t.Errorf("%q: %d rows, the last %d, want %d", text, found, got, want)
		}
	}
}

func TestDCGMClassesOfASite(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"[[error]]\nname = \"DCGM_FR_PCI_REPLAY_RATE\"\nclass = \"fail\"\n", "3 fail"},
		{"[[error]]\ncode = 4\nclass = \"info\"\n", "4 info"},
		{"[[error]]\ncode = 200\nname = \"NEW\"\nclass = \"fail\"\n", "200 fail"},
		{"[[error]]\ncode = 3\nclass = \"drain\"\n", `f:1: class "drain", want fail, warn or info`},
		{"\n[[error]]\nname = \"NONE\"\nclass = \"warn\"\n", `f:2: DCGM has no error "NONE"`},
		{"[[error]]\ncode = 3\nclass = \"warn\"\nlevel = 2\n", "f:4: unknown key error.level"},
		{"[[error]\n", "f:1:9: toml: line 1: expected"},
	} {
		changed, err := changeDCGM(dcgmRows(), "f", c.text)
		got := fmt.Sprint(err)
		if err == nil {
			got = ""
			for i, r := range changed {
				if i >= len(dcgmRows()) || r.Class != dcgmRows()[i].Class {
					got += fmt.Sprintf("%d %s", r.Code, r.Class)
				}
			}
		}
		if got != c.want && (!strings.HasSuffix(c.want, "expected") || err == nil) {
			t.Errorf("%q: %s, want %s", c.text, got, c.want)
		}
	}
}

func TestDCGMSeverity(t *testing.T) {
	t.Parallel()
	got := map[string]Severity{}
	for _, c := range []struct {
		code   int
		failed bool
	}{{4, true}, {4, false}, {3, true}, {27, true}, {999, true}, {-1, true}, {122, true}, {14, true}} {
		got[fmt.Sprint(c.code, c.failed)] = dcgmRows().find(c.code, "").severity(c.failed)
	}
	want := map[string]Severity{"4 true": Fail, "4 false": Warn, "3 true": Warn, "27 true": OK, "999 true": Warn, "-1 true": Warn, "122 true": Warn, "14 true": Warn}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A diagnostic of DCGM's is asked for the GPUs that are free, by DCGM's numbers, and
// ends when a job comes.
func TestDCGMDiagOfFreeGPUs(t *testing.T) {
	t.Parallel()
	env, _ := trialEnv(t, gpu3(func(g *probe.GPU) { g.Modes.MIG = probe.Known(true) }))
	e := &fakeDCGM{gpus: fromLast()}
	env.Host.SetDCGM(e, nil)
	(&dcgmDiag{Level: 2, Exclude: "pcie, nvbandwidth"}).Run(t.Context(), env)
	want := probe.DCGMDiagRequest{Level: 2, GPUs: []int{7, 6, 5, 3, 2, 1, 0}, Exclude: []string{"pcie", "nvbandwidth"}, Timeout: 15 * time.Minute}
	if diff := cmp.Diff(want, e.asked); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDCGMDiagStopsForAJob(t *testing.T) {
	t.Parallel()
	env, root := trialEnv(t, nil)
	e := &fakeDCGM{gpus: fromLast(), wait: true}
	env.Host.SetDCGM(e, nil)
	time.AfterFunc(200*time.Millisecond, func() { putStepd(t, root, 4711, "99.extern") })
	wantBrief(t, (&dcgmDiag{Level: 3}).Run(t.Context(), env), "skip active.stopped: check_dcgm_diag:  stopped: a job has begun on the node: 99")
}

func TestDCGMDiagBound(t *testing.T) {
	t.Parallel()
	for level, want := range []time.Duration{2 * time.Minute, 2 * time.Minute, 15 * time.Minute, 40 * time.Minute, 150 * time.Minute, 150 * time.Minute} {
		if got := (&dcgmDiag{Level: level}).Bound(); got != want {
			t.Errorf("level %d: %v, want %v", level, got, want)
		}
	}
	if got := (&dcgmDiag{Level: 4, Limit: time.Minute}).Bound(); got != time.Minute {
		t.Errorf("-t 60: %v", got)
	}
}

var errDCGM = errors.New("an error of DCGM")
