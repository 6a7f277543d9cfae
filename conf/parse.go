package conf

import (
	"cmp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// ParseBash parses bash text as bash does without "shopt -s extglob": the parser of package syntax takes
// !(a) and +(a) for patterns everywhere. Only [[ and ${ } have such patterns then; !(a) as a command is
// ! (a), and any other one is an error. With extglob, the shell may have the patterns: so may text that
// mentions the option.
func ParseBash(text string, extglob bool, options ...syntax.ParserOption) (*syntax.File, error) {
	parser := syntax.NewParser(append([]syntax.ParserOption{syntax.Variant(syntax.LangBash)}, options...)...)
	file, err := parser.Parse(strings.NewReader(text), "")
	begins := func(pattern string) bool { return strings.Contains(text, pattern) }
	if extglob || strings.Contains(text, "extglob") || !slices.ContainsFunc([]string{"!(", "?(", "*(", "+(", "@("}, begins) {
		return file, err
	}
	plain, negated := []byte(text), map[uint]bool{} // offsets of !( that begin a command
	if err != nil {                                 // quotes in a pattern end elsewhere than in a command
		for i := range text {
			if strings.HasPrefix(text[i:], "!(") {
				negated[uint(i)] = true
			}
		}
	}
	for known := -1; known < len(negated); { // there can be more within them
		known = len(negated)
		for at := range negated {
			plain[at] = ' '
		}
		again, failed := parser.Parse(strings.NewReader(string(plain)), "")
		if failed != nil {
			return nil, cmp.Or(err, failed)
		}
		if wrong := misread(again, negated); wrong != nil {
			return nil, *wrong
		}
		file = again
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		if st, ok := n.(*syntax.Stmt); ok {
			if sub, ok := st.Cmd.(*syntax.Subshell); ok && sub.Lparen.Offset() > 0 && negated[sub.Lparen.Offset()-1] {
				if at := sub.Lparen; !st.Negated {
					st.Position = syntax.NewPos(at.Offset()-1, at.Line(), at.Col()-1)
				}
				st.Negated = !st.Negated
			}
		}
		return true
	})
	return file, nil
}

// misread finds the patterns that bash does not take for patterns: it adds the commands !( to negated, and
// returns the error of the first other one.
func misread(root syntax.Node, negated map[uint]bool) (wrong *syntax.ParseError) {
	var look func(root syntax.Node, patterns bool)
	look = func(root syntax.Node, patterns bool) {
		syntax.Walk(root, func(n syntax.Node) bool {
			switch n := n.(type) {
			case *syntax.TestClause, *syntax.ParamExp:
				if n != root {
					look(n, true)
					return false
				}
			case *syntax.CmdSubst, *syntax.ProcSubst:
				if n != root {
					look(n, false)
					return false
				}
			case *syntax.CallExpr:
				if len(n.Assigns) == 0 && len(n.Args) == 1 && len(n.Args[0].Parts) == 1 {
					if g, ok := n.Args[0].Parts[0].(*syntax.ExtGlob); ok && g.Op == syntax.GlobExcept {
						negated[g.OpPos.Offset()] = true
						return false
					}
				}
			case *syntax.ExtGlob:
				if !patterns && wrong == nil {
					wrong = &syntax.ParseError{Pos: n.OpPos, Text: "a pattern " + n.Op.String() + "...) without quotes needs extglob, which is off"}
				}
			}
			return true
		})
	}
	look(root, false)
	return wrong
}
