package active

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestCUDAErrorTable(t *testing.T) {
	t.Parallel()
	rows, err := parseCUDAErrors(cudaErrorData)
	if err != nil {
		t.Fatal(err)
	}
	remedies := map[string]bool{"": true}
	for _, r := range []checks.Remedy{checks.RestartApp, checks.ResetGPU, checks.RebootNode, checks.ReseatOrRMA, checks.CheckCable, checks.CheckFabric, checks.FixConfig} {
		remedies[string(r)] = true
	}
	for code, row := range rows {
		if !remedies[row.Remedy] {
			t.Errorf("%d: remedy %q", code, row.Remedy)
		}
		if row.Severity == "fail" && row.Remedy == "" {
			t.Errorf("%d fails, and has no remedy", code)
		}
	}
	// An error that points to a setting, another user or an old driver drains no node.
	for _, code := range []int{2, 34, 46, 100, 101, 209, 222, 802, 803, 804, 999, 4711} {
		if severity, _, _ := cudaFinding(&cuda.Error{Code: code}); severity != checks.Unknown {
			t.Errorf("%d is %v", code, severity)
		}
	}
	e := &cuda.Error{Code: 214}
	if severity, remedy, do := cudaFinding(e); severity != checks.Fail || remedy != checks.ResetGPU || do == "" || cudaCode(e) != "cuda.error.214" || cudaDo(cudaCode(e)) != do {
		t.Errorf("ECC: %v, %v, %q, %s", severity, remedy, do, cudaCode(e))
	}
	if e.Code = 4711; cudaCode(e) != "cuda.error" || cudaDo("cuda.error") != "" || cudaDo("gpu.memtest.bit") != "" {
		t.Error("an error without a row has one")
	}
}

func TestWrongCUDAErrors(t *testing.T) {
	t.Parallel()
	const row = `{code = 1, name = "CUDA_ERROR_X", severity = "fail", remedy = "none", do = "d", source = "s"}`
	for text, want := range map[string]string{
		"error = [" + row + "," + row + "]":                               "error 1: duplicate",
		"error = [" + strings.Replace(row, "fail", "warn", 1) + "]":       `severity "warn", want fail or unknown`,
		"error = [" + strings.Replace(row, `"d"`, `""`, 1) + "]":          "want name, do and source",
		"error = [" + strings.Replace(row, "remedy", "remedies", 1) + "]": "unknown key error.remedies",
		"[": "expected",
	} {
		if _, err := parseCUDAErrors(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// An error of a kernel is attributed to the GPUs that meet it, unless most of them do.
func TestKernelErrorsOfAllGPUs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		gpus, failed, code int
		want               checks.Severity
	}{{8, 8, 719, checks.Unknown}, {8, 5, 719, checks.Unknown}, {8, 4, 719, checks.Fail}, {1, 1, 719, checks.Fail}, {8, 8, 214, checks.Fail}} {
		r := &activeRun{ctx: t.Context(), env: &checks.Env{Host: probe.NewHost(t.TempDir())}, activeTest: activeTest{Check: "check_x", Code: "x"}}
		for i := range c.gpus {
			r.gpus = append(r.gpus, &nvml.GPU{Index: i})
		}
		for _, g := range r.gpus[:c.failed] {
			r.reportFailure(g, "multiply", &cuda.Error{Call: "cuStreamQuery", Code: c.code})
		}
		r.acquitGPUs()
		for _, f := range r.findings {
			if f.Severity != c.want {
				t.Errorf("%d of %d GPUs: %s, want %s", c.failed, c.gpus, f.Message, c.want)
			}
		}
	}
}
