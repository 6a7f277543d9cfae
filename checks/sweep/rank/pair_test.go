package rank

import (
	"net/netip"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

// Two healthy nodes pass each test of a pair.
func TestPairs(t *testing.T) {
	t.Parallel()
	f := newFleet(t, loopback("a"), loopback("b"))
	for _, tt := range []struct {
		task   sweep.Task
		values []int // how many each rank returns
		lower  bool
	}{
		{sweep.Task{Kind: sweep.KindEcho, Count: 100, Time: 200 * time.Millisecond}, []int{1, 0}, true},
		{sweep.Task{Kind: sweep.KindMTU, Plane: "lo"}, []int{0, 0}, true},
		{sweep.Task{Kind: sweep.KindConnect, Plane: "lo", Repeats: 4}, []int{4, 0}, true},
		{sweep.Task{Kind: sweep.KindName, Op: "localhost"}, []int{1, 0}, true},
		{sweep.Task{Kind: sweep.KindStream, Plane: "127.0.0.0/8", Flows: 3, Repeats: 2, Time: 400 * time.Millisecond}, []int{0, 2}, false},
	} {
		t.Run(string(tt.task.Kind), func(t *testing.T) {
			tt.task.Nodes = []string{"a", "b"}
			for rank, r := range f.do(tt.task) {
				if r.Fault != sweep.FaultNone || len(r.Values) != tt.values[rank] || r.Began.IsZero() {
					t.Errorf("rank %d: %+v", rank, r)
				}
				for _, v := range r.Values {
					if v <= 0 {
						t.Errorf("rank %d: value %v", rank, v)
					}
				}
				if tt.task.Kind == sweep.KindEcho && rank == 0 && r.Sent != 100 {
					t.Errorf("echo has sent %d of 100", r.Sent)
				}
				if tt.task.Kind == sweep.KindStream && rank == 1 && len(r.Windows) < 2 {
					t.Errorf("stream has the windows %v", r.Windows)
				}
			}
		})
	}
}

// A name is right if it leads to any address of the node, and not only to the first one of a plane.
func TestNameOfOtherAddress(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		address string
		fault   sweep.Fault
	}{{"127.0.0.1", sweep.FaultNone}, {"192.0.2.8", sweep.FaultRefused}} {
		n := &node{addresses: []netip.Addr{netip.MustParseAddr(tt.address)}, Node: sweep.Node{Name: "b", Planes: []sweep.Plane{{Name: "eth0", Address: netip.MustParsePrefix("192.0.2.9/24")}}}}
		task := sweep.Task{Kind: sweep.KindName, Op: "localhost", Nodes: []string{"a", "b"}}
		first, second := kinds[sweep.KindName](n), kinds[sweep.KindName](n)
		first.prepare(t.Context(), &wire.Prepare{Task: task, Rank: 0, Key: make([]byte, keySize)})
		ready := second.prepare(t.Context(), &wire.Prepare{Task: task, Rank: 1, Key: make([]byte, keySize)})
		if r := first.run(t.Context(), &wire.Run{Ranks: []wire.Ready{{}, ready}}); r.Fault != tt.fault {
			t.Errorf("%s: %+v", tt.address, r)
		}
	}
}
