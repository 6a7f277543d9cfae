package rank

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/peer"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

func init() {
	kinds[sweep.KindRing] = func(n *node) kind { return &ring{pair: pair{node: n}, joined: make(chan *peer.Ring, 1)} }
}

// ring is a node's end of a ring all-reduce.
type ring struct {
	pair
	listener *peer.Listener
	joined   chan *peer.Ring // the connections, for stop
}

// ringBytes is the default of the data on each node.
const ringBytes = 16 << 20

func (r *ring) prepare(ctx context.Context, m *wire.Prepare) wire.Ready {
	if len(m.Task.Nodes) < 2 {
		return refuse(fmt.Errorf("%s needs two or more nodes, got %d", m.Task.Kind, len(m.Task.Nodes)))
	}
	err := r.place(m)
	if err == nil {
		r.listener, err = peer.Listen(ctx, r.local, r.key)
	}
	if err != nil {
		return refuse(err)
	}
	return wire.Ready{Address: r.listener.Address()}
}

func (r *ring) run(ctx context.Context, m *wire.Run) sweep.Result {
	test := peer.RingTest{
		Rank: r.rank, Bytes: cmp.Or(r.task.Size, ringBytes), Flows: cmp.Or(r.task.Flows, 1), Repeats: cmp.Or(r.task.Repeats, 1), Time: r.task.Time,
	}
	for _, other := range m.Ranks {
		test.Addresses = append(test.Addresses, other.Address)
	}
	joined, err := peer.JoinRing(ctx, r.local, r.listener, r.key, test)
	if joined != nil {
		r.joined <- joined // its connections stay open until all nodes have ended
	}
	if ctx.Err() != nil {
		r.leave()
	}
	if err != nil {
		return r.failed(sweep.Result{}, err)
	}
	rates, err := joined.Run(ctx)
	return r.failed(sweep.Result{Values: rates.Values, Windows: rates.Windows}, err)
}

// failed adds an error. Of a broken ring, Sent is how many parts of the data had come: the node
// after the broken one has the fewest.
func (r *ring) failed(result sweep.Result, err error) sweep.Result {
	other := ""
	if broken := new(peer.RingError); errors.As(err, &broken) {
		result.Sent = broken.Received
		if broken.Peer >= 0 {
			other = r.task.Nodes[broken.Peer]
		}
	}
	if wrong := new(peer.WrongError); errors.As(err, &wrong) {
		result.Rank = wrong.Rank
		err = fmt.Errorf("%w (%s from %s)", err, r.task.Nodes[wrong.Rank], r.task.Nodes[wrong.From])
	}
	return failed(result, err, other)
}

func (r *ring) stop() {
	if r.listener != nil {
		r.listener.Close()
	}
	r.leave()
}

func (r *ring) leave() {
	select {
	case joined := <-r.joined:
		joined.Close()
	default:
	}
}
