package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/gpu"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
)

// slurmConfLimit is short: the checks can run without the file, and wait for it.
const slurmConfLimit = 2 * time.Second

// bind returns a check with the arguments of its line or the table of its file, nil if they are
// wrong.
func bind(info checks.Info, words []string, table map[string]any) checks.Check {
	c := info.New()
	if checks.BindLine(c, words, table) != nil {
		return nil
	}
	return c
}

// WantsSlurm reports whether a check needs Slurm's configuration.
func WantsSlurm(info checks.Info, c checks.Check) bool {
	return info.Slurm != nil && c != nil && info.Slurm(c)
}

// PrepareChecks sets the data that checks cannot read from their own lines: the number of GPUs
// that a line of the plan requires, and Slurm's configuration if a step needs it. The workers must
// know the root directory of the node.
func (n *Node) PrepareChecks(p *plan.Plan) {
	slurm, want := false, 0
	for i := range p.Steps {
		s := &p.Steps[i]
		if info, ok := checks.Lookup(s.Name); ok && s.Kind == plan.Native {
			c := bind(info, s.Args, s.Table)
			slurm, want = slurm || WantsSlurm(info, c), max(want, gpu.WantedGPUs(c))
		}
	}
	if n.Set.WantedGPUs != want {
		n.Set.WantedGPUs = want
		n.Pool.SetVars(n.Set.WorkerVars())
	}
	if slurm {
		n.AskSlurm()
	}
}

// AskSlurm reads Slurm's configuration, once in a run. An unreadable configuration counts as
// unknown and changes no verdict.
func (n *Node) AskSlurm() {
	if n.slurmAsked || n.Bad != nil {
		return
	}
	n.slurmAsked = true
	q := &wire.Request{Op: wire.OpSlurm, Name: n.Name, Path: n.Set.Get("SLURM_CONF"), Line: "read Slurm's configuration"}
	resp, err := n.Pool.Call(n.Ctx, checks.Local, q, slurmConfLimit).AnswerTo(q.Line)
	if err != nil {
		n.slurmDoubt = err
		n.Debug("%v", err)
		return
	}
	n.Set.Slurm = resp.Slurm
	n.Pool.SetVars(n.Set.WorkerVars())
}

// SlurmRows returns a row with the number of GPUs in Slurm's Gres, if a check needs it.
func (n *Node) SlurmRows() []verdict.Row {
	row := verdict.Row{Severity: checks.Skip, Name: "Slurm's Gres"}
	switch g := n.Set.Slurm; {
	case !n.slurmAsked:
		return nil
	case n.slurmDoubt != nil:
		row.Message = "unknown: " + n.slurmDoubt.Error()
	case g.Pos == "":
		row.Message = "unknown: slurm.conf has no node " + n.Name
	case g.Why != "":
		row.Message = fmt.Sprintf("not used: %s (%s)", g.Why, g.Pos)
	default:
		row.Severity, row.Message = checks.OK, fmt.Sprintf("%d GPUs (%s)", g.Count, g.Pos)
	}
	return []verdict.Row{row}
}

// Facts asks one worker per lane for the devices of this node; without lanes it asks all that know
// devices. Call it after the checks: a library that hangs here hangs first in the first check that
// needs it, and that check's row must report it.
func (n *Node) Facts(lanes ...checks.Lane) (rows []verdict.Row) {
	if len(lanes) == 0 {
		lanes = []checks.Lane{checks.Local, checks.NVML, checks.DCGM}
	}
	ch := make([]chan run.Outcome, len(lanes))
	for i, lane := range lanes {
		ch[i] = make(chan run.Outcome, 1)
		run.Go(func() {
			limit := session.Reading
			if lane == checks.NVML { // the driver may need to wake the GPUs
				limit = plan.StepTimeout(checks.Info{Lane: lane}, nil, n.Set.Timeout())
			}
			limit = n.Budget.Facts(limit, time.Now())
			ch[i] <- n.Pool.Call(n.Ctx, lane, &wire.Request{Op: wire.OpFacts, Name: string(lane), Line: "facts"}, limit)
		})
	}
	for i, lane := range lanes {
		resp, err := (<-ch[i]).Answer()
		if err != nil {
			rows = append(rows, verdict.Row{Severity: checks.Unknown, Name: string(lane), Message: err.Error()})
			continue
		}
		for _, f := range resp.Facts {
			sev := checks.OK
			if !f.Found {
				sev = checks.Skip
			}
			rows = append(rows, verdict.Row{Severity: sev, Name: f.Thing, Message: f.Detail})
		}
	}
	return rows
}

// PlatformGroups returns the groups of GPUs on the bus.
func (n *Node) PlatformGroups() ([]checks.PlatformGroup, error) {
	n.Pool.SetVars(n.Set.WorkerVars())
	o := n.Pool.Call(n.Ctx, checks.Local, &wire.Request{Op: wire.OpHave, Name: string(inventory.PartPCI), Line: "read the PCI bus"}, session.Reading)
	resp, err := o.Answer()
	switch {
	case err != nil:
		return nil, err
	case resp.Have == nil:
		return nil, errors.New("read the PCI bus: the answer is empty")
	}
	v := n.Set.WorkerVars()
	return checks.GroupPlatforms(resp.Have.IDs, PlatformsOf(v.ProfilesFile, v.Profiles)), nil
}

// PlatformRows returns a row with the platform of each group of GPUs.
func (n *Node) PlatformRows() (rows []verdict.Row) {
	const name = "platform"
	groups, err := n.PlatformGroups()
	if err != nil {
		return []verdict.Row{{Severity: checks.Unknown, Name: name, Message: err.Error()}}
	}
	for i := range groups {
		severity := checks.OK
		if groups[i].Platform == nil {
			severity = checks.Skip
		}
		rows = append(rows, verdict.Row{Severity: severity, Name: name, Message: groups[i].String()})
	}
	return rows
}

// Ask sends a user's question to the local worker.
func (n *Node) Ask(question string, words []string) (*wire.Response, error) {
	return n.AskAbout(&wire.Request{Op: wire.OpAsk, Name: question, Args: words, Line: question})
}

// AskAbout sends a request to the local worker.
func (n *Node) AskAbout(q *wire.Request) (*wire.Response, error) {
	n.Pool.SetVars(n.Set.WorkerVars())
	return n.Pool.Call(n.Ctx, checks.Local, q, session.Reading).AnswerTo(q.Line)
}
