package match

import (
	"errors"
	"strings"
	"sync"
	"unicode/utf8"
)

// The limits of [ErrTooLarge], next to MaxExpr.
const (
	maxDepth = 1000 // nested parentheses
	maxReps  = 1000 // product of nested repeat counts: a{10} in (...){20} is 200
)

// errSyntax means that glibc would not compile a regular expression.
var errSyntax = errors.New("not a valid regular expression")

// language is the language of an expression, and how it is applied.
type language int

const (
	glob language = iota // bash pattern, whole string
	find                 // bash pattern, anywhere, not empty
	ere                  // extended regular expression, anywhere
)

// run matches s with a compiled expression, which it stores for later.
func run(s, expr string, lang language) (bool, error) {
	if lang.rulesOut(s, expr) {
		return false, nil
	}
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

// rulesOut reports whether s cannot match because of its beginning: of a thousand lines of a
// cluster's file nearly all are for other nodes. It handles simple expressions only.
func (l language) rulesOut(s, expr string) bool {
	if l == find || len(expr) > MaxExpr || strings.ContainsAny(expr, `(|{\`) {
		return false
	}
	if l == ere {
		var anchored bool
		if expr, anchored = strings.CutPrefix(expr, "^"); !anchored {
			return false
		}
	}
	plain := strings.TrimLeftFunc(expr, isPrefix)
	prefix := expr[:len(expr)-len(plain)]
	if l == ere && prefix != "" && plain != "" && strings.IndexByte("*?+", plain[0]) >= 0 {
		prefix = prefix[:len(prefix)-1] // this character is optional
	}
	return !strings.HasPrefix(s, prefix) || l == glob && plain == "" && s != prefix
}

// compiled holds the recently used expressions.
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
