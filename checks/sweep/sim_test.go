package sweep

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// world is a simulated cluster. Keys of maps: a node, "node/plane", "node/sends", "node/plane/sends".
type world struct {
	nodes  []Node
	rng    *rand.Rand
	sigma  float64            // noise of a repeat, as a share
	noise  map[string]float64 // of a node, in addition
	factor map[string]float64 // what a node reaches
	pairs  map[[2]string]float64
	leaves map[[2]string]float64
	model  map[string]float64 // by model
	leaf   float64            // within a leaf, as a factor of the others; 0 is 1
	flaky  map[string][2]float64
	fault  map[string]Fault // keys as above; "a>b" is a pair
	loss   map[string]float64
	delay  map[string]float64 // ms
	checks map[string]CheckResult
	dies   map[string]int      // after that many tasks
	cut    map[[2]string]Fault // between two leaves
	rarely map[string]float64  // a node hangs with this probability
	only   map[string]int      // a fault only in groups of that many nodes
	beside bool                // other jobs run on all nodes
	window int                 // windows of a repeat

	network  bool                         // NCCL uses TCP on nodes without rails, and says so beside nodes with rails
	unrouted bool                         // interfaces in different subnets do not reach each other
	apart    func(n *Node, t Task) string // nodes of different parts do not reach each other in a test
	behind   map[string]string            // the switch of a node, of those with a slow uplink
	uplink   float64                      // what it reaches
	host     map[string]float64           // what the host of a node reaches at most
	oneRail  bool                         // all data between two nodes crosses one adapter of each

	index  map[string]int // of nodes
	tasks  int
	noTask map[int]bool // rounds without results
	rounds int
}

func newWorld(n, perLeaf int, seed uint64) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 1)), sigma: 0.02}
	for i := range n {
		node := Node{Name: fmt.Sprintf("gpu%05d", i), GPUs: 8, Model: "H100"}
		if perLeaf > 0 {
			node.Leaf = fmt.Sprintf("leaf%d", i/perLeaf)
		}
		for k, plane := range []string{"eth0", "eth1"} {
			addr := netip.AddrFrom4([4]byte{10, byte(77 + k), byte(i >> 8), byte(i)})
			node.Planes = append(node.Planes, Plane{Name: plane, Address: netip.PrefixFrom(addr, 16), MTU: 1500, Speed: 100_000})
			node.Rails = append(node.Rails, Rail{Name: fmt.Sprintf("mlx5_%d:1", k), Layer: "InfiniBand", Speed: 400})
		}
		w.nodes = append(w.nodes, node)
	}
	return w
}

// keysOf are the keys under which a map can have a node in a task.
func keysOf(t Task, node string, rank int) [4]string {
	way := "receives"
	if rank == 0 {
		way = "sends"
	}
	return [4]string{node, node + "/" + t.Plane, node + "/" + way, node + "/" + t.Plane + "/" + way}
}

// worst returns the smallest value of a map for the nodes of a task, 1 without one.
func worst(m map[string]float64, t Task) float64 {
	least := 1.0
	if len(m) == 0 {
		return least
	}
	for rank, node := range t.Nodes {
		for _, k := range keysOf(t, node, rank) {
			if v, ok := m[k]; ok {
				least = min(least, v)
			}
		}
	}
	return least
}

func (w *world) node(name string) *Node {
	if i, known := w.index[name]; known && i < len(w.nodes) && w.nodes[i].Name == name {
		return &w.nodes[i]
	}
	w.index = map[string]int{}
	for i, n := range w.nodes {
		w.index[n.Name] = i
	}
	return &w.nodes[w.index[name]]
}

