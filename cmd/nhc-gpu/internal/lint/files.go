package lint

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/xid"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// fileKind is what a file is for.
type fileKind int

const (
	noKind fileKind = iota
	linesKind
	tablesKind
	profilesKind
	xidKind
	countersKind
	settingsKind
	scriptKind
)

// kindOf judges a file by its name, and a TOML file by its tables.
func kindOf(path string, data []byte) fileKind {
	base, dir := filepath.Base(path), filepath.Base(filepath.Dir(path))
	has := func(header string) bool {
		return bytes.HasPrefix(data, []byte(header)) || bytes.Contains(data, []byte("\n"+header))
	}
	switch filepath.Ext(base) {
	case ".conf":
		return linesKind
	case ".nhc":
		return scriptKind
	case ".sysconfig", ".default":
		return settingsKind
	case ".toml":
		switch {
		case has("[[platform]]"):
			return profilesKind
		case has("[[xid]]") || has("[[sxid]]") || has("[class."):
			return xidKind
		case has("[[counter]]"):
			return countersKind
		}
		return tablesKind
	case "":
		if dir == "sysconfig" || dir == "default" || strings.HasPrefix(base, "nhc") || base == "sysconfig" {
			return settingsKind
		}
	}
	return noKind
}

// files judges the files that were named, by their text alone.
func (l *linter) files() {
	s := &site{functions: map[string]bool{}}
	var paths []string
	for _, path := range l.o.Files {
		file, err := l.call(wire.OpRead, path).File("read " + path)
		switch {
		case err != nil:
			l.errors(err)
		case file.Missing:
			l.add(finding{File: path, Severity: mistake, Text: "no such file", Now: "it is not read", Fix: "the path of a file"})
		case file.Mode.IsDir():
			paths = append(paths, l.configured(path)...)
		default:
			paths = append(paths, path)
		}
	}
	for _, path := range paths {
		s.addScripts(l, filepath.Join(filepath.Dir(path), "scripts"))
	}
	for _, path := range paths {
		if data, ok := l.text(path); ok {
			l.judge(s, path, data)
		}
	}
}

// configured returns the files of a directory such as /etc/nhc.
func (l *linter) configured(dir string) (paths []string) {
	for _, name := range []string{"sysconfig", "nhc", "nhc.conf", "nhc-prolog.conf", "nhc-epilog.conf", "nhc-active.conf", "nhc.toml", "profiles.toml", "xid.toml", "ib-counters.toml"} {
		path := filepath.Join(dir, name)
		if file, err := l.call(wire.OpRead, path).File(""); err == nil && !file.Missing && file.Mode.IsRegular() {
			paths = append(paths, path)
		}
	}
	if paths == nil {
		l.add(finding{File: dir, Severity: warning, Text: "no configuration is in this directory", Now: "nothing is checked", Fix: "the directory of nhc.conf or nhc.toml"})
	}
	return paths
}

// text reads a file of any owner: a checkout belongs to its user.
func (l *linter) text(path string) ([]byte, bool) {
	file, err := l.call(wire.OpRead, path).File("read " + path)
	switch {
	case err != nil:
		l.errors(err)
		return nil, false
	case !file.Mode.IsRegular():
		l.add(finding{File: path, Severity: mistake, Text: "not a regular file", Now: "it is not read", Fix: "the path of a file"})
		return nil, false
	case file.Size > int64(len(file.Data)):
		l.add(finding{File: path, Severity: mistake, Text: fmt.Sprintf("%d bytes", file.Size), Now: "it is not read", Fix: fmt.Sprintf("at most %d bytes", conf.MaxSize)})
		return nil, false
	}
	l.read, l.texts[path] = append(l.read, path), file.Data
	return file.Data, true
}

// addScripts takes note of the functions of scripts.
func (s *site) addScripts(l *linter, dir string) {
	resp, err := l.call(wire.OpList, dir).Answer()
	if err != nil {
		return
	}
	for _, script := range resp.Scripts {
		s.scripts = true
		for _, name := range script.Functions {
			s.functions[name] = s.functions[name] || !script.Stock
		}
	}
	for _, script := range resp.Scripts {
		s.scripts = s.scripts && !script.Sources
	}
	for name, own := range s.functions {
		if !own {
			delete(s.functions, name)
		}
	}
}

// tomlHeader finds a table of TOML.
var tomlHeader = checks.Lazily(`(?m)^\[\[?[\w.]+\]\]?\s*$`)

// judge judges the text of one file.
func (l *linter) judge(s *site, path string, data []byte) {
	if len(bytes.TrimSpace(data)) == 0 && kindOf(path, data) != settingsKind {
		l.add(finding{File: path, Line: 1, Severity: warning, Text: "the file is empty", Now: "nothing is checked, and every node counts as healthy", Fix: "nhc-genconf writes a configuration, on a node"})
		return
	}
	if at := bytes.IndexByte(data, 0); at >= 0 && at < 8<<10 {
		fix := "a text file in UTF-8"
		if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
			fix = "iconv -f UTF-16 -t UTF-8 " + path
		}
		l.add(finding{File: path, Line: 1, Column: 1, Severity: mistake, Text: "binary data", Now: "the file is not used", Fix: fix})
		return
	}
	switch kindOf(path, data) {
	case linesKind:
		if tomlHeader().Match(data) && !bytes.Contains(data, []byte("||")) {
			l.add(finding{File: path, Line: 1, Column: 1, Severity: mistake, Text: "TOML in a file of lines", Now: "nothing is checked", Fix: "name it nhc.toml"})
			return
		}
		l.pages = append(l.pages, lintLines(&l.findings, s, path, data))
	case tablesKind:
		l.lintTables(path, data)
	case profilesKind:
		_, err := conf.ParsePlatforms(path, data)
		l.tomlErrors(err)
	case xidKind:
		l.tomlErrors(xid.PolicyErrors(path, data))
	case countersKind:
		l.tomlErrors(fabric.IBCounterErrors(path, data))
	case settingsKind:
		lintSettings(&l.findings, path, data)
	case scriptKind:
		l.script(path, data)
	default:
		f := finding{File: path, Severity: mistake, Text: "unknown kind of file", Now: "no run reads a file of this name", Fix: "nhc.conf, nhc.toml, profiles.toml, or NAME.nhc for a script"}
		if bytes.Contains(data, []byte("||")) {
			f.Fix = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)) + ".conf"
		}
		l.add(f)
	}
}

