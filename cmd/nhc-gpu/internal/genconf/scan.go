package genconf

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// scanStep is the time limit of one request to the worker, for example about a dead mount.
const scanStep = 5 * time.Second

// answers has the worker's answers, and the errors in their place.
type answers struct {
	have map[string]*inventory.Inventory // by part, or by mount point
	err  map[string]error
}

// ask has the worker read parts of the inventory, or the space of mount points.
func (g *generator) ask(part inventory.Part, of ...string) answers {
	a := answers{have: map[string]*inventory.Inventory{}, err: map[string]error{}}
	var reqs []*wire.Request
	for _, what := range of {
		r := &wire.Request{Op: wire.OpHave, Name: what, Line: "read " + what}
		if part == inventory.PartSpace {
			r.Name, r.Path, r.Line = string(part), what, "stat "+what
		}
		reqs = append(reqs, r)
	}
	limit := func(*wire.Request) time.Duration { return g.Budget.Within(scanStep, time.Now()) }
	g.Pool.Do(g.Signals.Ctx, checks.Local, reqs, limit, func(r *wire.Request, o run.Outcome) {
		what := r.Name
		if part == inventory.PartSpace {
			what = r.Path
		}
		resp, err := o.AnswerTo(r.Line)
		if err != nil {
			a.err[what] = err
			return
		}
		a.have[what] = resp.Have
	})
	return a
}

// part returns one part of the inventory; if there is none it adds a warning and returns nil.
func (g *generator) part(a answers, part inventory.Part) *inventory.Inventory {
	inv := a.have[string(part)]
	if inv == nil && g.Signals.Ctx.Err() == nil {
		g.sheet.warn("no line for %s: %v", part, a.err[string(part)])
	}
	return inv
}

func (g *generator) heading() {
	s := &g.sheet
	s.comment("Configuration of nhc-gpu. LBNL NHC lacks some of these checks and drains a node for each of them:")
	s.comment("use this file only where slurmd starts nhc-gpu.")
	s.comment("")
	s.comment("%s %s wrote it on %s, %s.", g.program, g.Version, g.Get("HOSTNAME_S"), g.Budget.Began.Format(time.RFC1123Z))
	for i := range g.target.groups {
		s.comment("platform: %s", &g.target.groups[i])
	}
	s.comment("")
	s.comment("Each line is TARGET || CHECK. TARGET is a glob, /regular expression/ or {node range}.")
	s.comment("Every active line passed on that node at that time, unless the comment above it names a fault.")
	s.comment("Read the file before you use it: a device that was faulty then has no line, or its state counts")
	s.comment("as healthy. Then try it: nhc-gpu --check -c FILE")
	s.settings()
}

// settings suggests the two settings that sites change most.
func (s *sheet) settings() {
	s.heading("Settings")
	s.comment("MARK_OFFLINE=0 reports failures and drains no node; NHC_CHECK_ALL=1 runs all lines after a failure")
	s.lines = append(s.lines, sheetLine{check: "export MARK_OFFLINE=1 NHC_CHECK_ALL=0", why: "-"})
}

// scan fills the sheet, section by section.
func (g *generator) scan() {
	parts := []inventory.Part{
		inventory.PartCPU, inventory.PartMemory, inventory.PartLoad, inventory.PartNet, inventory.PartIB, inventory.PartGPU, inventory.PartDisks,
		inventory.PartMounts, inventory.PartServices, inventory.PartDMI,
	}
	var names []string
	for _, p := range parts {
		names = append(names, string(p))
	}
	g.vecho(strings.Join(names, "...") + "...")
	a := g.ask("", names...)
	g.target.groups = g.Here()
	g.heading()
	g.dmiSection(a)
	g.mountSection(a)
	g.hardwareSection(a)
	g.gpuSection(a)
	g.processSection(a)
}

