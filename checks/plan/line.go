package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// planLine plans one check line.
func (b *builder) planLine(l conf.Line) {
	s := Step{Pos: l.Pos, Text: l.Check}
	// bash evaluates $CHECK unquoted: each run of blanks becomes one blank, also in quotes.
	text := strings.Join(strings.FieldsFunc(l.Check, isBlank), " ")
	file, err := conf.ParseBash(text, b.opts.Sourced || b.opaque.Line != 0)
	if err != nil {
		s.Garbled = true
		b.planShell(s, nil, "shell syntax error: "+err.Error())
		return
	}
	why := b.planSimple(&s, file)
	if why == "" {
		b.add(s)
		return
	}
	b.planShell(s, file, why)
}

func isBlank(r rune) bool { return r == ' ' || r == '\t' || r == '\n' }

// planSimple plans a line that is one simple command and needs no shell. Otherwise it returns
// the reason why the line needs a shell.
func (b *builder) planSimple(s *Step, file *syntax.File) (why string) {
	if len(file.Stmts) == 0 {
		s.Kind = Assign // a comment counts as a check that passes
		return ""
	}
	st := file.Stmts[0]
	if len(file.Stmts) > 1 || len(st.Redirs) > 0 || st.Negated || st.Background || st.Coprocess || st.Disown {
		return "more than one simple command"
	}
	switch cmd := st.Cmd.(type) {
	case *syntax.CallExpr:
		if len(cmd.Args) == 0 {
			return b.planAssignment(s, cmd.Assigns, false)
		}
		if len(cmd.Assigns) > 0 {
			return "a variable for one command"
		}
		return b.planCall(s, cmd.Args)
	case *syntax.DeclClause:
		if cmd.Variant.Value != "export" {
			return "a declaration"
		}
		return b.planAssignment(s, cmd.Args, true)
	default:
		return "more than one simple command"
	}
}

// planAssignment plans a line of assignments, unless it has another effect in the shell: a
// forked line loses them, and a read-only variable rejects them.
func (b *builder) planAssignment(s *Step, assigns []*syntax.Assign, export bool) (why string) {
	if f := b.vars["NHC_CHECK_FORKED"]; f != "" && f != "0" && b.opts.InPlace != nil && !b.opts.InPlace(s.Text) {
		return "runs in a forked process, so its assignments are lost"
	}
	if b.typed {
		return "an earlier line declares variables"
	}
	return b.addAssignments(s, assigns, export)
}

func (b *builder) planCall(s *Step, words []*syntax.Word) (why string) {
	name := words[0].Lit()
	info, ok := checks.Lookup(name)
	switch {
	case !ok:
		if !b.funcs[name] && b.opaque.Line == 0 {
			s.Command, s.NewPath = name, b.path
		}
		return "not a check of this program"
	case b.funcs[name]:
		return "a shell function has that name"
	case b.opaque.Line != 0:
		return fmt.Sprintf("line %d may have changed its meaning", b.opaque.Line)
	case b.opts.Trace:
		return "traced by -x"
	}
	args, why := b.expandWords(words[1:])
	if why != "" {
		return why
	}
	c := info.New()
	err := checks.Bind(c, args)
	if b.path && err == nil && runsCommands(info, c) {
		return "an earlier line changes PATH"
	}
	if v, ok := c.(interface{ Sets() string }); ok && err == nil && v.Sets() != "" {
		return "sets a shell variable"
	}
	if v, ok := c.(interface{ Runs() string }); ok && (b.funcs[v.Runs()] || b.opts.Sourced) {
		return "its command may be a shell function"
	}
	s.Kind, s.Name, s.Args = Native, name, args
	b.planNative(s, info, c, err)
	return ""
}

// shellVars are the variables that change how bash reads later lines.
var shellVars = []string{"IFS", "PATH", "BASH_ENV", "POSIXLY_CORRECT", "SHELLOPTS", "BASHOPTS", "PWD", "HOME", "CHECKS", "CNUM", "SHELL"}

