package slurm

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Outcome is what acting on a verdict came to.
type Outcome struct {
	// Decision is what was done. Its Action is None when nothing was, because
	// nothing was due or because it could not be delivered.
	Decision

	Node    NodeInfo // as last read; zero when Slurm was not asked
	Calls   int      // commands started
	Kept    bool     // a healthy run does not resume the node: it has not looked at what drained it
	Pending bool     // a drain could not be delivered and is kept for the next run
	Warning error    // trouble with the state directory, which changed nothing else
}

// lockWait bounds the wait for another run of the same node that is acting.
const lockWait = 2 * time.Second

// Act carries out what a verdict means for the node.
//
// A healthy node that was told so in this boot is left alone without a call.
// Otherwise the node is read, and written to directly after; if the write
// reports an error it may still have been carried out, so the node is read
// again before the one further try. What cannot be delivered is an error; a
// drain is then kept in the state directory, for the next run with a failing
// verdict, or with none ([Controller.Deliver]). A healthy verdict voids it.
//
// A prolog or an epilog that fails lets slurmd know by its status, too: if its
// drain could not be delivered it later takes the place of Slurm's own "Prolog
// error" or "Epilog error", and of no other reason.
//
// What the node was drained for is taken back only by a run that has looked at it
// (see [Mark]), or by a person.
//
// A prolog or an epilog that passes says nothing of the rest of the node: it
// makes no call and changes nothing. One that fails drains the node.
func (c *Controller) Act(ctx context.Context, verdict Verdict, role Role) (Outcome, error) {
	if verdict.Healthy && (role == Prolog || role == Epilog) {
		return Outcome{Decision: Decision{Why: "one job's checks passed"}}, nil
	}
	if m, err := c.recall(); err == nil && verdict.Healthy && c.steady(m) {
		return Outcome{Decision: Decision{Why: "in service when last asked"}}, nil
	}
	return c.remembering(ctx, func(m *Memory, out *Outcome) error {
		return c.settle(ctx, verdict, m, out)
	})
}

// Deliver carries out the drain that an earlier run of this boot had to leave
// pending, if there is one and nothing newer has replaced it. It is for runs
// that come to no verdict; without a pending drain it makes no call.
func (c *Controller) Deliver(ctx context.Context) (Outcome, error) {
	if m, err := c.recall(); err == nil && m.Pending == (Pending{}) {
		return Outcome{Decision: Decision{Why: "nothing is pending"}}, nil
	}
	return c.remembering(ctx, func(m *Memory, out *Outcome) error {
		if m.Pending == (Pending{}) {
			out.Why = "nothing is pending"
			return nil
		}
		return c.settle(ctx, Verdict{Message: m.Pending.Message}, m, out)
	})
}

// steady reports whether Slurm need not be asked about a healthy node.
func (c *Controller) steady(m Memory) bool {
	return m.Told == ToldOK && m.Pending == (Pending{}) && c.NodeIsHealthy != "no"
}

// settle reads, decides and writes, at most twice.
func (c *Controller) settle(ctx context.Context, v Verdict, m *Memory, out *Outcome) error {
	standing, why := m.standing(v)
	switch {
	case v.Healthy && m.pendingOf(standing):
		v = Verdict{Message: m.Pending.Message}
	case v.Healthy:
		m.Pending = Pending{}
	case sameReason(Reason(m.Pending.Message), Reason(v.Message)):
		v.Message = m.Pending.Message // it may name a job, which has ended since
	}
	m.Marks = standing
	m.mark(v)
	var tried Decision
	var failed error
	for range 2 {
		node, err := c.Read(ctx)
		out.Calls++
		if err != nil {
			if failed != nil {
				err = fmt.Errorf("%w; %w", failed, err)
			}
			failed = err
			break
		}
		node.Refused = m.Pending.Refused
		out.Node = node
		d := Decide(node, v, c.Settings.Policy)
		if len(standing) > 0 && v.Healthy && d.Action == Resume {
			out.Kept = true
			if d = keepDrained(node, standing, why); d.Action == None {
				out.Decision = d
				return nil
			}
		}
		if d.Action == None {
			if v.Healthy && !node.mayBeHeld() {
				m.Marks = nil // somebody else has taken the node over
			}
			out.Decision = d
			if tried.appliedTo(node) {
				out.Decision = tried
				out.Why = fmt.Sprintf("%s, and carried out in spite of: %v", tried.Why, failed)
			}
			m.tell(v, node)
			return nil
		}
		if d.Action == Drain && m.Told == ToldDrained {
			m.Marks = nil // somebody has resumed it since
			m.mark(v)
		}
		err = c.write(ctx, d)
		out.Calls++
		if err == nil {
			out.Decision = d
			m.told(d)
			return nil
		}
		tried, failed = d, err
		m.Unsettled = true
	}
	out.Why = "Slurm could not be told"
	if !v.Healthy {
		m.keep(v, time.Now())
		out.Pending, out.Reason = true, Reason(v.Message)
	}
	m.Told = ToldUnknown
	return failed
}

// appliedTo reports whether a decision shows in the node's state.
func (d Decision) appliedTo(node NodeInfo) bool {
	switch d.Action {
	case Drain, Renew:
		return (node.State.Class == Drained || node.State.Held) && sameReason(node.Reason, d.Reason)
	case Resume:
		return node.State.Class == InService
	default:
		return false
	}
}

// remembering runs work on the memory under the lock. If the lock cannot be had
// in time the work is done all the same, but nothing is taken for granted after
// it: neither by us nor, since the memory has changed under its hands, by the
// holder.
func (c *Controller) remembering(ctx context.Context, work func(*Memory, *Outcome) error) (Outcome, error) {
	var out Outcome
	wait := lockWait
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end))
	}
	unlock, lockErr := c.lock(wait)
	if lockErr == nil {
		defer unlock()
	} else if !errors.Is(lockErr, ErrBusy) {
		out.Warning = lockErr
	}
	before, err := c.recall()
	out.warn(err)
	after := before
	err = work(&after, &out)
	out.warn(c.remember(before, after, lockErr == nil))
	return out, err
}

// warn keeps the first warning: one is enough to say that there is no memory.
func (o *Outcome) warn(err error) {
	if o.Warning == nil {
		o.Warning = err
	}
}
