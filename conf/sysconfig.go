package conf

import (
	"bytes"
	"regexp"
	"slices"
	"sync"

	"mvdan.cc/sh/v3/syntax"
)

// Assign is the effect of one statement of a sysconfig file on one variable.
type Assign struct {
	Pos     Pos
	Name    string
	Value   string
	Array   []string // instead of Value if IsArray
	IsArray bool
	Export  bool
	Unset   bool // the variable is removed
}

// ParseSysconfig parses a file of shell assignments without a shell: NAME=value, NAME=( .. ), export
// and unset, with values of text, quotes, $NAME, ${NAME}, ${NAME:-word} and ${NAME-word}. vars
// returns the variables that are set before; later lines see the assignments of earlier ones.
//
// If the file contains anything else, or a syntax error, needShell is true and nothing is returned:
// only bash can evaluate such a file. A file that is not text, or too long, is an error.
func ParseSysconfig(file string, data []byte, vars func(string) (string, bool)) (assigns []Assign, needShell bool, err error) {
	if err := usable(file, data, "shell assignments"); err != nil {
		return nil, false, err
	}
	if bytes.ContainsAny(data, "\r\x00") {
		return nil, true, nil
	}
	tree, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(bytes.NewReader(data), file)
	if err != nil {
		return nil, true, nil //nolint:nilerr // bash reports the error
	}
	s := script{file: file, vars: vars, now: map[string]Assign{}, exported: map[string]bool{}}
	for _, st := range tree.Stmts {
		if !s.statement(st) {
			return nil, true, nil
		}
	}
	return s.done, false, nil
}

// ModeIn returns the MODE that a sysconfig file sets, "" for none. No shell evaluates a file that needs
// one: the mode of such a file is observe if it can be, since a doubt must not drain a node.
func ModeIn(file string, data []byte, vars func(string) (string, bool)) (mode string, err error) {
	assigns, needShell, err := ParseSysconfig(file, data, vars)
	for _, a := range assigns {
		if a.Name == SettingMode {
			mode = a.Value
		}
	}
	if !needShell {
		return mode, err
	}
	tree, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(bytes.NewReader(data), file)
	doubt := err != nil && namesMode().Match(data)
	if err != nil {
		tree = &syntax.File{}
	}
	syntax.Walk(tree, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Assign:
			if n.Name == nil { // export "MODE=observe"
				doubt = doubt || n.Value != nil && wordHasMode(n.Value)
				return true
			}
			if n.Name.Value != SettingMode {
				return true
			}
			if !n.Naked { // export MODE
				literal := words{lookup: func(string) (string, bool) { doubt = true; return "", false }}
				var failed error
				mode, failed = literal.expand(n.Value)
				doubt = doubt || failed != nil || mode == Observe || n.Append || n.Index != nil || n.Array != nil
			}
			return false
		case *syntax.ParamExp: // ${MODE:=observe}
			assigns := n.Exp != nil && (n.Exp.Op == syntax.AssignUnset || n.Exp.Op == syntax.AssignUnsetOrNull)
			doubt = doubt || assigns && n.Param != nil && n.Param.Value == SettingMode
		case *syntax.CallExpr:
			args := n.Args
			for len(args) > 0 && slices.Contains([]string{"command", "builtin"}, args[0].Lit()) {
				args = args[1:]
			}
			switch {
			case len(args) == 0:
			case slices.Contains([]string{".", "source", "eval"}, args[0].Lit()):
				doubt = true
			case slices.Contains([]string{"read", "readarray", "mapfile", "printf", "getopts"}, args[0].Lit()):
				doubt = doubt || slices.ContainsFunc(args, wordHasMode)
			case args[0].Lit() == "unset" && slices.ContainsFunc(args, wordHasMode):
				mode = ""
			}
		case *syntax.WordIter: // for MODE in ...
			doubt = doubt || n.Name.Value == SettingMode
		}
		return true
	})
	if doubt {
		mode = Observe
	}
	return mode, nil
}

