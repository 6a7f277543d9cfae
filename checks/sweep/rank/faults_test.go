package rank

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/peer"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

// shortLimit is for tasks that wait for an event that never comes.
const shortLimit = time.Second

func silentUDP(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.LocalAddr().String()
}

// Each fault of the second node is the result of the first one, which blames it.
func TestPairFaults(t *testing.T) {
	t.Parallel()
	silentTCP := probetest.Serve(t, func(net.Conn) {})
	stranger := probetest.Serve(t, func(c net.Conn) { _, _ = c.Write(make([]byte, 100)) })
	gone := probetest.Serve(t, func(c net.Conn) { // greets, starts a stream, and dies in the middle
		key := make([]byte, keySize+4)
		_, _ = io.ReadFull(c, key)
		_, _ = c.Write(append(key[:keySize], 1))
		_, _ = io.CopyN(io.Discard, c, 1<<20)
		_ = c.Close()
	})
	long := sweep.Task{Kind: sweep.KindStream, Time: time.Hour, Limit: shortLimit}
	for name, tt := range map[string]struct {
		task    sweep.Task
		address string
		want    sweep.Fault
		blamed  bool
	}{
		"echo refused":      {sweep.Task{Kind: sweep.KindEcho, Count: 5}, probetest.ClosedPort(t), sweep.FaultRefused, true},
		"echo silent":       {sweep.Task{Kind: sweep.KindEcho, Count: 5}, silentUDP(t), sweep.FaultSilent, true},
		"echo out of time":  {sweep.Task{Kind: sweep.KindEcho, Count: 5, Time: time.Hour, Limit: shortLimit}, silentUDP(t), sweep.FaultSilent, true},
		"MTU silent":        {sweep.Task{Kind: sweep.KindMTU, Limit: shortLimit}, silentUDP(t), sweep.FaultSilent, true},
		"connect refused":   {sweep.Task{Kind: sweep.KindConnect}, probetest.ClosedPort(t), sweep.FaultRefused, true},
		"connect silent":    {sweep.Task{Kind: sweep.KindConnect, Limit: shortLimit}, silentTCP, sweep.FaultSilent, true},
		"connect wrong key": {sweep.Task{Kind: sweep.KindConnect}, stranger, sweep.FaultRefused, true},
		"no address":        {sweep.Task{Kind: sweep.KindConnect}, "nowhere", sweep.FaultError, false},
		"wrong name":        {sweep.Task{Kind: sweep.KindName, Op: "no..such"}, "", sweep.FaultRefused, false},
		"stream refused":    {long, probetest.ClosedPort(t), sweep.FaultRefused, true},
		"stream silent":     {long, silentTCP, sweep.FaultSilent, true},
		"stream lost":       {sweep.Task{Kind: sweep.KindStream, Time: time.Hour}, gone, sweep.FaultLost, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, loopback("a"), loopback("b"))
			tt.task.Nodes = []string{"a", "b"}
			ready := f.prepare(&tt.task)
			ready[1].Address = tt.address
			f.send("a", &wire.Message{Run: wire.Runs(tt.task.ID, ready)[0]})
			r := receive(t, f.ranks["a"].done).Result
			if r.Fault != tt.want || r.Text == "" || slices.Equal(r.Blame, []string{"b"}) != tt.blamed {
				t.Errorf("%s, blames %v, %q, want %s", r.Fault, r.Blame, r.Text, tt.want)
			}
			if tt.task.Kind == sweep.KindEcho && r.Lost != r.Sent {
				t.Errorf("%d of %d lost", r.Lost, r.Sent)
			}
			f.stop(tt.task)
		})
	}
}

