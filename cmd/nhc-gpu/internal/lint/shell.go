package lint

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
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

func parseShell(text string) (*syntax.File, error) {
	return conf.ParseBash(text, false, syntax.KeepComments(true))
}

// effects returns what a line assigns, nil for a value that only a shell knows, and the
// functions that it defines.
func effects(tree *syntax.File) (sets map[string]*string, functions []string) {
	sets = map[string]*string{}
	syntax.Walk(tree, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.FuncDecl:
			if n.Name != nil {
				functions = append(functions, n.Name.Value)
			}
		case *syntax.Assign:
			if n.Name == nil || n.Naked {
				break
			}
			sets[n.Name.Value] = nil
			if value, ok := literal(n.Value); ok && n.Array == nil && !n.Append {
				sets[n.Name.Value] = &value
			}
		case *syntax.ForClause:
			if it, ok := n.Loop.(*syntax.WordIter); ok {
				sets[it.Name.Value] = nil
			}
		case *syntax.CallExpr:
			if len(n.Args) > 0 && slices.Contains([]string{"read", "printf", "mapfile", "readarray", "eval", ".", "source", "let"}, n.Args[0].Lit()) {
				for _, w := range n.Args[1:] {
					if syntax.ValidName(w.Lit()) {
						sets[w.Lit()] = nil
					}
				}
			}
		}
		return true
	})
	return sets, functions
}

// literal returns the value of a word without expansions.
func literal(w *syntax.Word) (string, bool) {
	if w == nil {
		return "", true
	}
	plain := true
	syntax.Walk(w, func(n syntax.Node) bool {
		switch n := n.(type) {
		case nil, *syntax.Word, *syntax.Lit, *syntax.DblQuoted:
		case *syntax.SglQuoted:
			plain = plain && !n.Dollar
		default:
			plain = false
		}
		return plain
	})
	if !plain {
		return "", false
	}
	text, err := expand.Literal(&expand.Config{}, w)
	return text, err == nil
}

// arg is a word of a command.
type arg struct {
	text  string
	at    int  // offset in the check
	known bool // its value does not depend on the node
}

// args expands the words of a command as far as the file alone has their values.
func (p *page) args(words []*syntax.Word) (args []arg) {
	for _, w := range words {
		at := int(w.Pos().Offset())
		braced := *w
		syntax.SplitBraces(&braced)
		for w, err := range expand.BracesSeq(&expand.Config{}, &braced) {
			texts, known := p.fields(w)
			if err != nil || !known {
				args = append(args, arg{"1", at, false})
				continue
			}
			for _, text := range texts {
				args = append(args, arg{text, at, true})
			}
		}
	}
	return args
}

// fields expands a word without braces; known is false if the file alone does not have its value.
func (p *page) fields(w *syntax.Word) (texts []string, known bool) {
	if text, ok := literal(w); ok {
		return []string{text}, true
	}
	known = true
	syntax.Walk(w, func(n syntax.Node) bool {
		switch n := n.(type) {
		case nil, *syntax.Word, *syntax.Lit, *syntax.DblQuoted, *syntax.SglQuoted:
		case *syntax.ParamExp:
			known = known && n.Param != nil && p.vars[n.Param.Value] != nil && !n.Length && n.Exp == nil && n.Slice == nil && n.Repl == nil && n.Index == nil
		default:
			known = false
		}
		return known
	})
	if !known {
		return nil, false
	}
	texts, err := expand.Fields(&expand.Config{Env: expand.FuncEnviron(func(name string) string {
		if v := p.vars[name]; v != nil {
			return *v
		}
		return ""
	})}, w)
	return texts, err == nil
}

// check judges the check of a line, behind ||.
func (p *page) check(target, check phrase) {
	tree, err := parseShell(check.text)
	if err != nil {
		p.garbled(check, err)
		return
	}
	if len(tree.Stmts) == 0 {
		p.say(check, 0, finding{Severity: warning, Word: "#", Text: "the check is a comment", Now: "nothing is checked", Fix: "begin the line with #"})
		return
	}
	s := &shellLine{page: p, target: target, check: check}
	if cmd, ok := tree.Stmts[0].Cmd.(*syntax.CallExpr); !ok || len(cmd.Args) > 0 {
		native := ok && len(tree.Stmts) == 1
		if native {
			_, native = checks.Lookup(cmd.Args[0].Lit())
		}
		p.repeated(target, check, native)
	}
	for _, st := range tree.Stmts {
		s.statement(st, len(tree.Stmts) == 1)
	}
}

// shellLine is the check of one line.
type shellLine struct {
	*page
	target, check phrase
}

