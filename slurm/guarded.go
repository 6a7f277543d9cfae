package slurm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// guardPace is the share of a node in the time between two counts of a held drain: all nodes together
// ask slurmctld five times a second, as each count reads all nodes.
const guardPace = 200 * time.Millisecond

// inTurn runs work with the memory. If the guard is to count after a wait, the drain is stored as
// pending first, so that a run that is killed while it waits loses nothing; then work runs again. The
// lock is free while the run waits.
func (c *Controller) inTurn(ctx context.Context, work func(*Memory, *Outcome) error) (Outcome, error) {
	out, err := c.withMemory(ctx, work)
	if err != nil || out.wait == 0 {
		return out, err
	}
	c.waited = true
	if out.Warning == nil { // the drain is stored
		if c.Wait == nil {
			c.Wait = time.Sleep
		}
		c.Wait(out.wait)
	}
	again, err := c.withMemory(ctx, work)
	again.Calls += out.Calls
	again.warn(out.Warning)
	return again, err
}

// guards reports whether the guard decides about a drain. A prolog or an epilog that fails drains the
// node in any case: otherwise Slurm would, and a node that is not drained would refuse one job after
// the other.
func (c *Controller) guards(v Verdict, m *Memory, node NodeInfo, reason string) bool {
	released := m.Pending.Released && m.Pending.Fault == v.fault()
	inService := node.State.Class == InService && !node.State.Held
	return c.Guard != nil && inService && !v.Refused && !m.Pending.Refused && !released && !c.Guard.exempts(reason)
}

// askGuard reports whether the guard permits a drain. If it does not, the drain is pending, and out
// has the reason.
func (c *Controller) askGuard(ctx context.Context, v Verdict, d *Decision, m *Memory, out *Outcome) (permitted bool, err error) {
	if longest := min(c.Guard.Jitter, c.MaxWait); longest > 0 && !c.waited && !v.Busy && !c.Observe && c.Dir != nil && isShared(d.Reason) {
		out.wait = 1 + rand.N(longest)
		out.Why = "the guard counts after a wait"
		c.suspend(v, m, out)
		return false, nil
	}
	why, of := "", 0
	groups, err := ask(ctx, c, "count the drained nodes", c.Settings.groupsArgv, parseGroups)
	switch {
	case err == nil:
		r := c.Guard.Rule(c.Node, d.Reason, groups)
		if r.Partition != "" {
			d.Why += "; " + r.String()
		}
		if !r.Hold {
			return true, nil
		}
		why, of = r.String(), r.Of
	case !errors.Is(err, errUnanswered) && !m.Pending.Uncounted:
		m.keep(v, c.now()) // slurmctld is busy or down: the next run tries again, as for any other call
		m.Pending.Uncounted = true
		return false, err
	case c.Guard.HoldUncounted:
		why = printable(err.Error())
	default:
		d.Why += "; the guard cannot " + printable(err.Error())
		return true, nil
	}
	out.Repeats = m.Pending.Held != "" && m.Pending.Fault == v.fault()
	out.hold(d.Reason, why)
	c.suspend(v, m, out)
	m.Pending.Held = why
	m.Next = c.next(min(time.Duration(of)*guardPace, heldRecheck, c.Settings.Recheck))
	return false, nil
}

// suspend stores a drain that is not sent now.
func (c *Controller) suspend(v Verdict, m *Memory, out *Outcome) {
	m.keep(v, c.now())
	m.owe(v.Cause, true)
	m.Reported, m.Refusal, out.Pending = ReportedUnknown, Refusal{}, true
}

// hold sets the outcome of a drain that the guard holds.
func (o *Outcome) hold(reason, why string) {
	o.Decision, o.Guarded = Decision{Action: Drain, Reason: reason, Why: "held by guard: " + why}, why
}

// Release delivers the drain that the guard holds. If Slurm does not answer now, a later run delivers
// it. Without a held drain it makes no call.
func (c *Controller) Release(ctx context.Context) (Outcome, error) {
	return c.withMemory(ctx, func(m *Memory, out *Outcome) error {
		if m.Pending.Held == "" {
			out.Why = "the guard holds no drain of this node"
			return nil
		}
		m.Pending.Held, m.Pending.Released = "", true
		return c.settle(ctx, m.pendingVerdict(), m, out)
	})
}

// heldComment begins each comment that nhc-gpu writes about a node.
const heldComment = "NHC: drain held by guard"

// commentColumn is the width at which sinfo prints a comment.
const commentColumn = 2048

// updateComment has the comment of the node in Slurm state that the guard holds its drain. It
// overwrites no comment of another writer. An error has no effect: the comment is for people only,
// and Slurm before 20.11 has none.
func (c *Controller) updateComment(ctx context.Context, m *Memory) {
	text := ""
	if m.Pending.Held != "" {
		text = cut(fmt.Sprintf("%s since %s: %s", heldComment, m.Pending.Since.Format(time.RFC3339), m.Pending.Message), MaxReason)
	}
	if c.Observe || text == m.Comment {
		return
	}
	m.Comment = text // after an error, too: one try
	now, err := ask(ctx, c, "read the comment of node "+c.Node, c.Settings.nodeCommentArgv, func(out []byte) (string, error) {
		return strings.TrimSpace(firstLine(out)), nil
	})
	if err != nil || now != "" && now != "(null)" && !strings.HasPrefix(now, heldComment) {
		return
	}
	if argv, err := c.Settings.setNodeCommentArgv(c.Node, text); err == nil {
		_, _ = c.call(ctx, argv)
	}
}
