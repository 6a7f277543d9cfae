package checks

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

//go:embed cudaerrors.toml
var cudaErrorData string

// cudaError is a row of cudaerrors.toml: what an error of CUDA's says of the GPU.
type cudaError struct {
	Code     int    `toml:"code"` // CUresult: 719
	Name     string `toml:"name"` // CUDA_ERROR_LAUNCH_FAILED
	Severity string `toml:"severity"`
	Remedy   string `toml:"remedy"`
	Do       string `toml:"do"`
	Source   string `toml:"source"`
}

var cudaErrors = sync.OnceValue(func() map[int]cudaError {
	rows, err := parseCUDAErrors(cudaErrorData)
	if err != nil {
		panic(err) // ours, which a test has read
	}
	return rows
})

// parseCUDAErrors reads the rows, by code.
func parseCUDAErrors(text string) (map[int]cudaError, error) {
	var file struct {
		Version string      `toml:"version"`
		Rows    []cudaError `toml:"error"`
	}
	meta, err := toml.Decode(text, &file)
	if err != nil {
		return nil, err
	}
	if more := meta.Undecoded(); len(more) > 0 {
		return nil, fmt.Errorf("unknown key %s", more[0])
	}
	rows := map[int]cudaError{}
	for _, e := range file.Rows {
		_, twice := rows[e.Code]
		switch {
		case twice:
			return nil, fmt.Errorf("error %d is there already", e.Code)
		case !strings.HasPrefix(e.Name, "CUDA_ERROR_"), e.Do == "", e.Source == "":
			return nil, fmt.Errorf("error %d: want name, do and source", e.Code)
		case e.Severity != "fail" && e.Severity != "unknown":
			return nil, fmt.Errorf("error %d: severity %q, want fail or unknown", e.Code, e.Severity)
		}
		if e.Remedy == "none" {
			e.Remedy = ""
		}
		rows[e.Code] = e
	}
	return rows, nil
}

// cudaErrorCode begins the codes of findings about errors of CUDA: cuda.error.719.
const cudaErrorCode = "cuda.error"

// cudaFinding is what an error of CUDA's says of the GPU, and what to do about it. An
// error without a row drains nobody.
func cudaFinding(err *probe.CUDAError) (severity Severity, remedy Remedy, do string) {
	row, ok := cudaErrors()[err.Code]
	if !ok {
		return Unknown, NoRemedy, ""
	}
	severity = Unknown
	if row.Severity == "fail" {
		severity = Fail
	}
	return severity, Remedy(row.Remedy), row.Do
}

// cudaCode is the code of a finding about an error: cuda.error.719, or cuda.error for
// one that has no row.
func cudaCode(err *probe.CUDAError) string {
	if _, ok := cudaErrors()[err.Code]; !ok {
		return cudaErrorCode
	}
	return cudaErrorCode + "." + strconv.Itoa(err.Code)
}

// cudaDo is the advice on the codes of cudaCode, for Info.DoOf.
func cudaDo(code string) string {
	number, ok := strings.CutPrefix(code, cudaErrorCode+".")
	n, err := strconv.Atoi(number)
	if !ok || err != nil {
		return ""
	}
	return cudaErrors()[n].Do
}

// ofKernels are errors of CUDA that a kernel, or the driver that compiled it, can cause as
// well as the GPU that runs it.
var ofKernels = []string{cudaErrorCode + ".714", cudaErrorCode + ".715", cudaErrorCode + ".718", cudaErrorCode + ".719"}

// blameNone has errors of kernels drain nobody where all GPUs of a test, two or more, have
// met the same: it is the driver's or this program's fault before it is all of theirs.
func (r *activeRun) blameNone() {
	for _, code := range ofKernels {
		of := func(g *probe.GPU) func(Finding) bool {
			return func(f Finding) bool { return f.Code == code && f.Device.Name == gpuDevice(g).Name }
		}
		if len(r.gpus) < 2 || slices.ContainsFunc(r.gpus, func(g *probe.GPU) bool { return !slices.ContainsFunc(r.findings, of(g)) }) {
			continue
		}
		for i := range r.findings {
			if f := &r.findings[i]; f.Code == code {
				f.Severity, f.Remedy = Unknown, NoRemedy
			}
		}
	}
}
