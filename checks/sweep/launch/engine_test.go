package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

func TestMerge(t *testing.T) {
	t.Parallel()
	part := func(values ...float64) *sweep.Result { return &sweep.Result{Values: values, Windows: values} }
	pair, three := []string{"a", "b"}, []string{"a", "b", "c"}
	wrong := &sweep.Result{Fault: sweep.FaultWrong, Text: "word 7", Rank: 2}
	silent := &sweep.Result{Fault: sweep.FaultSilent, Text: "no answer from c", Blame: []string{"c", "x"}}
	both := &sweep.Result{Fault: sweep.FaultSilent, Text: "no answer from b", Blame: []string{"b", "c"}}
	lost := &sweep.Result{Fault: sweep.FaultLost, Text: "b has closed its connection", Blame: []string{"b"}}
	for name, tt := range map[string]struct {
		kind  sweep.Kind
		nodes []string
		have  sweep.Result // what the launcher has seen
		parts []*sweep.Result
		first *sweep.Result
		want  sweep.Result
	}{
		"the receiver of a stream":   {sweep.KindStream, pair, sweep.Result{}, []*sweep.Result{part(9), part(7)}, nil, *part(7)},
		"the first node of a pair":   {sweep.KindEcho, pair, sweep.Result{}, []*sweep.Result{{Values: []float64{1}, Sent: 100, Lost: 2}, part(7)}, nil, sweep.Result{Values: []float64{1}, Sent: 100, Lost: 2}},
		"the slowest of a ring":      {sweep.KindRing, three, sweep.Result{}, []*sweep.Result{part(9, 5), part(7, 8), part(8, 6, 1)}, nil, *part(7, 5)},
		"the first fault":            {sweep.KindNCCL, three, sweep.Result{}, []*sweep.Result{silent, part(1), wrong}, wrong, sweep.Result{Fault: sweep.FaultWrong, Text: "word 7", Rank: 2, Values: []float64{1}, Windows: []float64{1}}},
		"blame of nodes of a task":   {sweep.KindRing, three, sweep.Result{}, []*sweep.Result{silent, both, nil}, silent, sweep.Result{Fault: sweep.FaultSilent, Text: "no answer from c", Blame: []string{"c", "b"}}},
		"a loss comes first":         {sweep.KindRing, three, sweep.Result{Fault: sweep.FaultLost, Blame: []string{"b"}}, []*sweep.Result{silent, nil, silent}, silent, sweep.Result{Fault: sweep.FaultLost, Blame: []string{"b"}}},
		"a rank calls one lost":      {sweep.KindRing, three, sweep.Result{}, []*sweep.Result{lost, nil, part(1)}, lost, sweep.Result{Fault: sweep.FaultError, Text: "b has closed its connection", Blame: []string{"b"}, Values: []float64{1}, Windows: []float64{1}}},
		"the network of NCCL":        {sweep.KindNCCL, pair, sweep.Result{}, []*sweep.Result{{}, {Network: "Socket"}}, nil, sweep.Result{Network: "Socket"}},
		"the checks of a node":       {sweep.KindCheck, []string{"a"}, sweep.Result{}, []*sweep.Result{{Checks: []sweep.CheckResult{{Check: "x"}}}}, nil, sweep.Result{Checks: []sweep.CheckResult{{Check: "x"}}}},
		"no values beside a missing": {sweep.KindStream, pair, sweep.Result{}, []*sweep.Result{part(1), nil}, nil, sweep.Result{}},
	} {
		r := tt.have
		r.Task = sweep.Task{Kind: tt.kind, Nodes: tt.nodes}
		merge(&r, tt.parts, tt.first)
		r.Task = sweep.Task{}
		if diff := cmp.Diff(tt.want, r); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// noConn is a connection on which nothing happens.
type noConn struct{}

func (noConn) Send(*wire.Message) error        { return nil }
func (noConn) Receive() (*wire.Message, error) { return nil, io.EOF }
func (noConn) Beat(context.Context)            {}
func (noConn) Close() error                    { return nil }

// Ranks that end while this process is stopped, or because it was, do not accuse their nodes.
func TestStoppedLauncher(t *testing.T) {
	t.Parallel()
	const silence = time.Minute
	for name, tt := range map[string]struct {
		slept time.Duration
		bye   string // why the rank has gone
		lost  string
		lose  bool
	}{
		"awake":         {0, "", "its rank has ended", true},
		"a short sleep": {silence / 4, "", "its rank has ended", true},
		"a long sleep":  {silence * 2, "this process was stopped for 2m0s", "", true},
		"no loss":       {silence * 2, "", "", false},
	} {
		h := newHub([]string{"a"}, silence, t.Logf)
		p := h.join(noConn{}, sweep.Node{Name: "a"})
		h.start()
		h.beat = time.Now().Add(-tt.slept)
		task := sweep.Task{ID: 1, Nodes: []string{"a"}}
		b, _, _ := h.begin(&task)
		if tt.lose {
			h.lose(p, "its rank has ended")
			if m := <-b.mail; m.bye != (tt.bye != "") {
				t.Errorf("%s: the task got %+v", name, m)
			}
		} else {
			h.look(h.wake)
		}
		if h.byes["a"] != tt.bye || h.lost["a"] != tt.lost || (h.stopped != "") != (tt.slept > silence) {
			t.Errorf("%s: bye %q, lost %q, %q", name, h.byes["a"], h.lost["a"], h.stopped)
		}
	}
}

// answerer is a connection to a rank that answers each message at once, and counts what it gets.
type answerer struct {
	noConn
	hub   *hub
	peer  *peer
	ready wire.Ready
	bytes int
}

func (a *answerer) Send(m *wire.Message) error {
	data, err := json.Marshal(m)
	a.bytes += len(data)
	switch {
	case m.Prepare != nil:
		r := a.ready
		r.ID, r.Rank = m.Prepare.Task.ID, m.Prepare.Rank
		a.hub.take(a.peer, &wire.Message{Ready: &r})
	case m.Run != nil:
		a.hub.take(a.peer, &wire.Message{Done: &wire.Done{ID: m.Run.ID, Result: sweep.Result{Values: []float64{1}}}})
	}
	return err
}

// answered returns a hub with nodes that are ready at once, and a function that ends them, and returns the
// most bytes that one got.
func answered(t *testing.T, nodes int, ready wire.Ready) (h *hub, names []string, end func() int) {
	t.Helper()
	for i := range nodes {
		names = append(names, fmt.Sprintf("gpu%05d", i))
	}
	h = newHub(names, time.Minute, t.Logf)
	var ranks []*answerer
	var writing sync.WaitGroup
	for _, n := range names {
		a := &answerer{hub: h, ready: ready}
		a.peer = h.join(a, sweep.Node{Name: n})
		ranks = append(ranks, a)
		writing.Go(func() { a.peer.write(h) })
	}
	h.start()
	return h, names, func() (most int) {
		for _, a := range ranks {
			a.peer.end()
		}
		writing.Wait()
		for _, a := range ranks {
			most = max(most, a.bytes)
		}
		return most
	}
}

// What a rank gets for a test does not grow with the number of its nodes: that of all ranks would grow with
// its square.
func TestBytesOfARank(t *testing.T) {
	t.Parallel()
	most := func(nodes int, kind sweep.Kind, ready wire.Ready) int {
		h, names, end := answered(t, nodes, ready)
		e := &engine{hub: h, ready: time.Minute, slack: time.Minute}
		r, ok := e.task(t.Context(), sweep.Task{ID: 1, Kind: kind, Op: "all_reduce", Nodes: names, Limit: time.Minute})
		if !ok || r.Fault != "" || len(r.Values) != 1 {
			t.Errorf("%s of %d nodes: %t, %+v", kind, nodes, ok, r.Fault)
		}
		return end()
	}
	for kind, ready := range map[sweep.Kind]wire.Ready{
		sweep.KindRing: {Address: "10.0.0.1:12345"},
		sweep.KindNCCL: {Data: make([]byte, 200), GPUs: 8},
	} {
		few, many := most(10, kind, ready), most(1000, kind, ready)
		if few == 0 || many > few+100 {
			t.Errorf("%s: a rank gets %d bytes for 10 nodes, and %d for 1,000", kind, few, many)
		}
	}
}

// A fault that no rank has measured counts only if it comes back: the test runs once more, at once.
func TestSecondTry(t *testing.T) {
	t.Parallel()
	broken := sweep.Result{Fault: sweep.FaultError, Text: "it ended with 1", Rank: 1}
	measured := sweep.Result{Fault: sweep.FaultError, Text: "Completion with error"}
	for name, tt := range map[string]struct {
		dones [][2]*wire.Done // of each try, by rank; nil: it waits
		want  sweep.Result
	}{
		"it passes":         {[][2]*wire.Done{{nil, {Result: broken, Again: true}}, {{Result: sweep.Result{Values: []float64{9}}}, {}}}, sweep.Result{Values: []float64{9}, Text: "passed in the second try; the first: it ended with 1"}},
		"it comes back":     {[][2]*wire.Done{{nil, {Result: broken, Again: true}}, {{}, {Result: broken, Again: true}}}, broken},
		"another fault":     {[][2]*wire.Done{{nil, {Result: broken, Again: true}}, {{Result: measured}, {}}}, measured},
		"a measured one":    {[][2]*wire.Done{{{Result: measured}, {}}}, measured},
		"no fault":          {[][2]*wire.Done{{{Result: sweep.Result{Values: []float64{9}}}, {}}}, sweep.Result{Values: []float64{9}}},
		"a consequence too": {[][2]*wire.Done{{{Result: measured}, {Result: broken, Again: true}}}, measured},
	} {
		h := newHub([]string{"a", "b"}, time.Minute, t.Logf)
		tries := &triedRanks{hub: h, dones: tt.dones}
		for rank, n := range []string{"a", "b"} {
			p := h.join(noConn{}, sweep.Node{Name: n})
			tries.peers[rank] = p
			defer p.end()
			go func() {
				for {
					select {
					case m := <-p.out:
						tries.take(rank, m)
					case <-p.gone.Done():
						return
					}
				}
			}()
		}
		h.start()
		task := sweep.Task{ID: 7, Kind: sweep.KindWrite, Nodes: []string{"a", "b"}, Limit: time.Minute}
		got, ok := (&engine{hub: h, ready: time.Minute, slack: time.Minute}).task(t.Context(), task)
		if diff := cmp.Diff(task, got.Task); diff != "" || !ok {
			t.Errorf("%s: %t, task (-want +got)\n%s", name, ok, diff)
		}
		got.Task, got.Began, got.Took = sweep.Task{}, time.Time{}, 0
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// triedRanks are two ranks that answer each try of a task.
type triedRanks struct {
	hub   *hub
	peers [2]*peer
	dones [][2]*wire.Done
	mu    sync.Mutex
	tries []int // the IDs of the tries
}

func (r *triedRanks) take(rank int, m *wire.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case m.Prepare != nil:
		r.hub.take(r.peers[rank], &wire.Message{Ready: &wire.Ready{ID: m.Prepare.Task.ID, Rank: rank}})
	case m.Run != nil && rank == 0: // both answer in order
		r.tries = append(r.tries, m.Run.ID)
		for i, d := range r.dones[len(r.tries)-1] {
			if d != nil {
				done := *d
				done.ID, done.Rank = m.Run.ID, i
				r.hub.take(r.peers[i], &wire.Message{Done: &done})
			}
		}
	}
}

// GPU work begins on a number of nodes in a second. Later rounds of a stage begin faster.
func TestRamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, names, end := answered(t, 80, wire.Ready{})
		defer end()
		var tasks []sweep.Task
		for i := 0; i < len(names); i += 2 {
			tasks = append(tasks, sweep.Task{ID: i, Kind: sweep.KindNCCL, Nodes: names[i : i+2], Limit: time.Minute})
		}
		e := &engine{hub: h, ready: time.Minute, slack: time.Minute, ramp: 4, first: true}
		for round, want := range []time.Duration{19500 * time.Millisecond, 9750 * time.Millisecond, 9750 * time.Millisecond} {
			began := time.Now()
			results := e.round(t.Context(), tasks)
			if len(results) != len(tasks) {
				t.Fatalf("%d results of %d tests", len(results), len(tasks))
			}
			if last := results[len(results)-1].Began.Sub(began); last != want {
				t.Errorf("round %d: the last test began after %v, want %v", round+1, last, want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if results := e.round(ctx, tasks); len(results) > 1 { // the first one does not wait
			t.Error("tests begin after the end")
		}
	})
}
