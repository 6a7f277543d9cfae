package lint

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"mvdan.cc/sh/v3/syntax"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
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
	dcgmKind
	cablingKind
	settingsKind
	scriptKind
)

// fixedNames are the files of the site that a run finds by their names.
var fixedNames = map[string]fileKind{
	"profiles.toml": profilesKind, "xid.toml": xidKind, "ibcounters.toml": countersKind, "dcgm.toml": dcgmKind, "cabling": cablingKind,
}

// kindOf judges a file by its name, and a TOML file of another name by its tables.
func kindOf(path string, data []byte) fileKind {
	base, dir := filepath.Base(path), filepath.Base(filepath.Dir(path))
	has := func(header string) bool {
		return bytes.HasPrefix(data, []byte(header)) || bytes.Contains(data, []byte("\n"+header))
	}
	if kind, ok := fixedNames[base]; ok {
		return kind
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
		case has("[[error]]"):
			return dcgmKind
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
	s := &site{functions: map[string]bool{}, vars: map[string]string{"TIMEOUT": l.f.Set.Get("TIMEOUT")}, limit: l.limit()}
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
		s.addPlatforms(l, filepath.Join(filepath.Dir(path), "profiles.toml"))
	}
	for _, path := range paths {
		if data, ok := l.text(path); ok {
			l.judge(s, path, data)
		}
	}
}

