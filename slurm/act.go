package slurm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Outcome is the result of acting on a verdict.
type Outcome struct {
	// Decision is the action that was carried out. Its Action is None if no action was
	// due or if it could not be delivered.
	Decision

	Node    NodeInfo // as last read; zero if Slurm was not asked
	Calls   int      // commands started
	Spared  bool     // Slurm was not asked: nothing has changed since the last time
	Repeats bool     // the error, or the hold of the guard, still stands and was reported before
	Refused bool     // the error is permanent: Slurm refuses the request
	Kept    bool     // a healthy run does not resume the node: it has not checked the fault, or the fault must stay away for longer
	Pending bool     // a drain could not be delivered and is kept for the next run
	Guarded string   // why the guard holds the drain, which is pending; "" if it does not
	Warning error    // an error of the state directory, without other effects

	// Reported and OurReason are [Memory.Reported] and [Memory.Reason] after the run: who has drained the
	// node, as far as this run knows.
	Reported  Reported
	OurReason string

	fault     string        // of the drain that the guard holds
	wait      time.Duration // how long to wait before the guard counts
	recounted bool          // the node changed while the guard counted
}

// lockWait is the longest wait for another run that acts on the same node.
const lockWait = 2 * time.Second

// Act carries out a verdict.
//
// If Slurm already knows in this boot that the node is healthy, Act makes no call. Otherwise
// it reads the node and writes to it immediately after. A write that reports an error may
// still have been carried out, so Act reads the node again before its one further try. If the
// decision cannot be delivered, Act returns an error and keeps a drain in the state directory.
// The next run with a failing verdict, or with none ([Controller.Deliver]), delivers it. A
// healthy verdict cancels it.
//
// A failing prolog or epilog also informs slurmd by its exit status. If its drain could not
// be delivered, it later replaces Slurm's own "Prolog error" or "Epilog error", and no other
// reason.
//
// Only a run that has checked the fault again (see [Mark]) resumes the node, or a person does.
//
// A prolog, an epilog or a run of the monitor that passes changes nothing: it has not seen the rest of the
// node. The monitor's run delivers a pending drain. If one of them fails, it drains the node.
//
// A run with an unchanged verdict does not ask Slurm about a node that is out of service,
// except for a slow re-check (see [Settings.Recheck]).
func (c *Controller) Act(ctx context.Context, verdict Verdict, role Role) (Outcome, error) {
	if verdict.Healthy && (role.AroundJob() || verdict.Part) {
		out := Outcome{Decision: Decision{Why: "a part of the checks passed"}}
		if m, err := c.recall(); role == Prolog && err == nil && !m.Next.IsZero() {
			noted, _ := c.withMemory(ctx, func(m *Memory, _ *Outcome) error {
				m.Next = time.Time{} // a job starts: the node can be in service again
				return nil
			})
			out.Warning = noted.Warning
		} else if verdict.Part && err == nil && m.Pending != (Pending{}) {
			return c.Deliver(ctx) // slurmctld may answer by now
		}
		return out, nil
	}
	m, err := c.recall()
	if err == nil && (verdict.Healthy && c.isSteady(m) || c.spared(m, verdict, role)) {
		return c.leave(ctx, m, verdict)
	}
	if err == nil && !m.isSettled() && m.Pending == (Pending{}) {
		c.spread(verdict)
	}
	return c.inTurn(ctx, func(m *Memory, out *Outcome) error {
		return c.settle(ctx, verdict, m, out)
	})
}

// spread waits before the first call about a fault of one node: a wrong line of a configuration reaches all
// nodes in the same moment, and each counts those that are drained.
func (c *Controller) spread(v Verdict) {
	if c.Guard == nil || v.Healthy || v.Refused || v.Busy || c.Observe || c.Dir == nil {
		return
	}
	reason, longest := Reason(v.Message), min(c.Guard.Short, c.MaxWait)
	if longest > 0 && !isShared(reason) && !c.Guard.exempts(reason) {
		c.sleep(1 + rand.N(longest))
		c.waited = true
	}
}

