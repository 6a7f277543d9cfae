package checks

import "github.com/nhc-gpu/nhc-gpu/checks/probe"

// cudaFinding is what an error of CUDA's says of the GPU. (The table of errors takes
// the place of this file.)
func cudaFinding(*probe.CUDAError) (severity Severity, remedy Remedy, do string) {
	return Unknown, NoRemedy, ""
}
