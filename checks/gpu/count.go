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
	"github.com/nhc-gpu/nhc-gpu/checks/gpustate"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// gpuCount checks that the PCI bus, the driver's device nodes and NVML show the same GPUs, and
// that their number is WANT. Without WANT it expects a number that is normal for the platform
// (docs/thresholds.md; a virtual machine can have any number of vGPUs), the number of Slurm's Gres
// of this node (in the slurm.conf on the node, without MIG instances), or else the highest number
// that this node has shown so far. It names missing GPUs by PCI address.
//
// It also reports a GPU that has less memory than others of its model or the UUID of another GPU,
// and a single GPU of another model among eight.
//
// Not counted are GPUs that were passed to a virtual machine or excluded from the driver, display
// cards of another model without NVIDIA's driver, and, in a container, GPUs that the container
// does not have.
//
// A GPU that was set aside with "nvidia-smi drain" is missing, too, but needs no reboot.
//
// A missing GPU only warns if the node still has WANT GPUs, or as many as Slurm's Gres: the site
// knows of the dead GPU and uses the others. Other checks of GPUs then also only warn about it,
// if WANT is given and Slurm does not schedule more GPUs.
//
//	gpu* || check_gpu_count 8
type gpuCount struct {
	Want int    `arg:"1" toml:"want" in:"0:64"` // number of GPUs; 0: by platform, Slurm's Gres, or earlier runs
	Type string `arg:"2" toml:"type"`           // AzureHPC's second argument: nvidia; with amd or rocm the line is skipped
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_gpu_count",
		Usage:   "[WANT [nvidia]]",
		Summary: "the PCI bus, the device nodes and NVML show all GPUs",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuCount{} },
		Slurm:   func(checks.Check) bool { return true }, // also with WANT: Slurm may schedule jobs on a node without its driver
		Do: func() map[string]string {
			return map[string]string{
				"gpu.amd":           amdDo,
				"gpu.count":         "Compare with lspci -d 10de: and dmesg. If this number is expected, set it in nhc.conf (check_gpu_count N) and in Slurm's Gres. If not, power the node off and on, then reseat the GPU.",
				"gpu.count.slurm":   "Nothing, if Slurm schedules fewer GPUs on purpose. Otherwise correct Gres of this node in slurm.conf and gres.conf, then run scontrol reconfigure.",
				"gpu.count.more":    "Nothing, if the GPU drives a display or does not belong to this container. Otherwise look in dmesg for the reason why the driver does not use it, or correct the number in nhc.conf.",
				"gpu.count.nvml":    "nvidia-smi does not show the GPU: look for Xid 79 or \"fallen off the bus\" in dmesg. Reboot; if the error returns, power the node off and reseat or replace the GPU." + checks.ReseatLimits,
				"gpu.count.drained": "An administrator has taken the GPU out of use with nvidia-smi drain, and no new program sees it. Return it: nvidia-smi drain -p ADDRESS -m 0. If it is to stay out, set the expected number in nhc.conf (check_gpu_count N) and in Slurm's Gres.",
				"gpu.count.gone":    "The GPU has disappeared from the PCI bus: power the node off and on; if the GPU does not return, reseat or replace it. If it was removed on purpose, delete gpu-count.json in " + checks.PastDir + ".",
				"gpu.count.node":    "Jobs cannot open the GPU: create the device nodes with nvidia-modprobe -c 0 -u, and find out who removed them (udev rules, a container).",

				"gpu.memory.size":  "Part of the GPU's memory is missing: reboot, and look for Xid errors in dmesg. If it is still missing, run the vendor's field diagnostic and have the GPU replaced.",
				"gpu.model.differ": "Nothing, if the node was built with two models on purpose. Otherwise a board was replaced by a wrong one: compare nvidia-smi -L.",
				"gpu.uuid.same":    "Two GPUs have the same UUID: compare nvidia-smi -L, look at dmesg, then reboot. In a virtual machine check the definition of its GPUs.",
			}
		},
	})
}

// seenGPUs is the state that gpuCount keeps: all GPUs that this machine has shown.
type seenGPUs struct {
	Machine string   `json:"machine"` // its DMI UUID: the state does not apply to another machine with this disk
	PCI     []string `json:"pci"`
}