var namesMode = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\b` + SettingMode + `\b`) })

// wordHasMode reports whether a word contains the name MODE outside of expansions, quoted or not.
func wordHasMode(w *syntax.Word) (has bool) {
	syntax.Walk(w, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.ParamExp:
			return false
		case *syntax.Lit:
			has = has || namesMode().MatchString(n.Value)
		case *syntax.SglQuoted:
			has = has || namesMode().MatchString(n.Value)
		}
		return true
	})
	return has
}

// script evaluates the statements of a sysconfig file.
type script struct {
	file     string
	vars     func(string) (string, bool)
	now      map[string]Assign // the effect of the file on each variable
	exported map[string]bool
	done     []Assign
}

// statement evaluates one statement; ok is false if it requires a shell.
func (s *script) statement(st *syntax.Stmt) (ok bool) {
	if st.Negated || st.Background || st.Coprocess || st.Disown || len(st.Redirs) > 0 {
		return false
	}
	switch cmd := st.Cmd.(type) {
	case *syntax.CallExpr:
		if len(cmd.Args) == 0 {
			return s.assign(cmd.Assigns)
		}
		return len(cmd.Assigns) == 0 && cmd.Args[0].Lit() == "unset" && s.unset(cmd.Args[1:], st.Pos())
	case *syntax.DeclClause:
		return cmd.Variant.Value == "export" && len(cmd.Args) > 0 && s.export(cmd.Args)
	}
	return false
}

// assign evaluates A=1 B=$A, in order.
func (s *script) assign(list []*syntax.Assign) (ok bool) {
	for _, a := range list {
		result, ok := s.value(a, "")
		if !ok {
			return false
		}
		s.do(result)
	}
	return true
}

// export evaluates export A=1 B: it expands all words before it assigns anything. A name alone
// exports the variable with its present value, or as soon as it has a
// value.
func (s *script) export(list []*syntax.Assign) (ok bool) {
	results := make([]Assign, len(list))
	for i, a := range list {
		if a.Name == nil {
			return false // an option, or a name that requires an expansion
		}
		if !a.Naked {
			if results[i], ok = s.value(a, "{"); !ok {
				return false
			}
		}
	}
	for i, a := range list {
		result, set := results[i], true
		if a.Naked {
			result, set = s.current(a.Name.Value)
		}
		s.exported[a.Name.Value] = true
		if set {
			result.Pos, result.Name, result.Export = s.pos(a.Pos()), a.Name.Value, true
			s.do(result)
		}
	}
	return true
}

// value expands one assignment. special are the unquoted characters that bash would expand at this
// place.
func (s *script) value(a *syntax.Assign, special string) (result Assign, ok bool) {
	if a.Append || a.Naked || a.Index != nil || shellVars[a.Name.Value] == dynamic {
		return result, false
	}
	result = Assign{Pos: s.pos(a.Pos()), Name: a.Name.Value, Export: s.exported[a.Name.Value]}
	var err error
	if a.Array == nil {
		result.Value, err = words{lookup: s.lookup, special: special}.expand(a.Value)
		return result, err == nil
	}
	result.IsArray, result.Array = true, []string{}
	for _, el := range a.Array.Elems {
		if el.Index != nil || el.Value == nil {
			return result, false
		}
		text, err := words{lookup: s.lookup, special: "*?[{", split: true}.expand(el.Value)
		if err != nil {
			return result, false
		}
		result.Array = append(result.Array, text)
	}
	return result, true
}

// current returns the present value of a variable.
func (s *script) current(name string) (a Assign, set bool) {
	if a, ok := s.now[name]; ok {
		return a, !a.Unset
	}
	a.Value, set = s.vars(name)
	return a, set
}

func (s *script) unset(names []*syntax.Word, at syntax.Pos) bool {
	for _, w := range names {
		name := w.Lit()
		if !syntax.ValidName(name) || shellVars[name] == dynamic {
			return false
		}
		delete(s.exported, name)
		s.do(Assign{Pos: s.pos(at), Name: name, Unset: true})
	}
	return true
}

func (s *script) do(a Assign) {
	s.now[a.Name] = a
	s.done = append(s.done, a)
}

// lookup returns the present value of a variable. $ARRAY is its first element.
func (s *script) lookup(name string) (string, bool) {
	a, set := s.current(name)
	switch {
	case !set || a.IsArray && len(a.Array) == 0:
		return "", false
	case a.IsArray:
		return a.Array[0], true
	}
	return a.Value, true
}

func (s *script) pos(p syntax.Pos) Pos { return Pos{s.file, int(p.Line())} }