func (c *Controller) sleep(d time.Duration) {
	if c.Wait == nil {
		c.Wait = time.Sleep
	}
	c.Wait(d)
}

// leave makes no call, and stores slurmd's latest report on the node.
func (c *Controller) leave(ctx context.Context, m Memory, v Verdict) (Outcome, error) {
	out := Outcome{Decision: Decision{Why: "in service when last asked"}, Spared: true, Pending: m.Pending != (Pending{}), Reported: m.Reported, OurReason: m.Reason}
	if m.Pending.Held != "" {
		out.hold(Reason(m.Pending.Message), m.Pending)
	} else if m.Lost != "" && v.Healthy && m.Reported == ReportedLeftAlone {
		out.Kept, out.Why = true, m.lostFor()
	} else if standing, why := m.findStanding(v); m.Reported == ReportedDrained && v.Healthy && len(standing) > 0 {
		out.Kept, out.Why = true, keptFor(standing, why)
	} else if m.Reported != ReportedOK {
		out.Why = "nothing has changed since it was last asked"
	}
	if c.NodeIsHealthy == "" || c.NodeIsHealthy == m.IsHealthy {
		return out, nil
	}
	noted, _ := c.withMemory(ctx, func(m *Memory, _ *Outcome) error {
		m.IsHealthy = c.NodeIsHealthy
		return nil
	})
	out.Warning = noted.Warning
	return out, nil
}

// Deliver carries out the drain that an earlier run of this boot could not deliver, if there is
// one and nothing newer has replaced it. It is for runs without a verdict. Without a pending
// drain it makes no call.
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
	case m.Pending.Held != "" && !c.due(m):
		out := Outcome{Spared: true, Pending: true}
		out.hold(Reason(m.Pending.Message), m.Pending)
		return out, nil
	}
	return c.inTurn(ctx, func(m *Memory, out *Outcome) error {
		if m.Pending == (Pending{}) {
			out.Why = "nothing is pending"
			return nil
		}
		return c.settle(ctx, m.pendingVerdict(), m, out)
	})
}

// isSteady reports whether a healthy node needs no call to Slurm.
func (c *Controller) isSteady(m Memory) bool {
	return m.Reported == ReportedOK && m.Pending == (Pending{}) && !c.news(m)
}

// pendingVerdict returns the verdict of the run whose drain is pending.
func (m *Memory) pendingVerdict() Verdict {
	return Verdict{Message: m.Pending.Message, pending: m.Pending.Fault}
}

// settle reads, decides and writes, at most twice.
func (c *Controller) settle(ctx context.Context, v Verdict, m *Memory, out *Outcome) error {
	standing, why := m.findStanding(v)
	known := m.Marks
	v = c.adopt(v, m, standing)
	var tried Decision
	var failed error
	fault := v.fault()
	for tries := 0; tries < 2; tries++ {
		node, err := c.look(ctx, v, m, known)
		if err != nil {
			if failed != nil {
				err = fmt.Errorf("%w; %w", failed, err)
			}
			failed = err
			break
		}
		out.Node = node
		d := Decide(node, v, c.Settings.Policy)
		if m.Lost != "" && v.Healthy && (d.Action == Resume || node.isHeld() && Ours(node.Reason) && !BySweep(node.Reason)) {
			out.Kept, d = true, Decision{Why: m.lostFor()}
		}
		if (len(standing) > 0 || v.Early) && v.Healthy && d.Action == Resume {
			out.Kept = true
			if d = (Decision{Why: "not all is judged yet after the boot"}); len(standing) > 0 {
				fault = standing[len(standing)-1].Fault
				d = keepDrained(node, standing, why)
			}
			if d.Action == None {
				out.Decision = d
				m.noteLeft(v, node)
				m.Next, m.Refusal = c.nextOf(node), Refusal{}
				return nil
			}
		}
		if d.Action == None {
			out.Decision = d
			if tried.appliedTo(node) {
				out.Decision = tried
				out.Why = fmt.Sprintf("%s, and carried out in spite of: %v", tried.Why, failed)
			}
			c.leaveAlone(v, m, out)
			return nil
		}
		if d.Action == Drain && (m.Reported == ReportedDrained || m.Reported == ReportedMaintained) && !node.State.maintained() {
			m.Marks = slices.DeleteFunc(slices.Clone(m.Marks), func(k Mark) bool { return !k.Owed }) // another user has resumed it since
			m.mark(v, c.now())
		}
		if d.Action == Drain && tried.Action == None && c.guards(v, m, node, d.Reason) {
			permitted, err := c.askGuard(ctx, v, &d, m, out)
			if errors.Is(err, errChanged) {
				tries--
				continue
			}
			if err != nil {
				failed = err
				break
			}
			if !permitted {
				return nil
			}
		}
		c.foresee(v, *m)
		err = c.write(ctx, d)
		if err == nil {
			out.Decision = d
			c.noteWritten(d, fault, m, node)
			return nil
		}
		tried, failed = d, err
		if isRefusal(err) {
			break
		}
		m.Unsettled, m.Known = true, false
	}
	return c.postpone(v, m, out, failed)
}

