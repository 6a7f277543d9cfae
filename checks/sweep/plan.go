package sweep

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// PlanOptions sets what a stage tests. A zero value means the default.
type PlanOptions struct {
	Seed      uint64        // of all random choices: the same seed and results give the same tasks
	FirstID   int           // ID of the first task, default 1
	Repeats   int           // values of each test, default 4
	Matchings int           // rounds of pairs before suspects are confirmed, default 2, at least 4 up to 16 nodes; up to 8 nodes test all pairs
	AllPairs  int           // reach tests all pairs of up to this many nodes, default 64
	Degree    int           // partners of a node in reach beyond AllPairs, default 6
	Flows     int           // TCP connections or queue pairs of a pair, default 8
	Time      time.Duration // of a repeat, default 1 s
	Setup     time.Duration // how long the start of a test takes at most, default 30 s
	Sizes     map[Kind]int64
	Floors    []Floor
	Planes    []string // only these planes or rails: mlx5_0 is each port of that device

	Lines      []string      // node: lines of nhc.conf
	Batch      int           // node: nodes that run at the same time, default all
	CheckLimit time.Duration // node: time limit of a line, default 15 min

	Ends bool // reach: only pairs with the first or the last node

	NoStream  bool  // tcp: no bandwidth of pairs
	NoRing    bool  // tcp: no ring all-reduce
	RingSizes []int // tcp: nodes of a ring, 0 for all; default 16 and, for up to 1,024 nodes, all

	Ops        []string // pairs, groups: collectives
	NoP2P      bool     // pairs: a second test without NVLink and shared memory
	GroupSizes []int    // groups: nodes of a group, 0 for all; default 2, 4, 8, ..., all
}

// Floor is a value that a test must reach, set by the site. For latencies it is a ceiling.
type Floor struct {
	Kind  Kind
	Op    string // "": all
	Plane string // "": all
	Value float64
}

// defaultOps are the collectives of stages pairs and groups. multi_all_reduce runs one communicator
// for each local GPU, all at once.
var (
	defaultPairOps  = []string{"all_reduce", "all_to_all", "all_gather", "multi_all_reduce", "sendrecv"}
	defaultGroupOps = []string{"all_reduce", "all_to_all", "all_gather"}
)

// defaultSizes has the sizes of messages and data, in bytes.
var defaultSizes = map[Kind]int64{KindRing: 16 << 20, KindWrite: 1 << 20, KindLatency: 8, KindNCCL: 256 << 20}

// NewPlan returns the plan of a stage. It tests the nodes in the order that seed gives; head and tail
// of the list are the first and the last node.
func NewPlan(stage Stage, nodes []Node, o PlanOptions) (Plan, error) {
	if err := o.setDefaults(stage); err != nil {
		return nil, fmt.Errorf("plan of stage %s: %w", stage, err)
	}
	f, err := newFleet(stage, nodes, o)
	if err != nil {
		return nil, fmt.Errorf("plan of stage %s: %w", stage, err)
	}
	switch stage {
	case StageNode:
		return newNodePlan(f, o), nil
	case StageReach:
		return newReachPlan(f, o), nil
	case StageTCP:
		return newTCPPlan(f, o), nil
	case StageRDMA:
		return newRDMAPlan(f, o), nil
	case StagePairs:
		return newNCCLPlan(f, o), nil
	case StageGroups:
		without := f.leaveOut()
		if n := len(f.alive()); n > 2 && n <= pairedGroups && (len(o.GroupSizes) == 0 || slices.Contains(o.GroupSizes, 2)) {
			return newFewGroups(f, o, without), nil
		}
		p := newGroupPlan(f, o, groupTests(f, o), o.GroupSizes)
		p.found, p.notes = without.suspects, without.remarks
		return p, nil
	}
	names := make([]string, 0, len(Stages))
	for _, s := range Stages {
		names = append(names, string(s))
	}
	return nil, fmt.Errorf("unknown stage %q: want %s", stage, spell.OneOf(string(stage), names))
}

