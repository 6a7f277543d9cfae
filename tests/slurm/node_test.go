package slurm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
)

// Node is one slurmd, with its own host name, /etc/nhc, /etc/default, /var/log and /run/nhc-gpu.
type Node struct {
	c      *Cluster
	Name   string
	slurmd *cluster.Process
	conf   string // additional settings in its line of slurm.conf

	boots  int       // so far
	booted time.Time // of a node with GPUs: zero of the times in its kernel log
	logged int       // lines in it
}

// start starts the node's slurmd, with further options of unshare.
func (n *Node) start(namespaces ...string) {
	argv := append([]string{"unshare", "--uts", "--mount", "--propagation", "unchanged"}, namespaces...)
	n.slurmd = n.c.Daemon("slurmd."+n.Name, append(argv, cluster.Dir+"/node.sh", n.Name)...)
}

// bootTime is a little more than the length of a boot. Slurm counts whole seconds: it may consider a
// boot in the second of the node's last response to be earlier, and slurmctld then waits for another.
const bootTime = 3 * time.Second

// startBooted starts the node's slurmd in a system that has been up for one second, and waits until it
// has registered. "slurmd -b" would
// compute another second of the boot with each registration, which slurmctld takes for a second boot.
func (n *Node) startBooted() {
	n.c.t.Helper()
	up, err := os.ReadFile("/proc/uptime")
	if err != nil {
		n.c.t.Fatal(err)
	}
	seconds, _, _ := strings.Cut(string(up), ".")
	s, err := strconv.Atoi(seconds)
	if err != nil {
		n.c.t.Fatalf("read /proc/uptime: %v", err)
	}
	before := n.started()
	n.start("--time", fmt.Sprintf("--boottime=-%d", s-1))
	n.c.WaitFor(2*soon, n.Name+"'s slurmd", func() (string, bool) {
		now := n.started()
		return now, now != before
	})
}

var startTime = regexp.MustCompile(` SlurmdStartTime=(\d\S+)`)

// started returns when the slurmd that registered last has started, "" if slurmctld knows of none.
func (n *Node) started() string {
	if m := startTime.FindStringSubmatch(n.c.Exec("scontrol", "-o", "show", "node", n.Name)); m != nil {
		return m[1]
	}
	return ""
}

// shutdown ends the node's slurmd, then all else that runs on the node: a health check may outlive slurmd.
func (n *Node) shutdown() {
	n.c.t.Helper()
	uts := strings.TrimSpace(n.c.Exec("sh", "-c", "pid=$(cat "+cluster.Dir+"/run/slurmd."+n.Name+".pid); readlink /proc/$pid/ns/uts; kill -TERM $pid"))
	n.c.WaitFor(2*soon, "end of slurmd", func() (string, bool) {
		select {
		case <-n.slurmd.Ended:
			n.slurmd = nil
			return "", true
		default:
			return "it runs", false
		}
	})
	n.c.WaitFor(soon, "end of the node's processes", func() (string, bool) {
		left := n.c.Exec("sh", "-c", `for p in /proc/[0-9]*; do [ "$(readlink $p/ns/uts)" != "$0" ] || { echo ${p#/proc/}; kill -KILL ${p#/proc/}; }; done 2>/dev/null; :`, uts)
		return left, left == ""
	})
}

// emptyRun empties the node's /run, and gives it another boot ID, as a boot does.
func (n *Node) emptyRun() {
	n.c.t.Helper()
	if err := os.RemoveAll(n.path("state")); err != nil {
		n.c.t.Fatal(err)
	}
	n.c.Mkdir("nodes/" + n.Name + "/state")
	n.boots++
	n.c.Write("nodes/"+n.Name+"/boot_id", []byte(fmt.Sprintf("5d6f2a1e-0000-4000-8000-%012d\n", n.boots)), 0o644)
}

// reboot restarts the node's slurmd as after a boot.
func (n *Node) reboot() {
	n.c.t.Helper()
	n.shutdown()
	n.emptyRun()
	time.Sleep(bootTime)
	n.startBooted()
}

// Try runs a program on the node, as an administrator would.
func (n *Node) Try(argv ...string) (string, error) {
	n.c.t.Helper()
	pid := strings.TrimSpace(n.c.Exec("cat", cluster.Dir+"/run/slurmd."+n.Name+".pid"))
	return n.c.Try(append([]string{"nsenter", "--target", pid, "--mount", "--uts", "--root", "--wd", "--"}, argv...)...)
}

// path returns the path of a node's file on the host: nhc/ is its /etc/nhc, and so on.
func (n *Node) path(name string) string { return filepath.Join(n.c.Dir, "nodes", n.Name, name) }

