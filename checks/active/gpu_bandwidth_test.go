package active

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

func TestGPUBandwidth(t *testing.T) { checktest.Run(t, "check_gpu_bandwidth") }
func TestGPUBW(t *testing.T)        { checktest.Run(t, "check_gpu_bw") }

var (
	_ = checktest.Table("check_gpu_bandwidth", bandwidthScenarios)
	_ = checktest.Table("check_gpu_bw", bandwidthScenarios)
)

func bandwidthScenarios(name string) []checktest.Scenario {
	f := func(i int, f checks.Finding, text string) checks.Finding {
		return checktest.GPUFinding(name, i, f, text)
	}
	small := func(words ...string) []string { return append([]string{"-b", "64K"}, words...) }
	low := checks.Finding{Code: "gpu.bandwidth.slow", Severity: checks.Fail, Want: "at least 48.0 GB/s", Got: "21.0 GB/s"}
	far := checks.Finding{Code: "gpu.bandwidth.peers", Severity: checks.Warn, Want: "at least 46.8 GB/s", Got: "40.0 GB/s"}
	allPairs := checks.Finding{Code: "gpu.bandwidth.bit", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "none", Got: "1 wrong word: at offset 0x40 0x7994fc67 instead of 0x7994fc47, bit 5"}
	allPairs.Message = name + ":  wrong words after copies between all 28 pairs of GPUs that were tried (first: gpu0 and gpu1)" + checktest.WantGot(allPairs)
	allPCIe := allPairs
	allPCIe.Remedy = checks.FixConfig
	unknownNode := f(3, far, "copy from the host: far from its peers (median 55.0 GB/s) (the kernel does not report its NUMA node)")
	far.Severity = checks.Fail
	knownNode := f(3, far, "copy from the host: far from its peers (median 55.0 GB/s)")
	return []checktest.Scenario{
		checktest.Changed(onCUDA("healthy", small("48", "335"), nil), func(s *checktest.Scenario) {
			s.Table = map[string]any{"host": 48, "peer": 335, "size": "64K"}
		}),
		onCUDA("healthy, without words", small(), nil),
		onCUDA("slow from the host", small("48"), []string{"3 h2d = 21"}, f(3, low, "copy from the host")),
		onCUDA("slow to the host", small("48"), []string{"3 d2h = 21"}, f(3, low, "copy to the host")),
		onCUDA("slow by its peers", small(), []string{"3 h2d = 21"},
			f(3, checks.Finding{Code: "gpu.bandwidth.peers", Severity: checks.Fail, Want: "at least 46.8 GB/s", Got: "21.0 GB/s"}, "copy from the host: far from its peers (median 55.0 GB/s)")),
		checktest.Changed(onCUDA("slow by its peers, in a slower slot", small(), []string{"3 h2d = 27"},
			f(3, checks.Finding{Code: "gpu.bandwidth.peers", Severity: checks.Warn, Want: "at least 46.8 GB/s", Got: "27.0 GB/s"},
				"copy from the host: far from its peers (median 55.0 GB/s) (its slot is Gen5 x8, that of gpu0 Gen5 x16)")), func(s *checktest.Scenario) {
			s.NVML.GPUs[3].Link.MaxWidth = nvml.Known(8)
		}),
		checktest.Changed(onCUDA("slow, in a slower slot", small("48"), []string{"3 h2d = 27"}, f(3, checks.Finding{Code: "gpu.bandwidth.slow", Severity: checks.Fail, Want: "at least 48.0 GB/s", Got: "27.0 GB/s"}, "copy from the host")), func(s *checktest.Scenario) {
			s.NVML.GPUs[3].Link.MaxWidth = nvml.Known(8)
		}),
		checktest.Changed(onCUDA("slow, and its NUMA node is full", small("48"), []string{"3 h2d = 40"},
			f(3, checks.Finding{Code: "gpu.bandwidth.slow", Severity: checks.Warn, Want: "at least 48.0 GB/s", Got: "40.0 GB/s"},
				"copy from the host (its memory may be far from the GPU: the NUMA node of CPUs 2-3 has 500 GiB, 5000 MiB free)")), nearNode("5120000")),
		checktest.Changed(onCUDA("slow, and its NUMA node has room", small("48"), []string{"3 h2d = 40"},
			f(3, checks.Finding{Code: "gpu.bandwidth.slow", Severity: checks.Fail, Want: "at least 48.0 GB/s", Got: "40.0 GB/s"}, "copy from the host")), nearNode("5248000")),
		checktest.Changed(onCUDA("slow, and its NUMA node is another's", small("48"), []string{"3 h2d = 40"},
			f(3, checks.Finding{Code: "gpu.bandwidth.slow", Severity: checks.Warn, Want: "at least 48.0 GB/s", Got: "40.0 GB/s"},
				"copy from the host (its memory may be far from the GPU: this process may not run on CPUs 2-3)")), func(s *checktest.Scenario) {
			nearNode("5248000")(s)
			s.Files["sys/devices/system/cpu/online"] = "0-1\n"
		}),
		checktest.Changed(onCUDA("slow, and others use the same far memory well", small("48"), []string{"3 h2d = 21"},
			f(3, checks.Finding{Code: "gpu.bandwidth.slow", Severity: checks.Fail, Want: "at least 48.0 GB/s", Got: "21.0 GB/s"}, "copy from the host")), func(s *checktest.Scenario) {
			nearNode("5120000")(s)
			s.Files["sys/bus/pci/devices/"+fakenvml.Address(4)+"/local_cpulist"] = "2-3\n"
		}),
		checktest.Changed(onCUDA("slow, and the only NUMA node is full", small("48"), []string{"3 h2d = 40"},
			f(3, checks.Finding{Code: "gpu.bandwidth.slow", Severity: checks.Fail, Want: "at least 48.0 GB/s", Got: "40.0 GB/s"}, "copy from the host")), func(s *checktest.Scenario) {
			nearNode("5120000")(s)
			s.Files["sys/devices/system/node/has_cpu"], s.Files["sys/devices/system/node/node1/cpulist"] = "1\n", "0-3\n"
		}),
		checktest.Changed(onCUDA("slow by its peers of a slower model", small(), []string{"5 h2d = 27", "6 h2d = 27", "7 h2d = 13"},
			f(7, checks.Finding{Code: "gpu.bandwidth.peers", Severity: checks.Fail, Want: "at least 23.0 GB/s", Got: "13.0 GB/s"}, "copy from the host: far from its peers (median 27.0 GB/s)")), ofTwoModels),
		checktest.Changed(onCUDA("slow by its peers, and its NUMA node is unknown", small(), []string{"3 h2d = 40"}, unknownNode), func(s *checktest.Scenario) {
			nearNode("524288000")(s)
			s.Files["sys/bus/pci/devices/"+fakenvml.Address(3)+"/local_cpulist"] = "0-3\n"
		}),
		checktest.Changed(onCUDA("slow by its peers, in a virtual machine without NUMA nodes", small(), []string{"3 h2d = 40"}, unknownNode), func(s *checktest.Scenario) {
			s.Files["proc/cpuinfo"] = "processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\n"
			s.Files["sys/bus/pci/devices/"+fakenvml.Address(3)+"/numa_node"] = "-1\n"
		}),
		checktest.Changed(onCUDA("slow by its peers, in a virtual machine with NUMA nodes", small(), []string{"3 h2d = 40"}, knownNode), func(s *checktest.Scenario) {
			s.Files["proc/cpuinfo"] = "processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\n"
			s.Files["sys/bus/pci/devices/"+fakenvml.Address(3)+"/numa_node"] = "0\n"
		}),
		onCUDA("slow to all other GPUs", small("48", "335"), slowPeers(3, 120),
			f(3, checks.Finding{Code: "gpu.bandwidth.slow", Severity: checks.Fail, Want: "at least 335.0 GB/s", Got: "120.0 GB/s"}, "copies from and to each other GPU by nvlink")),
		onCUDA("one slow pair", small(), []string{"3 peer 5 = 200"},
			f(3, checks.Finding{Code: "gpu.bandwidth.pair", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "at least 331.5 GB/s", Got: "200.0 GB/s"},
				"copies from and to gpu5 0000:15:00.0 by nvlink; both GPUs are faster with others")),
		onCUDA("a bit turned over on the way", small(), []string{"3 wrong cuMemcpyHtoDAsync = 0x40 5"},
			f(3, checks.Finding{Code: "gpu.bandwidth.bit", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "none", Got: "1 wrong word: at offset 0x40 0x7994fc67 instead of 0x7994fc47, bit 5"},
				"wrong words after a copy to the host and back")),
		checktest.Changed(onCUDA("below the platform's floor", small(), []string{"3 h2d = 50"},
			f(3, checks.Finding{Code: "gpu.bandwidth.floor", Severity: checks.Warn, Want: "at least 52.0 GB/s", Got: "50.0 GB/s"}, "copy from the host (figure host_to_device of the platform H100 SXM5 80GB)")), func(s *checktest.Scenario) {
			s.Platform = &checks.Platform{Name: "H100 SXM5 80GB", Floors: []checks.Floor{
				{Test: "host_to_device", Algorithm: "ce", Size: 64 << 10, Ranks: 1, Value: 52, Unit: "GB/s"},
				{Test: "host_to_device", Algorithm: "ce", Size: 512 << 20, Ranks: 1, Value: 500, Unit: "GB/s"},
			}}
		}),
		onCUDA("no peers", small("48", "335"), []string{"* reach = 0"},
			checks.Finding{Code: "gpu.bandwidth.reach", Severity: checks.Skip, Message: name + ":  no two GPUs reach each other directly", Got: "no two GPUs reach each other directly"}),
		onCUDA("a GPU that reaches no other, with PEER", small("48", "335"), isolated(3),
			f(3, checks.Finding{Code: "gpu.bandwidth.reach", Severity: checks.Fail}, noReach)),
		onCUDA("a GPU that reaches no other", small(), isolated(3), f(3, checks.Finding{Code: "gpu.bandwidth.reach", Severity: checks.Warn}, noReach)),
		checktest.Changed(onCUDA("a GPU without a link to the switches reaches no other", small(), isolated(3),
			f(3, checks.Finding{Code: "gpu.bandwidth.reach", Severity: checks.Warn}, noReach)), func(s *checktest.Scenario) {
			for i := range s.NVML.GPUs {
				delete(s.NVML.GPUs[i].NVLink.PeerP2P.Value, "gpu3")
			}
			s.NVML.GPUs[3].NVLink = nvml.NVLink{}
		}),
		onCUDA("a pair that does not reach each other, with PEER", small("48", "335"), []string{"3 reach 5 = 0"},
			f(3, checks.Finding{Code: "gpu.bandwidth.reach", Severity: checks.Warn}, "does not reach gpu5 0000:15:00.0 directly; both GPUs reach others")),
		onCUDA("a pair that does not reach each other", small(), []string{"3 reach 5 = 0"}),
		checktest.Changed(onCUDA("a board that joins only two of three GPUs", small("48", "335"), isolated(2)), func(s *checktest.Scenario) {
			joinedBy(s, 3, func(a, b int) int {
				if a+b == 1 {
					return 12
				}
				return 0
			})
			s.Libraries = withCUDA(3, isolated(2)...)
		}),
		checktest.Changed(onCUDA("two GPUs, slow to each other", small("48", "335"), []string{"1 peer 0 = 200"},
			f(0, checks.Finding{Code: "gpu.bandwidth.slow", Severity: checks.Fail, Want: "at least 335.0 GB/s", Got: "200.0 GB/s"}, "copies from and to gpu1 0000:11:00.0 by nvlink")), func(s *checktest.Scenario) {
			s.NVML.GPUs = s.NVML.GPUs[:2]
			s.Libraries = withCUDA(2, "1 peer 0 = 200")
		}),
		checktest.Changed(onCUDA("one GPU", small("48", "335"), nil), func(s *checktest.Scenario) {
			s.NVML.GPUs = s.NVML.GPUs[:1]
			s.Libraries = withCUDA(1)
		}),
		checktest.Changed(onCUDA("over PCIe", small(), slowPeers(3, 20),
			f(3, checks.Finding{Code: "gpu.bandwidth.peers", Severity: checks.Fail, Want: "at least 331.5 GB/s", Got: "20.0 GB/s"},
				"copies from and to each other GPU by pcie near: far from its peers (median 390.0 GB/s)")), overPCIe),
		checktest.Changed(onCUDA("over PCIe, in a slower slot", small(), slowPeers(3, 20),
			f(3, checks.Finding{Code: "gpu.bandwidth.peers", Severity: checks.Warn, Want: "at least 331.5 GB/s", Got: "20.0 GB/s"},
				"copies from and to each other GPU by pcie near: far from its peers (median 390.0 GB/s) (its slot is Gen5 x8, that of gpu0 Gen5 x16)")), func(s *checktest.Scenario) {
			overPCIe(s)
			s.NVML.GPUs[3].Link.MaxWidth = nvml.Known(8)
		}),
		checktest.Changed(onCUDA("over PCIe of a virtual machine", small(), slowPeers(3, 20),
			f(3, checks.Finding{Code: "gpu.bandwidth.peers", Severity: checks.Warn, Want: "at least 331.5 GB/s", Got: "20.0 GB/s"},
				"copies from and to each other GPU by pcie near: far from its peers (median 390.0 GB/s) (the kernel does not report the bridges between the GPUs)")), func(s *checktest.Scenario) {
			overPCIe(s)
			s.Links = nil
		}),
		onCUDA("copies between two GPUs fail", small(), []string{"3 cuMemcpyPeerAsync error 220"},
			f(3, checks.Finding{Code: "cuda.error.220", Severity: checks.Fail, Remedy: checks.CheckFabric},
				"copies from and to 7 other GPUs (first: gpu2): cuMemcpyPeerAsync(3): CUDA_ERROR_NVLINK_UNCORRECTABLE (CUDA error 220)")),
		onCUDA("a bit turned over on the way, of every GPU", small(), []string{"* wrong cuMemcpyHtoDAsync = 0x40 5"}, eachGPU(func(i int) checks.Finding {
			return metByAll(f(i, checks.Finding{Code: "gpu.bandwidth.bit", Severity: checks.Unknown, Want: "none", Got: "1 wrong word: at offset 0x40 0x7994fc67 instead of 0x7994fc47, bit 5"},
				"wrong words after a copy to the host and back"), 8)
		})...),
		onCUDA("a GPU at which the copies of all others die", small(), readers(220, 1, 2, 3, 4, 5, 6, 7),
			f(0, checks.Finding{Code: "cuda.error.220", Severity: checks.Fail, Remedy: checks.CheckFabric},
				"copies from and to 7 other GPUs (first: gpu1): cuEventRecord(1): CUDA_ERROR_NVLINK_UNCORRECTABLE (CUDA error 220)")),
		onCUDA("a GPU at which the copies of two others die", small(), readers(220, 1, 2),
			f(0, checks.Finding{Code: "cuda.error.220", Severity: checks.Fail, Remedy: checks.CheckFabric},
				"copies from and to 2 other GPUs (first: gpu1): cuEventRecord(1): CUDA_ERROR_NVLINK_UNCORRECTABLE (CUDA error 220)")),
		onCUDA("a GPU that dies while another copies from it", small(), checktest.Of("1 reads 0 = 220 214"),
			f(0, checks.Finding{Code: "cuda.error.214", Severity: checks.Fail, Remedy: checks.ResetGPU},
				"copies from and to gpu1 0000:11:00.0: cuStreamQuery(0): CUDA_ERROR_ECC_UNCORRECTABLE (CUDA error 214)")),
		onCUDA("a GPU at which the copies of two others never end", append([]string{"-t", "40"}, small()...), readers(600, 1, 2),
			f(0, checks.Finding{Code: "active.stuck", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: "an end within 10s"},
				"copies from and to 2 other GPUs (first: gpu1): work does not end; done on 7 other GPUs")),
		onCUDA("a bit turned over on the way from other GPUs", small(), []string{"3 wrong cuMemcpyPeerAsync = 0x40 5"},
			f(3, checks.Finding{Code: "gpu.bandwidth.bit", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "none", Got: "1 wrong word: at offset 0x40 0x59ac450b instead of 0x59ac452b, bit 5"},
				"wrong words after copies from and to 7 other GPUs (first: gpu2)")),
		onCUDA("a bit turned over between all GPUs", small("48", "335"), []string{"* wrong cuMemcpyPeerAsync = 0x40 5"}, allPairs),
		checktest.Changed(onCUDA("a bit turned over between all GPUs over PCIe", small(), []string{"* wrong cuMemcpyPeerAsync = 0x40 5"}, allPCIe), overPCIe),
		checktest.Changed(onCUDA("copies between all GPUs never end", append([]string{"-t", "20"}, small()...), nil,
			checks.Finding{Code: "active.stuck", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "an end within 5s",
				Message: name + ":  copies between all 2 pairs of GPUs that were tried (first: gpu1 and gpu0): work does not end, want an end within 5s"}), func(s *checktest.Scenario) {
			s.NVML.GPUs = s.NVML.GPUs[:3]
			s.Libraries = withCUDA(3, readers(600, 1, 2)...)
		}),
		checktest.Changed(onCUDA("of two GPUs one fails", small(), nil,
			f(1, checks.Finding{Code: "cuda.error.220", Severity: checks.Fail, Remedy: checks.CheckFabric},
				"copies from and to gpu0 0000:10:00.0: cuMemcpyPeerAsync(1): CUDA_ERROR_NVLINK_UNCORRECTABLE (CUDA error 220)")), func(s *checktest.Scenario) {
			s.NVML.GPUs = s.NVML.GPUs[:2]
			s.Libraries = withCUDA(2, "1 cuMemcpyPeerAsync error 220")
		}),
		onCUDA("a bit turned over on the way from other GPUs, and a copy that never ends", append([]string{"-t", "20"}, small()...), []string{"1 wrong cuMemcpyPeerAsync = 0x40 5", "7 cuStreamQuery after 400 error 600"},
			f(1, checks.Finding{Code: "gpu.bandwidth.bit", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "none", Got: "1 wrong word: at offset 0x40 0x7994fc67 instead of 0x7994fc47, bit 5"},
				"wrong words after copies from and to 6 other GPUs (first: gpu0)"),
			f(7, checks.Finding{Code: "active.stuck", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: "an end within 5s"}, "copies from and to gpu4 0000:14:00.0: work does not end; done on 7 other GPUs")),
		checktest.Changed(onCUDA("four GPUs without switches, and the floor of those with", small(), []string{"* peer = 94"}), func(s *checktest.Scenario) {
			joinedBy(s, 4, func(_, _ int) int { return 4 })
			s.Libraries = withCUDA(4, "* peer = 94")
			s.Platform = &checks.Platform{Name: "H100 SXM5 80GB", Floors: []checks.Floor{{Test: peerTest, Algorithm: "ce", Size: 64 << 10, Ranks: 2, Value: 335, Unit: "GB/s"}}}
		}),
		checktest.Changed(onCUDA("below the floor of GPUs with switches", small(), slowPeers(3, 340),
			f(3, checks.Finding{Code: "gpu.bandwidth.floor", Severity: checks.Warn, Want: "at least 350.0 GB/s", Got: "340.0 GB/s"}, "copies from and to each other GPU by nvlink (figure device_to_device of the platform H100 SXM5 80GB)")), func(s *checktest.Scenario) {
			s.Platform = &checks.Platform{Name: "H100 SXM5 80GB", Floors: []checks.Floor{{Test: peerTest, Algorithm: "ce", Size: 64 << 10, Ranks: 2, Value: 350, Unit: "GB/s"}}}
		}),
		checktest.Changed(onCUDA("one of four bridges is slow", small(), checktest.Of("4 peer 5 = 128", "5 peer 4 = 128"),
			f(4, checks.Finding{Code: "gpu.bandwidth.peers", Severity: checks.Fail, Want: "at least 331.5 GB/s", Got: "128.0 GB/s"},
				"copies from and to gpu5 0000:15:00.0 by nvlink x12: far from its peers (median 390.0 GB/s)")), func(s *checktest.Scenario) {
			joinedBy(s, 8, func(a, b int) int {
				if a/2 == b/2 {
					return 12
				}
				return 0
			})
		}),
		onCUDA("no more than four peers at a time", small(), []string{"* peers = 4"}),
		onCUDA("a copy that never ends", append([]string{"-t", "8"}, small()...), []string{"3 cuStreamQuery after 20 error 600"},
			f(3, checks.Finding{Code: "active.stuck", Severity: checks.Fail, Remedy: checks.ResetGPU, Want: "an end within 2s"}, "copies from and to the host: work does not end; done on 7 other GPUs")),
		checktest.Changed(onCUDA("the node has the memory for copies of the usual size", nil, []string{"* memory = 2097152"}), func(s *checktest.Scenario) {
			s.Files["proc/meminfo"] = "MemTotal: 4300000 kB\nMemFree: 4200000 kB\n"
		}),
		onCUDA("all GPUs have the same exception", small(), []string{"* cuLaunchKernel pattern_verify error 719"}, onAll(8, func(i int) checks.Finding {
			g := f(i, checks.Finding{Code: "cuda.error.719", Severity: checks.Unknown}, fmt.Sprintf("copies from and to the host: launch pattern_verify: cuLaunchKernel(%d): CUDA_ERROR_LAUNCH_FAILED (CUDA error 719)", i))
			g.Message += "; on 8 of 8 GPUs: the cause is the driver or nhc-gpu, not the GPU"
			return g
		})...),
		checktest.Changed(onCUDA("a slow pair over PCIe", small(), []string{"3 peer 5 = 200"},
			f(3, checks.Finding{Code: "gpu.bandwidth.pair", Severity: checks.Warn, Want: "at least 331.5 GB/s", Got: "200.0 GB/s"},
				"copies from and to gpu5 0000:15:00.0 by pcie near; both GPUs are faster with others")), func(s *checktest.Scenario) {
			for i := range s.NVML.GPUs {
				s.NVML.GPUs[i].NVLink = nvml.NVLink{}
			}
		}),
		onCUDA("launch fails", small(), []string{"3 cuMemcpyHtoDAsync error 719"},
			f(3, checks.Finding{Code: "cuda.error.719", Severity: checks.Fail, Remedy: checks.ResetGPU},
				"copies from and to the host: cuMemcpyHtoDAsync(3): CUDA_ERROR_LAUNCH_FAILED (CUDA error 719)")),
		onCUDA("too little memory", small(), []string{"3 memory = 4096"},
			f(3, checks.Finding{Code: "gpu.bandwidth.memory", Severity: checks.Unknown}, "too little free memory: want 2 buffers of 64 KiB, 4 KiB free")),
		checktest.Changed(onCUDA("too little memory of the node", small(), nil,
			checks.Finding{Code: "gpu.bandwidth.memory", Severity: checks.Unknown, Want: "at least 256 KiB", Got: "0 bytes",
				Message: name + ":  free memory of the node (half of it may be pinned), want at least 256 KiB, got 0 bytes"}), func(s *checktest.Scenario) {
			s.Files["proc/meminfo"] = "MemTotal: 1056764928 kB\nMemFree: 0 kB\n"
		}),
		checktest.Changed(onCUDA("just too little memory of the node", small(), nil,
			checks.Finding{Code: "gpu.bandwidth.memory", Severity: checks.Unknown, Want: "at least 256 KiB", Got: "255 KiB",
				Message: name + ":  free memory of the node (half of it may be pinned), want at least 256 KiB, got 255 KiB"}), func(s *checktest.Scenario) {
			s.Files["proc/meminfo"] = "MemTotal: 1056764928 kB\nMemFree: 255 kB\n"
		}),
		checktest.Changed(onCUDA("just enough memory of the node", small(), nil), func(s *checktest.Scenario) {
			s.Files["proc/meminfo"] = "MemTotal: 1056764928 kB\nMemFree: 256 kB\n"
		}),
		checktest.Changed(onCUDA("no meminfo", small(), nil, noMeminfo), func(s *checktest.Scenario) { delete(s.Files, "proc/meminfo"); s.Broken = true }),
	}
}

