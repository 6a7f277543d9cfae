package gpu

import (
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

// gpuFabric checks that every GPU has joined the fabric that it is part of: that of
// the NVSwitches of its board (HGX, DGX), or that of the NVLink domain of its rack
// (GB200, GB300). NVLinks may all be up, and jobs may be ten times slower, where
// it has not. The fabric's state is Completed, its status Success; a state that is
// on its way fails in the third run in a row of one boot. Where the node's platform
// is part of a domain and its NVLinks lead to switches, or where another GPU of the node has one, the cluster's UUID
// is not zero; it and the clique are those of the other GPUs. A clique of zero is
// warned of there. On an HGX board both are zero on healthy GPUs.
//
// What the driver says of the fabric's health fails by its name: degraded
// bandwidth, an unhealthy route, each incorrect configuration; what is
// being recovered, and a lost connection to the rack's fabric manager, is warned of.
// What it does not tell is no fault.
//
// The fabric manager of the node, nv-fabricmanager, has to run where NVSwitches are
// on the PCI bus, which is A100 to H200. It is warned of, and no more, where all
// GPUs say themselves that they have joined, and where the platform alone says that
// there are NVSwitches and a GPU has not joined. GB200 and GB300 have none.
// nvidia-imex has to run with -i: yes, or the number of IMEX
// channels that the node has at least. Without it a node that has channels, and no
// nvidia-imex, is warned of: some sites start it with a job. Whether an idle domain
// is ready is not judged. A container does not see the processes of the node, so neither
// service is expected there.
//
//	gpu* || check_gpu_fabric
//	gb* || check_gpu_fabric -i yes
type gpuFabric struct {
	IMEX string `opt:"i" toml:"imex"` // yes, or how many IMEX channels there are at least
}

const gpuFabricName = "check_gpu_fabric"

func init() {
	const (
		manager = "systemctl status nvidia-fabricmanager, /var/log/fabricmanager.log; its version must be the driver's. dmesg has SXid errors of NVSwitches: check_gpu_xid. Then reset all GPUs, or reboot."
		rack    = "On an NVL72 rack see the rack's fabric manager (nmx-controller) and its switch trays, too."
	)
	checks.Register(checks.Info{
		Name:    gpuFabricName,
		Usage:   "[-i CHANNELS]",
		Summary: "every GPU has joined its NVSwitches or NVLink domain",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuFabric{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.fabric.state":    "CUDA does not start, or not over NVLink: " + manager + " " + rack,
				"gpu.fabric.status":   "The GPU is not in the fabric, whatever its links say: " + manager + " " + rack,
				"gpu.fabric.domain":   "The GPU has no place in the rack's NVLink domain, or another than the rest of the node: see nvidia-smi -q, Fabric, and the partitions of the rack's fabric manager.",
				"gpu.fabric.health":   "See nvidia-smi -q, Fabric, Health; dmesg for Xid and SXid errors; reset the GPU or reboot. " + rack,
				"gpu.fabric.unknown":  "A newer driver's word: see nvidia-smi -q, Fabric.",
				"gpu.fabric.manager":  "systemctl start nvidia-fabricmanager; " + manager,
				"gpu.fabric.imex":     "systemctl start nvidia-imex; nvidia-imex-ctl -N, /etc/nvidia-imex/nodes_config.cfg. If it is started with each job take -i out of the line.",
				"gpu.fabric.channels": "modprobe nvidia with NVreg_CreateImexChannel0=1 makes the first; Slurm's switch/nvidia_imex or nvidia-modprobe -i make more.",
				"gpu.fabric.none":     "Nothing: these GPUs are part of no fabric.",
			}
		},
	})
}

// Bind takes the words, and refuses what Run could not use.
func (c *gpuFabric) Bind(words []string) error {
	if err := checks.BindTags(c, words); err != nil {
		return err
	}
	return c.Validate()
}

func (c *gpuFabric) Validate() error {
	if _, ok := c.channels(); !ok {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.IMEX, Want: "yes, or a number of channels"}
	}
	return nil
}

// channels are how many are wanted; 0: nobody says.
func (c *gpuFabric) channels() (n int, ok bool) {
	switch c.IMEX {
	case "":
		return 0, true
	case "yes", "true":
		return 1, true
	}
	n, err := strconv.Atoi(c.IMEX)
	return n, err == nil && n > 0
}

