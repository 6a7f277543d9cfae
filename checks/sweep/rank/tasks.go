package rank

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

// maxTasks bounds the tasks of a rank at once. A plan has one per round.
const maxTasks = 64

// maxLimit bounds the limit of a task.
const maxLimit = 24 * time.Hour

// lateness is how long a kind may take to return after its context has ended.
const lateness = 3 * time.Second

// tasks are the tasks in progress on a rank.
type tasks struct {
	node *node
	send func(*wire.Message)

	mu   sync.Mutex
	list map[int]*task // by number; guarded by mu
}

func newTasks(n *node, send func(*wire.Message)) *tasks {
	return &tasks{node: n, send: send, list: map[int]*task{}}
}

// task is a rank's end of one.
type task struct {
	sweep.Task
	rank   int
	kind   kind
	ctx    context.Context // until Stop
	cancel context.CancelFunc
	set    chan struct{}  // closed when prepare has returned
	calls  sync.WaitGroup // of prepare and run
	ended  chan struct{}  // closed when nothing of the task is left

	mu    sync.Mutex
	state state // guarded by mu
}

// state is how far a task has got.
type state int

const (
	preparing state = iota
	prepared
	running
)

// handle carries out a message of the launcher, in the background.
func (ts *tasks) handle(m *wire.Message) {
	switch {
	case m.Prepare != nil:
		ts.prepare(m.Prepare)
	case m.Run != nil:
		ts.run(m.Run)
	case m.Stop != nil:
		ts.stop(m.Stop.ID)
	}
}

// prepare starts a task. Whatever the message is, there is an answer.
func (ts *tasks) prepare(p *wire.Prepare) {
	t, err := ts.add(p)
	if err != nil {
		ts.send(&wire.Message{Ready: &wire.Ready{ID: p.Task.ID, Rank: p.Rank, Fault: sweep.FaultError, Text: "prepare: " + err.Error()}})
		return
	}
	p.Task = t.Task
	t.calls.Go(func() {
		defer close(t.set)
		ready, err := call(t.ctx, t.Limit, func() wire.Ready { return t.kind.prepare(t.ctx, p) })
		if err != nil {
			ready = wire.Ready{Fault: sweep.FaultError, Text: "prepare: " + err.Error()}
		}
		ready.ID, ready.Rank = t.ID, t.rank
		if ready.Fault == sweep.FaultNone {
			t.enter(preparing, prepared)
		}
		if t.ctx.Err() == nil {
			ts.send(&wire.Message{Ready: &ready})
		}
	})
}

// add makes a task of a message.
func (ts *tasks) add(p *wire.Prepare) (*task, error) {
	newKind := kinds[p.Task.Kind]
	whole, err := p.Whole()
	switch {
	case newKind == nil:
		return nil, fmt.Errorf("there is no test %q", p.Task.Kind)
	case err != nil:
		return nil, err
	case whole.Nodes[p.Rank] != ts.node.Name:
		return nil, fmt.Errorf("rank %d is %s, and this is %s", p.Rank, whole.Nodes[p.Rank], ts.node.Name)
	case p.Task.Limit <= 0 || p.Task.Limit > maxLimit:
		return nil, fmt.Errorf("time limit %v: want at most %v", p.Task.Limit, maxLimit)
	case len(p.Key) != keySize:
		return nil, fmt.Errorf("key of %d bytes: want %d", len(p.Key), keySize)
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	switch {
	case ts.list[p.Task.ID] != nil:
		return nil, fmt.Errorf("task %d is in progress", p.Task.ID)
	case len(ts.list) >= maxTasks:
		return nil, fmt.Errorf("%d tasks are in progress", maxTasks)
	}
	t := &task{Task: whole, rank: p.Rank, kind: newKind(ts.node), set: make(chan struct{}), ended: make(chan struct{})}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	ts.list[t.ID] = t
	return t, nil
}

// enter moves a task to the next state, and reports whether it was in the one before.
func (t *task) enter(from, to state) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != from {
		return false
	}
	t.state = to
	return true
}

// run carries out a task that is prepared.
func (ts *tasks) run(r *wire.Run) {
	ts.mu.Lock()
	t := ts.list[r.ID]
	ts.mu.Unlock()
	if t == nil {
		ts.send(done(r.ID, 0, sweep.Result{Fault: sweep.FaultError, Text: "run: the task is not in progress"}))
		return
	}
	if t.ctx.Err() != nil { // stopped, so that the launcher waits for nothing
		return
	}
	began := time.Now()
	finish := func(result sweep.Result) {
		result.Task, result.Began, result.Took = sweep.Task{}, began, time.Since(began)
		if t.ctx.Err() == nil {
			m := done(t.ID, t.rank, result)
			if v, ok := t.kind.(interface{ isVague() bool }); ok {
				m.Done.Again = v.isVague()
			}
			ts.send(m)
		}
	}
	whole, err := r.Whole(len(t.Nodes))
	switch {
	case !t.enter(prepared, running):
		finish(sweep.Result{Fault: sweep.FaultError, Text: "run: the task is not ready, or has run before"})
		return
	case err != nil:
		finish(sweep.Result{Fault: sweep.FaultError, Text: "run: " + err.Error()})
		return
	}
	t.calls.Go(func() {
		ctx, cancel := context.WithTimeout(t.ctx, t.Limit)
		defer cancel()
		result, err := call(ctx, t.Limit+lateness, func() sweep.Result { return t.kind.run(ctx, whole) })
		if err != nil {
			result = sweep.Result{Fault: sweep.FaultError, Text: err.Error()}
		}
		finish(result)
	})
}

func done(id, rank int, result sweep.Result) *wire.Message {
	return &wire.Message{Done: &wire.Done{ID: id, Rank: rank, Result: result}}
}

// call calls do and returns its result. A do that panics, or does not return within the limit or
// lateness after the end of the context, is an error; it may still be in progress.
func call[T any](ctx context.Context, limit time.Duration, do func() T) (T, error) {
	type answer struct {
		value T
		err   error
	}
	c := make(chan answer, 1)
	go func() {
		var a answer
		defer func() {
			if p := recover(); p != nil {
				a.err = fmt.Errorf("nhc-gpu has failed, please report this: %v", p)
			}
			c <- a
		}()
		a.value = do()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-c:
		return a.value, a.err
	case <-timer.C:
	case <-ctx.Done():
		select {
		case a := <-c:
			return a.value, a.err
		case <-time.After(lateness):
		}
	}
	var none T
	return none, errors.New("it has not ended within its time limit")
}

// stop ends a task in the background. Its number can be used again when it has ended.
func (ts *tasks) stop(id int) {
	ts.mu.Lock()
	t := ts.list[id]
	ts.mu.Unlock()
	if t == nil || t.ctx.Err() != nil {
		return
	}
	t.cancel()
	go func() {
		<-t.set
		_, _ = call(t.ctx, lateness, func() bool { t.kind.stop(); return true })
		t.calls.Wait()
		ts.mu.Lock()
		delete(ts.list, id)
		ts.mu.Unlock()
		close(t.ended)
	}()
}

// end ends all tasks, and returns how many have not ended within the limit.
func (ts *tasks) end(limit time.Duration) (left int) {
	ts.mu.Lock()
	var all []*task
	for _, t := range ts.list {
		all = append(all, t)
	}
	ts.mu.Unlock()
	for _, t := range all {
		ts.stop(t.ID)
	}
	over := time.After(limit)
	for _, t := range all {
		if _, ok := await(t.ended, over); !ok {
			select {
			case <-t.ended:
			default:
				left++
			}
		}
	}
	return left
}
