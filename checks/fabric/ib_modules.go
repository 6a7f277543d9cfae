package fabric

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// ibModules checks that the kernel has the modules that RDMA needs, loaded or built in. MODULE
// names a required module, or alternatives: 'nvidia_peermem|nv_peer_mem'; for dma-buf instead of
// these see check_gpu_driver -m. Without MODULE the check requires ib_core, ib_uverbs and the
// module of each InfiniBand, Omni-Path or EFA adapter on the PCI bus (mlx5_ib, hfi1, efa), and of
// Mellanox Ethernet adapters if there are at least four. It warns if rdma_cm is missing on a node
// with InfiniBand or RoCE ports, or ib_umad with InfiniBand ports: storage and tools need them,
// most jobs do not. A node without an adapter needs no module. Other Ethernet adapters can work
// without RDMA: name mlx5_ib, irdma or bnxt_re if they are the fabric. In the first five minutes
// after a boot a missing module is skipped, except before a job.
//
//	gpu* || check_ib_modules
//	gpu* || check_ib_modules ib_uverbs mlx5_ib rdma_ucm
type ibModules struct {
	Modules []string `arg:"*" toml:"modules"` // required modules
}

const ibModulesName = "check_ib_modules"

func init() {
	checks.Register(checks.Info{
		Name:    ibModulesName,
		Usage:   "[MODULE...]",
		Summary: "kernel modules for RDMA are loaded",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibModules{} },
		Do: func() map[string]string {
			return map[string]string{
				"ib.modules":       "If no node has this module, correct the line. Otherwise load it (modprobe MODULE), and see dmesg for the cause: after an update of the kernel or of OFED the module may not have been built. List it in /etc/modules-load.d, or see rdma-load-modules@.service of rdma-core.",
				"ib.modules.abi":   "The module is loaded without its interface for programs: see dmesg, or the RDMA modules are from different OFED versions. Reboot the node.",
				"ib.modules.extra": "Most jobs run without it, storage or tools may not: load it (modprobe MODULE) and list it in /etc/modules-load.d. If it is not needed, name the required modules: check_ib_modules ib_uverbs mlx5_ib.",
			}
		},
	})
}

func (c *ibModules) Run(_ context.Context, env *checks.Env) []checks.Finding {
	f, none := askPorts(env, ibModulesName)
	if f == nil {
		return none
	}
	bus, err := listBusHCAs(env)
	var findings []checks.Finding
	if err != nil {
		findings = checks.Unreadable(err)
	}
	many := manyCards(bus)
	bus = slices.DeleteFunc(bus, func(d pci.Function) bool { return isOptional(&d, many) })
	if len(f.HCAs) == 0 && len(bus) == 0 && len(c.Modules) == 0 {
		if findings != nil {
			return findings
		}
		return none
	}
	env.At("read /proc/modules")
	loaded, err := probe.Modules(env.Host)
	if err != nil {
		return append(findings, checks.Unreadable(err)...)
	}
	env.Fact("%s", checks.Plural(len(f.HCAs), "adapter"))
	has := func(names string) bool {
		return slices.ContainsFunc(checks.ModuleNames(names), func(n string) bool { return slices.Contains(loaded, n) || probe.BuiltIn(env.Host, n) })
	}
	report := func(code string, severity checks.Severity, module, why string) {
		findings = append(findings, checks.Finding{Code: code, Severity: severity, Device: checks.Device{Kind: "module", Name: module}, Want: "loaded", Got: "not loaded"}.
			Phrase(ibModulesName, "module %s is not loaded%s", module, checks.Before("; ", why, "")))
	}
	if len(c.Modules) > 0 {
		for _, m := range c.Modules {
			if !has(m) {
				report("ib.modules", checks.Fail, m, "")
			}
		}
		return f.Settle(append(findings, c.judgeABI(env, has)...), moduleCodes...)
	}
	needed, extra := listNeeded(f)
	for i := range bus {
		if m := ModelOf(bus[i].Vendor, bus[i].Device, ""); m != nil && m.Module != "" {
			needed[m.Module] = append(needed[m.Module], bus[i].Address)
		}
	}
	for _, m := range slices.Sorted(maps.Keys(needed)) {
		if !has(m) && !inUse(f, m, needed[m]) {
			report("ib.modules", checks.Fail, m, checks.Before("needed by ", strings.Join(needed[m], " "), ""))
		}
	}
	for _, m := range extra {
		if !has(m) && (m != "ib_umad" || rdma.MADVersion(env.Host) == "") {
			report("ib.modules.extra", checks.Warn, m, "")
		}
	}
	return f.Settle(append(findings, c.judgeABI(env, has)...), moduleCodes...)
}

