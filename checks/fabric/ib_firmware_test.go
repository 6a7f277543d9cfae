package fabric

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestIBFirmware(t *testing.T) { checktest.Run(t, "check_ib_firmware") }

var _ = checktest.Table("check_ib_firmware", func(name string) []checktest.Scenario {
	const board = "MT_0000000838"
	older := func(n *fakesys.Node) { n.Set("mlx5_3", "fw_ver", "28.36.1010") }
	set := func(file, content string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Set("mlx5_3", file, content) }
	}
	says := func(severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		return checktest.HCAFinding(name, "mlx5_3", 3, checks.Finding{Code: "ib.firmware." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	none := func(why string) checks.Finding {
		return checks.Finding{Code: "ib.firmware.board", Severity: checks.Skip, Message: name + ":  no adapter to judge" + why}
	}
	broken := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	unreadable := "read /sys/class/infiniband/mlx5_3/fw_ver: is a directory"
	var half []checks.Finding
	for i := 4; i < 8; i++ {
		half = append(half, checktest.HCAFinding(name, fmt.Sprintf("mlx5_%d", i), i, checks.Finding{Code: "ib.firmware.differ", Severity: checks.Warn, Remedy: checks.FixConfig, Want: "28.36.1010", Got: "28.39.2048"},
			"firmware differs from mlx5_0, board "+board))
	}
	bnxt := fakesys.Kinds()["broadcom roce"].Set("bnxt_re3", "fw_ver", "229.0.1.0")
	return []checktest.Scenario{
		checktest.OnFabric("healthy", nil, nil), checktest.OnRoCE("healthy RoCE", nil, nil),
		checktest.OnFabric("as wanted", checktest.Of("28.39.2048"), nil).OrTable(map[string]any{"versions": []any{"28.39.2048"}}),
		checktest.OnFabric("as one of several", checktest.Of("28.36.*", `/28\.(39|43)\..*/`), nil),
		checktest.OnFabric("new enough", checktest.Of("-b", board, "-m", "28.39.1002"), nil).OrTable(map[string]any{"board": board, "minimum": "28.39.1002"}),
		checktest.OnFabric("one differs from the others", nil, older, says(checks.Warn, "differ", checks.FixConfig, "28.39.2048", "28.36.1010", "firmware differs from the other boards "+board)),
		checktest.OnFabric("half of them are flashed", nil, func(n *fakesys.Node) {
			for _, device := range []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"} {
				n.Set(device, "fw_ver", "28.36.1010")
			}
		}, half...),
		checktest.OnFabric("another board has other firmware", nil, func(n *fakesys.Node) { older(n); n.Set("mlx5_3", "board_id", "MT_0000000892") }),
		checktest.OnFabric("one does not match", checktest.Of("28.39.*"), older, says(checks.Fail, "version", checks.FixConfig, "28.39.*", "28.36.1010", "firmware of board "+board)),
		checktest.OnFabric("one version is not in the list", checktest.Of("28.39.2048", "28.43.*"), older, says(checks.Fail, "version", checks.FixConfig, "28.39.2048 or 28.43.*", "28.36.1010", "firmware of board "+board)),
		checktest.OnFabric("one is too old", checktest.Of("-m", "28.37.1000"), older, says(checks.Fail, "version", checks.FixConfig, "at least 28.37.1000", "28.36.1010", "firmware of board "+board)),
		checktest.OnFabric("versions compare as numbers", checktest.Of("-m", "28.9.99"), nil),
		checktest.OnFabric("one is too old, of another board", checktest.Of("-b", "MT_0000000892", "-m", "28.37.1000"), older, none(", none with board MT_0000000892")),
		checktest.OnFabric("an invalid minimum", checktest.Of("-m", "new"), nil, checks.Finding{Code: "config.value", Severity: checks.Unknown, Remedy: checks.FixConfig, Want: "numbers and dots", Got: "new", Message: name + `:  version "new", want numbers and dots`}),
		broken(checktest.OnFabric("unreadable firmware", nil, set("fw_ver/", ""), ibUnknown(name, "hca", "mlx5_3", 3, unreadable))),
		broken(checktest.OnFabric("unknown firmware", checktest.Of("28.39.2048"), set("fw_ver", "-"), ibUnknown(name, "hca", "mlx5_3", 3, "no firmware version reported"))),
		broken(checktest.OnFabric("unknown firmware, no VERSION", nil, set("fw_ver", "-"))),
		broken(checktest.OnFabric("garbage for firmware", checktest.Of("-m", "28.39.2048"), set("fw_ver", "x.y"), ibUnknown(name, "hca", "mlx5_3", 3, `firmware "x.y": want numbers and dots`))),
		broken(checktest.OnFabric("unreadable board", checktest.Of("-b", board), set("board_id/", ""), ibUnknown(name, "hca", "mlx5_3", 3, "read /sys/class/infiniband/mlx5_3/board_id: is a directory"))),
		checktest.OnNode(bnxt, "one differs from the others, without board ids", nil, checktest.About(name, checks.Device{Kind: "hca", Name: "bnxt_re3", PCI: "0000:23:00.0", UUID: "b83f:d203:00c5:1a03"},
			checks.Finding{Code: "ib.firmware.differ", Severity: checks.Warn, Remedy: checks.FixConfig, Want: "230.2.52.0", Got: "229.0.1.0"}, "firmware differs from the other boards 14e4:1760")),
		checktest.OnNode(fakesys.NDH100v5(), "a virtual machine", nil), checktest.OnNode(fakesys.GB200(), "a tray", nil),
		checktest.OnNode(fakesys.GB200(), "the DPUs of a tray", checktest.Of("-b", "MT_0000000884", "32.41.1000")),
		ethernetOnly(checks.Finding{Code: "ib.none", Severity: checks.Skip, Message: name + ":  no RDMA device on this node"}),
	}
})
