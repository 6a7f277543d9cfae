package cuda

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// These are the requirements for exporting GPU memory by dma-buf, which replaces nvidia_peermem:
// NVIDIA's GPU Operator manual, GPUDirect RDMA.
const (
	dmaBufDriver       = 515 // and the open kernel module
	dmaBufMajor        = 5   // Linux 5.12
	dmaBufMinor        = 12
	dmaBufSymbol       = " ib_umem_dmabuf_get" // in an older kernel with newer RDMA modules
	maxKernelSymbols   = 64 << 20              // bytes of /proc/kallsyms
	kernelSymbolsChunk = 1 << 20
)

// DMABufLacks explains why adapters cannot reach GPU memory by dma-buf on this node, "" if they can
// as far as the driver and the kernel show.
func DMABufLacks(h *probe.Host) (string, error) {
	data, err := h.ReadFile(probe.NvProc + "/version")
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(string(data), "\n")
	if !strings.Contains(first, "Open Kernel Module") {
		return "the driver's module is not the open one", nil
	}
	version := probe.ParseDriverVersion(first)
	if major, _, _ := strings.Cut(version, "."); !isAtLeast(major, dmaBufDriver) {
		return fmt.Sprintf("the driver is %s, want at least %d", version, dmaBufDriver), nil
	}
	release, err := h.ReadValue("/proc/sys/kernel/osrelease")
	if err != nil {
		return "", err
	}
	if isNewKernel(release) {
		return "", nil
	}
	has, err := hasKernelSymbol(h, dmaBufSymbol)
	if err == nil && !has {
		return fmt.Sprintf("the kernel is %s, want at least %d.%d", release, dmaBufMajor, dmaBufMinor), nil
	}
	return "", err
}

func isAtLeast(digits string, n int) bool {
	got, err := strconv.Atoi(digits)
	return err == nil && got >= n
}

func isNewKernel(release string) bool {
	major, rest, _ := strings.Cut(release, ".")
	minor, _, _ := strings.Cut(rest, ".")
	if end := strings.IndexFunc(minor, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
		minor = minor[:end]
	}
	return isAtLeast(major, dmaBufMajor+1) || isAtLeast(major, dmaBufMajor) && isAtLeast(minor, dmaBufMinor)
}

// hasKernelSymbol searches for a symbol of the kernel or of a module in /proc/kallsyms, which has some
// megabytes.
func hasKernelSymbol(h *probe.Host, symbol string) (bool, error) {
	f, err := os.Open(h.Path("/proc/kallsyms"))
	if err != nil {
		return false, err
	}
	defer f.Close()
	buf := make([]byte, 0, kernelSymbolsChunk+len(symbol))
	for total := 0; total < maxKernelSymbols; {
		n, err := f.Read(buf[len(buf):cap(buf)])
		buf, total = buf[:len(buf)+n], total+n
		if bytes.Contains(buf, []byte(symbol)) {
			return true, nil
		}
		if err == io.EOF {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		keep := min(len(symbol), len(buf))
		buf = append(buf[:0], buf[len(buf)-keep:]...)
	}
	return false, nil
}
