package lint

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/dcgm"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/open"
	"github.com/nhc-gpu/nhc-gpu/checks/xid"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// file reads a configuration file; ok is false if there is none, or if it cannot be used.
func (l *linter) file(path string, named bool) (data []byte, ok bool) {
	data, ok, err := l.f.ContentOf(path, l.call(wire.OpRead, path), named)
	l.errors(err)
	if ok {
		l.read, l.texts[path] = append(l.read, path), data
	}
	return data, ok
}

// call has a worker do an operation on a path.
func (l *linter) call(op wire.Op, path string) run.Outcome {
	return l.f.Pool.Call(l.f.Ctx, checks.Local, &wire.Request{Op: op, Path: path, Line: string(op) + " " + path}, session.Reading)
}

// settings judges /etc/sysconfig/nhc.
func (l *linter) settings(unusable error) {
	f := l.f
	path := f.SetPath
	if file, err := l.call(wire.OpRead, path).File("read " + path); err == nil && !file.Missing && file.Mode.IsRegular() {
		l.texts[path] = file.Data
		_ = lintSettings(&l.findings, path, file.Data) // unusable has the error, as bash reports it
	}
	if unusable != nil {
		if end, ok := errors.AsType[*open.Ended](unusable); !ok {
			l.unusableSettings(path, unusable)
		} else if l.count(mistake) == 0 {
			l.say(mistake, "", "%s: ends each run with exit status %d", path, end.Status)
		}
		f.Sourced = "" // bash has reported its errors
	}
	if f.SetFile != "" {
		l.read = append(l.read, f.SetFile)
	}
	missing := func(path string) bool { return open.Missing(l.call(wire.OpRead, path)) }
	if paths := f.Set.HelpersToFind(); len(paths) > 0 && missing(paths[0]) && missing(paths[1]) {
		l.add(finding{File: path, Severity: warning, Text: "HELPERDIR: no such file: " + paths[0], Now: "nhc-gpu marks the node itself", Fix: "remove HELPERDIR"})
		return
	}
	for _, name := range []string{"OFFLINE_NODE", "ONLINE_NODE"} {
		helper := cmp.Or(f.Set.Get(name), f.Set.Get("HELPERDIR")+"/node-mark-"+strings.ToLower(strings.TrimSuffix(name, "_NODE")))
		if f.Set.CustomHelper(name) && strings.HasPrefix(helper, "/") && missing(helper) {
			l.add(finding{File: path, Severity: warning, Text: name + ": no such file: " + helper, Now: "a run cannot change the state of the node", Fix: "remove HELPERDIR and " + name + ": nhc-gpu then calls scontrol itself"})
		}
	}
}

// unusableSettings adds the error of settings with which no run checks anything, unless the text of the file has shown it.
func (l *linter) unusableSettings(path string, err error) {
	shown := func(f finding) bool {
		return f.File == path && f.Severity == mistake && f.Word != "" && strings.HasPrefix(err.Error(), f.Word+":")
	}
	if slices.ContainsFunc(l.list, shown) {
		return
	}
	before := len(l.list)
	l.errors(err)
	for i := range l.list[before:] {
		f := &l.list[before+i]
		f.Now = cmp.Or(f.Now, nothingRuns)
		if f.Fix == "" && f.Line > 0 {
			f.Fix = "balance quotes and brackets: bash -n " + path + " shows the place"
		}
	}
}

func (l *linter) scripts() {
	l.f.SkipScripts()
	for _, s := range l.f.Bash.Scripts {
		if !s.Stock {
			l.read = append(l.read, s.Path)
		}
	}
	if err := l.f.Bash.Unloaded; err != nil {
		l.say(mistake, "", "the scripts are not used: %v", err)
	} else {
		l.dropped()
	}
	l.f.DoubtScripts()
	l.doubts()
}

