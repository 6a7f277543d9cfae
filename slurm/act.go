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
	Spared  bool     // Slurm was not asked: nothing has changed since it was
	Repeats bool     // the error is one that was reported before, and stands
	Refused bool     // the error is permanent: Slurm refuses the request
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
// makes no call. One that fails drains the node.
//
// A run with an unchanged verdict asks nothing about a node that is out of service,
// except for a slow re-check (see [Settings.Recheck]).
func (c *Controller) Act(ctx context.Context, verdict Verdict, role Role) (Outcome, error) {
	if verdict.Healthy && (role == Prolog || role == Epilog) {
		out := Outcome{Decision: Decision{Why: "one job's checks passed"}}
		if m, err := c.recall(); role == Prolog && err == nil && !m.Next.IsZero() {
			noted, _ := c.remembering(ctx, func(m *Memory, _ *Outcome) error {
				m.Next = time.Time{} // a job starts: the node may be in service again
				return nil
			})
			out.Warning = noted.Warning
		}
		return out, nil
	}
	if m, err := c.recall(); err == nil && (verdict.Healthy && c.steady(m) || c.spared(m, verdict, role)) {
		return c.leave(ctx, m, verdict)
	}
	return c.remembering(ctx, func(m *Memory, out *Outcome) error {
		return c.settle(ctx, verdict, m, out)
	})
}

// leave asks nothing, and keeps slurmd's latest report on the node.
func (c *Controller) leave(ctx context.Context, m Memory, v Verdict) (Outcome, error) {
	out := Outcome{Decision: Decision{Why: "in service when last asked"}, Spared: true, Pending: m.Pending != (Pending{})}
	if standing, why := m.standing(v); m.Told == ToldDrained && v.Healthy && len(standing) > 0 {
		out.Kept, out.Why = true, keptFor(standing, why)
	} else if m.Told != ToldOK {
		out.Why = "nothing has changed since it was last asked"
	}
	if c.NodeIsHealthy == "" || c.NodeIsHealthy == m.IsHealthy {
		return out, nil
	}
	noted, _ := c.remembering(ctx, func(m *Memory, _ *Outcome) error {
		m.IsHealthy = c.NodeIsHealthy
		return nil
	})
	out.Warning = noted.Warning
	return out, nil
}

// Deliver carries out the drain that an earlier run of this boot had to leave
// pending, if there is one and nothing newer has replaced it. It is for runs
// that come to no verdict; without a pending drain it makes no call.
func (c *Controller) Deliver(ctx context.Context) (Outcome, error) {
	m, err := c.recall()
	if c.Observe {
		return Outcome{Decision: Decision{Why: "nothing is sent"}}, nil
	}
	switch {
	case err != nil:
	case m.Pending == (Pending{}):
		return Outcome{Decision: Decision{Why: "nothing is pending"}}, nil
	case m.Refusal.Text != "" && !c.due(m):
		return Outcome{Decision: Decision{Why: "Slurm refused it"}, Spared: true, Pending: true}, nil
	}
	return c.remembering(ctx, func(m *Memory, out *Outcome) error {
		if m.Pending == (Pending{}) {
			out.Why = "nothing is pending"
			return nil
		}
		return c.settle(ctx, m.pendingVerdict(), m, out)
	})
}

// steady reports whether Slurm need not be asked about a healthy node.
func (c *Controller) steady(m Memory) bool {
	return m.Told == ToldOK && m.Pending == (Pending{}) && !c.news(m)
}

// pendingVerdict is that of the run whose drain is pending.
func (m *Memory) pendingVerdict() Verdict {
	return Verdict{Message: m.Pending.Message, pending: m.Pending.Fault}
}

