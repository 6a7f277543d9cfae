package probe

import (
	"reflect"
	"runtime"
	"strings"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/ebitengine/purego"
)

// NVML returns a list into a buffer of the caller's, and error 7 with the number of entries
// if the buffer is too small. go-nvml doubles its buffer as often as it gets that error, and
// believes any number: a library that is out of order would take all memory of the node, or
// end the process. So the functions with a list are called here.

// The entries of a list for which there is room at first, and at most. A GPU retires at most
// 64 pages; the contexts of 64 Ki processes, some 100 MiB each, fit into no GPU's memory.
const (
	firstRoom = 64
	mostRoom  = 1 << 16
)

// listOf calls a function of NVML with a growing buffer. A list that fits into no buffer, or
// is said to be longer than the buffer that it was written to, is ERROR_INSUFFICIENT_SIZE.
func listOf[T any](call func(count *uint32, first *T) nvml.Return) ([]T, nvml.Return) {
	for room := uint32(firstRoom); room <= mostRoom; {
		list, count := make([]T, room), room
		switch ret := call(&count, &list[0]); {
		case ret == nvml.SUCCESS && count <= room:
			return list[:count], ret
		case ret != nvml.ERROR_INSUFFICIENT_SIZE:
			if ret == nvml.SUCCESS {
				ret = nvml.ERROR_INSUFFICIENT_SIZE
			}
			return nil, ret
		}
		// Twice what is needed, as the list grows; not every driver says how much that is.
		room = max(4*room, 2*min(count, mostRoom/2))
	}
	return nil, nvml.ERROR_INSUFFICIENT_SIZE
}

// function finds a function of the library that go-nvml has loaded, and the handle by which
// the library knows the GPU. A model of the library in a test has neither.
func (q query) function(symbol string) (address, gpu uintptr, found bool) {
	if q.s.handle == 0 {
		handle, err := openLibrary(q.s.path, purego.RTLD_LAZY|purego.RTLD_GLOBAL)
		if err != nil {
			return 0, 0, false
		}
		q.s.handle = handle
	}
	device := reflect.ValueOf(q.d)
	if device.Kind() != reflect.Struct {
		return 0, 0, false
	}
	handle := device.FieldByName("Handle")
	address, err := dlsym(q.s.handle, symbol)
	if err != nil || handle.Kind() != reflect.Pointer {
		return 0, 0, false
	}
	return address, handle.Pointer(), true
}

// processList lists the processes of a GPU by one of the forms of the call: the first form
// knows nothing of MIG.
func (q query) processList(symbol string) ([]nvml.ProcessInfo, nvml.Return) {
	address, gpu, found := q.function(symbol)
	if !found {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	if strings.HasSuffix(symbol, "_v2") || strings.HasSuffix(symbol, "_v3") {
		return listOf(func(count *uint32, first *nvml.ProcessInfo) nvml.Return { return callList(address, count, first, gpu) })
	}
	list, ret := listOf(func(count *uint32, first *nvml.ProcessInfo_v1) nvml.Return {
		return callList(address, count, first, gpu)
	})
	return nvml.ProcessInfo_v1Slice(list).ToProcessInfoSlice(), ret
}

// retiredPages lists the addresses of the pages that were retired for a cause.
func (q query) retiredPages(symbol string, cause nvml.PageRetirementCause) ([]uint64, nvml.Return) {
	address, gpu, found := q.function(symbol)
	if !found {
		return nil, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return listOf(func(count *uint32, first *uint64) nvml.Return {
		return callList(address, count, first, gpu, uintptr(cause))
	})
}

// callList calls a function whose last arguments are the number of entries and the buffer.
func callList[T any](address uintptr, count *uint32, first *T, arguments ...uintptr) nvml.Return {
	arguments = append(arguments, uintptr(unsafe.Pointer(count)), uintptr(unsafe.Pointer(first)))
	r, _, _ := purego.SyscallN(address, arguments...)
	runtime.KeepAlive(count)
	runtime.KeepAlive(first)
	return nvml.Return(int32(r))
}