// lintTables judges an nhc.toml.
func (l *linter) lintTables(path string, data []byte) {
	c, err := conf.ParseTOML(path, data)
	l.tomlErrors(err)
	if c == nil {
		return
	}
	l.tomlErrors(plan.UnknownPolicy(c))
	l.entries(c.Checks)
	p := plan.BuildTables(c.Checks, plan.Options{})
	for i := range p.Steps {
		l.step(&p.Steps[i])
	}
}

// entries judges the hosts of tables, and finds those that stand twice.
func (l *linter) entries(list []conf.Entry) {
	seen := map[string]conf.Pos{}
	for _, e := range list {
		if t := targetTrap(e.Hosts); t != nil {
			f := finding{File: e.Pos.File, Line: e.Pos.Line, Severity: t.grade, Text: "hosts = " + quoted(e.Hosts) + ": " + t.text, Now: t.now, Fix: "hosts = " + quoted(t.fix)}
			for i, line := range strings.Split(string(l.texts[e.Pos.File]), "\n") {
				if at := strings.Index(line, `"`+e.Hosts+`"`); i+1 >= e.Pos.Line && at >= 0 {
					f.Line, f.Column, f.Word = i+1, at+2+t.at, t.word
					break
				}
			}
			l.add(f)
		}
		key := fmt.Sprint(e.Name, e.Hosts, e.Params, e.Contexts, e.Action)
		if old, twice := seen[key]; twice {
			l.add(finding{File: e.Pos.File, Line: e.Pos.Line, Column: 1, Severity: warning, Word: e.Name, Text: fmt.Sprintf("the table at line %d is the same", old.Line), Now: "the check runs twice", Fix: "remove one of the two"})
		}
		seen[key] = e.Pos
	}
}

// tomlErrors adds the errors of a file of tables.
func (l *linter) tomlErrors(err error) {
	before := len(l.list)
	l.errors(err)
	for i := range l.list[before:] {
		f := &l.list[before+i]
		f.Now = "the file is not used"
		switch {
		case strings.Contains(f.Text, "quotes are not closed"):
			f.Text, f.Fix = `a " has no partner`, "close the quote"
		case f.Fix == "":
			f.Fix = "correct the line"
		}
	}
}

// script judges a script of the site.
func (l *linter) script(path string, data []byte) {
	_, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(bytes.NewReader(data), path)
	if parse, ok := errors.AsType[syntax.ParseError](err); ok {
		line := strings.Split(string(data), "\n")[parse.Pos.Line()-1] + " "
		l.add(finding{
			File: path, Line: int(parse.Pos.Line()), Column: int(parse.Pos.Col()), Word: strings.Fields(line[parse.Pos.Col()-1:] + " x")[0], Severity: mistake, Text: strings.ReplaceAll(parse.Text, "`", `"`),
			Now: "bash reads the script up to this place", Fix: "balance quotes, brackets and if ... fi",
		})
		return
	}
	if bytes.Contains(data, []byte("\r\n")) {
		l.add(finding{File: path, Line: 1, Severity: mistake, Text: "the lines end in CR LF", Now: "bash takes the CR for a part of each line", Fix: "dos2unix " + path})
	}
	for _, c := range conf.Calls(data) {
		if slices.Contains(lacked(), c.Name) {
			l.add(finding{File: path, Line: c.Line, Severity: warning, Word: c.Name, Text: c.Name + " is a function of LBNL NHC that nhc-gpu does not have", Now: "the call fails with status 127", Fix: "remove the call"})
		}
	}
}

// misnamed finds files beside nhc.conf that look like a configuration, and that no run reads.
func (l *linter) misnamed(dir string) {
	for _, name := range []string{"nhc.cfg", "nhc.config", "nhc.conf.txt", "nhc.yaml", "nhc.yml", "nhc.json", "nhc.ini", "nhc_prolog.conf", "nhc_epilog.conf", "prolog.conf", "epilog.conf", "nhc.prolog.conf", "nhc.epilog.conf", "profile.toml", "platforms.toml", "NHC.conf", "nhc.tml"} {
		if file, err := l.call(wire.OpRead, filepath.Join(dir, name)).File(""); err == nil && !file.Missing && file.Mode.IsRegular() {
			right := "nhc" + filepath.Ext(name)
			switch {
			case strings.Contains(name, "prolog"):
				right = "nhc-prolog.conf"
			case strings.Contains(name, "epilog"):
				right = "nhc-epilog.conf"
			case strings.HasPrefix(name, "p"):
				right = "profiles.toml"
			case name == "nhc.tml":
				right = "nhc.toml"
			case right != "nhc.conf":
				right = "nhc.conf, or nhc.toml for tables"
			}
			l.add(finding{File: filepath.Join(dir, name), Severity: warning, Text: "no run reads a file of this name", Now: "it has no effect", Fix: right})
		}
	}
}