// dropped reports the functions of scripts that are not used, and changed files of LBNL NHC.
func (l *linter) dropped() {
	for _, d := range run.DroppedFunctions(l.f.Bash.Scripts) {
		fix := "rename one of the two functions"
		if d.By.Stock {
			fix = "rename the file, so that bash reads it later: zz_" + filepath.Base(d.From)
		}
		l.add(finding{File: d.From, Severity: warning, Word: d.Function, Text: d.Function + " is not used", Now: droppedWhy(d), Fix: fix})
	}
	for _, s := range l.f.Bash.Scripts {
		if s.Altered {
			l.add(finding{
				File: s.Path, Severity: remark, Text: "the file differs from LBNL NHC's file of each known version", Now: "its checks are used, not the built-in ones",
				Fix: "remove the file, and keep what you changed in a file of your own, zz_site.nhc",
			})
		}
	}
	for _, text := range lackedCalls(l.f) {
		l.say(warning, "", "%s", text)
	}
}

// tables judges nhc.toml and the profiles of platforms.
func (l *linter) tables() {
	l.read = append(l.read, l.f.Found...)
	for _, path := range l.f.Found {
		if path == l.f.Path {
			continue
		}
		if file, err := l.call(wire.OpRead, path).File(""); err == nil && file.Mode.IsRegular() {
			l.texts[path] = file.Data
			if path == l.f.TablesFile() {
				s := l.site()
				s.addPlatforms(l, l.f.Set.ProfilesFile())
				l.lintTables(s, path, file.Data)
			} else {
				_, err := conf.ParsePlatforms(path, file.Data)
				l.tomlErrors(err)
			}
		}
	}
	lintOutputs(l)
	if d := l.f.Config.Role(conf.HealthCheck).Budget; d > session.SlurmdLimit {
		f := finding{File: l.f.TablesFile(), Severity: remark, Word: "budget", Text: fmt.Sprintf("healthcheck.budget = %.0f is more than slurmd gives a health check", d.Seconds()),
			Now: fmt.Sprintf("a run has %s", session.SlurmdLimit), Fix: fmt.Sprintf("budget = %.0f or less", session.SlurmdLimit.Seconds())}
		l.add(f)
	}
}

// in makes the run one of a role.
func (l *linter) in(role slurm.Role) {
	f := l.f
	f.Role, f.Whole, f.Own = role, role == slurm.Manual, false
	f.SetBudget()
}

// contexts judges the lines of each role that slurmd starts.
func (l *linter) contexts() {
	path := l.f.Path
	data, ok, err := l.f.ContentOf(path, l.f.Main, false)
	l.errors(err)
	main := l.checkLines(path, data)
	if !ok && len(l.f.Tables) == 0 && l.count(mistake) == 0 {
		l.say(warning, "on a healthy node: nhc-gpu genconf --dir "+filepath.Dir(path)+" -H 'gpu*' (-H: the hosts of the lines); elsewhere name the files: nhc-gpu lint FILE...", "read %s: no such file: nothing is checked, and every node counts as healthy", path)
	}
	if idle := idleHere(l.f); idle != nil && ok && !l.o.Elsewhere() && !l.at(path, 0, warning) {
		if !l.onNode { // such as the host that builds the files of all nodes
			idle.Severity = remark
		}
		l.add(*idle)
	}
	for _, role := range startedRoles {
		l.in(role)
		from := main
		if q := l.f.OwnRequest(); q != nil {
			if data, ok := l.file(q.Path, false); ok {
				l.in(slurm.Manual)
				from = l.checkLines(q.Path, data)
				l.in(role)
				l.f.Own = true
			}
		}
		l.f.Bash.Vetted = from
		p := l.f.Build()
		n, skipped := 0, 0
		for i := range p.Steps {
			if p.Steps[i].Kind != plan.Assign && !session.Unasked(&p.Steps[i]) {
				n++
			}
			if neverRun(l.f, &p.Steps[i]) != "" {
				l.tooLong(&p.Steps[i], role)
			}
		}
		for i := range p.Skipped {
			if !session.Unasked(&p.Skipped[i].Step) {
				skipped++
			}
		}
		l.mute[role] = n == 0 && skipped > 0
		if l.refused {
			n, skipped = 0, 0
		}
		l.runs = append(l.runs, contextOf{role.String(), n, skipped, l.f.Allowed().Seconds(), whySkipped(role)})
	}
	l.sayTooLong()
}