// adopt starts to act on a verdict, and returns what to act on: a healthy run can owe a drain, and an unchanged fault
// keeps its first message.
func (c *Controller) adopt(v Verdict, m *Memory, standing []Mark) Verdict {
	m.For, m.Next, m.IsHealthy = c.question(*m, v), time.Time{}, c.NodeIsHealthy
	owed, owes := m.findOwed(standing)
	switch {
	case v.Healthy && owes:
		if v = owed; v.Message != m.Pending.Message {
			m.Pending = Pending{Refused: m.Pending.Refused} // the run has checked it
		}
	case v.Healthy:
		m.Pending = Pending{}
	case m.Pending.Fault != "" && m.Pending.Fault == v.fault(), sameReason(Reason(m.Pending.Message), Reason(v.Message)):
		v.Message = m.Pending.Message // it can name a job that has ended since
	}
	m.Marks = standing
	m.mark(v, c.now())
	return v
}

// look reads the node, with what the memory knows about it. known are the marks of before this run.
func (c *Controller) look(ctx context.Context, v Verdict, m *Memory, known []Mark) (NodeInfo, error) {
	node, err := c.Read(ctx)
	if err != nil {
		return node, err
	}
	node = m.pretend(node)
	node.Refused = m.Pending.Refused
	node.Foreign = node.Foreign || m.Lost != "" || c.leavesAlone(m, node.Reason, v) && !isMarked(known, node.Reason)
	node.Same = m.Fault != "" && m.Fault == v.fault() && m.wrote(node.Reason)
	node.Awaited = !v.Healthy && c.awaits(ctx, node)
	return node, nil
}

// leaveAlone stores that no action is due.
func (c *Controller) leaveAlone(v Verdict, m *Memory, out *Outcome) {
	node := out.Node
	if v.Healthy && m.isTaken(node) {
		m.Marks = nil
	}
	if !node.State.passes() {
		m.owe(Cause{}, false)
	} else if !v.Healthy {
		m.owe(v.Cause, true)
	}
	pending := m.Pending
	m.noteLeft(v, node)
	if pending.Released && pending.Fault == v.fault() && node.State.passes() {
		m.Pending, out.Pending = pending, true // a person's decision outlives a maintenance
	}
	m.Next, m.Refusal = c.nextOf(node), Refusal{}
}

// noteWritten stores that Slurm has carried out a decision.
func (c *Controller) noteWritten(d Decision, fault string, m *Memory, node NodeInfo) {
	m.noteDone(d, fault)
	if c.Observe {
		m.Pretended = m.Pretended.add(d, node)
	}
	m.owe(Cause{}, false)
	m.Next, m.Refusal = time.Time{}, Refusal{}
	if !node.State.passing() {
		m.Next = c.next(c.Settings.Recheck)
	}
}

