package gpu

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/xid"
)

// gpuFabric checks that every GPU has joined its NVLink fabric: the NVSwitches of its board (HGX,
// DGX), or the NVLink domain of its rack (GB200, GB300). If a GPU has not joined, jobs can be ten
// times slower although all NVLinks are up.
//
// State: the state of the fabric must be Completed and its status Success. A state that is not
// final fails in the third consecutive run of one boot, and warns before that. The prolog of a job
// waits for the fabric, and refuses the job without it: CUDA would not start. The state is not judged
// if MIG is on: the driver shuts down the NVLinks then.
//
// Domain: the cluster UUID must not be zero if the node's platform is part of a domain and its
// NVLinks are connected to switches, or if another GPU of the node has one. The cluster UUID and
// the clique must be those of the other GPUs. A clique of zero warns. On an HGX board both are
// zero on healthy GPUs.
//
// Health: degraded bandwidth, an unhealthy route and each incorrect configuration fail. A recovery
// in progress and a lost connection to the rack's fabric manager warn. Values that the driver does
// not report are not judged.
//
// Services: nv-fabricmanager must run if NVSwitches are on the PCI bus (A100 to H200). It only
// warns if all GPUs report that they have joined, or if only the platform suggests NVSwitches and a
// GPU has not joined. GB200 and GB300 nodes do not run it. With -i nvidia-imex must run; without -i
// a node that has IMEX channels and no nvidia-imex warns, since some sites start it with a job. The
// check does not test whether an idle domain is ready. In a container neither service is expected,
// because the node's processes are not visible there.
//
// In the first five minutes after a boot the services start and the GPUs join. Until then a state that
// is not final and a service that does not run are not judged, except before a job.
//
//	gpu* || check_gpu_fabric
//	gb* || check_gpu_fabric -i yes
type gpuFabric struct {
	IMEX string `opt:"i" toml:"imex"` // yes: nvidia-imex must run; a number: also lowest number of IMEX channels; default: only warn
}

const gpuFabricName = "check_gpu_fabric"

func init() {
	const (
		manager = "check systemctl status nvidia-fabricmanager and /var/log/fabricmanager.log; its version must be that of the driver. Look for SXid errors of NVSwitches in dmesg (check_gpu_xid). " + checks.ResetAllAdvice
		rack    = "On an NVL72 rack check the rack's fabric manager (nmx-controller) and its switch trays, too."
	)
	checks.Register(checks.Info{
		Name:    gpuFabricName,
		Usage:   "[-i CHANNELS]",
		Summary: "every GPU has joined its NVSwitches or NVLink domain",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuFabric{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.fabric.state":    "CUDA does not start, or does not use NVLink: " + manager + " " + rack,
				"gpu.fabric.status":   "The GPU is not in the fabric, even if its links are up: " + manager + " " + rack,
				"gpu.fabric.domain":   "The GPU is not in the rack's NVLink domain, or in another one than the other GPUs of the node: check Fabric in nvidia-smi -q, and the partitions of the rack's fabric manager.",
				"gpu.fabric.health":   "Check Fabric, Health in nvidia-smi -q, and look for Xid and SXid errors in dmesg. " + checks.ResetAdvice + " " + rack,
				"gpu.fabric.mig":      "Nothing: the driver shuts down the NVLinks of a GPU with MIG. If the GPU is to use NVLink, turn MIG off: nvidia-smi -i ADDRESS -mig 0.",
				"gpu.fabric.unknown":  "The driver is newer than nhc-gpu and reports an unknown value: check Fabric in nvidia-smi -q.",
				"gpu.fabric.manager":  "Run systemctl start nvidia-fabricmanager; " + manager,
				"gpu.fabric.imex":     "Run systemctl start nvidia-imex; check nvidia-imex-ctl -N and /etc/nvidia-imex/nodes_config.cfg. If each job starts it, or the node is not in an NVLink domain, remove -i from the line.",
				"gpu.fabric.channels": "Write \"options nvidia NVreg_CreateImexChannel0=1\" to /etc/modprobe.d/nvidia-imex.conf and reboot, or let Slurm's switch/nvidia_imex create the channels. If the node is not in an NVLink domain, remove -i from the line.",
				"gpu.fabric.boot":     "Nothing to repair in the first five minutes after a boot: a later run checks the fabric. If a job waits for the node run the check again.",
				"gpu.fabric.none":     "Nothing: these GPUs do not have an NVLink fabric.",
			}
		},
	})
}

