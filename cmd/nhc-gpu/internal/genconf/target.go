package genconf

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
)

// target is the kind of node that the configuration is for.
type target struct {
	platform *checks.Platform       // that the command line names; nil: this node
	groups   []checks.PlatformGroup // of this node
	gpus     int                    // 0: not known, or none
	ports    bool                   // it has ports of InfiniBand or RoCE
}

// targetOf returns the node of a platform with the standard board: the only size, the smallest with
// NVSwitches, or the whole tray of a rack. Other platforms have no standard.
func targetOf(p *checks.Platform) target {
	t := target{platform: p, ports: p.NetworkPorts > 0}
	switch {
	case len(p.GPUs) == 0:
	case len(p.GPUs) == 1 || p.NVLinkDomain > 0:
		t.gpus = slices.Max(p.GPUs)
	case slices.Contains(p.GPUs, p.NVSwitchGPUs):
		t.gpus = p.NVSwitchGPUs
	}
	return t
}

// figures returns the platform of the node, nil if none is known or it has several.
func (t *target) figures() *checks.Platform {
	if t.platform == nil && len(t.groups) == 1 {
		return t.groups[0].Platform
	}
	return t.platform
}

// explain adds the platform's figures to the comments of lines without arguments, which compare
// with them.
func (t *target) explain(s *sheet) {
	p := t.figures()
	if p == nil {
		return
	}
	about := map[string]string{
		"check_gpu_power":  figure("default limit %d W", p.PowerLimit),
		"check_gpu_clocks": join(figure("graphics %d MHz", p.GraphicsClock), figure("memory %d MHz", p.MemoryClock)),
		"check_gpu_pcie":   join(figure("generation %d", p.PCIeGen), figure("x%d", p.PCIeWidth)),
		"check_gpu_nvlink": join(figure("%d NVLinks", p.NVLinks), figure("%d MB/s each", p.NVLinkBandwidth)),
		"check_gpu_fabric": figure("NVLink domain of up to %d GPUs", p.NVLinkDomain),
		"check_ib_ports":   join(figure("%d ports", p.NetworkPorts), figure("%d Gb/s", p.NetworkRate)),
		"check_ib_pcie":    join(figure("generation %d", p.NetworkPCIeGen), figure("x%d", p.NetworkPCIeWidth)),
	}
	if t.gpus > 0 && p.HasNVSwitches(t.gpus) {
		about["check_gpu_fabric"] = "NVSwitches and Fabric Manager"
	}
	for i := range s.lines {
		l := &s.lines[i]
		if text := about[l.check]; text != "" {
			l.note = fmt.Sprintf("%s (%s: %s)", l.explanation(l.check), p.Name, text)
		}
	}
}

func figure(format string, n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(format, n)
}

func join(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(t string) bool { return t == "" }), ", ")
}