func (s *shellLine) found(n syntax.Node, f finding) { s.say(s.check, int(n.Pos().Offset()), f) }

// garbled judges a check that is not the grammar of a shell.
func (p *page) garbled(check phrase, err error) {
	const now = unevaluated
	at, why := 0, strings.TrimPrefix(err.Error(), "1:1: ")
	if e, ok := errors.AsType[syntax.ParseError](err); ok {
		at, why = int(e.Pos.Offset()), e.Text
	} else if e, ok := errors.AsType[syntax.LangError](err); ok {
		at, why = int(e.Pos.Offset()), "it is not of bash"
	}
	word := ""
	if at < len(check.text) {
		word = strings.Fields(check.text[at:] + " x")[0]
	}
	fix, severity := "balance quotes, brackets and if ... fi; join lines with a backslash", mistake
	switch text := check.text; {
	case strings.Contains(why, "extglob"):
		fix = "quote the pattern"
		if len(p.functions) > 0 { // a script can switch it on
			severity = warning
		}
	case strings.HasPrefix(text, "|") || strings.HasPrefix(text, "&"):
		at, word, fix = 0, text[:1], strings.TrimLeft(text, "|& ")
		why = "the check begins with " + quoted(text[:1])
	case strings.HasSuffix(text, "|") || strings.HasSuffix(text, "&&"):
		at, word, fix = len(text)-1, text[len(text)-1:], "end the line in a backslash if it goes on"
		why = "the line ends in " + quoted(word)
	case strings.Contains(why, "quote `\"`") || strings.Contains(why, "quote \""):
		why, fix = `a " has no partner`, `close the quote: "`
	case strings.Contains(why, "quote"):
		why, fix = "a ' has no partner", "close the quote: '"
	case strings.Contains(why, `"fi"`) || strings.Contains(why, "`fi`"):
		fix = "end it in \"; fi\", on this line or on lines joined by a backslash"
	}
	p.say(check, at, finding{Severity: severity, Word: word, Text: "bash cannot read the line: " + strings.ReplaceAll(why, "`", `"`), Now: now, Fix: fix})
}

// statement judges a statement; alone says that it decides the line.
func (s *shellLine) statement(st *syntax.Stmt, alone bool) {
	if st.Negated {
		if name := s.anyCheck(st.Cmd); name != "" {
			s.found(st, finding{
				Severity: mistake, Word: "!", Text: "! before " + name, Now: "the line fails on every node: a check that fails ends the line, one that passes is negated",
				Fix: "use the options of the check: -! of check_file_test, a match string with !",
			})
		}
	}
	if st.Background {
		if name := s.anyCheck(st.Cmd); name != "" {
			s.say(s.check, int(st.End().Offset())-1, finding{Severity: warning, Word: "&", Text: name + " runs in the background", Now: "its result does not count", Fix: "remove the &"})
		}
	}
	for _, r := range st.Redirs {
		if r.Word == nil || r.Op != syntax.RdrOut {
			continue
		}
		if to := r.Word.Lit(); to != "" && strings.Trim(to, "0123456789%.kMGTB") == "" && s.anyCheck(st.Cmd) != "" {
			s.found(r, finding{Severity: mistake, Word: "> " + to, Text: fmt.Sprintf("> writes to a file named %s", to), Now: "the limit is not compared", Fix: "remove the >"})
			return
		}
	}
	switch cmd := st.Cmd.(type) {
	case nil: // a redirection alone
	case *syntax.CallExpr:
		s.call(cmd, alone)
	case *syntax.DeclClause:
		s.assignments(cmd.Args, alone)
		for _, a := range cmd.Args {
			if a.Name == nil && a.Value != nil && strings.HasPrefix(a.Value.Lit(), "=") {
				s.found(a, finding{Severity: mistake, Word: "=", Text: "blanks around =", Now: "the variable is not set", Fix: "NAME=VALUE, without blanks"})
			}
		}
	case *syntax.BinaryCmd:
		s.binary(cmd, alone)
	default:
		syntax.Walk(st.Cmd, func(n syntax.Node) bool {
			if inner, ok := n.(*syntax.Stmt); ok {
				s.statement(inner, false)
				return false
			}
			return true
		})
	}
}

// anyCheck returns the name of a check that a command calls.
func (s *shellLine) anyCheck(n syntax.Node) (name string) {
	if n == nil {
		return ""
	}
	syntax.Walk(n, func(n syntax.Node) bool {
		if c, ok := n.(*syntax.CallExpr); ok && len(c.Args) > 0 && name == "" {
			if _, known := checks.Lookup(c.Args[0].Lit()); known || s.functions[c.Args[0].Lit()] {
				name = c.Args[0].Lit()
			}
		}
		return name == ""
	})
	return name
}

