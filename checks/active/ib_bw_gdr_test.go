package active

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// testGDR has the scenarios of GPU memory.
func testGDR(name string) []checktest.Scenario {
	on := func(text string, p fakesys.Perftest, nvml func(*nvml.Snapshot), want ...checks.Finding) checktest.Scenario {
		s := onPorts(text, nil, fakesys.DGXH100(), p, nil, want...)
		if nvml != nil {
			nvml(s.NVML)
		}
		return s
	}
	gone := onPorts("no GPU on the bus", nil, fakesys.DGXH100(), fakesys.Perftest{CUDA: true}, func(n *fakesys.Node) {
		for _, g := range checktest.H100s().GPUs {
			delete(n.Links, "sys/bus/pci/devices/"+g.PCI)
		}
	}, checks.Finding{Code: "ib.bw.gpu", Severity: checks.Unknown, Got: "no GPU on the PCI bus", Message: name + ":  cannot locate the GPUs, got no GPU on the PCI bus"})
	gone.Broken = true
	none := checks.Finding{Code: "ib.bw.cuda", Severity: checks.Unknown, Want: "a build with CUDA", Message: name + ":  ib_write_bw cannot use GPU memory, want a build with CUDA"}
	skipped := func(why string) checks.Finding {
		return checktest.PortFinding(name, "mlx5_3", 3, checks.Finding{Code: "ib.bw.gpu", Severity: checks.Skip, Got: "gpu3 " + checktest.H100s().GPUs[3].PCI}, "not measured: "+why)
	}
	left := func(why string) checks.Finding {
		f := checks.Finding{Code: "active.left", Severity: checks.Skip, Device: checks.GPUDevice(&checktest.H100s().GPUs[3]), Got: why}
		f.Message = name + ":  " + f.Device.String() + ": skipped: " + why
		return f
	}
	return []checktest.Scenario{
		on("built without CUDA, Debian 12", fakesys.Perftest{Version: "4.5"}, nil, none),
		on("built without CUDA, Debian 13", fakesys.Perftest{}, nil, none),
		on("memory cannot be registered", fakesys.Perftest{CUDA: true, Acts: map[string]string{"mlx5_3": "memory"}}, nil,
			checktest.PortFinding(name, "mlx5_3", 3, checks.Finding{Code: "ib.bw.failed", Severity: checks.Fail, Got: "Couldn't allocate MR"}, "GPU memory cannot be registered with the adapter (nvidia_peermem, or dma-buf)")),
		gone,
		on("its GPU allows one process", fakesys.Perftest{CUDA: true}, func(n *nvml.Snapshot) { n.GPUs[3].Modes.Compute = nvml.Known("exclusive") },
			skipped("the compute mode of its GPU allows one process, and the test needs two")),
		on("its GPU is in use", fakesys.Perftest{CUDA: true}, func(n *nvml.Snapshot) { n.GPUs[3].Processes = nvml.Known([]nvml.GPUProcess{{PID: 1}}) },
			skipped("its GPU is skipped (process 1 uses it)"), left("process 1 uses it")),
		on("MIG splits its GPU", fakesys.Perftest{CUDA: true}, func(n *nvml.Snapshot) { n.GPUs[3].Modes.MIG = nvml.Known(true) },
			skipped("its GPU is skipped (MIG splits it)"), left("MIG splits it")),
		on("its GPU belongs to vfio-pci", fakesys.Perftest{CUDA: true}, func(n *nvml.Snapshot) { n.GPUs = slices.Delete(n.GPUs, 3, 4) }, skipped("NVML does not list its GPU")),
		on("its GPU has no UUID", fakesys.Perftest{CUDA: true}, func(n *nvml.Snapshot) { n.GPUs[3].UUID = nvml.Reading[string]{} }, skipped("NVML does not report the UUID of its GPU")),
	}
}

// Each port uses its nearest GPU, whatever a job has set, and whichever other GPUs CUDA lists.
func TestIBBWPairsGPUs(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "5")
	for _, version := range []string{"25.01", "4.5"} {
		root, calls := bwRoot(t, fakesys.DGXH100(), fakesys.Perftest{Version: version, CUDA: true, Old: version == "4.5"})
		env := &checks.Env{Host: probe.NewHost(root)}
		s := checktest.H100s()
		s.GPUs = s.GPUs[1:] // the first belongs to vfio-pci
		nvml.Set(env.Host, s, nil)
		if got := bwOf(t, "check_ib_bw_gdr").Run(t.Context(), env); checks.Worst(got) != checks.Skip {
			t.Errorf("%v", got)
		}
		if strings.Contains(calls(), "-d mlx5_0 ") {
			t.Errorf("%s: a call without a GPU in\n%s", version, calls())
		}
		for i, g := range s.GPUs {
			want := fmt.Sprintf("CUDA_VISIBLE_DEVICES=%s %s LC_ALL=C -d mlx5_%d ", g.UUID.Value, cuda.NoMPS, i+1)
			of := 0
			for call := range strings.Lines(calls()) {
				if strings.Contains(call, want) && strings.Contains(call, " --use_cuda=0") {
					of++
				}
			}
			if all := strings.Count(calls(), fmt.Sprintf("-d mlx5_%d ", i+1)); of < 2 || of != all {
				t.Errorf("%s: %d of %d calls with %q in\n%s", version, of, all, want, calls())
			}
		}
	}
}

// Without a kernel module for it GPU memory is shared by dma-buf, if perftest supports that.
func TestIBBWDMABuf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		modules string
		old     bool
		want    string
		worst   checks.Severity
	}{
		"no module":    {"mlx5_ib 1 0 - Live 0x0\n", false, " --use_cuda=0 --use_cuda_dmabuf\n", checks.OK},
		"a module":     {"nvidia_peermem 1 0 - Live 0x0\n", false, " --use_cuda=0\n", checks.Unknown},
		"its old name": {"nv_peer_mem 1 0 - Live 0x0\n", false, " --use_cuda=0\n", checks.Unknown},
		"old perftest": {"mlx5_ib 1 0 - Live 0x0\n", true, " --use_cuda=0\n", checks.Unknown},
	} {
		n := fakesys.DGXH100()
		n.Files["proc/modules"] = c.modules
		root, calls := bwRoot(t, n, fakesys.Perftest{CUDA: true, Old: c.old, Acts: map[string]string{"mlx5_*": "dmabuf"}})
		env := &checks.Env{Host: probe.NewHost(root)}
		nvml.Set(env.Host, checktest.H100s(), nil)
		if got := bwOf(t, "check_ib_bw_gdr").Run(t.Context(), env); checks.Worst(got) != c.worst {
			t.Errorf("%s: %v", name, got)
		}
		if !strings.Contains(calls(), c.want) {
			t.Errorf("%s: no call with %q in\n%s", name, c.want, calls())
		}
	}
}