// expect returns the lines of a platform: the number of GPUs, and checks without arguments.
func (t *target) expect() *sheet {
	s, p := new(sheet), t.platform
	s.comment("Configuration of nhc-gpu for nodes of the platform %s.", p.Name)
	s.comment("nhc-gpu genconf --platform '%s' wrote it. No line was tried on such a node.", p.Name)
	s.comment("")
	s.comment("Each line is TARGET || CHECK. TARGET is a glob, /regular expression/ or {node range}.")
	s.comment("On a node of this platform nhc-gpu genconf also writes the lines with its own figures: mounts,")
	s.comment("CPUs, memory, network interfaces, disks, services.")
	s.settings()
	s.heading("Filesystem checks")
	s.check("check_fs_mount_rw", "-f", "/")
	s.check("check_file_test", "-d", "-w", "-k", "/tmp")
	s.about("jobs can write to /tmp")
	s.check("check_fs_used", "/", strconv.Itoa(mostUsed)+"%")
	s.check("check_fs_iused", "/", strconv.Itoa(mostInodes)+"%")
	s.heading("Hardware checks")
	s.standing(checks.Warn, "check_hw_edac") // a node without an EDAC driver skips it
	s.standing(checks.Warn, "check_eth_link")
	s.comment("Only if the nodes have a default route:")
	s.suggest("check_net_route")
	s.check("check_net_dns")
	s.standing(checks.Warn, portChecks...) // a node without ports skips them
	s.standing(checks.Fail, fabricChecks...)
	s.standing(checks.Fail, "check_pcie", "check_pcie_aer")
	s.standing(checks.Warn, "check_nvme")
	s.heading("GPU checks")
	about := "all GPUs are there"
	if len(p.GPUs) > 1 {
		about += "; nodes of this platform have " + strings.Join(strings.Fields(strings.Trim(fmt.Sprint(p.GPUs), "[]")), " or ")
	}
	if t.gpus > 0 {
		s.check("check_gpu_count", strconv.Itoa(t.gpus))
	} else {
		s.check("check_gpu_count")
		about += "; if the number is fixed, set it: check_gpu_count N"
	}
	s.about("%s", about)
	for _, name := range gpuChecks {
		if name == "check_gpu_nvlink" && p.NVLinks == 0 || name == "check_gpu_fabric" && p.NVSwitchGPUs+p.NVLinkDomain == 0 {
			continue
		}
		s.standing(checks.Fail, name)
	}
	s.standing(checks.Fail, "check_hw_topology")
	s.comment("If nv-hostengine runs:")
	s.suggest("check_dcgm_health")
	s.heading("Process checks")
	s.check("check_ps_service", "slurmd")
	s.about("slurmd runs")
	perhaps := []string{"nvidia-persistenced"}
	if p.HasNVSwitches(t.gpus) {
		perhaps = append(perhaps, "nv-fabricmanager") // not on a board of 4 GPUs, nor where the hypervisor has the NVSwitches
	}
	if p.NVLinkDomain > 0 {
		perhaps = append(perhaps, "nvidia-imex")
	}
	s.comment("Only if the service runs at all times on all nodes, and no job starts it:")
	for _, d := range daemons {
		if slices.Contains(perhaps, d.program) {
			s.suggest("check_ps_service", d.words(inventory.Service{}, false)...)
		}
	}
	t.explain(s)
	return s
}

// Checks of nhc.conf that are also in the files of the prolog and the epilog: they are fast, and
// show whether GPUs and network can run a job.
var (
	prologChecks = []string{
		"check_fs_mount_rw", "check_ib_ports", "check_gpu_count", "check_gpu_driver", "check_gpu_recovery", "check_gpu_xid",
		"check_gpu_ecc", "check_gpu_remap", "check_gpu_nvlink", "check_gpu_fabric",
	}
	epilogChecks = append([]string{"check_ib_errors", "check_ib_link_flapping", "check_pcie_aer", "check_gpu_pcie", "check_gpu_procs"}, prologChecks...)
)

// activeTests are the tests of nhc-active.conf. floors are those that a line is compared with if the
// platform has them: of its algorithm, size and number of ranks. Other floors of the same test do not
// apply to the line.
var activeTests = []struct {
	line   string
	floors []checks.Floor
	gpus   int  // minimum number of GPUs
	ports  bool // the test needs ports of InfiniBand or RoCE
}{
	{line: "check_gpu_bandwidth", floors: []checks.Floor{
		{Test: "host_to_device", Algorithm: "ce", Size: copySize, Ranks: 1},
		{Test: "device_to_host", Algorithm: "ce", Size: copySize, Ranks: 1},
		{Test: "device_to_device", Algorithm: "ce", Size: copySize, Ranks: 2},
	}},
	{line: "check_gpu_membw", floors: []checks.Floor{{Test: "memory_bandwidth", Algorithm: "triad", Size: copySize, Ranks: 1}}},
	{line: "check_gpu_gemm", floors: []checks.Floor{{Test: "gemm", Algorithm: "bf16 cublaslt", Size: 8192, Ranks: 1}}},
	{line: "check_gpu_launch"},
	{line: "check_gpu_memtest"},
	{line: "check_nccl all_reduce", floors: []checks.Floor{{Test: "all_reduce"}}, gpus: 2},
	{line: "check_ib_bw", ports: true},
	{line: "check_cpu_stream"},
	{line: "check_disk_write /tmp"},
}

// copySize is the default size of check_gpu_bandwidth and check_gpu_membw.
const copySize = 512 << 20