func (c *gpuFabric) Validate() error {
	if _, ok := c.parseChannels(); !ok {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.IMEX, Want: "yes, or a number of channels"}
	}
	return nil
}

// parseChannels returns the wanted number of IMEX channels; 0 without -i.
func (c *gpuFabric) parseChannels() (n int, ok bool) {
	switch c.IMEX {
	case "":
		return 0, true
	case "yes", "true":
		return 1, true
	}
	n, err := strconv.Atoi(c.IMEX)
	return n, err == nil && n > 0
}

// fabricPast is the state of a GPU that the check keeps for the next run.
type fabricPast struct {
	Boot   string         `json:"boot"`
	InARow map[string]int `json:"in_a_row"` // consecutive runs with a state that is not final, by its name
}

// fabricRun is one run of the check.
type fabricRun struct {
	*gpuFabric
	*GPUs
	past    *memory[fabricPast]
	boot    string
	cluster map[string]string // cluster UUID of most GPUs of the node, by model
	clique  map[string]string
	joined  int  // GPUs that report that they are part of the fabric
	failed  bool // the fabric of a GPU has a fault
}

func (c *gpuFabric) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	_, _ = nvml.Ask(env.Host, 0, env.Doing) // the platform depends on it, since vGPUs have none; AskNVML reports the error
	groups := nvml.GroupFabric
	if slices.ContainsFunc(checks.PlatformGroups(env), func(p checks.PlatformGroup) bool { return p.Platform != nil && p.Platform.NVLinkDomain > 0 }) {
		groups |= nvml.GroupNVLinks | nvml.GroupNVLinkFar
	}
	s, findings := AskNVML(env, gpuFabricName, groups)
	if s == nil {
		return findings
	}
	r := &fabricRun{gpuFabric: c, GPUs: s, past: recallGPU[fabricPast](env, gpuFabricName, "gpu-fabric", s.NVML.Taken)}
	r.boot, _ = probe.BootID(env.Host)
	if err := await(ctx, s, groups, "the NVLink fabric", r.isStarting); err != nil {
		return []checks.Finding{CannotAsk(gpuFabricName, err)}
	}
	r.cluster, r.clique = r.findCommonest(func(f nvml.Fabric) string { return f.Cluster }), r.findCommonest(formatClique)
	s.Each(func(_ *GPUs, g *nvml.GPU) { r.judge(g) })
	reportMissing(s, "state of the fabric", func(g *nvml.GPU) nvml.Reading[nvml.Fabric] { return g.Fabric })
	r.addSwitchErrors()
	node := r.judgeServices()
	if env.Booting() {
		s.Findings, node = env.Settle(append(s.Findings, node...), gpuFabricName, checks.Finding{Code: "gpu.fabric.boot"}, ofStart), nil
	}
	if nothing := len(node)+len(s.Findings) == 0 && !r.hasSwitches(); nothing && !s.Judged {
		return s.Done()
	} else if nothing && r.joined == 0 {
		return []checks.Finding{checks.Finding{Code: "gpu.fabric.none", Severity: checks.Skip}.Describe(gpuFabricName, "these GPUs do not have an NVLink fabric")}
	}
	env.Fact("%d joined", r.joined)
	return append(append(s.Findings, node...), r.past.store(s)...)
}

func formatClique(f nvml.Fabric) string {
	if f.Cluster == "" {
		return ""
	}
	return fmt.Sprint(f.Clique)
}

// findCommonest returns, by model, the value that more than half of the GPUs in the fabric have, ""
// without a majority. It has no entry for a model without a GPU in the fabric.
func (r *fabricRun) findCommonest(of func(nvml.Fabric) string) map[string]string {
	times := map[string]map[string]int{}
	for i := range r.NVML.GPUs {
		g := &r.NVML.GPUs[i]
		if f := g.Fabric; f.Known && f.Value.State == nvml.FabricCompleted && f.Value.Status == 0 {
			if times[g.Name.Value] == nil {
				times[g.Name.Value] = map[string]int{}
			}
			times[g.Name.Value][of(f.Value)]++
		}
	}
	most := map[string]string{}
	for model, of := range times {
		best, all := checks.Commonest(of), 0
		for _, n := range of {
			all += n
		}
		if most[model] = best; of[best]*2 <= all {
			most[model] = ""
		}
	}
	return most
}

