package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// gpuCount checks that the PCI bus, the driver's device nodes and NVML show the
// same GPUs, as many as WANT; without WANT as many as its platform comes with (see
// docs/thresholds.md; a guest can have any number of vGPUs), as Slurm's Gres of this node says (in slurm.conf as it lies on
// the node; MIG instances do not count), or else as this node has ever shown.
// It names those that are missing by their PCI addresses. GPUs that have less memory
// than the others of their model, the UUID of another, or alone another model among
// eight are reported, too. A GPU that was given to a virtual machine, or that the driver
// was told to leave alone, does not count; nor does a display card of another model, which
// nouveau or no driver has; nor, in a container, a GPU that the container was not given. One that is missing is a warning if WANT or
// Slurm's Gres are there without it: a site that knows of a dead GPU works with the others.
// Other checks of GPUs then warn of it, too, if WANT says so and Slurm has no more for jobs.
//
//	gpu* || check_gpu_count 8
type gpuCount struct {
	Want int    `arg:"1" toml:"want"` // how many GPUs the node has; 0: as many as ever
	Type string `arg:"2" toml:"type"` // AzureHPC's second argument: any value except nvidia is for AMD, and the line is skipped
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_gpu_count",
		Usage:   "[WANT [nvidia]]",
		Summary: "PCI bus, device nodes and NVML show all GPUs",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuCount{} },
		Slurm:   func(checks.Check) bool { return true }, // with WANT, too: a node without its driver may get jobs
		Do: func() map[string]string {
			return map[string]string{
				"gpu.amd":         amdDo,
				"gpu.count":       "See lspci -d 10de: and dmesg. If that many are meant say so in nhc.conf, check_gpu_count N, and in Slurm's Gres; else power the node off and on, then reseat the GPU.",
				"gpu.count.slurm": "Nothing if it was meant so. Else correct Gres of this node in slurm.conf, and gres.conf, then scontrol reconfigure.",
				"gpu.count.more":  "Nothing, if it is for a display or not for this container. Else see dmesg for why the driver does not have it, and correct the number in nhc.conf.",
				"gpu.count.nvml":  "nvidia-smi does not show it: see dmesg for Xid 79 or \"fallen off the bus\". Reboot; if it comes back power off, reseat or replace the GPU.",
				"gpu.count.gone":  "The PCI bus has lost it: power the node off and on; if it stays away reseat or replace the GPU. If it was taken out for good remove gpu-count.json in /var/lib/nhc-gpu.",
				"gpu.count.node":  "Jobs cannot open it: nvidia-modprobe -c 0 -u makes the device nodes; see what has removed it (udev rules, a container).",

				"gpu.memory.size":  "Part of the GPU's memory is not there: see dmesg for Xid errors, reboot; if it stays run the vendor's field diagnostic and have the GPU replaced.",
				"gpu.model.differ": "Nothing, if the node was built with another model on purpose. Else a board was replaced by a wrong one: see nvidia-smi -L.",
				"gpu.uuid.same":    "Two GPUs cannot be told apart: see nvidia-smi -L and dmesg, reboot. In a virtual machine see how its GPUs are defined.",
			}
		},
	})
}

// everSeen is what gpuCount keeps: the GPUs that this machine has had.
type everSeen struct {
	Machine string   `json:"machine"` // its DMI UUID; of another machine on the same disk nothing is known
	PCI     []string `json:"pci"`
}

const gpuCountName = "check_gpu_count"

// WantedGPUs is how many GPUs a line of check_gpu_count wants, 0 if it says no number, or if
// the check is another one.
func WantedGPUs(c checks.Check) int {
	if count, ok := c.(*gpuCount); ok {
		return count.Want
	}
	return 0
}

// Unsupported says that the line counts GPUs of AMD.
func (c *gpuCount) Unsupported() string {
	if c.Type == "" || strings.EqualFold(c.Type, "nvidia") {
		return ""
	}
	return noAMD
}

