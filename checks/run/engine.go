// Package run carries out a plan. The supervisor never blocks. Its workers are the same program,
// started again, and may block. The supervisor kills a worker that hangs at its deadline; it leaves
// a worker that cannot be killed behind and remembers it.
package run

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// Observer receives the results of a plan in the order of its steps.
type Observer interface {
	// Begin is called when the turn of a step has come.
	Begin(s *plan.Step)
	// Native is called with the result of a native step. It returns whether the run continues.
	Native(s *plan.Step, r checks.Result) (more bool)
	// Assigned is called for a step of assignments.
	Assigned(s *plan.Step)
	// Line runs a step in the shell. It returns whether the run continues.
	Line(s *plan.Step) (more bool)
	// Goes returns whether the run continues with a step that may change something.
	Goes() bool
	// Expired is called when TIMEOUT ended the run during a native step. It returns whether finished results of
	// later steps are still wanted.
	Expired(s *plan.Step, hung *checks.Hung) (more bool)
}

// Engine carries out plans.
type Engine struct {
	Pool     *Pool
	Deadline time.Time // of the whole run; zero means none

	// Timeout returns the current TIMEOUT, for checks that compare with it; nil means none.
	Timeout func() time.Duration

	// Doing is called every 200 ms with the current action of an active test, the time since its
	// start, and the time that it takes at most. When the test is over, Doing is called once
	// without a step, before the observer gets the result. It may be nil.
	Doing func(s *plan.Step, what string, elapsed, bound time.Duration)
}

// Do carries out a plan. Between two barriers the lanes run in parallel, and each worker runs the
// steps of its lane in order. Do passes the results to the observer in plan order. It starts a step
// that may change something only after every earlier step has its result and the run continues. It
// returns the context's error if that ended the run.
func (e *Engine) Do(ctx context.Context, p *plan.Plan, obs Observer) error {
	for i := 0; i < len(p.Steps); {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s := &p.Steps[i]
		if s.Barrier && !obs.Goes() {
			return nil
		}
		if s.Kind == plan.ShellLine {
			obs.Begin(s)
			if !obs.Line(s) {
				return ctx.Err()
			}
			i++
			continue
		}
		end := i + 1
		if !s.Barrier {
			for end < len(p.Steps) && !p.Steps[end].Barrier {
				end++
			}
		}
		if !e.segment(ctx, p.Steps[i:end], obs) {
			return ctx.Err()
		}
		i = end
	}
	return ctx.Err()
}

// segment runs the steps between two barriers in parallel and passes on their results in order.
func (e *Engine) segment(ctx context.Context, steps []plan.Step, obs Observer) (more bool) {
	ctx, cancel := context.WithCancel(ctx)
	lanes := map[checks.Lane][]*wire.Request{}
	results := make(map[int]chan Outcome, len(steps))
	byReq := map[*wire.Request]*plan.Step{}
	for i := range steps {
		s := &steps[i]
		if s.Kind != plan.Native || s.Usage != nil {
			continue
		}
		results[s.Index] = make(chan Outcome, 1)
		r := &wire.Request{Op: wire.OpCheck, Name: s.Name, Args: s.Args, Table: s.Table, Line: s.Text, Timeout: e.timeout(), Limit: s.Timeout, End: e.end()}
		for _, v := range s.Vars {
			if r.Over == nil {
				r.Over = map[string]string{}
			}
			r.Over[v.Name] = v.Value
			if v.Export {
				r.Env = append(r.Env, v.Name+"="+v.Value)
			}
		}
		lanes[s.Lane] = append(lanes[s.Lane], r)
		byReq[r] = s
	}
	done := make(chan struct{}, len(lanes))
	for lane, reqs := range lanes {
		Go(func() {
			emit := func(r *wire.Request, o Outcome) { results[byReq[r].Index] <- o }
			reqs = slices.DeleteFunc(reqs, func(r *wire.Request) bool {
				o, known := e.readLastResult(ctx, byReq[r], r)
				if known {
					emit(r, o)
				}
				return known
			})
			e.Pool.Do(ctx, lane, reqs, func(r *wire.Request) time.Duration { return e.limit(byReq[r]) }, emit)
			done <- struct{}{}
		})
	}
	more = e.fold(ctx, steps, results, obs)
	cancel()
	for range lanes {
		<-done
	}
	return more
}

