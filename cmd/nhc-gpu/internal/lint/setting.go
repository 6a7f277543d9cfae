package lint

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"mvdan.cc/sh/v3/syntax"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// Settings without effect in a line of nhc.conf: the run reads tooLate before its first line, and
// unused are for commands that only LBNL NHC runs.
var (
	tooLate = []string{"CONFDIR", "CONFFILE", "DETACHED_MODE", "INCDIR", "LOGFILE", "RESULTFILE", "TIMEOUT"}
	unused  = []string{"DF_CMD", "DF_FLAGS", "DFI_CMD", "DFI_FLAGS", "NETSTAT_ARGS", "NETSTAT_CMD", "SS_ARGS", "SS_CMD", "STAT_CMD", "STAT_FMT_ARGS"}
)

// excludingFlags finds the flags of df that omit file systems.
var excludingFlags = checks.Lazily(`(^|[\s"'])(-[A-Za-z]*[ltx]|--local|--type|--exclude-type)`)

// otherSettings are known, and take any value.
var otherSettings = []string{
	"PASSWD_DATA_SRC", "NHC_MCHECK_DELIM", "NHC_MCHECK_COMMAND", "IGNORE_EMPTY_NOTE", "SLURM_SCONTROL", "SLURM_SC_OFFLINE_ARGS", "SLURM_SC_ONLINE_ARGS",
	"SLURM_SINFO", "SLURM_SINFO_ARGS", "SLURMD_NODENAME", "NAME", "HOSTNAME", "SHELL", "PATH",
}

// settingForm is what a setting may be.
type settingForm struct {
	form      func() *regexp.Regexp
	want, now string
}

func words(list string) func() *regexp.Regexp { return checks.Lazily(`^(` + list + `)$`) }

// settingForms returns the values that settings take.
var settingForms = sync.OnceValue(func() map[string]settingForm {
	onOff := settingForm{words("[01]?"), "0 or 1", "it counts as 0"}
	absolute := settingForm{words("(/.*)?"), anAbsolutePath, "it depends on slurmd's working directory"}
	library := settingForm{absolute.form, anAbsolutePath, "the library is not used"}
	return map[string]settingForm{
		"MARK_OFFLINE": {words(" *[01] *"), "0 or 1", "only 1 marks: no node is ever drained or resumed"},
		"SILENT":       onOff, "VERBOSE": onOff, "NHC_CHECK_ALL": onOff, "NHC_CHECK_FORKED": onOff, "DETACHED_MODE": onOff, "DETACHED_MODE_FAIL_NODATA": onOff, "DEBUG": onOff,
		"TS":            {words("[0-9]*"), "0 or 1", "it counts as 0"},
		"SLURM_RECHECK": {words("[0-9]*"), "whole seconds, without a unit", "the program takes its own default"},
		"LIBRARY_DIRS":  {words("(/[^:]*(:/[^:]*)*)?"), "absolute paths, separated by colons", "a relative path is not searched"},
		"TIMEOUT":       {words("[0-9]+"), "whole seconds, without a unit", "it counts as no time limit"},
		"MAX_SYS_UID":   {words("[0-9]*"), "a number", "checks of users cannot be evaluated"},
		"NHC_RM":        {words("slurm|pbs|torque|sge|"), "slurm, pbs, torque or sge, in lower case", "no node is ever drained or resumed"},
		"MODE":          {words("observe|enforce|"), "observe or enforce", nothingRuns},
		"CONFIG_ERRORS": {words("drain|unknown|"), "drain or unknown", nothingRuns},
		"CONFDIR":       absolute, "CONFFILE": absolute, "INCDIR": absolute, "HELPERDIR": absolute, "RESULTFILE": absolute, "TOMLFILE": absolute, "PLATFORM_PROFILES": absolute,
		"NVML_LIBRARY": library, "CUDA_LIBRARY": library, "NCCL_LIBRARY": library, "CUBLASLT_LIBRARY": library, "DCGM_LIBRARY": library,
	}
})

