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

// WantsSlurm says whether a check judges by Slurm's configuration.
func WantsSlurm(info checks.Info, c checks.Check) bool {
	return info.Slurm != nil && c != nil && info.Slurm(c)
}

// PrepareChecks gives the checks what they cannot see from their own lines: how many GPUs a
// line of the plan wants, and Slurm's configuration, if a step judges by it. The workers have
// to know where the node begins.
func (n *Node) PrepareChecks(p *plan.Plan) {
	slurm, want := false, 0
	for i := range p.Steps {
		s := &p.Steps[i]
		if info, ok := checks.Lookup(s.Name); ok && s.Kind == plan.Native {
			c := bound(info, s.Args, s.Table)
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

// AskSlurm reads Slurm's configuration, once a run. What cannot be read is not
// known, and changes no verdict.
func (n *Node) AskSlurm() {
	if n.slurmAsked || n.Bad != nil {
		return
	}
	n.slurmAsked = true
	o := n.Pool.Call(n.Ctx, checks.Local,
		&wire.Request{Op: wire.OpSlurm, Name: n.Name, Path: n.Set.Get("SLURM_CONF"), Line: "read Slurm's configuration"}, slurmConfLimit)
	resp, err := o.AnswerTo("read Slurm's configuration")
	if err != nil {
		n.slurmDoubt = err
		n.Debug("%v", err)
		return
	}
	n.Set.Slurm = resp.Slurm.Value
	n.Pool.SetVars(n.Set.WorkerVars())
}

// SlurmRows tell how many GPUs Slurm has on this node, if a check wants to know.
func (n *Node) SlurmRows() []verdict.Row {
	row := verdict.Row{Severity: checks.Skip, Name: "Slurm's Gres"}
	switch g := n.Set.Slurm; {
	case !n.slurmAsked:
		return nil
	case n.slurmDoubt != nil:
		row.Message = "not known: " + n.slurmDoubt.Error()
	case g.Pos == "":
		row.Message = "not known: slurm.conf has no node " + n.Name
	case g.Why != "":
		row.Message = fmt.Sprintf("not used: %s (%s)", g.Why, g.Pos)
	default:
		row.Severity, row.Message = checks.OK, fmt.Sprintf("%d GPUs (%s)", g.Count, g.Pos)
	}
	return []verdict.Row{row}
}

// Facts asks one worker a lane what this node has. It is called after the checks:
// a library that hangs here would hang in the first check that needs it, and that
// check's row must say so.
func (n *Node) Facts() (rows []verdict.Row) {
	type answer struct {
		lane checks.Lane
		o    run.Outcome
		took time.Duration
	}
	lanes := []checks.Lane{checks.Local, checks.NVML, checks.DCGM}
	ch := make([]chan answer, len(lanes))
	for i, lane := range lanes {
		ch[i] = make(chan answer, 1)
		run.Go(func() {
			limit := session.Reading
			if lane == checks.NVML { // the driver may have to wake the GPUs
				limit = plan.StepTimeout(checks.Info{Lane: lane}, nil, n.Set.Timeout())
			}
			limit = n.Budget.Facts(limit, time.Now())
			ch[i] <- answer{lane, n.Pool.Call(n.Ctx, lane, &wire.Request{Op: wire.OpFacts, Name: string(lane), Line: "facts"}, limit), 0}
		})
	}
	for i, lane := range lanes {
		a := <-ch[i]
		resp, err := a.o.Answer()
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

// PlatformGroups are the GPUs on the bus, by what they are.
func (n *Node) PlatformGroups() ([]checks.PlatformGroup, error) {
	n.Pool.SetVars(n.Set.WorkerVars())
	o := n.Pool.Call(n.Ctx, checks.Local, &wire.Request{Op: wire.OpHave, Name: string(inventory.PartPCI), Line: "read the PCI bus"}, session.Reading)
	resp, err := o.Answer()
	switch {
	case err != nil:
		return nil, err
	case resp.Have.Value == nil:
		return nil, errors.New("read the PCI bus: the answer has no device")
	}
	v := n.Set.WorkerVars()
	return checks.GroupPlatforms(resp.Have.Value.IDs, PlatformsOf(v.ProfilesFile, v.Profiles)), nil
}

// PlatformRows tell which platform this node is, a row for each kind of GPU.
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

// Ask has the local worker answer a question of a person.
func (n *Node) Ask(question string, words []string) (*wire.Response, error) {
	return n.AskAbout(&wire.Request{Op: wire.OpAsk, Name: question, Args: words, Line: question})
}

// AskAbout has the local worker answer a request, as the name of the request asks.
func (n *Node) AskAbout(q *wire.Request) (*wire.Response, error) {
	n.Pool.SetVars(n.Set.WorkerVars())
	return n.Pool.Call(n.Ctx, checks.Local, q, session.Reading).AnswerTo(q.Name)
}
