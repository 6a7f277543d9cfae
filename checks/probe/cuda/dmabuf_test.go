package cuda

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestDMABufLacks(t *testing.T) {
	t.Parallel()
	const open, closed = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build\n", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Tue\n"
	far := strings.Repeat("0000000000000000 T some_symbol\n", 70000)
	for _, c := range []struct{ version, release, symbols, want, err string }{
		{open, "6.8.0-31-generic\n", "", "", ""},
		{open, "5.12-rc1\n", "", "", ""},
		{open, "5.11.22\n", "", "the kernel is 5.11.22, want at least 5.12", ""},
		{open, "4.18.0-553.el8.x86_64\n", far + "0000000000000000 t ib_umem_dmabuf_get	[ib_uverbs]\n", "", ""},
		{open, "4.18.0-553.el8.x86_64\n", far, "the kernel is 4.18.0-553.el8.x86_64, want at least 5.12", ""},
		{closed, "6.8.0\n", "", "the driver's module is not the open one", ""},
		{strings.Replace(open, "570.124.06", "510.47.03", 1), "6.8.0\n", "", "the driver is 510.47.03, want at least 515", ""},
		{"", "6.8.0\n", "", "the driver's module is not the open one", ""},
	} {
		h := probe.NewHost(probetest.Tree(t, map[string]string{"proc/driver/nvidia/version": c.version, "proc/sys/kernel/osrelease": c.release, "proc/kallsyms": c.symbols}))
		got, err := DMABufLacks(h)
		if got != c.want || probetest.Message(err) != c.err {
			t.Errorf("%q, %q: %q, %v; want %q", c.version, c.release, got, err, c.want)
		}
	}
	if _, err := DMABufLacks(probe.NewHost(probetest.Tree(t, nil))); err == nil {
		t.Error("no driver: no error")
	}
}