// Ranks with different keys are strangers to each other.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	f := newFleet(t, loopback("a"), loopback("b"))
	for id, k := range []sweep.Kind{sweep.KindConnect, sweep.KindEcho, sweep.KindStream} {
		task := sweep.Task{ID: id, Kind: k, Nodes: []string{"a", "b"}, Count: 3, Limit: 2 * shortLimit}
		var ready []wire.Ready
		for i, name := range task.Nodes {
			key := make([]byte, keySize)
			key[0] = byte(i)
			f.send(name, &wire.Message{Prepare: wire.Prepares(&task, key)[i]})
			ready = append(ready, *receive(t, f.ranks[name].ready))
		}
		want := map[sweep.Kind][2]sweep.Fault{
			sweep.KindConnect: {sweep.FaultRefused, ""}, sweep.KindEcho: {sweep.FaultSilent, ""}, sweep.KindStream: {sweep.FaultRefused, sweep.FaultSilent},
		}[k]
		for i, r := range f.run(task, ready) {
			if r.Fault != want[i] {
				t.Errorf("%s, rank %d: %s %s, want %q", k, i, r.Fault, r.Text, want[i])
			}
		}
		f.stop(task)
	}
}

// Two MTUs in one subnet are a fault, whichever node sends, and even if both pass.
func TestDifferentMTUs(t *testing.T) {
	t.Parallel()
	a, b := loopback("a"), loopback("b")
	b.Planes = slices.Clone(b.Planes)
	b.Planes[0].MTU = 1400
	f := newFleet(t, a, b)
	for _, nodes := range [][]string{{"a", "b"}, {"b", "a"}} {
		r := f.do(sweep.Task{Kind: sweep.KindMTU, Nodes: nodes})[0]
		if r.Fault != sweep.FaultMTU || !strings.Contains(r.Text, "1400") || !strings.Contains(r.Text, "16384") {
			t.Errorf("%+v", r)
		}
	}
}

// Eight ranks make an all-reduce, healthy, with wrong data, and with a rank that dies.
func TestRing(t *testing.T) {
	t.Parallel()
	names := []string{"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7"}
	var nodes []sweep.Node
	for _, n := range names {
		nodes = append(nodes, loopback(n))
	}
	f := newFleet(t, nodes...)
	for rank, r := range f.do(sweep.Task{Kind: sweep.KindRing, Nodes: names, Size: 1 << 20, Flows: 2, Repeats: 3}) {
		want := 0
		if rank == 0 {
			want = 3
		}
		if r.Fault != sweep.FaultNone || len(r.Values) != want || rank == 0 && r.Values[2] <= 0 {
			t.Errorf("rank %d: %+v", rank, r)
		}
	}

	t.Run("wrong", func(t *testing.T) {
		task := sweep.Task{Kind: sweep.KindRing, Nodes: names, Size: 1 << 16}
		ready := f.prepare(&task)
		corrupt := slices.Clone(ready)
		corrupt[5].Address = flip(t, ready[5].Address, keySize+4+1+1000)
		for i, name := range names {
			ranks := ready
			if i == 4 {
				ranks = corrupt
			}
			f.send(name, &wire.Message{Run: wire.Runs(task.ID, ranks)[i]})
		}
		for rank, r := range f.results(task) {
			want := sweep.FaultNone
			if rank == 5 {
				want = sweep.FaultWrong
			}
			if r.Fault != want || want == sweep.FaultWrong && (r.Rank != 5 || !strings.Contains(r.Text, "n5 from n4")) {
				t.Errorf("rank %d: %+v", rank, r)
			}
		}
		f.stop(task)
	})

	t.Run("dead", func(t *testing.T) {
		task := sweep.Task{Kind: sweep.KindRing, Nodes: names, Size: 1 << 16, Time: time.Hour}
		ready := f.prepare(&task)
		f.begin(task, ready)
		time.Sleep(shortLimit / 4) // in the middle, or before its connections: it is dead either way
		f.ranks["n2"].stop()
		<-f.ranks["n2"].gone
		blames := func(name string, r sweep.Result) {
			if !slices.Contains([]sweep.Fault{sweep.FaultLost, sweep.FaultRefused}, r.Fault) || !slices.Equal(r.Blame, []string{"n2"}) {
				t.Errorf("%s: %+v", name, r)
			}
		}
		blames("n3", receive(t, f.ranks["n3"].done).Result)
		select {
		case d := <-f.ranks["n1"].done: // it was about to send
			blames("n1", d.Result)
		default: // it waits for n0
		}
		for _, name := range []string{"n0", "n4", "n5"} { // those that only wait have no result
			select {
			case d := <-f.ranks[name].done:
				t.Errorf("%s: %+v", name, d)
			default:
			}
		}
		f.stop(task) // a node that it reaches late may see its neighbour end
		if err := receive(t, f.ranks["n2"].ended); err == nil {
			t.Error("the rank has ended well")
		}
		delete(f.ranks, "n2")
	})
}