// fabricPast is what is kept of a GPU.
type fabricPast struct {
	Boot   string         `json:"boot"`
	InARow map[string]int `json:"in_a_row"` // runs in which something was on its way
}

// fabricRun is one run of the check.
type fabricRun struct {
	*gpuFabric
	*GPUs
	past    *memory[fabricPast]
	boot    string
	cluster map[string]string // the domain of most GPUs of the node, by model
	clique  map[string]string
	joined  int  // GPUs that are part of the fabric, by their own word
	failed  bool // something is wrong with the fabric of a GPU
}

func (c *gpuFabric) Run(_ context.Context, env *checks.Env) []checks.Finding {
	if err := c.Validate(); err != nil { // from TOML, which Bind does not see
		return []checks.Finding{checks.Finding{Code: "config.value", Severity: checks.Unknown, Remedy: checks.FixConfig}.Describe(gpuFabricName, "%v", err)}
	}
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
	r.cluster, r.clique = r.mostOf(func(f nvml.Fabric) string { return f.Cluster }), r.mostOf(cliqueOf)
	s.Each(func(_ *GPUs, g *nvml.GPU) { r.judge(g) })
	reportLacking(s, "state of the fabric", func(g *nvml.GPU) nvml.Reading[nvml.Fabric] { return g.Fabric })
	r.tellSwitches()
	node := r.services()
	if nothing := len(node)+len(s.Findings) == 0 && !r.switches(); nothing && !s.Judged {
		return s.Done()
	} else if nothing && r.joined == 0 {
		return []checks.Finding{checks.Finding{Code: "gpu.fabric.none", Severity: checks.Skip}.Describe(gpuFabricName, "these GPUs are part of no NVLink fabric")}
	}
	return append(append(s.Findings, node...), r.past.store(env)...)
}

func cliqueOf(f nvml.Fabric) string {
	if f.Cluster == "" {
		return ""
	}
	return fmt.Sprint(f.Clique)
}

// mostOf is what most of a model's GPUs say that are in the fabric, "" if as many
// say something else; nothing of a model of which none is.
func (r *fabricRun) mostOf(of func(nvml.Fabric) string) map[string]string {
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

// fault reports something about the fabric of a GPU.
func (r *fabricRun) fault(g *nvml.GPU, code string, severity checks.Severity, want, got, format string, args ...any) {
	r.failed = true
	r.Report(g, checks.Finding{Code: code, Severity: severity, Remedy: checks.CheckFabric, Want: want, Got: got}, format, args...)
}

// judge looks at one GPU.
func (r *fabricRun) judge(g *nvml.GPU) {
	f, known := Value(r.GPUs, g.Fabric)
	if !known {
		return
	}
	domain := r.platform(g).NVLinkDomain > 0 && !meshed(g)
	switch f.State {
	case nvml.FabricNotSupported:
		switch _, others := r.cluster[g.Name.Value]; {
		case others:
			r.fault(g, "gpu.fabric.state", checks.Fail, "completed", "not supported", "state of the fabric is not that of the others")
		case domain && len(r.NVML.GPUs) > 1: // a GPU alone is told of no fabric
			r.fault(g, "gpu.fabric.state", checks.Warn, "completed", "not supported", "state of the fabric")
		}
		return
	case nvml.FabricNotStarted, nvml.FabricInProgress:
		r.joined++
		state := [...]string{"", "not started", "in progress"}[f.State]
		n := r.again(g, "state")
		r.fault(g, "gpu.fabric.state", r.patience(n), "completed", state, "state of the fabric%s", inRuns(n))
		return
	case nvml.FabricCompleted:
		r.joined++
	default:
		r.Report(g, checks.Finding{Code: "gpu.fabric.unknown", Severity: checks.Unknown, Want: "completed", Got: fmt.Sprintf("state %d, which is not known here", f.State)}, "state of the fabric")
		return
	}
	switch {
	case f.Status == nvml.FabricNoResources:
		r.fault(g, "gpu.fabric.status", checks.Fail, "success", "insufficient resources", "state of the fabric is completed, but its status")
	case f.Status != 0:
		r.fault(g, "gpu.fabric.status", checks.Fail, "success", fmt.Sprintf("NVML error %d", f.Status), "state of the fabric is completed, but its status")
	default:
		r.judgeDomain(g, f, domain)
	}
	r.judgeHealth(g, f)
}

// meshed reports whether the NVLinks lead to other GPUs and to no switch: such a node, a
// GB200 NVL4, is no part of a rack's domain.
func meshed(g *nvml.GPU) bool {
	far := g.NVLink.Far.Value
	return slices.Contains(far, "gpu") && !slices.Contains(far, "switch")
}

// again counts the runs of this boot, one after the other, in which something of a
// GPU was on its way.
func (r *fabricRun) again(g *nvml.GPU, what string) int {
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
		n += max(then.InARow[what], 0)
	case r.past.recent: // what the run just before it has said
		n = max(then.InARow[what], 1)
	}
	next.InARow[what] = n
	r.past.next.GPUs[uuid] = next
	return n
}