// applies reports whether a floor of the platform is for what a line of nhc-active.conf runs.
func (t *target) applies(f checks.Floor, p *checks.Platform, runs []checks.Floor) bool {
	return slices.ContainsFunc(runs, func(run checks.Floor) bool {
		switch {
		case f.Test != run.Test:
			return false
		case f.Test == "all_reduce": // check_nccl uses all GPUs and the largest size that has a floor
			return f.Ranks == t.gpus && !slices.ContainsFunc(p.Floors, func(o checks.Floor) bool { return o.Test == f.Test && o.Ranks == f.Ranks && o.Size > f.Size })
		case f.Test == "device_to_device" && !p.HasNVSwitches(t.gpus) && p.NVLinkDomain == 0:
			return false // the floor is for GPUs behind NVSwitches
		}
		return f.Algorithm == run.Algorithm && f.Size == run.Size && max(f.Ranks, 1) == run.Ranks
	})
}

// file is one file of a node's configuration.
type file struct {
	suffix, what string
	sheet        *sheet
}

// files returns the files of the node; a node without GPUs has only nhc.conf.
func (t *target) files(main *sheet) []file {
	list := []file{{"", "the health check of every few minutes", main}}
	if t.gpus == 0 && t.platform == nil {
		return list
	}
	return append(list,
		file{"-prolog", "before each job; /usr/share/doc/nhc-gpu/docs/jobs.md shows how to install the prolog", around(main, "prolog", "before", prologChecks)},
		file{"-epilog", "after each job; /usr/share/doc/nhc-gpu/docs/jobs.md shows how to install the epilog", around(main, "epilog", "after", epilogChecks)},
		file{"-active", "the active tests; systemctl enable --now nhc-gpu-active.timer", t.active()})
}

// around returns the file of a prolog or an epilog, with active lines of nhc.conf.
func around(main *sheet, name, when string, names []string) *sheet {
	s := new(sheet)
	s.comment("nhc-gpu --%s runs these lines %s each job, instead of the fast lines of nhc.conf.", name, when)
	s.comment("Install the script: install -D -t /etc/slurm/%s.d /usr/share/nhc-gpu/slurm/%s.d/50-nhc-gpu", name, name)
	if name == "epilog" {
		s.comment("An epilog also runs check_job_leftovers and check_job_gpus, without a line.")
	}
	s.comment("")
	for _, l := range main.lines {
		if check, _, _ := strings.Cut(l.check, " "); l.why == "" && slices.Contains(names, check) {
			s.lines = append(s.lines, l)
		}
	}
	return s
}

// active returns the file of the active tests.
func (t *target) active() *sheet {
	s, p := new(sheet), t.figures()
	s.comment("Active tests: they load the node, run only while no job runs, and end at once when one starts.")
	s.comment("Every night: systemctl enable --now nhc-gpu-active.timer")
	s.comment("First, on a healthy node, to have a baseline: nhc-gpu --baseline -n nhc-active")
	s.comment("")
	for _, test := range activeTests {
		if t.gpus > 0 && test.gpus > t.gpus || test.ports && !t.ports {
			continue
		}
		words := strings.Fields(test.line)
		if !s.check(words[0], words[1:]...) || p == nil {
			continue
		}
		var floors []string
		for _, f := range p.Floors {
			if !t.applies(f, p, test.floors) {
				continue
			}
			text := fmt.Sprintf("%s %g %s", f.Test, f.Value, f.Unit)
			if f.Test == "all_reduce" {
				text += fmt.Sprintf(" by %s with %s", f.Algorithm, checks.Size(f.Size))
			}
			floors = append(floors, text)
		}
		if len(floors) > 0 {
			l := &s.lines[len(s.lines)-1]
			l.note = fmt.Sprintf("%s (%s: at least %s)", l.explanation(words[0]), p.Name, strings.Join(floors, ", "))
		}
	}
	if t.ports && t.gpus != 1 {
		s.comment("NCCL over the network alone, only if the adapters of a node can reach each other:")
		s.suggest("check_nccl", "--no-p2p", "-b", "1G", "all_reduce")
	}
	s.comment("For a file of their own, once a week: ten minutes of load, and DCGM's long diagnostic.")
	s.comment("/usr/share/doc/nhc-gpu/docs/active.md has the timer:")
	s.suggest("check_gpu_soak", "600")
	s.suggest("check_dcgm_diag", "3")
	return s
}
