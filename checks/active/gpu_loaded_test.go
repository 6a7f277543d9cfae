package active

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakecuda"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// onCUDA returns a line on a node with eight H100 and a changed driver.
func onCUDA(name string, words, lines []string, want ...checks.Finding) checktest.Scenario {
	s := checktest.OnGPUs(name, words, nil, want...)
	s.Files["proc/meminfo"] = "MemTotal: 1056764928 kB\nMemFree: 1000000000 kB\n"
	s.Files["proc/sys/kernel/random/boot_id"] = "this\n"
	s.Libraries = withCUDA(8, lines...)
	s.UnitOnly = true
	return s
}

// withCUDA installs a fake driver with this many GPUs.
func withCUDA(gpus int, lines ...string) func(t *testing.T, dir string) map[string]string {
	return func(t *testing.T, dir string) map[string]string {
		t.Helper()
		need.Program(t, "gcc")
		lib, err := fakecuda.Place(dir, fakecuda.Scenario(gpus, lines...))
		if err != nil {
			t.Fatal(err)
		}
		return map[string]string{probe.SettingCUDA: lib}
	}
}

// A rate is the median of its samples, and a size shrinks to the free memory.
func TestLoadedGPURates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := probe.NewHost(t.TempDir())
	probe.SetLibraries(h, withCUDA(1, "0 membw = 2500", "0 membw copy16 = 2000")(t, dir))
	cuda, err := cuda.Open(h, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := openGPU(&nvml.GPU{}, cuda.GPUs[0])
	if err != nil {
		t.Fatal(err)
	}
	defer l.c.Close()
	const size = 1 << 20
	buffers, err := l.allocateBuffers(size, 2)
	if err != nil {
		t.Fatal(err)
	}
	k, err := l.loadKernels("copy16")
	if err != nil {
		t.Fatal(err)
	}
	grid, block := l.chooseGrid()
	got, err := l.rate(t.Context(), 2*size, hostSample, func() error {
		return l.c.Launch(k[0], grid, block, l.stream, buffers[0], buffers[1], uint64(size/16))
	})
	if err != nil || got < 1995 || got > 2005 {
		t.Errorf("%v GB/s, want 2000; %v", got, err)
	}
	if n, err := l.fitSize(1<<30, 2); err != nil || n != 8<<20 {
		t.Errorf("two buffers of 1 GiB in 30 MiB: %d, %v", n, err)
	}
	if n, err := l.fitSize(1<<20, 2); err != nil || n != 1<<20 {
		t.Errorf("two buffers of 1 MiB in 30 MiB: %d, %v", n, err)
	}
	if n, err := l.fitSize(1<<30, 1<<12); err == nil {
		t.Errorf("too many buffers: %d", n)
	}
	if _, err := l.allocateBuffers(20<<20, 2); err == nil {
		t.Error("more than there is was allocated")
	}
	if n, err := l.fitSize(1<<20, 2); err != nil || n != 1<<20 {
		t.Errorf("memory was kept after a failure: %d, %v", n, err)
	}
}
