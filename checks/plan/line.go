package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// line plans one check line.
func (b *builder) line(l conf.Line) {
	s := Step{Pos: l.Pos, Text: l.Check}
	// bash evaluates $CHECK unquoted: runs of blanks become one, also in quotes.
	text := strings.Join(strings.FieldsFunc(l.Check, isBlank), " ")
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		s.Garbled = true
		b.shell(s, nil, "not the grammar of a shell: "+err.Error())
		return
	}
	why := b.simple(&s, file)
	if why == "" {
		b.add(s)
		return
	}
	b.shell(s, file, why)
}

func isBlank(r rune) bool { return r == ' ' || r == '\t' || r == '\n' }

// simple plans a line that is one simple command without anything that needs a
// shell; else it says why a shell is needed.
func (b *builder) simple(s *Step, file *syntax.File) (why string) {
	if len(file.Stmts) == 0 {
		s.Kind = Assign // a comment: a check that passes
		return ""
	}
	st := file.Stmts[0]
	if len(file.Stmts) > 1 || len(st.Redirs) > 0 || st.Negated || st.Background || st.Coprocess || st.Disown {
		return "more than one simple command"
	}
	switch cmd := st.Cmd.(type) {
	case *syntax.CallExpr:
		if len(cmd.Args) == 0 {
			return b.assignment(s, cmd.Assigns, false)
		}
		if len(cmd.Assigns) > 0 {
			return "a variable for one command"
		}
		return b.call(s, cmd.Args)
	case *syntax.DeclClause:
		if cmd.Variant.Value != "export" {
			return "a declaration"
		}
		return b.assignment(s, cmd.Args, true)
	default:
		return "more than one simple command"
	}
}

// assignment plans a line of assignments, unless the shell gives them another
// meaning: it forgets those of a forked line, and refuses what is read-only.
func (b *builder) assignment(s *Step, assigns []*syntax.Assign, export bool) (why string) {
	if f := b.vars["NHC_CHECK_FORKED"]; f != "" && f != "0" && b.opts.InPlace != nil && !b.opts.InPlace(s.Text) {
		return "forked, so that what it assigns is lost"
	}
	if b.typed {
		return "an earlier line has declared variables"
	}
	return b.assign(s, assigns, export)
}

func (b *builder) call(s *Step, words []*syntax.Word) (why string) {
	name := words[0].Lit()
	info, ok := checks.Lookup(name)
	switch {
	case !ok:
		if !b.funcs[name] && b.opaque.Line == 0 {
			s.Command, s.NewPath = name, b.path
		}
		return "not a check of this program"
	case b.funcs[name]:
		return "a shell function bears that name"
	case b.opaque.Line != 0:
		return fmt.Sprintf("line %d may have changed what it means", b.opaque.Line)
	case b.opts.Trace:
		return "traced by -x"
	}
	args, why := b.expand(words[1:])
	if why != "" {
		return why
	}
	c := info.New()
	err := checks.Bind(c, args)
	if b.path && err == nil && runsCommands(info, c) {
		return "an earlier line has changed PATH"
	}
	if v, ok := c.(interface{ Sets() string }); ok && err == nil && v.Sets() != "" {
		return "sets a variable of the shell"
	}
	if v, ok := c.(interface{ Runs() string }); ok && (b.funcs[v.Runs()] || b.opts.Sourced) {
		return "its command may be a function of the shell"
	}
	s.Kind, s.Name, s.Args = Native, name, args
	b.native(s, info, c, err)
	return ""
}

// shellVars are variables whose assignment changes how bash reads later lines.
var shellVars = []string{"IFS", "PATH", "BASH_ENV", "POSIXLY_CORRECT", "SHELLOPTS", "BASHOPTS", "PWD", "HOME", "CHECKS", "CNUM", "SHELL"}