// flip returns the address of a proxy that changes one byte.
func flip(t *testing.T, address string, at int) string {
	t.Helper()
	return probetest.Serve(t, func(in net.Conn) {
		out, err := net.Dial("tcp", address)
		if err != nil {
			_ = in.Close()
			return
		}
		go func() {
			_, _ = io.Copy(in, out)
			_ = in.Close()
		}()
		defer out.Close()
		if _, err := io.CopyN(out, in, int64(at)); err != nil {
			return
		}
		one := make([]byte, 1)
		if _, err := io.ReadFull(in, one); err != nil {
			return
		}
		one[0] ^= 0xff
		_, _ = out.Write(one)
		_, _ = io.Copy(out, in)
	})
}

// A node that lacks what a test needs is not blamed.
func TestUnable(t *testing.T) {
	t.Parallel()
	f := newFleet(t, loopback("a"), loopback("b"), sweep.Node{Name: "c"})
	for name, task := range map[string]sweep.Task{
		"no such plane": {Kind: sweep.KindEcho, Plane: "eth9", Nodes: []string{"a", "b"}},
		"no plane":      {Kind: sweep.KindRing, Nodes: []string{"c", "a"}},
		"three nodes":   {Kind: sweep.KindStream, Nodes: []string{"a", "b", "c"}},
		"one node":      {Kind: sweep.KindRing, Nodes: []string{"a"}},
		"no check":      {Kind: sweep.KindCheck, Op: "$(", Nodes: []string{"a"}},
	} {
		if r := f.prepare(&task)[0]; r.Fault != sweep.FaultUnable || r.Text == "" {
			t.Errorf("%s: %+v", name, r)
		}
		f.stop(task)
	}
}

// crash is a kind that fails in every call.
type crash struct{ kind }

func init() {
	kinds["crash"] = func(*node) kind { return crash{} }
	kinds["hang"] = func(*node) kind { return hang{} }
}

// hang is a kind whose run does not end with its context.
type hang struct{ crash }

func (hang) prepare(context.Context, *wire.Prepare) wire.Ready { return wire.Ready{} }

func (hang) run(context.Context, *wire.Run) sweep.Result { select {} }

