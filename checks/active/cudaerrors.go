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

// cudaError is a row of cudaerrors.toml: how to interpret an error of CUDA.
type cudaError struct {
	Code     int    `toml:"code"` // CUresult: 719
	Name     string `toml:"name"` // CUDA_ERROR_LAUNCH_FAILED
	Severity string `toml:"severity"`
	Remedy   string `toml:"remedy"`
	Do       string `toml:"do"`
	Peer     bool   `toml:"peer"` // another GPU, the owner of memory that this GPU uses, can be the cause
	Source   string `toml:"source"`
}

var cudaErrors = sync.OnceValue(func() map[int]cudaError {
	rows, err := parseCUDAErrors(cudaErrorData)
	if err != nil {
		panic(err) // embedded, and read by a test
	}
	return rows
})

// parseCUDAErrors returns the rows by code.
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
			return nil, fmt.Errorf("error %d: duplicate", e.Code)
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

// cudaErrorCode is the prefix of the codes of CUDA errors: cuda.error.719.
const cudaErrorCode = "cuda.error"

// cudaFinding returns severity, remedy and advice for an error of CUDA. An error without a row
// drains no node.
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

// ofPeer reports whether a fault of another GPU can cause an error.
func ofPeer(err error) bool {
	e, ok := errors.AsType[*cuda.Error](err)
	return ok && cudaErrors()[e.Code].Peer
}

// fatal reports whether an error means that the GPU is faulty.
func fatal(err error) bool {
	e, ok := errors.AsType[*cuda.Error](err)
	if !ok {
		return false
	}
	severity, _, _ := cudaFinding(e)
	return severity == checks.Fail
}

// cudaCode returns the code of a finding about an error: cuda.error.719, or cuda.error if the
// error has no row.
func cudaCode(err *cuda.Error) string {
	if _, ok := cudaErrors()[err.Code]; !ok {
		return cudaErrorCode
	}
	return cudaErrorCode + "." + strconv.Itoa(err.Code)
}

// cudaDo returns the advice for a code of cudaCode; it is Info.DoOf.
func cudaDo(code string) string {
	number, ok := strings.CutPrefix(code, cudaErrorCode+".")
	n, err := strconv.Atoi(number)
	if !ok || err != nil {
		return ""
	}
	return cudaErrors()[n].Do
}