func (c *gpuCount) Run(_ context.Context, env *checks.Env) []checks.Finding {
	if c.Unsupported() != "" {
		return notSupported(gpuCountName)
	}
	env.At("read the PCI bus")
	views, err := nvidia.ReadGPUViews(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	n, err := nvml.Ask(env.Host, groupAlike, env.Doing)
	expected := map[string]bool{}
	for _, a := range views.Own() {
		expected[a] = true
	}
	past := recallGPUs(env)
	for _, p := range views.PCI {
		if p.Aside == nvidia.Display && slices.Contains(past, p.Address) {
			expected[p.Address] = true // the driver has had it: it is no card that the driver does not know
		}
	}
	if err != nil {
		t := &countTally{views: views, good: slices.Collect(maps.Keys(expected))} // any of them may be one that was numbered anew
		_, fewer := t.gone(past)
		want := max(len(expected)+fewer, credibleGres(env, c.gres(env, views, nil)))
		return c.withoutNVML(cmp.Or(c.Want, want), len(expected), err)
	}
	t := &countTally{want: c.Want, slurms: c.gres(env, views, n), views: views, nvml: map[string]*nvml.GPU{}}
	t.gres, t.kinds = credibleGres(env, t.slurms), gpuKinds(env, n)
	for i := range n.GPUs {
		g := &n.GPUs[i]
		t.nvml[g.PCI] = g
		expected[g.PCI] = true
	}
	delete(expected, "") // a lost GPU whose address nobody knows
	t.judge(expected, past)
	if c.Want == 0 && checks.Worst(t.findings) < checks.Unknown {
		t.judgeNumber(env)
	}
	env.Fact("%s on the PCI bus, in the driver and in NVML", checks.Plural(len(t.good), "GPU"))
	if len(t.findings) == 0 && len(t.good) == 0 {
		t.findings = skipNone(gpuCountName)
	}
	s := &GPUs{check: gpuCountName, Env: env, NVML: n}
	s.judgeAlike(cmp.Or(c.Want, t.slurms))
	return append(append(t.findings, s.Findings...), c.remember(env, past, t)...)
}

// withoutNVML is for a node that should have so many GPUs, of which so many are on
// the bus.
func (c *gpuCount) withoutNVML(want, onBus int, err error) []checks.Finding {
	if want == 0 && noGPU(err) {
		return skipNone(gpuCountName)
	}
	if errors.Is(err, probe.ErrOtherNode) || errors.Is(err, nvml.ErrNotNow) || errors.Is(err, nvml.ErrNotPermitted) {
		return []checks.Finding{CannotAsk(gpuCountName, err)}
	}
	f := checks.Finding{Code: "gpu.nvml", Severity: checks.Fail, Want: checks.Plural(want, "GPU"), Got: "0", Remedy: checks.RebootNode}
	return []checks.Finding{f.Phrase(gpuCountName, "want %s, got 0: %d on the PCI bus, and NVML cannot be asked: %v", f.Want, onBus, err)}
}

// countTally compares the views.
type countTally struct {
	want     int // 0: nhc.conf does not say
	slurms   int // how many Slurm has; 0: nobody knows
	gres     int // the same, 0 also where no such node has as many
	kinds    map[string]string
	views    nvidia.GPUViews
	nvml     map[string]*nvml.GPU
	good     []string // addresses that every view has
	findings []checks.Finding
}

// judge looks at every address that any view has, and at those that are only
// remembered.
func (t *countTally) judge(expected map[string]bool, past []string) {
	bad := map[string]checks.Finding{}
	for a := range expected {
		if f, ok := t.missing(a); ok {
			bad[a] = f
			continue
		}
		t.good = append(t.good, a)
	}
	slices.Sort(t.good)
	gone, fewer := t.gone(past)
	if t.want == 0 || !t.enough() {
		for _, a := range gone {
			if _, known := bad[a]; known { // NVML still has it
				continue
			}
			bad[a] = checks.Finding{Code: "gpu.count.gone", Remedy: checks.ReseatOrRMA, Message: "was there before, is no longer on the PCI bus"}
		}
	}
	want, nameless := t.want, fewer-len(gone)
	if want == 0 {
		want = max(len(t.good)+len(bad)+nameless, t.gres)
	}
	for _, a := range slices.Sorted(maps.Keys(bad)) {
		t.addBad(a, bad[a], want)
	}
	switch {
	case t.want == 0 && nameless > 0:
		t.add(checks.Finding{Code: "gpu.count.gone", Severity: t.severity(), Remedy: checks.ReseatOrRMA}, want, "so many were there before")
	case t.want > 0 && (len(t.good) > want || len(bad) == 0 && len(t.good) < want):
		t.add(checks.Finding{Code: "gpu.count"}, want, t.leftAlone())
	}
}

// addBad reports a GPU that not every view has.
func (t *countTally) addBad(a string, f checks.Finding, want int) {
	f.Severity = cmp.Or(f.Severity, t.severity())
	f.Device = checks.Device{Kind: "gpu", PCI: a}
	g := t.nvml[a]
	switch {
	case g != nil && errors.Is(g.Err, nvml.ErrNotNow):
		f.Code, f.Severity, f.Remedy = "gpu.error", checks.Unknown, checks.NoRemedy
	case g == nil && t.want > 0 && t.enough() && !t.views.Has(a):
		f.Code, f.Remedy = "gpu.count.more", checks.NoRemedy
	}
	if g != nil {
		f.Device = checks.GPUDevice(g)
	}
	t.add(f, want, f.Device.String()+" "+f.Message)
}

// severity is that of a GPU that is missing.
func (t *countTally) severity() checks.Severity {
	if t.enough() {
		return checks.Warn
	}
	return checks.Fail
}

// enough says whether as many GPUs are in order as the configuration of the site
// counts: that another is not is known then.
func (t *countTally) enough() bool {
	if t.want > 0 {
		return len(t.good) >= t.want
	}
	return t.gres > 0 && t.alike() && len(t.good) >= t.gres
}

// add reports what makes the number of GPUs wrong; why may be "".
func (t *countTally) add(f checks.Finding, want int, why string) {
	f.Severity, f.Want, f.Got = cmp.Or(f.Severity, checks.Fail), checks.Plural(want, "GPU"), fmt.Sprint(len(t.good))
	t.findings = append(t.findings, f.Phrase(gpuCountName, "want %s, got %s%s", f.Want, f.Got, checks.Before(": ", why, "")))
}

// present are the addresses of all GPUs of the node, whoever has them.
func (t *countTally) present() map[string]bool {
	all := map[string]bool{}
	for _, p := range t.views.PCI {
		all[p.Address] = true
	}
	if len(all) == 0 { // a container without a bus
		for _, d := range t.views.Driver {
			all[d.Address] = true
		}
		for a := range t.nvml {
			all[a] = true
		}
	}
	delete(all, "")
	return all
}

// gone tells how many GPUs the node has fewer than it once had, and names them
// if it is clear which: a new board or firmware may number all buses anew, and
// then as many are in order that it has never shown.
func (t *countTally) gone(past []string) (names []string, fewer int) {
	present := t.present()
	names = slices.DeleteFunc(slices.Clone(past), func(a string) bool { return present[a] })
	fresh := slices.DeleteFunc(slices.Clone(t.good), func(a string) bool { return slices.Contains(past, a) })
	if len(fresh) > 0 {
		return nil, max(len(names)-len(fresh), 0)
	}
	return names, len(names)
}

// leftAlone names the GPUs that do not count.
func (t *countTally) leftAlone() string {
	var list []string
	for _, p := range t.views.PCI {
		if left := p.Left(); left != "" {
			list = append(list, p.Address+" "+left)
		}
	}
	for _, d := range t.views.Driver {
		if d.Excluded {
			list = append(list, d.Address+" is excluded from the driver")
		}
	}
	return strings.Join(list, ", ")
}

// missing says from which view a GPU is missing, the most telling one first.
func (t *countTally) missing(a string) (f checks.Finding, bad bool) {
	where := "is in the driver"
	onBus := slices.ContainsFunc(t.views.PCI, func(p nvidia.PCIGPU) bool { return p.Address == a })
	if len(t.views.PCI) > 0 {
		where = "is on the PCI bus"
		if !onBus {
			where = "is no longer on the PCI bus"
		}
		if t.views.Has(a) {
			where += ", in the driver"
		} else {
			where += ", not in the driver"
		}
	}
	g := t.nvml[a]
	switch {
	case g == nil && slices.ContainsFunc(t.views.PCI, func(p nvidia.PCIGPU) bool { return p.Address == a && p.Aside == nvidia.Display }):
		return checks.Finding{Code: "gpu.count.nvml", Severity: checks.Warn, Message: where + ", which has had it before"}, true
	case g == nil:
		return checks.Finding{Code: "gpu.count.nvml", Remedy: checks.RebootNode, Message: where + ", not in NVML"}, true
	case errors.Is(g.Err, nvml.ErrNotPermitted):
		return checks.Finding{Code: "gpu.error", Severity: checks.Unknown, Message: where + ", but NVML says " + g.Err.Error()}, true
	case g.Err != nil:
		return checks.Finding{Code: "gpu.count.nvml", Remedy: checks.RebootNode, Message: where + ", but NVML says " + g.Err.Error()}, true
	case len(t.views.PCI) > 0 && !onBus:
		return checks.Finding{Code: "gpu.count.gone", Remedy: checks.ReseatOrRMA, Message: "is in NVML, but no longer on the PCI bus"}, true
	case g.Minor.Known && !slices.Contains(t.views.Nodes, g.Minor.Value):
		return checks.Finding{Code: "gpu.count.node", Message: fmt.Sprintf("has no device node /dev/nvidia%d", g.Minor.Value)}, true
	}
	return f, false
}

// recallGPUs are the GPUs that earlier runs have seen on this machine.
func recallGPUs(env *checks.Env) []string {
	var past everSeen
	err := env.Recall("gpu-count", &past)
	if err != nil || past.Machine != nvidia.ProductUUID(env.Host) {
		return nil
	}
	return past.PCI
}

// remember keeps the GPUs that were seen. Where the configuration, nhc's or
// Slurm's, says how many there are, the past does not count any longer once that
// many are there; nor do addresses that are no GPU's any more where the node has as
// many GPUs as ever.
func (c *gpuCount) remember(env *checks.Env, past []string, t *countTally) []checks.Finding {
	now := past
	switch _, fewer := t.gone(past); {
	case c.Want > 0 && len(t.good) == c.Want, c.Want == 0 && t.enough():
		now = t.good
	case fewer == 0:
		present := t.present()
		old := slices.DeleteFunc(slices.Clone(past), func(a string) bool { return !present[a] })
		now = slices.Compact(slices.Sorted(slices.Values(append(old, t.good...))))
	}
	if slices.Equal(now, past) {
		return nil
	}
	return checks.KeepForLater(env, gpuCountName, "gpu-count", everSeen{nvidia.ProductUUID(env.Host), now})
}

// How many GPUs check_gpu_count wants where nhc.conf gives no number: the
// platform says which numbers there are, Slurm's Gres which of them it is.

// gres is how many GPUs Slurm's Gres of this node has, 0 if that is not known or
// says nothing of GPUs as NVML counts them.
func (c *gpuCount) gres(env *checks.Env, views nvidia.GPUViews, n *nvml.Snapshot) int {
	if c.Want > 0 || env.Slurm == nil {
		return 0
	}
	if slices.ContainsFunc(views.PCI, nvidia.PCIGPU.Passed) {
		return 0
	}
	if n != nil && slices.ContainsFunc(n.GPUs, func(g nvml.GPU) bool { return g.Modes.MIG.Value }) {
		return 0
	}
	if len(views.Own()) == 0 && (n == nil || len(n.GPUs) == 0) && !env.Slurm.NVIDIA {
		return 0 // they may be another maker's
	}
	return env.Slurm.Count
}

// credibleGres is a number of Slurm's that such a node may have, else 0.
func credibleGres(env *checks.Env, gres int) int {
	if _, most := mostGPUs(env); most > 0 && gres > most {
		return 0
	}
	return gres
}

// gpuKinds says of what kind each GPU is, by address.
func gpuKinds(env *checks.Env, n *nvml.Snapshot) map[string]string {
	kinds := map[string]string{}
	ids, _ := pci.GPUIDs(env.Host) // an error has been reported with the other views
	for _, id := range ids {
		kinds[id.Address] = id.Device
	}
	if len(kinds) == 0 {
		for _, g := range n.GPUs {
			kinds[g.PCI] = g.Name.Value
		}
	}
	return kinds
}

// alike says whether all GPUs that are in order are of one kind. A display card
// among them is none of Slurm's.
func (t *countTally) alike() bool {
	return !slices.ContainsFunc(t.good, func(a string) bool { return t.kinds[a] != t.kinds[t.good[0]] })
}

// judgeNumber compares how many there are with the platform and with Slurm.
func (t *countTally) judgeNumber(env *checks.Env) {
	n := len(t.good)
	add := func(code string, severity checks.Severity, want, got, text string) {
		f := checks.Finding{Code: code, Severity: severity, Want: want, Got: got}.Phrase(gpuCountName, "%s", text)
		if severity == checks.Warn {
			f.Remedy = checks.FixConfig
		}
		t.findings = append(t.findings, f)
	}
	slurms := ""
	if t.slurms > 0 {
		slurms = "Slurm's Gres, " + env.Slurm.Pos + ","
	}
	if t.slurms != t.gres {
		name, most := mostGPUs(env)
		add("gpu.count.slurm", checks.Warn, "at most "+checks.Plural(most, "GPU"), fmt.Sprint(t.slurms),
			fmt.Sprintf("%s has %d GPUs, no %s has more than %d", slurms, t.slurms, name, most))
	}
	if t.gres > n {
		want := checks.Plural(t.gres, "GPU")
		add("gpu.count", checks.Fail, want, fmt.Sprint(n), fmt.Sprintf("want %s, got %d: %s has as many", want, n, slurms)+checks.Before("; ", t.leftAlone(), ""))
		return
	}
	odd := oddGPUNumber(env)
	for _, o := range odd {
		want := checks.Plural(o.want, "GPU")
		text := fmt.Sprintf("want %s, got %d: no %s has %d", want, o.got, o.platform, o.got)
		if t.enough() {
			add("gpu.count.slurm", checks.Warn, want, fmt.Sprint(o.got), text+"; "+slurms+" has no more")
		} else {
			add("gpu.count", checks.Fail, want, fmt.Sprint(o.got), text)
		}
	}
	if t.gres > 0 && t.alike() && n > t.gres && len(odd) == 0 {
		add("gpu.count.slurm", checks.Warn, checks.Plural(n, "GPU"), fmt.Sprint(t.gres), fmt.Sprintf("%s has %d of %d GPUs: jobs do not get the rest", slurms, t.gres, n))
	}
}

// mostGPUs is the largest number that nodes of this platform have, 0 if nobody
// knows or the node has GPUs of several kinds.
func mostGPUs(env *checks.Env) (name string, most int) {
	groups := checks.PlatformGroups(env)
	if len(groups) != 1 || groups[0].Platform == nil || len(groups[0].Platform.GPUs) == 0 {
		return "", 0
	}
	return groups[0].Platform.Name, slices.Max(groups[0].Platform.GPUs)
}

// oddCount is a number of GPUs that a platform does not come with.
type oddCount struct {
	platform  string
	want, got int
}

// oddGPUNumber finds GPUs of which a node of the platform never has so many: one is
// missing that this node has not shown before.
func oddGPUNumber(env *checks.Env) (list []oddCount) {
	for _, g := range checks.PlatformGroups(env) {
		n := len(g.Addresses)
		if g.Platform == nil || len(g.Platform.GPUs) == 0 || slices.Contains(g.Platform.GPUs, n) {
			continue
		}
		if more := slices.IndexFunc(g.Platform.GPUs, func(size int) bool { return size > n }); more >= 0 {
			list = append(list, oddCount{g.Platform.Name, g.Platform.GPUs[more], n})
		}
	}
	return list
}
