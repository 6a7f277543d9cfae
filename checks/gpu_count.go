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
// same GPUs, as many as WANT; without WANT as many as this node has ever shown,
// and as many as its platform comes with (see docs/profiles.md).
// It names those that are missing by their PCI addresses. A GPU that was given
// to a virtual machine, or that the driver was told to leave alone, does not
// count.
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
		Do: map[string]string{
			"gpu.count":      "See lspci -d 10de: and dmesg. If the number in nhc.conf is wrong correct it; else power the node off and on, then reseat the GPU.",
			"gpu.count.nvml": "nvidia-smi does not show it: see dmesg for Xid 79 or \"fallen off the bus\". Reboot; if it comes back power off, reseat or replace the GPU.",
			"gpu.count.gone": "The PCI bus has lost it: power the node off and on; if it stays away reseat or replace the GPU. If it was taken out for good remove gpu-count.json in /var/lib/nhc-gpu.",
			"gpu.count.node": "Jobs cannot open it: nvidia-modprobe -c 0 -u makes the device nodes; see what has removed it (udev rules, a container).",
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
	n, err := env.Host.NVML(0, env.Doing)
	expected := map[string]bool{}
	for _, a := range gpusOnBus(views) {
		expected[a] = true
	}
	if err != nil {
		return c.withoutNVML(len(expected), err)
	}
	t := &countTally{want: c.Want, views: views, nvml: map[string]*probe.GPU{}}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		t.nvml[g.PCI] = g
		expected[g.PCI] = true
	}
	delete(expected, "") // a lost GPU whose address nobody knows
	past := recallGPUs(env)
	t.judge(expected, past)
	if c.Want == 0 && len(t.findings) == 0 {
		t.findings = env.oddNumber()
	}
	return append(t.findings, c.remember(env, past, t)...)
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

// oddNumber finds GPUs of which a node of the platform never has so many: one is
// missing that this node has not shown before.
func (e *Env) oddNumber() (findings []Finding) {
	for _, g := range e.platformGroups() {
		n := len(g.Addresses)
		if g.Platform == nil || len(g.Platform.GPUs) == 0 || slices.Contains(g.Platform.GPUs, n) {
			continue
		}
		more := slices.IndexFunc(g.Platform.GPUs, func(size int) bool { return size > n })
		if more < 0 {
			continue
		}
		want := g.Platform.GPUs[more]
		findings = append(findings, Finding{Code: "gpu.count", Severity: Fail, Want: plural(want, "GPU"), Got: fmt.Sprint(n),
			Message: fmt.Sprintf("%s:  want %s, got %d: no %s has %d", gpuCountName, plural(want, "GPU"), n, g.Platform.Name, n)})
	}
	return findings
}

func (c *gpuCount) withoutNVML(onBus int, err error) []Finding {
	want := max(c.Want, onBus)
	if want == 0 && (errors.Is(err, probe.ErrNoLibrary) || errors.Is(err, probe.ErrDriverNotThere)) {
		return []Finding{{Code: "gpu.none", Severity: Skip, Message: gpuCountName + ":  no NVIDIA GPU on this node"}}
	}
	if errors.Is(err, probe.ErrOtherNode) {
		return []Finding{{Code: "gpu.nvml", Severity: Unknown, Message: fmt.Sprintf("%s:  cannot ask NVML: %v", gpuCountName, err)}}
	}
	f := Finding{Code: "gpu.nvml", Severity: Fail, Want: plural(want, "GPU"), Got: "0", Remedy: RebootNode}
	f.Message = fmt.Sprintf("%s:  want %s, got 0: %d on the PCI bus, and NVML cannot be asked: %v", gpuCountName, f.Want, onBus, err)
	return []Finding{f}
}

// countTally compares the views.
type countTally struct {
	want     int
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
	if t.want == 0 || len(t.good) < t.want {
		for _, a := range past {
			if !expected[a] {
				bad[a] = Finding{Code: "gpu.count.gone", Remedy: ReseatOrRMA, Message: "was there before, is no longer on the PCI bus"}
			}
		}
	}
	want := t.want
	if want == 0 {
		want = len(t.good) + len(bad)
	}
	head := fmt.Sprintf("%s:  want %s, got %d", gpuCountName, plural(want, "GPU"), len(t.good))
	for _, a := range slices.Sorted(maps.Keys(bad)) {
		f := bad[a]
		f.Severity, f.Want, f.Got = Fail, plural(want, "GPU"), fmt.Sprint(len(t.good))
		f.Device = Device{Kind: "gpu", PCI: a}
		if g := t.nvml[a]; g != nil {
			f.Device = gpuDevice(g)
		}
		f.Message = head + ": " + f.Device.String() + " " + f.Message
		t.findings = append(t.findings, f)
	}
	if len(bad) == 0 && len(t.good) != want {
		t.findings = append(t.findings, Finding{Code: "gpu.count", Severity: Fail, Want: plural(want, "GPU"), Got: fmt.Sprint(len(t.good)), Message: head})
	}
	if len(t.findings) == 0 && len(t.good) == 0 {
		t.findings = []Finding{{Code: "gpu.none", Severity: Skip, Message: gpuCountName + ":  no NVIDIA GPU on this node"}}
	}
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

// remember keeps the GPUs that were seen. Where the configuration says how many
// there are, the past does not count any longer once that many are there.
func (c *gpuCount) remember(env *Env, past []string, t *countTally) []Finding {
	now := slices.Clone(t.good)
	if c.Want == 0 || len(t.good) != c.Want {
		now = slices.Compact(slices.Sorted(slices.Values(append(now, past...))))
	}
	if slices.Equal(now, past) {
		return nil
	}
	return env.keep(gpuCountName, "gpu-count", everSeen{env.Host.ProductUUID(), now})
}
