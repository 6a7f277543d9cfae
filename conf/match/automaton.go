package match

import (
	"slices"
	"sync"
	"unicode/utf8"
)

// side is the neighbour of a position in a string: the end of the string, a word character (letter,
// digit, _) or another character.
type side int

const (
	edge side = iota
	other
	word
	sides
)

// assertion is a condition on a position, based on the characters before and after it.
type assertion byte

const (
	atStart     assertion = iota + 1 // ^
	atEnd                            // $
	wordStart                        // \<
	wordEnd                          // \>
	wordEdge                         // \b
	notWordEdge                      // \B
)

func (a assertion) holds(before, behind side) bool {
	switch a {
	case atStart:
		return before == edge
	case atEnd:
		return behind == edge
	case wordStart:
		return before != word && behind == word
	case wordEnd:
		return before == word && behind != word
	case wordEdge:
		return (before == word) != (behind == word)
	default:
		return (before == word) == (behind == word)
	}
}

// automaton matches strings against an expression. Its states are expressions, too: the step over a
// character c leads to the expression that matches the text allowed after c (the derivative of
// Brzozowski, JACM 11, 1964, composed of the partial ones of Antimirov, TCS 155, 1996). States are
// created when a string first reaches them, and stored; if there are too many, all are
// deleted.
type automaton struct {
	mu      sync.Mutex
	pool    *pool
	start   *node
	base    []*node // nodes of the expression itself
	asserts bool
	bytes   bool // characters are bytes

	// Characters that belong to exactly the same sets of the expression form a class. A class is a
	// span from its first character to the next class's.
	first  []rune
	beside []side // the side that a character of the class is for its neighbours
	ascii  [utf8.RuneSelf]int

	limit      int // of pool.size + remembered
	remembered int // entries in all node.next
}

// maxRemembered limits the memory of one automaton, in pointers in addition to those of the
// expression itself.
const maxRemembered = 1 << 16

func newAutomaton(p *pool, start *node, bytes bool) *automaton {
	a := &automaton{pool: p, start: start, bytes: bytes, first: []rune{0}}
	for _, n := range p.nodes {
		a.base = append(a.base, n)
		a.asserts = a.asserts || n.op == opAssert
		for _, s := range n.set {
			a.first = append(a.first, s.lo, s.hi+1)
		}
	}
	if a.asserts {
		for _, s := range wordChars {
			a.first = append(a.first, s.lo, s.hi+1)
		}
	}
	a.limit = maxRemembered + 2*p.size
	slices.Sort(a.first)
	a.first = slices.Compact(a.first)
	for _, r := range a.first {
		if wordChars.has(r) {
			a.beside = append(a.beside, word)
		} else {
			a.beside = append(a.beside, other)
		}
	}
	for r := range a.ascii {
		a.ascii[r] = a.search(rune(r))
	}
	return a
}

// search returns the class of r.
func (a *automaton) search(r rune) int {
	i, ok := slices.BinarySearch(a.first, r)
	if ok {
		return i
	}
	return i - 1
}

// match reports whether the expression matches the whole of s.
func (a *automaton) match(s string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	state, before := a.start, edge
	for i := 0; i < len(s); {
		r, size := rune(s[i]), 1
		if r >= utf8.RuneSelf && !a.bytes {
			r, size = utf8.DecodeRuneInString(s[i:])
		}
		i += size
		class := 0
		if r < utf8.RuneSelf {
			class = a.ascii[r]
		} else {
			class = a.search(r)
		}
		state = a.step(state, before, class)
		if state == a.pool.none || state == a.pool.all {
			return state == a.pool.all
		}
		if a.asserts {
			before = a.beside[class]
		}
		if a.pool.size+a.remembered > a.limit {
			state = a.forget(state)
		}
	}
	return a.null(state, before, edge)
}

// step returns the state after a character of a class.
func (a *automaton) step(state *node, before side, class int) *node {
	at, size := class, len(a.first)
	if a.asserts {
		at, size = class*int(sides)+int(before), size*int(sides)
	}
	if state.next == nil {
		state.next = make([]*node, size)
		a.remembered += size
	}
	if state.next[at] == nil {
		d := derivation{automaton: a, before: before, class: class, seen: map[[2]*node]bool{}}
		d.visit(state, a.pool.empty)
		state.next[at] = a.pool.alt(d.ways...)
	}
	return state.next[at]
}

// derivation is one step in progress.
type derivation struct {
	*automaton
	before side
	class  int
	seen   map[[2]*node]bool
	ways   []*node // expressions for the text after the character
}

// visit steps from n followed by then. It visits every pair once, so the time of a step is
// proportional to the expression.
func (d *derivation) visit(n, then *node) {
	for {
		if n.op == opSet {
			if n.set.has(d.first[d.class]) {
				d.ways = append(d.ways, then)
			}
			return
		}
		if d.seen[[2]*node{n, then}] {
			return
		}
		d.seen[[2]*node{n, then}] = true
		switch n.op {
		case opCat:
			d.visit(n.kids[0], d.pool.cat(n.kids[1], then))
			if !d.null(n.kids[0], d.before, d.beside[d.class]) {
				return
			}
			n = n.kids[1]
			continue
		case opAlt:
			for _, k := range n.kids {
				d.visit(k, then)
			}
		case opRepeat:
			least, most := n.min-1, n.max
			if least < 0 || d.null(n.kids[0], d.before, d.beside[d.class]) {
				least = 0 // rounds before this one may have been empty
			}
			if most > 0 {
				most--
			}
			d.visit(n.kids[0], d.pool.cat(d.pool.repeat(n.kids[0], least, most), then))
		case opNot:
			rest := d.pool.not(d.step(n.kids[0], d.before, d.class))
			d.ways = append(d.ways, d.pool.cat(rest, then))
		}
		return
	}
}

// null reports whether the expression matches the empty string at a position.
func (a *automaton) null(n *node, before, behind side) bool {
	if !a.asserts {
		before, behind = edge, edge
	}
	known := &n.null[before][behind]
	if *known == unknown {
		*known = no
		if a.fitsNothing(n, before, behind) {
			*known = yes
		}
	}
	return *known == yes
}

func (a *automaton) fitsNothing(n *node, before, behind side) bool {
	fits := func(k *node) bool { return a.null(k, before, behind) }
	switch n.op {
	case opEmpty:
		return true
	case opAssert:
		return n.assert.holds(before, behind)
	case opCat:
		return fits(n.kids[0]) && fits(n.kids[1])
	case opAlt:
		return slices.ContainsFunc(n.kids, fits)
	case opRepeat:
		return n.min == 0 || fits(n.kids[0])
	case opNot:
		return !fits(n.kids[0])
	default: // opNone, opSet
		return false
	}
}

// forget deletes every state except the expression's own nodes and the current state, which it
// builds again.
func (a *automaton) forget(state *node) *node {
	a.remembered = 0
	a.pool.nodes, a.pool.size = map[string]*node{}, 0
	again := map[*node]*node{}
	for _, n := range a.base {
		n.next = nil
		a.pool.keep(n.key(), n)
		again[n] = n
	}
	return a.pool.rebuild(state, again)
}
