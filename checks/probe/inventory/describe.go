package inventory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/hostengine"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// Describe describes the hardware of the node, as far as files show it.
func Describe(h *probe.Host) []probe.Fact {
	return []probe.Fact{describeOS(h), describeCPU(h), describeMemory(h), describeNet(h), describeIB(h), describePCI(h), describeSlurm(h)}
}

func describeOS(h *probe.Host) probe.Fact {
	f := probe.Fact{Thing: "system", Detail: "unknown"}
	if data, err := os.ReadFile(h.Path("/etc/os-release")); err == nil {
		for line := range strings.SplitSeq(string(data), "\n") {
			if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				f.Found, f.Detail = true, strings.Trim(name, `"`)
			}
		}
	}
	if data, err := os.ReadFile(h.Path("/proc/sys/kernel/osrelease")); err == nil {
		f.Found = true
		f.Detail += ", kernel " + strings.TrimSpace(string(data))
	}
	return f
}

func describeCPU(h *probe.Host) probe.Fact {
	c, err := cpu.CountCPUs(h)
	if err != nil {
		return probe.Fact{Thing: "CPU", Detail: err.Error()}
	}
	sockets := "sockets"
	if c.Sockets == 1 {
		sockets = "socket"
	}
	return probe.Fact{Thing: "CPU", Found: true, Detail: fmt.Sprintf("%d %s, %d cores, %d threads", c.Sockets, sockets, c.Cores, c.Threads)}
}

func describeMemory(h *probe.Host) probe.Fact {
	m, err := probe.ReadMemory(h)
	if err != nil {
		return probe.Fact{Thing: "memory", Detail: err.Error()}
	}
	return probe.Fact{Thing: "memory", Found: true, Detail: fmt.Sprintf("%.1f GiB, %.1f GiB free, swap %.1f GiB",
		float64(m.Total)/(1<<20), float64(m.Free)/(1<<20), float64(m.SwapTotal)/(1<<20))}
}

func describeNet(h *probe.Host) probe.Fact {
	devs, err := network.NetDevices(h)
	if err != nil {
		return probe.Fact{Thing: "network", Detail: err.Error()}
	}
	return probe.Fact{Thing: "network", Found: len(devs) > 0, Detail: strings.Join(devs, " ")}
}

func describeIB(h *probe.Host) probe.Fact {
	ports, err := rdma.IBPorts(h)
	if err != nil || len(ports) == 0 {
		return probe.Fact{Thing: "InfiniBand", Detail: "no port in /sys/class/infiniband"}
	}
	var words []string
	for _, p := range ports {
		if p.Err != nil {
			words = append(words, fmt.Sprintf("%s %v", p.Name(), p.Err))
			continue
		}
		words = append(words, fmt.Sprintf("%s %s %s Gb/s", p.Name(), p.State, p.Rate))
	}
	return probe.Fact{Thing: "InfiniBand", Found: true, Detail: strings.Join(words, ", ")}
}

func describePCI(h *probe.Host) probe.Fact {
	found, err := pci.NvidiaPCI(h)
	if err != nil {
		return probe.Fact{Thing: "GPU (PCI)", Detail: "no PCI bus in " + pci.PCIDevices}
	}
	if len(found) == 0 {
		return probe.Fact{Thing: "GPU (PCI)", Detail: "no NVIDIA GPU in " + pci.PCIDevices}
	}
	return probe.Fact{Thing: "GPU (PCI)", Found: true, Detail: fmt.Sprintf("%d: %s", len(found), strings.Join(found, " "))}
}

func describeSlurm(h *probe.Host) probe.Fact {
	path, err := probe.FindProgram(h, []string{"scontrol"}, "")
	if errors.Is(err, fs.ErrNotExist) {
		return probe.Fact{Thing: "Slurm", Detail: "no scontrol in " + probe.CommandPath}
	}
	return probe.Fact{Thing: "Slurm", Found: err == nil, Detail: path}
}

// DescribeNVML describes the GPUs in NVML. Call it only in the worker of the nvml lane. It calls
// doing before every call.
func DescribeNVML(h *probe.Host, doing func(string)) []probe.Fact {
	n, err := nvml.Ask(h, 0, doing)
	if err != nil {
		return []probe.Fact{{Thing: "NVML", Detail: err.Error()}}
	}
	facts := []probe.Fact{{Thing: "NVML", Found: true, Detail: fmt.Sprintf("driver %s, %d GPUs", n.Driver.Value, len(n.GPUs))}}
	for _, g := range n.GPUs {
		f := probe.Fact{Thing: fmt.Sprintf("gpu%d", g.Index), Found: true, Detail: fmt.Sprintf("%s %s %s", g.PCI, g.Name.Value, g.UUID.Value)}
		if g.Err != nil {
			f = probe.Fact{Thing: f.Thing, Detail: g.Err.Error()}
		}
		facts = append(facts, f)
	}
	return facts
}

// DescribeDCGM reports whether DCGM's host engine answers. Call it only in the worker of the dcgm
// lane.
func DescribeDCGM(h *probe.Host) []probe.Fact {
	n, err := hostengine.HostEngine(h)
	if err != nil {
		return []probe.Fact{{Thing: "DCGM", Detail: err.Error()}}
	}
	return []probe.Fact{{Thing: "DCGM", Found: true, Detail: fmt.Sprintf("nv-hostengine manages %d GPUs", n)}}
}

// DescribeLibraries reports, for each vendor library and for perftest, the file that would be
// loaded now, or the searched directories. It loads no library. For a recorded node it describes
// only the files that a setting names.
func DescribeLibraries(ctx context.Context, h *probe.Host) []probe.Fact {
	cuda := probe.CUDAMajor(h)
	var facts []probe.Fact
	for _, v := range probe.VendorLibraries {
		if !h.Recorded() || h.Library(v.Setting) != "" || h.Library(probe.SettingLibraryDirs) != "" {
			facts = append(facts, probe.DescribeLibrary(ctx, h, v, cuda))
		}
	}
	if !h.Recorded() {
		facts = append(facts, describePerftest(ctx, h))
	}
	return facts
}

func describePerftest(ctx context.Context, h *probe.Host) probe.Fact {
	const program = "ib_write_bw"
	f := probe.Fact{Thing: "perftest", Detail: "no " + program + " in " + h.Getenv("PATH") + "; check_ib_bw -p names one"}
	path, err := probe.FindProgram(h, []string{program}, "")
	if err != nil {
		return f
	}
	f.Found, f.Detail = true, path
	x := h.RunOnce(ctx, program+" --version", probe.Command{Argv: []string{path, "--version"}, Env: probe.PerftestEnv, Timeout: 2 * time.Second, Output: 1 << 10, Merge: true})
	for line := range strings.Lines(string(x.Output)) {
		if _, version, ok := strings.Cut(line, "ersion: "); ok {
			f.Detail += ", version " + probe.OneLine(strings.TrimSpace(version))
			break
		}
	}
	return f
}
