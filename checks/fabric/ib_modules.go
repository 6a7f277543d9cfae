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

// ibModules checks that the kernel has what RDMA needs, as modules or built in. MODULE
// names one that has to be there, or several of which one has to be: 'nvidia_peermem|
// nv_peer_mem'; for dma-buf in their place see check_gpu_driver -m. Without MODULE they
// are ib_core, ib_uverbs and the module of each InfiniBand, Omni-Path or EFA adapter that
// the PCI bus has (mlx5_ib, hfi1, efa), and of Mellanox adapters for Ethernet where they are
// four at least; it warns if rdma_cm is missing beside InfiniBand or RoCE
// ports, and ib_umad beside InfiniBand: storage and tools need them, most jobs do not. A node without an adapter
// has no need of any. Other Ethernet adapters may do without RDMA: name mlx5_ib, irdma
// or bnxt_re if they are the fabric. A module that is missing in the first five minutes
// after a boot is skipped, but not before a job.
//
//	gpu* || check_ib_modules
//	gpu* || check_ib_modules ib_uverbs mlx5_ib rdma_ucm
type ibModules struct {
	Modules []string `arg:"*" toml:"modules"` // modules, each of which has to be there
}

const ibModulesName = "check_ib_modules"

func init() {
	checks.Register(checks.Info{
		Name:    ibModulesName,
		Usage:   "[MODULE...]",
		Summary: "the kernel modules that RDMA needs are loaded",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibModules{} },
		Do: func() map[string]string {
			return map[string]string{
				"ib.modules":       "modprobe the module, and see dmesg for why it was not loaded; after an update of the kernel or of OFED it may not have been built. List it in /etc/modules-load.d, or see rdma-core's rdma-load-modules@.service.",
				"ib.modules.abi":   "The module is there, its interface to programs is not: see dmesg; kernel and RDMA modules are of different OFEDs. /etc/init.d/openibd restart with no job on the node, or reboot.",
				"ib.modules.extra": "Jobs may run without it, storage or tools may not: modprobe it, list it in /etc/modules-load.d. If nobody needs it name those that are needed: check_ib_modules ib_uverbs mlx5_ib.",
			}
		},
	})
}

func (c *ibModules) Run(_ context.Context, env *checks.Env) []checks.Finding {
	f, none := askPorts(env, ibModulesName)
	if f == nil {
		return none
	}
	bus, err := busHCAs(env)
	if err != nil {
		return checks.Unreadable(err)
	}
	many := manyCards(bus)
	bus = slices.DeleteFunc(bus, func(d pci.Function) bool { return mayDoWithout(&d, many) })
	if len(f.HCAs) == 0 && len(bus) == 0 && len(c.Modules) == 0 {
		return none
	}
	env.At("read /proc/modules")
	loaded, err := probe.Modules(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	env.Fact("%s", checks.Plural(len(f.HCAs), "adapter"))
	has := func(names string) bool {
		return slices.ContainsFunc(checks.ModuleNames(names), func(n string) bool { return slices.Contains(loaded, n) || probe.BuiltIn(env.Host, n) })
	}
	var findings []checks.Finding
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
		return f.Settle(append(findings, c.abi(env, has)...), moduleCodes...)
	}
	needed, extra := ibNeeds(f)
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
	return f.Settle(append(findings, c.abi(env, has)...), moduleCodes...)
}

// manyCards says whether a node has so many Mellanox cards for Ethernet that they are
// there for RDMA.
func manyCards(bus []pci.Function) bool {
	cards := map[string]bool{}
	for i := range bus {
		if m := ModelOf(bus[i].Vendor, bus[i].Device, ""); m != nil && m.Module == "mlx5_ib" {
			cards[card(bus[i].Address)] = true
		}
	}
	return len(cards) >= manyPorts
}

// moduleCodes are those of modules that a boot has not loaded yet.
var moduleCodes = []string{"ib.modules", "ib.modules.abi", "ib.modules.extra"}

// mayDoWithout says whether an adapter is one that many sites have for Ethernet alone.
func mayDoWithout(d *pci.Function, many bool) bool {
	m := ModelOf(d.Vendor, d.Device, "")
	return !ibOnBus(d) && (m == nil || m.Module != "efa" && (!many || m.Module != "mlx5_ib"))
}

// ibNeeds are the modules that RDMA needs, those of adapters apart, and those that
// only some need.
func ibNeeds(f *Fabric) (needed map[string][]string, extra []string) {
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

// inUse says whether the kernel shows the work of a module that it does not name, as
// one that is built in: of ib_core any device, of an adapter's that it is one.
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

// abi judges whether modules that are there serve programs.
func (c *ibModules) abi(env *checks.Env, has func(string) bool) (findings []checks.Finding) {
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
