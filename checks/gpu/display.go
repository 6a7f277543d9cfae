package gpu

import (
	"errors"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// onlyDisplays reports whether the node has NVIDIA's display cards, but nothing shows that they are for
// jobs: neither NVIDIA's library nor its driver, an earlier run, the configuration, Slurm or a platform.
func onlyDisplays(env *checks.Env, views nvidia.GPUViews, err error) bool {
	if !errors.Is(err, probe.ErrNoLibrary) || errors.Is(err, probe.ErrOtherNode) || probe.IsDamaged(err) {
		return false
	}
	if len(views.Driver)+len(views.Nodes) > 0 || views.Version != "" || env.WantedGPUs > 0 || env.Slurm != nil && env.Slurm.Count > 0 || len(recallGPUs(env)) > 0 {
		return false
	}
	if slices.ContainsFunc(checks.PlatformGroups(env), func(p checks.PlatformGroup) bool { return p.Platform != nil }) {
		return false
	}
	displays := pci.OfClass(env.Host, "0300")
	return len(views.Own()) > 0 && !slices.ContainsFunc(views.PCI, func(p nvidia.PCIGPU) bool {
		return !p.Passed() && (p.Driver != "" && p.Driver != "nouveau" || !slices.Contains(displays, p.Address))
	})
}

// skipDisplays skips a check on a node with such cards only.
func skipDisplays(check string, views nvidia.GPUViews) []checks.Finding {
	return []checks.Finding{checks.Finding{Code: "gpu.none", Severity: checks.Skip}.Describe(check, "no NVIDIA GPU for jobs on this node: %s %s", views.Own()[0], nvidia.Display)}
}
