package report

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/judge"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// timeoutCode is the code of the step that TIMEOUT ended.
const timeoutCode = "run.timeout"

// maxLineOutput is the limit for the output of a shell line that a row keeps, in bytes.
const maxLineOutput = 64 << 10

// Table collects the results of a run as rows, one or more for each check.
type Table struct {
	judge *judge.Judge
	steps []plan.Step
	Rows  []verdict.Row
	began time.Time
	fails []checks.Finding

	wholes  verdict.Wholes
	called  []checks.Finding  // findings of checks that the current shell line calls
	lines   int               // number of shell lines, also if they did not run
	noShell bool              // do not run shell lines
	written []byte            // output of the current line, if the report keeps it
	fact    string            // see checks.Env.Fact, of the current check
	watch   *console.Progress // nil: show no progress
}

// Begin records the start of a step, and shows it on a terminal.
func (t *Table) Begin(s *plan.Step) {
	t.began = time.Now()
	t.judge.Announce(s.Text)
	t.watch.Say("check %d of %d: %s", s.Index+1, len(t.steps), stepName(s))
}

// Native adds the rows of a check.
func (t *Table) Native(s *plan.Step, r checks.Result) bool {
	t.fact = r.Fact
	t.addRows(s, t.once(t.judge.Applied(s, t.judge.Soften(s, r.Findings))), r.Took)
	return true
}

// NewTable returns the table of a run with a plan, nil for none, and makes it the run's collector.
func NewTable(j *judge.Judge, p *plan.Plan) *Table {
	t := &Table{judge: j}
	if p != nil {
		t.steps = p.Steps
	}
	j.Collector = t
	return t
}

// once returns the findings of a check. If another check has reported the state of a whole device,
// findings about that device only name that check: they are consequences.
func (t *Table) once(list []checks.Finding) []checks.Finding {
	list = slices.Clone(list)
	for i := range list {
		if of, ok := t.wholes.About(list[i]); ok {
			check, _, _ := strings.Cut(of.Message, ":")
			list[i].Severity, list[i].Code, list[i].Remedy = checks.Skip, of.Code, checks.NoRemedy
			list[i].Message = fmt.Sprintf("%s, see %s", of.Got, check)
		}
	}
	t.wholes.Take(list)
	return list
}

// Expired adds the rows of a step that TIMEOUT ended, and of the steps after it.
func (t *Table) Expired(s *plan.Step, hung *checks.Hung) (more bool) {
	text := t.judge.ExpiredText(judge.WhyHung(s.Lane, hung))
	t.addRows(s, []checks.Finding{{Code: timeoutCode, Severity: checks.Fail, Message: text}}, hung.For)
	for _, rest := range t.steps[s.Index+1:] {
		t.addRows(&rest, []checks.Finding{{Code: timeoutCode, Severity: checks.Unknown, Message: "not run: TIMEOUT"}}, 0)
	}
	return false
}

// Line runs a shell line and adds its rows.
func (t *Table) Line(s *plan.Step) bool {
	t.lines++
	if t.noShell {
		t.addRows(s, []checks.Finding{{Code: "shell.not-run", Severity: checks.Unknown, Message: "not run (--no-shell): " + s.Text}}, 0)
		return true
	}
	more := t.judge.Line(s)
	list := t.lineFindings()
	t.addRows(s, list, time.Since(t.began))
	if !more {
		for _, rest := range t.steps[s.Index+1:] {
			t.addRows(&rest, []checks.Finding{{Severity: checks.Unknown, Message: "not run: the run ended"}}, 0)
		}
	}
	return more
}

// Assigned copies the assignments of a line.
func (t *Table) Assigned(s *plan.Step) { t.judge.Assigned(s) }

// Goes reports whether steps that can change something still run.
func (t *Table) Goes() bool { return t.judge.Goes() }

// CalledBy records the findings of checks that the current shell line calls.
func (t *Table) CalledBy(list []checks.Finding) { t.called = append(t.called, list...) }

