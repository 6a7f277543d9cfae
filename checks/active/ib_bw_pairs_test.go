package active

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// rails returns a RoCE node with routes from its eight interfaces to their neighbours, with masks
// as the kernel writes them: one network with 0000FFFF, a network for each with 00FFFFFF.
func rails(mask string) *fakesys.Node {
	n := fakesys.RoCE()
	for i := range 8 {
		net := fmt.Sprintf("00%02XA8C0", i)
		if mask == "0000FFFF" {
			net = "0000A8C0"
		}
		n.Files["proc/net/route"] += fmt.Sprintf("eth1%d\t%s\t00000000\t0001\t0\t0\t100\t%s\t0\t0\t0\n", i, net, mask)
	}
	return n
}

var _ = checktest.Table("check_ib_bw", func(name string) []checktest.Scenario {
	apart := fakesys.Perftest{Acts: map[string]string{"rocep*": "apart"}}
	var each []string
	for i := range 8 {
		each = append(each, fmt.Sprintf("rocep%ds0:1", i))
	}
	alone := func(ports ...string) checks.Finding {
		f := checks.Finding{Code: "ib.bw.alone", Severity: checks.Skip, Got: strings.Join(ports, " ")}
		f.Message = name + ":  no second port of the kind in the subnet: these ports write to themselves" + checktest.WantGot(f)
		return f
	}
	pair := func(i, j int, severity checks.Severity, code, text string) checks.Finding {
		device := func(i int) string { return fmt.Sprintf("rocep%ds0", i) }
		f := checktest.PortFinding(name, device(i), i, checks.Finding{Code: code, Severity: severity, Got: "Completion with error at client"}, text)
		f.Device.Name += " to " + device(j) + ":1"
		f.Message = strings.Replace(f.Message, device(i)+":1", f.Device.Name, 1)
		return f
	}
	none := func(i, j int) checks.Finding {
		return pair(i, j, checks.Unknown, "ib.bw.way", "no rate, on no port of this kind")
	}
	var ways []checks.Finding // of a network that connects no two ports of a node, in the order of the rounds
	for i := 0; i < 8; i += 2 {
		ways = append(ways, none(i, i+1))
	}
	for i := 0; i < 8; i += 2 {
		ways = append(ways, none(i+1, i))
	}
	return []checktest.Scenario{
		onPorts("pairs of RoCE, rails that are networks of their own", checktest.Of("--pairs"), rails("00FFFFFF"), apart, nil, alone(each...)),
		onPorts("pairs of RoCE, no routes are told", checktest.Of("--pairs"), fakesys.RoCE(), apart, nil, alone(each...)),
		onPorts("pairs of RoCE, one network", checktest.Of("--pairs"), rails("0000FFFF"), fakesys.Perftest{}, nil),
		onPorts("pairs of RoCE, one network that brings no two of a node together", checktest.Of("--pairs"), rails("0000FFFF"), apart, nil, ways...),
		onPorts("RoCE, one in a VRF carries nothing, as before new kernels", nil, rails("0000FFFF"), fakesys.Perftest{Acts: map[string]string{"rocep3s0": "transfer"}}, func(n *fakesys.Node) {
			n.Files["proc/net/route"] = strings.Replace(n.Files["proc/net/route"], "eth13", "eth99", 1)
		}, checktest.PortFinding(name, "rocep3s0", 3, checks.Finding{Code: "ib.bw.way", Severity: checks.Unknown, Got: "Completion with error at client"}, "no rate, on no port of this kind")),
		onPorts("pairs of RoCE, one does not reach the other", checktest.Of("--pairs"), rails("0000FFFF"), fakesys.Perftest{Acts: map[string]string{"rocep3s0": "apart"}}, nil,
			pair(3, 2, checks.Fail, "ib.bw.failed", "no rate")),
	}
})

// Ports are paired only within one subnet, as far as it is known.
func TestIBBWSubnets(t *testing.T) {
	t.Parallel()
	other := func(names ...string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			for _, name := range names {
				n.Set(name, "ports/1/gids/0", strings.Replace(n.Files[n.Dir(name)+"/ports/1/gids/0"], "fe80", "fec0", 1))
			}
		}
	}
	for name, c := range map[string]struct {
		node   *fakesys.Node
		change func(*fakesys.Node)
		want   string
	}{
		"one":            {fakesys.DGXH100(), other(), "0-1 2-3 4-5 6-7"},
		"two prefixes":   {fakesys.DGXH100(), other("mlx5_1", "mlx5_2", "mlx5_6"), "0-3 1-2 4-5 6-6 7-7"},
		"two managers":   {fakesys.DGXH100(), func(n *fakesys.Node) { n.Set("mlx5_1", "ports/1/sm_lid", "0x7") }, "0-2 1-1 3-4 5-6 7-7"},
		"no GID is told": {fakesys.DGXH100(), func(n *fakesys.Node) { n.Set("mlx5_0", "ports/1/gids/0", "?") }, "0-0 1-2 3-4 5-6 7-7"},
		"rails":          {rails("00FFFFFF"), nil, "0-0 1-1 2-2 3-3 4-4 5-5 6-6 7-7"},
		"one network":    {rails("0000FFFF"), nil, "0-1 2-3 4-5 6-7"},
		"a gateway is not a neighbour": {fakesys.RoCE(), func(n *fakesys.Node) {
			n.Files["proc/net/route"] += "eth10\t0000A8C0\t0101A8C0\t0003\t0\t0\t100\t0000FFFF\t0\t0\t0\neth11\t0101A8C0\t00000000\t0001\t0\t0\t100\tFFFFFFFF\t0\t0\t0\n"
		}, "0-0 1-1 2-2 3-3 4-4 5-5 6-6 7-7"},
	} {
		if c.change != nil {
			c.change(c.node)
		}
		root, _ := bwRoot(t, c.node, fakesys.Perftest{})
		env := &checks.Env{Host: probe.NewHost(root)}
		f, _ := fabric.Ask(env, "check_ib_bw")
		ports, _ := f.Judged(nil, "")
		b := &bwRun{activeRun: &activeRun{env: env}, c: bwOf(t, "check_ib_bw", "--pairs")}
		b.plan(ports)
		var got []string
		for _, test := range b.tests {
			if i, j := slices.Index(ports, test.from), slices.Index(ports, test.to); i <= j {
				got = append(got, fmt.Sprintf("%d-%d", i, j))
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: pairs %v, want %s", name, got, c.want)
		}
	}
}
