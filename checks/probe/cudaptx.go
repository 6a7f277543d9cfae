package probe

import "slices"

// OldDriver says that the driver could not compile a kernel for the GPU: it is older than
// the kernel's PTX, has no compiler, or must not use it. It is no fault of the GPU.
func (e *CUDAError) OldDriver() bool {
	return slices.Contains([]int{209, 218, 221, 222, 223}, e.Code)
}