func (w *world) run(t Task) (Result, bool) {
	r := Result{Task: t, Beside: w.beside}
	w.tasks++
	for _, n := range t.Nodes {
		if k, ok := w.dies[n]; ok && w.tasks > k {
			r.Fault, r.Blame = FaultLost, []string{n}
			r.Losses = []Loss{{Node: n, Gone: true}}
			return r, true
		}
	}
	for rank, n := range t.Nodes {
		for _, k := range keysOf(t, n, rank) {
			if f, ok := w.fault[k+" "+string(t.Kind)]; ok {
				r.Fault = f
			} else if f, ok := w.fault[k]; ok {
				r.Fault = f
			}
		}
	}
	if len(t.Nodes) == 2 {
		if f, ok := w.fault[t.Nodes[0]+">"+t.Nodes[1]]; ok {
			r.Fault = f
		}
	}
	if len(t.Nodes) == 2 && len(w.cut) > 0 {
		a, b := w.node(t.Nodes[0]).Leaf, w.node(t.Nodes[1]).Leaf
		if f, ok := w.cut[[2]string{min(a, b), max(a, b)}]; ok {
			r.Fault = f
		}
	}
	if w.unrouted && t.Plane != "" {
		subnets := map[netip.Prefix]bool{}
		for _, n := range t.Nodes {
			for _, pl := range w.node(n).Planes {
				if pl.In(t.Plane) {
					subnets[pl.Address.Masked()] = true
				}
			}
		}
		if len(subnets) > 1 {
			r.Fault = FaultSilent
		}
	}
	if t.Kind == KindNCCL {
		rails := 0
		for _, n := range t.Nodes {
			if w.node(n).GPUs == 0 {
				r.Fault, r.Blame = FaultUnable, []string{n}
			}
			rails += min(len(w.node(n).Rails), 1)
		}
		if w.network && rails > 0 && rails < len(t.Nodes) {
			r.Fault = FaultNetwork
		}
	}
	if w.apart != nil && slices.ContainsFunc(t.Nodes, func(n string) bool { return w.apart(w.node(n), t) != w.apart(w.node(t.Nodes[0]), t) }) {
		r.Fault = FaultSilent
	}
	for _, n := range t.Nodes {
		if share, ok := w.rarely[n]; ok && w.rng.Float64() < share {
			r.Fault = FaultSilent
		}
	}
	for k, size := range w.only {
		if slices.Contains(t.Nodes, k) && len(t.Nodes) >= size {
			r.Fault = FaultSilent
		}
	}
	if t.Kind == KindCheck {
		if c, ok := w.checks[t.Nodes[0]]; ok {
			r.Checks = []CheckResult{c}
			if r.Fault = FaultCheck; c.Severity != "fail" {
				r.Fault, r.Text = FaultUnable, c.Check+": "+c.Message
			}
		}
		return r, true
	}
	if r.Fault != FaultNone {
		return r, true
	}
	switch t.Kind {
	case KindEcho:
		r.Sent = t.Count
		lost := 1 - worst(w.passes(), t)
		for range r.Sent {
			if lost > 0 && w.rng.Float64() < lost {
				r.Lost++
			}
		}
		r.Values = []float64{0.05 + 0.15*w.rng.Float64()*w.rng.Float64() + w.slower(t)}
	case KindConnect:
		r.Values = []float64{0.1 + 0.4*w.rng.Float64() + w.slower(t)}
	case KindName:
		r.Values = []float64{0.5 + w.rng.ExpFloat64()}
	case KindLatency:
		for range t.Repeats {
			r.Values = append(r.Values, 2+0.1*w.rng.ExpFloat64()+w.slower(t))
		}
	case KindMTU:
	default:
		w.measure(&r)
	}
	return r, true
}

func (w *world) passes() map[string]float64 {
	m := map[string]float64{}
	for k, v := range w.loss {
		m[k] = 1 - v
	}
	return m
}

// speed returns what the slowest port of a test reaches, as a share of those of newWorld.
func (w *world) speed(t Task) float64 {
	share := 1.0
	for _, name := range t.Nodes {
		n, rails := w.node(name), 0.0
		for _, pl := range n.Planes {
			if pl.In(t.Plane) && pl.Speed > 0 {
				share = min(share, float64(pl.Speed)/100_000)
			}
		}
		for _, r := range n.Rails {
			rails += float64(r.Speed) / 800
			if r.Name == t.Plane {
				share = min(share, float64(r.Speed)/400)
			}
		}
		if t.Kind == KindNCCL && rails > 0 {
			share = min(share, rails)
		}
	}
	return share
}

// crossing returns the bus bandwidth of an all_to_all as a share of what crosses an adapter. Between nodes with g and h
// GPUs that is g*h/(g+h) of the data of a GPU.
func (w *world) crossing(t Task) float64 {
	if !w.oneRail || t.Op != "all_to_all" {
		return 1
	}
	all, least := 0.0, math.Inf(1)
	for _, name := range t.Nodes {
		all += float64(w.node(name).GPUs)
	}
	for _, name := range t.Nodes {
		g := float64(w.node(name).GPUs)
		least = min(least, (all-1)/all/(g*(all-g)/all))
	}
	return least
}

func (w *world) slower(t Task) float64 { return 1/worst(w.delay, t) - 1 }