func (e *Engine) timeout() time.Duration {
	if e.Timeout == nil {
		return 0
	}
	return e.Timeout()
}

// One carries out a single check outside the plan, for a shell line that calls it.
func (e *Engine) One(ctx context.Context, s *plan.Step, r *wire.Request, limit time.Duration) checks.Result {
	s.Timeout = limit
	r.Limit, r.End = limit, e.end()
	if o, known := e.readLastResult(ctx, s, r); known {
		return e.result(s, o)
	}
	return e.result(s, e.Pool.Call(ctx, s.Lane, r, e.limit(s)))
}

// lastLimit bounds the read of an active test's last result, which is a small file.
const lastLimit = 5 * time.Second

// readLastResult returns the last result of an active test if it is recent enough to replace a run. The
// local worker reads it, which needs neither a library nor another process.
func (e *Engine) readLastResult(ctx context.Context, s *plan.Step, r *wire.Request) (o Outcome, known bool) {
	if s.MaxAge <= 0 {
		return o, false
	}
	look := *r
	look.Op, look.Only, look.Limit = wire.OpLast, s.OnlyOld, lastLimit
	o = e.Pool.Call(ctx, checks.Local, &look, e.limit(&plan.Step{Lane: checks.Local, Timeout: lastLimit}))
	resp, err := o.Answer()
	return o, s.OnlyOld || err != nil || resp.Known
}

// limit returns the time limit of a step, cut to the time left of the run.
func (e *Engine) limit(s *plan.Step) time.Duration {
	if e.Deadline.IsZero() {
		return s.Timeout
	}
	return wire.CutTo(time.Until(e.Deadline), s.Timeout, e.timeout(), s.Lane.Vendor() || s.Active)
}

// end returns the end of the run on the clock that a worker shares.
func (e *Engine) end() time.Duration {
	if e.Deadline.IsZero() {
		return 0
	}
	left := time.Until(e.Deadline) // first: the end must not come before the deadline
	return max(wire.Monotonic()+left, 1)
}

func (e *Engine) fold(ctx context.Context, steps []plan.Step, results map[int]chan Outcome, obs Observer) (more bool) {
	over := false
	for i := range steps {
		s := &steps[i]
		obs.Begin(s)
		if s.Kind == plan.Assign {
			obs.Assigned(s)
			continue
		}
		if s.Usage != nil {
			if !obs.Native(s, checks.Result{Findings: []checks.Finding{*s.Usage}}) {
				return false
			}
			continue
		}
		var o Outcome
		if over {
			select {
			case o = <-results[s.Index]:
			default:
				o = unsent()
			}
		} else {
			came := false
			if o, came = e.await(ctx, s, results[s.Index]); !came {
				return false
			}
		}
		if o.hung != nil && !isSlow(o.hung) && !isOutOfTime(s, o.hung) && !e.Deadline.IsZero() && !time.Now().Before(e.Deadline) {
			if !obs.Expired(s, o.hung) {
				return false
			}
			over = true
			continue
		}
		if !obs.Native(s, e.result(s, o)) {
			return false
		}
	}
	return !over
}

// result converts the outcome of a request to the result of its step.
func (e *Engine) result(s *plan.Step, o Outcome) checks.Result {
	r := checks.Result{Hung: o.hung}
	name := checks.FullName(s.Name)
	if resp, err := o.Answer(); err == nil {
		r.Took, r.Findings, r.Fact = resp.Took, resp.Findings, resp.Fact
	} else {
		r.Findings = []checks.Finding{explainMissing(s, name, o)}
	}
	if o.hung != nil {
		r.Took = o.hung.For
	}
	theirs := checks.OfLBNL(name)
	for i := range r.Findings {
		f := &r.Findings[i]
		f.Remedy = checks.RemedyOf(*f)
		if !theirs || strings.HasPrefix(f.Code, "probe.") { // LBNL NHC's own texts already name their check
			f.Check = name
		}
	}
	return r
}