// postpone stores what could not be carried out, for the next run, and returns the error.
func (c *Controller) postpone(v Verdict, m *Memory, out *Outcome, failed error) error {
	out.Why = "Slurm did not answer"
	if !v.Healthy {
		m.keep(v, c.now())
		m.owe(v.Cause, true)
		out.Pending, out.Reason = true, Reason(v.Message)
	}
	m.Reported = ReportedUnknown
	if out.Refused = isRefusal(failed); out.Refused {
		out.Repeats = c.refuse(m, failed)
	} else {
		m.Refusal = Refusal{}
	}
	return failed
}

// nextOf returns when to ask Slurm again about a node that was not changed. The zero value means
// the next run.
func (c *Controller) nextOf(node NodeInfo) time.Time {
	held := node.State.Class == Drained && (node.State.DrainFlag || !node.State.Full)
	switch {
	case node.State.is("NOT_RESPONDING") && node.State.Class == Down:
		return time.Time{} // slurmd will register it soon
	case held && node.State.Order == "":
		return c.next(c.Settings.Recheck)
	case node.State.Class == Drained, node.State.Class == Down, node.State.maintained():
		return c.next(min(heldRecheck, c.Settings.Recheck))
	}
	return time.Time{}
}

// appliedTo reports whether the node's state shows that the decision was carried out.
func (d Decision) appliedTo(node NodeInfo) bool {
	switch d.Action {
	case Drain, Renew:
		return (node.State.Class == Drained || node.State.DrainFlag) && sameReason(node.Reason, d.Reason)
	case Resume:
		return node.State.Class == InService
	default:
		return false
	}
}

// withMemory runs work with the memory under the lock. If the lock cannot be taken in time, work
// runs nevertheless, but then the memory is no longer trusted: neither by this run nor by the
// holder of the lock, whose memory has changed.
func (c *Controller) withMemory(ctx context.Context, work func(*Memory, *Outcome) error) (Outcome, error) {
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
	c.stored, c.locked = before, lockErr == nil
	err = work(&after, &out)
	out.Reported, out.OurReason, out.Guarded = after.Reported, after.Reason, after.Pending.Held
	out.Calls = c.calls - calls
	out.warn(c.remember(c.stored, after, c.locked))
	return out, err
}

// warn keeps the first warning; one is enough.
func (o *Outcome) warn(err error) {
	if o.Warning == nil {
		o.Warning = err
	}
}

// guardPace times the number of nodes is the time between two counts of a held drain. A count reads all
// nodes, so all of them together ask slurmctld only five to ten times a second.
const guardPace = 200 * time.Millisecond