func (g *generator) hardwareSection(a answers) {
	s := &g.sheet
	s.heading("Hardware checks")
	if inv := g.part(a, inventory.PartCPU); inv != nil {
		c := inv.CPUs
		g.dbg("%d sockets, %d cores, %d threads", c.Sockets, c.Cores, c.Threads)
		s.check("check_hw_cpuinfo", strconv.Itoa(c.Sockets), strconv.Itoa(c.Cores), strconv.Itoa(c.Threads))
	}
	if inv := g.part(a, inventory.PartMemory); inv != nil {
		g.memoryLines(inv)
	}
	s.standing(checks.Warn, "check_hw_edac")
	if inv := g.part(a, inventory.PartNet); inv != nil {
		g.linkLines(inv.Links)
	}
	s.standing(checks.Warn, "check_eth_link")
	s.check("check_net_route")
	s.check("check_net_dns")
	if inv := g.part(a, inventory.PartIB); inv != nil {
		g.portLines(inv.Ports, g.leftPorts(inv.Ports))
	}
	s.standing(checks.Fail, "check_pcie", "check_pcie_aer")
	if inv := g.part(a, inventory.PartDisks); inv != nil && len(inv.Disks) > 0 {
		words := []string{"-b"}
		for _, d := range inv.Disks {
			words = append(words, "/dev/"+d)
		}
		if s.check("check_file_test", words...) {
			s.about("%s", checks.Plural(len(inv.Disks), "NVMe disk"))
		}
	}
	s.standing(checks.Warn, "check_nvme")
	if ib := g.part(a, inventory.PartIB); ib == nil || len(ib.Ports) == 0 {
		s.standing(checks.Warn, "check_kernel_log")
	}
}

func (g *generator) linkLines(links []inventory.NetLink) {
	virtual := map[string][]string{}
	for _, l := range links {
		if l.Virtual == "" {
			g.sheet.check("check_hw_eth", literalMatch(l.Name))
			continue
		}
		virtual[l.Virtual] = append(virtual[l.Virtual], l.Name)
	}
	for _, why := range slices.Sorted(maps.Keys(virtual)) {
		g.sheet.comment("no line for interfaces (%s): %s", why, some(virtual[why]))
	}
}

// largeMemory is a size in kB. At this size 3 % of the memory can be a whole memory module, so the
// tolerance must be smaller.
const largeMemory = 256 << 20

// memoryLines adds the sizes of memory and swap space. The driver adds the GPUs' memory of Grace to the
// node's after the boot, without MIG and CDMM, as NUMA nodes without CPUs. Other such nodes (HBM, CXL)
// always have theirs.
func (g *generator) memoryLines(inv *inventory.Inventory) {
	m, far := inv.Memory, inv.Far
	ofGPUs := slices.ContainsFunc(g.target.groups, func(p checks.PlatformGroup) bool { return p.Platform != nil && p.Platform.MemoryNode > 0 })
	if !ofGPUs && !inv.GPUMemory {
		far = 0
	}
	least, size := sizeWord(m.Total-min(far, m.Total)), sizeWord(m.Total)
	fudge := "3%"
	if m.Total >= largeMemory {
		fudge = "1%"
	}
	g.dbg("%d kB RAM (%s to %s, +/- %s), %d kB swap", m.Total, least, size, fudge, m.SwapTotal)
	switch {
	case ofGPUs && far == 0:
		g.sheet.comment("the driver can add the GPUs' memory to the node's: if it does, raise the maximum")
		g.sheet.suggest("check_hw_physmem", least, size, fudge)
	case g.sheet.check("check_hw_physmem", least, size, fudge) && far > 0:
		g.sheet.about("the memory has its size, with or without that of the GPUs, give or take %s", fudge)
	default:
		g.sheet.about("the memory has its size, give or take %s: what the kernel reserves changes with its version", fudge)
	}
	if m.SwapTotal == 0 {
		g.sheet.check("check_hw_swap", "0", "0")
		return
	}
	swap := sizeWord(m.SwapTotal)
	g.sheet.check("check_hw_swap", swap, swap, "3%")
}

// sizeWord writes an amount of memory in the largest unit that gives a number of 64 or more. The
// rounding error is below one percent.
func sizeWord(kB uint64) string {
	units := []string{"kB", "MB", "GB"}
	n, unit := float64(kB), 0
	for ; n >= 64*1024 && unit < len(units)-1; unit++ {
		n /= 1024
	}
	return strconv.FormatFloat(math.Round(n), 'f', 0, 64) + units[unit]
}