func (w *world) measure(r *Result) {
	t := r.Task
	base := map[Kind]float64{KindStream: 94, KindRing: 90, KindWrite: 390, KindNCCL: 180}[t.Kind] * worst(w.factor, t)
	sigma := w.sigma
	for _, n := range t.Nodes {
		sigma = max(sigma, w.noise[n])
	}
	if len(w.model) > 0 {
		for _, n := range t.Nodes {
			base = min(base, w.model[w.node(n).Model]*94)
		}
	}
	base *= w.speed(t) * w.crossing(t)
	for _, n := range t.Nodes {
		if f, ok := w.host[n]; ok {
			base = min(base, f*map[Kind]float64{KindStream: 94, KindRing: 90, KindWrite: 390, KindNCCL: 180}[t.Kind]*w.speed(t))
		}
	}
	if slices.ContainsFunc(t.Nodes, func(n string) bool { return w.behind[n] != w.behind[t.Nodes[0]] }) {
		base *= w.uplink
	}
	if len(t.Nodes) == 2 {
		a, b := t.Nodes[0], t.Nodes[1]
		if f, ok := w.pairs[[2]string{a, b}]; ok {
			base *= f
		}
		if len(w.leaves) > 0 || w.leaf > 0 {
			la, lb := w.node(a).Leaf, w.node(b).Leaf
			if f, ok := w.leaves[[2]string{min(la, lb), max(la, lb)}]; ok {
				base *= f
			}
			if la == lb && w.leaf > 0 {
				base *= w.leaf
			}
		}
	}
	for range t.Repeats {
		value := 0.0
		for range max(w.window, 1) {
			v := base
			for _, n := range t.Nodes {
				if f, ok := w.flaky[n]; ok && w.rng.Float64() < f[0] {
					v *= f[1]
				}
			}
			if w.window > 0 {
				v *= 1 + 0.02*w.rng.NormFloat64()
				r.Windows = append(r.Windows, v)
			}
			value += v
		}
		value /= float64(max(w.window, 1))
		if w.beside {
			value *= 1 - 0.3*w.rng.Float64()*w.rng.Float64()
		}
		r.Values = append(r.Values, value*(1+sigma*w.rng.NormFloat64()))
	}
}

// drive runs a plan to its end, and checks the rules of rounds.
func (w *world) drive(t testing.TB, p Plan) []Suspect {
	t.Helper()
	ids := map[int]bool{}
	for w.rounds = 0; ; w.rounds++ {
		tasks := p.Next()
		if len(tasks) == 0 {
			break
		}
		if w.rounds > 20000 {
			t.Fatal("the plan does not end")
		}
		used := map[string]bool{}
		var results []Result
		for _, task := range tasks {
			if ids[task.ID] || task.ID < 1 || task.Limit <= 0 {
				t.Fatalf("task %+v: its ID is used or its limit is missing", task)
			}
			ids[task.ID] = true
			for _, n := range task.Nodes {
				if used[n] {
					t.Fatalf("node %s is in two tasks of a round", n)
				}
				used[n] = true
			}
			if r, ok := w.run(task); ok && !w.noTask[w.rounds] {
				results = append(results, r)
			}
		}
		w.rng.Shuffle(len(results), func(i, j int) { results[i], results[j] = results[j], results[i] })
		p.Take(results)
	}
	if p.Left() != 0 {
		t.Errorf("a plan at its end has %d rounds left", p.Left())
	}
	suspects := p.Suspects()
	for _, s := range suspects {
		if s.Text == "" || s.Do == "" || s.Confidence <= 0 || s.Confidence > 1 || strings.Contains(s.Text, "\n") || strings.Contains(s.Text, "NaN") {
			t.Errorf("suspect %+v: want one line of text, advice and a confidence", s)
		}
	}
	return suspects
}

func (w *world) plan(t testing.TB, stage Stage, o PlanOptions) Plan {
	t.Helper()
	p, err := NewPlan(stage, w.nodes, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// brief writes a suspect in a few words: "gpu00003 eth0 sends sweep.tcp.slow".
func brief(s Suspect) string {
	var words []string
	if s.Doubt {
		words = append(words, "doubt")
	}
	for _, w := range []string{s.Node, s.Peer, strings.Join(s.Leaves, "-"), s.Plane, s.Way, s.Code} {
		if w != "" {
			words = append(words, w)
		}
	}
	return strings.Join(words, " ")
}

func briefs(suspects []Suspect) []string {
	list := make([]string, 0, len(suspects))
	for _, s := range suspects {
		list = append(list, brief(s))
	}
	slices.Sort(list)
	return list
}
