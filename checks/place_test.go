package checks

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// discoveredText is what ibnetdiscover -p prints of a small fabric: two nodes below two
// switches of one name, a managed switch, an adapter on a back-to-back cable, an open port.
const discoveredText = `CA    17  1 0xb83fd20300c51a03 4x NDR - SW     2 13 0x0002c90200423d58 ( 'gpu07 mlx5_3' - 'MF0;leaf03:MQM9700/U1' )
CA    18  1 0xb83fd20300c51a04 4x NDR - SW     3 14 0x0002c90200423d60 ( 'gpu07 mlx5_4' - 'Quantum Mellanox Technologies' )
CA    19  1 0xb83fd20300c51a05 4x NDR - SW     4 15 0x0002c90200423d70 ( 'gpu07 mlx5_5' - 'Quantum Mellanox Technologies' )
CA    20  2 0x00000000b83fd206 4x FDR10 - CA    21  1 0x0002c90300001234 ( 'gpu07 mlx5_6' - 'store1 'HCA' - 1' )
SW     2 13 0x0002c90200423d58 4x NDR - CA    17  1 0xb83fd20300c51a03 ( 'MF0;leaf03:MQM9700/U1' - 'gpu07 mlx5_3' )
SW     2 14 0x0002c90200423d58 4x ???                                    'MF0;leaf03:MQM9700/U1'
garbage
`

func TestCabling(t *testing.T) {
	t.Parallel()
	list, ports := Cabling(discoveredText)
	const want = `0x00000000b83fd206,2 store1 'HCA' - 1 port 1 # gpu07 mlx5_6
0xb83fd20300c51a03,1 leaf03 port 13 # gpu07 mlx5_3
0xb83fd20300c51a04,1 Quantum Mellanox Technologies 0x0002c90200423d60 port 14 # gpu07 mlx5_4
0xb83fd20300c51a05,1 Quantum Mellanox Technologies 0x0002c90200423d70 port 15 # gpu07 mlx5_5
`
	if diff := cmp.Diff(want, list); diff != "" || ports != 4 {
		t.Errorf("%d ports (-want +got):\n%s", ports, diff)
	}
	table, err := parseCabling("f", list)
	if err != nil || len(table) != 4 || table["b83fd20300c51a03,1"] != "leaf03 port 13" {
		t.Errorf("read again: %v, %v", table, err)
	}
	if list, ports := Cabling("Topology file: generated on Mon\n"); list != "" || ports != 0 {
		t.Errorf("%q, %d", list, ports)
	}
}

func TestCablingFile(t *testing.T) {
	t.Parallel()
	table, err := parseCabling("f", "\n# comment\n0xB83FD20300C51A03,1 leaf03 swp12 # gpu07\nb83f:d203:00c5:1a04,2\tx\nb83f:d203:00c5:1a04,2 leaf04\nshort,1 x\n0xb83fd20300c51a05,one x\n0xb83fd20300c51a05,1\n")
	want := cablingTable{"b83fd20300c51a03,1": "leaf03 swp12", "b83fd20300c51a04,2": "leaf04"}
	if diff := cmp.Diff(want, table); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err == nil || strings.Count(err.Error(), "want GUID,PORT and the far end") != 4 || !strings.HasPrefix(err.Error(), "f:4: ") {
		t.Errorf("%v", err)
	}
	if CablingErrors("f", []byte("# nothing\n")) != nil || CablingErrors("f", []byte("x")) == nil {
		t.Error("lint")
	}
}

func FuzzCabling(f *testing.F) {
	f.Add(discoveredText)
	f.Fuzz(func(t *testing.T, text string) {
		list, ports := Cabling(text)
		if strings.Count(list, "\n") != ports {
			t.Errorf("%d ports: %q", ports, list)
		}
		_, _ = parseCabling("f", text)
	})
}

// placed is a node whose third port is down, with all that tells where it is.
func placed(t *testing.T, n *fakesys.Node) *Env {
	t.Helper()
	n.Files["sys/bus/pci/slots/7/address"] = "0000:23:00\n"
	n.Files["etc/nhc/cabling"] = "0xb83fd20300c51a03,1 leaf03 port 13\n"
	n.Files["recorded/lldp.json"] = `{"lldp":{"interface":{"eth13":{"chassis":{"leaf09":{"id":{"value":"x"}}},"port":{"id":{"value":"swp4"}}}}}}`
	root := t.TempDir()
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	return &Env{Host: probe.NewHost(root)}
}