// idleHere returns the finding that no line of a plan is for this host, nil if one is.
func idleHere(f *open.Files) *finding {
	isCheck := func(s plan.Step) bool { return s.Kind != plan.Assign }
	if f.Others == 0 || f.Eval != "" || len(f.Plan.Skipped) > 0 || slices.ContainsFunc(f.Plan.Steps, isCheck) {
		return nil
	}
	return &finding{
		File: f.Path, Severity: warning, Text: "no line is for this host (" + f.Set.Get("HOSTNAME_S") + ")", Now: "nothing is checked, and the node counts as healthy",
		Fix: "change the targets of its lines, or write it again: nhc-gpu genconf --dir DIR -H 'gpu*'",
	}
}

// longTests are the active tests of one file that take longer than every run of slurmd's.
type longTests struct {
	lines []int
	roles []string // each with the time of its runs
}

func (l *linter) tooLong(s *plan.Step, role slurm.Role) {
	t := l.long[s.Pos.File]
	if t == nil {
		t = &longTests{}
		l.long[s.Pos.File] = t
	}
	if !slices.Contains(t.lines, s.Pos.Line) {
		t.lines = append(t.lines, s.Pos.Line)
	}
	if as := fmt.Sprintf("%s (%s)", role, l.f.Allowed()); !slices.Contains(t.roles, as) {
		t.roles = append(t.roles, as)
	}
}

// sayTooLong adds one warning for each file with such tests.
func (l *linter) sayTooLong() {
	for _, file := range slices.Sorted(maps.Keys(l.long)) {
		t := l.long[file]
		slices.Sort(t.lines)
		numbers := make([]string, len(t.lines))
		for i, n := range t.lines {
			numbers[i] = strconv.Itoa(n)
		}
		l.say(warning, neverRunFix, "%s:%d: skipped as %s: %s that may take longer: line %s", file, t.lines[0],
			strings.Join(t.roles, ", "), console.Counted(len(t.lines), "active test"), strings.Join(numbers, ", "))
	}
}

// startedRoles are the roles of runs that slurmd starts.
var startedRoles = []slurm.Role{slurm.HealthCheck, slurm.Prolog, slurm.Epilog}

// whySkipped names the place of the reasons why checks do not run.
func whySkipped(role slurm.Role) string {
	if !role.AroundJob() {
		return " (their contexts in nhc.toml)"
	}
	return fmt.Sprintf(" (nhc-gpu plan --%s shows why)", role)
}

// checkLines judges the lines of a file, and returns those of this host.
func (l *linter) checkLines(path string, data []byte) []conf.Line {
	f := l.f
	f.Bash.Vetted = nil
	if data != nil && !slices.ContainsFunc(l.pages, func(p *page) bool { return p.file == path }) {
		l.texts[path] = data
		l.pages = append(l.pages, lintLines(&l.findings, l.site(), path, data))
	}
	for _, err := range f.UseLines(path, data) {
		l.errors(err)
	}
	l.doubts()
	f.PresetHardware(data)
	f.Plan = f.Build()
	for i := range f.Plan.Steps {
		l.step(&f.Plan.Steps[i])
	}
	return f.Bash.Vetted
}

