package all

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestLocate(t *testing.T) {
	t.Parallel()
	module := &network.Module{Form: "OSFP", Vendor: "NVIDIA", Part: "MMA4Z00-NS", Serial: "MT2240FT00001"}
	var asked [][]checks.PortAnswer
	answer := func(ask []checks.PortAnswer, _ time.Duration) []checks.PortAnswer {
		asked = append(asked, ask)
		return []checks.PortAnswer{{NetDev: "eth13"}, {PCI: "0000:23:00.0", NetDev: "ib3", Transceiver: module, Devlink: []network.Reporter{{Name: "fw", State: "error", Errors: 3}}}}
	}
	env := makePlaced(t, fakesys.DGXH100().Down("mlx5_3"))
	env.AskPorts = answer
	got := bind(t, "check_ib_ports").Run(t.Context(), env)
	checks.Locate(t.Context(), env, got)
	if len(got) != 1 || got[0].Message != "check_ib_ports:  mlx5_3:1 0000:23:00.0: link down, want ACTIVE LinkUp, got DOWN Polling (slot 7, to leaf03 port 13)" {
		t.Fatalf("%+v", got)
	}
	want := &checks.Place{Slot: "7", FarEnd: "leaf03 port 13", NetDev: "ib3", Transceiver: module, Devlink: []network.Reporter{{Name: "fw", State: "error", Errors: 3}}}
	if diff := cmp.Diff(want, got[0].Place); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if detail, want := got[0].Detail(), "mlx5_3:1 0000:23:00.0: transceiver OSFP NVIDIA MMA4Z00-NS, serial MT2240FT00001; devlink health fw: error, 3 errors, 0 recoveries"; detail != want {
		t.Errorf("%s, want %s", detail, want)
	}
	if diff := cmp.Diff([][]checks.PortAnswer{{{PCI: "0000:23:00.0", NetDev: "ib3"}}}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}

	// The switch of a RoCE port comes from lldpd; a port without an answer keeps the other data.
	env = makePlaced(t, fakesys.RoCE().Down("rocep3s0"))
	env.AskPorts = func([]checks.PortAnswer, time.Duration) []checks.PortAnswer { return nil }
	env.Vars = map[string]string{"IB_CABLING": "/none"}
	got = bind(t, "check_ib_ports").Run(t.Context(), env)
	checks.Locate(t.Context(), env, got)
	if len(got) != 1 || !strings.HasSuffix(got[0].Message, "got DOWN Disabled (slot 7, to leaf09 swp4)") || got[0].Detail() != "" {
		t.Errorf("%+v", got)
	}

	// Nothing is queried on a healthy node, or if the node could not be read.
	asked = nil
	env = makePlaced(t, fakesys.DGXH100())
	env.AskPorts = answer
	checks.Locate(t.Context(), env, bind(t, "check_ib_ports").Run(t.Context(), env))
	unknown := []checks.Finding{{Severity: checks.Unknown, Device: checks.Device{Kind: "port", Name: "mlx5_3:1", PCI: "0000:23:00.0"}, Message: "x"}, {Severity: checks.Fail, Device: checks.Device{Kind: "mount", Name: "/home"}, Message: "y"}}
	checks.Locate(t.Context(), env, unknown)
	if asked != nil || unknown[0].Message != "x" || unknown[1].Message != "y" || unknown[0].Place != nil {
		t.Errorf("asked %v, said %v", asked, unknown)
	}

	// A step without remaining time queries nothing.
	env = makePlaced(t, fakesys.DGXH100().Down("mlx5_3"))
	env.AskPorts = answer
	over := checks.WithDeadline(t.Context(), time.Now())
	got = bind(t, "check_ib_ports").Run(over, env)
	checks.Locate(over, env, got)
	if len(got) != 1 || !strings.HasSuffix(got[0].Message, "(slot 7, to leaf03 port 13)") || asked != nil {
		t.Errorf("%+v, asked %v", got, asked)
	}

	// A disk gets its slot; it has no port to query.
	n := fakesys.DGXH100().Set("nvme3", "state", "dead")
	n.Files["sys/bus/pci/slots/Bay4/address"] = "0000:43:00\n"
	env = makePlaced(t, n)
	env.AskPorts = answer
	got = bind(t, "check_nvme", "nvme3").Run(t.Context(), env)
	checks.Locate(t.Context(), env, got)
	if len(got) != 1 || !strings.HasSuffix(got[0].Message, "got dead (slot Bay4)") || asked != nil {
		t.Errorf("%+v, asked %v", got, asked)
	}

	// A node without any data gets no addition.
	bare := t.TempDir()
	if err := fakesys.DGXH100().Down("mlx5_3").Write(bare); err != nil {
		t.Fatal(err)
	}
	env = &checks.Env{Host: probe.NewHost(bare)}
	got = bind(t, "check_ib_ports").Run(t.Context(), env)
	checks.Locate(t.Context(), env, got)
	if len(got) != 1 || got[0].Place != nil || !strings.HasSuffix(got[0].Message, "got DOWN Polling") {
		t.Errorf("%+v", got)
	}
}

// makePlaced returns a node whose third port is down, with all data about its location.
func makePlaced(t *testing.T, n *fakesys.Node) *checks.Env {
	t.Helper()
	n.Files["sys/bus/pci/slots/7/address"] = "0000:23:00\n"
	n.Files["etc/nhc/cabling"] = "0xb83fd20300c51a03,1 leaf03 port 13\n"
	n.Files["recorded/lldp.json"] = `{"lldp":{"interface":{"eth13":{"chassis":{"leaf09":{"id":{"value":"x"}}},"port":{"id":{"value":"swp4"}}}}}}`
	root := t.TempDir()
	if err := n.Write(root); err != nil {
		t.Fatal(err)
	}
	return &checks.Env{Host: probe.NewHost(root)}
}

// bind returns a check bound to its arguments.
func bind(t *testing.T, words ...string) checks.Check {
	t.Helper()
	return checktest.Bound(t, words)
}