func TestLocate(t *testing.T) {
	t.Parallel()
	module := &probe.Module{Form: "OSFP", Vendor: "NVIDIA", Part: "MMA4Z00-NS", Serial: "MT2240FT00001"}
	var asked [][]PortAnswer
	answer := func(ask []PortAnswer, _ time.Duration) []PortAnswer {
		asked = append(asked, ask)
		return []PortAnswer{{NetDev: "eth13"}, {PCI: "0000:23:00.0", NetDev: "ib3", Transceiver: module, Devlink: []probe.Reporter{{Name: "fw", State: "error", Errors: 3}}}}
	}
	env := placed(t, fakesys.DGXH100().Down("mlx5_3"))
	env.AskPorts = answer
	got := (&ibPorts{}).Run(t.Context(), env)
	Locate(t.Context(), env, got)
	if len(got) != 1 || got[0].Message != "check_ib_ports:  mlx5_3:1 0000:23:00.0: no link: the cable or the far end, want ACTIVE LinkUp, got DOWN Polling (slot 7, to leaf03 port 13)" {
		t.Fatalf("%+v", got)
	}
	want := &Place{Slot: "7", FarEnd: "leaf03 port 13", NetDev: "ib3", Transceiver: module, Devlink: []probe.Reporter{{Name: "fw", State: "error", Errors: 3}}}
	if diff := cmp.Diff(want, got[0].Place); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if detail, want := got[0].Detail(), "mlx5_3:1 0000:23:00.0: transceiver OSFP NVIDIA MMA4Z00-NS, serial MT2240FT00001; devlink health fw: error, 3 errors, 0 recoveries"; detail != want {
		t.Errorf("%s, want %s", detail, want)
	}
	if diff := cmp.Diff([][]PortAnswer{{{PCI: "0000:23:00.0", NetDev: "ib3"}}}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}

	// A RoCE port has its switch from lldpd; one that nobody answers of has what is known.
	env = placed(t, fakesys.RoCE().Down("rocep3s0"))
	env.AskPorts = func([]PortAnswer, time.Duration) []PortAnswer { return nil }
	env.Vars = map[string]string{"IB_CABLING": "/none"}
	got = (&ibPorts{}).Run(t.Context(), env)
	Locate(t.Context(), env, got)
	if len(got) != 1 || !strings.HasSuffix(got[0].Message, "got DOWN Disabled (slot 7, to leaf09 swp4)") || got[0].Detail() != "" {
		t.Errorf("%+v", got)
	}

	// Nothing is asked of a healthy node, or of one that only could not be read.
	asked = nil
	env = placed(t, fakesys.DGXH100())
	env.AskPorts = answer
	Locate(t.Context(), env, (&ibPorts{}).Run(t.Context(), env))
	unknown := []Finding{{Severity: Unknown, Device: Device{Kind: "port", Name: "mlx5_3:1", PCI: "0000:23:00.0"}, Message: "x"}, {Severity: Fail, Device: Device{Kind: "mount", Name: "/home"}, Message: "y"}}
	Locate(t.Context(), env, unknown)
	if asked != nil || unknown[0].Message != "x" || unknown[1].Message != "y" || unknown[0].Place != nil {
		t.Errorf("asked %v, said %v", asked, unknown)
	}

	// A step without time asks no one.
	env = placed(t, fakesys.DGXH100().Down("mlx5_3"))
	env.AskPorts = answer
	over := WithDeadline(t.Context(), time.Now())
	got = (&ibPorts{}).Run(over, env)
	Locate(over, env, got)
	if len(got) != 1 || !strings.HasSuffix(got[0].Message, "(slot 7, to leaf03 port 13)") || asked != nil {
		t.Errorf("%+v, asked %v", got, asked)
	}

	// A disk has its slot; its adapter is none to be asked.
	n := fakesys.DGXH100().Set("nvme3", "state", "dead")
	n.Files["sys/bus/pci/slots/Bay4/address"] = "0000:43:00\n"
	env = placed(t, n)
	env.AskPorts = answer
	got = (&nvmeHealth{Names: []string{"nvme3"}}).Run(t.Context(), env)
	Locate(t.Context(), env, got)
	if len(got) != 1 || !strings.HasSuffix(got[0].Message, "got dead (slot Bay4)") || asked != nil {
		t.Errorf("%+v, asked %v", got, asked)
	}

	// A node of which nothing is known says nothing more.
	bare := t.TempDir()
	if err := fakesys.DGXH100().Down("mlx5_3").Write(bare); err != nil {
		t.Fatal(err)
	}
	env = &Env{Host: probe.NewHost(bare)}
	got = (&ibPorts{}).Run(t.Context(), env)
	Locate(t.Context(), env, got)
	if len(got) != 1 || got[0].Place != nil || !strings.HasSuffix(got[0].Message, "got DOWN Polling") {
		t.Errorf("%+v", got)
	}
}
