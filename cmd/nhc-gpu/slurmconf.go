package main

import (
	"fmt"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
)

// What Slurm's configuration says of this node. It is read off the node, for
// checks that want it; slurmctld is not asked.

// slurmConfLimit is short: the checks do without it, and they are waiting.
const slurmConfLimit = 2 * time.Second

// bound is a check with the words of its line, or the table of its file, nil if they are wrong.
func bound(info checks.Info, words []string, table map[string]any) checks.Check {
	c, bind := info.New(), func(c checks.Check) error { return checks.Bind(c, words) }
	if table != nil {
		bind = func(c checks.Check) error { return checks.BindTable(c, table) }
	}
	if bind(c) != nil {
		return nil
	}
	return c
}

// wantsSlurm says whether a check judges by Slurm's configuration.
func wantsSlurm(info checks.Info, c checks.Check) bool {
	return info.Slurm != nil && c != nil && info.Slurm(c)
}

// prepareChecks gives the checks what they cannot see from their own lines: how many GPUs a
// line of the plan wants, and Slurm's configuration, if a step judges by it. The workers have
// to know where the node begins.
func (r *oneRun) prepareChecks(p *plan.Plan) {
	slurm, want := false, 0
	for i := range p.Steps {
		s := &p.Steps[i]
		if info, ok := checks.Lookup(s.Name); ok && s.Kind == plan.Native {
			c := bound(info, s.Args, s.Table)
			slurm, want = slurm || wantsSlurm(info, c), max(want, checks.WantedGPUs(c))
		}
	}
	if r.set.WantedGPUs != want {
		r.set.WantedGPUs = want
		r.pool.SetVars(r.set.WorkerVars())
	}
	if slurm {
		r.askSlurm()
	}
}

// askSlurm reads Slurm's configuration, once a run. What cannot be read is not
// known, and changes no verdict.
func (r *oneRun) askSlurm() {
	if r.slurmAsked || r.node.bad != nil {
		return
	}
	r.slurmAsked = true
	o := r.pool.Call(r.ctx, checks.Local,
		&run.Request{Op: run.OpSlurm, Name: r.node.name, Path: r.set.Get("SLURM_CONF"), Line: "read Slurm's configuration"}, slurmConfLimit)
	resp, err := o.AnswerTo("read Slurm's configuration")
	if err != nil {
		r.slurmDoubt = err
		r.debug("%v", err)
		return
	}
	r.set.Slurm = resp.Slurm.Value
	r.pool.SetVars(r.set.WorkerVars())
}

// slurmRows tell how many GPUs Slurm has on this node, if a check wants to know.
func (r *oneRun) slurmRows() []verdict.Row {
	row := verdict.Row{Severity: checks.Skip, Name: "Slurm's Gres"}
	switch g := r.set.Slurm; {
	case !r.slurmAsked:
		return nil
	case r.slurmDoubt != nil:
		row.Message = "not known: " + r.slurmDoubt.Error()
	case g.Pos == "":
		row.Message = "not known: slurm.conf has no node " + r.node.name
	case g.Why != "":
		row.Message = fmt.Sprintf("not used: %s (%s)", g.Why, g.Pos)
	default:
		row.Severity, row.Message = checks.OK, fmt.Sprintf("%d GPUs (%s)", g.Count, g.Pos)
	}
	return []verdict.Row{row}
}
