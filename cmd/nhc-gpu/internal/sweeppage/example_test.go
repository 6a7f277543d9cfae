package sweeppage

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

var began = time.Date(2026, 11, 22, 21, 30, 0, 0, time.UTC)

// fault is a fault of a simulated cluster: tests of a plane with a node, between two nodes or between two
// leaf switches are slower by a factor; 0 fails.
type fault struct {
	node, peer, way, plane string
	leaves                 []string
	kinds                  []sweep.Kind
	factor                 float64
	code, text, do         string
	doubt                  bool
}

func (f *fault) hits(t *sweep.Task, leaf map[string]string) bool {
	a, b := t.Nodes[0], t.Nodes[1]
	switch {
	case !slices.Contains(f.kinds, t.Kind) || f.plane != "" && f.plane != t.Plane:
		return false
	case len(f.leaves) > 0:
		return slices.Contains(f.leaves, leaf[a]) && slices.Contains(f.leaves, leaf[b]) && leaf[a] != leaf[b]
	case f.peer != "":
		return f.node == a && f.peer == b || f.node == b && f.peer == a
	case f.way == "sends":
		return f.node == a
	case f.way == "receives":
		return f.node == b
	}
	return f.node == a || f.node == b
}

// model is the simulated cluster.
type model struct {
	nodes, rails, perLeaf int
	faults                []fault
	seed                  uint64
}

// kindOf are the kinds of tests that the model makes, with their usual value and noise.
var kindOf = []struct {
	stage  sweep.Stage
	kind   sweep.Kind
	op     string
	usual  float64
	noise  float64
	planes func(rails int) []string
}{
	{sweep.StageReach, sweep.KindEcho, "", 0.031, 0.06, func(int) []string { return []string{"eth0", "eth1"} }},
	{sweep.StageTCP, sweep.KindStream, "", 92, 0.015, func(int) []string { return []string{"eth0", "eth1"} }},
	{sweep.StageRDMA, sweep.KindWrite, "", 391, 0.008, railNames},
	{sweep.StagePairs, sweep.KindNCCL, "all_reduce", 330, 0.02, func(int) []string { return []string{""} }},
}

func railNames(rails int) (names []string) {
	for i := range rails {
		names = append(names, fmt.Sprintf("mlx5_%d:1", i))
	}
	return names
}

// report carries the model out: all pairs of up to 64 nodes, four partners of each node beyond.
func (m *model) report() *sweep.Report {
	rng := rand.New(rand.NewPCG(m.seed, 7))
	r := &sweep.Report{Schema: 1, Version: "1.2.0", ID: "20261122-2130", Began: began, Command: []string{"nhc-gpu", "sweep", "--idle"}, Cluster: "hall3", Job: "48213", Nodes: []sweep.NodeReport{}, Suspects: []sweep.Suspect{}}
	leaf := map[string]string{}
	for i := range m.nodes {
		n := sweep.Node{Name: fmt.Sprintf("gpu%0*d", max(3, len(fmt.Sprint(m.nodes))), i+1), Model: "H100", GPUs: 8, Leaf: fmt.Sprintf("leaf%02d", i/m.perLeaf+1)}
		for p := range 2 {
			n.Planes = append(n.Planes, sweep.Plane{Name: fmt.Sprintf("eth%d", p), Address: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(77 + p), byte(i >> 8), byte(i)}), 16), MTU: 9000, Speed: 100000})
		}
		leaf[n.Name] = n.Leaf
		r.Nodes = append(r.Nodes, sweep.NodeReport{Node: n, State: tested})
	}
	at, id := began, 0
	for _, k := range kindOf {
		g := sweep.StageReport{Stage: k.stage, Began: at}
		for _, plane := range k.planes(m.rails) {
			var values []float64
			for _, p := range m.pairs(rng, k.kind == sweep.KindNCCL) {
				id++
				x := sweep.Result{Task: sweep.Task{ID: id, Stage: k.stage, Kind: k.kind, Op: k.op, Plane: plane, Nodes: []string{r.Nodes[p[0]].Name, r.Nodes[p[1]].Name}, Limit: time.Minute}, Began: at, Took: 2 * time.Second}
				v := k.usual * (1 + k.noise*rng.NormFloat64())
				for i := range m.faults {
					if f := &m.faults[i]; f.hits(&x.Task, leaf) {
						v *= f.factor
						if k.kind.Lower() && f.factor > 0 {
							v /= f.factor * f.factor
						}
						if f.factor == 0 {
							x.Fault, x.Text = sweep.FaultSilent, "no answer within 60 s"
						}
					}
				}
				if x.Fault == "" {
					x.Values = []float64{v}
					values = append(values, v)
				}
				g.Results = append(g.Results, x)
			}
			g.Fleet = append(g.Fleet, distribution(k.stage, k.kind, k.op, plane, values))
		}
		g.Rounds = max(1, len(g.Results)*2/max(m.nodes, 1))
		at = at.Add(time.Duration(g.Rounds) * 4 * time.Second)
		g.Ended = at
		r.Stages = append(r.Stages, g)
	}
	r.Ended = at
	m.accuse(r)
	return r
}