func (r *fabricRun) patience(runs int) checks.Severity {
	if runs >= inARow {
		return checks.Fail
	}
	return checks.Warn
}

func inRuns(n int) string {
	if n < inARow {
		return ""
	}
	return fmt.Sprintf(", in %d runs in a row", n)
}

// judgeDomain looks at the NVLink domain of a GPU, and where it stands in it.
func (r *fabricRun) judgeDomain(g *nvml.GPU, f nvml.Fabric, domain bool) {
	const what = "cluster UUID of the NVLink domain"
	most := r.cluster[g.Name.Value]
	switch clique := fmt.Sprint(f.Clique); {
	case f.Cluster == "" && most != "":
		r.fault(g, "gpu.fabric.domain", checks.Fail, most, "0", what+" is not that of the others")
	case f.Cluster == "" && domain:
		r.fault(g, "gpu.fabric.domain", checks.Fail, "not 0", "0", what)
	case f.Cluster == "":
	case most != "" && f.Cluster != most:
		r.fault(g, "gpu.fabric.domain", checks.Fail, most, f.Cluster, what+" is not that of the others")
	case r.clique[g.Name.Value] != "" && clique != r.clique[g.Name.Value]:
		r.fault(g, "gpu.fabric.domain", checks.Fail, r.clique[g.Name.Value], clique, "clique of the NVLink domain is not that of the others")
	case f.Clique == 0 && domain:
		r.fault(g, "gpu.fabric.domain", checks.Warn, "not 0", "0", "clique of the NVLink domain")
	}
}