const (
	anAbsolutePath = "an absolute path"
	nothingRuns    = `every run ends with "unknown" and checks nothing`
)

// settingPlace is where a setting stands.
type settingPlace struct {
	late  bool                   // in nhc.conf
	reads func(name string) bool // the file has $NAME; nil: there is no file
}

// settingTrap judges one setting; known says that the value is.
func settingTrap(name, value string, known bool, where settingPlace) *trap {
	word := name + "=" + value
	form, isForm := settingForms()[name]
	switch {
	case known && setting.Glued(name, value) != "":
		second := setting.Glued(name, value)
		return &trap{grade: mistake, word: word, text: word + ": two settings in one word", now: nothingRuns, fix: strings.TrimSuffix(word, second) + ", and " + second + " on a line of its own"}
	case where.late && slices.Contains(tooLate, name):
		if known && isForm && !form.form().MatchString(value) {
			word = name + "=" + settingFix(name, value)
		}
		return &trap{grade: warning, word: name, text: name + " is set too late here", now: "the run has used it already", fix: "write " + word + " in /etc/sysconfig/nhc (Debian: /etc/default/nhc)"}
	case known && (name == "DF_FLAGS" || name == "DFI_FLAGS") && excludingFlags().MatchString(value):
		return &trap{grade: warning, word: name, text: name + " excludes file systems: with LBNL NHC lines about their space or inodes passed", now: "built-in checks judge them", fix: "remove it, and the lines for such file systems if they must not be judged"}
	case slices.Contains(unused, name):
		return &trap{grade: warning, word: name, text: name + " is a setting of LBNL NHC alone", now: "built-in checks run no such command", fix: "remove it"}
	case known && isForm && !form.form().MatchString(value):
		return &trap{grade: mistake, word: word, text: fmt.Sprintf("%s: want %s", word, form.want), now: form.now, fix: name + "=" + settingFix(name, value)}
	case name == "TIMEOUT" && known:
		if n, _ := strconv.Atoi(value); n == 0 || time.Duration(n)*time.Second > session.SlurmdLimit {
			return &trap{grade: remark, word: word, text: word + " is more than slurmd gives a health check", now: fmt.Sprintf("started by slurmd a run has %s", session.SlurmdLimit), fix: fmt.Sprintf("TIMEOUT=%.0f or less", session.SlurmdLimit.Seconds())}
		}
	case name == "RESULTFILE" && (strings.HasPrefix(value, "/tmp/") || strings.HasPrefix(value, "/var/tmp/") || strings.HasPrefix(value, "/dev/shm/")):
		return &trap{grade: warning, word: value, text: "RESULTFILE lies in a directory that every user can write to", now: "a user can prevent each run from writing it", fix: "RESULTFILE=/var/run/nhc/nhc.status"}
	case name == "LOGFILE" && strings.HasSuffix(value, "/"):
		return &trap{grade: mistake, word: value, text: "LOGFILE is a directory", now: "the log cannot be opened, and each run ends with status 1", fix: "LOGFILE=" + value + "nhc.log"}
	case name == "CONFFILE" && strings.HasSuffix(value, ".toml"):
		return &trap{grade: mistake, word: value, text: "CONFFILE is the file of lines, TOML is TOMLFILE", now: "nothing is checked", fix: "TOMLFILE=" + value}
	case name == "MODE" && value == "observe":
		return &trap{grade: remark, word: word, text: word, now: "no node is drained or resumed: the log has each decision", fix: "remove it when the decisions are right"}
	case name == "SHELL" && value == ":":
		return &trap{grade: remark, word: word, text: word, now: "no check carries out an action: it only logs them", fix: "remove it when the trial is over"}
	case name == "HOSTROOT" && value != "":
		return &trap{grade: warning, word: word, text: word, now: "checks read a recorded node, not this one", fix: "remove it from the settings of a node"}
	}
	if like := likeSetting(name, value); like != "" && (where.reads == nil || !where.reads(name)) {
		if form, ok := settingForms()[like]; ok && known && !form.form().MatchString(value) {
			value = settingFix(like, value)
		}
		return &trap{grade: warning, word: name, text: name + " is not a setting of nhc-gpu", now: "it sets a variable that nothing reads", fix: like + "=" + value}
	}
	return nil
}