// inTurn runs work with the memory, and has the node's comment state a held drain. If the guard is to
// count after a wait, the drain is stored as pending first, so that a run that is killed while it waits
// loses nothing; then work runs again. The lock is free while the run waits.
func (c *Controller) inTurn(ctx context.Context, settle func(*Memory, *Outcome) error) (Outcome, error) {
	work := func(m *Memory, out *Outcome) error {
		err := settle(m, out)
		if err == nil {
			c.updateComment(ctx, m)
		}
		return err
	}
	out, err := c.withMemory(ctx, work)
	if err != nil || out.wait == 0 {
		return out, err
	}
	c.waited = true
	if out.Warning == nil { // the drain is stored
		c.sleep(out.wait)
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
	inService := (node.State.Class == InService || node.Awaited) && !node.State.DrainFlag
	return c.Guard != nil && inService && !v.Refused && !m.Pending.Refused && !released && !c.Guard.exempts(reason)
}

// askGuard reports whether the guard permits a drain. If it does not, the drain is pending, and out
// has the reason.
func (c *Controller) askGuard(ctx context.Context, v Verdict, d *Decision, m *Memory, out *Outcome) (permitted bool, err error) {
	longest := c.Guard.Short
	switch {
	case isShared(d.Reason):
		longest = c.Guard.Jitter
	case m.Pending.Held != "" && m.Pending.Fault == v.fault():
		longest = 0 // such counts are spread already
	}
	longest = min(longest, c.MaxWait)
	if longest > 0 && !c.waited && !v.Busy && !c.Observe && c.Dir != nil {
		out.wait = 1 + rand.N(longest)
		out.Why = "the guard counts after a wait"
		c.suspend(v, m, out)
		return false, nil
	}
	why, of := "", 0
	groups, err := ask(ctx, c, countNodes, c.Settings.groupsArgv, parseGroups)
	if err == nil {
		m.Pending.Uncounted = false
	}
	switch {
	case err == nil && !out.recounted && changed(out.Node, c.Node, groups):
		out.recounted = true // once: a further change is as unlikely as one before any other call
		return false, errChanged
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
	c.suspend(v, m, out)
	newly := err == nil && !m.Pending.Counted && strings.HasPrefix(m.Pending.Held, countNodes) // the numbers are known now
	m.Pending.Held, m.Pending.Reported = why, m.Pending.Reported && !m.Pending.Again && !newly
	out.hold(d.Reason, m.Pending)
	m.Next = c.next(min(time.Duration(of)*guardPace, heldRecheck, c.Settings.Recheck))
	return false, nil
}

// countNodes begins the errors of the count.
const countNodes = "count the drained nodes"

// errChanged means that the node has changed since it was read: the count of all nodes takes seconds, in
// which a person can drain it.
var errChanged = errors.New("the node has changed")

// changed reports whether a node as it was read differs from what the count of all nodes shows.
func changed(node NodeInfo, name string, groups []NodeGroup) bool {
	return slices.ContainsFunc(groups, func(g NodeGroup) bool {
		same := g.State.Class == node.State.Class && g.State.DrainFlag == node.State.DrainFlag && (g.State.Class == InService || g.Reason == node.Reason)
		return !same && inHostlist(g.Names, name)
	})
}

// suspend stores a drain that is not sent now.
func (c *Controller) suspend(v Verdict, m *Memory, out *Outcome) {
	m.keep(v, c.now())
	m.owe(v.Cause, true)
	m.Reported, m.Refusal, out.Pending = ReportedUnknown, Refusal{}, true
}

// hold sets the outcome of a drain that the guard holds.
func (o *Outcome) hold(reason string, p Pending) {
	o.Decision = Decision{Action: Drain, Reason: reason, Why: "held by guard: " + p.Held}
	o.Guarded, o.Repeats, o.fault = p.Held, p.Reported, p.Fault
}

// NoteReported records that a hold was reported. whole is false if the log or syslog did not take the report.
func (c *Controller) NoteReported(ctx context.Context, hold Outcome, whole bool) error {
	noted, _ := c.withMemory(ctx, func(m *Memory, _ *Outcome) error {
		if m.Pending.Held != "" && m.Pending.Fault == hold.fault {
			m.Pending.Reported, m.Pending.Again = true, !whole
			m.Pending.Counted = m.Pending.Counted || !strings.HasPrefix(hold.Guarded, countNodes)
		}
		return nil
	})
	return noted.Warning
}

// Release delivers the drain that the guard holds. If Slurm does not answer now, a later run delivers
// it. Without a held drain it sends nothing: the outcome is spared, and pending if the drain was released before and
// is not delivered yet.
func (c *Controller) Release(ctx context.Context) (Outcome, error) {
	return c.inTurn(ctx, func(m *Memory, out *Outcome) error {
		if m.Pending.Held == "" {
			out.Spared, out.Pending = true, m.Pending.Released
			if out.Why = "the guard holds no drain of this node"; out.Pending {
				out.Why = "the drain of this node is released already, and not delivered yet"
			}
			return nil
		}
		m.Pending.Held, m.Pending.Released = "", true
		return c.settle(ctx, m.pendingVerdict(), m, out)
	})
}
