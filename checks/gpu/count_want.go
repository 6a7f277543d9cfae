package gpu

import (
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

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
