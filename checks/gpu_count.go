package checks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// gpuCount checks that the PCI bus, the driver's device nodes and NVML show the
// same GPUs, as many as WANT; without WANT as many as its platform comes with (see
// docs/profiles.md), as Slurm's Gres of this node says (in slurm.conf as it lies on
// the node; MIG instances do not count), or else as this node has ever shown.
// It names those that are missing by their PCI addresses. A GPU that was given
// to a virtual machine, or that the driver was told to leave alone, does not
// count. One that is missing while WANT or Slurm's Gres is there all the same is
// warned of: a site that knows of a dead GPU works with the others.
//
//	gpu* || check_gpu_count 8
type gpuCount struct {
	Want int    `arg:"1" toml:"want"` // how many GPUs the node has; 0: as many as ever
	Type string `arg:"2" toml:"type"` // AzureHPC's second word: only nvidia is known
}

func init() {
	Register(Info{
		Name:    "check_gpu_count",
		Usage:   "[WANT [nvidia]]",
		Summary: "PCI bus, device nodes and NVML show all GPUs",
		Lane:    NVML,
		New:     func() Check { return &gpuCount{} },
		Slurm:   func(c Check) bool { return c.(*gpuCount).Want == 0 },
		Do: map[string]string{
			"gpu.count":       "See lspci -d 10de: and dmesg. If that many are meant say so in nhc.conf, check_gpu_count N, and in Slurm's Gres; else power the node off and on, then reseat the GPU.",
			"gpu.count.slurm": "Nothing if it was meant so. Else correct Gres of this node in slurm.conf, and gres.conf, then scontrol reconfigure.",
			"gpu.count.nvml":  "nvidia-smi does not show it: see dmesg for Xid 79 or \"fallen off the bus\". Reboot; if it comes back power off, reseat or replace the GPU.",
			"gpu.count.gone":  "The PCI bus has lost it: power the node off and on; if it stays away reseat or replace the GPU. If it was taken out for good remove gpu-count.json in /var/lib/nhc-gpu.",
			"gpu.count.node":  "Jobs cannot open it: nvidia-modprobe -c 0 -u makes the device nodes; see what has removed it (udev rules, a container).",
		},
	})
}

// everSeen is what gpuCount keeps: the GPUs that this machine has had.
type everSeen struct {
	Machine string   `json:"machine"` // its DMI UUID; of another machine on the same disk nothing is known
	PCI     []string `json:"pci"`
}

const gpuCountName = "check_gpu_count"

func (c *gpuCount) Run(_ context.Context, env *Env) []Finding {
	if c.Type != "" && c.Type != "nvidia" {
		return []Finding{{Code: "config.value", Severity: Unknown, Want: "nvidia", Got: c.Type, Remedy: FixConfig,
			Message: fmt.Sprintf("%s:  cannot count GPUs of type %q, want nvidia", gpuCountName, c.Type)}}
	}
	env.At("read the PCI bus")
	views, err := env.Host.GPUViews()
	if err != nil {
		return unreadable(err)
	}
	groups := probe.Group(0)
	if c.Want == 0 && env.Slurm != nil {
		groups = probe.GroupModes // whether Slurm may count MIG instances
	}
	n, err := env.Host.NVML(groups, env.Doing)
	expected := map[string]bool{}
	for _, a := range gpusOnBus(views) {
		expected[a] = true
	}
	if err != nil {
		return c.withoutNVML(max(len(expected), c.gres(env, views, nil)), len(expected), err)
	}
	t := &countTally{want: c.Want, gres: c.gres(env, views, n), views: views, nvml: map[string]*probe.GPU{}}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		t.nvml[g.PCI] = g
		expected[g.PCI] = true
	}
	delete(expected, "") // a lost GPU whose address nobody knows
	past := recallGPUs(env)
	t.alike = env.alike(n)
	t.judge(expected, past)
	if c.Want == 0 && Worst(t.findings) < Unknown {
		t.judgeNumber(env)
	}
	if len(t.findings) == 0 && len(t.good) == 0 {
		t.findings = []Finding{{Code: "gpu.none", Severity: Skip, Message: gpuCountName + ":  no NVIDIA GPU on this node"}}
	}
	return env.nameBoards(n, append(t.findings, c.remember(env, past, t)...))
}

// gpusOnBus are the addresses that the node's own driver should have: those of
// the bus, or in a container without one those of the driver.
func gpusOnBus(v probe.GPUViews) (list []string) {
	excluded := map[string]bool{}
	for _, d := range v.Driver {
		excluded[d.Address] = d.Excluded
		if len(v.PCI) == 0 && !d.Excluded {
			list = append(list, d.Address)
		}
	}
	for _, p := range v.PCI {
		if !p.Passed() && !excluded[p.Address] {
			list = append(list, p.Address)
		}
	}
	return list
}

