package rank

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
	"github.com/nhc-gpu/nhc-gpu/tests/fakecuda"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenccl"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// The test program is the child, too.
func init() {
	if slices.Equal(os.Args[1:], WorkWords) {
		if err := Work(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// ncclNode is a node with fake libraries of its own.
type ncclNode struct {
	*node
	dir string
}

func newNCCLNode(t *testing.T, i, gpus int, scenario string, missing ...string) ncclNode {
	t.Helper()
	dir := t.TempDir()
	lib, err := fakenccl.Place(dir, scenario, missing...)
	if err != nil {
		t.Fatal(err)
	}
	driver, err := fakecuda.Place(dir, fakecuda.Scenario(gpus))
	if err != nil {
		t.Fatal(err)
	}
	h := probe.NewHost("/")
	probe.SetLibraries(h, map[string]string{probe.SettingNCCL: lib, probe.SettingCUDA: driver})
	lo := sweep.Plane{Name: "lo", Address: netip.MustParsePrefix("127.0.0.1/8")}
	name := fmt.Sprintf("gpu%02d", i)
	return ncclNode{&node{Node: sweep.Node{Name: name, GPUs: gpus, Planes: []sweep.Plane{lo}}, host: h, program: "/proc/self/exe"}, dir}
}

// newNCCLNodes returns nodes; scenarios change some of them, by their number.
func newNCCLNodes(t *testing.T, count, gpus int, scenarios map[int]string) (nodes []ncclNode) {
	t.Helper()
	for i := range count {
		nodes = append(nodes, newNCCLNode(t, i, gpus, scenarios[i]))
	}
	return nodes
}

func ncclTaskOf(op string, nodes []ncclNode) sweep.Task {
	task := sweep.Task{ID: 1, Stage: sweep.StagePairs, Kind: sweep.KindNCCL, Plane: "lo", Op: op, Size: 256 << 10, Repeats: 2, Time: time.Millisecond, Limit: time.Minute}
	for _, n := range nodes {
		task.Nodes = append(task.Nodes, n.Name)
	}
	return task
}

// carryOut carries a task out as a launcher does: all prepare, then all run, then all stop. during,
// if any, is called when all run. It returns the results of the nodes.
func carryOut(t *testing.T, nodes []ncclNode, task sweep.Task, during func(ends []kind)) (results []sweep.Result) {
	t.Helper()
	ends := make([]kind, len(nodes))
	ready := make([]wire.Ready, len(nodes))
	results = make([]sweep.Result, len(nodes))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	for i, n := range nodes {
		ends[i] = kinds[sweep.KindNCCL](n.node)
		all.Go(func() { ready[i] = ends[i].prepare(ctx, &wire.Prepare{Task: task, Rank: i}) })
	}
	all.Wait()
	unable := false
	for i, r := range ready {
		if r.Fault != "" {
			results[i], unable = sweep.Result{Fault: r.Fault, Text: r.Text}, true
		}
	}
	if !unable {
		running, stop := context.WithTimeout(ctx, task.Limit)
		defer stop()
		for i := range ready {
			ready[i].Rank = i
		}
		for i, r := range wire.Runs(task.ID, ready) {
			whole, err := r.Whole(len(nodes))
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() { results[i] = ends[i].run(running, whole) })
		}
		if during != nil {
			during(ends)
		}
		all.Wait()
	}
	cancel()
	for _, e := range ends {
		e.stop()
	}
	for _, n := range nodes {
		if left := n.holders(t); len(left) > 0 {
			t.Errorf("%s: left: %v", n.Name, left)
		}
	}
	return results
}

// holders returns the processes, other than this one, that have loaded the node's NCCL.
func (n ncclNode) holders(t *testing.T) (list []string) {
	t.Helper()
	maps, _ := filepath.Glob("/proc/[0-9]*/maps")
	for _, path := range maps {
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(n.dir+"/libnccl")) {
			list = append(list, path)
		}
	}
	return list
}

func passed(t *testing.T, name string, results []sweep.Result, repeats int) {
	t.Helper()
	for i, r := range results {
		if r.Fault != "" || len(r.Values) != repeats || r.Values[0] <= 0 || len(r.Windows) < repeats || r.Network != "Socket" {
			t.Errorf("%s, node %d: %+v", name, i, r)
		}
	}
}

// Every operation is carried out by processes that only TCP connects, and each word is verified.
func TestNCCLAcross(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ nodes, gpus int }{{2, 1}, {2, 2}, {4, 1}} {
		t.Run(fmt.Sprint(c.nodes, " nodes of ", c.gpus), func(t *testing.T) {
			t.Parallel()
			nodes := newNCCLNodes(t, c.nodes, c.gpus, nil)
			for _, op := range cuda.NCCLOpNames() {
				passed(t, op, carryOut(t, nodes, ncclTaskOf(op, nodes), nil), 2)
			}
			env, err := fakenccl.Environment(nodes[0].dir)
			if want := "NCCL_CONF_FILE=/dev/null\nNCCL_COMM_BLOCKING=0\nNCCL_RAS_ENABLE=0\nNCCL_SOCKET_IFNAME==lo\nNCCL_NET=Socket\n"; err != nil || !strings.HasPrefix(env, want) {
				t.Errorf("%v, environment %s", err, env)
			}
		})
	}
}