// step judges one line or table as this host runs it.
func (l *linter) step(s *plan.Step) {
	if s.Kind == plan.Assign {
		for _, v := range s.Sets {
			if slices.ContainsFunc(siteFiles, func(f siteFile) bool { return f.variable == v.Name }) {
				l.f.Set.Put(v.Name, v.Value, false)
			}
		}
	}
	for _, path := range checks.UserWritten(s.Name, s.Args, s.Table) {
		f := finding{
			File: s.Pos.File, Line: s.Pos.Line, Severity: warning, Word: path, Text: "any user can write to " + path + " with logger(1)",
			Now: "any user can drain this node", Fix: "remove " + path + " from the line: the check then reads the kernel's own log",
		}
		l.locate(&f)
		l.add(f)
	}
	text, sure := wrongWith(l.f, s)
	if text == "" || l.at(s.Pos.File, s.Pos.Line, warning) || s.Command != "" && !l.onNode {
		return
	}
	f := finding{File: s.Pos.File, Line: s.Pos.Line, Severity: warning, Now: unevaluated}
	if sure {
		f.Severity = mistake
	}
	if _, known := checks.Lookup(s.Name); s.Table != nil && !known {
		f.Word = strings.TrimPrefix(s.Text, "check_")
		text, f.Fix = "there is no check "+s.Text, spell.Nearest(s.Text, checks.Names())
		if f.Fix == "" {
			f.Fix = "the name of a check: nhc-gpu checks lists them"
		}
	}
	if info, ok := checks.Lookup(s.Name); ok {
		f.Fix = usageOf(info)
	}
	f.Text, _, _ = strings.Cut(strings.TrimPrefix(text, s.Pos.String()+": "), "; usage: ")
	if m := unknownKey().FindStringSubmatch(f.Text); s.Table != nil && m != nil {
		f.Text, f.Word, f.Fix = m[1], m[2], "one of "+m[3]
		if !strings.Contains(m[3], ", ") {
			f.Fix = m[3] + " = " + tomlText(s.Table[m[2]])
		}
	}
	l.locate(&f)
	l.add(f)
}

// unknownKey finds the key of a table that a check does not have, and the ones that it has.
var unknownKey = checks.Lazily(`^(.*unknown key "(.*)"), want (.*)$`)

// tomlText writes a value of a table.
func tomlText(value any) string {
	if text, ok := value.(string); ok {
		return strconv.Quote(text)
	}
	return strings.ReplaceAll(fmt.Sprint(value), " ", ", ")
}

// siteFile is a file of the site that a variable names.
type siteFile struct {
	variable string
	kind     fileKind
}

var siteFiles = []siteFile{{"XID_POLICY", xidKind}, {"IB_COUNTERS", countersKind}, {"DCGM_ERRORS", dcgmKind}, {"IB_CABLING", cablingKind}}

// judgeSiteFiles judges the files that variables name.
func (l *linter) judgeSiteFiles() {
	usual := checks.Variables()
	for _, f := range siteFiles {
		path := cmp.Or(l.f.Set.Get(f.variable), usual[f.variable])
		if data, ok := l.file(l.f.Set.Get("HOSTROOT")+path, path != usual[f.variable]); ok {
			l.texts[path] = data
			l.siteErrors(f.kind, path, data)
		}
	}
}

// siteErrors adds the errors of a file of the site.
func (l *linter) siteErrors(kind fileKind, path string, data []byte) {
	switch kind {
	case xidKind:
		l.fileErrors(xid.PolicyErrors(path, data), fileUnused)
		l.xidCodes(path, data)
	case countersKind:
		l.fileErrors(fabric.IBCounterErrors(path, data), fileUnused)
	case dcgmKind:
		l.fileErrors(dcgm.ClassErrors(path, data), fileUnused)
	case cablingKind:
		l.fileErrors(checks.CablingErrors(path, data), "the line is skipped")
	}
}

// idle warns of a role that slurmd starts and that has no check to run.
func (l *linter) idle() {
	for _, role := range startedRoles {
		if l.wired[role] && l.mute[role] {
			l.say(warning, "", "as %s nothing is checked: no line runs%s", role, whySkipped(role))
		}
	}
}
