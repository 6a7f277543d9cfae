package match

import (
	"slices"
	"unicode/utf8"
)

// span is the characters from lo to hi, both included.
type span struct{ lo, hi rune }

// set is a set of characters: spans in ascending order that do not touch. It is built with add, in any
// order, and then sorted by normal or inverse.
type set []span

func (s set) add(lo, hi rune) set { return append(s, span{lo, hi}) }

// normal sorts the spans and joins adjacent ones.
func (s set) normal() set {
	s = slices.Clone(s)
	slices.SortFunc(s, func(a, b span) int { return int(a.lo - b.lo) })
	out := s[:0]
	for _, p := range s {
		if n := len(out); n > 0 && p.lo <= out[n-1].hi+1 {
			out[n-1].hi = max(out[n-1].hi, p.hi)
			continue
		}
		out = append(out, p)
	}
	return out
}

// inverse returns every character that is not in s.
func (s set) inverse() set {
	var out set
	next := rune(0)
	for _, p := range s.normal() {
		if p.lo > next {
			out = out.add(next, p.lo-1)
		}
		next = p.hi + 1
	}
	if next <= utf8.MaxRune {
		out = out.add(next, utf8.MaxRune)
	}
	return out
}

func (s set) has(r rune) bool {
	_, ok := slices.BinarySearchFunc(s, r, func(p span, r rune) int {
		switch {
		case p.hi < r:
			return -1
		case p.lo > r:
			return 1
		}
		return 0
	})
	return ok
}

// classes holds the named character classes [:name:] in the C locale.
var classes = map[string]set{
	"alnum":  {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}},
	"alpha":  {{'A', 'Z'}, {'a', 'z'}},
	"blank":  {{'\t', '\t'}, {' ', ' '}},
	"cntrl":  {{0, 0x1f}, {0x7f, 0x7f}},
	"digit":  {{'0', '9'}},
	"graph":  {{'!', '~'}},
	"lower":  {{'a', 'z'}},
	"print":  {{' ', '~'}},
	"punct":  {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}},
	"space":  {{'\t', '\r'}, {' ', ' '}},
	"upper":  {{'A', 'Z'}},
	"xdigit": {{'0', '9'}, {'A', 'F'}, {'a', 'f'}},
}

// globClasses holds the classes that exist only in bash's patterns.
var globClasses = map[string]set{
	"ascii": {{0, 0x7f}},
	"word":  wordChars,
}

var (
	anyChar   = set{{0, utf8.MaxRune}}
	wordChars = set{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}
)