func TestCUDABW(t *testing.T) { checktest.Run(t, "check_cuda_bw") }

var _ = checktest.Table("check_cuda_bw", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onCUDA("healthy", checktest.Of("-b", "64K", "48", "/opt/azurehpc/test/nhc"), nil),
		onCUDA("slow", checktest.Of("-b", "64K", "48"), []string{"3 d2h = 21"},
			checktest.GPUFinding("check_cuda_bw", 3, checks.Finding{Code: "gpu.bandwidth.slow", Severity: checks.Fail, Want: "at least 48.0 GB/s", Got: "21.0 GB/s"}, "copy to the host")),
		checktest.Changed(onCUDA("no meminfo", checktest.Of("-b", "64K"), nil, noMeminfo), func(s *checktest.Scenario) { delete(s.Files, "proc/meminfo"); s.Broken = true }),
	}
})

// joinedBy connects n GPUs with a number of NVLinks between each pair.
func joinedBy(s *checktest.Scenario, gpus int, links func(a, b int) int) {
	s.NVML.GPUs = s.NVML.GPUs[:gpus]
	for i := range gpus {
		var far []string
		peers := nvml.PeerP2P{}
		for j := range gpus {
			if n := links(i, j); i != j && n > 0 {
				far = append(far, checktest.Repeat(n, fakenvml.Address(j))...)
				peers[fmt.Sprintf("gpu%d", j)] = nvml.P2POK
			}
		}
		l := &s.NVML.GPUs[i].NVLink
		l.Far, l.FarPCI, l.PeerP2P = nvml.Known(checktest.Repeat(len(far), "gpu")), nvml.Known(far), nvml.Known(peers)
	}
}