// questions are commands whose status is an answer, and no fault of the node.
var questions = []string{"[", "test", "grep", "egrep", "fgrep", "which", "type", "command", "hash", "mcheck", "systemd-detect-virt", "lsmod", "pgrep"}

// binary judges two statements that an operator joins.
func (s *shellLine) binary(b *syntax.BinaryCmd, alone bool) {
	s.statement(b.X, false)
	s.statement(b.Y, false)
	left, right := s.anyCheck(b.X.Cmd), s.anyCheck(b.Y.Cmd)
	place := func(f finding) { s.say(s.check, int(b.OpPos.Offset()), f) }
	switch b.Op {
	case syntax.OrStmt:
		if left != "" && right != "" && !s.nonfatal(b.X) {
			place(finding{
				Severity: warning, Word: "||", Text: right + " behind " + left + " ||", Now: "it never runs: if " + left + " fails the line ends",
				Fix: "two lines if both must hold; for one of two write a function in a script of the site",
			})
		} else if call, ok := b.X.Cmd.(*syntax.CallExpr); ok && left != "" && right == "" && len(call.Args) > 0 && !s.functions[left] && call.Args[0].Lit() == left && !s.nonfatal(b.X) {
			place(finding{
				Severity: warning, Word: "||", Text: "|| " + s.source(b.Y) + " behind " + left, Now: "it never runs: if " + left + " fails the line ends",
				Fix: s.source(b.X) + "; to make failures warnings: action = \"warn\" in [policy." + left + "] of nhc.toml",
			})
		}
	case syntax.AndStmt:
		switch {
		case left != "" && right != "":
			place(finding{Severity: remark, Word: "&&", Text: "two checks in one line", Now: "bash runs them", Fix: "write two lines"})
		case alone && s.asks(b.X) && (right != "" || s.dies(b.Y)):
			place(finding{
				Severity: warning, Word: "&&", Text: "a condition before &&", Now: "the check fails on every node where the condition is false",
				Fix: "if " + s.source(b.X) + "; then " + s.source(b.Y) + "; fi",
			})
		}
	case syntax.Pipe, syntax.PipeAll:
		if left != "" || right != "" {
			place(finding{Severity: remark, Word: "|", Text: left + right + " runs in a pipe", Now: "a failure marks the node, but the line and the run go on", Fix: "remove the pipe: checks print nothing"})
		}
	}
}

// source is the text of a statement.
func (s *shellLine) source(st *syntax.Stmt) string {
	return strings.TrimSpace(s.check.text[st.Pos().Offset():st.End().Offset()])
}

// nonfatal reports whether the last check of a statement only reports (-0).
func (s *shellLine) nonfatal(st *syntax.Stmt) bool {
	return strings.Contains(" "+s.source(st)+" ", " -0 ")
}

// asks reports whether a statement is a condition.
func (s *shellLine) asks(st *syntax.Stmt) bool {
	switch cmd := st.Cmd.(type) {
	case *syntax.TestClause:
		return true
	case *syntax.CallExpr:
		return len(cmd.Args) > 0 && slices.Contains(questions, cmd.Args[0].Lit())
	case *syntax.BinaryCmd:
		return s.asks(cmd.Y)
	}
	return false
}

func (s *shellLine) dies(st *syntax.Stmt) bool {
	cmd, ok := st.Cmd.(*syntax.CallExpr)
	return ok && len(cmd.Args) > 0 && cmd.Args[0].Lit() == "die"
}

// starters are programs that start another one: a check is a function of bash, or no
// process at all.
var starters = []string{"sudo", "timeout", "nohup", "env", "nice", "ionice", "setsid", "xargs", "time", "exec", "stdbuf", "chrt", "taskset", "numactl", "srun", "su", "runuser", "flock", "watch", "bash", "sh"}