// reportFault reports a fault of a GPU's fabric.
func (r *fabricRun) reportFault(g *nvml.GPU, code string, severity checks.Severity, want, got, format string, args ...any) {
	r.failed = true
	r.Report(g, checks.Finding{Code: code, Severity: severity, Remedy: checks.CheckFabric, Want: want, Got: got}, format, args...)
}

func (r *fabricRun) judge(g *nvml.GPU) {
	f, known := Value(r.GPUs, g.Fabric)
	if !known {
		if g.Fabric.Err != nil { // no sign of health
			r.past.keep(g)
		}
		return
	}
	domain := r.findPlatform(g).NVLinkDomain > 0 && !meshed(g)
	_, others := r.cluster[g.Name.Value]
	if withMIG(g) && (f.State == nvml.FabricNotStarted || f.State == nvml.FabricInProgress || f.State == nvml.FabricNotSupported && others) {
		// The driver suspends the probe of the fabric before it shuts down the NVLinks for MIG:
		// open-gpu-kernel-modules, kernel_mig_manager.c, gpuFabricProbeSuspend.
		r.joined++
		r.Report(g, checks.Finding{Code: "gpu.fabric.mig", Severity: checks.Skip}, "MIG is on: it need not join the fabric")
		return
	}
	if err := unreadMIG(g); err != nil && f.State != nvml.FabricCompleted && (others || f.State != nvml.FabricNotSupported) {
		r.Err = cmp.Or(r.Err, err)
		r.joined++
		r.past.keep(g)
		return
	}
	switch f.State {
	case nvml.FabricNotSupported:
		switch {
		case others:
			r.reportFault(g, "gpu.fabric.state", checks.Fail, "completed", "not supported", "state of the fabric differs from that of the others")
		case domain && len(r.NVML.GPUs) > 1: // a single GPU has no fabric
			r.reportFault(g, "gpu.fabric.state", checks.Warn, "completed", "not supported", "state of the fabric")
		}
		return
	case nvml.FabricNotStarted, nvml.FabricInProgress:
		r.joined++
		severity, n := checks.Warn, 0
		if !r.Env.Booting() {
			n = r.countRuns(g, "state")
			severity = r.chooseSeverity(n)
		}
		if r.Env.BeforeJob() {
			severity = checks.Fail
		}
		r.reportFault(g, "gpu.fabric.state", severity, "completed", unfinished[f.State], "state of the fabric%s", formatRuns(n))
		return
	case nvml.FabricCompleted:
		r.joined++
	default:
		r.past.keep(g)
		r.Report(g, checks.Finding{Code: "gpu.fabric.unknown", Severity: checks.Unknown, Want: "completed", Got: fmt.Sprintf("unknown state %d", f.State)}, "state of the fabric")
		return
	}
	switch {
	case f.Status == nvml.FabricNoResources:
		r.reportFault(g, "gpu.fabric.status", checks.Fail, "success", "insufficient resources", "state of the fabric is completed, but its status")
	case f.Status != 0:
		r.reportFault(g, "gpu.fabric.status", checks.Fail, "success", fmt.Sprintf("NVML error %d", f.Status), "state of the fabric is completed, but its status")
	default:
		r.judgeDomain(g, f, domain)
	}
	r.judgeHealth(g, f)
}

// unfinished are the names of the states that are not final.
var unfinished = map[int]string{nvml.FabricNotStarted: "not started", nvml.FabricInProgress: "in progress"}

// isStarting reports whether a GPU is joining the fabric, or, after a boot, its manager or the wanted nvidia-imex
// does not run yet.
func (r *fabricRun) isStarting() bool {
	completed := 0
	for i := range r.NVML.GPUs {
		g := &r.NVML.GPUs[i]
		if f := g.Fabric; f.Known && unfinished[f.Value.State] != "" && !mayHaveMIG(g) {
			return true
		} else if f.Known && f.Value.State == nvml.FabricCompleted {
			completed++
		}
	}
	if _, starting := r.Env.SinceBoot(); !starting || r.Env.Host.InContainer() {
		return false
	}
	var services []string
	if completed < len(r.NVML.GPUs) && r.hasSwitches() {
		services = append(services, "nv-fabricmanager")
	}
	if want, _ := r.parseChannels(); want > 0 {
		services = append(services, "nvidia-imex")
	}
	if services == nil {
		return false
	}
	r.Env.At("read /proc")
	procs, err := probe.ProcessesOf(r.Env.Host, r.mayServe)
	return err == nil && slices.ContainsFunc(services, func(name string) bool {
		runs, unread := r.serviceRuns(procs, name)
		return !runs && unread == nil
	})
}