// overPCIe removes the NVLinks; each GPU is below a root port of its own.
func overPCIe(s *checktest.Scenario) {
	s.Links = map[string]string{}
	for i := range s.NVML.GPUs {
		s.NVML.GPUs[i].NVLink = nvml.NVLink{}
		maps.DeleteFunc(s.Files, func(name, _ string) bool {
			return strings.HasPrefix(name, "sys/bus/pci/devices/"+fakenvml.Address(i)+"/")
		})
		s.Links["sys/bus/pci/devices/"+fakenvml.Address(i)] = fmt.Sprintf("../../../devices/pci0000:00/0000:00:%02x.0/%s", i+1, fakenvml.Address(i))
	}
}

// nearNode puts the fourth GPU near a NUMA node with this much free memory, kB.
func nearNode(free string) func(*checktest.Scenario) {
	return func(s *checktest.Scenario) {
		const node = "sys/devices/system/node/"
		s.Files["sys/devices/system/cpu/online"] = "0-3\n"
		s.Files[node+"has_cpu"], s.Files[node+"node0/cpulist"], s.Files[node+"node1/cpulist"] = "0-1\n", "0-1\n", "2-3\n"
		s.Files[node+"node0/meminfo"] = "Node 0 MemTotal: 524288000 kB\nNode 0 MemFree: 524288000 kB\n"
		s.Files[node+"node1/meminfo"] = "Node 1 MemTotal: 524288000 kB\nNode 1 MemFree: " + free + " kB\n"
		s.Files["sys/bus/pci/devices/"+fakenvml.Address(3)+"/local_cpulist"] = "2-3\n"
	}
}