// Keep keeps the output of a shell line for its row.
func (t *Table) Keep(data []byte) (taken bool) {
	if t.steps == nil {
		return false
	}
	t.written = append(t.written, data[:min(len(data), maxLineOutput-len(t.written))]...)
	return true
}

// Collect records the failures among the events of a shell line.
func (t *Table) Collect(events []verdict.Event) {
	for _, e := range events {
		if e.To != verdict.Syslog {
			continue
		}
		if m, ok := strings.CutPrefix(e.Text, "Health check failed:  "); ok {
			f := checks.Finding{Severity: checks.Fail, Message: m}
			if strings.HasPrefix(m, t.judge.ExpiredText("")) {
				f.Code = timeoutCode
			}
			t.fails = append(t.fails, f)
		} else if m, ok := strings.CutPrefix(e.Text, "Health check unknown:  "); ok {
			t.fails = append(t.fails, checks.Finding{Severity: checks.Unknown, Message: m})
		}
	}
}

// lineFindings returns the failures of the current shell line, also those that are held back, and the
// actions that were not carried out. A failure of a check that the line called has code, device and remedy.
func (t *Table) lineFindings() (list []checks.Finding) {
	for _, f := range t.fails {
		i := slices.IndexFunc(t.called, func(c checks.Finding) bool { return c.Message == f.Message && c.Severity == f.Severity })
		if i >= 0 {
			f = t.called[i]
		}
		list = append(list, f)
	}
	for _, f := range t.called {
		if f.Code == checks.HeldCode || f.Silenced != nil || f.Held != "" {
			list = append(list, f)
		}
	}
	t.fails, t.called = nil, nil
	return list
}

// stepName returns the name of a step's check, or the first word of a shell line.
func stepName(s *plan.Step) string {
	name := s.Name
	if name == "" {
		name, _, _ = strings.Cut(s.Text, " ")
	}
	if s.Kind == plan.Native {
		name = checks.FullName(name)
	}
	return name
}

// addRows adds the rows of a step: one for each finding, or one row if it passed.
func (t *Table) addRows(s *plan.Step, list []checks.Finding, took time.Duration) {
	name, line := stepName(s), s.Text
	if s.Table != nil {
		line = session.TableText(s)
	}
	list = withStderr(list)
	if !slices.ContainsFunc(list, func(f checks.Finding) bool { return f.Code != checks.HeldCode }) {
		list = append([]checks.Finding{{}}, list...) // the check has passed
	}
	output, fact := string(t.written), t.fact
	t.written, t.fact = nil, ""
	for i, f := range list {
		if i > 0 {
			took, output = 0, ""
		}
		if i > 0 || f.Severity != checks.OK {
			fact = ""
		}
		detail := strings.TrimPrefix(f.Message, name+":  ")
		message := verdict.Plain(detail)
		if message == detail {
			detail = ""
		}
		t.Rows = append(t.Rows, verdict.Row{
			Severity: f.Severity, Name: name, Line: line, Code: f.Code, Device: f.Device, Message: message, Fact: fact, Detail: detail,
			Want: f.Want, Got: f.Got, Took: took, Remedy: f.Remedy, Do: f.Advice(), Place: f.Place, Output: output, Shell: s.Kind != plan.Native,
			Silenced: f.Silenced, Drill: f.Drill,
		})
	}
}

// withStderr appends the last line of a command's standard error to the message of its failure.
func withStderr(list []checks.Finding) []checks.Finding {
	worst := checks.Worst(list)
	var said []string
	list = slices.DeleteFunc(slices.Clone(list), func(f checks.Finding) bool {
		if f.Code == checks.StderrCode {
			said = append(said, f.Message)
		}
		return f.Code == checks.StderrCode
	})
	if i := slices.IndexFunc(list, func(f checks.Finding) bool { return f.Severity == worst && f.Message != "" }); i >= 0 {
		list[i].Message = strings.Join(append([]string{list[i].Message}, said...), "; ")
	}
	return list
}