func (b *builder) addAssignments(s *Step, assigns []*syntax.Assign, export bool) (why string) {
	var sets []Var
	for _, a := range assigns {
		if a.Name == nil || a.Array != nil || a.Index != nil || a.Append || a.Naked {
			return "not a plain assignment"
		}
		if slices.Contains(shellVars, a.Name.Value) {
			return "a variable that the shell sets"
		}
		value := ""
		if a.Value != nil {
			if why := b.explainDynamic(a.Value); why != "" {
				return why
			}
			if conf.NeedsShell(a.Value, export) {
				return "an expansion that needs a shell"
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

// expandWords expands words as bash would, if that needs no shell.
func (b *builder) expandWords(words []*syntax.Word) (args []string, why string) {
	for _, w := range words {
		if why := b.explainDynamic(w); why != "" {
			return nil, why
		}
	}
	args, err := expand.Fields(b.config(nil), words...)
	if err != nil {
		return nil, err.Error()
	}
	return args, ""
}

// config returns the lookup of variables that are known here; pending are assignments of the
// same line.
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

// explainDynamic returns why the value of a word is not known here, "" if it is.
func (b *builder) explainDynamic(w *syntax.Word) (why string) {
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
			why = b.explainParam(n)
		default:
			why = "an expansion that needs a shell"
		}
		if n, ok := n.(*syntax.BinaryArithm); ok && isAssigning(n.Op) {
			why = "arithmetic that assigns"
		}
		if n, ok := n.(*syntax.ArithmExp); ok && (n.Bracket || b.unknown || !b.isPlainNumeric(n)) {
			why = "arithmetic that needs a shell"
		}
		return why == ""
	})
	return why
}

// isPlainNumeric reports whether all numbers of an arithmetic expression, including those in
// variables, mean the same in bash: 08 is an error there, and a variable can contain another
// expression.
func (b *builder) isPlainNumeric(n *syntax.ArithmExp) bool {
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

// numberForm matches a number in bash's notations that fits in 64 bits.
var numberForm = checks.Lazily(`^(0[xX][0-9a-fA-F]{1,15}|0[0-7]{0,18}|[1-9][0-9]{0,17})$`)

func isAssigning(op syntax.BinAritOperator) bool {
	switch op {
	case syntax.Assgn, syntax.AddAssgn, syntax.SubAssgn, syntax.MulAssgn, syntax.QuoAssgn, syntax.RemAssgn,
		syntax.AndAssgn, syntax.OrAssgn, syntax.XorAssgn, syntax.ShlAssgn, syntax.ShrAssgn:
		return true
	}
	return false
}

// ownVars are variables that bash sets itself; only bash knows their values.
var ownVars = []string{
	"RANDOM", "SRANDOM", "SECONDS", "LINENO", "PPID", "UID", "EUID", "PWD", "OLDPWD", "OSTYPE", "HOSTTYPE", "MACHTYPE",
	"FUNCNAME", "GROUPS", "DIRSTACK", "OPTIND", "OPTARG", "COLUMNS", "LINES", "SHLVL", "SHELL", "IFS", "PATH", "CHECK", "CHECKS",
	"CNUM", "FAIL_CNT", "CHECK_DIED", "REPLY",
}

func (b *builder) explainParam(p *syntax.ParamExp) (why string) {
	name := ""
	if p.Param != nil {
		name = p.Param.Value
	}
	plain := p.Flags == nil && !p.Excl && !p.Length && !p.Width && p.Index == nil && p.Slice == nil && p.Repl == nil &&
		p.Names == 0 && p.Exp == nil && p.NestedParam == nil
	switch {
	case !plain || !syntax.ValidName(name):
		return "an expansion that needs a shell"
	case slices.Contains(ownVars, name) || strings.HasPrefix(name, "BASH") || strings.HasPrefix(name, "EPOCH"):
		return "a variable that the shell sets"
	case len(b.opts.Arrays[name]) > 0:
		return "an array"
	case b.unknown:
		return "a variable that a script or an earlier line may have set"
	}
	return ""
}

// planShell plans a line for bash and records its possible effects on later lines.
func (b *builder) planShell(s Step, file *syntax.File, why string) {
	s.Kind, s.Lane, s.Barrier, s.Why, s.Class = ShellLine, checks.Shell, true, why, checks.ClassShell
	s.Calls = b.calls(file)
	b.add(s)
	b.pos = s.Pos
	b.set = nil // bash reports the values of these after the line
	if file == nil {
		return // a syntax error changes nothing
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		b.noteEffects(n)
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

// setters are builtins that set variables; changers are builtins that can change anything that
// later lines depend on.
var (
	setters  = []string{"read", "mapfile", "readarray", "getopts", "unset", "let", "printf", "shift", "wait", "export", "declare", "typeset", "local", "readonly"}
	changers = []string{"eval", ".", "source", "cd", "pushd", "popd", "set", "shopt", "exec", "alias", "unalias", "enable", "builtin", "trap", "umask", "ulimit"}
)

// noteEffects records the possible effects of one node of a shell line on later lines.
func (b *builder) noteEffects(n syntax.Node) {
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
		case a.Name.Value == "PATH": // only selects the commands that run
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
		name, known := commandName(n.Args)
		switch {
		case !known || slices.Contains(changers, name):
			b.unknown, b.opaque = true, b.pos
		case slices.Contains(setters, name) || b.funcs[name]:
			b.unknown = true
		}
	}
}

// commandName returns the literal name of a command, also behind "command". It is not known if it is not a
// literal.
func commandName(words []*syntax.Word) (name string, known bool) {
	for _, w := range words {
		name := w.Lit()
		if name == "" {
			return "", false
		}
		if name != "command" {
			return name, true
		}
	}
	return "", true
}
