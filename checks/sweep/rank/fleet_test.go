package rank

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

const testVersion = "1.2.3"

// patience bounds the wait for an event that must come, on a machine however busy.
const patience = 5 * time.Minute

// fleet is a launcher and its ranks, all in this process.
type fleet struct {
	t        *testing.T
	listener *wire.Listener
	ticket   wire.Ticket
	ranks    map[string]*rank
	tasks    int
}

// rank is a rank as its launcher sees it.
type rank struct {
	conn  *wire.Conn
	ready chan *wire.Ready
	done  chan *wire.Done
	bye   chan string   // its goodbye
	gone  chan struct{} // closed when its connection has ended
	ended chan error    // what Serve has returned
	stop  context.CancelFunc
	mute  context.CancelFunc // ends the launcher's beats
}

// loopback is a node whose plane is lo.
func loopback(name string) sweep.Node {
	return sweep.Node{Name: name, Planes: []sweep.Plane{{Name: "lo", Address: netip.MustParsePrefix("127.0.0.1/8"), MTU: 16384}}}
}

// newFleet starts a launcher and its ranks.
func newFleet(t *testing.T, nodes ...sweep.Node) *fleet {
	t.Helper()
	return newFleetOf(t, wire.Config{Silence: patience}, Options{}, nodes...)
}

func newFleetOf(t *testing.T, c wire.Config, o Options, nodes ...sweep.Node) *fleet {
	t.Helper()
	c.Address, c.Version = "127.0.0.1:0", testVersion
	l, err := wire.Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, listener: l, ticket: l.Ticket(), ranks: map[string]*rank{}}
	f.ticket.Addresses = []string{l.Address()}
	t.Cleanup(f.end)
	for _, n := range nodes {
		f.start(o, n)
	}
	return f
}

// start starts a rank and waits for it.
func (f *fleet) start(o Options, n sweep.Node) *rank {
	f.t.Helper()
	return f.accept(n.Name, f.serve(o, n))
}

// accept waits for a rank that was started.
func (f *fleet) accept(name string, r *rank) *rank {
	f.t.Helper()
	conn, err := f.listener.Accept(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	if conn.Hello.Node.Name != name {
		f.t.Fatalf("rank %s calls itself %s", name, conn.Hello.Node.Name)
	}
	r.conn = conn
	f.ranks[name] = r
	ctx, mute := context.WithCancel(context.Background())
	r.mute = mute
	go conn.Beat(ctx)
	go r.receive()
	return r
}

// serve starts a rank.
func (f *fleet) serve(o Options, n sweep.Node) *rank {
	line, err := f.ticket.Line()
	if err != nil {
		f.t.Fatal(err)
	}
	r := &rank{ready: make(chan *wire.Ready, 100), done: make(chan *wire.Done, 100), bye: make(chan string, 1), gone: make(chan struct{}), ended: make(chan error, 1)}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	if o.Version == "" {
		o.Version = testVersion
	}
	if o.Errors == nil {
		o.Errors = io.Discard
	}
	o.self = n
	go func() { r.ended <- Serve(ctx, bytes.NewReader(line), o) }()
	return r
}

func (r *rank) receive() {
	defer close(r.gone)
	for {
		m, err := r.conn.Receive()
		switch {
		case err != nil:
			return
		case m.Ready != nil:
			r.ready <- m.Ready
		case m.Done != nil:
			r.done <- m.Done
		case m.Bye != "":
			r.bye <- m.Bye
		}
	}
}

// end ends the ranks as a launcher does.
func (f *fleet) end() {
	_ = f.listener.Close()
	var all sync.WaitGroup
	for name, r := range f.ranks {
		all.Go(func() {
			_ = r.conn.Send(&wire.Message{Bye: "the sweep is over"})
			select {
			case <-r.gone:
			case <-time.After(patience):
				f.t.Errorf("%s: rank did not end", name)
			}
			r.mute()
			r.stop()
			_ = r.conn.Close()
		})
	}
	all.Wait()
}

// send sends a message to a rank.
func (f *fleet) send(name string, m *wire.Message) {
	f.t.Helper()
	if err := f.ranks[name].conn.Send(m); err != nil {
		f.t.Error(err)
	}
}

// prepare has all nodes of a task prepare.
func (f *fleet) prepare(task *sweep.Task) []wire.Ready {
	f.t.Helper()
	f.tasks++
	task.ID = f.tasks
	if task.Limit == 0 {
		task.Limit = patience
	}
	key := make([]byte, keySize)
	_, _ = rand.Read(key)
	for i, p := range wire.Prepares(task, key) {
		f.send(task.Nodes[i], &wire.Message{Prepare: p})
	}
	list := make([]wire.Ready, len(task.Nodes))
	for i, name := range task.Nodes {
		list[i] = *receive(f.t, f.ranks[name].ready)
		if list[i].ID != task.ID || list[i].Rank != i {
			f.t.Fatalf("%s: ready as rank %d of task %d, want %d of %d", name, list[i].Rank, list[i].ID, i, task.ID)
		}
	}
	return list
}

// run has all nodes run a task that they have prepared, and returns their results by rank.
func (f *fleet) run(task sweep.Task, ranks []wire.Ready) []sweep.Result {
	f.t.Helper()
	f.begin(task, ranks)
	return f.results(task)
}

// begin has all nodes run a task that they have prepared.
func (f *fleet) begin(task sweep.Task, ranks []wire.Ready) {
	f.t.Helper()
	for i, r := range wire.Runs(task.ID, ranks) {
		f.send(task.Nodes[i], &wire.Message{Run: r})
	}
}

// results waits for the results of all nodes.
func (f *fleet) results(task sweep.Task) []sweep.Result {
	f.t.Helper()
	list := make([]sweep.Result, len(task.Nodes))
	for i, name := range task.Nodes {
		done := receive(f.t, f.ranks[name].done)
		if done.ID != task.ID || done.Rank != i {
			f.t.Fatalf("%s: done as rank %d of task %d, want %d of %d", name, done.Rank, done.ID, i, task.ID)
		}
		list[i] = done.Result
	}
	return list
}

func (f *fleet) stop(task sweep.Task) {
	f.t.Helper()
	for _, name := range task.Nodes {
		f.send(name, &wire.Message{Stop: &wire.Stop{ID: task.ID}})
	}
}

// do carries out a task.
func (f *fleet) do(task sweep.Task) []sweep.Result {
	f.t.Helper()
	ready := f.prepare(&task)
	for i, r := range ready {
		if r.Fault != sweep.FaultNone {
			f.t.Fatalf("%s: not ready: %s: %s", task.Nodes[i], r.Fault, r.Text)
		}
	}
	defer f.stop(task)
	return f.run(task, ready)
}

// receive returns the next value of a channel.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic(errors.New("unreachable"))
	}
}