// A rank survives whatever it is sent, and answers.
func TestGarbage(t *testing.T) {
	t.Parallel()
	f := newFleet(t, loopback("a"), loopback("b"))
	task := sweep.Task{ID: 900, Kind: sweep.KindName, Op: "localhost", Nodes: []string{"a", "b"}, Limit: patience}
	valid := wire.Prepares(&task, make([]byte, keySize))[0]
	for name, change := range map[string]func(*wire.Prepare){
		"nothing":       func(p *wire.Prepare) { *p = wire.Prepare{} },
		"no kind":       func(p *wire.Prepare) { p.Task.Kind = "" },
		"unknown kind":  func(p *wire.Prepare) { p.Task.Kind = "flood" },
		"no nodes":      func(p *wire.Prepare) { p.Nodes = 0 },
		"most nodes":    func(p *wire.Prepare) { p.Nodes = 1<<31 - 1 },
		"no such node":  func(p *wire.Prepare) { p.Names = map[int]string{0: "a", 2: "c"} },
		"rank below 0":  func(p *wire.Prepare) { p.Rank = -1 },
		"rank too high": func(p *wire.Prepare) { p.Rank = 2 },
		"not this node": func(p *wire.Prepare) { p.Rank = 1 },
		"no limit":      func(p *wire.Prepare) { p.Task.Limit = 0 },
		"endless":       func(p *wire.Prepare) { p.Task.Limit = 1<<63 - 1 },
		"no key":        func(p *wire.Prepare) { p.Key = nil },
		"long key":      func(p *wire.Prepare) { p.Key = make([]byte, 1000) },
		"panics":        func(p *wire.Prepare) { p.Task.Kind = "crash" },
	} {
		p := *valid
		change(&p)
		f.send("a", &wire.Message{Prepare: &p})
		if r := receive(t, f.ranks["a"].ready); r.Fault != sweep.FaultError || !strings.HasPrefix(r.Text, "prepare: ") || r.ID != p.Task.ID || r.Rank != p.Rank {
			t.Errorf("%s: %+v", name, r)
		}
		f.send("a", &wire.Message{Stop: &wire.Stop{ID: p.Task.ID}})
	}
	f.tasks = 1000
	for name, run := range map[string]*wire.Run{
		"unknown":      {ID: 5},
		"too few":      {Nodes: 1},
		"too many":     {Nodes: 3},
		"no data":      {Nodes: 2},
		"bad bytes":    {Nodes: 2, Ranks: []wire.Ready{{}, {Rank: 1, Data: []byte("]]")}}},
		"no such rank": {Nodes: 2, Ranks: []wire.Ready{{Rank: 2}}},
		"rank below 0": {Nodes: 2, Ranks: []wire.Ready{{Rank: -1}}},
	} {
		f.prepare(&task)
		if run.ID == 0 {
			run.ID = task.ID
		}
		f.send("a", &wire.Message{Run: run})
		if r := receive(t, f.ranks["a"].done); r.Result.Fault != sweep.FaultError || r.ID != run.ID {
			t.Errorf("%s: %+v", name, r)
		}
		f.stop(task)
	}
	ready := f.prepare(&task)
	f.send("a", &wire.Message{Prepare: wire.Prepares(&task, make([]byte, keySize))[0]})
	if r := receive(t, f.ranks["a"].ready); !strings.Contains(r.Text, "in progress") {
		t.Errorf("a second task of one number: %+v", r)
	}
	if r := f.run(task, ready)[0]; r.Fault != sweep.FaultNone {
		t.Errorf("%+v", r)
	}
	f.send("a", &wire.Message{Run: wire.Runs(task.ID, ready)[0]})
	if r := receive(t, f.ranks["a"].done); !strings.Contains(r.Result.Text, "has run before") {
		t.Errorf("%+v", r)
	}
	f.stop(task)
	for _, m := range []*wire.Message{{Stop: &wire.Stop{ID: task.ID}}, {Stop: &wire.Stop{ID: -5}}, {Ready: &wire.Ready{}}, {Welcome: &wire.Welcome{}}} {
		f.send("a", m)
	}
	if r := f.do(sweep.Task{Kind: sweep.KindName, Op: "localhost", Nodes: []string{"a", "b"}})[0]; r.Fault != sweep.FaultNone {
		t.Errorf("%+v", r)
	}
}

// A test that ignores the end of its context does not keep the rank from answering.
func TestHang(t *testing.T) {
	t.Parallel()
	f := newFleet(t, loopback("a"))
	if r := f.do(sweep.Task{Kind: "hang", Nodes: []string{"a"}, Limit: shortLimit})[0]; r.Fault != sweep.FaultError || r.Text != "it has not ended within its time limit" {
		t.Errorf("%+v", r)
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want sweep.Fault
	}{
		{nil, sweep.FaultNone}, {errors.New("x"), sweep.FaultError}, {&peer.WrongError{}, sweep.FaultWrong}, {&peer.RingError{Err: peer.ErrEnded}, sweep.FaultLost},
		{errors.Join(peer.ErrMTU, peer.ErrSilent), sweep.FaultMTU},
	} {
		if got := classify(tt.err); got != tt.want {
			t.Errorf("%v is %q, want %q", tt.err, got, tt.want)
		}
	}
}
