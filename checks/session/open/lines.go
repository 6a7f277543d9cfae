package open

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// ReadLines parses nhc.conf, if it exists, and keeps the lines of this host. In a user's run it
// continues after an error.
func (f *Files) ReadLines() (errs []error) {
	file, err := f.MainFile()
	if err != nil || file.Missing {
		return nil // already reported
	}
	if err := sound(f.Path, &file); err != nil {
		return []error{err}
	}
	return f.UseLines(f.Path, file.Data)
}

// UseLines does the same with text that was read before.
func (f *Files) UseLines(path string, data []byte) (errs []error) {
	lines, warnings, err := conf.Parse(path, data)
	if err != nil {
		errs = append(errs, err)
	}
	for _, w := range warnings {
		if !f.Strict {
			f.Warn(fmt.Errorf("%s: %s", w.Pos, w.Text))
		}
		f.Doubts = append(f.Doubts, fmt.Sprintf("%s: %s", w.Pos, w.Text))
	}
	f.lines = lines
	m := f.newMatcher()
	for _, l := range lines {
		if len(errs) > 0 && !f.Strict {
			return errs
		}
		ok, err := m.Match(f.Set.Get("HOSTNAME"), l.Target)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: target %q: %w", l.Pos, l.Target, err))
			continue
		}
		f.debugTarget(l, ok)
		f.doubtTarget(l)
		if ok {
			f.Bash.Vetted = append(f.Bash.Vetted, l)
		} else {
			f.Others++
		}
	}
	return errs
}

// Checking returns the files that have a check for some host, as they are named.
func (f *Files) Checking() (files []string) {
	isCheck := func(s plan.Step) bool { return s.Kind != plan.Assign }
	if slices.ContainsFunc(plan.Build(f.lines, plan.Options{}).Steps, isCheck) {
		files = append(files, f.Path)
	}
	if f.Config != nil && len(f.Config.Checks) > 0 {
		files = append(files, f.TablesFile())
	}
	return files
}

// newMatcher returns the matcher of the targets in nhc.conf. External matchers are shell commands.
func (f *Files) newMatcher() *match.Matcher {
	return &match.Matcher{
		Warn: func(text string) {
			if f.Set.Get("SILENT") == "0" {
				f.Log.Write(text)
			}
		},
		External: match.Externals(f.Set.Array("NHC_MCHECK_DELIM"), f.Set.Array("NHC_MCHECK_COMMAND")),
		Run:      func(e match.External, host, expr string) bool { return f.Bash.test(e.Line(host, expr)) },
	}
}

// ForThisHost keeps the tables of this host.
func (f *Files) ForThisHost(entries []conf.Entry) (ours []conf.Entry, err error) {
	m := f.newMatcher()
	for _, e := range entries {
		ok, unfit := m.Match(f.Set.Get("HOSTNAME"), e.Hosts)
		switch {
		case unfit != nil:
			err = errors.Join(err, fmt.Errorf("%s: hosts = %q: %w", e.Pos, e.Hosts, unfit))
		case ok:
			ours = append(ours, e)
		default:
			f.Others++
		}
	}
	return ours, err
}

// doubtTarget records, for a user, a target that can match no host.
func (f *Files) doubtTarget(l conf.Line) {
	if !f.Strict { // no user reads slurmd's run
		return
	}
	if err := match.Valid(l.Target); err != nil {
		f.Doubts = append(f.Doubts, fmt.Sprintf("%s: target %q: %v", l.Pos, l.Target, err))
	}
}

// DoubtScripts records, for a user, errors of bash syntax in the settings and the site's
// scripts: bash skips such a file, or the rest of it.
func (f *Files) DoubtScripts() {
	var list []string
	if f.Sourced != "" {
		list = append(list, f.Sourced)
	}
	for _, s := range f.Bash.Scripts {
		if !s.Stock && f.Bash.Unloaded == nil {
			list = append(list, s.Path)
		}
	}
	for _, file := range list {
		if said := run.SyntaxError(f.Ctx, f.Pool, file, session.Reading); said != "" {
			f.Doubts = append(f.Doubts, said+": bash does not run this file")
		}
	}
}