// ofStart reports whether a finding is about something that starts after a boot.
func ofStart(f checks.Finding) bool {
	switch f.Code {
	case "gpu.fabric.manager", "gpu.fabric.imex":
		return true
	case "gpu.fabric.state":
		return f.Got == unfinished[nvml.FabricNotStarted] || f.Got == unfinished[nvml.FabricInProgress]
	}
	return false
}

// meshed reports whether the NVLinks are connected to other GPUs and not to a switch: such a node,
// a GB200 NVL4, is not part of a rack's domain.
func meshed(g *nvml.GPU) bool {
	far := g.NVLink.Far.Value
	return slices.Contains(far, "gpu") && !slices.Contains(far, "switch")
}

// countRuns returns the number of consecutive runs of this boot with a GPU state that is not final.
func (r *fabricRun) countRuns(g *nvml.GPU, state string) int {
	uuid := g.UUID.Value
	next := r.past.next.GPUs[uuid]
	if next.InARow == nil {
		next = fabricPast{Boot: r.boot, InARow: map[string]int{}}
	}
	n := 1
	then, compare := r.past.of(g)
	switch {
	case then.Boot != r.boot || r.boot == "":
	case compare:
		n += max(then.InARow[state], 0)
	case r.past.recent: // too soon after the last run to count
		n = max(then.InARow[state], 1)
	}
	next.InARow[state] = n
	r.past.next.GPUs[uuid] = next
	return n
}

func (r *fabricRun) chooseSeverity(runs int) checks.Severity {
	if runs >= inARow {
		return checks.Fail
	}
	return checks.Warn
}

func formatRuns(n int) string {
	if n < inARow {
		return ""
	}
	return fmt.Sprintf(", in %d consecutive runs", n)
}

// judgeDomain judges the cluster UUID and the clique of a GPU.
func (r *fabricRun) judgeDomain(g *nvml.GPU, f nvml.Fabric, domain bool) {
	const uuid = "cluster UUID of the NVLink domain"
	most := r.cluster[g.Name.Value]
	switch clique := fmt.Sprint(f.Clique); {
	case f.Cluster == "" && most != "":
		r.reportFault(g, "gpu.fabric.domain", checks.Fail, most, "0", uuid+" differs from that of the others")
	case f.Cluster == "" && domain:
		r.reportFault(g, "gpu.fabric.domain", checks.Fail, "not 0", "0", uuid)
	case f.Cluster == "":
	case most != "" && f.Cluster != most:
		r.reportFault(g, "gpu.fabric.domain", checks.Fail, most, f.Cluster, uuid+" differs from that of the others")
	case r.clique[g.Name.Value] != "" && clique != r.clique[g.Name.Value]:
		r.reportFault(g, "gpu.fabric.domain", checks.Fail, r.clique[g.Name.Value], clique, "clique of the NVLink domain differs from that of the others")
	case f.Clique == 0 && domain:
		r.reportFault(g, "gpu.fabric.domain", checks.Warn, "not 0", "0", "clique of the NVLink domain")
	}
}

// addSwitchErrors adds the NVSwitch errors that the kernel has logged to the findings: a switch is
// more often the cause than a GPU.
func (r *fabricRun) addSwitchErrors() {
	if !r.failed {
		return
	}
	seen := xid.SwitchErrors(r.Env)
	if len(seen) == 0 {
		return
	}
	if more := len(seen) - 3; more > 0 {
		seen = append(seen[:3:3], fmt.Sprintf("%d more", more))
	}
	for i := range r.Findings {
		if f := &r.Findings[i]; f.Remedy == checks.CheckFabric {
			f.Message += "; the kernel has logged " + strings.Join(seen, ", ")
		}
	}
}

