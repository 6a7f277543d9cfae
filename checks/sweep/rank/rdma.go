package rank

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

func init() {
	kinds[sweep.KindWrite], kinds[sweep.KindLatency] = newRDMA, newRDMA
}

// rdmaTask is a node's end of a task of perftest: the first node is the client, which writes, and
// the second the server.
type rdmaTask struct {
	n      *node
	test   rdma.Perftest
	task   sweep.Task
	rank   int
	server *rdma.PerftestServer
	began  atomic.Bool   // the client has
	done   chan struct{} // closed when it has ended
	vague  atomic.Bool   // this end has ended without a measured fault
}

func newRDMA(n *node) kind { return &rdmaTask{n: n, done: make(chan struct{})} }

// These are the defaults of a task.
const (
	rdmaWriteSize   = 1 << 20 // bytes
	rdmaLatencySize = 2
	rdmaIterations  = 1000 // of a latency
)

// describe makes the test of a task on a rail.
func (t *rdmaTask) describe(task *sweep.Task) error {
	name := task.Plane
	if k := slices.IndexFunc(t.n.Rails, func(r sweep.Rail) bool { return r.Left == "" }); name == "" && k >= 0 {
		name = t.n.Rails[k].Name
	}
	rail, err := t.n.rail(name)
	if err != nil {
		return err
	}
	if len(task.Nodes) != 2 {
		return fmt.Errorf("%s is between two nodes, got %d", task.Kind, len(task.Nodes))
	}
	device, port, _ := strings.Cut(rail.Name, ":")
	end := rdma.PerftestEnd{Device: device, Port: port, GID: rail.GID}
	if bdf := rdma.WholeHCA(t.n.host, device).PCI; bdf != "" {
		end.CPUs = cpu.ParseCPUs(pci.LocalCPUs(t.n.host, bdf))
	}
	t.test = rdma.Perftest{Program: "ib_write_bw", Server: end, Client: end, Size: cmp.Or(task.Size, rdmaWriteSize), Duration: task.Time, Queues: task.Flows}
	if task.Kind == sweep.KindLatency {
		t.test.Program, t.test.Latency, t.test.Size, t.test.Iterations = "ib_write_lat", true, cmp.Or(task.Size, rdmaLatencySize), rdmaIterations
	}
	return nil
}

func (t *rdmaTask) prepare(ctx context.Context, p *wire.Prepare) wire.Ready {
	t.task, t.rank = p.Task, p.Rank
	if err := t.describe(&p.Task); err != nil {
		return refuse(err)
	}
	help, err := rdma.PerftestHelp(ctx, t.n.host.Apart(), t.test.Program) // or one failure would hold for the whole sweep
	if err != nil {
		return refuse(fmt.Errorf("cannot run %s: %w", t.test.Program, err))
	}
	if p.Rank == 0 {
		return wire.Ready{}
	}
	plane, err := t.n.plane("")
	if err != nil {
		return refuse(err)
	}
	if a := plane.Address.Addr().Unmap(); a.Is4() && strings.Contains(help, rdma.PerftestBind) {
		t.test.Server.Bind = a.String()
	}
	server, failed := rdma.ServePerftest(ctx, t.n.host, &t.test, max(1, p.Task.Repeats))
	if server == nil {
		if failed == nil { // it has ended at once, without an error
			failed = &rdma.PerftestError{Kind: rdma.PerftestGarbled, Text: "it has not waited for a client"}
		}
		r := t.fault(failed)
		return wire.Ready{Fault: r.Fault, Text: r.Text}
	}
	t.server = server
	return wire.Ready{Address: net.JoinHostPort(plane.Address.Addr().String(), strconv.Itoa(server.Port))}
}

// isVague reports whether this end has ended without a measured fault: a stranger may have connected to the server.
func (t *rdmaTask) isVague() bool { return t.vague.Load() }

// fault is the result of a failed program on this node.
func (t *rdmaTask) fault(e *rdma.PerftestError) sweep.Result {
	t.vague.Store(e.IsVague())
	r := sweep.Result{Fault: sweep.FaultError, Rank: t.rank, Text: fmt.Sprintf("%s on %s: %s", t.test.Program, t.n.Name, e.Text)}
	switch e.Kind {
	case rdma.PerftestAbsent, rdma.PerftestUnloadable, rdma.PerftestNoDevice, rdma.PerftestNoOption, rdma.PerftestNoPort:
		r.Fault = sweep.FaultUnable
	case rdma.PerftestNoServer:
		r.Fault = sweep.FaultRefused
	case rdma.PerftestHung, rdma.PerftestStopped:
		r.Fault = sweep.FaultSilent
	case rdma.PerftestMemory:
		r.Blame = []string{t.n.Name}
	}
	if e.Killed {
		r.Blame = []string{t.n.Name}
	}
	return r
}

func (t *rdmaTask) run(ctx context.Context, r *wire.Run) sweep.Result {
	if t.rank > 0 {
		return t.awaitClients(ctx)
	}
	t.began.Store(true)
	defer close(t.done)
	host, word, err := net.SplitHostPort(r.Ranks[len(r.Ranks)-1].Address)
	port, bad := strconv.Atoi(word)
	if err = errors.Join(err, bad); err != nil {
		return sweep.Result{Fault: sweep.FaultError, Text: fmt.Sprintf("the address of the server is not understood: %v", err)}
	}
	result := sweep.Result{Network: "RDMA"}
	for range max(1, t.task.Repeats) {
		one := rdma.RunPerftestClient(ctx, t.n.host, &t.test, host, port)
		if one.Err != nil {
			failed := t.fault(one.Err)
			failed.Values = result.Values
			return failed
		}
		value := one.Rate
		if t.test.Latency {
			value = one.Latency
		}
		result.Values = append(result.Values, value)
	}
	return result
}

// awaitClients waits until the server has served the client. An error that is only a consequence of
// the client's is not reported.
func (t *rdmaTask) awaitClients(ctx context.Context) sweep.Result {
	select {
	case <-t.server.Done():
	case <-ctx.Done():
		return sweep.Result{Fault: sweep.FaultSilent, Rank: t.rank, Text: fmt.Sprintf("%s on %s: the client does not end", t.test.Program, t.n.Name)}
	}
	e := t.server.Err()
	if e == nil {
		return sweep.Result{Rank: t.rank, Network: "RDMA"}
	}
	r := t.fault(e)
	if !e.IsCause() {
		r.Text += ", after its client"
	}
	return r
}

// stop waits for the processes, which end with the context of the task.
func (t *rdmaTask) stop() {
	limit := time.After(childGrace)
	var ends []<-chan struct{}
	if t.server != nil {
		ends = append(ends, t.server.Done())
	}
	if t.began.Load() {
		ends = append(ends, t.done)
	}
	for _, end := range ends {
		select {
		case <-end:
		case <-limit:
			return
		}
	}
}