// debugTarget prints how a line's target was judged.
func (f *Files) debugTarget(l conf.Line, matched bool) {
	if f.Set.Get("DEBUG") != "1" {
		return
	}
	host := f.Set.Get("HOSTNAME")
	expr, negated := strings.CutPrefix(l.Target, "!")
	found := matched != negated
	does := func(yes, no string) string {
		if found {
			return yes
		}
		return no
	}
	switch n := len(expr); {
	case n > 1 && expr[0] == '/' && expr[n-1] == '/':
		f.Debug("Regexp match check (internal):  %s %s %s", host, does("matches", "does not match"), expr)
	case n > 1 && expr[0] == '{' && expr[n-1] == '}':
		f.Debug("mcheck_range:  %s in %s.", does("Found "+host, host+" NOT found"), expr[1:n-1])
	default:
		f.Debug("Glob match check:  %s %s %s", host, does("matches", "does not match"), expr)
	}
	if matched {
		f.Debug("Host match check:  \"%s\" matches \"%s\" for check:  %s", host, l.Target, l.Check)
	}
}

// PresetHardware sets the variables that LBNL NHC's check_hw_* set for later lines, if a line uses
// one: the sample configuration has check_ps_loadavg $((2*HW_CORES)). A function of the site can use
// one, too. A worker reads the values.
func (f *Files) PresetHardware(text []byte) {
	all := bytes.Contains(f.setText, []byte("HW_")) || slices.ContainsFunc(f.Bash.Scripts, func(s wire.Script) bool { return s.Hardware })
	if !all && !bytes.Contains(text, []byte("HW_")) {
		return
	}
	var cpus cpu.CPUs // an unreadable figure is 0, as in LBNL NHC
	var memory probe.Memory
	reqs := []*wire.Request{
		{Op: wire.OpHave, Name: string(inventory.PartCPU), Line: "count the processors"},
		{Op: wire.OpHave, Name: string(inventory.PartMemory), Line: "read the size of the memory"},
	}
	f.Pool.SetVars(f.Set.WorkerVars()) // HOSTROOT
	f.Pool.Do(f.Ctx, checks.Local, reqs, func(*wire.Request) time.Duration { return f.Budget.Reading(time.Now()) }, func(q *wire.Request, o run.Outcome) {
		resp, err := o.AnswerTo(q.Line)
		switch {
		case err != nil:
			f.Warn(fmt.Errorf("%w: HW_* are 0", err))
		case resp.Have != nil && q == reqs[0]:
			cpus = resp.Have.CPUs
		case resp.Have != nil:
			memory = resp.Have.Memory
		}
	})
	var assigns strings.Builder
	for name, value := range hardwareOf(cpus, memory) {
		old := f.Set.Get(name) // 0 if bash has read the library of scripts
		if old != "" && old != "0" || !all && !bytes.Contains(text, []byte(name)) {
			continue
		}
		number := strconv.FormatUint(value, 10)
		f.Set.Put(name, number, false)
		assigns.WriteString(name + "=" + number + "\n")
	}
	if f.Bash.runs() { // it got the settings before
		f.Bash.Assign(assigns.String())
	}
}

// hardwareOf returns the variables that LBNL NHC's check_hw_* set.
func hardwareOf(cpus cpu.CPUs, memory probe.Memory) map[string]uint64 {
	return map[string]uint64{
		"HW_SOCKETS": uint64(cpus.Sockets), "HW_CORES": uint64(cpus.Cores), "HW_THREADS": uint64(cpus.Threads),
		"HW_RAM_TOTAL": memory.Total, "HW_RAM_FREE": memory.Free,
		"HW_SWAP_TOTAL": memory.SwapTotal, "HW_SWAP_FREE": memory.SwapFree,
	}
}
