package checks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestIBModules(t *testing.T) { testCheck(t, "check_ib_modules") }

var _ = table("check_ib_modules", func(name string) []scenario {
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
	module := func(code string, severity Severity, module, why string) Finding {
		return Finding{Code: "ib.modules" + code, Severity: severity, Device: Device{Kind: "module", Name: module}, Want: "loaded", Got: "not loaded",
			Message: name + ":  module " + module + " is not loaded" + before("; ", why, "")}
	}
	abi := func(severity Severity, m, dir, version string) Finding {
		return Finding{Code: "ib.modules.abi", Severity: severity, Device: Device{Kind: "module", Name: m}, Want: "a version", Got: version,
			Message: name + ":  module " + m + " is loaded, but /sys/class/" + dir + "/abi_version has no version" + before(": ", version, "")}
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
	broken := func(s scenario) scenario {
		s.broken = true
		return s
	}
	noModules := func(n *fakesys.Node) {
		delete(n.Files, "proc/modules")
		n.Files["proc/modules/"] = ""
	}
	noBus := onFabric("unreadable PCI bus", nil, nil, Finding{Code: "probe.unreadable", Severity: Unknown, Message: "read /sys/bus/pci/devices: not a directory"})
	noBus.files, noBus.links, noBus.node, noBus.nvml, noBus.broken = map[string]string{"sys/bus/pci/devices": ""}, nil, "", nil, true
	return []scenario{
		onFabric("healthy", nil, nil), onRoCE("healthy RoCE", nil, without("ib_umad")),
		onFabric("as wanted", of("mlx5_ib", "nvidia-peermem|nv_peer_mem"), nil).orTable(map[string]any{"modules": []any{"mlx5_ib", "nvidia-peermem|nv_peer_mem"}}),
		onFabric("one that is wanted is missing", of("mlx5_ib", "rdma_rxe"), nil, module("", Fail, "rdma_rxe", "")),
		onFabric("built in", nil, builtIn),
		onFabric("built in, as their devices show", nil, func(n *fakesys.Node) { without("ib_core", "ib_uverbs", "mlx5_ib")(n) }),
		onFabric("no verbs", nil, func(n *fakesys.Node) { without("ib_uverbs")(n); noClass(n) },
			module("", Fail, "ib_uverbs", ""), abi(Warn, "ib_umad", "infiniband_mad", "")),
		onFabric("no module of the adapters", nil, noDevices, module("", Fail, "mlx5_ib", "needed by "+addresses)),
		onFabric("no module for tools", nil, func(n *fakesys.Node) {
			without("ib_umad", "rdma_cm")(n)
			delete(n.Files, "sys/class/infiniband_mad/abi_version")
		}, module(".extra", Warn, "rdma_cm", ""), module(".extra", Warn, "ib_umad", "")),
		onFabric("a module that serves nobody", nil, func(n *fakesys.Node) { n.Files["sys/class/infiniband_verbs/abi_version"] = "0\n" }, abi(Fail, "ib_uverbs", "infiniband_verbs", "0")),
		broken(onFabric("garbage for a version", nil, func(n *fakesys.Node) { n.Files["sys/class/infiniband_verbs/abi_version"] = "six\n" }, abi(Fail, "ib_uverbs", "infiniband_verbs", "six"))),
		broken(onFabric("unreadable modules", nil, noModules, Finding{Code: "probe.unreadable", Severity: Unknown, Message: "read /proc/modules: is a directory"})),
		noBus,
		ethernetOnly(Finding{Code: "ib.none", Severity: Skip, Message: name + ":  no RDMA device on this node"}),
		ethernetOnly(module("", Fail, "mlx5_ib", ""), "mlx5_ib"),
		onNode(fakesys.NDH100v5(), "a virtual machine", nil), onNode(fakesys.GB200(), "a tray", nil),
		onNode(fakesys.MellanoxEthernet(3), "Mellanox for Ethernet alone", nil, Finding{Code: "ib.none", Severity: Skip, Message: name + ":  no RDMA device on this node"}),
		onNode(fakesys.MellanoxEthernet(4), "as many Mellanox cards as RoCE has", nil, module("", Fail, "ib_core", ""), module("", Fail, "ib_uverbs", ""),
			module("", Fail, "mlx5_ib", "needed by 0000:c0:00.0 0000:c0:00.1 0000:c1:00.0 0000:c1:00.1 0000:c2:00.0 0000:c2:00.1 0000:c3:00.0 0000:c3:00.1")),
		onNode(opaAlone(), "Omni-Path without its driver", nil, module("", Fail, "hfi1", "needed by 0000:c0:00.0"), module("", Fail, "ib_core", ""), module("", Fail, "ib_uverbs", "")),
		onNode(efaNode(), "EFA, which knows no rdma_cm", nil),
	}
})
