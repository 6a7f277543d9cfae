package match

import (
	"encoding/binary"
	"slices"
)

// op is the kind of a node.
type op byte

const (
	opNone   op = iota // matches nothing
	opEmpty            // the empty string
	opAssert           // the empty string, at a position where an assertion holds
	opSet              // one character
	opCat              // the first of two, then the second
	opAlt              // any of several
	opRepeat           // one, min to max times
	opNot              // every string that the one does not match
)

// node is an expression. Equal expressions of one pool are the same node. Nodes do not change, except
// for the data that is cached in them.
type node struct {
	op       op
	assert   assertion
	set      set
	min, max int // max < 0: without bound
	kids     []*node
	id       int
	reps     int                  // the product of nested repeat counts, at most maxReps+1
	next     []*node              // memory of automaton.step
	null     [sides][sides]answer // memory of automaton.null
}

type answer byte

const (
	unknown answer = iota
	yes
	no
)

// pool creates nodes and simplifies them. Alternatives are sorted and unique; this limits the number
// of states of an automaton.
type pool struct {
	nodes            map[string]*node
	made             int   // nodes created so far, including deleted ones
	size             int   // size of all nodes in the pool
	none, empty, all *node // all matches every string
}

func newPool() *pool {
	p := &pool{nodes: map[string]*node{}}
	p.none = p.intern(node{op: opNone})
	p.empty = p.intern(node{op: opEmpty})
	p.all = p.intern(node{op: opRepeat, max: -1, kids: []*node{p.chars(anyChar)}})
	return p
}

func (p *pool) intern(n node) *node {
	key := n.key()
	if known, ok := p.nodes[key]; ok {
		return known
	}
	n.id, n.reps = p.made, 1
	for _, k := range n.kids {
		n.reps = max(n.reps, k.reps)
	}
	if n.op == opRepeat {
		n.reps = min(n.reps*max(1, n.min, n.max), maxReps+1)
	}
	p.made++
	p.keep(key, &n)
	return &n
}

func (p *pool) keep(key string, n *node) {
	p.nodes[key] = n
	p.size += 1 + len(n.kids) + len(n.set)
}

// rebuild creates a node again from those in the pool. again maps each node to its
// copy.
func (p *pool) rebuild(n *node, again map[*node]*node) *node {
	if done, ok := again[n]; ok {
		return done
	}
	kids := make([]*node, len(n.kids))
	for i, k := range n.kids {
		kids[i] = p.rebuild(k, again)
	}
	var done *node
	switch n.op { // nodes of the other kinds are the expression's own
	case opCat:
		done = p.cat(kids[0], kids[1])
	case opAlt:
		done = p.alt(kids...)
	case opRepeat:
		done = p.repeat(kids[0], n.min, n.max)
	default:
		done = p.not(kids[0])
	}
	again[n] = done
	return done
}

func (n *node) key() string {
	b := []byte{byte(n.op), byte(n.assert)}
	b = binary.AppendVarint(b, int64(n.min))
	b = binary.AppendVarint(b, int64(n.max))
	for _, s := range n.set {
		b = binary.AppendVarint(b, int64(s.lo))
		b = binary.AppendVarint(b, int64(s.hi))
	}
	for _, k := range n.kids {
		b = binary.AppendVarint(b, int64(k.id))
	}
	return string(b)
}

// chars returns a node that matches one character of a set in normal order.
func (p *pool) chars(s set) *node {
	if len(s) == 0 {
		return p.none
	}
	return p.intern(node{op: opSet, set: s})
}

func (p *pool) char(r rune) *node { return p.chars(set{{r, r}}) }

func (p *pool) holds(a assertion) *node { return p.intern(node{op: opAssert, assert: a}) }

// seq returns a node that matches its parts in sequence.
func (p *pool) seq(parts ...*node) *node {
	n := p.empty
	for _, part := range slices.Backward(parts) {
		n = p.cat(part, n)
	}
	return n
}

func (p *pool) cat(a, b *node) *node {
	switch {
	case a == p.none || b == p.none:
		return p.none
	case a == p.empty:
		return b
	case b == p.empty:
		return a
	case a == p.all && (b == p.all || b.op == opCat && b.kids[0] == p.all):
		return b
	}
	return p.intern(node{op: opCat, kids: []*node{a, b}})
}

func (p *pool) alt(parts ...*node) *node {
	var kids []*node
	for _, n := range parts {
		switch {
		case n == p.all:
			return n
		case n.op == opAlt:
			kids = append(kids, n.kids...)
		case n != p.none:
			kids = append(kids, n)
		}
	}
	slices.SortFunc(kids, func(a, b *node) int { return a.id - b.id })
	kids = slices.Compact(kids)
	switch len(kids) {
	case 0:
		return p.none
	case 1:
		return kids[0]
	}
	return p.intern(node{op: opAlt, kids: kids})
}

func (p *pool) repeat(n *node, least, most int) *node {
	switch {
	case most == 0 || n == p.empty:
		return p.empty
	case n == p.none && least == 0:
		return p.empty
	case n == p.none:
		return p.none
	case least == 1 && most == 1:
		return n
	case n.op == opRepeat && n.min == 0 && n.max < 0:
		return n
	}
	return p.intern(node{op: opRepeat, min: least, max: most, kids: []*node{n}})
}

func (p *pool) not(n *node) *node {
	switch {
	case n == p.none:
		return p.all
	case n == p.all:
		return p.none
	case n.op == opNot:
		return n.kids[0]
	}
	return p.intern(node{op: opNot, kids: []*node{n}})
}
