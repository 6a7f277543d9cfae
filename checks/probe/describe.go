package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"
)

// Describe tells what the node has, as far as files tell it.
func (h *Host) Describe() []Fact {
	return []Fact{h.describeOS(), h.describeCPU(), h.describeMemory(), h.describeNet(), h.describeIB(), h.describePCI(), h.describeSlurm()}
}

func (h *Host) describeOS() Fact {
	f := Fact{Thing: "system", Detail: "unknown"}
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

func (h *Host) describeCPU() Fact {
	c, err := h.CPUs()
	if err != nil {
		return Fact{Thing: "CPU", Detail: err.Error()}
	}
	return Fact{Thing: "CPU", Found: true, Detail: fmt.Sprintf("%d sockets, %d cores, %d threads", c.Sockets, c.Cores, c.Threads)}
}

func (h *Host) describeMemory() Fact {
	m, err := h.Memory()
	if err != nil {
		return Fact{Thing: "memory", Detail: err.Error()}
	}
	return Fact{Thing: "memory", Found: true, Detail: fmt.Sprintf("%.1f GiB, %.1f GiB free, swap %.1f GiB",
		float64(m.Total)/(1<<20), float64(m.Free)/(1<<20), float64(m.SwapTotal)/(1<<20))}
}

func (h *Host) describeNet() Fact {
	devs, err := h.NetDevices()
	if err != nil {
		return Fact{Thing: "network", Detail: err.Error()}
	}
	return Fact{Thing: "network", Found: len(devs) > 0, Detail: strings.Join(devs, " ")}
}

func (h *Host) describeIB() Fact {
	ports, err := h.IBPorts()
	if err != nil || len(ports) == 0 {
		return Fact{Thing: "InfiniBand", Detail: "no port in /sys/class/infiniband"}
	}
	var words []string
	for _, p := range ports {
		if p.Err != nil {
			words = append(words, fmt.Sprintf("%s %v", p.Name(), p.Err))
			continue
		}
		words = append(words, fmt.Sprintf("%s %s %s Gb/s", p.Name(), p.State, p.Rate))
	}
	return Fact{Thing: "InfiniBand", Found: true, Detail: strings.Join(words, ", ")}
}

func (h *Host) describePCI() Fact {
	found, err := h.nvidiaPCI()
	if err != nil {
		return Fact{Thing: "GPU (PCI)", Detail: "no PCI bus in " + pciDevices}
	}
	if len(found) == 0 {
		return Fact{Thing: "GPU (PCI)", Detail: "no NVIDIA GPU in " + pciDevices}
	}
	return Fact{Thing: "GPU (PCI)", Found: true, Detail: fmt.Sprintf("%d: %s", len(found), strings.Join(found, " "))}
}

func (h *Host) describeSlurm() Fact {
	path, err := h.find([]string{"scontrol"}, "")
	if errors.Is(err, fs.ErrNotExist) {
		return Fact{Thing: "Slurm", Detail: "no scontrol in " + CommandPath}
	}
	return Fact{Thing: "Slurm", Found: err == nil, Detail: path}
}

// DescribeNVML tells what NVML sees. Only for the worker of the nvml lane. doing
// hears of every call before it is made.
func (h *Host) DescribeNVML(doing func(string)) []Fact {
	n, err := h.NVML(0, doing)
	if err != nil {
		return []Fact{{Thing: "NVML", Detail: err.Error()}}
	}
	facts := []Fact{{Thing: "NVML", Found: true, Detail: fmt.Sprintf("driver %s, %d GPUs", n.Driver.Value, len(n.GPUs))}}
	for _, g := range n.GPUs {
		f := Fact{Thing: fmt.Sprintf("gpu%d", g.Index), Found: true, Detail: fmt.Sprintf("%s %s %s", g.PCI, g.Name.Value, g.UUID.Value)}
		if g.Err != nil {
			f = Fact{Thing: f.Thing, Detail: g.Err.Error()}
		}
		facts = append(facts, f)
	}
	return facts
}

// DescribeDCGM tells whether DCGM's host engine answers. Only for the worker of
// the dcgm lane.
func (h *Host) DescribeDCGM() []Fact {
	n, err := h.HostEngine()
	if err != nil {
		return []Fact{{Thing: "DCGM", Detail: err.Error()}}
	}
	return []Fact{{Thing: "DCGM", Found: true, Detail: fmt.Sprintf("nv-hostengine manages %d GPUs", n)}}
}

// DescribeLibraries says of each vendor's library, and of perftest, from which file it
// would be loaded now, or where it was looked for. No library is loaded. Of a recorded
// node only what a setting names is described.
func (h *Host) DescribeLibraries(ctx context.Context) []Fact {
	cuda := h.cudaMajor()
	var facts []Fact
	for _, v := range vendorLibraries {
		if !h.Recorded() || h.Library(v.setting) != "" || h.Library(SettingLibraryDirs) != "" {
			facts = append(facts, h.describeLibrary(ctx, v, cuda))
		}
	}
	if !h.Recorded() {
		facts = append(facts, h.describePerftest(ctx))
	}
	return facts
}

func (h *Host) describePerftest(ctx context.Context) Fact {
	const program = "ib_write_bw"
	f := Fact{Thing: "perftest", Detail: "no " + program + " in " + h.Getenv("PATH") + "; check_ib_bw -p names one"}
	path, err := h.find([]string{program}, "")
	if err != nil {
		return f
	}
	f.Found, f.Detail = true, path
	x := h.RunOnce(ctx, program+" --version", Command{Argv: []string{path, "--version"}, Env: perftestEnv, Timeout: 2 * time.Second, Output: 1 << 10, Merge: true})
	for line := range strings.Lines(string(x.Output)) {
		if _, version, ok := strings.Cut(line, "ersion: "); ok {
			f.Detail += ", version " + oneLine(strings.TrimSpace(version))
			break
		}
	}
	return f
}
