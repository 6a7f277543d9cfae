package sweep_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// Planes are the networks of a cluster, 10.77.0.0/24 and 10.78.0.0/24. Slurm uses plane A, so that the
// faults of plane B are those of a data network.
const (
	planeA = "a"
	planeB = "b"
)

var subnets = map[string]string{planeA: "10.77.0", planeB: "10.78.0"}

// control is the last part of the addresses of the control node: slurmctld, srun, and the sweep.
const control = 254

// Cluster is a Slurm whose nodes have network namespaces of their own.
type Cluster struct {
	*cluster.Cluster
	t       *testing.T
	conf    string // further lines of slurm.conf
	prepare func() // called before the daemons start; nil: nothing
	leaves  int    // 0: Slurm knows no topology
	sw      namespace
	Nodes   []*Node
}

// Node is a node of a cluster.
type Node struct {
	c      *Cluster
	Name   string
	number int
	conf   string // further words in its line of slurm.conf
	net    namespace
	links  map[string]*link
	slurmd *cluster.Process
}

// start starts a cluster with that many idle nodes.
func start(t *testing.T, nodes int) *Cluster {
	t.Helper()
	c := newCluster(t, nodes)
	c.up()
	return c
}

// newCluster creates the files of a cluster that is not started yet.
func newCluster(t *testing.T, nodes int) *Cluster {
	t.Helper()
	for _, program := range []string{"ip", "tc", "nft", "setpriv"} {
		need.Program(t, program)
	}
	c := &Cluster{Cluster: cluster.New(t), t: t}
	for i := range nodes {
		n := &Node{c: c, Name: fmt.Sprintf("gpu%02d", i+1), number: i + 1, links: map[string]*link{}}
		for _, dir := range []string{"nhc", "default", "log", "state", "past", "network"} {
			c.Mkdir("nodes/" + n.Name + "/" + dir)
		}
		n.Settings("")
		c.Write("nodes/"+n.Name+"/nhc/nhc.conf", nil, 0o644)
		c.Nodes = append(c.Nodes, n)
	}
	return c
}

// up starts the network and the daemons.
func (c *Cluster) up() {
	c.t.Helper()
	began := time.Now()
	c.writeConf()
	c.Start()
	c.makeNetwork()
	c.writeHosts()
	if c.prepare != nil {
		c.prepare()
	}
	c.StartMunge()
	c.StartCtld()
	for _, n := range c.Nodes {
		n.startSlurmd()
	}
	c.WaitIdle(c.Nodes...)
	c.t.Logf("%s: %d nodes idle after %v", c.Version, len(c.Nodes), time.Since(began).Round(time.Millisecond))
}

func (c *Cluster) writeConf() {
	c.t.Helper()
	text := fmt.Sprintf("SlurmctldHost=ctl(%s.%d)\n", subnets[planeA], control) +
		strings.NewReplacer("HealthCheckInterval=2\n", "HealthCheckInterval=0\n", "SlurmdDebug=debug2\n", "SlurmdDebug=info\n").Replace(cluster.Conf) + "\n" + c.conf + "\n"
	if c.leaves > 0 {
		text += "TopologyPlugin=topology/tree\n"
		c.Write("etc/topology.conf", []byte(c.topology()), 0o644)
	}
	for _, n := range c.Nodes {
		text += fmt.Sprintf("NodeName=%s NodeAddr=%s CPUs=16 RealMemory=1000000 %s\n", n.Name, n.Address(planeA), n.conf)
	}
	c.Write("etc/slurm.conf", []byte(text+"PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"), 0o644)
}

// topology returns topology.conf: leaf1 has the first nodes, and so on.
func (c *Cluster) topology() string {
	text := ""
	for i := range c.leaves {
		text += fmt.Sprintf("SwitchName=leaf%d Nodes=%s\n", i+1, names(c.Leaf(i)))
	}
	return text + fmt.Sprintf("SwitchName=spine Switches=leaf[1-%d]\n", c.leaves)
}

// Leaf returns the nodes of a leaf switch, from 0.
func (c *Cluster) Leaf(i int) []*Node {
	size := len(c.Nodes) / c.leaves
	return c.Nodes[i*size : (i+1)*size]
}

func names(nodes []*Node) string {
	var list []string
	for _, n := range nodes {
		list = append(list, n.Name)
	}
	return strings.Join(list, ",")
}

