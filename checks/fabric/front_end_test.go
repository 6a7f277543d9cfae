package fabric

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// routed gives the interfaces default routes with rising metrics, as NetworkManager does.
func routed(n *fakesys.Node, devs ...string) *fakesys.Node {
	n.Files["proc/net/route"] = ""
	for i, dev := range devs {
		n.DefaultRouteOf(dev, 100+i)
	}
	return n
}

// withFront adds more cards of the rails' kind: ens1, ens2.
func withFront(n *fakesys.Node, count int) *fakesys.Node {
	for i := range count {
		p := frontEndPort(0xf1+i, 0)
		p.ID, p.Type, p.Board, p.Rate, p.NetDev = "15b3:1021", "MT4129", "MT_0000000834", "200 Gb/sec (2X NDR)", fmt.Sprintf("ens%d", 1+i)
		n.AddHCA(p)
	}
	return n
}

// inVM moves the rails away from the GPUs, as in a virtual machine.
func inVM(n *fakesys.Node) *fakesys.Node {
	for i := range 8 {
		n.Move(fakesys.HCAAddress(i), fmt.Sprintf("0000:b%d:01.0", i))
	}
	return n
}

// without returns a node that has lost rails, with their interfaces and routes.
func without(n *fakesys.Node, rails ...int) *fakesys.Node {
	n = n.Clone()
	for _, i := range rails {
		n.Remove(fakesys.HCAAddress(i))
		delete(n.Links, "sys/bus/pci/devices/"+fakesys.HCAAddress(i))
		lines := slices.Collect(strings.Lines(n.Files["proc/net/route"]))
		n.Files["proc/net/route"] = strings.Join(slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, fmt.Sprintf("eth1%d\t", i)) }), "")
	}
	return n
}

// later returns the environment of a node on which check_ib_ports ran five minutes ago, as it was then.
func later(t *testing.T, then []*fakesys.Node, now *fakesys.Node) *checks.Env {
	t.Helper()
	past := ""
	var env *checks.Env
	for i, n := range append(then, now) {
		n = n.Clone()
		if len(then) > 0 {
			n.Files["proc/uptime"] = fmt.Sprintf("%d.00 1.00\n", 323045+300*i)
		}
		root := t.TempDir()
		if err := n.Write(root); err != nil {
			t.Fatal(err)
		}
		if past != "" {
			if err := os.CopyFS(root+"/past", os.DirFS(past)); err != nil {
				t.Fatal(err)
			}
		}
		past = root + "/past"
		env = &checks.Env{Host: probe.NewHost(root), Doing: func(string) {}}
		env.Host.SetPast("/past")
		if i < len(then) {
			(&ibPorts{}).Run(t.Context(), env)
		}
	}
	return env
}