// pairs returns the pairs that are tested, by positions.
func (m *model) pairs(rng *rand.Rand, oneWay bool) (list [][2]int) {
	if m.nodes <= 64 {
		for a := range m.nodes {
			for b := range m.nodes {
				if a < b || a != b && !oneWay {
					list = append(list, [2]int{a, b})
				}
			}
		}
		return list
	}
	for range 2 {
		order := rng.Perm(m.nodes)
		for i := 0; i+1 < len(order); i += 2 {
			list = append(list, [2]int{order[i], order[i+1]})
			if !oneWay {
				list = append(list, [2]int{order[i+1], order[i]})
			}
		}
	}
	return list
}

func distribution(stage sweep.Stage, kind sweep.Kind, op, plane string, values []float64) sweep.Distribution {
	m := median(values)
	var off []float64
	for _, v := range values {
		off = append(off, math.Abs(v-m))
	}
	d := sweep.Distribution{Stage: stage, Kind: kind, Op: op, Plane: plane, Unit: unitOf(kind), Count: len(values), Median: m, Sigma: 1.4826 * median(off)}
	d.Floor = m - 3.5*d.Sigma
	if kind.Lower() {
		d.Floor = m + 3.5*d.Sigma
	}
	return d
}

// accuse writes the suspects that the faults make.
func (m *model) accuse(r *sweep.Report) {
	for i := range m.faults {
		f := &m.faults[i]
		g := r.Stages[slices.IndexFunc(kindOf, func(k struct {
			stage  sweep.Stage
			kind   sweep.Kind
			op     string
			usual  float64
			noise  float64
			planes func(rails int) []string
		}) bool {
			return slices.Contains(f.kinds, k.kind)
		})]
		s := sweep.Suspect{Node: f.node, Peer: f.peer, Leaves: f.leaves, Plane: f.plane, Way: f.way, Stage: g.Stage, Kind: f.kinds[0], Code: f.code, Looks: 4, Confidence: 0.99995 - 0.004*float64(i), Text: f.text, Do: f.do, Doubt: f.doubt}
		for j := range g.Fleet {
			if d := &g.Fleet[j]; (f.plane == "" || d.Plane == f.plane) && f.factor > 0 {
				s.Expect, s.Unit, s.Value = d.Median, d.Unit, d.Median*f.factor
				if d.Kind.Lower() {
					s.Value = d.Median / f.factor
				}
				break
			}
		}
		for j := range 3 {
			s.Partners = append(s.Partners, r.Nodes[(7*i+3*j+1)%len(r.Nodes)].Name)
		}
		for j := range r.Nodes {
			if n := &r.Nodes[j]; f.node != "" && f.peer == "" && !f.doubt && n.Name == f.node {
				n.State = suspect
			}
		}
		r.Suspects = append(r.Suspects, s)
	}
}

// healthy is a cluster of eight nodes without a fault.
func healthy() *sweep.Report { return (&model{nodes: 8, rails: 2, perLeaf: 4, seed: 1}).report() }

// oneSuspect has a node that receives slowly on one plane.
func oneSuspect() *sweep.Report {
	return (&model{nodes: 32, rails: 8, perLeaf: 8, seed: 2, faults: []fault{slowCable("gpu017")}}).report()
}

func slowCable(node string) fault {
	return fault{
		node: node, way: "receives", plane: "eth1", kinds: []sweep.Kind{sweep.KindStream}, factor: 0.45, code: "sweep.tcp.slow",
		text: node + " receives 41 Gb/s on eth1, want at least 87 Gb/s", do: "Swap the cable of eth1 of " + node + " with that of a healthy node and repeat: nhc-gpu sweep --stages tcp",
	}
}

