package checks

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestIBFirmware(t *testing.T) { testCheck(t, "check_ib_firmware") }

var _ = table("check_ib_firmware", func(name string) []scenario {
	const board = "MT_0000000838"
	older := func(n *fakesys.Node) { n.Set("mlx5_3", "fw_ver", "28.36.1010") }
	set := func(file, content string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Set("mlx5_3", file, content) }
	}
	says := func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return hcaFinding(name, "mlx5_3", 3, Finding{Code: "ib.firmware." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	none := func(why string) Finding {
		return Finding{Code: "ib.firmware.board", Severity: Skip, Message: name + ":  no adapter to judge" + why}
	}
	broken := func(s scenario) scenario {
		s.broken = true
		return s
	}
	unreadable := "read /sys/class/infiniband/mlx5_3/fw_ver: is a directory"
	var half []Finding
	for i := 4; i < 8; i++ {
		half = append(half, hcaFinding(name, fmt.Sprintf("mlx5_%d", i), i, Finding{Code: "ib.firmware.differ", Severity: Warn, Remedy: FixConfig, Want: "28.36.1010", Got: "28.39.2048"},
			"firmware is not that of mlx5_0, board "+board))
	}
	bnxt := fakesys.Kinds()["broadcom roce"].Set("bnxt_re3", "fw_ver", "229.0.1.0")
	return []scenario{
		onFabric("healthy", nil, nil), onRoCE("healthy RoCE", nil, nil),
		onFabric("as wanted", of("28.39.2048"), nil).orTable(map[string]any{"versions": []any{"28.39.2048"}}),
		onFabric("as one of several", of("28.36.*", `/28\.(39|43)\..*/`), nil),
		onFabric("new enough", of("-b", board, "-m", "28.39.1002"), nil).orTable(map[string]any{"board": board, "minimum": "28.39.1002"}),
		onFabric("one is not that of the others", nil, older, says(Warn, "differ", FixConfig, "28.39.2048", "28.36.1010", "firmware is not that of the other boards "+board)),
		onFabric("half of them were flashed", nil, func(n *fakesys.Node) {
			for _, device := range []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"} {
				n.Set(device, "fw_ver", "28.36.1010")
			}
		}, half...),
		onFabric("another board has other firmware", nil, func(n *fakesys.Node) { older(n); n.Set("mlx5_3", "board_id", "MT_0000000892") }),
		onFabric("one is not what is wanted", of("28.39.*"), older, says(Fail, "version", FixConfig, "28.39.*", "28.36.1010", "firmware of board "+board)),
		onFabric("one is none of those wanted", of("28.39.2048", "28.43.*"), older, says(Fail, "version", FixConfig, "28.39.2048 or 28.43.*", "28.36.1010", "firmware of board "+board)),
		onFabric("one is too old", of("-m", "28.37.1000"), older, says(Fail, "version", FixConfig, "at least 28.37.1000", "28.36.1010", "firmware of board "+board)),
		onFabric("numbers are no text", of("-m", "28.9.99"), nil),
		onFabric("one is too old, of another board", of("-b", "MT_0000000892", "-m", "28.37.1000"), older, none(", none is a board MT_0000000892")),
		onFabric("a minimum that is none", of("-m", "new"), nil, Finding{Code: "config.value", Severity: Unknown, Remedy: FixConfig, Want: "numbers and dots", Got: "new", Message: name + `:  version "new", want numbers and dots`}),
		broken(onFabric("unreadable firmware", nil, set("fw_ver/", ""), ibUnknown(name, "hca", "mlx5_3", 3, unreadable))),
		broken(onFabric("no firmware is told", of("28.39.2048"), set("fw_ver", "-"), ibUnknown(name, "hca", "mlx5_3", 3, "mlx5_3 tells no firmware"))),
		broken(onFabric("no firmware is told, none is asked for", nil, set("fw_ver", "-"))),
		broken(onFabric("garbage for firmware", of("-m", "28.39.2048"), set("fw_ver", "x.y"), ibUnknown(name, "hca", "mlx5_3", 3, `firmware "x.y": want numbers and dots`))),
		broken(onFabric("unreadable board", of("-b", board), set("board_id/", ""), ibUnknown(name, "hca", "mlx5_3", 3, "read /sys/class/infiniband/mlx5_3/board_id: is a directory"))),
		onNode(bnxt, "one is not that of the others, and none tells a board", nil, about(name, Device{Kind: "hca", Name: "bnxt_re3", PCI: "0000:23:00.0", UUID: "b83f:d203:00c5:1a03"},
			Finding{Code: "ib.firmware.differ", Severity: Warn, Remedy: FixConfig, Want: "230.2.52.0", Got: "229.0.1.0"}, "firmware is not that of the other boards 14e4:1760")),
		onNode(fakesys.NDH100v5(), "a virtual machine", nil), onNode(fakesys.GB200(), "a tray", nil),
		onNode(fakesys.GB200(), "the DPUs of a tray", of("-b", "MT_0000000884", "32.41.1000")),
		ethernetOnly(Finding{Code: "ib.none", Severity: Skip, Message: name + ":  no RDMA device on this node"}),
	}
})
