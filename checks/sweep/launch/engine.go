package launch

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

// engine carries out tasks.
type engine struct {
	hub    *hub
	ready  time.Duration           // the longest preparation of a task
	slack  time.Duration           // how much longer than its limit a task may take to report
	ramp   int                     // nodes that begin to load GPUs in a second
	first  bool                    // the next round is the first one of its stage
	absent map[string]string       // nodes of the plan that this run does not have, and why
	beside map[string]bool         // nodes with other jobs
	told   func(sweep.Result, int) // after each task, with the number of those that still run
}

// round carries out the tasks of a round side by side. It returns the results of those that ended before
// ctx, in the order of the tasks.
func (e *engine) round(ctx context.Context, tasks []sweep.Task) []sweep.Result {
	results := make([]*sweep.Result, len(tasks))
	starts := sweep.Starts(tasks, e.ramp, e.first)
	e.first = false
	var mu sync.Mutex
	left := len(tasks)
	var wg sync.WaitGroup
	for i, t := range tasks {
		wg.Go(func() {
			if starts[i] > 0 {
				select {
				case <-time.After(starts[i]):
				case <-ctx.Done():
					return
				}
			}
			r, ok := e.task(ctx, t)
			if !ok {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			results[i], left = &r, left-1
			if e.told != nil {
				e.told(r, left)
			}
		})
	}
	wg.Wait()
	var done []sweep.Result
	for _, r := range results {
		if r != nil {
			done = append(done, *r)
		}
	}
	return done
}

// task carries out one task. ok is false if it has no result: ctx has ended first, or others have ended
// the rank of a node. A fault that no rank has measured counts only if a second try has one, too.
func (e *engine) task(ctx context.Context, t sweep.Task) (r sweep.Result, ok bool) {
	r, again, ok := e.try(ctx, t, true)
	if !ok || !again {
		return r, ok
	}
	second, began, why := t, r.Began, r.Text
	second.ID = -t.ID // the ranks may still be ending the first try
	r, _, ok = e.try(ctx, second, false)
	if r.Task, r.Began, r.Took = t, began, time.Since(began); r.Fault == "" {
		r.Text = "passed in the second try; the first: " + why
	}
	return r, ok
}

// try carries out one task once. ok is as for task. The first try ends as soon as a rank wants another one,
// and none has measured a fault.
func (e *engine) try(ctx context.Context, t sweep.Task, first bool) (r sweep.Result, again, ok bool) {
	r = sweep.Result{Task: t, Began: time.Now().UTC()}
	defer func() { r.Took = time.Since(r.Began) }()
	for _, n := range t.Nodes {
		r.Beside = r.Beside || e.beside[n]
		if why, away := e.absent[n]; away {
			r.Fault, r.Text = sweep.FaultUnable, "node "+n+": "+why
			return r, false, true
		}
	}
	box, missing, bye := e.hub.begin(&t)
	defer e.hub.finish(&t)
	if len(missing) > 0 {
		r.Fault, r.Text, r.Blame = sweep.FaultLost, textOf(missing), slices.Sorted(maps.Keys(missing))
		return r, false, !bye
	}
	key := make([]byte, 16)
	_, _ = rand.Read(key)
	for i, p := range wire.Prepares(&t, key) {
		e.hub.send(t.Nodes[i], &wire.Message{Prepare: p})
	}
	ends := make([]wire.Ready, len(t.Nodes))
	if ok := e.collect(ctx, box, &r, e.ready, func(m mail) bool {
		if m.ready == nil {
			return false
		}
		ends[m.rank] = *m.ready
		ends[m.rank].Rank = m.rank
		if m.ready.Fault != "" {
			r.Fault, r.Text = m.ready.Fault, m.ready.Text
			if m.ready.Fault != sweep.FaultUnable {
				r.Blame = []string{t.Nodes[m.rank]}
			}
		}
		return true
	}); !ok || r.Fault != "" {
		return r, false, ok
	}
	for i, r := range wire.Runs(t.ID, ends) {
		e.hub.send(t.Nodes[i], &wire.Message{Run: r})
	}
	parts := make([]*sweep.Result, len(t.Nodes))
	var fault *sweep.Result // the first part with one
	ok = e.collect(ctx, box, &r, t.Limit+e.slack, func(m mail) bool {
		if m.done == nil {
			return false
		}
		parts[m.rank] = &m.done.Result
		if fault == nil && m.done.Result.Fault != "" {
			fault, again = parts[m.rank], first && m.done.Again
		}
		if again {
			r.Fault, r.Text = fault.Fault, fault.Text
		}
		return true
	})
	if !again {
		merge(&r, parts, fault)
	}
	return r, again, ok
}

// collect waits until take has accepted a message of each rank of a task, or r has a fault. Ranks that
// are lost, or do not answer in time, become the fault, and are blamed. ok is as for task.
func (e *engine) collect(ctx context.Context, b *box, r *sweep.Result, limit time.Duration, take func(mail) bool) (ok bool) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	waiting := map[string]bool{}
	for _, n := range b.nodes {
		waiting[n] = true
	}
	for len(waiting) > 0 && r.Fault == "" {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			names := slices.Sorted(maps.Keys(waiting))
			r.Fault, r.Blame = sweep.FaultSilent, names
			r.Text = fmt.Sprintf("no answer within %s from %s", limit, strings.Join(names, ", "))
		case m := <-b.mail:
			switch name := b.nodes[m.rank]; {
			case m.bye:
				return false
			case m.lost != "":
				r.Fault, r.Text, r.Blame = sweep.FaultLost, "node "+name+": "+m.lost, []string{name}
			case take(m):
				delete(waiting, name)
			}
		}
	}
	return true
}