// A port keeps its role while a card is absent or another one cannot be read, and if the metrics of the
// routes change at a boot. Only the PCI tree distinguishes a front end of the rails' kind.
func TestFrontEnd(t *testing.T) {
	t.Parallel()
	rails := []string{"eth10", "eth11", "eth12", "eth13", "eth14", "eth15", "eth16", "eth17"}
	first, last := append([]string{"ens1"}, rails...), append(slices.Clone(rails), "ens1")
	nine := routed(withFront(fakesys.RoCE(), 1), first...)
	dealt := routed(withFront(fakesys.RoCE(), 1), last...)
	vm := inVM(nine.Clone())
	eightVM := inVM(routed(fakesys.RoCE(), rails...))
	noRDMA := func(n *fakesys.Node) *fakesys.Node {
		n = n.Clone()
		return n.NoRDMA("rocep3s0")
	}
	lostGPU := routed(fakesys.RoCE(), rails...)
	lostGPU.Remove("0000:13:00.0")
	delete(lostGPU.Links, "sys/bus/pci/devices/0000:13:00.0")
	four := without(routed(fakesys.RoCE(), rails[:4]...), 4, 5, 6, 7)
	mixed := fakesys.RoCE()
	mixed = without(mixed, 4, 5, 6, 7)
	for i := range 2 {
		mixed.AddHCA(fakesys.HCA{PCI: fakesys.PCI{Address: fmt.Sprintf("0000:29:00.%d", i), ID: "15b3:101b", Driver: "mlx5_core", Speed: "16.0 GT/s PCIe", Width: 16},
			Name: fmt.Sprintf("mlx5_%d", 8+i), Type: "MT4123", Layer: "InfiniBand", Rate: "200 Gb/sec (4X HDR)", Index: 9 + i})
	}
	unreadLayer := func(n *fakesys.Node) *fakesys.Node {
		n = n.Clone()
		file := n.Port("rocep2s0") + "link_layer"
		delete(n.Files, file)
		n.Files[file+"/x"] = ""
		return n
	}
	twoOutside := routed(fakesys.RoCE(), rails...)
	for i := range 2 {
		twoOutside.Move(fakesys.HCAAddress(i), fmt.Sprintf("0000:b%d:01.0", i))
	}
	for _, c := range []struct {
		name string
		then []*fakesys.Node
		now  *fakesys.Node
		data int    // ports for jobs
		left string // the front end
	}{
		{"a rail is gone", nil, without(nine, 3), 7, "mlx5_f1_0:1"},
		{"the metrics change", nil, dealt, 8, "mlx5_f1_0:1"},
		{"a second card beside the front end, without a route", nil, routed(withFront(fakesys.RoCE(), 2), first...), 9, "mlx5_f1_0:1"},
		{"two of eight rails are below no GPU", nil, twoOutside, 8, ""},
		{"a rail without an RDMA device", nil, noRDMA(nine), 7, "mlx5_f1_0:1"},
		{"a GPU is gone", nil, lostGPU, 8, ""},
		{"virtual machine", nil, vm, 9, ""},
		{"virtual machine, a rail is gone", []*fakesys.Node{vm}, without(vm, 3), 8, ""},
		{"virtual machine, a rail without an RDMA device", nil, noRDMA(vm), 8, ""},
		{"virtual machine without a front end, a rail is gone", []*fakesys.Node{eightVM}, without(eightVM, 3), 7, ""},
		{"virtual machine without a front end, a rail without an RDMA device", nil, noRDMA(eightVM), 7, ""},
		{"one of four rails is gone", []*fakesys.Node{four}, without(four, 3), 3, ""},
		{"one of four rails without an RDMA device", nil, noRDMA(four), 3, ""},
		{"one of four rails is unread", nil, unreadLayer(four), 4, ""},
		{"beside InfiniBand", nil, mixed, 6, ""},
		{"beside InfiniBand, a rail is gone", []*fakesys.Node{mixed}, without(mixed, 3), 5, ""},
		{"beside InfiniBand, a rail is unread", nil, unreadLayer(mixed), 6, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, findings := Ask(later(t, c.then, c.now), "check_x")
			if f == nil {
				t.Fatal(findings)
			}
			data, left := 0, []string{}
			for _, p := range f.Ports {
				if p.Left == "" {
					data++
				} else {
					left = append(left, p.Name())
				}
			}
			slices.Sort(left)
			if got := strings.Join(left, " "); data != c.data || got != c.left {
				t.Errorf("%d ports, left out %q, want %d and %q", data, got, c.data, c.left)
			}
		})
	}
}

// The number of adapters is short if a rail is gone or has no driver, also if another one counts.
func TestCountWithoutARail(t *testing.T) {
	t.Parallel()
	first := []string{"ens1", "eth10", "eth11", "eth12", "eth13", "eth14", "eth15", "eth16", "eth17"}
	tree := routed(withFront(fakesys.RoCE(), 1), first...)
	stranger := withFront(fakesys.RoCE(), 1).NoRDMA("rocep3s0") // without a default route
	for name, c := range map[string]struct {
		then []*fakesys.Node
		now  *fakesys.Node
		want string
	}{
		"gone":        {[]*fakesys.Node{tree}, without(tree, 3), "fail ib.count"},
		"no driver":   {nil, tree.Clone().NoRDMA("rocep3s0"), "fail ib.count"},
		"a stranger":  {nil, stranger, "warn ib.lacking"},
		"all of them": {nil, tree, ""},
	} {
		var got []string
		for _, f := range (&ibCount{Count: 8}).Run(t.Context(), later(t, c.then, c.now)) {
			got = append(got, fmt.Sprint(f.Severity, " ", f.Code))
		}
		if diff := cmp.Diff(c.want, strings.Join(got, ", ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A port whose GUID, link layer or board could not be read keeps its history.
func TestUnreadNameKeepsThePast(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"ports/1/link_layer", "node_guid"} {
		now := fakesys.RoCE()
		path := now.Dir("rocep3s0") + "/" + file
		delete(now.Files, path)
		now.Files[path+"/x"] = ""
		slow := fakesys.RoCE().HalfRate("rocep3s0")
		got := (&ibPorts{}).Run(t.Context(), later(t, []*fakesys.Node{fakesys.RoCE(), now}, slow))
		if !slices.ContainsFunc(got, func(f checks.Finding) bool { return strings.Contains(f.Message, "earlier in this boot") }) {
			t.Errorf("%s: %v", file, got)
		}
	}
}