// call judges a simple command.
func (s *shellLine) call(cmd *syntax.CallExpr, alone bool) {
	s.assignments(cmd.Assigns, alone && len(cmd.Args) == 0)
	if len(cmd.Args) == 0 {
		return
	}
	args := s.args(cmd.Args)
	if len(args) == 0 || !args[0].known {
		return
	}
	name := args[0].text
	if info, ok := checks.Lookup(name); ok && !s.functions[name] && !s.defined[name] {
		s.native(info, args[0], args[1:], alone)
		return
	}
	if s.functions[name] || s.defined[name] {
		return
	}
	at := func(i int, f finding) {
		f.Word = args[i].text
		s.say(s.check, args[i].at, f)
	}
	switch {
	case len(args) > 1 && args[1].text == "=" && syntax.ValidName(name):
		at(1, finding{Severity: mistake, Text: "blanks around =", Now: "bash runs a command named " + name, Fix: strings.ReplaceAll(s.check.text, " = ", "=")})
	case name == "set" && len(args) > 1 && strings.Contains(args[1].text, "=") && syntax.ValidName(strings.SplitN(args[1].text, "=", 2)[0]):
		at(0, finding{Severity: mistake, Text: "set does not assign variables", Now: "the setting is not changed", Fix: args[1].text})
	case name == "[" && args[len(args)-1].text != "]":
		last := len(args) - 1
		test := s.check.text[cmd.Pos().Offset():cmd.End().Offset()]
		fix := strings.TrimSuffix(test, "]") + " ]"
		at(last, finding{Severity: mistake, Text: "] must be a word of its own", Now: "the line fails on every node", Fix: fix})
	case strings.HasPrefix(name, "[") && name != "[" && name != "[[":
		at(0, finding{Severity: mistake, Text: "no blank behind [", Now: "bash runs a command named " + name, Fix: strings.Replace(s.check.text, "[", "[ ", 1)})
	case slices.Contains(starters, name):
		for i := range args[1:] {
			word := strings.TrimLeft(args[i+1].text, " ")
			if _, known := checks.Lookup(strings.SplitN(word, " ", 2)[0]); known && args[i+1].known {
				at(i+1, finding{Severity: mistake, Text: name + " starts programs; a check is a function", Now: "the line fails on every node", Fix: "write the check without " + name})
				return
			}
		}
	case name == "exit" && alone:
		at(0, finding{Severity: warning, Text: "exit ends the whole run", Now: "no later line runs", Fix: "remove the line; to skip checks on some hosts, change the targets of their lines"})
	case strings.HasPrefix(name, "-") && alone:
		at(0, finding{Severity: mistake, Text: "the name of the check is missing before " + quoted(name), Now: "the line fails on every node", Fix: "write the name of the check before its options"})
	default:
		s.unknown(name, args[0])
	}
}

// unknown judges a command that is neither a check nor a function.
func (s *shellLine) unknown(name string, a arg) {
	known := append(checks.Names(), slices.Sorted(maps.Keys(s.functions))...)
	dashed := strings.ReplaceAll(name, "-", "_")
	f := finding{Word: name, Now: unevaluated, Severity: mistake}
	bare := strings.TrimRight(dashed, ",;:.()")
	near := spell.Nearest(bare, known)
	switch {
	case strings.HasPrefix(strings.ToLower(dashed), "check_"):
		f.Text = "there is no check " + name
		if near != "" {
			f.Fix = near
			break
		}
		f.Text += " and no such function in a script"
		f.Fix = "the name of a check (nhc-gpu checks lists them), or of a function of a script"
		if !s.scripts {
			f.Severity, f.Text = remark, name+" is not a check of nhc-gpu"
			f.Now, f.Fix = "a script of the site must define it", "define "+name+" in /etc/nhc/scripts/NAME.nhc"
		}
	case near != "" && (near == "check_"+strings.ToLower(bare) || len(name) > 8 && strings.Contains(name, "_")):
		f.Text, f.Fix = "there is no command "+name, near
	default:
		return
	}
	s.say(s.check, a.at, f)
}

// assignments judges variables that a line sets; alone says that it does nothing else.
func (s *shellLine) assignments(list []*syntax.Assign, alone bool) {
	for _, a := range list {
		if a.Name == nil || a.Naked {
			continue
		}
		name := a.Name.Value
		value, ok := literal(a.Value)
		if _, isCheck := checks.Lookup(name); isCheck {
			s.found(a, finding{
				Severity: mistake, Word: name + "=", Text: name + "=" + value + " sets a variable of that name", Now: "nothing is checked",
				Fix: name + " " + value,
			})
			continue
		}
		if !alone {
			continue
		}
		where := settingPlace{late: true, reads: func(name string) bool {
			return slices.ContainsFunc(s.sources, func(l conf.Source) bool {
				return strings.Contains(l.Text, "$"+name) || strings.Contains(l.Text, "${"+name)
			})
		}}
		if t := settingTrap(name, value, ok && a.Array == nil, where); t != nil {
			s.found(a, finding{Severity: t.grade, Word: t.word, Text: t.text, Now: t.now, Fix: t.fix})
		}
	}
}
