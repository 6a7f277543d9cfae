package active

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"

	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
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
	Peer     bool   `toml:"peer"` // a fault of another GPU, whose memory this one uses, can be the cause
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
func cudaFinding(err *cuda.Error) (severity checks.Severity, remedy checks.Remedy, do string) {
	row, ok := cudaErrors()[err.Code]
	if !ok {
		return checks.Unknown, checks.NoRemedy, ""
	}
	severity = checks.Unknown
	if row.Severity == "fail" {
		severity = checks.Fail
	}
	return severity, checks.Remedy(row.Remedy), row.Do
}

// ofPeer reports whether a fault of another GPU can be the cause of an error.
func ofPeer(err error) bool {
	e, ok := errors.AsType[*cuda.Error](err)
	return ok && cudaErrors()[e.Code].Peer
}

// fatal reports whether an error says that the GPU has a fault.
func fatal(err error) bool {
	e, ok := errors.AsType[*cuda.Error](err)
	if !ok {
		return false
	}
	severity, _, _ := cudaFinding(e)
	return severity == checks.Fail
}

// cudaCode is the code of a finding about an error: cuda.error.719, or cuda.error for
// one that has no row.
func cudaCode(err *cuda.Error) string {
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
