package slurm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
)

// defaultConf is the nhc.conf of a node until a test writes another.
const defaultConf = "* || check_file_test -f /etc/nhc/ok"

// Cluster is a running Slurm in its own bubble, which ends with its test.
type Cluster struct {
	*cluster.Cluster
	t     *testing.T
	conf  string // slurm.conf, except nodes and partitions
	Nodes []*Node

	partitions string   // lines of slurm.conf
	beforeCtld []func() // start what slurmctld needs, when munged runs
}

// start starts a cluster of four idle nodes, whose health checks run every two seconds and pass.
func start(t *testing.T) *Cluster {
	t.Helper()
	c := newCluster(t)
	c.up()
	return c
}

// newCluster creates the files of a cluster that is not started yet.
func newCluster(t *testing.T) *Cluster {
	t.Helper()
	c := &Cluster{
		Cluster: cluster.New(t), t: t, conf: "SlurmctldHost=ctl(127.0.0.1)\n" + cluster.Conf,
		partitions: "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n",
	}
	c.addNodes(4)
	return c
}

// up starts the cluster's daemons; first runs before those of Slurm.
func (c *Cluster) up(first ...func()) {
	t := c.t
	t.Helper()
	c.writeConf()
	c.Start()
	began := time.Now()
	for _, f := range first {
		f()
	}
	c.StartMunge()
	for _, f := range c.beforeCtld {
		f()
	}
	c.StartCtld()
	for _, n := range c.Nodes {
		n.start()
	}
	for _, n := range c.Nodes {
		n.WaitState("idle", 90*time.Second)
	}
	t.Logf("%s: %d nodes idle after %v", c.Version, len(c.Nodes), time.Since(began).Round(time.Millisecond))
}

// addNodes adds nodes to a cluster that is not started yet.
func (c *Cluster) addNodes(more int) {
	for range more {
		n := &Node{c: c, Name: fmt.Sprintf("gpu%02d", len(c.Nodes)+1)}
		for _, dir := range []string{"nhc", "default", "log", "state", "past"} {
			c.Mkdir("nodes/" + n.Name + "/" + dir)
		}
		n.Conf(defaultConf)
		n.Settings("")
		n.Create("ok")
		c.Nodes = append(c.Nodes, n)
	}
}

// writeConf writes slurm.conf.
func (c *Cluster) writeConf() {
	c.t.Helper()
	text := c.conf
	for i, n := range c.Nodes {
		text += fmt.Sprintf("NodeName=%s NodeAddr=127.0.0.1 Port=%d CPUs=16 RealMemory=1000000 %s\n", n.Name, 6821+i, n.conf)
	}
	c.Write("etc/slurm.conf", []byte(text+c.partitions), 0o644)
}

// Update runs scontrol update for a node.
func (c *Cluster) Update(n *Node, settings ...string) {
	c.t.Helper()
	c.Exec(append([]string{"scontrol", "update", "NodeName=" + n.Name}, settings...)...)
}