var noMeminfo = checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /proc/meminfo: no such file or directory"}

// onAll returns a finding about each of n GPUs.
func onAll(n int, of func(i int) checks.Finding) (list []checks.Finding) {
	for i := range n {
		list = append(list, of(i))
	}
	return list
}

// readers makes copies of GPU 0's memory by other GPUs fail with an error; 600: they never end.
func readers(code int, gpus ...int) (lines []string) {
	for _, i := range gpus {
		lines = append(lines, fmt.Sprintf("%d reads 0 = %d", i, code))
	}
	return lines
}

// slowPeers makes a GPU copy slowly from and to all others.
func slowPeers(i, gbs int) (lines []string) {
	for peer := range 8 {
		lines = append(lines, fmt.Sprintf("%d peer %d = %d", i, peer, gbs), fmt.Sprintf("%d peer %d = %d", peer, i, gbs))
	}
	return lines
}

// isolated returns the lines of a GPU that reaches no other, and noReach its message.
func isolated(i int) (lines []string) {
	for peer := range 8 {
		lines = append(lines, fmt.Sprintf("%d reach %d = 0", i, peer), fmt.Sprintf("%d reach %d = 0", peer, i))
	}
	return lines
}

const noReach = "reaches no other GPU directly; other GPUs of its model reach each other"