// Nodes need not have equal numbers of GPUs.
func TestNCCLUnequal(t *testing.T) {
	t.Parallel()
	nodes := []ncclNode{newNCCLNode(t, 0, 1, ""), newNCCLNode(t, 1, 2, "")}
	for _, op := range []string{"all_to_all", cuda.NCCLMulti} {
		passed(t, op, carryOut(t, nodes, ncclTaskOf(op, nodes), nil), 2)
	}
	third := nodes[1]
	n := *third.node
	task, end := ncclTaskOf("all_reduce", nodes[:1]), &ncclTask{n: &n, visible: "7"}
	if ready := end.prepare(t.Context(), &wire.Prepare{Task: task}); ready.Fault != sweep.FaultUnable || !strings.Contains(ready.Text, "CUDA_VISIBLE_DEVICES=7") {
		t.Errorf("a step without that GPU: %+v", ready)
	}
	end.stop()
}

// Releases before 2.14 have only calls that block.
func TestNCCLOldRelease(t *testing.T) {
	t.Parallel()
	nodes := []ncclNode{newNCCLNode(t, 0, 2, "", fakenccl.Old...), newNCCLNode(t, 1, 2, "", fakenccl.Old...)}
	passed(t, "all_reduce", carryOut(t, nodes, ncclTaskOf("all_reduce", nodes), nil), 2)
	for _, r := range carryOut(t, nodes, ncclTaskOf("all_to_all", nodes), nil) {
		if r.Fault != sweep.FaultUnable || !strings.Contains(r.Text, "want 2.7 or later") {
			t.Errorf("%+v", r)
		}
	}
}

func faultsOf(results []sweep.Result) (list []string) {
	for i, r := range results {
		list = append(list, strings.TrimSpace(fmt.Sprint(i, " ", r.Fault, " ", strings.Join(r.Blame, ","))))
	}
	return list
}

func wantFaults(t *testing.T, results []sweep.Result, want ...string) {
	t.Helper()
	if got := faultsOf(results); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
		for _, r := range results {
			t.Logf("%+v", r)
		}
	}
}

// A node that receives wrong data is named, with the element.
func TestNCCLWrong(t *testing.T) {
	t.Parallel()
	nodes := newNCCLNodes(t, 4, 1, map[int]string{2: "0 wrong all_reduce = 17 20"})
	results := carryOut(t, nodes, ncclTaskOf("all_reduce", nodes), nil)
	wantFaults(t, results, "0", "1", "2 wrong", "3")
	if r := results[2]; r.Rank != 2 || !strings.Contains(r.Text, "1 of 65536 elements wrong on gpu0 (the sum of all ranks)") || !strings.Contains(r.Text, "in element 17") {
		t.Errorf("%+v", r)
	}
	nodes[2] = newNCCLNode(t, 2, 1, "0 spoils all_gather = 17 20")
	results = carryOut(t, nodes, ncclTaskOf("all_gather", nodes), nil)
	wantFaults(t, results, "0 wrong", "1 wrong", "2 wrong", "3 wrong")
	for _, r := range results {
		if !strings.Contains(r.Text, "(from rank 2 of 4)") {
			t.Errorf("%+v", r)
		}
	}
}

