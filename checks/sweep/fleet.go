package sweep

import (
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// fleet holds the nodes of a stage. Nodes are numbered by their place in the list.
type fleet struct {
	stage Stage
	nodes []Node
	index map[string]int32
	dead  []bool
	out   []bool         // excluded by an earlier part of the stage: tested no more
	gone  []loss         // of nodes that may be faulty
	bare  []Distribution // remarks on rails that lack an address
	rng   *rand.Rand
	id    int

	manyHosts bool // too many to be kinds of nodes
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
	if stage == StageRDMA || stage == StagePairs || stage == StageGroups {
		f.nodes, f.bare = useRails(stage, nodes, &o)
	}
	hosts := map[string]bool{}
	for i, n := range f.nodes {
		hosts[n.Host] = true
		if n.Name == "" {
			return nil, fmt.Errorf("node %d has no name", i+1)
		}
		if _, twice := f.index[n.Name]; twice {
			return nil, fmt.Errorf("node %s is twice in the list", n.Name)
		}
		f.index[n.Name] = int32(i)
	}
	f.manyHosts = len(hosts) > mostHosts
	return f, nil
}

const anyone int32 = -1

// smallFleet is the number of nodes below which proven partners are so few that one may have failed
// with another node, and may be used twice.
const smallFleet = 16

// allPairsFleet is the number of nodes up to which each stage tests all pairs.
const allPairsFleet = 8

// bothWaysFleet is the number of nodes up to which tests without directions run both ways: three nodes have
// three pairs, and a class needs four values.
const bothWaysFleet = 4

// smallMatchings is how many rounds of pairs run at least up to smallFleet nodes: of an odd number two nodes are
// tested once in two rounds, and their partner may be faulty.
const smallMatchings = 4

// leastGroup is how many nodes that differ from the others in the same way can be a group, such as another
// delivery, and no faulty nodes.
const leastGroup = 3

// mostHosts bounds the hosts of a fleet that are kinds. With more, their names are rather those of chassis or of nodes.
const mostHosts = 32

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

// row begins a note or a remark on a test.
func (f *fleet) row(t Task) Distribution {
	return Distribution{Stage: f.stage, Kind: t.Kind, Op: t.Op, Plane: t.Plane, Unit: unitOf(t.Kind)}
}

// takeLosses sorts results by the IDs of their tasks, and excludes the nodes that they name as lost.
func (f *fleet) takeLosses(results []Result) {
	slices.SortFunc(results, byID)
	for _, r := range results {
		f.kill(r)
	}
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

// loss is the loss of a node in a test.
type loss struct {
	Loss
	node int32
	kind Kind
}

// lossWindow is the time within which several losses have one cause.
const lossWindow = 10 * time.Second

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
		apart[leaf] = apart[leaf] || lost[leaf] > 0 && l.At.Sub(last[leaf]) > lossWindow
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
		for n < len(rest) && rest[n].At.Sub(rest[0].At) <= lossWindow {
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
