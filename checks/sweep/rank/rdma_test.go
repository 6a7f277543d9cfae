package rank

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
	"github.com/nhc-gpu/nhc-gpu/tests/fakeperftest"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// The test program is perftest, too, by links to it.
func init() {
	if fakeperftest.Is(os.Args) {
		os.Exit(fakeperftest.Main(os.Args))
	}
}

// newRDMANode returns a node with perftest and one rail. act is what its device does.
func newRDMANode(t *testing.T, i int, act string, programs ...string) *node {
	t.Helper()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range programs {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	h := probe.NewHost("/")
	h.SetEnviron([]string{"PATH=" + dir, fakeperftest.Setting + "mlx5_7=" + act})
	return &node{Node: sweep.Node{
		Name: fmt.Sprintf("gpu%02d", i), Planes: []sweep.Plane{{Name: "lo", Address: netip.MustParsePrefix("127.0.0.1/8")}},
		Rails: []sweep.Rail{{Name: "mlx5_7:1", Layer: "InfiniBand", GID: -1}},
	}, host: h}
}

func rdmaTaskOf(kind sweep.Kind) sweep.Task {
	return sweep.Task{ID: 1, Stage: sweep.StageRDMA, Kind: kind, Nodes: []string{"gpu00", "gpu01"}, Plane: "mlx5_7:1", Repeats: 2, Time: time.Second, Limit: time.Minute}
}

// carryOutPair carries out a task between two nodes, and returns their results.
func carryOutPair(t *testing.T, nodes [2]*node, task sweep.Task) (results [2]sweep.Result) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var ends [2]kind
	var ready [2]wire.Ready
	for i, n := range nodes {
		ends[i] = kinds[task.Kind](n)
		ready[i] = ends[i].prepare(ctx, &wire.Prepare{Task: task, Rank: i})
	}
	for i, r := range ready {
		results[i] = sweep.Result{Fault: r.Fault, Text: r.Text}
	}
	if ready[0].Fault == "" && ready[1].Fault == "" {
		running, stop := context.WithTimeout(ctx, task.Limit)
		defer stop()
		served := make(chan sweep.Result, 1)
		run := &wire.Run{ID: task.ID, Ranks: ready[:]}
		go func() { served <- ends[1].run(running, run) }()
		results[0] = ends[0].run(running, run)
		results[1] = <-served
	}
	cancel()
	for _, e := range ends {
		e.stop()
	}
	for _, n := range nodes {
		for _, program := range fakeperftest.Names {
			noProcessOf(t, filepath.Join(strings.TrimPrefix(n.host.Getenv("PATH"), "PATH="), program))
		}
	}
	return results
}

// noProcessOf checks that no process has a name in its environment: PATH is different for each test.
func noProcessOf(t *testing.T, program string) {
	t.Helper()
	list, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range list {
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), "PATH="+filepath.Dir(program)+"\x00") {
			t.Errorf("%s is left", path)
		}
	}
}

func TestRDMAPair(t *testing.T) {
	t.Parallel()
	nodes := [2]*node{newRDMANode(t, 0, "", fakeperftest.Names...), newRDMANode(t, 1, "", fakeperftest.Names...)}
	for _, kind := range []sweep.Kind{sweep.KindWrite, sweep.KindLatency} {
		r := carryOutPair(t, nodes, rdmaTaskOf(kind))
		if r[0].Fault != "" || r[1].Fault != "" || len(r[0].Values) != 2 || r[0].Values[0] <= 0 || r[0].Values[1] <= 0 || len(r[1].Values) != 0 {
			t.Errorf("%s: %+v", kind, r)
		}
	}
}

// The server listens at the address of the plane only, if its perftest can. If another program connects
// to it, the fault does not count at once.
func TestRDMAStranger(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]bool{"bound": false, "perftest 4.5": true} {
		n := newRDMANode(t, 1, "", fakeperftest.Names...)
		if old {
			n.host.SetEnviron([]string{"PATH=" + n.host.Getenv("PATH"), fakeperftest.Old})
		}
		task := rdmaTaskOf(sweep.KindWrite)
		ctx, cancel := context.WithTimeout(t.Context(), task.Limit)
		defer cancel()
		end := &rdmaTask{n: n, done: make(chan struct{})}
		ready := end.prepare(ctx, &wire.Prepare{Task: task, Rank: 1})
		if ready.Fault != "" {
			t.Fatalf("%s: %+v", name, ready)
		}
		_, port, _ := net.SplitHostPort(ready.Address)
		elsewhere, err := net.Dial("tcp4", net.JoinHostPort("127.0.0.2", port)) // another address of this machine
		if (err == nil) != old {
			t.Errorf("%s: a connection to another address: %v", name, err)
		}
		stranger := elsewhere
		if stranger == nil {
			if stranger, err = net.Dial("tcp4", ready.Address); err != nil {
				t.Fatal(err)
			}
		}
		stranger.Close()
		if r := end.run(ctx, nil); r.Fault != sweep.FaultError || !end.isVague() || len(r.Blame) > 0 {
			t.Errorf("%s: %+v, vague: %t", name, r, end.isVague())
		}
		cancel()
		end.stop()
	}
}

