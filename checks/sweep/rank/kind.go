package rank

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

// kind is one node's end of one task. The rank calls prepare, then run, if all nodes are ready, and
// at last stop, each once. It fills in what every result has (Began, Took) and the numbers of the
// task in Ready and Done.
type kind interface {
	// prepare sets up this end: it listens, or starts a server. The context lives until the end of
	// the task, not only during the call, so that a server may depend on it. A prepare that has not
	// returned within Task.Limit is a fault of the task, and run is not called.
	prepare(ctx context.Context, p *wire.Prepare) wire.Ready
	// run carries out the test and returns this node's part of the result. The context has the
	// deadline Task.Limit, and ends with the task. run returns soon after the end of the context.
	run(ctx context.Context, r *wire.Run) sweep.Result
	// stop ends all connections and processes of the task. Before, prepare has returned and the
	// context of the task has ended; run may still be in progress in another goroutine, or may never
	// have been called. It must not take longer than a second.
	stop()
}

// kinds makes the end of a task of each kind.
var kinds = map[sweep.Kind]func(*node) kind{}

// node is what kinds know of the node on which the rank runs.
type node struct {
	sweep.Node
	addresses []netip.Addr // that lead to this node, see addresses
	host      *probe.Host
	version   string     // of nhc-gpu
	program   string     // nhc-gpu itself, for its child processes: /proc/self/exe
	nccl      NCCLSite   // the site's settings of NCCL
	towards   netip.Addr // the address by which this node reaches the launcher
}

// again runs this program again in a child process, with a process group of its own. A child that no
// signal can end is left behind: the Exit is Stuck, and a blocked child of the driver never blocks
// the rank. argv begins with the name of the program. The end of the context ends the child: it gets
// SIGTERM, and SIGKILL a second later.
func (n *node) again(ctx context.Context, argv []string, stdin []byte, output int) probe.Exit {
	return n.host.Run(ctx, probe.Command{Argv: argv, Program: n.program, Stdin: stdin, Output: output, Errors: maxErrors, Grace: childGrace})
}

// maxErrors is how much of the standard error of a child is kept, bytes.
const maxErrors = 4 << 10

// childGrace is how long a child has between SIGTERM and SIGKILL, and after that. A rank that ends
// does not wait longer than two of them.
const childGrace = 700 * time.Millisecond

// plane returns the plane of a task by its name. "" is the one by which this node reaches the
// launcher, which is that of Slurm.
func (n *node) plane(name string) (sweep.Plane, error) {
	for _, p := range n.Planes {
		if name == "" && p.Address.Addr().Unmap() == n.towards {
			return p, nil
		}
	}
	for _, p := range n.Planes {
		if p.Address.IsValid() && (name == "" || p.In(name)) {
			return p, nil
		}
	}
	if name == "" {
		return sweep.Plane{}, fmt.Errorf("%s has no network interface that is up and has an address", n.Name)
	}
	return sweep.Plane{}, fmt.Errorf("%s has no network interface %s that is up and has an address", n.Name, name)
}

// towardsBy returns the interface by which this node reaches the launcher: a plane, or another one of the interfaces that
// are up. It is "" if it is unknown, or a loopback interface: the first address there leads to no other node.
func (n *node) towardsBy(interfaces func() []link) string {
	if !n.towards.IsValid() {
		return ""
	}
	for _, p := range n.Planes {
		if p.Address.Addr().Unmap() == n.towards {
			return p.Name
		}
	}
	for _, l := range interfaces() {
		if l.Flags&net.FlagLoopback == 0 && slices.ContainsFunc(l.addresses, func(p netip.Prefix) bool { return p.Addr().Unmap() == n.towards }) {
			return l.Name
		}
	}
	return ""
}

// rail returns the rail of a task by its name.
func (n *node) rail(name string) (sweep.Rail, error) {
	for _, r := range n.Rails {
		if r.Name == name {
			return r, nil
		}
	}
	return sweep.Rail{}, fmt.Errorf("%s has no RDMA port %s", n.Name, name)
}

// railsOf returns the rails with one of some names, of ports or of devices.
func (n *node) railsOf(names []string) (list []sweep.Rail) {
	for _, r := range n.Rails {
		device, _, _ := strings.Cut(r.Name, ":")
		if slices.Contains(names, r.Name) || slices.Contains(names, device) {
			list = append(list, r)
		}
	}
	return list
}

// refuse is the answer of a kind that cannot run on this node: no node is blamed for it.
func refuse(err error) wire.Ready {
	return wire.Ready{Fault: sweep.FaultUnable, Text: err.Error()}
}