// allKinds has a suspect of every kind, and nodes in every state.
func allKinds() *sweep.Report {
	m := &model{nodes: 48, rails: 8, perLeaf: 8, seed: 3, faults: []fault{
		slowCable("gpu017"),
		{node: "gpu005", plane: "mlx5_3:1", kinds: []sweep.Kind{sweep.KindWrite}, factor: 0.5, code: "sweep.rdma.slow", text: "gpu005 reaches half the rate on mlx5_3:1 in both directions", do: "Swap the cable of mlx5_3:1; if the fault stays, the adapter"},
		{node: "gpu030", peer: "gpu041", plane: "mlx5_0:1", kinds: []sweep.Kind{sweep.KindWrite}, factor: 0.6, code: "sweep.rdma.slow", text: "this pair is slow, both nodes are fast with others", do: "Look at the route between their leaf switches"},
		{leaves: []string{"leaf02", "leaf05"}, plane: "eth0", kinds: []sweep.Kind{sweep.KindStream}, factor: 0.7, code: "sweep.tcp.slow", text: "all pairs between these switches are slow", do: "Look at the uplinks of both switches: one of them is down or at half its rate"},
		{node: "gpu022", plane: "eth1", kinds: []sweep.Kind{sweep.KindEcho}, factor: 0.05, code: "sweep.reach.latency", text: "answers of gpu022 on eth1 take 0.6 ms", do: ""},
		{node: "gpu011", kinds: []sweep.Kind{sweep.KindNCCL}, factor: 0, code: "sweep.nccl.hang", text: "all_reduce did not end within 60 s with 4 of 4 partners", do: "Reset the GPUs of gpu011"},
		{node: "gpu044", plane: "eth0", kinds: []sweep.Kind{sweep.KindStream}, factor: 0.9, code: "sweep.tcp.flaky", text: "5 of 50 windows are slow", do: "Repeat the sweep for this node", doubt: true},
	}}
	r := m.report()
	gpu := 3
	r.Suspects = slices.Insert(r.Suspects, 1, sweep.Suspect{
		Node: "gpu008", GPU: &gpu, Stage: sweep.StageGroups, Kind: sweep.KindNCCL, Code: "sweep.nccl.wrong", Looks: 3, Partners: []string{"gpu001", "gpu002"}, Confidence: 1,
		Text: "gpu3 of gpu008 returns wrong sums: word 8,191 of rank 3", Do: "Take gpu008 out of service and test its memory: nhc-gpu check check_gpu_memtest",
	})
	states := map[int][4]string{
		0: {excluded, "check_gpu_count: 7 of 8 GPUs", "", ""}, 1: {dead, "no answer since 21:33 UTC, in round 4 of tcp", "", ""}, 2: {frozen, "slurmd does not answer: srun's step timed out after 20 s", "", ""},
		3: {refused, "nhc-gpu 1.1.0, want 1.2.0", "", ""}, 5: {tested, "", "NHC: gpu2 lost [gpu.recovery.lost]", "resumed: it passes"}, 6: {suspect, "", "disk swap, by anna", "drained again with its old reason"},
	}
	for i, s := range states {
		n := &r.Nodes[i]
		n.State, n.Why, n.Held, n.After = s[0], s[1], s[2], s[3]
	}
	r.Stages = append(r.Stages, sweep.StageReport{Stage: sweep.StageGroups, Skipped: "not in --stages"})
	r.Stages[3].Fleet = append(r.Stages[3].Fleet, sweep.Distribution{Stage: sweep.StagePairs, Kind: sweep.KindNCCL, Op: "all_gather", Unit: "GB/s", Note: "all nodes use TCP: no RDMA port is up"})
	r.Suspects[6].Ops = []string{"all_reduce"}
	r.Suspects = append(r.Suspects, sweep.Suspect{Node: "gpu023", Plane: "mlx5_2:1", Stage: sweep.StageRDMA, Kind: sweep.KindWrite, Code: "sweep.rdma.unable", Confidence: 0.95, Doubt: true, Partners: []string{}, Text: "ib_write_bw is not installed"})
	r.EAS = []sweep.EASResult{{Name: "gemm_flops", Result: "Succeeded"}, {Name: "all_reduce_2", Result: "Failed", Text: "gpu011: all_reduce did not end within 60 s"}, {Name: "network_connectivity", Result: "Succeeded"}}
	for i := range r.Stages[1].Results {
		r.Stages[1].Results[i].Beside = i%5 == 0
	}
	r.Stages[2].Results = append(r.Stages[2].Results, sweep.Result{Task: sweep.Task{Stage: sweep.StageRDMA, Kind: sweep.KindWrite, Plane: "mlx5_9:1", Nodes: []string{"gpu012", "gpu013"}}, Fault: sweep.FaultUnable, Text: "ib_write_bw is not installed"})
	return r
}

