package genconf

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/report"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Trial is the result of a line. Why is the message of its worst finding, "" if it passed.
type Trial struct {
	Why   string
	Worst checks.Severity
	Early bool // ports were not up yet after the boot
}

// try runs lines without a configuration file. It does not mark the node and writes no log.
func try(r *health.Run, lines []conf.Line) map[int]Trial {
	for name, value := range map[string]string{"LOGFILE": "-", "MARK_OFFLINE": "0", "NHC_CHECK_ALL": "1", "SILENT": "1", "VERBOSE": "0"} {
		r.Set.Put(name, value, false)
	}
	r.Bash.Vetted = lines
	r.Judge.HoldMark()
	r.Plan = plan.Build(lines, plan.Options{Vars: r.Set.Vars, Timeout: r.Set.Timeout()})
	t := &trial{Table: report.NewTable(r.Judge, r.Plan), of: map[int]Trial{}}
	r.Pool.SetVars(r.Set.WorkerVars()) // sends the settings to the workers
	r.PrepareChecks(r.Plan)
	_ = r.Judge.Engine(nil).Do(r.Ctx, r.Plan, t) // a signal ended it, or the steps have the reason
	return t.of
}

// trial collects the result of each step.
type trial struct {
	*report.Table

	of map[int]Trial
}

func (t *trial) Native(s *plan.Step, r checks.Result) bool {
	var is Trial
	for _, f := range r.Findings {
		if f.Severity == checks.Skip && f.Device.Kind == "gpu" { // the check applies to other GPUs, or to this one without MIG
			continue
		}
		if f.Severity >= checks.Skip && f.Code != checks.HeldCode { // a line whose check does not apply here is not needed
			if f.Severity > is.Worst || is.Why == "" {
				is.Why = f.Message
			}
			is.Worst = max(is.Worst, f.Severity)
			is.Early = is.Early || fabric.PortsNotUp(f.Code)
		}
	}
	t.of[s.Index] = is
	return true
}

func (t *trial) Expired(s *plan.Step, _ *checks.Hung) (more bool) {
	is := t.of[s.Index]
	is.Why = "no answer in time"
	t.of[s.Index] = is
	return false
}

// Line runs a line with an argument that only bash can read.
func (t *trial) Line(s *plan.Step) bool {
	before := len(t.Rows)
	more := t.Table.Line(s)
	var is Trial
	for _, row := range t.Rows[before:] {
		if row.Severity >= checks.Warn {
			is.Why = row.Message
		}
	}
	t.of[s.Index] = is
	return more
}