// Pairs are compared with pairs of the same kind of connection.
func TestPairsByWhatJoinsThem(t *testing.T) {
	t.Parallel()
	s := onCUDA("", nil, nil)
	gpus := []*loadedGPU{}
	h := probe.NewHost(t.TempDir())
	probe.SetLibraries(h, s.Libraries(t, t.TempDir()))
	cuda, err := cuda.Open(h, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		l, err := openGPU(&s.NVML.GPUs[i], cuda.GPUs[i])
		if err != nil {
			t.Fatal(err)
		}
		defer l.c.Close()
		gpus = append(gpus, l)
	}
	if got := gpus[0].classifyLink(gpus[1]); got != "nvlink" {
		t.Errorf("over switches: %s", got)
	}
	gpus[0].gpu.NVLink.Far = nvml.Reading[[]string]{}
	if got := gpus[0].classifyLink(gpus[1]); got != "nvlink of unknown width" {
		t.Errorf("over an unknown link: %s", got)
	}
	gpus[0].gpu.NVLink.FarPCI = nvml.Known([]string{gpus[1].gpu.PCI, gpus[2].gpu.PCI, gpus[1].gpu.PCI})
	if got := gpus[0].classifyLink(gpus[1]); got != "nvlink x2" {
		t.Errorf("in a mesh: %s", got)
	}
	gpus[0].gpu.NVLink = nvml.NVLink{}
	if got := gpus[0].classifyLink(gpus[1]); got != "pcie near" {
		t.Errorf("without links: %s", got)
	}
}