// large has 5,000 nodes, 1 % of them with a fault.
func large() *sweep.Report {
	m := &model{nodes: 5000, rails: 8, perLeaf: 32, seed: 4}
	for i := range 50 {
		node := fmt.Sprintf("gpu%04d", 1+(i*i*37+11)%5000)
		f := slowCable(node)
		switch i % 3 {
		case 1:
			f = fault{node: node, plane: fmt.Sprintf("mlx5_%d:1", i%8), kinds: []sweep.Kind{sweep.KindWrite}, factor: 0.75, code: "sweep.rdma.slow", text: node + " is slow on one rail", do: "Swap its cable"}
		case 2:
			f = fault{node: node, kinds: []sweep.Kind{sweep.KindNCCL}, factor: 0.6, code: "sweep.nccl.slow", text: node + " is slow in all_reduce with 4 of 4 partners"}
		}
		m.faults = append(m.faults, f)
	}
	r := m.report()
	for i := range r.Nodes {
		if n := &r.Nodes[i]; i%97 == 5 {
			n.State, n.Why = excluded, "a job runs on it"
		} else if i%1009 == 7 {
			n.State, n.Why = dead, "no answer since 22:01 UTC"
		}
	}
	return r
}

// empty is a sweep that has found no node.
func empty() *sweep.Report {
	return &sweep.Report{Schema: 1, Version: "1.2.0", ID: "20261122-2130", Began: began, Ended: began.Add(3 * time.Second), Command: []string{"nhc-gpu", "sweep", "--idle"}, Interrupted: "no node is idle"}
}

// interrupted ended in its second stage, and had been continued once.
func interrupted() *sweep.Report {
	r := healthy()
	r.Interrupted, r.Continued = "job 48213 was preempted in round 3 of rdma", []time.Time{began.Add(-time.Hour)}
	r.Stages = r.Stages[:2]
	r.Ended = r.Stages[1].Ended
	return r
}

// compared is a sweep with its difference to the one before.
func compared() *sweep.Report {
	r := oneSuspect()
	old := (&model{nodes: 33, rails: 8, perLeaf: 8, seed: 5, faults: []fault{
		{node: "gpu004", plane: "mlx5_1:1", kinds: []sweep.Kind{sweep.KindWrite}, factor: 0.5, code: "sweep.rdma.slow"},
		{node: "gpu033", plane: "eth0", kinds: []sweep.Kind{sweep.KindStream}, factor: 0.5, code: "sweep.tcp.slow"},
	}}).report()
	old.ID, old.Began = "20261121-2130", began.Add(-24*time.Hour)
	old.Stages[1].Fleet[0].Median *= 1.09
	r.Comparison = sweep.Compare(old, r)
	return r
}

// picture is the small cluster of docs/sweep.md: a cable that is slow in one direction, an uplink, and a
// node that died.
func picture() *sweep.Report {
	r := (&model{nodes: 16, rails: 0, perLeaf: 4, seed: 8, faults: []fault{
		{
			node: "gpu005", way: "receives", plane: "eth1", kinds: []sweep.Kind{sweep.KindStream}, factor: 0.45, code: "sweep.tcp.slow", text: "slow with 4 of 4 partners, fast on eth0",
			do: "Move the cable to another switch port: if it stays slow, replace the cable, then the adapter.",
		},
		{
			leaves: []string{"leaf02", "leaf04"}, plane: "eth0", kinds: []sweep.Kind{sweep.KindStream}, factor: 0.7, code: "sweep.tcp.slow", text: "all pairs between these switches are slow, with other switches both are fast",
			do: "Look at the uplinks of both switches: one of them is down, or runs at half its rate.",
		},
	}}).report()
	r.ID, r.Command = "20261122-213000-3f2a", []string{"nhc-gpu", "sweep", "--partition", "gpu", "--stages", "tcp", "--html", "sweep.html"}
	dies := &r.Nodes[11]
	dies.State, dies.Why = dead, "no answer since 21:35 UTC, in round 2 of tcp"
	tcp := &r.Stages[1]
	tcp.Results = slices.DeleteFunc(tcp.Results, func(x sweep.Result) bool { return slices.Contains(x.Task.Nodes, dies.Name) && x.Task.ID%15 > 2 })
	for i, d := range tcp.Fleet {
		var values []float64
		for _, x := range tcp.Results {
			if x.Task.Plane == d.Plane {
				values = append(values, x.Values...)
			}
		}
		tcp.Fleet[i] = distribution(d.Stage, d.Kind, d.Op, d.Plane, values)
	}
	for i := range r.Suspects {
		r.Suspects[i].Partners = []string{"gpu001", "gpu007", "gpu010", "gpu014"}[i:]
	}
	r.Stages = r.Stages[1:2]
	r.Began = tcp.Began
	r.Ended = tcp.Ended
	return r
}