// manyCards reports whether a node has so many Mellanox Ethernet cards that they are for RDMA.
func manyCards(bus []pci.Function) bool {
	cards := map[string]bool{}
	for i := range bus {
		if m := ModelOf(bus[i].Vendor, bus[i].Device, ""); m != nil && m.Module == "mlx5_ib" {
			cards[card(bus[i].Address)] = true
		}
	}
	return len(cards) >= manyPorts
}

// moduleCodes are the codes of modules that may not be loaded yet after a boot.
var moduleCodes = []string{"ib.modules", "ib.modules.abi", "ib.modules.extra"}

// isOptional reports whether an adapter is one that many sites use for Ethernet only.
func isOptional(d *pci.Function, many bool) bool {
	m := ModelOf(d.Vendor, d.Device, "")
	return !ibOnBus(d) && (m == nil || m.Module != "efa" && (!many || m.Module != "mlx5_ib"))
}

// listNeeded returns the modules that RDMA needs, except for those of adapters, and those that only
// some programs need.
func listNeeded(f *Fabric) (needed map[string][]string, extra []string) {
	needed = map[string][]string{"ib_core": nil, "ib_uverbs": nil}
	uses := func(layer string) bool {
		return slices.ContainsFunc(f.Ports, func(p Port) bool { return p.Left == "" && layerOf(&p) == layer })
	}
	if uses(layerIB) || uses(LayerEth) { // EFA has no connection manager
		extra = append(extra, "rdma_cm")
	}
	if uses(layerIB) {
		extra = append(extra, "ib_umad")
	}
	return needed, extra
}

// inUse reports whether the kernel shows that a module works although it does not list it,
// because it is built in: ib_core by any device, an adapter's module by the adapter's device.
func inUse(f *Fabric, module string, addresses []string) bool {
	switch module {
	case "ib_core":
		return len(f.HCAs) > 0
	case "ib_uverbs":
		return rdma.VerbsVersion(f.env.Host) != ""
	}
	for _, a := range addresses {
		for i := range f.HCAs {
			if f.HCAs[i].PCI == a {
				return true
			}
		}
	}
	return false
}

// judgeABI judges whether loaded modules have their interface for programs.
func (c *ibModules) judgeABI(env *checks.Env, has func(string) bool) (findings []checks.Finding) {
	for _, m := range []struct {
		module, dir, version string
		severity             checks.Severity
	}{{"ib_uverbs", "infiniband_verbs", rdma.VerbsVersion(env.Host), checks.Fail}, {"ib_umad", "infiniband_mad", rdma.MADVersion(env.Host), checks.Warn}} {
		if n, ok := checks.ParseInteger(m.version); has(m.module) && (!ok || n == 0) {
			findings = append(findings, checks.Finding{Code: "ib.modules.abi", Severity: m.severity, Device: checks.Device{Kind: "module", Name: m.module}, Want: "a version", Got: m.version}.
				Phrase(ibModulesName, "module %s is loaded, but /sys/class/%s/abi_version has no version%s", m.module, m.dir, checks.Before(": ", m.version, "")))
		}
	}
	return findings
}
