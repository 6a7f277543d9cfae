package match

// globBracket parses the bracket expression of a pattern, with the first character src[i]; end is the
// ] that closes it. ok is false if there is none.
func globBracket(src []rune, i int) (s set, end int, ok bool) {
	inverse := i < len(src) && (src[i] == '!' || src[i] == '^')
	if inverse {
		i++
	}
	for first := true; i < len(src); first = false {
		if src[i] == ']' && !first {
			if s = s.normal(); inverse {
				s = s.inverse()
			}
			return s, i, true
		}
		if name, next, ok := innerClass(src, i, ':'); ok {
			s = append(s, classes[name]...) // an unknown class holds nothing
			s = append(s, globClasses[name]...)
			i = next
			continue
		}
		var lo, hi rune
		if lo, i, ok = globMember(src, i); !ok {
			return nil, 0, false
		}
		hi = lo
		if i+1 < len(src) && src[i] == '-' && src[i+1] != ']' {
			if hi, i, ok = globMember(src, i+1); !ok {
				return nil, 0, false
			}
		}
		if lo <= hi {
			s = s.add(lo, hi)
		}
	}
	return nil, 0, false
}

// globMember parses one character of a bracket expression.
func globMember(src []rune, i int) (r rune, next int, ok bool) {
	for _, kind := range ".=" {
		if name, next, ok := innerClass(src, i, kind); ok && len([]rune(name)) == 1 {
			return []rune(name)[0], next, true
		}
	}
	if src[i] == '\\' {
		i++
	}
	if i >= len(src) {
		return 0, i, false
	}
	return src[i], i + 1, true
}

// innerClass parses [:name:] or a similar element at src[i]; kind is the character inside the
// brackets.
func innerClass(src []rune, i int, kind rune) (name string, next int, ok bool) {
	if i+1 >= len(src) || src[i] != '[' || src[i+1] != kind {
		return "", i, false
	}
	for j := i + 2; j+1 < len(src); j++ {
		if src[j] == kind && src[j+1] == ']' {
			return string(src[i+2 : j]), j + 2, true
		}
	}
	return "", i, false
}