// A node whose NCCL never returns from a call is the only one that is blamed.
func TestNCCLHangs(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, c := range map[string]struct{ scenario, want string }{
		"in a call":        {"0 ncclAllReduce after 3 hang", "1 silent gpu01"},
		"in the join":      {"0 ncclCommInitRankConfig hang", "1 silent gpu01"},
		"after the calls":  {"0 work after 3 hang", "1 silent"},
		"before the start": {"- ncclGetUniqueId hang", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := newNCCLNodes(t, 3, 1, map[int]string{1: c.scenario})
			task := ncclTaskOf("all_reduce", nodes)
			task.Limit = 20 * time.Second
			if c.want == "1" { // rank 0 alone makes the name
				passed(t, name, carryOut(t, nodes, task, nil), 2)
				return
			}
			wantFaults(t, carryOut(t, nodes, task, nil), "0 silent", c.want, "2 silent")
		})
	}
}

// A process of NCCL that is stopped answers nothing: its rank, which does, blames the node.
func TestNCCLFrozen(t *testing.T) {
	tier.All(t)
	t.Parallel()
	nodes := newNCCLNodes(t, 2, 1, nil)
	task := ncclTaskOf("all_reduce", nodes)
	task.Limit, task.Time = 15*time.Second, 300*time.Second
	results := carryOut(t, nodes, task, func([]kind) { signalChild(t, nodes[1], unix.SIGSTOP) })
	wantFaults(t, results, "0 silent", "1 silent gpu01")
}

// waitFor waits until all nodes are in a step.
func waitFor(t *testing.T, ends []kind, step string) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		waits := slices.ContainsFunc(ends, func(e kind) bool { return !strings.Contains(e.(*ncclTask).step(), step) })
		if !waits {
			return
		}
		if time.Since(began) > 5*time.Minute {
			t.Errorf("not all nodes have begun: %s", step)
			return
		}
	}
}

// signalChild sends a signal to the child of a node.
func signalChild(t *testing.T, n ncclNode, sig unix.Signal) {
	t.Helper()
	for _, path := range n.holders(t) {
		pid := 0
		if _, err := fmt.Sscanf(path, "/proc/%d/maps", &pid); err != nil || unix.Kill(pid, sig) != nil {
			t.Errorf("no signal for %s", path)
		}
	}
}

// A node whose NCCL crashes is blamed; the others see that their partner is gone.
func TestNCCLCrashes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ scenario, text string }{
		"crash":              {"0 ncclAllReduce after 3 crash", "the process of NCCL ended by SIGSEGV in all_reduce of 262144 bytes"},
		"crash of a thread":  {"0 work after 3 crash", "the process of NCCL ended by SIGSEGV in all_reduce of 262144 bytes"},
		"exit":               {"0 ncclAllReduce after 3 exit 7", "the process of NCCL ended with status 7 in all_reduce of 262144 bytes"},
		"error of the GPU":   {"0 ncclAllReduce after 3 error 1", "ncclUnhandledCudaError"},
		"error while it ran": {"0 work after 3 error 1", "ncclUnhandledCudaError"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := newNCCLNodes(t, 3, 1, map[int]string{1: c.scenario})
			results := carryOut(t, nodes, ncclTaskOf("all_reduce", nodes), nil)
			wantFaults(t, results, "0 error", "1 error gpu01", "2 error")
			if !strings.Contains(results[1].Text, c.text) {
				t.Errorf("%q, want %q", results[1].Text, c.text)
			}
		})
	}
}

