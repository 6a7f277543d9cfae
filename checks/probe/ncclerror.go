package probe

import (
	"fmt"
	"slices"
	"strconv"
)

// NCCLError is what a call of NCCL has returned.
type NCCLError struct {
	Call string // ncclAllReduce
	Code int    // ncclResult_t
	Name string // ncclSystemError
	Last string // what NCCL says of the cause, its last warning; "" if it says nothing
	GPU  int    // CUDA's number of the GPU whose call it was; -1: that of none alone
}

// ncclResults are the names of ncclResult_t in nccl.h of 2.22.
var ncclResults = []string{
	"ncclSuccess", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
	"ncclInvalidArgument", "ncclInvalidUsage", "ncclRemoteError", "ncclInProgress",
}

func (e *NCCLError) Error() string {
	text := fmt.Sprintf("%s: %s (NCCL error %d)", e.Call, e.Name, e.Code)
	if e.Last != "" {
		text += ": " + e.Last
	}
	return text
}

// fail makes an error of a result. Its text is the last warning of NCCL's log, or NCCL's
// last error. Behind the error of CUDA NCCL may log what that has prevented ("Failed to CUDA
// calloc 536870912 bytes", alloc.h): then the text is that of CUDA.
func (n *NCCL) fail(call string, code int32, comm uintptr) *NCCLError {
	e := &NCCLError{Call: call, Code: int(code), Name: "unknown result", GPU: -1}
	if code >= 0 && int(code) < len(ncclResults) {
		e.Name = ncclResults[code]
	}
	if warnings := n.Log(0).Warnings; len(warnings) > 0 {
		e.Last = warnings[len(warnings)-1]
		for _, w := range slices.Backward(warnings) {
			if e.Code == ncclUnhandledCUDA && ncclCUDAFailure().MatchString(w) {
				e.Last = w
				break
			}
		}
	}
	if n.getLastError != nil && e.Last == "" {
		e.Last = oneLine(n.getLastError(comm))
	}
	return e
}

// ncclCUDAFailure is how NCCL names an error of CUDA: Cuda failure 719 'unspecified
// launch failure'. Many releases, 2.22 among them, do not give the number.
var ncclCUDAFailure = lazily(`Cuda failure (?:(\d+)|'(.+)')`)

// cudaTexts are the texts of cudaGetErrorString for the errors that say something of
// the node.
var cudaTexts = map[string]int{
	"out of memory": 2,
	"CUDA-capable device(s) is/are busy or unavailable":               46,
	"uncorrectable ECC error encountered":                             214,
	"uncorrectable NVLink error detected during the execution":        220,
	"an illegal memory access was encountered":                        700,
	"unspecified launch failure":                                      719,
	"system not yet initialized":                                      802,
	"system has unsupported display driver / cuda driver combination": 803,
}

// CUDACode is the error of CUDA that is behind an error of NCCL, if it can be told. The
// numbers of the runtime, which NCCL uses, are the driver's.
func (e *NCCLError) CUDACode() (code int, ok bool) {
	m := ncclCUDAFailure().FindStringSubmatch(e.Last)
	if m == nil || e.Code != ncclUnhandledCUDA {
		return 0, false
	}
	if code, err := strconv.Atoi(m[1]); err == nil {
		return code, true
	}
	code, ok = cudaTexts[m[2]]
	return code, ok
}