// SettingWarning returns the mistake in a setting of the command line, "" for none.
func SettingWarning(name, value string) string {
	form, isForm := settingForms()[name]
	if isForm && (form.form().MatchString(value) || form.want == anAbsolutePath) && setting.Glued(name, value) == "" || !isForm && likeSetting(name, value) == "" {
		return "" // a person may name files and directories as he likes
	}
	t := settingTrap(name, value, true, settingPlace{})
	if t == nil || t.grade == remark {
		return ""
	}
	f := finding{Text: t.text, Now: t.now}
	return f.message() + "; want " + t.fix
}

// settingFix is the value that was probably meant.
func settingFix(name, value string) string {
	switch lower := strings.ToLower(strings.TrimSpace(value)); {
	case name == "TIMEOUT" || name == "SLURM_RECHECK":
		if n, err := time.ParseDuration(lower); err == nil {
			return fmt.Sprintf("%.0f", n.Seconds())
		}
		if digits := strings.TrimRight(lower, "abcdefghijklmnopqrstuvwxyz "); digits != "" && strings.Trim(digits, "0123456789") == "" {
			return digits
		}
		return map[string]string{"TIMEOUT": "30", "SLURM_RECHECK": "1800"}[name]
	case settingForms()[name].form().MatchString(lower):
		return lower
	case settingForms()[name].form().MatchString("1") && slices.Contains([]string{"yes", "true", "on", "y", "enabled"}, lower):
		return "1"
	case settingForms()[name].form().MatchString("1") && slices.Contains([]string{"no", "false", "off", "n", "disabled"}, lower):
		return "0"
	case settingForms()[name].now == "the library is not used":
		return "/usr/lib64/" + value
	case name == "LIBRARY_DIRS":
		return "/" + value
	case settingForms()[name].want == anAbsolutePath:
		return "/etc/nhc/" + value
	}
	want, _, _ := strings.Cut(settingForms()[name].want, ",")
	return want
}

// likeSetting returns the setting that a name nearly is.
func likeSetting(name, value string) string {
	const least = 5 // letters: shorter names are all alike
	if name != conf.SettingMode && spell.Typos(name, conf.SettingMode) < 2 && slices.Contains(conf.Choices(conf.SettingMode), strings.ToLower(value)) {
		return conf.SettingMode
	}
	known := settingNames()
	for variable := range checks.Variables() {
		known = append(known, variable)
	}
	slices.Sort(known)
	if slices.Contains(known, name) || len(name) < least {
		return ""
	}
	for _, k := range known {
		if len(k) >= least && spell.Typos(strings.ReplaceAll(name, "-", "_"), k) < 2 {
			return k
		}
	}
	return ""
}

// settingsPage is a sysconfig file, read by its text alone.
type settingsPage struct {
	*findings
	file, text string
	first      map[string]seenLine // by name: the value that the file sets, whatever the node is
}

func (p *settingsPage) say(line, column int, f finding) {
	f.File, f.Line, f.Column = p.file, line, column
	p.add(f)
}

// reads reports whether the file expands a variable.
func (p *settingsPage) reads(name string) bool {
	return strings.Contains(p.text, "$"+name) || strings.Contains(p.text, "${"+name)
}

