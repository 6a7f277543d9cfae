package main

import (
	"context"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// try reads the sheet back as the file that it will be, and runs it. A line
// that does not pass here and now becomes a comment with the reason.
func (g *generator) try() {
	var which []int // the sheet's line behind each line of the file
	for i, l := range g.sheet.lines {
		if l.check != "" && l.why == "" {
			which = append(which, i)
		}
	}
	lines, doubts, err := conf.Parse("generated", []byte(g.sheet.render(g.mask)))
	if err != nil || len(lines) != len(which) || len(doubts) > 0 {
		for _, i := range which {
			g.sheet.lines[i].why = "could not be read back"
		}
		g.sheet.warnings = append(g.sheet.warnings, "internal error: the lines cannot be read back, all are comments")
		return
	}
	// As a run without a configuration file would have them: marks nothing, logs nothing.
	for name, value := range map[string]string{"LOGFILE": "-", "MARK_OFFLINE": "0", "NHC_CHECK_ALL": "1", "SILENT": "1", "VERBOSE": "0"} {
		g.set.put(name, value, false)
	}
	g.vetted = lines
	g.fold.held = true
	g.fold.begin(g.set, false, false)
	g.plan = plan.Build(lines, plan.Options{Vars: g.set.vars, Timeout: g.set.timeout()})
	t := &trial{tableObserver: tableObserver{observer: observer{g.oneRun}, steps: g.plan.Steps}, why: map[int]string{}, worst: map[int]checks.Severity{}, early: map[int]bool{}}
	g.table = &t.tableObserver
	t.changed() // tells the workers
	g.prepareChecks(g.plan)
	e := &run.Engine{Pool: g.pool, Deadline: g.budget.End, Timeout: g.set.timeout}
	_ = e.Do(g.ctx, g.plan, t) // what ended it is a signal, or shows in the steps
	for step, i := range which {
		why, done := t.why[step]
		if !done {
			why = "not tried: out of time"
		}
		if why == "" {
			continue
		}
		l := &g.sheet.lines[i]
		switch {
		case l.stays != 0 && (t.worst[step] >= l.stays && t.worst[step] != checks.Unknown || t.early[step]):
			l.found = visible(why)
			g.sheet.warnings = append(g.sheet.warnings, visible("a fault now, the line is written: "+lines[step].Check+" ("+why+")"))
			continue
		case l.stays != 0 && t.worst[step] == checks.Skip: // no such device here
			l.why = visible(why)
			continue
		}
		l.why = visible(why)
		g.sheet.warnings = append(g.sheet.warnings, visible("left out: "+lines[step].Check+" ("+why+")"))
	}
}

// trial notes for each step what is wrong with it, "" if it has passed.
type trial struct {
	tableObserver
	why   map[int]string
	worst map[int]checks.Severity
	early map[int]bool // there was nothing to judge yet
}

func (t *trial) Native(s *plan.Step, r checks.Result) bool {
	t.why[s.Index] = ""
	worst := checks.OK
	for _, f := range r.Findings {
		if f.Severity >= checks.Skip && f.Code != checks.HeldCode { // a check that does not apply here needs no line
			if f.Severity > worst || t.why[s.Index] == "" {
				t.why[s.Index] = f.Message
			}
			worst = max(worst, f.Severity)
			t.early[s.Index] = t.early[s.Index] || checks.PortsNotUp(f.Code)
		}
	}
	t.worst[s.Index] = worst
	return true
}

func (t *trial) Expired(s *plan.Step, _ *checks.Hung) { t.why[s.Index] = "no answer in time" }

// Line runs a line with a word that only bash can read.
func (t *trial) Line(ctx context.Context, s *plan.Step) bool {
	before := len(t.rows)
	more := t.tableObserver.Line(ctx, s)
	t.why[s.Index] = ""
	for _, row := range t.rows[before:] {
		if row.Severity >= checks.Warn {
			t.why[s.Index] = row.Message
		}
	}
	return more
}
