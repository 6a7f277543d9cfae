package fabric

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestIBModules(t *testing.T) { checktest.Run(t, "check_ib_modules") }

var _ = checktest.Table("check_ib_modules", func(name string) []checktest.Scenario {
	without := func(modules ...string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			var lines []string
			for line := range strings.Lines(n.Files["proc/modules"]) {
				keep := true
				for _, m := range modules {
					keep = keep && !strings.HasPrefix(line, m+" ")
				}
				if keep {
					lines = append(lines, line)
				}
			}
			n.Files["proc/modules"] = strings.Join(lines, "")
		}
	}
	module := func(code string, severity checks.Severity, module, why string) checks.Finding {
		return checks.Finding{Code: "ib.modules" + code, Severity: severity, Device: checks.Device{Kind: "module", Name: module}, Want: "loaded", Got: "not loaded",
			Message: name + ":  module " + module + " is not loaded" + checks.Before("; ", why, "")}
	}
	abi := func(severity checks.Severity, m, dir, version string) checks.Finding {
		return checks.Finding{Code: "ib.modules.abi", Severity: severity, Device: checks.Device{Kind: "module", Name: m}, Want: "a version", Got: version,
			Message: name + ":  module " + m + " is loaded, but /sys/class/" + dir + "/abi_version has no version" + checks.Before(": ", version, "")}
	}
	all := without("ib_core", "ib_uverbs", "mlx5_ib", "rdma_cm", "ib_umad")
	builtIn := func(n *fakesys.Node) {
		all(n)
		n.Files["proc/sys/kernel/osrelease"] = "6.8.0-nhc\n"
		n.Files["lib/modules/6.8.0-nhc/modules.builtin"] = "kernel/drivers/infiniband/core/ib_core.ko\nkernel/drivers/infiniband/core/rdma_cm.ko\n\xff\n"
	}
	noClass := func(n *fakesys.Node) {
		delete(n.Files, "sys/class/infiniband_verbs/abi_version")
		delete(n.Files, "sys/class/infiniband_mad/abi_version")
	}
	noDevices := func(n *fakesys.Node) {
		for i := range 8 {
			noRoCE(n, fmt.Sprintf("mlx5_%d", i))
		}
		without("mlx5_ib")(n)
	}
	addresses := "0000:20:00.0 0000:21:00.0 0000:22:00.0 0000:23:00.0 0000:24:00.0 0000:25:00.0 0000:26:00.0 0000:27:00.0"
	broken := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	noModules := func(n *fakesys.Node) {
		delete(n.Files, "proc/modules")
		n.Files["proc/modules/"] = ""
	}
	noBus := checktest.OnFabric("unreadable PCI bus", nil, nil, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /sys/bus/pci/devices: not a directory"})
	noBus.Files, noBus.Links, noBus.Node, noBus.NVML, noBus.Broken = map[string]string{"sys/bus/pci/devices": ""}, nil, "", nil, true
	return []checktest.Scenario{
		checktest.OnFabric("healthy", nil, nil), checktest.OnRoCE("healthy RoCE", nil, without("ib_umad")),
		checktest.OnFabric("as wanted", checktest.Of("mlx5_ib", "nvidia-peermem|nv_peer_mem"), nil).OrTable(map[string]any{"modules": []any{"mlx5_ib", "nvidia-peermem|nv_peer_mem"}}),
		checktest.OnFabric("a named one is missing", checktest.Of("mlx5_ib", "rdma_rxe"), nil, module("", checks.Fail, "rdma_rxe", "")),
		checktest.OnFabric("built in", nil, builtIn),
		checktest.OnFabric("built in, shown by their devices", nil, func(n *fakesys.Node) { without("ib_core", "ib_uverbs", "mlx5_ib")(n) }),
		checktest.OnFabric("no verbs", nil, func(n *fakesys.Node) { without("ib_uverbs")(n); noClass(n) },
			module("", checks.Fail, "ib_uverbs", ""), abi(checks.Warn, "ib_umad", "infiniband_mad", "")),
		checktest.OnFabric("no module of the adapters", nil, noDevices, module("", checks.Fail, "mlx5_ib", "needed by "+addresses)),
		checktest.OnFabric("no module for tools", nil, func(n *fakesys.Node) {
			without("ib_umad", "rdma_cm")(n)
			delete(n.Files, "sys/class/infiniband_mad/abi_version")
		}, module(".extra", checks.Warn, "rdma_cm", ""), module(".extra", checks.Warn, "ib_umad", "")),
		checktest.OnFabric("a module without its interface for programs", nil, func(n *fakesys.Node) { n.Files["sys/class/infiniband_verbs/abi_version"] = "0\n" }, abi(checks.Fail, "ib_uverbs", "infiniband_verbs", "0")),
		broken(checktest.OnFabric("garbage for a version", nil, func(n *fakesys.Node) { n.Files["sys/class/infiniband_verbs/abi_version"] = "six\n" }, abi(checks.Fail, "ib_uverbs", "infiniband_verbs", "six"))),
		broken(checktest.OnFabric("unreadable modules", nil, noModules, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /proc/modules: is a directory"})),
		broken(checktest.OnFabric("no module, and the class of an adapter cannot be read", nil, func(n *fakesys.Node) { noDevices(n); n.Set(fakesys.HCAAddress(3), "class/", "") },
			checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /sys/bus/pci/devices/0000:23:00.0/class: is a directory"},
			module("", checks.Fail, "mlx5_ib", "needed by "+strings.Replace(addresses, "0000:23:00.0 ", "", 1)))),
		noBus,
		ethernetOnly(checks.Finding{Code: "ib.none", Severity: checks.Skip, Message: name + ":  no RDMA device on this node"}),
		ethernetOnly(module("", checks.Fail, "mlx5_ib", ""), "mlx5_ib"),
		checktest.OnNode(fakesys.NDH100v5(), "a virtual machine", nil), checktest.OnNode(fakesys.GB200(), "a tray", nil),
		checktest.OnNode(fakesys.MellanoxEthernet(3), "Mellanox for Ethernet alone", nil, checks.Finding{Code: "ib.none", Severity: checks.Skip, Message: name + ":  no RDMA device on this node"}),
		checktest.OnNode(fakesys.MellanoxEthernet(4), "as many Mellanox cards as RoCE has", nil, module("", checks.Fail, "ib_core", ""), module("", checks.Fail, "ib_uverbs", ""),
			module("", checks.Fail, "mlx5_ib", "needed by 0000:c0:00.0 0000:c0:00.1 0000:c1:00.0 0000:c1:00.1 0000:c2:00.0 0000:c2:00.1 0000:c3:00.0 0000:c3:00.1")),
		checktest.OnNode(opaAlone(), "Omni-Path without its driver", nil, module("", checks.Fail, "hfi1", "needed by 0000:c0:00.0"), module("", checks.Fail, "ib_core", ""), module("", checks.Fail, "ib_uverbs", "")),
		checktest.OnNode(efaNode(), "EFA, which knows no rdma_cm", nil),
	}
})