const gpuCountName = "check_gpu_count"

// WantedGPUs returns the number of GPUs that a line of check_gpu_count wants; 0 if it gives no
// number, or for another check.
func WantedGPUs(c checks.Check) int {
	if count, ok := c.(*gpuCount); ok {
		return count.Want
	}
	return 0
}

// Validate checks the vendor.
func (c *gpuCount) Validate() error {
	if slices.Contains([]string{"", "nvidia", "amd", "rocm"}, strings.ToLower(c.Type)) {
		return nil
	}
	return &checks.UsageError{Kind: checks.BadValue, Word: c.Type, Want: "nvidia, amd or rocm"}
}

// Unsupported returns why the line cannot run: it counts AMD GPUs. "" if it can.
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
	n, err := nvml.Ask(env.Host, groupAlike, env.Doing)
	env.At("read the PCI bus")
	views, viewsErr := nvidia.ReadGPUViews(env.Host) // NVML's start creates the device nodes
	if viewsErr != nil {
		return checks.Unreadable(viewsErr)
	}
	expected := map[string]bool{}
	for _, a := range views.Own() {
		expected[a] = true
	}
	past := recallGPUs(env)
	for _, p := range views.PCI {
		if p.Aside == nvidia.Display && slices.Contains(past, p.Address) {
			expected[p.Address] = true // the driver has used it before, so it is a GPU for jobs
		}
	}
	if err != nil && c.Want == 0 && onlyDisplays(env, views, err) {
		return skipDisplays(gpuCountName, views)
	}
	if err != nil {
		t := &countTally{want: c.Want, gres: limitGres(env, c.readGres(env, views, nil)), views: views, good: slices.Collect(maps.Keys(expected))} // any of them may have a new address
		_, fewer := t.findGone(past)
		want := max(len(expected)+fewer, t.gres)
		f := c.judgeWithoutNVML(env, cmp.Or(c.Want, want), len(expected), err)
		if f.Code == "gpu.nvml" && c.Want > 0 && len(expected)+fewer == 0 && (env.Slurm == nil || env.Slurm.Count == 0) { // only the line counts on GPUs
			f.Code, f.Remedy = "gpu.count", checks.FixConfig
		}
		if f.Severity == checks.Unknown && !errors.Is(err, probe.ErrOtherNode) {
			t.judgeBus(env, past)
		}
		return append(t.findings, f)
	}
	t := &countTally{want: c.Want, slurms: c.readGres(env, views, n), views: views, nvml: map[string]*nvml.GPU{}, drained: n.Drained}
	t.gres, t.kinds = limitGres(env, t.slurms), readGPUKinds(env, n)
	for i := range n.GPUs {
		g, a := &n.GPUs[i], n.GPUs[i].PCI
		_, twice := t.nvml[a]
		if len(views.PCI)+len(views.Driver) == 0 && g.Err == nil && (a == "" || twice) { // only NVML shows it
			a = checks.GPUName(g)
			t.kinds[a] = g.Name.Value
		}
		t.nvml[a], expected[a] = g, true
	}
	delete(expected, "") // a lost GPU with an unknown address
	t.judge(env, expected, past)
	if c.Want == 0 && checks.Worst(t.findings) < checks.Fail {
		t.judgeNumber(env)
	}
	where := "on the PCI bus, in the driver and in NVML"
	if !t.views.Any() {
		where = "in NVML, none in the kernel's files"
	}
	env.Fact("%s %s", checks.Plural(len(t.good), "GPU"), where)
	if len(t.findings) == 0 && len(t.good) == 0 {
		t.findings = skipNone(gpuCountName)
	}
	s := &GPUs{check: gpuCountName, Env: env, NVML: n}
	s.judgeAlike(cmp.Or(c.Want, t.slurms))
	return append(append(t.findings, s.Findings...), c.remember(env, past, t)...)
}