func (c *gpuCount) withoutNVML(want, onBus int, err error) []Finding {
	want = max(c.Want, want)
	if want == 0 && (errors.Is(err, probe.ErrNoLibrary) || errors.Is(err, probe.ErrDriverNotThere)) {
		return []Finding{{Code: "gpu.none", Severity: Skip, Message: gpuCountName + ":  no NVIDIA GPU on this node"}}
	}
	if errors.Is(err, probe.ErrOtherNode) || errors.Is(err, probe.ErrNotNow) {
		return []Finding{{Code: "gpu.nvml", Severity: Unknown, Message: fmt.Sprintf("%s:  cannot ask NVML: %v", gpuCountName, err)}}
	}
	f := Finding{Code: "gpu.nvml", Severity: Fail, Want: plural(want, "GPU"), Got: "0", Remedy: RebootNode}
	f.Message = fmt.Sprintf("%s:  want %s, got 0: %d on the PCI bus, and NVML cannot be asked: %v", gpuCountName, f.Want, onBus, err)
	return []Finding{f}
}

// countTally compares the views.
type countTally struct {
	want     int  // 0: nhc.conf does not say
	gres     int  // how many Slurm has; 0: nobody knows
	alike    bool // all GPUs are of one kind
	views    probe.GPUViews
	nvml     map[string]*probe.GPU
	good     []string // addresses that every view has
	findings []Finding
}

// judge looks at every address that any view has, and at those that are only
// remembered.
func (t *countTally) judge(expected map[string]bool, past []string) {
	bad := map[string]Finding{}
	for a := range expected {
		if f, ok := t.missing(a); ok {
			bad[a] = f
			continue
		}
		t.good = append(t.good, a)
	}
	slices.Sort(t.good)
	if t.want == 0 || !t.enough() {
		for _, a := range past {
			if !expected[a] {
				bad[a] = Finding{Code: "gpu.count.gone", Remedy: ReseatOrRMA, Message: "was there before, is no longer on the PCI bus"}
			}
		}
	}
	want, severity := t.want, Fail
	if t.enough() {
		severity = Warn
	}
	if want == 0 {
		want = max(len(t.good)+len(bad), t.gres)
	}
	head := fmt.Sprintf("%s:  want %s, got %d", gpuCountName, plural(want, "GPU"), len(t.good))
	for _, a := range slices.Sorted(maps.Keys(bad)) {
		f := bad[a]
		f.Severity, f.Want, f.Got = severity, plural(want, "GPU"), fmt.Sprint(len(t.good))
		f.Device = Device{Kind: "gpu", PCI: a}
		if g := t.nvml[a]; g != nil {
			f.Device = gpuDevice(g)
		}
		if g := t.nvml[a]; g != nil && errors.Is(g.Err, probe.ErrNotNow) {
			f.Code, f.Severity, f.Remedy = "gpu.error", Unknown, NoRemedy
		}
		f.Message = head + ": " + f.Device.String() + " " + f.Message
		t.findings = append(t.findings, f)
	}
	if len(bad) == 0 && t.want > 0 && len(t.good) != want {
		t.findings = append(t.findings, Finding{Code: "gpu.count", Severity: Fail, Want: plural(want, "GPU"), Got: fmt.Sprint(len(t.good)), Message: head})
	}
}

// enough says whether as many GPUs are in order as the configuration of the site
// counts: that another is not is known then.
func (t *countTally) enough() bool {
	if t.want > 0 {
		return len(t.good) >= t.want
	}
	return t.gres > 0 && t.alike && len(t.good) >= t.gres
}

// missing says from which view a GPU is missing, the most telling one first.
func (t *countTally) missing(a string) (f Finding, bad bool) {
	onBus := len(t.views.PCI) == 0 || slices.ContainsFunc(t.views.PCI, func(p probe.PCIGPU) bool { return p.Address == a })
	driver := "not in the driver"
	if slices.ContainsFunc(t.views.Driver, func(d probe.DriverGPU) bool { return d.Address == a }) {
		driver = "in the driver"
	}
	g := t.nvml[a]
	switch {
	case g == nil:
		return Finding{Code: "gpu.count.nvml", Remedy: RebootNode, Message: "is on the PCI bus, " + driver + ", not in NVML"}, true
	case g.Err != nil:
		return Finding{Code: "gpu.count.nvml", Remedy: RebootNode, Message: "is on the PCI bus, " + driver + ", but NVML says " + g.Err.Error()}, true
	case !onBus:
		return Finding{Code: "gpu.count.gone", Remedy: ReseatOrRMA, Message: "is in NVML, but no longer on the PCI bus"}, true
	case g.Minor.Known && !slices.Contains(t.views.Nodes, g.Minor.Value):
		return Finding{Code: "gpu.count.node", Message: fmt.Sprintf("has no device node /dev/nvidia%d", g.Minor.Value)}, true
	}
	return f, false
}

// recallGPUs are the GPUs that earlier runs have seen on this machine.
func recallGPUs(env *Env) []string {
	var past everSeen
	err := env.Host.Recall("gpu-count", &past)
	if err != nil || past.Machine != env.Host.ProductUUID() {
		return nil
	}
	return past.PCI
}

// remember keeps the GPUs that were seen. Where the configuration, nhc's or
// Slurm's, says how many there are, the past does not count any longer once that
// many are there.
func (c *gpuCount) remember(env *Env, past []string, t *countTally) []Finding {
	now := slices.Clone(t.good)
	if !t.enough() || c.Want > 0 && len(t.good) != c.Want {
		now = slices.Compact(slices.Sorted(slices.Values(append(now, past...))))
	}
	if slices.Equal(now, past) {
		return nil
	}
	return env.keep(gpuCountName, "gpu-count", everSeen{env.Host.ProductUUID(), now})
}
