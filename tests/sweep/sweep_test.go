package sweep_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/fakecuda"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenccl"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

const program = cluster.BinDir + "/nhc-gpu"

// sweepLimit is far beyond the time of any sweep of these tests.
const sweepLimit = 40 * time.Minute

// blame is a suspect as a test expects it.
type blame struct {
	Node, Peer, Leaves, Plane, Way, Code string
}

func (b blame) String() string {
	part := cmp.Or(b.Leaves, b.Node)
	if b.Peer != "" {
		part += "-" + b.Peer
	}
	return strings.TrimSpace(strings.Join(strings.Fields(part+" "+b.Plane+" "+b.Way+" "+b.Code), " "))
}

// scenario is a sweep of a cluster with faults, and what it must find.
type scenario struct {
	name   string
	nodes  int // 0: 8
	leaves int
	gpus   []string       // lines of the scenario of NCCL on the broken node; nil: nodes without GPUs
	args   []string       // of the sweep, besides the nodes
	before func(*Cluster) // makes the faults
	during func(*Cluster) // makes faults when the first tests have ended
	want   []blame        // all suspects
	also   []blame        // what the fault may cause besides
	states map[string]string
	status int // of the program
}

// runs returns how often each scenario runs, NHC_GPU_RUNS.
func runs(t *testing.T) int {
	t.Helper()
	text := os.Getenv("NHC_GPU_RUNS")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("NHC_GPU_RUNS=%s: want a positive number", text)
	}
	return n
}

// run runs a scenario on its own cluster.
func (s *scenario) run(t *testing.T) {
	t.Helper()
	c := newCluster(t, cmp.Or(s.nodes, 8))
	c.leaves = s.leaves
	if s.gpus != nil {
		c.addGPUs()
		c.Write("gpu/nccl.scenario."+c.Node(first).Name, []byte(strings.Join(s.gpus, "\n")+"\n"), 0o644)
	}
	c.up()
	for i := range runs(t) {
		if i > 0 {
			for _, n := range c.Nodes {
				n.Undo()
			}
		}
		if s.before != nil {
			s.before(c)
		}
		s.check(c, i)
	}
}

// addGPUs gives each node two GPUs, which a fake NCCL connects by TCP.
func (c *Cluster) addGPUs() {
	c.t.Helper()
	need.Program(c.t, "gcc")
	dir := filepath.Join(c.Dir, "gpu")
	_, nvml := fakenvml.Place(dir, fakenvml.Scenario(fakenvml.H100, 2))
	_, cuda := fakecuda.Place(dir, fakecuda.Scenario(2))
	_, nccl := fakenccl.Place(dir, "")
	if err := errors.Join(nvml, cuda, nccl); err != nil {
		c.t.Fatal(err)
	}
	inside := cluster.Dir + "/gpu/"
	for _, n := range c.Nodes {
		n.Settings("NVML_LIBRARY=" + inside + "libnvidia-ml.so.1\nCUDA_LIBRARY=" + inside + "libcuda.so.1\nNCCL_LIBRARY=" + inside + "libnccl.so.2\n")
	}
}