// A peer that dies in the middle of a collective ends the test of the others at once, not at its limit.
func TestNCCLPeerDies(t *testing.T) {
	t.Parallel()
	nodes := newNCCLNodes(t, 2, 1, map[int]string{1: "- busbw all_reduce = 0.000003"})
	task := ncclTaskOf("all_reduce", nodes)
	task.Limit = 10 * time.Minute
	began := time.Now()
	results := carryOut(t, nodes, task, func(ends []kind) {
		waitFor(t, ends, "warm-up")
		signalChild(t, nodes[1], unix.SIGKILL)
	})
	wantFaults(t, results, "0 error", "1 error gpu01")
	if took := time.Since(began); took > 5*time.Minute {
		t.Errorf("it took %v", took)
	}
	if !strings.Contains(results[1].Text, "ended by SIGKILL") {
		t.Error(results[1].Text)
	}
}

// Without an RDMA device NCCL must not fall back to TCP.
func TestNCCLNetwork(t *testing.T) {
	t.Parallel()
	nodes := newNCCLNodes(t, 2, 1, map[int]string{0: "- network = Socket", 1: "- network = Socket"})
	task := ncclTaskOf("all_reduce", nodes)
	for i := range nodes {
		nodes[i].Rails = []sweep.Rail{{Name: "mlx5_0:1", Layer: "InfiniBand"}}
	}
	for _, plane := range []string{"", "mlx5_0:1"} {
		task.Plane = plane
		for _, r := range carryOut(t, nodes, task, nil) {
			if r.Fault != sweep.FaultNetwork || !strings.Contains(r.Text, "network IB not found") {
				t.Errorf("%q: %+v", plane, r)
			}
		}
	}
	if env, err := fakenccl.Environment(nodes[0].dir); err != nil || !strings.Contains(env, "NCCL_IB_HCA==mlx5_0:1\nNCCL_NET=IB\n") {
		t.Errorf("%v, environment %s", err, env)
	}
	task.Plane = "lo" // a plane that the task names is what it wants
	passed(t, "lo", carryOut(t, nodes, task, nil), 2)
	task.Plane = "eth9"
	for _, r := range carryOut(t, nodes, task, nil) {
		if r.Fault != sweep.FaultUnable {
			t.Errorf("%+v", r)
		}
	}
}

// A node is not blamed for a library or a device that it lacks.
func TestNCCLUnable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(n ncclNode, task *sweep.Task)
		text   string
	}{
		"no NCCL": {func(n ncclNode, _ *sweep.Task) {
			probe.SetLibraries(n.host, map[string]string{probe.SettingNCCL: n.dir + "/none.so", probe.SettingCUDA: n.dir + "/libcuda.so.1"})
		}, "none.so"},
		"no driver": {func(n ncclNode, _ *sweep.Task) {
			probe.SetLibraries(n.host, map[string]string{probe.SettingNCCL: n.dir + "/libnccl.so.2", probe.SettingCUDA: n.dir + "/none.so"})
		}, "none.so"},
		"no GPU": {func(n ncclNode, _ *sweep.Task) {
			if _, err := fakecuda.Place(n.dir, fakecuda.Scenario(0)); err != nil {
				t.Fatal(err)
			}
		}, "CUDA_ERROR_NO_DEVICE"},
		"no such operation": {func(_ ncclNode, task *sweep.Task) { task.Op = "barrier" }, `no operation "barrier"`},
		"too large":         {func(_ ncclNode, task *sweep.Task) { task.Size = 1 << 40 }, "CUDA_ERROR_OUT_OF_MEMORY"},
		"too small":         {func(_ ncclNode, task *sweep.Task) { task.Size = 1 }, "too few"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := newNCCLNodes(t, 2, 1, nil)
			task := ncclTaskOf("all_reduce", nodes)
			for _, n := range nodes {
				c.change(n, &task)
			}
			for _, r := range carryOut(t, nodes, task, nil) {
				if r.Fault != sweep.FaultUnable || !strings.Contains(r.Text, c.text) || len(r.Blame) > 0 {
					t.Errorf("%+v, want %q", r, c.text)
				}
			}
		})
	}
}