func (o *PlanOptions) setDefaults(stage Stage) error {
	for _, n := range []struct {
		name  string
		value *int
		def   int
	}{
		{"FirstID", &o.FirstID, 1}, {"Repeats", &o.Repeats, 4}, {"Matchings", &o.Matchings, 2},
		{"AllPairs", &o.AllPairs, 64}, {"Degree", &o.Degree, 6}, {"Flows", &o.Flows, 8}, {"Batch", &o.Batch, 0},
	} {
		if *n.value < 0 {
			return fmt.Errorf("%s is %d: want a positive number", n.name, *n.value)
		}
		*n.value = cmp.Or(*n.value, n.def)
	}
	for _, d := range []time.Duration{o.Time, o.Setup, o.CheckLimit} {
		if d < 0 {
			return fmt.Errorf("a time is %v: want a positive one", d)
		}
	}
	for _, size := range slices.Concat(o.RingSizes, o.GroupSizes) {
		if size < 0 || size == 1 {
			return fmt.Errorf("a group of %d nodes: want 2 or more, or 0 for all", size)
		}
	}
	o.Time = cmp.Or(o.Time, time.Second)
	o.Setup = cmp.Or(o.Setup, 30*time.Second)
	o.CheckLimit = cmp.Or(o.CheckLimit, 15*time.Minute)
	if len(o.Ops) == 0 {
		o.Ops = defaultPairOps
		if stage == StageGroups {
			o.Ops = defaultGroupOps
		}
	}
	if stage == StageNode && len(o.Lines) == 0 {
		return fmt.Errorf("no check: want at least one line of nhc.conf")
	}
	return nil
}

// limit returns the time limit of a test: twice its measuring time, and its start.
func (o *PlanOptions) limit() time.Duration {
	return o.Setup + 2*time.Duration(o.Repeats)*o.Time
}

func (o *PlanOptions) size(k Kind) int64 { return cmp.Or(o.Sizes[k], defaultSizes[k]) }

// wants reports whether a plane or a rail is to be tested.
func (o *PlanOptions) wants(p *plane) bool {
	return len(o.Planes) == 0 || slices.ContainsFunc(o.Planes, p.called)
}

// unmet notes the names of planes or rails that were asked for, and that no two nodes have.
func (f *fleet) unmet(o *PlanOptions, kind Kind, ports iter.Seq[*plane]) (notes []Distribution) {
	var names []string
	met := map[string]bool{}
	for p := range ports {
		if p.count < 2 {
			continue
		}
		names = append(names, p.name)
		for _, name := range o.Planes {
			met[name] = met[name] || p.called(name)
		}
	}
	slices.Sort(names)
	have := cmpText(listed(slices.Compact(names)), "none")
	for _, name := range o.Planes {
		if !met[name] {
			notes = append(notes, Distribution{Stage: f.stage, Kind: kind, Plane: name, Unit: unitOf(kind), Note: "no two nodes have it: they have " + have})
		}
	}
	return notes
}

// floorOf returns the floor of a test, 0 without one. A row with the plane takes precedence.
func (o *PlanOptions) floorOf(t Task) (floor float64) {
	best := -1
	for _, f := range o.Floors {
		if f.Kind != t.Kind || f.Op != "" && f.Op != t.Op || f.Plane != "" && f.Plane != t.Plane {
			continue
		}
		exact := 0
		if f.Op != "" {
			exact++
		}
		if f.Plane != "" {
			exact += 2
		}
		if exact > best {
			floor, best = f.Value, exact
		}
	}
	return floor
}

// fleet holds the nodes of a stage. Nodes are numbered by their place in the list.
type fleet struct {
	stage Stage
	nodes []Node
	index map[string]int32
	dead  []bool
	out   []bool // excluded by an earlier part of the stage: tested no more
	gone  []loss // of nodes that may be faulty
	rng   *rand.Rand
	id    int
}

func newFleet(stage Stage, nodes []Node, o PlanOptions) (*fleet, error) {
	f := &fleet{
		stage: stage, nodes: nodes, index: make(map[string]int32, len(nodes)),
		dead: make([]bool, len(nodes)), out: make([]bool, len(nodes)),
		rng: rand.New(rand.NewPCG(o.Seed, 0x9e3779b97f4a7c15)), id: o.FirstID - 1,
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("no nodes")
	}
	for i, n := range nodes {
		if n.Name == "" {
			return nil, fmt.Errorf("node %d has no name", i+1)
		}
		if _, twice := f.index[n.Name]; twice {
			return nil, fmt.Errorf("node %s is twice in the list", n.Name)
		}
		f.index[n.Name] = int32(i)
	}
	return f, nil
}

// nextID returns the ID of a new task.
func (f *fleet) nextID() int {
	f.id++
	return f.id
}

func (f *fleet) name(i int32) string { return f.nodes[i].Name }