// leftPorts returns the ports that checks of the fabric ignore, each with the reason.
func (g *generator) leftPorts(ports []inventory.IBLink) map[string]string {
	left := map[string]string{}
	if len(ports) == 0 {
		return left
	}
	resp, err := g.Pool.Call(g.Signals.Ctx, checks.Local, &wire.Request{Op: wire.OpTopo, Line: "read the topology"}, scanStep).Answer()
	if err != nil {
		g.sheet.warn("cannot determine which ports carry jobs' traffic: %v", err)
		return left
	}
	for _, p := range ports {
		left[p.Name] = "a virtual function" // a topology has no virtual functions
	}
	for _, n := range resp.Topo.NICs {
		for _, p := range n.Ports {
			if left[p.Name] = p.Left; p.Left == "" {
				delete(left, p.Name)
			}
		}
	}
	return left
}

func (g *generator) portLines(ports []inventory.IBLink, left map[string]string) {
	s := &g.sheet
	alone, up := map[string][]string{}, map[string][]string{}
	for _, p := range ports {
		why := left[p.Name]
		switch {
		case p.Err != "":
			s.warn("no line for port %s: %s", p.Name, p.Err)
		case why != "":
			if alone[why] = append(alone[why], p.Name); len(alone[why]) == 1 {
				defer func() { s.comment("no line for ports that carry no traffic of jobs (%s): %s", why, some(alone[why])) }()
			}
		case p.State != "ACTIVE" || p.Phys != "LinkUp":
			s.comment("no line for port %s, which is not in use: %s, %s", p.Name, p.State, p.Phys)
		default:
			up[p.Rate] = append(up[p.Rate], p.Name)
		}
	}
	// LBNL NHC writes check_hw_ib, which fails until a boot has brought the ports up.
	for _, rate := range slices.Sorted(maps.Keys(up)) {
		s.check("check_ib_ports", append([]string{"-r", rate}, up[rate]...)...)
	}
	if len(ports) > 0 {
		g.target.ports = true
		s.standing(checks.Warn, portChecks...)
		s.standing(checks.Fail, fabricChecks...)
	}
}

// portChecks and fabricChecks are the checks of InfiniBand and RoCE without arguments: they compare
// ports with each other and with the past. A warning of the second group can be due to the node's
// construction.
var (
	portChecks   = []string{"check_ib_ports", "check_ib_errors", "check_ib_link_flapping", "check_kernel_log"}
	fabricChecks = []string{"check_ib_count", "check_ib_modules", "check_ib_firmware", "check_ib_gid", "check_ib_pcie"}
)

// gpuChecks are the checks of GPUs without arguments.
var gpuChecks = []string{
	"check_gpu_driver", "check_gpu_recovery", "check_gpu_xid", "check_gpu_ecc", "check_gpu_remap", "check_gpu_persistence",
	"check_gpu_mode", "check_gpu_vbios", "check_gpu_temp", "check_gpu_power", "check_gpu_clocks", "check_gpu_throttle", "check_gpu_pcie", "check_gpu_procs",
	"check_gpu_nvlink", "check_gpu_fabric",
}

// gpuSection adds lines for device nodes and NVML, and a comment for each GPU.
func (g *generator) gpuSection(a answers) {
	s := &g.sheet
	inv := g.part(a, inventory.PartGPU)
	if inv == nil || len(inv.GPU.Nodes)+len(inv.GPU.PCI) == 0 {
		return
	}
	gpu := inv.GPU
	s.heading("GPU checks")
	if len(gpu.Nodes) != gpu.Own && len(gpu.PCI) > 0 {
		s.warn("%d GPUs on the PCI bus, but %d have a device node", gpu.Own, len(gpu.Nodes))
	}
	g.describeGPUs()
	g.slotLine(gpu)
	if len(gpu.Nodes) > 0 {
		if s.check("check_file_test", append(append([]string{"-c"}, gpu.Nodes...), "/dev/nvidiactl")...) {
			s.about("%s of the driver", checks.Plural(len(gpu.Nodes), "device node"))
		}
	}
	n := gpu.Own
	if len(gpu.PCI) == 0 {
		n = len(gpu.Nodes)
	}
	if n > 0 {
		g.target.gpus = n
		s.check("check_gpu_count", strconv.Itoa(n))
		s.standing(checks.Fail, gpuChecks...)
		s.standing(checks.Fail, "check_hw_topology")
		g.target.explain(s)
	}
	if gpu.SMI != "" {
		s.check("check_nvsmi_healthmon")
	}
}

