package match

// ereParser parses the extended regular expressions of glibc's regcomp: those of POSIX, plus
// \w \W \s \S \b \B \< \> \` and \'.
type ereParser struct {
	pool   *pool
	src    []rune
	i      int
	groups int // closed so far
}

func (e *ereParser) more() bool { return e.i < len(e.src) }

func (e *ereParser) at(r rune) bool { return e.more() && e.src[e.i] == r }

// alternatives parses branches up to the end, or to the ) of a group: outside of all groups a ) is a
// plain character.
func (e *ereParser) alternatives(depth int) (*node, error) {
	if depth > maxDepth {
		return nil, ErrTooLarge
	}
	var ways []*node
	for {
		var parts []*node
		for e.more() && !e.at('|') && (depth == 0 || !e.at(')')) {
			n, err := e.repeated(depth)
			if err != nil {
				return nil, err
			}
			parts = append(parts, n)
		}
		ways = append(ways, e.pool.seq(parts...))
		if !e.at('|') {
			return e.pool.alt(ways...), nil
		}
		e.i++
	}
}

// repeated parses an anchor, or an atom and any number of repeat operators after
// it.
func (e *ereParser) repeated(depth int) (*node, error) {
	if a, ok := e.anchor(); ok {
		return e.pool.holds(a), nil
	}
	n, err := e.atom(depth)
	if err != nil {
		return nil, err
	}
	for e.more() {
		switch e.src[e.i] {
		case '*':
			n = e.pool.repeat(n, 0, -1)
		case '+':
			n = e.pool.repeat(n, 1, -1)
		case '?':
			n = e.pool.repeat(n, 0, 1)
		case '{':
			least, most, err := e.interval()
			if err != nil {
				return nil, err
			}
			n = e.pool.repeat(n, least, most)
		default:
			return n, nil
		}
		e.i++
	}
	return n, nil
}

// interval parses {n}, {n,}, {,m} or {n,m} and stops at the closing brace.
func (e *ereParser) interval() (least, most int, err error) {
	e.i++
	least, counted := e.number()
	most = least
	if e.at(',') {
		e.i++
		if most, counted = e.number(); !counted {
			most, counted = -1, true
		}
	}
	const glibcMax = 0x7fff
	if !counted || !e.at('}') || most >= 0 && least > most || max(least, most) > glibcMax {
		return 0, 0, errSyntax
	}
	return least, most, nil
}

func (e *ereParser) number() (n int, ok bool) {
	for ; e.more() && isDigit(e.src[e.i]); e.i++ {
		n, ok = min(10*n+int(e.src[e.i]-'0'), 1<<20), true
	}
	return n, ok
}

// The anchors, plain and after a backslash.
var (
	anchors        = map[rune]assertion{'^': atStart, '$': atEnd}
	escapedAnchors = map[rune]assertion{
		'`': atStart, '\'': atEnd, '<': wordStart, '>': wordEnd, 'b': wordEdge, 'B': notWordEdge,
	}
)

func (e *ereParser) anchor() (assertion, bool) {
	a, ok := anchors[e.src[e.i]]
	size := 1
	if e.at('\\') && e.i+1 < len(e.src) {
		a, ok = escapedAnchors[e.src[e.i+1]]
		size = 2
	}
	if ok {
		e.i += size
	}
	return a, ok
}

func (e *ereParser) atom(depth int) (*node, error) {
	r := e.src[e.i]
	e.i++
	switch r {
	case '(':
		n, err := e.alternatives(depth + 1)
		if err != nil {
			return nil, err
		}
		if !e.at(')') {
			return nil, errSyntax
		}
		e.i++
		e.groups++
		return n, nil
	case '[':
		s, err := e.bracket()
		return e.pool.chars(s), err
	case '*', '+', '?', '{':
		return nil, errSyntax
	case '.':
		return e.pool.chars(anyChar), nil
	case '\\':
		return e.escape()
	default:
		return e.pool.char(r), nil
	}
}

func (e *ereParser) escape() (*node, error) {
	if !e.more() {
		return nil, errSyntax
	}
	r := e.src[e.i]
	e.i++
	switch {
	case r == 'w':
		return e.pool.chars(wordChars), nil
	case r == 'W':
		return e.pool.chars(wordChars.inverse()), nil
	case r == 's':
		return e.pool.chars(classes["space"]), nil
	case r == 'S':
		return e.pool.chars(classes["space"].inverse()), nil
	case '1' <= r && r <= '9' && int(r-'0') <= e.groups:
		return nil, ErrBackref
	case '1' <= r && r <= '9':
		return nil, errSyntax
	}
	return e.pool.char(r), nil
}
