package sweep

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// rename gives the interfaces of a node other names.
func (w *world) rename(i int, names ...string) {
	for k, name := range names {
		w.nodes[i].Planes[k].Name = name
	}
}

// readdress moves an interface of a node into another subnet: 10.NET.0.0/16.
func (w *world) readdress(i, k, net int) {
	w.nodes[i].Planes[k].Address = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(net), byte(k + 1), byte(i)}), 16)
}

// flat puts all interfaces into one subnet.
func (w *world) flat() {
	for i := range w.nodes {
		w.readdress(i, 1, 77)
	}
}

// Interfaces are one plane by their name, or by their subnet if each node has one of them.
func TestPlanesOf(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		set  func(*world)
		want []string // planes, and how many nodes have them
	}{
		{"two subnets", func(*world) {}, []string{"eth0 10", "eth1 10"}},
		{"one node has the names swapped", func(w *world) { w.rename(3, "eth1", "eth0") }, []string{"eth0 10", "eth1 10"}},
		{"an address in the wrong subnet", func(w *world) { w.readdress(3, 1, 77) }, []string{"eth0 10", "eth1 10"}},
		{"one subnet for all", (*world).flat, []string{"eth0 10", "eth1 10"}},
		{"a subnet for each node", func(w *world) {
			for i := range w.nodes {
				w.readdress(i, 0, 100+i)
			}
		}, []string{"eth0 10", "eth1 10"}},
		{"half of the nodes have other names", func(w *world) {
			for i := range 5 {
				w.rename(i, "ens0", "ens1")
			}
		}, []string{"10.77.0.0/16 10", "10.78.0.0/16 10"}},
		{"each node has its own names", func(w *world) {
			for i := range w.nodes {
				w.rename(i, fmt.Sprintf("enx%da", i), fmt.Sprintf("enx%db", i))
			}
		}, []string{"10.77.0.0/16 10", "10.78.0.0/16 10"}},
		{"other names, and one node has them swapped", func(w *world) {
			w.rename(8, "ens0", "ens1")
			w.rename(9, "ens0", "ens1")
			w.rename(3, "eth1", "eth0")
		}, []string{"eth0/ens0 10", "eth1/ens1 10"}},
		{"other names in one subnet for all", func(w *world) {
			w.flat()
			w.rename(9, "ens0", "ens1")
		}, []string{"eth0/ens0 10", "eth1/ens1 10"}},
		{"other names and several subnets", func(w *world) {
			for i := range 5 {
				w.readdress(i, 1, 79)
			}
			w.rename(9, "eth0", "ens1")
		}, []string{"eth0 10", "eth1/ens1 10"}},
		{"a second interface of one node", func(w *world) {
			w.nodes[3].Planes = append(w.nodes[3].Planes, Plane{Name: "usb0", Address: netip.MustParsePrefix("10.77.9.9/16")})
		}, []string{"eth0 10", "eth1 10", "usb0 1"}},
		{"without subnets", func(w *world) {
			for i := range w.nodes {
				for k := range w.nodes[i].Planes {
					a := w.nodes[i].Planes[k].Address.Addr()
					w.nodes[i].Planes[k].Address = netip.PrefixFrom(a, 32)
				}
			}
		}, []string{"eth0 10", "eth1 10"}},
	} {
		w := newWorld(10, 0, 1)
		tc.set(w)
		var got []string
		for _, p := range planesOf(w.nodes, indexes32(len(w.nodes))) {
			got = append(got, fmt.Sprintf("%s %d", p.name, p.count))
			for i, n := range w.nodes {
				in := 0
				for _, pl := range n.Planes {
					if pl.In(p.name) {
						in++
					}
				}
				if p.has[i] != (in == 1) || in > 1 {
					t.Errorf("%s: %d interfaces of node %d are in plane %s, which says %v", tc.name, in, i, p.name, p.has[i])
				}
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

// The names of planes stay short, and are found in a moment, whatever the nodes call their interfaces.
func TestManyNames(t *testing.T) {
	t.Parallel()
	w := newWorld(10000, 0, 1)
	w.flat()
	for i := range w.nodes {
		w.rename(i, fmt.Sprintf("enx%da", i), fmt.Sprintf("enx%db", i))
	}
	tested := make([]int, len(w.nodes))
	for _, p := range planesOf(w.nodes, indexes32(len(w.nodes))) {
		if len(p.name) > 200 {
			t.Fatalf("the name of a plane has %d bytes", len(p.name))
		}
		for i, has := range p.has {
			if has && p.count > 1 {
				tested[i]++
			}
		}
	}
	if least := slices.Min(tested); least < 2 {
		t.Errorf("a node is tested on %d planes, want 2", least)
	}
}

// A misnamed interface, a wrong address and one subnet for all hide no slow cable. The wrong node is named.
func TestMisnamed(t *testing.T) {
	t.Parallel()
	stray := []string{"connect eth0: want the subnet 10.77.0.0/16 as on 9 of 10 nodes, got 10.78.0.0/16 on gpu00003", "connect eth1: want the subnet 10.78.0.0/16 as on 9 of 10 nodes, got 10.77.0.0/16 on gpu00003"}
	for _, tc := range []struct {
		name  string
		set   func(*world)
		reach []string // nodes and planes that are suspects of reach
		tcp   []string // of tcp, which tests no node that reach suspects
		notes []string
	}{
		{"swapped names", func(w *world) { w.rename(3, "eth1", "eth0") }, []string{"gpu00003"}, []string{"gpu00007 eth1"}, stray},
		{"a wrong address", func(w *world) { w.readdress(3, 1, 77) }, []string{"gpu00003 eth1"}, []string{"gpu00007 eth1"}, stray[1:]},
		{"one subnet for all", (*world).flat, nil, []string{"gpu00007 eth1"}, nil},
		{"one subnet for all, and other names", func(w *world) {
			w.flat()
			w.rename(9, "ens0", "ens1")
		}, nil, []string{"gpu00007 eth1/ens1"}, nil},
		{"swapped names beside other names", func(w *world) {
			w.rename(9, "ens0", "ens1")
			w.rename(3, "eth1", "eth0")
		}, []string{"gpu00003"}, []string{"gpu00007 10.78.0.0/16"}, []string{strings.Replace(stray[0], "9 of 10", "8 of 9", 1), strings.Replace(stray[1], "9 of 10", "8 of 9", 1)}},
	} {
		w := newWorld(10, 0, 1)
		tc.set(w)
		w.unrouted = true
		w.factor = map[string]float64{name(7) + "/eth1": 0.5, name(7) + "/eth1/ens1": 0.5, name(7) + "/10.78.0.0/16": 0.5}
		where := func(list []Suspect) []string {
			seen := map[string]bool{}
			for _, s := range list {
				seen[strings.TrimSpace(s.Node+s.Peer+" "+s.Plane)] = true
			}
			return slices.Sorted(maps.Keys(seen))
		}
		p := w.plan(t, StageReach, PlanOptions{})
		suspects := w.drive(t, p)
		if diff := cmp.Diff(tc.reach, where(suspects), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s, reach (-want +got):\n%s%+v", tc.name, diff, suspects)
		}
		var notes []string
		for _, d := range p.Fleet() {
			if d.Remark != "" {
				notes = append(notes, fmt.Sprintf("%s %s: %s", d.Kind, d.Plane, d.Remark))
			}
		}
		if diff := cmp.Diff(tc.notes, notes, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s, notes (-want +got):\n%s", tc.name, diff)
		}
		if len(tc.reach) > 0 { // as the launcher excludes it
			w.nodes = slices.Delete(w.nodes, 3, 4)
		}
		for _, only := range [][]string{nil, {"eth1"}} {
			if diff := cmp.Diff(tc.tcp, where(w.drive(t, w.plan(t, StageTCP, PlanOptions{NoRing: true, Planes: only})))); diff != "" {
				t.Errorf("%s, tcp on planes %v (-want +got):\n%s", tc.name, only, diff)
			}
		}
	}
}