func (f *fleet) names(list []int32) []string {
	names := make([]string, 0, len(list))
	for _, i := range list {
		names = append(names, f.name(i))
	}
	return names
}

// tested reports whether a node still takes part.
func (f *fleet) tested(i int32) bool { return !f.dead[i] && !f.out[i] }

// alive returns the nodes that take part, in the order of the list.
func (f *fleet) alive() (list []int32) {
	for i := range int32(len(f.nodes)) {
		if f.tested(i) {
			list = append(list, i)
		}
	}
	return list
}

// shuffled returns the nodes that take part in random order.
func (f *fleet) shuffled() []int32 {
	list := f.alive()
	f.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// loss is the loss of a node in a test.
type loss struct {
	Loss
	node int32
	kind Kind
}

// kill excludes the nodes that a result names as lost. It reports whether there is one.
func (f *fleet) kill(r Result) bool {
	if r.Fault != FaultLost {
		return false
	}
	found := false
	for _, name := range r.Blame {
		i, known := f.index[name]
		if !known || !slices.Contains(r.Task.Nodes, name) {
			continue
		}
		found = true
		if f.dead[i] {
			continue
		}
		f.dead[i] = true
		l := Loss{Node: name, At: r.Began.Add(r.Took), Text: r.Text}
		if at := slices.IndexFunc(r.Losses, func(l Loss) bool { return l.Node == name }); at >= 0 {
			l = r.Losses[at]
		}
		if !l.Responds {
			f.gone = append(f.gone, loss{l, i, r.Task.Kind})
		}
	}
	return found
}

// together is the time within which several losses have one cause.
const together = 10 * time.Second

// lostSuspects makes a suspect of each lost node. Nodes that were lost together are one suspect, in doubt: the
// cause may be what they share. So are all nodes of a leaf switch, each of them together with the one before.
func (f *fleet) lostSuspects() (all []Suspect) {
	if len(f.gone) == 0 {
		return nil
	}
	members, lost := map[string]int{}, map[string]int{}
	for _, n := range f.nodes {
		members[n.Leaf]++
	}
	gone := slices.SortedStableFunc(slices.Values(f.gone), func(a, b loss) int { return a.At.Compare(b.At) })
	last, apart := map[string]time.Time{}, map[string]bool{}
	for _, l := range gone {
		leaf := f.nodes[l.node].Leaf
		apart[leaf] = apart[leaf] || lost[leaf] > 0 && l.At.Sub(last[leaf]) > together
		lost[leaf]++
		last[leaf] = l.At
	}
	leaves := map[string][]loss{}
	var rest []loss
	for _, l := range gone {
		if leaf := f.nodes[l.node].Leaf; leaf != "" && lost[leaf] > 1 && lost[leaf] == members[leaf] && !apart[leaf] {
			leaves[leaf] = append(leaves[leaf], l)
		} else {
			rest = append(rest, l)
		}
	}
	for _, leaf := range slices.Sorted(maps.Keys(leaves)) {
		all = append(all, f.lostSuspect(leaves[leaf]))
	}
	for len(rest) > 0 {
		n := 1
		for n < len(rest) && rest[n].At.Sub(rest[0].At) <= together {
			n++
		}
		all, rest = append(all, f.lostSuspect(rest[:n])), rest[n:]
	}
	return all
}

// lostSuspect makes a suspect of nodes that were lost for the same reason, the first one first.
func (f *fleet) lostSuspect(list []loss) Suspect {
	first := list[0]
	s := Suspect{Node: first.Node, Stage: f.stage, Kind: first.kind, Code: lostCode, Looks: len(list), Confidence: lostConfidence}
	text := oneLine("the node does not answer, or its test process ended", first.Text)
	if len(list) == 1 {
		if !first.Gone {
			s.Doubt, s.Confidence = true, doubtConfidence
		}
		return s.explain(text)
	}
	s.Node, s.Doubt, s.Confidence = "", true, doubtConfidence
	leaf := f.nodes[first.node].Leaf
	for _, l := range list {
		s.Partners = append(s.Partners, l.Node)
		if f.nodes[l.node].Leaf != leaf {
			leaf = ""
		}
	}
	of := ""
	if leaf != "" {
		s.Leaves, of = []string{leaf}, " of leaf switch "+leaf
	}
	s = s.explain(fmt.Sprintf("%d nodes%s were lost within %s: %s", len(list), of, list[len(list)-1].At.Sub(first.At).Round(time.Second), text))
	s.Do = "Look at what these nodes share: the switch of the control network, the power and the cooling."
	return s
}

// circle yields the pairs of a round of the circle method among n: rounds 0 to n-2 (n-1 if n is odd)
// have all pairs, each once. If n is odd one is free in each round. In an even round and the next one each is
// first once and second once, if it is not free: a fault may show in one place only.
func circle(n, round int) iter.Seq2[int, int] {
	return func(yield func(int, int) bool) {
		turn := n - 1 + n%2 // all but the fixed one turn; if n is odd the fixed one does not exist
		half := (turn - 1) / 2
		fixed := [2]int{n - 1, round % turn}
		if (round+half)%2 == 0 {
			fixed[0], fixed[1] = fixed[1], fixed[0]
		}
		if n%2 == 0 && !yield(fixed[0], fixed[1]) {
			return
		}
		for k := 1; k <= half; k++ {
			i, j := (round+k)%turn, (round-k%turn+turn)%turn
			if (half-k)%2 == 0 {
				i, j = j, i
			}
			if !yield(i, j) {
				return
			}
		}
	}
}

// circleRounds returns the number of rounds with all pairs of n.
func circleRounds(n int) int {
	if n < 2 {
		return 0
	}
	return n - 1 + n%2
}

// pickRounds chooses different rounds of the circle method among n. The first two are neighbours: the
// pairs of both connect all nodes, so the pairs of any choice are a connected graph in which each
// node has one partner for each round.
func pickRounds(rng *rand.Rand, n, count int) []int {
	all := circleRounds(n)
	if count >= all {
		rounds := make([]int, all)
		for i := range rounds {
			rounds[i] = i
		}
		return rounds
	}
	first := 2 * rng.IntN(max(all/2, 1)) // see circle
	rounds := []int{first}
	for len(rounds) < count {
		r := first + 1
		if len(rounds) > 1 {
			r = rng.IntN(all)
		}
		if !slices.Contains(rounds, r) {
			rounds = append(rounds, r)
		}
	}
	return rounds
}

// chain runs plans one after the other. Nodes that a plan suspects take no part in the next one.
type chain struct {
	f     *fleet
	plans []Plan
	later []func() Plan
}

// Next implements Plan.
func (c *chain) Next() []Task {
	for {
		if tasks := c.last().Next(); len(tasks) > 0 || len(c.later) == 0 {
			return tasks
		}
		for _, s := range c.last().Suspects() {
			names := []string{s.Node}
			switch {
			case s.shared():
				names = s.Partners
			case s.Peer != "" || s.Doubt:
				names = nil
			}
			for _, name := range names {
				if i, known := c.f.index[name]; known {
					c.f.out[i] = true
				}
			}
		}
		c.plans = append(c.plans, c.later[0]())
		c.later = c.later[1:]
	}
}

func (c *chain) last() Plan { return c.plans[len(c.plans)-1] }

// Take implements Plan.
func (c *chain) Take(results []Result) { c.last().Take(results) }

// Left implements Plan.
func (c *chain) Left() int { return c.last().Left() + 2*len(c.later) }

// Suspects implements Plan.
func (c *chain) Suspects() (all []Suspect) {
	for i, p := range c.plans {
		before := all
		for _, s := range p.Suspects() {
			shared := func(b Suspect) bool { return b.shared() && b.Code == s.Code && (b.Plane == "" || b.Plane == s.Plane) }
			if s.Node != "" && slices.ContainsFunc(before, shared) { // the node may be one more behind the same switch
				s.Doubt, s.Confidence = true, min(s.Confidence, doubtConfidence)
			}
			if s.Code != lostCode || i == len(c.plans)-1 { // each plan has those of the fleet
				all = append(all, s)
			}
		}
	}
	sortSuspects(all)
	return all
}

// Fleet implements Plan.
func (c *chain) Fleet() (all []Distribution) {
	for _, p := range c.plans {
		all = append(all, p.Fleet()...)
	}
	return all
}

// settle takes the results of the tasks that were sent, by their IDs, and retries the tasks without a
// result, in the order of their IDs. Afterwards none counts as sent.
func settle[T any](sent map[int]T, results []Result, take func(T, Result), retry func(T)) {
	for _, r := range results {
		if t, ok := sent[r.Task.ID]; ok {
			delete(sent, r.Task.ID)
			take(t, r)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(sent)) {
		retry(sent[id])
	}
	clear(sent)
}

// newTCPPlan tests the bandwidth of pairs on each plane, both ways, and then rings of nodes.
func newTCPPlan(f *fleet, o PlanOptions) Plan {
	planes, unmet := f.planes(&o, KindStream)
	planes = slices.DeleteFunc(planes, func(p plane) bool { return p.count < 2 })
	if o.NoStream && !o.NoRing {
		p := newGroupPlan(f, o, ringTests(o, planes, nil), ringSizes(o, f))
		p.notes = unmet
		return p
	}
	var tests []series
	for i, pl := range planes {
		tests = append(tests, series{
			task:     Task{Stage: StageTCP, Kind: KindStream, Plane: pl.name, Flows: o.Flows, Size: o.size(KindStream), Repeats: o.Repeats, Time: o.Time, Limit: o.limit()},
			directed: true, ports: &planes[i], family: i,
		})
	}
	p := newPairPlan(f, o, tests)
	p.remarks = append(unmet, strays(f, planes, KindStream)...)
	for i := range planes {
		p.add(compareSpeeds(f, &planes[i], KindStream))
	}
	p.addTurns(p.matchings, true, indexes(tests)...)
	c := &chain{f: f, plans: []Plan{p}}
	if !o.NoRing {
		c.later = append(c.later, func() Plan { return newGroupPlan(f, o, ringTests(o, planes, p.Fleet()), ringSizes(o, f)) })
	}
	return c
}

// newRDMAPlan tests bandwidth, both ways, and latency of pairs on each rail.
func newRDMAPlan(f *fleet, o PlanOptions) Plan {
	rails := railsOf(f.nodes, f.alive())
	unmet := f.unmet(&o, KindWrite, slices.Values(rails))
	rails = slices.DeleteFunc(rails, func(r *plane) bool { return !o.wants(r) })
	var tests []series
	for _, r := range rails {
		t := Task{Stage: StageRDMA, Kind: KindWrite, Plane: r.name, Flows: o.Flows, Size: o.size(KindWrite), Repeats: o.Repeats, Time: o.Time, Limit: o.limit()}
		tests = append(tests, series{task: t, directed: true, ports: r, family: len(tests)})
		t.Kind, t.Size, t.Flows = KindLatency, o.size(KindLatency), 1
		tests = append(tests, series{task: t, ports: r, family: len(tests)})
	}
	p := newPairPlan(f, o, tests)
	p.remarks = unmet
	seen := map[string]bool{}
	for _, r := range rails {
		if p.add(compareSpeeds(f, r, KindWrite)); seen[r.name] {
			continue
		}
		seen[r.name] = true
		p.add(compareLayers(f, Suspect{Plane: r.name, Kind: KindWrite, Code: codeOf(KindWrite, broken, FaultError)}, func(i int32) string {
			if k := slices.IndexFunc(f.nodes[i].Rails, func(x Rail) bool { return x.Name == r.name }); k >= 0 {
				return f.nodes[i].Rails[k].Layer
			}
			return ""
		}))
	}
	p.addTurns(p.matchings, true, indexes(tests)...)
	return p
}

// newNCCLPlan runs collectives on pairs of nodes. All collectives are one family: a node that is
// slow in one of them is not confirmed again for the next.
func newNCCLPlan(f *fleet, o PlanOptions) Plan {
	without := f.leaveOut()
	var tests []series
	fabrics := fabricsOf(f.nodes, f.alive())
	for _, op := range o.Ops {
		t := Task{Stage: StagePairs, Kind: KindNCCL, Op: op, Size: o.size(KindNCCL), Repeats: o.Repeats, Time: o.Time, Limit: o.limit()}
		for _, fabric := range fabrics {
			tests = append(tests, series{task: t, ports: fabric})
		}
		if t.NoP2P = o.NoP2P; t.NoP2P {
			for _, fabric := range fabrics {
				tests = append(tests, series{task: t, ports: fabric})
			}
		}
	}
	p := newPairPlan(f, o, tests)
	p.add(without)
	p.add(compareLayers(f, Suspect{Kind: KindNCCL, Code: codeOf(KindNCCL, broken, FaultNetwork)}, func(i int32) string {
		layer, _ := f.nodes[i].fabric()
		return layer
	}))
	for _, fabric := range fabrics {
		p.add(compareSpeeds(f, fabric, KindNCCL))
	}
	p.addTurns(p.matchings, true, indexes(tests)...)
	return p
}

func indexes[T any](list []T) []int {
	all := make([]int, len(list))
	for i := range all {
		all[i] = i
	}
	return all
}