// judgeWithoutNVML judges a node that should have want GPUs, has onBus GPUs on the PCI bus, and
// has no NVML that can be queried.
func (c *gpuCount) judgeWithoutNVML(env *checks.Env, want, onBus int, err error) checks.Finding {
	if want == 0 && meansNoGPU(err) {
		return skipNone(gpuCountName)[0]
	}
	if want == 0 || saysNothing(err) {
		return CannotAsk(gpuCountName, err)
	}
	f := checks.Finding{Code: "gpu.nvml", Severity: checks.Fail, Want: checks.Plural(want, "GPU"), Got: "0", Remedy: checks.RebootNode}
	if onBus > 0 && errors.Is(err, nvml.ErrDriverNotThere) {
		f.Remedy = gpustate.DriverRemedy(env)
	}
	return f.Phrase(gpuCountName, "want %s, got 0: %d on the PCI bus, and NVML cannot be asked: %v", f.Want, onBus, err)
}

// saysNothing reports whether an error of NVML shows no fault: a later call may succeed, or one of another process.
func saysNothing(err error) bool {
	for _, e := range []error{probe.ErrOtherNode, probe.ErrNoRoom, nvml.ErrNotNow, nvml.ErrNotPermitted} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// judgeBus judges a node whose NVML says nothing: a GPU that the kernel no longer shows is missing all the same.
func (t *countTally) judgeBus(env *checks.Env, past []string) {
	onBus := t.listPresent()
	gone, fewer := t.findGone(past)
	for _, d := range t.views.Used() {
		if !onBus[d.Address] && !slices.Contains(gone, d.Address) {
			gone = append(gone, d.Address)
		}
	}
	want := cmp.Or(t.want, len(t.good)+max(fewer, len(gone)))
	if len(t.views.PCI) == 0 || len(gone) == 0 && len(t.views.PCI) >= want || t.enough() { // the first: a container, for example
		return
	}
	f := checks.Finding{Code: "gpu.count.gone", Remedy: checks.PowerCycle}
	for _, a := range gone {
		if f.Message = "was on the PCI bus before and is missing now"; t.views.Has(a) {
			f.Message = "is in the driver, but no longer on the PCI bus"
		}
		t.addBad(a, f, want)
	}
	switch {
	case len(gone) > 0:
	case t.want == 0:
		t.add(f, want, "the node had that many before")
	default:
		f.Code, f.Remedy = "gpu.count", checks.NoRemedy
		if t.numberIsWrong(env, fewer) {
			f.Remedy = checks.FixConfig
		}
		t.add(f, want, strings.Join(append([]string{"the PCI bus shows no more"}, t.listExcluded()...), ", "))
	}
}

// countTally compares what the PCI bus, the driver and NVML show.
type countTally struct {
	want     int // 0: nhc.conf gives no number
	slurms   int // the number of Slurm's Gres; 0: unknown
	gres     int // the same, but 0 if no node of this platform has so many
	kinds    map[string]string
	views    nvidia.GPUViews
	nvml     map[string]*nvml.GPU
	drained  []string // addresses that nvidia-smi drain has set aside
	good     []string // addresses that all views show
	unread   int      // number of GPUs that NVML has and says nothing about
	findings []checks.Finding
}

// judge compares every address that a view shows or an earlier run has recorded.
func (t *countTally) judge(env *checks.Env, expected map[string]bool, past []string) {
	bad := map[string]checks.Finding{}
	for a := range expected {
		if f, ok := t.findMissing(a); ok {
			if bad[a] = f; f.Severity == checks.Unknown {
				t.unread++
			}
			continue
		}
		t.good = append(t.good, a)
	}
	slices.Sort(t.good)
	gone, fewer := t.findGone(past)
	if t.want == 0 || !t.enough() {
		for _, a := range gone {
			if _, known := bad[a]; known { // NVML still shows it
				continue
			}
			bad[a] = checks.Finding{Code: "gpu.count.gone", Remedy: checks.PowerCycle, Message: "was on the PCI bus before and is missing now"}
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
		t.add(checks.Finding{Code: "gpu.count.gone", Severity: t.severity(), Remedy: checks.PowerCycle}, want, "the node had that many before")
	case t.want > 0 && (len(t.good) > want || len(bad) == t.unread && len(t.good)+t.unread < want):
		f := checks.Finding{Code: "gpu.count"}
		if t.numberIsWrong(env, fewer) {
			f.Remedy = checks.FixConfig
		}
		t.add(f, want, strings.Join(t.listExcluded(), ", "))
	}
}

// numberIsWrong reports whether the number in nhc.conf is more likely wrong than the hardware: the
// node has more GPUs, the missing ones are excluded on purpose, it has as many as Slurm's Gres
// (maybe none) and has not lost any, or its platform has this number and never the one in nhc.conf.
func (t *countTally) numberIsWrong(env *checks.Env, lost int) bool {
	n, slurms := len(t.good), 0
	if env.Slurm != nil {
		slurms = env.Slurm.Count
	}
	if n+t.countExcluded() >= t.want || n == slurms && lost == 0 {
		return true
	}
	groups := checks.PlatformGroups(env)
	return len(groups) == 1 && groups[0].Platform != nil && slices.Contains(groups[0].Platform.GPUs, n) && !slices.Contains(groups[0].Platform.GPUs, t.want)
}

// addBad reports a GPU that at least one view does not show.
func (t *countTally) addBad(a string, f checks.Finding, want int) {
	f.Severity = cmp.Or(f.Severity, t.severity())
	f.Device = checks.Device{Kind: "gpu", PCI: a}
	g := t.nvml[a]
	if g == nil && t.want > 0 && t.enough() && !t.views.Has(a) {
		f.Code, f.Remedy = "gpu.count.more", checks.NoRemedy
	}
	if g != nil {
		f.Device = checks.GPUDevice(g)
	}
	t.add(f, want, f.Device.String()+" "+f.Message)
}

// severity returns the severity of a missing GPU.
func (t *countTally) severity() checks.Severity {
	if t.enough() {
		return checks.Warn
	}
	return checks.Fail
}

// enough reports whether the node has as many healthy GPUs as nhc.conf or Slurm count: then the
// site knows that another one is dead.
func (t *countTally) enough() bool {
	if t.want > 0 {
		return len(t.good) >= t.want
	}
	return t.gres > 0 && t.alike() && len(t.good) >= t.gres
}

// add reports a wrong number of GPUs; why may be "".
func (t *countTally) add(f checks.Finding, want int, why string) {
	f.Severity, f.Want, f.Got = cmp.Or(f.Severity, checks.Fail), checks.Plural(want, "GPU"), fmt.Sprint(len(t.good))
	text := fmt.Sprintf("want %s, got %s%s", f.Want, f.Got, checks.Before(": ", why, ""))
	if want == len(t.good) {
		text = fmt.Sprintf("%s, beside the wanted %s", why, f.Want)
	}
	t.findings = append(t.findings, f.Phrase(gpuCountName, "%s", text))
}

// listPresent returns the addresses of all GPUs of the node, whichever driver has them.
func (t *countTally) listPresent() map[string]bool {
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

// findGone returns how many GPUs the node has lost since earlier runs. It names them unless
// healthy GPUs have new addresses: a new board or firmware may have renumbered all buses.
func (t *countTally) findGone(past []string) (names []string, fewer int) {
	present := t.listPresent()
	names = slices.DeleteFunc(slices.Clone(past), func(a string) bool { return present[a] })
	fresh := slices.DeleteFunc(slices.Clone(t.good), func(a string) bool { return slices.Contains(past, a) })
	if len(fresh) > 0 {
		return nil, max(len(names)-len(fresh), 0)
	}
	return names, len(names)
}

// countExcluded returns the number of GPUs, without display cards, that are excluded from the driver
// on purpose.
func (t *countTally) countExcluded() (n int) {
	for _, p := range t.views.PCI {
		if p.Left() != "" && p.Aside != nvidia.Display {
			n++
		}
	}
	for _, d := range t.views.Driver {
		if d.Excluded {
			n++
		}
	}
	return n
}

// listExcluded names the GPUs and display cards that are not counted.
func (t *countTally) listExcluded() (list []string) {
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
	return list
}

// findMissing returns the finding of a GPU that a view does not show, if there is one.
func (t *countTally) findMissing(a string) (f checks.Finding, bad bool) {
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
		return checks.Finding{Code: "gpu.count.nvml", Severity: checks.Warn, Message: where + ", which had it before"}, true
	case g == nil && slices.Contains(t.drained, a):
		return checks.Finding{Code: "gpu.count.drained", Remedy: checks.FixConfig, Message: where + ", set aside with nvidia-smi drain"}, true
	case g == nil:
		return checks.Finding{Code: "gpu.count.nvml", Remedy: checks.RebootNode, Message: where + ", not in NVML"}, true
	case saysNothing(g.Err) && len(t.views.PCI) > 0 && !onBus:
		return checks.Finding{Code: "gpu.count.gone", Remedy: checks.PowerCycle, Message: where + ", and NVML reports " + g.Err.Error()}, true
	case saysNothing(g.Err):
		return checks.Finding{Code: "gpu.error", Severity: checks.Unknown, Message: where + ", but NVML reports " + g.Err.Error()}, true
	case g.Err != nil:
		return checks.Finding{Code: "gpu.count.nvml", Remedy: checks.RebootNode, Message: where + ", but NVML reports " + g.Err.Error()}, true
	case len(t.views.PCI) > 0 && !onBus:
		return checks.Finding{Code: "gpu.count.gone", Remedy: checks.PowerCycle, Message: "is in NVML, but no longer on the PCI bus"}, true
	case g.Minor.Known && t.views.Any() && !slices.Contains(t.views.Nodes, g.Minor.Value):
		return checks.Finding{Code: "gpu.count.node", Message: fmt.Sprintf("has no device node /dev/nvidia%d", g.Minor.Value)}, true
	}
	return f, false
}

// recallGPUs returns the GPUs that earlier runs have seen on this machine.
func recallGPUs(env *checks.Env) []string {
	var past seenGPUs
	err := env.Recall("gpu-count", &past)
	if err != nil || past.Machine != nvidia.ProductUUID(env.Host) {
		return nil
	}
	return past.PCI
}

// remember stores the GPUs of this run. It forgets earlier ones once the node has as many GPUs
// as nhc.conf or Slurm want, and addresses without a GPU if the node has lost none.
func (c *gpuCount) remember(env *checks.Env, past []string, t *countTally) []checks.Finding {
	now := past
	switch _, fewer := t.findGone(past); {
	case c.Want > 0 && len(t.good) == c.Want, c.Want == 0 && t.enough():
		now = t.good
	case fewer == 0:
		present := t.listPresent()
		old := slices.DeleteFunc(slices.Clone(past), func(a string) bool { return !present[a] })
		now = slices.Compact(slices.Sorted(slices.Values(append(old, t.good...))))
	}
	if slices.Equal(now, past) {
		return nil
	}
	return checks.KeepForLater(env, gpuCountName, "gpu-count", seenGPUs{nvidia.ProductUUID(env.Host), now})
}

// The number that check_gpu_count wants if nhc.conf gives none: the platform lists the possible
// numbers, Slurm's Gres selects one.

// readGres returns the number of GPUs in Slurm's Gres of this node; 0 if it is unknown or does
// not count GPUs as NVML does.
func (c *gpuCount) readGres(env *checks.Env, views nvidia.GPUViews, n *nvml.Snapshot) int {
	if c.Want > 0 || env.Slurm == nil {
		return 0
	}
	if slices.ContainsFunc(views.PCI, nvidia.PCIGPU.Passed) {
		return 0
	}
	if n != nil && slices.ContainsFunc(n.GPUs, func(g nvml.GPU) bool { return g.Modes.MIG.Value || g.Modes.MIG.Err != nil }) {
		return 0
	}
	if len(views.Own()) == 0 && (n == nil || len(n.GPUs) == 0) && !env.Slurm.NVIDIA {
		return 0 // they may be GPUs of another vendor
	}
	return env.Slurm.Count
}

// limitGres returns Slurm's number if a node of this platform can have so many GPUs, else 0.
func limitGres(env *checks.Env, gres int) int {
	if _, most := findMaxGPUs(env); most > 0 && gres > most {
		return 0
	}
	return gres
}

// readGPUKinds returns the PCI device of each GPU by address, without a PCI bus its model.
func readGPUKinds(env *checks.Env, n *nvml.Snapshot) map[string]string {
	kinds := map[string]string{}
	ids, _ := pci.GPUIDs(env.Host) // ReadGPUViews has reported the error
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

// alike reports whether all healthy GPUs are of one kind. Slurm's Gres does not count a display
// card of another kind.
func (t *countTally) alike() bool {
	return !slices.ContainsFunc(t.good, func(a string) bool { return t.kinds[a] != t.kinds[t.good[0]] })
}

// judgeNumber compares the number of GPUs with the platform and with Slurm's Gres. With a GPU that NVML says nothing
// about it compares only with the platform: that GPU may have MIG, and then Gres does not count GPUs.
func (t *countTally) judgeNumber(env *checks.Env) {
	n := len(t.good) + t.unread
	if t.unread > 0 && (len(t.good) == 0 || t.anyVGPU()) { // it may be a vGPU, too, which no platform counts
		return
	}
	add := func(code string, severity checks.Severity, want, got, text string) {
		f := checks.Finding{Code: code, Severity: severity, Want: want, Got: got}.Phrase(gpuCountName, "%s", text)
		if severity == checks.Warn || code == "gpu.count" && t.gres > n && n+t.countExcluded() >= t.gres {
			f.Remedy = checks.FixConfig
		}
		t.findings = append(t.findings, f)
	}
	slurms := ""
	if t.slurms > 0 {
		slurms = "Slurm's Gres (" + env.Slurm.Pos + ")"
	}
	if t.slurms != t.gres && t.unread == 0 {
		name, most := findMaxGPUs(env)
		add("gpu.count.slurm", checks.Warn, "at most "+checks.Plural(most, "GPU"), fmt.Sprint(t.slurms),
			fmt.Sprintf("%s has %d GPUs, but no %s has more than %d", slurms, t.slurms, name, most))
	}
	if t.gres > n && t.unread == 0 {
		want := checks.Plural(t.gres, "GPU")
		add("gpu.count", checks.Fail, want, fmt.Sprint(n), fmt.Sprintf("want %s, got %d: %s has %d", want, n, slurms, t.gres)+checks.Before("; ", strings.Join(t.listExcluded(), ", "), ""))
		return
	}
	odd := findOddNumbers(env)
	for _, o := range odd {
		want := checks.Plural(o.want, "GPU")
		text := fmt.Sprintf("want %s, got %d: no %s has %d", want, o.got, o.platform, o.got)
		if t.enough() || t.unread > 0 && t.gres > 0 && n >= t.gres {
			add("gpu.count.slurm", checks.Warn, want, fmt.Sprint(o.got), text+"; "+slurms+" has this number, too")
		} else {
			add("gpu.count", checks.Fail, want, fmt.Sprint(o.got), text)
		}
	}
	if t.gres > 0 && t.alike() && n > t.gres && len(odd) == 0 && t.unread == 0 {
		add("gpu.count.slurm", checks.Warn, checks.Plural(n, "GPU"), fmt.Sprint(t.gres), fmt.Sprintf("%s has only %d of %d GPUs: jobs cannot use the others", slurms, t.gres, n))
	}
}

// anyVGPU reports whether NVML shows a vGPU.
func (t *countTally) anyVGPU() bool {
	for _, g := range t.nvml {
		if g.VGPU.Value {
			return true
		}
	}
	return false
}

// findMaxGPUs returns the largest number of GPUs that nodes of this platform have; 0 if it is
// unknown or the node has GPUs of several kinds.
func findMaxGPUs(env *checks.Env) (name string, most int) {
	groups := checks.PlatformGroups(env)
	if len(groups) != 1 || groups[0].Platform == nil || len(groups[0].Platform.GPUs) == 0 {
		return "", 0
	}
	return groups[0].Platform.Name, slices.Max(groups[0].Platform.GPUs)
}

// oddNumber is a number of GPUs that nodes of a platform never have.
type oddNumber struct {
	platform  string
	want, got int
}

// findOddNumbers returns the numbers that nodes of the platform never have: a GPU is missing that
// no earlier run has seen.
func findOddNumbers(env *checks.Env) (list []oddNumber) {
	for _, g := range checks.PlatformGroups(env) {
		n := len(g.Addresses)
		if g.Platform == nil || len(g.Platform.GPUs) == 0 || slices.Contains(g.Platform.GPUs, n) {
			continue
		}
		if more := slices.IndexFunc(g.Platform.GPUs, func(size int) bool { return size > n }); more >= 0 {
			list = append(list, oddNumber{g.Platform.Name, g.Platform.GPUs[more], n})
		}
	}
	return list
}