// Conf writes the node's nhc.conf.
func (n *Node) Conf(lines ...string) {
	n.c.t.Helper()
	n.write("nhc.conf", strings.Join(lines, "\n")+"\n")
}

// Settings writes the node's /etc/default/nhc. With it the next health check notices a person's
// change of a drained node: the tests do not wait half an hour.
func (n *Node) Settings(text string) {
	n.c.t.Helper()
	n.c.Write("nodes/"+n.Name+"/default/nhc", []byte("SLURM_RECHECK=0\n"+text), 0o644)
}

// Create creates a file in the node's /etc/nhc.
func (n *Node) Create(name string) {
	n.c.t.Helper()
	n.write(name, "")
}

func (n *Node) write(name, text string) {
	n.c.t.Helper()
	n.c.Write("nodes/"+n.Name+"/nhc/"+name, []byte(text), 0o644)
}

// Remove removes a file from the node's /etc/nhc.
func (n *Node) Remove(name string) {
	n.c.t.Helper()
	if err := os.Remove(n.path("nhc/" + name)); err != nil {
		n.c.t.Fatal(err)
	}
}

// Has reports whether a file is in the node's /etc/nhc.
func (n *Node) Has(name string) bool {
	_, err := os.Stat(n.path("nhc/" + name))
	return err == nil
}

// State returns sinfo's state (idle, drain, drng...) and reason of the node, empty for none. It asks
// about all nodes: for a single one slurmctld answers with the allocated CPUs of the last question
// about all, so that a drained node can stay "drng" when its jobs have ended.
func (n *Node) State() (state, reason string) {
	n.c.t.Helper()
	n.c.MustRun(n.slurmd)
	out, err := n.c.Try("sinfo", "--noheader", "--Node", "--format=%N|%t|%E")
	if err != nil {
		return "", err.Error()
	}
	for line := range strings.Lines(out) {
		if name, rest, _ := strings.Cut(strings.TrimRight(line, "\n"), "|"); name == n.Name {
			state, reason, _ = strings.Cut(rest, "|")
		}
	}
	if reason == "none" {
		reason = ""
	}
	return state, reason
}

// WaitState waits for one of the states, separated by blanks.
func (n *Node) WaitState(states string, limit time.Duration) {
	n.c.t.Helper()
	n.c.WaitFor(limit, n.Name+" in state "+states, func() (string, bool) {
		state, reason := n.State()
		return state + " " + reason, slices.Contains(strings.Fields(states), state)
	})
}

// WaitReason waits until the node's state is one of states and its reason begins with prefix.
func (n *Node) WaitReason(states, prefix string, limit time.Duration) {
	n.c.t.Helper()
	n.c.WaitFor(limit, n.Name+" in state "+states+" for "+prefix, func() (string, bool) {
		state, reason := n.State()
		return state + " " + reason, slices.Contains(strings.Fields(states), state) && strings.HasPrefix(reason, prefix)
	})
}

// Must fails the test unless the node is in this state for this reason.
func (n *Node) Must(wantState, wantReason string) {
	n.c.t.Helper()
	if state, reason := n.State(); state != wantState || reason != wantReason {
		n.c.t.Errorf("%s is %q for reason %q, want %q for %q", n.Name, state, reason, wantState, wantReason)
	}
}

// roundEnd matches slurmd's message at the end of a health check, in 22.05 to 26.05.
var roundEnd = regexp.MustCompile(`health_check (success|failed|killed|didn't)`)

// Rounds counts the health checks that have ended on the node.
func (n *Node) Rounds() int {
	return len(roundEnd.FindAllStringIndex(n.c.Log("slurmd."+n.Name), -1))
}

// WaitRounds waits until more health checks have ended on the node.
func (n *Node) WaitRounds(more int) {
	n.c.t.Helper()
	n.c.waitRounds([]*Node{n}, more)
}

// WaitRounds waits until more health checks have ended on every node.
func (c *Cluster) WaitRounds(more int) {
	c.t.Helper()
	c.waitRounds(c.Nodes, more)
}

func (c *Cluster) waitRounds(nodes []*Node, more int) {
	c.t.Helper()
	want := map[*Node]int{}
	for _, n := range nodes {
		want[n] = n.Rounds() + more
	}
	for _, n := range nodes {
		c.WaitFor(time.Duration(more+4)*4*time.Second, "health checks on "+n.Name, func() (string, bool) {
			got := n.Rounds()
			return fmt.Sprintf("%d of %d", got, want[n]), got >= want[n]
		})
	}
}

// Log returns the node's /var/log/nhc.log.
func (n *Node) Log() string {
	data, _ := os.ReadFile(n.path("log/nhc.log"))
	return string(data)
}