// Over PCIe the shared part of the path decides: a root port, a switch, or a NUMA node.
func TestPairsByTheWayBetween(t *testing.T) {
	t.Parallel()
	root, lib := t.TempDir(), t.TempDir()
	at := func(i int, path string) {
		link := filepath.Join(root, "sys/bus/pci/devices", fmt.Sprintf("0000:%02x:00.0", 0x10+i))
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink("../../../devices/pci0000:00/"+path+"/"+filepath.Base(link), link)); err != nil {
			t.Fatal(err)
		}
	}
	at(0, "0000:00:01.0/0000:01:00.0/0000:02:00.0")
	at(1, "0000:00:01.0/0000:01:00.0/0000:02:01.0")
	at(2, "0000:00:01.0/0000:01:00.0/0000:02:02.0/0000:03:00.0/0000:04:00.0")
	at(3, "0000:00:02.0")
	h := probe.NewHost(root)
	probe.SetLibraries(h, withCUDA(4)(t, lib))
	cuda, err := cuda.Open(h, nil)
	if err != nil {
		t.Fatal(err)
	}
	var gpus []*loadedGPU
	for _, d := range cuda.GPUs {
		l, err := openGPU(&nvml.GPU{}, d)
		if err != nil {
			t.Fatal(err)
		}
		defer l.c.Close()
		gpus = append(gpus, l)
	}
	for i, want := range []string{"one pcie switch", "pcie switches 3 deep", "pcie near"} {
		if got := gpus[0].classifyLink(gpus[i+1]); got != want {
			t.Errorf("GPU 0 and %d: %q, want %q", i+1, got, want)
		}
	}
}

