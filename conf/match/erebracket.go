package match

// member is one element of a bracket expression.
type member struct {
	set   set  // a class, which cannot be the end of a range
	char  rune // else
	plain bool // char counts
}

// bracket parses a bracket expression after its [. A backslash is a plain character
// in it.
func (e *ereParser) bracket() (set, error) {
	inverse := e.at('^')
	if inverse {
		e.i++
	}
	var s set
	for first := true; first || !e.at(']'); first = false {
		from, err := e.member(first)
		if err != nil {
			return nil, err
		}
		if !from.plain {
			s = append(s, from.set...)
			continue
		}
		to := from
		if e.at('-') && e.i+1 < len(e.src) && e.src[e.i+1] != ']' {
			e.i++
			if to, err = e.member(true); err != nil {
				return nil, err
			}
		}
		if !to.plain || from.char > to.char {
			return nil, errSyntax
		}
		s = s.add(from.char, to.char)
	}
	e.i++
	if inverse {
		return s.inverse(), nil
	}
	return s.normal(), nil
}

// member parses one element. A hyphen that is neither first nor last nor the end of a range is an
// error, as in glibc.
func (e *ereParser) member(hyphen bool) (member, error) {
	if !e.more() {
		return member{}, errSyntax
	}
	r := e.src[e.i]
	if r == '[' && e.i+1 < len(e.src) {
		switch kind := e.src[e.i+1]; kind {
		case ':', '.', '=':
			return e.inner(kind)
		}
	}
	e.i++
	if r == '-' && !hyphen && !e.at(']') {
		return member{}, errSyntax
	}
	return member{char: r, plain: true}, nil
}

// inner parses [:class:], [.c.] or [=c=].
func (e *ereParser) inner(kind rune) (member, error) {
	name, next, ok := innerClass(e.src, e.i, kind)
	if !ok {
		return member{}, errSyntax
	}
	e.i = next
	if kind == ':' {
		s, ok := classes[name]
		if !ok {
			return member{}, errSyntax
		}
		return member{set: s}, nil
	}
	runes := []rune(name)
	if len(runes) != 1 {
		return member{}, errSyntax
	}
	return member{set: set{{runes[0], runes[0]}}, char: runes[0], plain: kind == '.'}, nil
}