// configured returns the files of a directory such as /etc/nhc.
func (l *linter) configured(dir string) (paths []string) {
	l.misnamed(dir)
	for _, name := range append([]string{"sysconfig", "nhc"}, configNames...) {
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

// addPlatforms takes note of the names of the site's platforms, also if their figures are wrong.
func (s *site) addPlatforms(l *linter, path string) {
	var profiles struct{ Platform []struct{ Name string } }
	if file, err := l.call(wire.OpRead, path).File(""); err == nil {
		_, _ = toml.Decode(string(file.Data), &profiles) // lint judges the file itself
	}
	for _, p := range profiles.Platform {
		s.platforms = append(s.platforms, p.Name)
	}
}

// tomlHeader finds a table of TOML.
var tomlHeader = checks.Lazily(`(?m)^\[\[?[\w.]+\]\]?\s*$`)

// judge judges the text of one file.
func (l *linter) judge(s *site, path string, data []byte) {
	kind := kindOf(path, data)
	if len(bytes.TrimSpace(data)) == 0 && kind != settingsKind {
		l.add(finding{File: path, Line: 1, Severity: warning, Text: "the file is empty", Now: "nothing is checked, and every node counts as healthy", Fix: "nhc-gpu genconf writes a configuration, on a node"})
		return
	}
	if at := bytes.IndexByte(data, 0); at >= 0 && at < 8<<10 {
		fix := "a text file in UTF-8"
		if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
			fix = "iconv -f UTF-16 -t UTF-8 " + path
		}
		l.add(finding{File: path, Line: 1, Column: 1, Severity: mistake, Text: "binary data", Now: fileUnused, Fix: fix})
		return
	}
	switch kind {
	case linesKind:
		if tomlHeader().Match(data) && !bytes.Contains(data, []byte("||")) {
			l.add(finding{File: path, Line: 1, Column: 1, Severity: mistake, Text: "TOML in a file of lines", Now: "nothing is checked", Fix: "name it nhc.toml"})
			return
		}
		l.pages = append(l.pages, lintLines(&l.findings, s, path, data))
	case tablesKind:
		l.lintTables(s, path, data)
	case profilesKind:
		_, err := conf.ParsePlatforms(path, data)
		l.tomlErrors(err)
	case xidKind, countersKind, dcgmKind, cablingKind:
		l.siteErrors(kind, path, data)
	case settingsKind:
		before := len(l.list)
		if err := lintSettings(&l.findings, path, data); err != nil && len(l.list) == before {
			l.add(unparsed(path, data, err, "bash reads the file up to this place"))
		}
		if sets, _, err := conf.ParseSysconfig(path, data, func(string) (string, bool) { return "", false }); err == nil {
			for _, a := range sets {
				if a.Name == "TIMEOUT" && s.vars != nil {
					s.vars[a.Name] = a.Value
				}
			}
		}
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
func (l *linter) lintTables(s *site, path string, data []byte) {
	c, err := conf.ParseTOML(path, data)
	l.tomlErrors(err)
	if c == nil {
		return
	}
	l.tomlErrors(plan.UnknownPolicy(c))
	lintExempt(l, path, c.Guards().Exempt)
	lintRemedies(l, path, c.Remedies, s.platforms)
	l.entries(c.Checks)
	p := plan.BuildTables(c.Checks, plan.Options{})
	for i := range p.Steps {
		before := len(l.list)
		if l.step(&p.Steps[i]); len(l.list) == before {
			l.tableValues(s, &p.Steps[i])
		}
	}
}

// tableValues judges the values that the check of a table reads only when it runs.
func (l *linter) tableValues(s *site, step *plan.Step) {
	info, ok := checks.Lookup(step.Name)
	if !ok {
		return
	}
	c := info.New()
	if checks.BindTable(c, step.Table) != nil {
		return
	}
	key := func(value string) string {
		for _, key := range slices.Sorted(maps.Keys(step.Table)) {
			list, isList := step.Table[key].([]any)
			if fmt.Sprint(step.Table[key]) == value || isList && slices.ContainsFunc(list, func(v any) bool { return fmt.Sprint(v) == value }) {
				return key
			}
		}
		return ""
	}
	m := s.misvalueOf(step.Pos.File, info, c, func(value string) bool { return key(value) != "" })
	if m == nil {
		return
	}
	f := m.finding
	f.File, f.Line = step.Pos.File, step.Pos.Line
	switch _, isList := step.Table[key(m.Word)].([]any); {
	case m.other != "":
		f.Fix = fmt.Sprintf("%s = %q, %s = %q", key(m.Word), m.other, key(m.other), m.Word)
	case m.better == "" || strings.Contains(m.better, " -"): // options are for lines
	case isList:
		f.Fix = strconv.Quote(m.better)
	default:
		f.Fix = fmt.Sprintf("%s = %q", key(m.Word), m.better)
		for _, word := range slices.Sorted(maps.Keys(m.others)) {
			if word != m.Word && key(word) != "" {
				f.Fix += fmt.Sprintf(", %s = %q", key(word), m.others[word])
			}
		}
	}
	l.locate(&f)
	l.add(f)
}

// xidCode finds the number of an Xid in a table.
var xidCode = checks.Lazily(`^\s*code\s*=\s*([0-9]+)`)

// xidCodes finds numbers that no Xid has. NVIDIA's list ends far below 1000; numbers of NVSwitches
// have five digits.
func (l *linter) xidCodes(path string, data []byte) {
	const most = 999
	ofGPU := false
	for i, line := range strings.Split(string(data), "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "[") {
			ofGPU = strings.HasPrefix(strings.TrimSpace(line), "[[xid]]")
		}
		m := xidCode().FindStringSubmatchIndex(line)
		if !ofGPU || m == nil || number(line[m[2]:m[3]]) <= most {
			continue
		}
		word := line[m[2]:m[3]]
		l.add(finding{File: path, Line: i + 1, Column: 1 + m[2], Severity: warning, Word: word, Text: "no Xid has the number " + word, Now: "the table has no effect", Fix: "an Xid below 1000; [[sxid]] is for errors of NVSwitches"})
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

const fileUnused = "the file is not used"

// tomlErrors adds the errors of nhc.toml or of profiles.toml.
func (l *linter) tomlErrors(err error) { l.fileErrors(err, fileUnused) }

// fileErrors adds the errors of a file, whose effect is now.
func (l *linter) fileErrors(err error, now string) {
	before := len(l.list)
	l.errors(err)
	for i := range l.list[before:] {
		f := &l.list[before+i]
		f.Now = now
		if strings.HasPrefix(f.Text, "unknown key ") || strings.HasPrefix(f.Text, "policy ") {
			f.Text = strings.TrimSuffix(f.Text, ": want "+f.Fix)
		}
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
	_, err := conf.ParseBash(string(data), false)
	if err != nil {
		l.add(unparsed(path, data, err, "bash reads the script up to this place"))
		return
	}
	if bytes.Contains(data, []byte("\r\n")) {
		l.add(finding{File: path, Line: 1, Severity: mistake, Text: "the lines end in CR LF", Now: "bash takes the CR for a part of each line", Fix: "dos2unix " + path})
	}
	for _, c := range conf.Calls(data) {
		if slices.Contains(run.LackedFunctions(), c.Name) {
			l.add(finding{File: path, Line: c.Line, Severity: warning, Word: c.Name, Text: c.Name + " is a function of LBNL NHC that nhc-gpu does not have", Now: "the call fails with status 127", Fix: "remove the call"})
		}
	}
}

// unparsed is the mistake at which bash stops to read a file.
func unparsed(path string, data []byte, err error, now string) finding {
	f := finding{File: path, Severity: mistake, Text: err.Error(), Now: now, Fix: "balance quotes, brackets and if ... fi"}
	if parse, ok := errors.AsType[syntax.ParseError](err); ok {
		f.Line, f.Column = place(string(data), parse.Pos)
		rest, _, _ := strings.Cut(string(data[parse.Pos.Offset():]), "\n")
		f.Word = strings.Fields(rest + " x")[0]
		f.Text = strings.ReplaceAll(parse.Text, "`", `"`)
	}
	return f
}

// configNames are the names in a directory such as /etc/nhc that a run reads.
var configNames = []string{
	"nhc.conf", "nhc-prolog.conf", "nhc-epilog.conf", "nhc-active.conf", "nhc.toml", "nhc-active.toml",
	"profiles.toml", "xid.toml", "ibcounters.toml", "dcgm.toml", "cabling",
}

// misnames are other names that a person gives to such files.
var misnames = []string{
	"nhc.cfg", "nhc.config", "nhc.conf.txt", "nhc.yaml", "nhc.yml", "nhc.json", "nhc.ini", "NHC.conf", "nhc.tml", "profile.toml", "platforms.toml", "platform.toml", "xids.toml", "ib_counters.toml", "ib-counters.toml",
}

// misnamed finds files beside nhc.conf that look like a configuration, and that no run reads.
func (l *linter) misnamed(dir string) {
	names := slices.Clone(misnames)
	for _, context := range []string{"prolog", "epilog", "active"} {
		long := map[string]string{"prolog": "prologue", "epilog": "epilogue"}[context]
		for _, name := range slices.DeleteFunc([]string{context, long}, func(s string) bool { return s == "" }) {
			names = append(names, name+".conf", "nhc_"+name+".conf", "nhc."+name+".conf", "nhc-"+name+".conf", "nhc-"+name+".cfg")
		}
	}
	for _, name := range names {
		if slices.Contains(configNames, name) {
			continue
		}
		if file, err := l.call(wire.OpRead, filepath.Join(dir, name)).File(""); err == nil && !file.Missing && file.Mode.IsRegular() {
			l.add(finding{File: filepath.Join(dir, name), Severity: warning, Text: "no run reads a file of this name", Now: "it has no effect", Fix: rightName(name)})
		}
	}
	for _, path := range l.strayScripts(filepath.Join(dir, "scripts")) {
		l.add(finding{File: path, Severity: warning, Text: "no run reads a file of this name", Now: "its functions do not exist", Fix: strings.TrimSuffix(path, filepath.Ext(path)) + ".nhc"})
	}
}

// rightName returns the name that a misnamed file was meant to have.
func rightName(name string) string {
	for _, right := range []string{"prolog", "epilog", "active"} {
		if strings.Contains(name, right) {
			return "nhc-" + right + ".conf"
		}
	}
	switch {
	case strings.HasPrefix(name, "p"):
		return "profiles.toml"
	case strings.HasPrefix(name, "x"):
		return "xid.toml"
	case strings.HasPrefix(name, "ib"):
		return "ibcounters.toml"
	case name == "nhc.tml":
		return "nhc.toml"
	case name == "NHC.conf":
		return "nhc.conf"
	}
	return "nhc.conf, or nhc.toml for tables"
}

// strayScripts returns scripts whose extension no run reads.
func (l *linter) strayScripts(dir string) (paths []string) {
	for _, ext := range []string{"sh", "bash"} {
		found, _ := l.programs(filepath.Join(dir, "*."+ext)) // without the directory there are none
		for _, p := range found {
			if path, ok := strings.CutPrefix(p.Path, dir); ok && path != "" && !strings.Contains(path, "*") {
				paths = append(paths, p.Path)
			}
		}
	}
	return paths
}