func (b *builder) assign(s *Step, assigns []*syntax.Assign, export bool) (why string) {
	var sets []Var
	for _, a := range assigns {
		if a.Name == nil || a.Array != nil || a.Index != nil || a.Append || a.Naked {
			return "not a plain assignment"
		}
		if slices.Contains(shellVars, a.Name.Value) {
			return "a variable of the shell itself"
		}
		value := ""
		if a.Value != nil {
			if why := b.static(a.Value); why != "" {
				return why
			}
			v, err := expand.Literal(b.config(sets), a.Value)
			if err != nil {
				return err.Error()
			}
			value = v
		}
		sets = append(sets, Var{Name: a.Name.Value, Value: value, Export: export})
	}
	for _, v := range sets {
		b.vars[v.Name] = v.Value
		v.Export = v.Export || slices.Contains(b.exported, v.Name)
		if v.Export {
			b.exported = append(b.exported, v.Name)
		}
		b.set = append(b.set, v)
	}
	s.Kind, s.Sets = Assign, sets
	return ""
}

// expand does with words what bash would, where no shell is needed to know.
func (b *builder) expand(words []*syntax.Word) (args []string, why string) {
	for _, w := range words {
		if why := b.static(w); why != "" {
			return nil, why
		}
	}
	args, err := expand.Fields(b.config(nil), words...)
	if err != nil {
		return nil, err.Error()
	}
	return args, ""
}

// config looks variables up in what is known here; pending are assignments of
// the same line.
func (b *builder) config(pending []Var) *expand.Config {
	return &expand.Config{Env: expand.FuncEnviron(func(name string) string {
		for _, v := range slices.Backward(pending) {
			if v.Name == name {
				return v.Value
			}
		}
		return b.vars[name]
	})}
}