func TestRDMAFaults(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, c := range map[string]struct {
		client, server string
		limit          time.Duration
		want           string // faults and blame of client and server; a slow machine can cut a try off
		text           string // of one of them
	}{
		"the server dies":     {"", "die", time.Minute, "error/ error/gpu01", "ended by SIGKILL"},
		"the client dies":     {"die", "", 15 * time.Second, "error/gpu00 silent/", "ended by SIGKILL"},
		"garbage":             {"garbage", "", 15 * time.Second, "error/ silent/", "its table has no average"},
		"an error":            {"transfer", "", 15 * time.Second, "error/ silent/", "Completion with error at client"},
		"the client hangs":    {"hang", "", 15 * time.Second, "silent/ silent/", "it did not end"},
		"the server hangs":    {"", "hang", 15 * time.Second, "refused/ silent/ or silent/ silent/", ""},
		"the server is deaf":  {"", "deaf", 10 * time.Second, "refused/ silent/ or silent/ silent/", ""},
		"no device":           {"", "nodevice", time.Minute, "/ unable/", "Unable to find the Infiniband/RoCE device"},
		"no device to client": {"nodevice", "", 10 * time.Second, "unable/ silent/", "Unable to find the Infiniband/RoCE device"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := [2]*node{newRDMANode(t, 0, c.client, fakeperftest.Names...), newRDMANode(t, 1, c.server, fakeperftest.Names...)}
			task := rdmaTaskOf(sweep.KindWrite)
			task.Limit = c.limit
			r := carryOutPair(t, nodes, task)
			var got []string
			for _, one := range r {
				got = append(got, string(one.Fault)+"/"+strings.Join(one.Blame, ","))
			}
			if !slices.Contains(strings.Split(c.want, " or "), strings.Join(got, " ")) || !strings.Contains(r[0].Text+r[1].Text, c.text) {
				t.Errorf("got %q, want %q and %q: %+v", got, c.want, c.text, r)
			}
		})
	}
}

func TestRDMAUnable(t *testing.T) {
	t.Parallel()
	without := [2]*node{newRDMANode(t, 0, ""), newRDMANode(t, 1, "")}
	other := rdmaTaskOf(sweep.KindLatency)
	other.Plane = "mlx5_9:1"
	nodes := [2]*node{newRDMANode(t, 0, "", fakeperftest.Names...), newRDMANode(t, 1, "", fakeperftest.Names...)}
	three := rdmaTaskOf(sweep.KindWrite)
	three.Nodes = append(three.Nodes, "gpu02")
	for name, r := range map[string][2]sweep.Result{
		"no such program":                      carryOutPair(t, without, rdmaTaskOf(sweep.KindWrite)),
		"gpu00 has no RDMA port mlx5_9:1":      carryOutPair(t, nodes, other),
		"write_bw is between two nodes, got 3": carryOutPair(t, nodes, three),
	} {
		if r[0].Fault != sweep.FaultUnable || !strings.Contains(r[0].Text, name) {
			t.Errorf("%q: %+v", name, r)
		}
	}
}

// A rank lives as long as the sweep: a program that could not be run once is run for a later task.
func TestRDMAProgramComesLater(t *testing.T) {
	t.Parallel()
	nodes := [2]*node{newRDMANode(t, 0, ""), newRDMANode(t, 1, "", fakeperftest.Names...)}
	if r := carryOutPair(t, nodes, rdmaTaskOf(sweep.KindWrite)); r[0].Fault != sweep.FaultUnable {
		t.Errorf("without the program: %+v", r)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range fakeperftest.Names {
		if err := os.Symlink(self, filepath.Join(strings.TrimPrefix(nodes[0].host.Getenv("PATH"), "PATH="), name)); err != nil {
			t.Fatal(err)
		}
	}
	if r := carryOutPair(t, nodes, rdmaTaskOf(sweep.KindWrite)); r[0].Fault != "" || r[1].Fault != "" {
		t.Errorf("with the program: %+v", r)
	}
}