// lintSettings reads the text of /etc/sysconfig/nhc. If bash cannot read it, each line is judged by
// itself, and the error of the grammar is returned.
func lintSettings(l *findings, file string, data []byte) error {
	p := &settingsPage{l, file, string(data), map[string]seenLine{}}
	tree, err := parseShell(p.text)
	odd := map[int]bool{}
	for i, line := range strings.Split(p.text, "\n") {
		n, text := i+1, strings.Trim(line, " \t\r")
		if i == 0 && strings.HasSuffix(line, "\r") {
			p.say(n, 0, finding{Severity: mistake, Text: "the lines end in CR LF", Now: "the CR is part of every value", Fix: "dos2unix " + file})
		}
		if text == "" || text[0] == '#' {
			continue
		}
		q := &page{findings: l, file: file}
		src := conf.Sources(file, []byte(strings.ReplaceAll(line, `\`, `\\`)))
		if len(src) == 1 {
			before := len(l.list)
			if odd[n] = q.strange(part(&src[0], 0, len(src[0].Text)), false); odd[n] {
				for j := range l.list[before:] {
					l.list[before+j].Line = n
				}
			}
		}
		if err != nil && !odd[n] {
			p.line(n, 1+len(line)-len(strings.TrimLeft(line, " \t")), text)
		}
	}
	if err != nil {
		return err
	}
	for _, st := range tree.Stmts {
		if n, _ := place(p.text, st.Pos()); !odd[n] {
			p.statement(st, true)
		}
	}
	return nil
}

// line judges a line of a file that bash cannot read.
func (p *settingsPage) line(n, column int, text string) {
	if p.command(n, column, text) {
		return
	}
	assign, _ := strings.CutPrefix(text, "export ")
	if name, value, ok := strings.Cut(strings.TrimLeft(assign, " "), "="); ok && syntax.ValidName(name) {
		value, known := plainValue(value)
		p.setting(n, column+strings.Index(text, name), name, value, known, true)
	}
}

// source returns the text of a part of the file.
func (p *settingsPage) source(n syntax.Node) string { return p.text[n.Pos().Offset():n.End().Offset()] }

// place returns the line and the column of a position, in characters. The position itself has no line
// and no column far behind in a file or a line.
func place(text string, at syntax.Pos) (line, column int) {
	before := text[:at.Offset()]
	return 1 + strings.Count(before, "\n"), 1 + utf8.RuneCountInString(before[strings.LastIndex(before, "\n")+1:])
}

// statement judges a statement; always says that no condition precedes it.
func (p *settingsPage) statement(st *syntax.Stmt, always bool) {
	n, column := place(p.text, st.Pos())
	switch cmd := st.Cmd.(type) {
	case nil: // a redirection alone
	case *syntax.CallExpr:
		if len(cmd.Args) > 0 {
			p.command(n, column, p.source(st))
			return
		}
		p.assignments(st, cmd.Assigns, always)
	case *syntax.DeclClause:
		p.assignments(st, cmd.Args, always)
		if slices.ContainsFunc(cmd.Args, func(a *syntax.Assign) bool { return a.Name == nil }) {
			p.command(n, column, p.source(st))
		}
	default:
		if b, ok := cmd.(*syntax.BinaryCmd); ok && b.Op == syntax.OrStmt && p.command(n, column, p.source(st)) {
			return
		}
		syntax.Walk(cmd, func(n syntax.Node) bool {
			switch n := n.(type) {
			case *syntax.Stmt:
				p.statement(n, false)
				return false
			case *syntax.CmdSubst, *syntax.ProcSubst:
				return false
			}
			return true
		})
	}
}

// assignments judges the assignments of a statement.
func (p *settingsPage) assignments(st *syntax.Stmt, list []*syntax.Assign, always bool) {
	for _, a := range list {
		if a.Name == nil || a.Naked {
			continue
		}
		name := a.Name.Value
		line, column := place(p.text, a.Pos())
		last := a == list[len(list)-1] && a.Array == nil
		if len(st.Redirs) > 0 && last && (a.Value == nil && slices.Contains(settingNames(), name) || name == "LOGFILE") {
			text := p.text[a.Pos().Offset():st.End().Offset()]
			p.say(line, column, finding{
				Severity: mistake, Word: text, Text: text + ": bash takes > for a redirection", Now: name + " is set to " + quoted(strings.TrimPrefix(p.source(a), name+"=")),
				Fix: name + `="` + strings.TrimPrefix(text, name+"=") + `"`,
			})
			continue
		}
		value, known := literal(a.Value)
		known = known && a.Array == nil && a.Index == nil && !a.Append
		if !known {
			value, _ = plainValue(strings.TrimPrefix(p.source(a), name+"="))
		}
		p.setting(line, column, name, value, known, always)
	}
}

// setting judges one assignment.
func (p *settingsPage) setting(line, column int, name, value string, known, always bool) {
	if t := settingTrap(name, value, known, settingPlace{reads: p.reads}); t != nil {
		p.say(line, column, finding{Severity: t.grade, Word: t.word, Text: t.text, Now: t.now, Fix: t.fix})
	}
	if !known || !always {
		delete(p.first, name)
		return
	}
	if old, twice := p.first[name]; twice && old.text != value && slices.Contains(settingNames(), name) {
		p.say(line, column, finding{
			Severity: warning, Word: name, Text: fmt.Sprintf("line %d sets %s to %s", old.line, name, quoted(old.text)), Now: "this line counts", Fix: "remove one of the two",
		})
	}
	p.first[name] = seenLine{line, value}
}

// command reports whether the text of a command was meant as a setting, or as a line of nhc.conf.
func (p *settingsPage) command(n, column int, text string) (bad bool) {
	say := func(offset int, word, mistaken, now, fix string) bool {
		p.say(n, column+offset, finding{Severity: mistake, Word: word, Text: mistaken, Now: now, Fix: fix})
		return true
	}
	assign, _ := strings.CutPrefix(text, "export ")
	name, value, ok := strings.Cut(strings.TrimLeft(assign, " "), "=")
	trimmed := strings.TrimSpace(name)
	switch {
	case strings.HasPrefix(text, "["):
		if strings.HasSuffix(text, "]") && !strings.Contains(text, " ") {
			return say(0, text, "a section", "bash runs a command of that name", "# "+text)
		}
	case !ok && strings.Contains(text, "||") && strings.Contains(text, "check_"):
		return say(0, "||", "a check line in the settings", "bash runs it as a command", "move it to /etc/nhc/nhc.conf")
	case !ok:
		if key, value, isYAML := strings.Cut(text, ":"); isYAML && slices.Contains(settingNames(), key) {
			return say(len(key), ":", key+": is not an assignment", "bash runs a command named "+key+":", key+"="+strings.TrimSpace(value))
		}
	case trimmed != name || strings.HasPrefix(value, " ") && strings.TrimSpace(value) != "" && !strings.HasPrefix(strings.TrimSpace(value), "#"):
		if slices.Contains(settingNames(), strings.TrimPrefix(trimmed, "$")) {
			return say(strings.Index(text, "="), "=", "blanks around =", "the setting is not changed", trimmed+"="+strings.TrimSpace(value))
		}
	case strings.HasPrefix(name, "$"):
		return say(0, name, "$ before the name of a setting", "bash runs a command", name[1:]+"="+value)
	}
	return false
}

// plainValue removes the quotes of a value; known is false if a shell has to expand it.
func plainValue(value string) (text string, known bool) {
	value = strings.TrimRight(value, " \t\r")
	if q := value; len(q) > 1 && (q[0] == '"' || q[0] == '\'') && q[len(q)-1] == q[0] {
		value = q[1 : len(q)-1]
	} else if before, _, comment := strings.Cut(value, " #"); comment {
		value = strings.TrimRight(before, " \t")
	}
	return value, !strings.ContainsAny(value, "$`()\"'")
}