// explainMissing returns the finding of a step without an answer. Only a hang and repeated crashes are failures.
func explainMissing(s *plan.Step, name string, o Outcome) checks.Finding {
	unknown := func(code, why string) checks.Finding {
		return checks.Finding{Code: code, Severity: checks.Unknown, Message: fmt.Sprintf("%s:  no result: %s", name, why)}
	}
	switch {
	case o.hung != nil && isOutOfTime(s, o.hung):
		return unknown("active.time", fmt.Sprintf("the run ended after %s%s: the test may take %s",
			o.hung.For.Round(100*time.Millisecond), describeCall(o.hung), s.Bound))
	case o.hung != nil && isSlow(o.hung):
		call, _ := splitHungCall(o.hung.Doing)
		code := "probe.slow"
		if isScan(o.hung) {
			code = "probe.scan"
		}
		return unknown(code, fmt.Sprintf("after %.1f s the check was still at work in %s", o.hung.For.Seconds(), call))
	case o.hung != nil && o.hung.Unsent():
		return unknown("probe.lost", "not run: the run had ended")
	case o.hung != nil:
		device, of := HungDevice(s.Lane, o.hung.Doing), ""
		if device.PCI != "" {
			of = device.String() + ": "
		}
		return checks.Finding{
			Code: "probe.hung", Severity: checks.Fail, Remedy: HungRemedy(device, o.hung.Doing), Device: device,
			Message: fmt.Sprintf("%s:  %shung (%s)", name, of, Describe(o.hung)),
		}
	case o.died != "" && o.crashes >= crashesFail:
		return checks.Finding{
			Code: "probe.crashed", Severity: checks.Fail, Remedy: checks.RebootNode,
			Message: fmt.Sprintf("%s:  the driver's library crashed in each of the last %d runs: %s", name, crashesFail, o.died),
		}
	case o.died != "":
		return unknown("probe.died", o.died)
	case o.lost != "" && o.late:
		return unknown("probe.scan", o.lost)
	case o.lost != "":
		return unknown("probe.lost", o.lost)
	case o.answer == nil:
		return unknown("probe.interrupted", "the run was interrupted")
	default:
		return unknown("probe.error", o.answer.Err)
	}
}

// isOutOfTime reports whether the end of the run ended an active test before the test had all the
// time that it may take and the time to clean up. Eight contexts that take a while to close are not
// a hang.
func isOutOfTime(s *plan.Step, h *checks.Hung) bool {
	return s.Active && h.Cut && h.For < s.Bound+cleanUp
}

const cleanUp = 4 * time.Second

func describeCall(h *checks.Hung) string {
	if h.Doing == "" {
		return ""
	}
	call, _ := splitHungCall(h.Doing)
	return ", in " + call
}

// isSlow reports whether a check that did not answer in time still announced new calls in the second
// half of that time, see [client.movesAfter]. It is then slow, which does not drain: without persistence
// mode a driver takes a second or two for each GPU, a busy driver can take as long for each of a thousand
// calls, and a user can have a great many processes and open files.
func isSlow(h *checks.Hung) bool { return h.Moved }

// isScan reports whether a slow check was listing processes or their files.
func isScan(h *checks.Hung) bool { return h.Moved && h.Doing == probe.ScanCall }

// watchEvery is the interval between two reports of an active test's current action.
const watchEvery = 200 * time.Millisecond

// await waits for the outcome of a step and reports the step's current action meanwhile.
func (e *Engine) await(ctx context.Context, s *plan.Step, result <-chan Outcome) (o Outcome, came bool) {
	var tick <-chan time.Time
	if e.Doing != nil && s.Active && !s.OnlyOld {
		ticker := time.NewTicker(watchEvery)
		defer ticker.Stop()
		tick = ticker.C
		defer e.Doing(nil, "", 0, 0)
	}
	began := time.Now()
	for {
		select {
		case o = <-result:
			return o, true
		case <-ctx.Done():
			return o, false
		case <-tick:
			e.Doing(s, e.Pool.Doing(s.Lane), time.Since(began), s.Bound)
		}
	}
}
