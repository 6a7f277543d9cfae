package match

import "slices"

// globParser parses bash patterns with extglob.
type globParser struct{ pool *pool }

// pattern parses all of src, which is inside depth parentheses.
func (g *globParser) pattern(src []rune, depth int) (*node, error) {
	if depth > maxDepth {
		return nil, ErrTooLarge
	}
	p := g.pool
	var parts []*node
	for i := 0; i < len(src); i++ {
		r := src[i]
		if i+1 < len(src) && src[i+1] == '(' && isExtended(r) {
			list, end := splitList(src, i+2)
			if end < 0 { // as bash: the rest is not a pattern, but plain text
				for _, r := range src[i:] {
					parts = append(parts, p.char(r))
				}
				break
			}
			n, err := g.extended(r, list, depth)
			if err != nil {
				return nil, err
			}
			parts = append(parts, n)
			i = end
			continue
		}
		switch r {
		case '?':
			parts = append(parts, p.chars(anyChar))
		case '*':
			parts = append(parts, p.all)
		case '[':
			if s, end, ok := globBracket(src, i+1); ok {
				parts = append(parts, p.chars(s))
				i = end
				break
			}
			parts = append(parts, p.char(r))
		case '\\':
			if i+1 < len(src) {
				i++
				r = src[i]
			}
			parts = append(parts, p.char(r))
		default:
			parts = append(parts, p.char(r))
		}
	}
	return p.seq(parts...), nil
}

func isExtended(r rune) bool {
	return r == '?' || r == '*' || r == '+' || r == '@' || r == '!'
}

// extended builds @(list) and the other extended patterns.
func (g *globParser) extended(kind rune, list [][]rune, depth int) (*node, error) {
	ways := make([]*node, len(list))
	for i, src := range list {
		n, err := g.pattern(src, depth+1)
		if err != nil {
			return nil, err
		}
		ways[i] = n
	}
	n := g.pool.alt(ways...)
	switch kind {
	case '?':
		return g.pool.repeat(n, 0, 1), nil
	case '*':
		return g.pool.repeat(n, 0, -1), nil
	case '+':
		return g.pool.repeat(n, 1, -1), nil
	case '!':
		return g.pool.not(n), nil
	default: // '@'
		return n, nil
	}
}

// splitList splits the patterns between the parenthesis before src[from] and the one that closes it
// at end. It counts inner parentheses, and skips escaped and bracketed characters. Without a closing
// parenthesis end is -1.
func splitList(src []rune, from int) (list [][]rune, end int) {
	depth := 0
	for i := from; i < len(src); i++ {
		switch src[i] {
		case '\\':
			i++
		case '[':
			closing := closingBracket(src, i+1)
			if closing < 0 {
				return nil, -1
			}
			i = closing
		case '(':
			depth++
		case ')':
			if depth == 0 {
				return append(list, src[from:i]), i
			}
			depth--
		case '|':
			if depth == 0 {
				list = append(list, src[from:i])
				from = i + 1
			}
		}
	}
	return nil, -1
}

// closingBracket returns the end of the bracket expression that begins at from, -1 if there is none.
// A ] closes it unless it is the first character, escaped or part of [:class:], [.symbol.] or
// [=equivalent=].
func closingBracket(src []rune, from int) int {
	i := from
	if i < len(src) && (src[i] == '!' || src[i] == '^') {
		i++
	}
	first := i
	var inner rune // the character after an inner [
	for ; i < len(src); i++ {
		switch src[i] {
		case '\\':
			i++
		case '[':
			if i+1 < len(src) && slices.Contains([]rune(":.="), src[i+1]) {
				inner = src[i+1]
			}
		case ']':
			if inner != 0 && src[i-1] == inner {
				inner = 0
			} else if i != first {
				return i
			}
		}
	}
	return -1
}