func textOf(nodes map[string]string) string {
	var list []string
	for _, n := range slices.Sorted(maps.Keys(nodes)) {
		list = append(list, "node "+n+": "+nodes[n])
	}
	return strings.Join(list, "; ")
}

// merge joins the parts of the ranks to one result. A fault that the launcher has seen, a loss or
// silence, takes precedence over those of the ranks, which are its consequences. Else the first fault
// counts. A rank that the launcher has not lost is alive: what another rank calls lost is a connection.
func merge(r *sweep.Result, parts []*sweep.Result, first *sweep.Result) {
	if r.Fault == "" && first != nil {
		r.Fault, r.Text, r.Rank = first.Fault, first.Text, first.Rank
		for _, p := range parts {
			if p == nil || p.Fault == "" {
				continue
			}
			for _, n := range p.Blame {
				if slices.Contains(r.Task.Nodes, n) && !slices.Contains(r.Blame, n) && p.Fault == first.Fault {
					r.Blame = append(r.Blame, n)
				}
			}
		}
		if r.Fault == sweep.FaultLost {
			r.Fault = sweep.FaultError
		}
	}
	measures := 0 // the rank that measures
	if r.Task.Kind == sweep.KindStream {
		measures = len(parts) - 1
	}
	for i, p := range parts {
		if p == nil {
			continue
		}
		if r.Network == "" {
			r.Network = p.Network
		}
		r.Checks = append(r.Checks, p.Checks...)
		switch r.Task.Kind {
		case sweep.KindRing, sweep.KindNCCL:
			r.Values, r.Windows = least(r.Values, p.Values), least(r.Windows, p.Windows)
			r.Sent, r.Lost = max(r.Sent, p.Sent), max(r.Lost, p.Lost)
		default:
			if i == measures {
				r.Values, r.Windows, r.Sent, r.Lost = p.Values, p.Windows, p.Sent, p.Lost
			}
		}
	}
}

// least returns the smaller value of each place that both lists have; a list that is nil does not count.
func least(a, b []float64) []float64 {
	if a == nil || b == nil {
		return slices.Concat(a, b)
	}
	n := min(len(a), len(b))
	list := make([]float64, n)
	for i := range n {
		list[i] = min(a[i], b[i])
	}
	return list
}