// If the time is up while copies between all GPUs hang, the interrupted pair changes nothing.
func TestPairsHangUntilTheEnd(t *testing.T) {
	t.Parallel()
	s := onCUDA("", nil, nil)
	ctx, stop := context.WithCancel(t.Context())
	b := &bandwidth{r: &activeRun{activeTest: activeTest{Check: "check_gpu_bandwidth", Code: "gpu.bandwidth", Bound: 40 * time.Second}, ctx: ctx}}
	pair := func(at, other int, err error) brokenPair {
		return brokenPair{at: &s.NVML.GPUs[at], other: &s.NVML.GPUs[other], kind: "pcie near", err: err}
	}
	broken := []brokenPair{pair(1, 0, errStuck), pair(3, 2, errStuck), pair(5, 4, context.Canceled)}
	if b.reportCommonCause(broken) {
		t.Errorf("another error: %v", b.r.findings)
	}
	wrong := []brokenPair{pair(0, 1, nil), pair(2, 1, nil), pair(2, 3, context.Canceled)}
	broken[2].interrupted, wrong[2].interrupted = true, true
	stop()
	if b.reportCommonCause(wrong) {
		t.Errorf("GPU 1 is in all pairs: %v", b.r.findings)
	}
	b.reportBrokenPairs(slices.Clone(wrong[:2]))
	one := b.r.findings
	b.r.findings = nil
	b.reportBrokenPairs(slices.Clone(wrong))
	if last := len(b.r.findings) - 1; len(one) != 1 || last != 1 || b.r.findings[0].Code != "active.stopped" || b.r.findings[last].Message != one[0].Message {
		t.Errorf("%v, want GPU 1 as without the interrupted pair: %v", b.r.findings, one)
	}
	// An error from before the end is one of its GPU.
	b.r.findings = nil
	b.reportBrokenPairs([]brokenPair{pair(4, 5, &cuda.Error{Call: "cuMemcpyPeerAsync", Code: 217}), pair(0, 1, nil), wrong[2]})
	for i, code := range []string{"cuda.error.217", "gpu.bandwidth.bit"} {
		at := []int{4, 0}[i]
		if !slices.ContainsFunc(b.r.findings, func(f checks.Finding) bool { return f.Code == code && f.Device == checks.GPUDevice(&s.NVML.GPUs[at]) }) {
			t.Errorf("%v, want %s of GPU %d", b.r.findings, code, at)
		}
	}
	if all := append(wrong[:2:2], pair(2, 3, nil)); !b.reportCommonCause(all) {
		t.Error("no GPU is in all pairs: want one finding")
	}
	b.r.findings = nil
	if !b.reportCommonCause(broken) || len(b.r.findings) != 1 {
		t.Fatalf("%v: want one finding", b.r.findings)
	}
	want := checks.Finding{Code: "active.stuck", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "an end within 10s",
		Message: "check_gpu_bandwidth:  copies between all 2 pairs of GPUs that were tried (first: gpu1 and gpu0): work does not end, want an end within 10s"}
	if got := b.r.findings[0]; got.Code != want.Code || got.Severity != want.Severity || got.Remedy != want.Remedy || got.Message != want.Message || got.Device != (checks.Device{}) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