// static says why a word's value is not known here, "" if it is.
func (b *builder) static(w *syntax.Word) (why string) {
	syntax.Walk(w, func(n syntax.Node) bool {
		switch n := n.(type) {
		case nil, *syntax.Word, *syntax.Lit, *syntax.DblQuoted, *syntax.ArithmExp, *syntax.BinaryArithm, *syntax.ParenArithm:
		case *syntax.UnaryArithm:
			if n.Op == syntax.Inc || n.Op == syntax.Dec {
				why = "arithmetic that assigns"
			}
		case *syntax.SglQuoted:
			if n.Dollar && strings.Contains(n.Value, `\`) {
				why = `a $'...' string`
			}
		case *syntax.ParamExp:
			why = b.param(n)
		default:
			why = "an expansion that only a shell can do"
		}
		if n, ok := n.(*syntax.BinaryArithm); ok && assigns(n.Op) {
			why = "arithmetic that assigns"
		}
		if n, ok := n.(*syntax.ArithmExp); ok && (n.Bracket || b.unknown || !b.numeric(n)) {
			why = "arithmetic that only the shell can do"
		}
		return why == ""
	})
	return why
}

// numeric says whether all numbers of an arithmetic expression, those in variables
// too, are such that bash takes them for what they look like: 08 is an error to it, and
// a variable may hold another expression.
func (b *builder) numeric(n *syntax.ArithmExp) bool {
	good := true
	word := func(s string) {
		if syntax.ValidName(s) {
			s = b.vars[s]
		}
		good = good && (s == "" || numberForm().MatchString(s))
	}
	syntax.Walk(n.X, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Lit:
			word(n.Value)
		case *syntax.DblQuoted, *syntax.SglQuoted:
			good = false
		}
		return good
	})
	return good
}

// numberForm finds a number of few enough digits in bash's notations.
var numberForm = checks.Lazily(`^(0[xX][0-9a-fA-F]{1,15}|0[0-7]{0,18}|[1-9][0-9]{0,17})$`)

func assigns(op syntax.BinAritOperator) bool {
	switch op {
	case syntax.Assgn, syntax.AddAssgn, syntax.SubAssgn, syntax.MulAssgn, syntax.QuoAssgn, syntax.RemAssgn,
		syntax.AndAssgn, syntax.OrAssgn, syntax.XorAssgn, syntax.ShlAssgn, syntax.ShrAssgn:
		return true
	}
	return false
}

// ownVars are variables that bash makes up itself; only it knows their values.
var ownVars = []string{
	"RANDOM", "SRANDOM", "SECONDS", "LINENO", "PPID", "UID", "EUID", "PWD", "OLDPWD", "OSTYPE", "HOSTTYPE", "MACHTYPE",
	"FUNCNAME", "GROUPS", "DIRSTACK", "OPTIND", "OPTARG", "COLUMNS", "LINES", "SHLVL", "SHELL", "IFS", "PATH", "CHECK", "CHECKS",
	"CNUM", "FAIL_CNT", "CHECK_DIED", "REPLY",
}

func (b *builder) param(p *syntax.ParamExp) (why string) {
	name := ""
	if p.Param != nil {
		name = p.Param.Value
	}
	plain := p.Flags == nil && !p.Excl && !p.Length && !p.Width && p.Index == nil && p.Slice == nil && p.Repl == nil &&
		p.Names == 0 && p.Exp == nil && p.NestedParam == nil
	switch {
	case !plain || !syntax.ValidName(name):
		return "an expansion that only a shell can do"
	case slices.Contains(ownVars, name) || strings.HasPrefix(name, "BASH") || strings.HasPrefix(name, "EPOCH"):
		return "a variable of the shell itself"
	case b.unknown:
		return "a variable that a script or an earlier line may have set"
	}
	return ""
}

// shell plans a line for bash and notes what it may leave behind.
func (b *builder) shell(s Step, file *syntax.File, why string) {
	s.Kind, s.Lane, s.Barrier, s.Why, s.Class = ShellLine, checks.Shell, true, why, checks.ClassShell
	s.Calls = b.calls(file)
	b.add(s)
	b.pos = s.Pos
	b.set = nil // when it has run, what it has left of these is known
	if file == nil {
		return // a syntax error changes nothing
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		b.effect(n)
		return true
	})
}

// calls returns the commands that a line of bash calls by name, and that neither it nor an earlier
// line can have defined.
func (b *builder) calls(file *syntax.File) []string {
	if file == nil || b.opaque.Line != 0 {
		return nil
	}
	defined := maps.Clone(b.funcs)
	syntax.Walk(file, func(n syntax.Node) bool {
		if f, ok := n.(*syntax.FuncDecl); ok && f.Name != nil {
			defined[f.Name.Value] = true
		}
		return true
	})
	return slices.DeleteFunc(conf.CallsOf(file), func(name string) bool { return defined[name] })
}

var errDynamic = errors.New("not a literal")

// setters are builtins that set variables; changers may change anything that
// later lines rest on.
var (
	setters  = []string{"read", "mapfile", "readarray", "getopts", "unset", "let", "printf", "shift", "wait", "export", "declare", "typeset", "local", "readonly"}
	changers = []string{"eval", ".", "source", "cd", "pushd", "popd", "set", "shopt", "exec", "alias", "unalias", "enable", "builtin", "trap", "umask", "ulimit"}
)

// effect notes what a node of a shell line may leave behind.
func (b *builder) effect(n syntax.Node) {
	switch n := n.(type) {
	case *syntax.FuncDecl:
		b.unknown = true
		if n.Name != nil {
			b.funcs[n.Name.Value] = true
		} else {
			b.opaque = b.pos
		}
	case *syntax.DeclClause:
		b.unknown = true
		b.typed = b.typed || n.Variant.Value != "export"
	case *syntax.Assign, *syntax.LetClause, *syntax.ArithmCmd, *syntax.ForClause, *syntax.CoprocClause:
		b.unknown = true
		a, ok := n.(*syntax.Assign)
		switch {
		case !ok || a.Name == nil || !slices.Contains(shellVars, a.Name.Value):
		case a.Name.Value == "PATH": // decides which commands are run, and nothing else
			b.path = true
		default:
			b.opaque = b.pos
		}
	case *syntax.ParamExp:
		b.unknown = b.unknown || n.Exp != nil
	case *syntax.ArithmExp:
		b.unknown = true
	case *syntax.CallExpr:
		if len(n.Args) == 0 {
			return
		}
		name, err := commandName(n.Args)
		switch {
		case err != nil || slices.Contains(changers, name):
			b.unknown, b.opaque = true, b.pos
		case slices.Contains(setters, name) || b.funcs[name]:
			b.unknown = true
		}
	}
}

// commandName is the literal name of a command, through "command".
func commandName(words []*syntax.Word) (string, error) {
	for _, w := range words {
		name := w.Lit()
		if name == "" {
			return "", errDynamic
		}
		if name != "command" {
			return name, nil
		}
	}
	return "", nil
}
