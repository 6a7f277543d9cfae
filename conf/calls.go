package conf

import "mvdan.cc/sh/v3/syntax"

// Call is a command that a script calls by name.
type Call struct {
	Name string
	Line int
}

// Calls returns the commands that a bash script calls by a plain name, in order; none if the script
// cannot be parsed.
func Calls(script []byte) (calls []Call) {
	file, err := ParseBash(string(script), false)
	if err != nil {
		return nil
	}
	walkCalls(file, func(name string, c *syntax.CallExpr) {
		calls = append(calls, Call{name, int(c.Pos().Line())})
	})
	return calls
}

// CallsOf returns the names of the commands in a parsed script.
func CallsOf(file *syntax.File) (names []string) {
	walkCalls(file, func(name string, _ *syntax.CallExpr) { names = append(names, name) })
	return names
}

func walkCalls(file *syntax.File, do func(name string, c *syntax.CallExpr)) {
	syntax.Walk(file, func(n syntax.Node) bool {
		if c, ok := n.(*syntax.CallExpr); ok && len(c.Args) > 0 {
			if name := c.Args[0].Lit(); name != "" {
				do(name, c)
			}
		}
		return true
	})
}