// settle reads, decides and writes, at most twice.
func (c *Controller) settle(ctx context.Context, v Verdict, m *Memory, out *Outcome) error {
	standing, why := m.standing(v)
	m.For, m.Next, m.IsHealthy = c.question(*m, v), time.Time{}, c.NodeIsHealthy
	owed, owes := m.owed(standing)
	switch {
	case v.Healthy && owes:
		if v = owed; v.Message != m.Pending.Message {
			m.Pending = Pending{Refused: m.Pending.Refused} // the run has looked at it
		}
	case v.Healthy:
		m.Pending = Pending{}
	case m.Pending.Fault != "" && m.Pending.Fault == v.fault(), sameReason(Reason(m.Pending.Message), Reason(v.Message)):
		v.Message = m.Pending.Message // it may name a job, which has ended since
	}
	m.Marks = standing
	m.mark(v)
	var tried Decision
	var failed error
	fault := v.fault()
	for range 2 {
		node, err := c.Read(ctx)
		if err != nil {
			if failed != nil {
				err = fmt.Errorf("%w; %w", failed, err)
			}
			failed = err
			break
		}
		node = m.pretend(node)
		node.Refused = m.Pending.Refused
		node.Foreign = m.isForeign(node.Reason)
		node.Same = m.Fault != "" && m.Fault == v.fault() && sameReason(node.Reason, m.Reason)
		out.Node = node
		d := Decide(node, v, c.Settings.Policy)
		if len(standing) > 0 && v.Healthy && d.Action == Resume {
			out.Kept = true
			fault = standing[len(standing)-1].Fault
			if d = keepDrained(node, standing, why); d.Action == None {
				out.Decision = d
				m.tell(v, node)
				m.Next, m.Refusal = c.nextOf(node), Refusal{}
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
			if !node.State.passes() {
				m.owe(Cause{}, false)
			} else if !v.Healthy {
				m.owe(v.Cause, true)
			}
			m.tell(v, node)
			m.Next, m.Refusal = c.nextOf(node), Refusal{}
			return nil
		}
		if d.Action == Drain && m.Told == ToldDrained {
			m.Marks = nil // somebody has resumed it since
			m.mark(v)
		}
		err = c.write(ctx, d)
		if err == nil {
			out.Decision = d
			m.told(d, fault)
			if c.Observe {
				m.Pretended = m.Pretended.then(d, node)
			}
			m.owe(Cause{}, false)
			m.Next, m.Refusal = time.Time{}, Refusal{}
			if !node.State.passing() {
				m.Next = c.next(c.Settings.Recheck)
			}
			return nil
		}
		tried, failed = d, err
		if isRefusal(err) {
			break
		}
		m.Unsettled, m.Known = true, false
	}
	out.Why = "Slurm could not be told"
	if !v.Healthy {
		m.keep(v, time.Now())
		m.owe(v.Cause, true)
		out.Pending, out.Reason = true, Reason(v.Message)
	}
	m.Told = ToldUnknown
	if out.Refused = isRefusal(failed); out.Refused {
		out.Repeats = c.refuse(m, failed)
	} else {
		m.Refusal = Refusal{}
	}
	return failed
}

// nextOf is when Slurm is asked again about a node that was left as it is. The zero
// value is the next run.
func (c *Controller) nextOf(node NodeInfo) time.Time {
	held := node.State.Class == Drained && (node.State.Held || !node.State.Full)
	switch {
	case node.State.is("NOT_RESPONDING") && node.State.Class == Down:
		return time.Time{} // slurmd is about to register it
	case held && node.State.Order == "":
		return c.next(c.Settings.Recheck)
	case node.State.Class == Drained, node.State.Class == Down:
		return c.next(min(heldRecheck, c.Settings.Recheck))
	}
	return time.Time{}
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
	calls := c.calls
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
	out.Calls = c.calls - calls
	out.warn(c.remember(before, after, lockErr == nil))
	return out, err
}

// warn keeps the first warning: one is enough to say that there is no memory.
func (o *Outcome) warn(err error) {
	if o.Warning == nil {
		o.Warning = err
	}
}