// mayServe reports whether a process, known by its name, may be a service of NVIDIA: it runs as root or in its
// own systemd unit. The name is not enough: any user can start a process with that name.
func (r *fabricRun) mayServe(p probe.Process) bool {
	named := strings.HasPrefix("nv-fabricmanager", p.Args) || p.Args == "nvidia-imex"
	return (p.UID < probe.FirstUser || named) &&
		(probe.RootsOwn(r.Env.Host, p.PID) || strings.HasPrefix(inventory.UnitOf(r.Env.Host, p.PID), "nvidia-"))
}

// serviceRuns reports whether a service of NVIDIA is among the processes of mayServe. If none of them has a
// readable command line, unread is one that may be the service.
func (r *fabricRun) serviceRuns(procs []probe.Process, name string) (runs bool, unread *probe.Process) {
	runs = slices.ContainsFunc(procs, func(p probe.Process) bool {
		if path.Base(p.Command()) != name && !p.MayRun(r.Env.Host, name) {
			return false
		}
		if p.Unread {
			unread = cmp.Or(unread, &p)
		}
		return !p.Unread
	})
	return runs, unread
}

// unseen returns the finding of a process that may be a service.
func (r *fabricRun) unseen(service string, p *probe.Process) checks.Finding {
	return checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown}.
		Describe(gpuFabricName, "cannot see whether %s runs: the command line of process %d (%s) of user %s cannot be read", service, p.PID, p.Args, checks.OwnerOrUID(r.Env, *p))
}

// The fabric's health, and the services on the node that set up the fabric.

// healthBit is a field of the health mask: nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*. In each field 0
// means not supported.
type healthBit struct {
	name         string
	shift, width int
	bad, good    int
	severity     checks.Severity // Warn: it can recover by itself
	passes       bool            // it fails if it does not recover in inARow runs
}

var healthBits = []healthBit{
	{"degraded bandwidth", 0, 2, 1, 2, checks.Fail, false},
	{"route recovery in progress", 2, 2, 1, 2, checks.Warn, true},
	{"route unhealthy", 4, 2, 1, 2, checks.Fail, false},
	{"access timeout recovery in progress", 6, 2, 1, 2, checks.Warn, true},
	{"no partition assigned", 12, 2, 2, 1, checks.Warn, false},
	{"connection to the rack's fabric manager lost", 14, 2, 2, 1, checks.Warn, false},
}

// The field of the mask with more than two values: 1 is a correct configuration.
const configShift, configMask = 8, 0xf

var wrongConfigs = [...]string{
	2: "system GUID", 3: "chassis serial number", 4: "no partition", 5: "too few NVLinks", 6: "incompatible GPU firmware", 7: "location", 8: "state of the GPU",
}

// healthSummaries are NVML_GPU_FABRIC_HEALTH_SUMMARY_*.
var healthSummaries = [...]string{2: "unhealthy", 3: "limited capacity"}

// judgeHealth judges the health mask, and its summary if no field of the mask gives the reason.
func (r *fabricRun) judgeHealth(g *nvml.GPU, f nvml.Fabric) {
	named, unknown := false, false
	for _, bit := range healthBits {
		switch v := int(f.Mask>>bit.shift) & (1<<bit.width - 1); v {
		case 0, bit.good:
		case bit.bad:
			named = true
			severity, runs := bit.severity, ""
			if bit.passes {
				n := r.countRuns(g, bit.name)
				severity, runs = r.chooseSeverity(n), formatRuns(n)
			}
			r.reportFault(g, "gpu.fabric.health", severity, "", "", "health of the fabric: %s%s", bit.name, runs)
		default:
			unknown = true
		}
	}
	switch config := int(f.Mask>>configShift) & configMask; {
	case config >= len(wrongConfigs):
		unknown = true
	case config > 1:
		named = true
		r.reportFault(g, "gpu.fabric.health", checks.Fail, "", "", "health of the fabric: incorrect configuration, %s", wrongConfigs[config])
	}
	switch {
	case f.Summary >= len(healthSummaries) || f.Summary < 0:
		unknown = true
	case f.Summary > 1 && !named:
		severity := checks.Fail
		if f.Summary == len(healthSummaries)-1 {
			severity = checks.Warn
		}
		r.reportFault(g, "gpu.fabric.health", severity, "", "", "health of the fabric: %s", healthSummaries[f.Summary])
	}
	if unknown { // a value of a newer driver, or garbage
		r.Report(g, checks.Finding{Code: "gpu.fabric.unknown", Severity: checks.Unknown}, "health of the fabric has an unknown value, %#x", f.Mask)
	}
}