// makeNetwork makes the switches and all links.
func (c *Cluster) makeNetwork() {
	t := c.t
	t.Helper()
	c.sw = newNamespace(t)
	ctl := openNamespace(t, c.Network())
	sw, shapes := "", ""
	for _, plane := range []string{planeA, planeB} {
		sw += fmt.Sprintf("link add br%s type bridge\nlink set br%s up\n", plane, plane)
		l := c.newLink(ctl, plane, control, "ctl")
		onSwitch, onControl := l.commands()
		sw += onSwitch
		defer func() { ctl.run(t, onControl, "ip", "-batch", "-") }()
	}
	for _, n := range c.Nodes {
		n.net = newNamespace(t)
		for _, plane := range []string{planeA, planeB} {
			l := c.newLink(n.net, plane, n.number, fmt.Sprint(n.number))
			n.links[plane] = l
			onSwitch, _ := l.commands()
			sw += onSwitch
			shapes += shape(l.port, "")
		}
	}
	c.sw.run(t, sw, "ip", "-batch", "-")
	c.sw.run(t, shapes, "tc", "-batch", "-")
	for _, n := range c.Nodes {
		_, a := n.links[planeA].commands()
		_, b := n.links[planeB].commands()
		n.net.run(t, a+b, "ip", "-batch", "-")
		n.net.run(t, shape("eth_a", "")+shape("eth_b", ""), "tc", "-batch", "-")
	}
}

func (c *Cluster) newLink(ns namespace, plane string, number int, port string) *link {
	return &link{
		t: c.t, node: ns, sw: c.sw, inner: "eth_" + plane, port: plane + "_" + port, bridge: "br" + plane,
		address: fmt.Sprintf("%s.%d/24", subnets[plane], number), mac: fmt.Sprintf("02:00:00:00:%x:%02x", plane, number),
	}
}

