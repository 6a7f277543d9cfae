package wire

import (
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// A task can have all nodes of a cluster. Messages that name all nodes to all ranks would grow with the
// square of their number, so each rank gets only the ends that it has to do with.

// near returns the ranks that a rank of a task of n nodes has to do with: itself, its neighbours in a
// ring, and rank 0, which has the data for all.
func near(rank, n int) []int {
	list := []int{0, rank, (rank + 1) % n, (rank + n - 1) % n}
	slices.Sort(list)
	return slices.Compact(list)
}

// Prepares returns the messages that prepare a task, by rank.
func Prepares(t *sweep.Task, key []byte) []*Prepare {
	list := make([]*Prepare, len(t.Nodes))
	for rank := range t.Nodes {
		p := &Prepare{Task: *t, Nodes: len(t.Nodes), Names: map[int]string{}, Rank: rank, Key: key}
		p.Task.Nodes = nil
		for _, i := range near(rank, p.Nodes) {
			p.Names[i] = t.Nodes[i]
		}
		list[rank] = p
	}
	return list
}

// mostNodes bounds the nodes of a task that a rank believes in.
const mostNodes = 1 << 20

// Whole returns the task with its nodes. Those that the rank has nothing to do with have no name.
func (p *Prepare) Whole() (t sweep.Task, err error) {
	if p.Nodes < 1 || p.Nodes > mostNodes || p.Rank < 0 || p.Rank >= p.Nodes {
		return t, fmt.Errorf("rank %d of %d nodes", p.Rank, p.Nodes)
	}
	t = p.Task
	t.Nodes = make([]string, p.Nodes)
	for i, name := range p.Names {
		if i < 0 || i >= p.Nodes {
			return t, fmt.Errorf("the name of rank %d of %d nodes", i, p.Nodes)
		}
		t.Nodes[i] = name
	}
	return t, nil
}

// Runs returns the messages that start a task whose ranks are ready, by rank.
func Runs(id int, ready []Ready) []*Run {
	all := Seats{}
	for i, r := range ready {
		all.Total += r.GPUs
		if i == 0 || r.GPUs < all.Least {
			all.Least = r.GPUs
		}
	}
	list := make([]*Run, len(ready))
	for rank := range ready {
		r := &Run{ID: id, Nodes: len(ready), Seats: all}
		for _, i := range near(rank, len(ready)) {
			r.Ranks = append(r.Ranks, ready[i])
		}
		list[rank] = r
		all.First += ready[rank].GPUs
	}
	return list
}

// Whole returns the message to a rank of a task of n nodes with an end for each rank. Those that the rank
// has nothing to do with are empty.
func (r *Run) Whole(n int) (*Run, error) {
	if r.Nodes != n {
		return nil, fmt.Errorf("%d ranks of %d nodes", r.Nodes, n)
	}
	whole := *r
	whole.Ranks = make([]Ready, n)
	for _, x := range r.Ranks {
		if x.Rank < 0 || x.Rank >= n {
			return nil, fmt.Errorf("the end of rank %d of %d nodes", x.Rank, n)
		}
		whole.Ranks[x.Rank] = x
	}
	return &whole, nil
}
