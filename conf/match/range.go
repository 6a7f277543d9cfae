package match

import "strings"

// inRange reports whether host is in a list of nodes (n1,login) and node ranges (n[01-10]-ib). The
// first member that is neither is reported, and ends the list: the rest is
// ignored.
func (m *Matcher) inRange(host, list string) bool {
	for list != "" {
		var hit bool
		if r, rest, ok := cutNodeRange(list); ok {
			hit, list = r.contains(host), rest
		} else {
			var member string
			member, list, _ = strings.Cut(list, ",")
			if !plainNode(member) && !plainName(member) {
				if m.Warn != nil {
					m.Warn("mcheck_range:  Range not in pdsh syntax:  " + member)
				}
				return false
			}
			hit = Glob(host, member) // a backslash quotes; member has no wildcards
		}
		if hit {
			return true
		}
	}
	return false
}

// plainNode reports whether a member is a node with a number: letters, digits, - and _ followed by a
// digit, then an optional suffix, which can also contain dots but no more _.
func plainNode(member string) bool {
	head := member[:len(member)-len(strings.TrimLeftFunc(member, isPrefix))]
	digit := strings.LastIndexAny(head, "0123456789")
	return digit > 0 && all(member[digit+1:], isSuffix)
}

// plainName reports whether a member is a name without any digit.
func plainName(member string) bool {
	return member != "" && all(member, func(r rune) bool {
		return isLetter(r) || r == '-' || r == '_' || r == '.'
	})
}

func all(s string, is func(rune) bool) bool { return strings.TrimLeftFunc(s, is) == "" }

func isLetter(r rune) bool { return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' }
func isDigit(r rune) bool  { return '0' <= r && r <= '9' }
func isPrefix(r rune) bool { return isLetter(r) || isDigit(r) || r == '-' || r == '_' }
func isSuffix(r rune) bool { return isLetter(r) || isDigit(r) || r == '-' || r == '.' || r == '\\' }

// nodeRange is one member with brackets: prefix[spans]suffix.
type nodeRange struct {
	prefix, suffix string
	spans          []numbers
}

// numbers is one span of a node range; without last it is the single number first.
type numbers struct{ first, last string }

// cutNodeRange cuts a node range off the beginning of list. ok is false if list begins with something
// else; then nothing is cut.
func cutNodeRange(list string) (r nodeRange, rest string, ok bool) {
	prefix := len(list) - len(strings.TrimLeftFunc(list, isPrefix))
	if prefix == 0 || prefix == len(list) || list[prefix] != '[' {
		return r, list, false
	}
	inner, tail, ok := strings.Cut(list[prefix+1:], "]")
	if !ok {
		return r, list, false
	}
	suffix := len(tail) - len(strings.TrimLeftFunc(tail, isSuffix))
	if suffix < len(tail) && tail[suffix] != ',' {
		return r, list, false
	}
	r.prefix, r.suffix = list[:prefix], strings.ReplaceAll(tail[:suffix], `\`, "")
	for part := range strings.SplitSeq(inner, ",") {
		first, last, isSpan := strings.Cut(part, "-")
		if !isNumber(first) || isSpan && !isNumber(last) {
			return r, list, false
		}
		r.spans = append(r.spans, numbers{first, last})
	}
	return r, strings.TrimPrefix(tail[suffix:], ","), true
}

func (r nodeRange) contains(host string) bool {
	n, ok := strings.CutPrefix(host, r.prefix)
	if ok {
		n, ok = strings.CutSuffix(n, r.suffix)
	}
	if !ok || !isNumber(n) {
		return false
	}
	for _, s := range r.spans {
		if s.contains(n) {
			return true
		}
	}
	return false
}

// contains compares a single number as written. Between two ends, the number of digits counts, too:
// that of the first end, or that of the last if it is longer, even if the ends are in the wrong
// order.
func (s numbers) contains(n string) bool {
	if s.last == "" {
		return n == s.first
	}
	if len(n) != max(len(s.first), len(s.last)) {
		return false
	}
	low, high := s.first, s.last
	if compareNumbers(low, high) > 0 {
		low, high = high, low
	}
	return compareNumbers(low, n) <= 0 && compareNumbers(n, high) <= 0
}

func isNumber(s string) bool { return s != "" && all(s, isDigit) }

// compareNumbers compares decimal numbers of any length by value.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}
