package match

import (
	"errors"
	"sync"
	"unicode/utf8"
)

// The limits of [ErrTooLarge], next to MaxExpr.
const (
	maxDepth = 1000 // parentheses within parentheses
	maxReps  = 1000 // product of nested repeat counts: a{10} in (...){20} is 200
)

// errSyntax is a regular expression that glibc would not compile.
var errSyntax = errors.New("not a valid regular expression")

// language is what an expression is written in and how it is applied.
type language int

const (
	glob language = iota // bash pattern, whole string
	find                 // bash pattern, anywhere, not empty
	ere                  // extended regular expression, anywhere
)

// run matches s with a compiled expression, from memory where possible.
func run(s, expr string, lang language) (bool, error) {
	p := program{expr, lang, !utf8.ValidString(expr) || !utf8.ValidString(s)}
	compiled.Lock()
	c, ok := compiled.programs[p]
	compiled.Unlock()
	if !ok {
		c.automaton, c.err = p.compile()
		compiled.Lock()
		if len(compiled.programs) >= maxCompiled {
			clear(compiled.programs)
		}
		compiled.programs[p] = c
		compiled.Unlock()
	}
	if c.err != nil {
		return false, c.err
	}
	return c.automaton.match(s), nil
}

// compiled remembers the expressions used of late.
var compiled = struct {
	sync.Mutex
	programs map[program]outcome
}{programs: map[program]outcome{}}

const maxCompiled = 128

type program struct {
	expr  string
	lang  language
	bytes bool
}

type outcome struct {
	automaton *automaton
	err       error
}

func (p program) compile() (*automaton, error) {
	if len(p.expr) > MaxExpr {
		return nil, ErrTooLarge
	}
	src := []rune(p.expr)
	if p.bytes {
		src = make([]rune, len(p.expr))
		for i := range src {
			src[i] = rune(p.expr[i])
		}
	}
	nodes := newPool()
	n, err := parse(nodes, src, p.lang)
	if err != nil {
		return nil, err
	}
	if n.reps > maxReps {
		return nil, ErrTooLarge
	}
	return newAutomaton(nodes, n, p.bytes), nil
}

func parse(p *pool, src []rune, lang language) (*node, error) {
	switch lang {
	case glob:
		return (&globParser{pool: p}).pattern(src, 0)
	case find:
		n, err := (&globParser{pool: p}).pattern(src, 0)
		if err != nil {
			return nil, err
		}
		filled := p.not(p.alt(p.not(n), p.empty))
		return p.seq(p.all, filled, p.all), nil
	default:
		e := ereParser{pool: p, src: src}
		n, err := e.alternatives(0)
		if err != nil {
			return nil, err
		}
		return p.seq(p.all, n, p.all), nil
	}
}