// writeHosts writes /etc/hosts.
func (c *Cluster) writeHosts() {
	c.t.Helper()
	text := fmt.Sprintf("127.0.0.1 localhost\n%s.%d ctl\n", subnets[planeA], control)
	for _, n := range c.Nodes {
		text += n.Address(planeA) + " " + n.Name + "\n"
	}
	if err := os.WriteFile(c.Inside("/etc/hosts"), []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
}

// WaitIdle waits until the nodes are idle.
func (c *Cluster) WaitIdle(nodes ...*Node) {
	c.t.Helper()
	c.WaitFor(3*time.Minute, "idle nodes", func() (string, bool) {
		out, err := c.Try("sinfo", "--noheader", "--Node", "--format=%N %t", "--nodes="+names(nodes))
		return out, err == nil && strings.Count(out, " idle\n") == len(nodes)
	})
}

// As returns the command line of a program as an ordinary user.
func As(uid int, argv ...string) []string {
	id := fmt.Sprint(uid)
	return append([]string{"setpriv", "--reuid=" + id, "--regid=" + id, "--clear-groups", "--"}, argv...)
}

// Run runs a program on the control node within a limit, and returns its output and its exit status.
func (c *Cluster) Run(limit time.Duration, argv ...string) (stdout, stderr string, status int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), limit)
	defer cancel()
	cmd := c.Command(ctx, argv...)
	cmd.WaitDelay = time.Second
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		c.t.Fatalf("%s: %v", strings.Join(argv, " "), err)
	}
	if ctx.Err() != nil {
		c.t.Fatalf("%s has not ended after %v:\n%s\n%s", strings.Join(argv, " "), limit, out.String(), errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// Node returns the node with that number, from 1.
func (c *Cluster) Node(number int) *Node { return c.Nodes[number-1] }

// Address returns the node's address on a plane.
func (n *Node) Address(plane string) string { return fmt.Sprintf("%s.%d", subnets[plane], n.number) }

// Settings writes the node's /etc/default/nhc.
func (n *Node) Settings(text string) {
	n.c.t.Helper()
	n.c.Write("nodes/"+n.Name+"/default/nhc", []byte(text), 0o644)
}

// startSlurmd starts the node's slurmd.
func (n *Node) startSlurmd() {
	n.c.t.Helper()
	cmd := n.c.CommandIn(context.Background(), n.net.path(), "unshare", "--uts", "--mount", "--propagation", "private", cluster.Dir+"/node.sh", n.Name)
	n.slurmd = n.c.Background("slurmd."+n.Name, cmd)
}

// Loss drops that many percent of what the node receives on a plane.
func (n *Node) Loss(plane string, percent int) {
	n.change(plane, func(l *link) { l.to.loss = percent })
}

// LossFrom drops that many percent of what the node sends on a plane.
func (n *Node) LossFrom(plane string, percent int) {
	n.change(plane, func(l *link) { l.from.loss = percent })
}

// RateTo limits what the node receives on a plane: "10mbit".
func (n *Node) RateTo(plane, rate string) { n.change(plane, func(l *link) { l.to.rate = rate }) }

// RateFrom limits what the node sends on a plane.
func (n *Node) RateFrom(plane, rate string) { n.change(plane, func(l *link) { l.from.rate = rate }) }

// Delay delays everything on a plane in each direction. It replaces the node's interface.
func (n *Node) Delay(plane string, oneWay time.Duration) {
	n.change(plane, func(l *link) { l.delay = oneWay })
}

// BlockTo drops everything that the node should receive on a plane; it still sends.
func (n *Node) BlockTo(plane string) { n.change(plane, func(l *link) { l.to.block = true }) }

// BlockFrom drops everything that the node sends on a plane; it still receives.
func (n *Node) BlockFrom(plane string) { n.change(plane, func(l *link) { l.from.block = true }) }

// Down cuts the node's cable of a plane: the interface has no carrier.
func (n *Node) Down(plane string) { n.change(plane, func(l *link) { l.down = true }) }

// MTU changes the MTU of the node's interface on a plane.
func (n *Node) MTU(plane string, bytes int) { n.change(plane, func(l *link) { l.mtu = bytes }) }

func (n *Node) change(plane string, f func(*link)) {
	n.c.t.Helper()
	f(n.links[plane])
	n.links[plane].apply()
}

// LeafPair limits the rate between two groups of nodes, to each node and in both directions, as bad
// cables between their leaf switches do.
func (c *Cluster) LeafPair(plane string, a, b []*Node, rate string) {
	c.t.Helper()
	for _, pair := range [][2][]*Node{{a, b}, {b, a}} {
		var from []string
		for _, n := range pair[0] {
			from = append(from, n.Address(plane))
		}
		for _, n := range pair[1] {
			n.change(plane, func(l *link) { l.slow = slow{from, rate} })
		}
	}
}

// Freeze stops all processes of the node, those that its processes start meanwhile included.
func (n *Node) Freeze() {
	n.c.t.Helper()
	n.c.t.Cleanup(n.Thaw) // nsenter stops itself with its child, and reaps nothing then
	n.c.WaitFor(time.Minute, "frozen "+n.Name, func() (string, bool) {
		running := ""
		for _, pid := range n.net.processes(n.c.t) {
			if s := state(pid); s != "" && !strings.Contains("TtZX", s) {
				running += fmt.Sprintf("%d is %s; ", pid, s)
				_ = unix.Kill(pid, unix.SIGSTOP)
			}
		}
		return running, running == ""
	})
}

// Thaw continues all processes of the node. An nsenter that is continued before its child stops again.
func (n *Node) Thaw() {
	n.c.t.Helper()
	n.c.WaitFor(time.Minute, "thawed "+n.Name, func() (string, bool) {
		stopped := ""
		for _, pid := range n.net.processes(n.c.t) {
			if state(pid) == "T" {
				stopped += fmt.Sprintf("%d ", pid)
				_ = unix.Kill(pid, unix.SIGCONT)
			}
		}
		return stopped, stopped == ""
	})
}

// Die kills all processes of the node.
func (n *Node) Die() {
	n.c.t.Helper()
	n.c.WaitFor(time.Minute, "end of all processes on "+n.Name, func() (string, bool) {
		pids := n.net.processes(n.c.t)
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return fmt.Sprint(pids), len(pids) == 0
	})
}

// Undo ends all faults of the node, and waits until it is idle.
func (n *Node) Undo() {
	n.c.t.Helper()
	n.Thaw()
	for _, l := range n.links {
		l.to, l.from, l.slow, l.down, l.mtu, l.delay = side{}, side{}, slow{}, false, 0, 0
		l.apply()
	}
	select {
	case <-n.slurmd.Ended:
		n.startSlurmd()
	default:
	}
	if out, _ := n.c.Try("sinfo", "--noheader", "--Node", "--format=%t", "--nodes="+n.Name); strings.HasPrefix(out, "down") {
		_, _ = n.c.Try("scontrol", "update", "NodeName="+n.Name, "State=RESUME") // refused until slurmd has registered, which does the same
	}
	n.c.WaitIdle(n)
}

// Leftovers returns the processes on all nodes and on the control node that do not belong to Slurm's
// daemons.
func (c *Cluster) Leftovers() []string {
	c.t.Helper()
	var left []string
	for _, n := range c.Nodes {
		for _, pid := range n.net.processes(c.t) {
			line := commandLine(pid)
			if line != "" && !slices.Contains([]string{"slurmd", "nsenter"}, strings.Fields(line)[0]) {
				left = append(left, fmt.Sprintf("%s: %d %s", n.Name, pid, line))
			}
		}
	}
	return left
}
