package rank

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/peer"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

const keySize = len(peer.Key{})

func init() {
	for k, do := range pairs {
		kinds[k] = func(n *node) kind { return &pair{node: n, do: do} }
	}
	kinds[sweep.KindStream] = func(n *node) kind { return &stream{pair{node: n, do: actions{serve: listen}}} }
}

// pairs are the tests that one node makes, while the other one only answers.
var pairs = map[sweep.Kind]actions{
	sweep.KindEcho:    {respond, (*pair).echo},
	sweep.KindMTU:     {respond, (*pair).mtu},
	sweep.KindConnect: {listen, (*pair).connect},
	sweep.KindName:    {nil, (*pair).resolve},
}

// actions are what the two nodes of a pair do.
type actions struct {
	serve func(context.Context, *pair) (server, error)   // on the second node; nil: nothing
	test  func(*pair, context.Context, far) sweep.Result // on the first node
}

// server answers on the second node, until it is closed.
type server interface {
	Address() string
	Close()
}

// pair is a node's end of a test of two nodes.
type pair struct {
	*node
	do     actions
	task   sweep.Task
	rank   int
	key    peer.Key
	plane  sweep.Plane
	local  peer.Local
	server server
}

// far is the other end of a pair, as it describes itself in Ready.Data.
type far struct {
	MTU       int          `json:"mtu"`       // of its interface
	Subnet    netip.Prefix `json:"subnet"`    // the same
	Addresses []netip.Addr `json:"addresses"` // all of the node
	address   string       // of its server
}

// place sets the plane of a test.
func (p *pair) place(m *wire.Prepare) error {
	var err error
	if p.plane, err = p.node.plane(m.Task.Plane); err != nil {
		return err
	}
	p.task, p.rank, p.key = m.Task, m.Rank, peer.Key(m.Key)
	p.local = peer.Local{Address: p.plane.Address.Addr(), Interface: p.plane.Name}
	return nil
}

func (p *pair) prepare(ctx context.Context, m *wire.Prepare) wire.Ready {
	if len(m.Task.Nodes) != 2 {
		return refuse(fmt.Errorf("%s needs two nodes, got %d", m.Task.Kind, len(m.Task.Nodes)))
	}
	if err := p.place(m); err != nil {
		return refuse(err)
	}
	own := far{MTU: p.plane.MTU, Subnet: p.plane.Address.Masked(), Addresses: slices.Clone(p.addresses)}
	for _, plane := range p.Planes {
		own.Addresses = append(own.Addresses, plane.Address.Addr())
	}
	data, err := json.Marshal(own)
	if err != nil {
		return refuse(err)
	}
	ready := wire.Ready{Data: data}
	if p.rank == 1 && p.do.serve != nil {
		if p.server, err = p.do.serve(ctx, p); err != nil {
			return refuse(err)
		}
		ready.Address = p.server.Address()
	}
	return ready
}

// run makes the test on the first node. The second one answers until it is stopped.
func (p *pair) run(ctx context.Context, r *wire.Run) sweep.Result {
	if p.rank == 1 {
		return sweep.Result{}
	}
	f, err := p.other(r)
	if err != nil {
		return sweep.Result{Fault: sweep.FaultError, Text: err.Error()}
	}
	return p.do.test(p, ctx, f)
}

func (p *pair) other(r *wire.Run) (far, error) {
	var f far
	if err := json.Unmarshal(r.Ranks[1].Data, &f); err != nil {
		return f, fmt.Errorf("description of %s: %w", p.task.Nodes[1], err)
	}
	f.address = r.Ranks[1].Address
	return f, nil
}

func (p *pair) stop() {
	if p.server != nil {
		p.server.Close()
	}
}

func respond(ctx context.Context, p *pair) (server, error) { return peer.Respond(ctx, p.local, p.key) }

// door is a Listener whose connections are closed at once.
type door struct{ *peer.Listener }

func listen(ctx context.Context, p *pair) (server, error) {
	l, err := peer.Listen(ctx, p.local, p.key)
	if err != nil {
		return nil, err
	}
	if p.task.Kind == sweep.KindConnect {
		go l.Drain(ctx)
	}
	return door{l}, nil
}

// Pace of an echo: 500 datagrams take 2.5 s.
const (
	echoEvery = 5 * time.Millisecond
	echoCount = 500
	maxEcho   = 100_000
)

func (p *pair) echo(ctx context.Context, f far) sweep.Result {
	count := min(cmp.Or(max(p.task.Count, 0), echoCount), maxEcho)
	every := echoEvery
	if p.task.Time > 0 {
		every = p.task.Time / time.Duration(count)
	}
	pings, err := peer.Echo(ctx, p.local, f.address, p.key, count, int(min(p.task.Size, 9000)), every)
	r := sweep.Result{Sent: pings.Sent, Lost: pings.Lost}
	if pings.Lost < pings.Sent {
		r.Values = []float64{peer.Milliseconds(pings.Fast)}
	}
	return failed(r, err, p.task.Nodes[1])
}

func (p *pair) mtu(ctx context.Context, f far) sweep.Result {
	err := peer.MTU(ctx, p.local, f.address, p.key, p.plane.MTU)
	// The shorter of two passes in both directions, but the longer one's others are cut off.
	if err == nil && f.Subnet == p.plane.Address.Masked() && f.MTU != p.plane.MTU {
		err = fmt.Errorf("MTU %d on %s and %d on %s, in the same subnet: %w", p.plane.MTU, p.task.Nodes[0], f.MTU, p.task.Nodes[1], peer.ErrMTU)
	}
	return failed(sweep.Result{}, err, p.task.Nodes[1])
}

const connectCount = 3

func (p *pair) connect(ctx context.Context, f far) sweep.Result {
	values, err := peer.Connects(ctx, p.local, f.address, p.key, min(cmp.Or(max(p.task.Repeats, 0), connectCount), 1000))
	return failed(sweep.Result{Values: values}, err, p.task.Nodes[1])
}

// resolve resolves Op, or else the name of the second node.
func (p *pair) resolve(ctx context.Context, f far) sweep.Result {
	took, err := peer.Resolve(ctx, cmp.Or(p.task.Op, p.task.Nodes[1]), f.Addresses)
	if err != nil {
		return failed(sweep.Result{}, err, "")
	}
	return sweep.Result{Values: []float64{peer.Milliseconds(took)}}
}

// stream is a test of bandwidth: the first node sends, and the second one measures.
type stream struct{ pair }

// streams returns what both ends know.
func (s *stream) streams() peer.Streams {
	return peer.Streams{Flows: cmp.Or(s.task.Flows, 1), Repeats: cmp.Or(s.task.Repeats, 1), Time: cmp.Or(s.task.Time, time.Second)}
}

func (s *stream) run(ctx context.Context, r *wire.Run) sweep.Result {
	if s.rank == 0 {
		f, err := s.other(r)
		if err == nil {
			err = peer.SendStreams(ctx, s.local, f.address, s.key, s.streams())
		}
		return failed(sweep.Result{}, err, s.task.Nodes[1])
	}
	d, ok := s.server.(door)
	if !ok {
		return sweep.Result{Fault: sweep.FaultError, Text: "run: the task is not ready"}
	}
	rates, err := peer.ReceiveStreams(ctx, d.Listener, s.streams())
	return failed(sweep.Result{Values: rates.Values, Windows: rates.Windows}, err, s.task.Nodes[0])
}