// slotLine suggests a line of the PCI addresses of the GPUs, if check_gpu_count does not count them all.
// The addresses differ between nodes, and firmware can renumber the buses.
func (g *generator) slotLine(gpu inventory.GPUFiles) {
	n := len(gpu.PCI) - gpu.Own
	if n <= 0 {
		return
	}
	g.sheet.comment("%d of %d GPUs do not belong to the driver here: passed to virtual machines, excluded, for a display, or not given to this container", n, len(gpu.PCI))
	words := []string{"-e"}
	for _, addr := range gpu.PCI {
		words = append(words, "/sys/bus/pci/devices/"+addr)
	}
	g.sheet.comment("the PCI addresses can differ between nodes, and change with a new firmware:")
	g.sheet.suggest("check_file_test", words...)
}

// describeGPUs adds the GPUs as NVML describes them.
func (g *generator) describeGPUs() {
	g.vecho("GPUs...")
	resp, err := g.Pool.Call(g.Signals.Ctx, checks.NVML, &wire.Request{Op: wire.OpFacts, Name: string(checks.NVML), Line: "facts"},
		plan.StepTimeout(checks.Info{Lane: checks.NVML}, nil, g.Timeout)).Answer()
	if err != nil {
		g.sheet.warn("cannot query NVML: %v", err)
		return
	}
	for _, f := range resp.Facts {
		g.sheet.comment("%s: %s", f.Thing, f.Detail)
	}
}

// loadLine allows a load of twice the number of threads, as LBNL NHC does, or twice the present
// load.
func (g *generator) loadLine(a answers) {
	load, cpu := g.part(a, inventory.PartLoad), a.have[string(inventory.PartCPU)]
	if load == nil || cpu == nil || cpu.CPUs.Threads < 2 {
		return
	}
	limit := max(2*cpu.CPUs.Threads, int(math.Ceil(2*load.Load)))
	if g.sheet.check("check_ps_loadavg", strconv.Itoa(limit)) && limit > 2*cpu.CPUs.Threads {
		g.sheet.comment("the load was %.1f on %d threads: the limit allows twice that", load.Load, cpu.CPUs.Threads)
	}
}

// maxDMILines limits the suggestions from DMI data; a server with many memory modules has several
// hundred speeds.
const maxDMILines = 500

// dmiSection suggests lines of the DMI data as comments. The texts differ between firmware
// versions, so the site must choose.
func (g *generator) dmiSection(a answers) {
	if _, ok := checks.Lookup("check_dmi_data_match"); !ok {
		return
	}
	s := &g.sheet
	s.heading("DMI checks")
	inv := a.have[string(inventory.PartDMI)]
	if inv == nil {
		if err := a.err[string(inventory.PartDMI)]; err != nil {
			s.comment("no line for DMI data: %v", err)
		}
		return
	}
	m := match.Matcher{Warn: func(text string) { s.warn("-b %s: %s", g.dmi, text) }}
	n := 0
	for _, l := range inv.DMI {
		ok, err := m.Match(l.Text, g.dmi)
		if err != nil {
			s.warn("-b %s: %v", g.dmi, err)
			return
		}
		if !ok {
			continue
		}
		if n++; n <= maxDMILines {
			s.suggest("check_dmi_data_match", "-h", l.Handle, "-t", l.Type, literalMatch(l.Text))
		}
	}
	if n > maxDMILines {
		s.comment("and %d more: choose with -b", n-maxDMILines)
	}
	g.dbg("%d of %d lines of DMI data match %s", n, len(inv.DMI), g.dmi)
}