// hasSwitches reports whether NVSwitches are on the PCI bus.
func (r *fabricRun) hasSwitches() bool {
	list, err := nvidia.NVSwitches(r.Env.Host)
	return err == nil && len(list) > 0
}

// expectsSwitches reports whether the platform has NVSwitches: those of Blackwell are not on the
// PCI bus.
func (r *fabricRun) expectsSwitches() bool {
	for i := range r.NVML.GPUs {
		if r.findPlatform(&r.NVML.GPUs[i]).HasNVSwitches(len(r.NVML.GPUs)) {
			return true
		}
	}
	return false
}

// inDomain reports whether a GPU is, or should be, in an NVLink domain of several nodes.
func (r *fabricRun) inDomain() bool {
	for i := range r.NVML.GPUs {
		if g := &r.NVML.GPUs[i]; r.findPlatform(g).NVLinkDomain > 0 && !meshed(g) || g.Fabric.Value.Cluster != "" {
			return true
		}
	}
	return r.failed
}

// judgeServices judges the fabric manager and IMEX.
func (r *fabricRun) judgeServices() (found []checks.Finding) {
	r.Env.At("read the NVSwitches of the PCI bus")
	switches, err := nvidia.NVSwitches(r.Env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	r.Env.At("read /dev/nvidia-caps-imex-channels")
	channels, err := nvidia.IMEXChannels(r.Env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	want, _ := r.parseChannels()
	expected := len(switches) == 0 && r.failed && r.expectsSwitches()
	if len(switches) == 0 && channels == 0 && want == 0 && !expected {
		return nil
	}
	r.Env.At("read /proc")
	procs, err := probe.ProcessesOf(r.Env.Host, func(p probe.Process) bool { return p.PID == 1 || r.mayServe(p) })
	if err != nil {
		return checks.Unreadable(err)
	}
	absent := func(name string) bool {
		if r.Env.Host.InContainer() {
			return false
		}
		runs, p := r.serviceRuns(procs, name)
		if !runs && p != nil {
			found = append(found, r.unseen(name, p))
		}
		return !runs && p == nil
	}
	if !r.Env.Host.InContainer() && !slices.ContainsFunc(procs, func(p probe.Process) bool { return p.PID == 1 }) { // hidepid hides other processes, too
		return []checks.Finding{checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown}.
			Describe(gpuFabricName, "cannot see whether nv-fabricmanager and nvidia-imex run: /proc hides processes")}
	}
	if expected && absent("nv-fabricmanager") {
		found = append(found, checks.Finding{Code: "gpu.fabric.manager", Severity: checks.Warn, Remedy: checks.CheckFabric, Want: "running", Got: "not running"}.
			Phrase(gpuFabricName, "this platform has NVSwitches, want nv-fabricmanager running, got none"))
	}
	if len(switches) > 0 && absent("nv-fabricmanager") {
		f := checks.Finding{Code: "gpu.fabric.manager", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "running", Got: "not running"}.
			Phrase(gpuFabricName, "NVSwitches on the PCI bus: %d, want nv-fabricmanager running, got none", len(switches))
		if !r.failed && r.joined > 0 && r.joined == len(r.NVML.GPUs) {
			f.Severity = checks.Warn // they have joined, so it probably runs where this check cannot see it
		}
		found = append(found, f)
	}
	remedy := checks.CheckFabric
	if want > 0 && !r.inDomain() {
		remedy = checks.FixConfig
	}
	if channels < want {
		found = append(found, checks.Finding{Code: "gpu.fabric.channels", Severity: checks.Fail, Remedy: remedy, Want: fmt.Sprint(want), Got: fmt.Sprint(channels)}.
			Phrase(gpuFabricName, "IMEX channels, want at least %d, got %d", want, channels))
	}
	if (want > 0 || channels > 0) && absent("nvidia-imex") {
		f := checks.Finding{Code: "gpu.fabric.imex", Severity: checks.Fail, Remedy: remedy, Want: "running", Got: "not running"}.
			Phrase(gpuFabricName, "IMEX channels of the node: %d, want nvidia-imex running, got none", channels)
		if want == 0 {
			f.Severity = checks.Warn
		}
		found = append(found, f)
	}
	return found
}
