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

// wantsSlurm says whether a check judges by Slurm's configuration.
func wantsSlurm(info checks.Info, words []string, table map[string]any) bool {
	if info.Slurm == nil {
		return false
	}
	c := info.New()
	if table != nil {
		return checks.BindTable(c, table) == nil && info.Slurm(c)
	}
	return checks.Bind(c, words) == nil && info.Slurm(c)
}

// askSlurmFor reads Slurm's configuration if a step of the plan wants it. The
// workers have to know where the node begins.
func (r *oneRun) askSlurmFor(p *plan.Plan) {
	for i := range p.Steps {
		s := &p.Steps[i]
		if info, ok := checks.Lookup(s.Name); ok && s.Kind == plan.Native && wantsSlurm(info, s.Args, s.Table) {
			r.askSlurm()
			return
		}
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
		&run.Request{Op: run.OpSlurm, Name: r.node.name, Path: r.set.get("SLURM_CONF"), Line: "read Slurm's configuration"}, slurmConfLimit)
	resp, err := o.AnswerTo("read Slurm's configuration")
	if err != nil {
		r.slurmDoubt = err
		r.debug("%v", err)
		return
	}
	r.set.slurm = resp.Slurm
	r.pool.SetVars(r.set.workerVars())
}

// slurmRows tell how many GPUs Slurm has on this node, if a check wants to know.
func (r *oneRun) slurmRows() []verdict.Row {
	row := verdict.Row{Severity: checks.Skip, Name: "Slurm's Gres"}
	switch g := r.set.slurm; {
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