// tellSwitches adds to what is wrong the errors of NVSwitches that the kernel has
// logged: the cause is more often there than in a GPU.
func (r *fabricRun) tellSwitches() {
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

// runs reports whether a service of NVIDIA runs on the node, as root or in a unit of its
// own. The name alone is no proof: any user can start a process with that name.
func (r *fabricRun) runs(procs []probe.Process, name string) bool {
	return slices.ContainsFunc(procs, func(p probe.Process) bool {
		if path.Base(p.Command()) != name {
			return false
		}
		return probe.RootsOwn(r.Env.Host, p.PID) || strings.HasPrefix(inventory.UnitOf(r.Env.Host, p.PID), "nvidia-")
	})
}

// What check_gpu_fabric makes of the fabric's health, and of the services of the
// node that make a fabric.

// healthBit is a part of the health mask: nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*. 0
// is not supported in each.
type healthBit struct {
	name         string
	shift, width int
	bad, good    int
	severity     checks.Severity // Warn: it may pass by itself
	passes       bool            // it fails if it does not
}

var healthBits = []healthBit{
	{"degraded bandwidth", 0, 2, 1, 2, checks.Fail, false},
	{"route recovery in progress", 2, 2, 1, 2, checks.Warn, true},
	{"route unhealthy", 4, 2, 1, 2, checks.Fail, false},
	{"access timeout recovery in progress", 6, 2, 1, 2, checks.Warn, true},
	{"no partition assigned", 12, 2, 2, 1, checks.Warn, false},
	{"connection to the rack's fabric manager lost", 14, 2, 2, 1, checks.Warn, false},
}

// The part of the mask that has more than two values: 1 is a correct configuration.
const configShift, configMask = 8, 0xf

var wrongConfigs = [...]string{
	2: "system GUID", 3: "chassis serial number", 4: "no partition", 5: "too few NVLinks", 6: "GPU firmware does not fit", 7: "location", 8: "state of the GPU",
}

// healthSummaries are NVML_GPU_FABRIC_HEALTH_SUMMARY_*.
var healthSummaries = [...]string{2: "unhealthy", 3: "limited capacity"}

// judgeHealth looks at the health mask, and at its summary where no part of the
// mask says why.
func (r *fabricRun) judgeHealth(g *nvml.GPU, f nvml.Fabric) {
	named, strange := false, false
	for _, bit := range healthBits {
		switch v := int(f.Mask>>bit.shift) & (1<<bit.width - 1); v {
		case 0, bit.good:
		case bit.bad:
			named = true
			severity, often := bit.severity, ""
			if bit.passes {
				n := r.again(g, bit.name)
				severity, often = r.patience(n), inRuns(n)
			}
			r.fault(g, "gpu.fabric.health", severity, "", "", "health of the fabric: %s%s", bit.name, often)
		default:
			strange = true
		}
	}
	switch config := int(f.Mask>>configShift) & configMask; {
	case config >= len(wrongConfigs):
		strange = true
	case config > 1:
		named = true
		r.fault(g, "gpu.fabric.health", checks.Fail, "", "", "health of the fabric: incorrect configuration, %s", wrongConfigs[config])
	}
	switch {
	case f.Summary >= len(healthSummaries) || f.Summary < 0:
		strange = true
	case f.Summary > 1 && !named:
		severity := checks.Fail
		if f.Summary == len(healthSummaries)-1 {
			severity = checks.Warn
		}
		r.fault(g, "gpu.fabric.health", severity, "", "", "health of the fabric: %s", healthSummaries[f.Summary])
	}
	if strange { // a part of a newer driver, or garbage
		r.Report(g, checks.Finding{Code: "gpu.fabric.unknown", Severity: checks.Unknown}, "health of the fabric is %#x, which is not known here", f.Mask)
	}
}

// switches says whether the node runs NVSwitches of its own.
func (r *fabricRun) switches() bool {
	list, err := nvidia.NVSwitches(r.Env.Host)
	return err == nil && len(list) > 0
}

// expected says whether the platform has NVSwitches, though those of Blackwell are
// not on the PCI bus.
func (r *fabricRun) expected() bool {
	for i := range r.NVML.GPUs {
		if r.platform(&r.NVML.GPUs[i]).HasNVSwitches(len(r.NVML.GPUs)) {
			return true
		}
	}
	return false
}

// services are findings about the fabric manager and IMEX of the node.
func (r *fabricRun) services() (found []checks.Finding) {
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
	want, _ := r.channels()
	expected := len(switches) == 0 && r.failed && r.expected()
	if len(switches) == 0 && channels == 0 && want == 0 && !expected {
		return nil
	}
	r.Env.At("read /proc")
	procs, err := probe.Processes(r.Env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	absent := func(name string) bool { return !r.Env.Host.InContainer() && !r.runs(procs, name) }
	if !r.Env.Host.InContainer() && !slices.ContainsFunc(procs, func(p probe.Process) bool { return p.PID == 1 }) { // hidepid: others are not seen either
		return []checks.Finding{checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown}.
			Describe(gpuFabricName, "/proc does not show process 1, nor whether nv-fabricmanager and nvidia-imex run")}
	}
	if expected && absent("nv-fabricmanager") {
		found = append(found, checks.Finding{Code: "gpu.fabric.manager", Severity: checks.Warn, Remedy: checks.CheckFabric, Want: "running", Got: "not running"}.
			Phrase(gpuFabricName, "a node of this platform has NVSwitches, want nv-fabricmanager running, got none"))
	}
	if len(switches) > 0 && absent("nv-fabricmanager") {
		f := checks.Finding{Code: "gpu.fabric.manager", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "running", Got: "not running"}.
			Phrase(gpuFabricName, "NVSwitches on the PCI bus: %d, want nv-fabricmanager running, got none", len(switches))
		if !r.failed && r.joined > 0 && r.joined == len(r.NVML.GPUs) {
			f.Severity = checks.Warn // they have joined, and it may run where it is not seen
		}
		found = append(found, f)
	}
	if channels < want {
		found = append(found, checks.Finding{Code: "gpu.fabric.channels", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: fmt.Sprint(want), Got: fmt.Sprint(channels)}.
			Phrase(gpuFabricName, "IMEX channels, want at least %d, got %d", want, channels))
	}
	if (want > 0 || channels > 0) && absent("nvidia-imex") {
		f := checks.Finding{Code: "gpu.fabric.imex", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "running", Got: "not running"}.
			Phrase(gpuFabricName, "IMEX channels of the node: %d, want nvidia-imex running, got none", channels)
		if want == 0 {
			f.Severity = checks.Warn
		}
		found = append(found, f)
	}
	return found
}