// check sweeps once, and compares the suspects.
func (s *scenario) check(c *Cluster, number int) {
	c.t.Helper()
	args := append([]string{"--nodes", names(c.Nodes), "--seed", fmt.Sprint(number + 1)}, s.args...)
	r, text, status := c.runSweep(s.during, args...)
	var got, want []string
	for _, x := range r.Suspects {
		got = append(got, blame{x.Node, x.Peer, strings.Join(x.Leaves, "-"), x.Plane, x.Way, x.Code}.String())
	}
	for _, x := range s.want {
		want = append(want, x.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	got = slices.DeleteFunc(got, func(x string) bool {
		return slices.ContainsFunc(s.also, func(b blame) bool { return b.String() == x })
	})
	bad := !slices.Equal(got, want) || status != s.status
	for _, n := range r.Nodes {
		accused := slices.ContainsFunc(s.want, func(b blame) bool { return b.Node == n.Name })
		state := cmp.Or(s.states[n.Name], map[bool]string{true: "suspect", false: "tested"}[accused])
		if n.State != state {
			c.t.Errorf("%s is %s (%s), want %s", n.Name, n.State, n.Why, state)
			bad = true
		}
	}
	if bad {
		c.t.Errorf("suspects\n  %s\nwant\n  %s\nexit status %d, want %d\n%s", strings.Join(got, "\n  "), strings.Join(want, "\n  "), status, s.status, text)
	}
	stages := ""
	for _, st := range r.Stages {
		stages += fmt.Sprintf(", %s %d rounds in %v", st.Stage, st.Rounds, st.Ended.Sub(st.Began).Round(time.Millisecond))
	}
	c.t.Logf("run %d: %v%s; suspects %s", number+1, r.Ended.Sub(r.Began).Round(time.Millisecond), stages, cmp.Or(strings.Join(got, "; "), "none"))
}

// runSweep runs a sweep and returns its report, what it has printed, and its exit status.
func (c *Cluster) runSweep(during func(*Cluster), args ...string) (r *sweep.Report, text string, status int) {
	c.t.Helper()
	argv := append([]string{program, "sweep", "--report", cluster.Dir + "/log/report.json"}, args...)
	_ = os.Remove(filepath.Join(c.Dir, "log/report.json"))
	ended := make(chan struct{})
	if during != nil {
		before := c.rounds()
		go func() {
			for c.rounds() == before {
				select {
				case <-ended:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
			during(c)
		}()
	}
	out, errs, status := c.Run(sweepLimit, argv...)
	close(ended)
	text = out + errs
	r, err := c.readReport()
	if err != nil {
		c.t.Fatalf("exit status %d, report: %v\n%s", status, err, text)
	}
	return r, text, status
}

// readReport reads the report of the last sweep.
func (c *Cluster) readReport() (r *sweep.Report, err error) {
	data, err := os.ReadFile(filepath.Join(c.Dir, "log/report.json"))
	if err != nil {
		return nil, err
	}
	r = new(sweep.Report)
	return r, json.Unmarshal(data, r)
}

// rounds counts the rounds of tests that all sweeps of the cluster have finished.
func (c *Cluster) rounds() (n int) {
	files, _ := filepath.Glob(c.Inside("/var/lib/nhc-gpu/sweep/*/results.jsonl"))
	for _, file := range files {
		data, _ := os.ReadFile(file)
		n += strings.Count(string(data), "\n")
	}
	return n
}

// network are the arguments of a sweep of the data network.
var network = []string{"--stages", "reach,tcp", "--planes", "eth_b", "--repeats", "2"}

// first and second are the nodes that the tests break.
const first, second = 3, 6

// scenarios are faults of one network.
var scenarios = []scenario{
	{name: "healthy"},
	{name: "loss", before: func(c *Cluster) { c.Node(first).Loss(planeB, 5) },
		want: []blame{{Node: "gpu03", Plane: "eth_b", Code: "sweep.reach.loss"}}},
	{name: "rate", before: func(c *Cluster) { c.Node(first).RateTo(planeB, "25mbit"); c.Node(first).RateFrom(planeB, "25mbit") },
		want: []blame{{Node: "gpu03", Plane: "eth_b", Code: "sweep.tcp.slow"}}},
	{name: "rate one way", before: func(c *Cluster) { c.Node(first).RateFrom(planeB, "25mbit") },
		want: []blame{{Node: "gpu03", Plane: "eth_b", Way: "sends", Code: "sweep.tcp.slow"}}},
	{name: "delay", before: func(c *Cluster) { c.Node(first).Delay(planeB, 10*time.Millisecond) },
		want: []blame{{Node: "gpu03", Plane: "eth_b", Code: "sweep.reach.latency"}},
		also: []blame{ // TCP is slow where answers are late
			{Node: "gpu03", Plane: "eth_b", Code: "sweep.tcp.slow"},
			{Node: "gpu03", Plane: "eth_b", Way: "sends", Code: "sweep.tcp.slow"},
			{Node: "gpu03", Plane: "eth_b", Way: "receives", Code: "sweep.tcp.slow"},
		}},
	{name: "blocked one way", before: func(c *Cluster) { c.Node(first).BlockFrom(planeB) },
		want: []blame{{Node: "gpu03", Plane: "eth_b", Code: "sweep.reach.loss"}}},
	{name: "dead link", before: func(c *Cluster) { c.Node(first).Down(planeB) },
		want: []blame{{Node: "gpu03", Plane: "eth_b", Code: "sweep.reach.loss"}}},
	{name: "MTU", before: func(c *Cluster) { c.Node(first).MTU(planeB, 1400) },
		want: []blame{{Node: "gpu03", Plane: "eth_b", Code: "sweep.reach.mtu"}}},
	{name: "MTU on two planes", args: []string{"--stages", "reach,tcp", "--repeats", "2"}, before: func(c *Cluster) { c.Node(first).MTU(planeB, 1400) },
		want: []blame{{Node: "gpu03", Plane: "eth_b", Code: "sweep.reach.mtu"}}},
	{name: "frozen", before: func(c *Cluster) { c.Node(first).Freeze() },
		states: map[string]string{"gpu03": "frozen"}},
	{name: "frozen in mid-test", during: func(c *Cluster) { c.Node(first).Freeze() },
		want: []blame{{Node: "gpu03", Code: "sweep.node.lost"}}, states: map[string]string{"gpu03": "dead"}},
	{name: "dies in mid-test", during: func(c *Cluster) { c.Node(first).Die() },
		want: []blame{{Node: "gpu03", Code: "sweep.node.lost"}}, states: map[string]string{"gpu03": "dead"}},
	{name: "leaves", leaves: 4, before: func(c *Cluster) { c.LeafPair(planeB, c.Leaf(0), c.Leaf(2), "10mbit") },
		want: []blame{{Leaves: "leaf1-leaf3", Plane: "eth_b", Code: "sweep.tcp.slow"}}},
	{name: "wrong data", nodes: 6, gpus: []string{"0 spoils all_reduce = 17 5"}, args: []string{"--eas", cluster.Dir + "/eas.json", "--repeats", "2", "--size", "4"},
		before: func(c *Cluster) { // one kind of collective
			c.Write("eas.json", []byte(`{"aimaster": {"sanity_check": {"micro_benchmarks": "all_reduce_2", "timeout": 100}}}`), 0o644)
		},
		want: []blame{{Node: "gpu03", Code: "sweep.nccl.wrong"}}},
	{name: "32 healthy nodes", nodes: 32},
	{name: "32 nodes", nodes: 32, before: func(c *Cluster) { c.Node(first).RateTo(planeB, "20mbit"); c.Node(second).Loss(planeB, 5) },
		want: []blame{{Node: "gpu03", Plane: "eth_b", Way: "receives", Code: "sweep.tcp.slow"}, {Node: "gpu06", Plane: "eth_b", Code: "sweep.reach.loss"}}},
	{name: "two faults", before: func(c *Cluster) { c.Node(first).RateTo(planeB, "20mbit"); c.Node(second).Loss(planeB, 5) },
		want: []blame{{Node: "gpu03", Plane: "eth_b", Way: "receives", Code: "sweep.tcp.slow"}, {Node: "gpu06", Plane: "eth_b", Code: "sweep.reach.loss"}}},
}

// complete adds the arguments and the exit status of a scenario.
func (s scenario) complete() scenario {
	if s.args == nil {
		s.args = network
	}
	switch {
	case len(s.want) > 0:
		s.status = 1
	case len(s.states) > 0:
		s.status = 3
	}
	return s
}

// A sweep names the broken parts, and nothing else.
func TestSweepFaults(t *testing.T) {
	tier.Long(t)
	for _, s := range scenarios {
		s = s.complete()
		t.Run(s.name, s.run) // one after the other: they measure
	}
}

// easExample is the example of the documentation of EAS.
const easExample = `{
"aimaster": {
"runtime_check": {
"fail_action": "retain",
"micro_benchmarks": "c4d"
},
"sanity_check": {
"fail_action": "retain",
"micro_benchmarks": "gemm_flops,all_reduce_1,all_reduce_2,kernel_launch,all_reduce,all_to_all_2,all_gather_2,all_gather,multi_all_reduce_2,multi_all_reduce,pytorch_gloo_2,network_connectivity,comp_comm_overlap",
"timeout": 100
}
}
}
`

// The example of EAS runs as it is, and each check item has a result.
func TestSweepEAS(t *testing.T) {
	tier.Long(t)
	c := newCluster(t, 4)
	c.addGPUs()
	c.Write("eas.json", []byte(easExample), 0o644)
	c.up()
	r, text, status := c.runSweep(nil, "--nodes", names(c.Nodes), "--eas", cluster.Dir+"/eas.json", "--size", "4", "--repeats", "2")
	results := map[string]string{}
	for _, x := range r.EAS {
		results[x.Name] = x.Result
		switch x.Name {
		case "c4d": // it is about running jobs
		case "gemm_flops", "comp_comm_overlap": // the memory of the fake GPUs is too small
			if x.Result != "Failed" || !strings.Contains(x.Text, "not run") {
				t.Errorf("%s: %s: %s", x.Name, x.Result, x.Text)
			}
		default:
			if x.Result != "Succeeded" {
				t.Errorf("%s: %s: %s", x.Name, x.Result, x.Text)
			}
		}
	}
	if len(results) != 14 || status != 3 || len(r.Suspects) > 0 {
		t.Errorf("exit status %d, %d results, suspects %s\n%s", status, len(results), accused(r), text)
	}
	t.Logf("%v", results)
}

// However a sweep ends, no process of it is left on a node.
func TestSweepLeavesNothing(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, 8)
	ctl := openNamespace(t, c.Network())
	kill := func(signal unix.Signal, programs ...string) {
		for _, pid := range ctl.processes(t) {
			words := strings.Fields(commandLine(pid))
			if len(words) > 1 && slices.Contains(programs, filepath.Base(words[0])) && !slices.Contains(words, "nsenter") {
				_ = unix.Kill(pid, signal)
			}
		}
	}
	for _, tt := range []struct {
		name string
		end  func()
	}{
		{"Ctrl-C", func() { kill(unix.SIGINT, "nhc-gpu") }},
		{"scancel", func() { c.Exec("scancel", "--user=root") }},
		{"kill -9 of the launcher and of all srun", func() { kill(unix.SIGKILL, "nhc-gpu", "srun") }},
	} {
		before := c.rounds()
		p := c.Background("sweep", c.Command(t.Context(), program, "sweep", "--nodes", names(c.Nodes), "--stages", "reach,tcp"))
		c.WaitFor(3*time.Minute, "tests", func() (string, bool) {
			c.MustRun(p)
			return fmt.Sprint(c.rounds()), c.rounds() > before+1 // the first line is the list of nodes
		})
		if left := c.Leftovers(); len(left) < len(c.Nodes) {
			t.Errorf("%s: a sweep that runs has only the processes %v", tt.name, left)
		}
		tt.end()
		began := time.Now()
		c.WaitFor(time.Minute, "end of all processes after "+tt.name, func() (string, bool) { // 15 s on an idle machine
			left := c.Leftovers()
			return strings.Join(left, "\n"), len(left) == 0
		})
		t.Logf("%s: nothing is left after %v", tt.name, time.Since(began).Round(100*time.Millisecond))
		<-p.Ended
		c.WaitFor(3*time.Minute, "end of the job", func() (string, bool) {
			out := c.Exec("squeue", "--noheader")
			return out, out == ""
		})
		c.WaitIdle(c.Nodes...)
	}
}
