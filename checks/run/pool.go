package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// Options is what the workers of a run share.
type Options struct {
	Root string   // root directory of the node, "/" but in tests
	Env  []string // environment of the workers
}

// execLane is the worker for commands outside the plan.
const execLane checks.Lane = "exec"

// Pool keeps one worker a lane, started when first needed. Its methods may be
// called from several goroutines; those for one lane wait for each other.
type Pool struct {
	opts   Options
	ledger Ledger      // processes that earlier runs left behind
	state  memoryState // the memory of the node's runs

	mu      sync.Mutex
	busy    map[checks.Lane]*sync.Mutex // held while a lane carries out requests
	workers map[checks.Lane]*client
	ended   map[checks.Lane]string // what became of vendor lanes: they stay so for this run
	lastID  int
	warn    []error
	stuck   []string // what workers of the local lane did not come back from in this run
	vars    wire.Vars
	guarded *process.Guarded
	version int // of vars; a worker is told when it has an older one

	answered, crashed bool // NVML's library has answered a check; it has ended a worker
}

// NewPool makes a pool without any worker yet.
func NewPool(opts Options) *Pool {
	return &Pool{opts: opts, busy: map[checks.Lane]*sync.Mutex{}, workers: map[checks.Lane]*client{}, ended: map[checks.Lane]string{}}
}

// claim waits until nobody else has requests under way in a lane.
func (p *Pool) claim(lane checks.Lane) (release func()) {
	p.mu.Lock()
	busy := p.busy[lane]
	if busy == nil {
		busy = new(sync.Mutex)
		p.busy[lane] = busy
	}
	p.mu.Unlock()
	busy.Lock()
	return busy.Unlock
}

// Start starts the worker of a lane ahead of its first request, so that it
// comes up while the supervisor still reads its arguments.
func (p *Pool) Start(lane checks.Lane) error {
	_, err := p.worker(lane)
	return err
}

// SetVars gives what checks see of the run's variables from now on.
func (p *Pool) SetVars(v wire.Vars) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.vars = v
	p.vars.Plain, p.vars.Arrays = maps.Clone(v.Plain), maps.Clone(v.Arrays)
	p.version++
}

// tell adds the variables to the first request to a worker that does not know them.
func (p *Pool) tell(c *client, r *wire.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.version != p.version {
		vars := p.vars
		if c.lane == execLane { // its commands are of this machine, whatever node the checks look at
			vars.Root = ""
		}
		vars.Stuck = slices.Concat(vars.Stuck, p.ledger.Doing(c.lane), p.stuck)
		r.Vars, c.version = &vars, p.version
	}
}

// Ledger is the list of processes that earlier runs left behind.
func (p *Pool) Ledger() *Ledger { return &p.ledger }

// Warnings are what went wrong beside the steps: a ledger that cannot be written.
func (p *Pool) Warnings() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.warn
}

func (p *Pool) worker(lane checks.Lane) (*client, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.workers[lane]; c != nil {
		return c, nil
	}
	env := p.opts.Env
	if lane == execLane {
		env = nil // its commands are given theirs
	}
	c, err := startWorker(lane, p.opts.Root, env)
	if err == nil {
		p.workers[lane] = c
		if p.guarded != nil && lane == checks.Local {
			c.send([]*wire.Request{{Op: wire.OpGuard, Guard: p.guarded}})
		}
	}
	return c, err
}

// KeepGuard starts a local worker again if there is none and a shell has to be guarded.
func (p *Pool) KeepGuard() {
	p.mu.Lock()
	lacks := p.guarded != nil && p.workers[checks.Local] == nil
	p.mu.Unlock()
	if lacks {
		_, _ = p.worker(checks.Local) // without one the run continues
	}
}

// Guard has the local worker end a shell, with the line that it is at, if this process
// dies: bash does not notice that while it waits for a command.
func (p *Pool) Guard(g process.Guarded) {
	c, err := p.worker(checks.Local)
	p.mu.Lock()
	p.guarded = &g
	p.mu.Unlock()
	if err == nil {
		c.send([]*wire.Request{{Op: wire.OpGuard, Guard: &g}})
	}
}

func (p *Pool) drop(lane checks.Lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	worn := p.workers[lane] != nil && p.workers[lane].worn
	delete(p.workers, lane)
	if lane.Vendor() && !worn && p.ended[lane] == "" {
		p.ended[lane] = "hung or died"
	}
}

// hasEnded says what became of the worker of a vendor's lane, "" if it can be used.
func (p *Pool) hasEnded(lane checks.Lane) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended[lane]
}

func (p *Pool) number(reqs []*wire.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range reqs {
		p.lastID++
		r.ID = p.lastID
	}
}

// Limit is how long a request may take, counted from the answer before it.
type Limit func(*wire.Request) time.Duration

// Do has the worker of a lane carry out requests in their order and hands each
// outcome to emit. A worker that hangs or dies is replaced and the next request
// carried out by its successor, except in the lane of a vendor library, where
// the next call would only hang, too. What an earlier run left hanging is not
// tried again while it hangs.
func (p *Pool) Do(ctx context.Context, lane checks.Lane, reqs []*wire.Request, limit Limit, emit func(*wire.Request, Outcome)) {
	lane = lane.Worker()
	if len(reqs) > 0 && !ofState(reqs[0]) {
		defer p.keepLedger() // when the lane is free again
	}
	defer p.claim(lane)()
	reqs = slices.DeleteFunc(slices.Clone(reqs), func(r *wire.Request) bool {
		stuck, found := p.ledger.Find(lane, r.Line)
		if found {
			emit(r, hung(stuck.Hung()))
		}
		return found
	})
	p.number(reqs)
	for len(reqs) > 0 {
		if how := p.hasEnded(lane); how != "" {
			for _, r := range reqs {
				emit(r, lost(fmt.Sprintf("not run: %s %s", lane, how)))
			}
			return
		}
		c, err := p.worker(lane)
		if err != nil {
			for _, r := range reqs {
				emit(r, lost(err.Error()))
			}
			return
		}
		p.tell(c, reqs[0])
		c.send(reqs)
		done, ended := p.answers(ctx, c, reqs, limit, emit)
		reqs = reqs[done:]
		if !ended {
			return
		}
		p.drop(lane)
		if ctx.Err() != nil {
			return
		}
	}
}

// answers hands out the answers of one worker until all are there or it ended.
func (p *Pool) answers(ctx context.Context, c *client, reqs []*wire.Request, limit Limit, emit func(*wire.Request, Outcome)) (done int, ended bool) {
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		_ = c.out.SetReadDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() {
			<-woken // or it would end a later wait
		}
	}()
	for i, r := range reqs {
		began := time.Now()
		deadline := time.Time{}
		d := limit(r)
		if d > 0 {
			deadline = began.Add(d)
		}
		if ctx.Err() != nil {
			c.kill()
			c.close()
			return i, true
		}
		c.request.Store(int64(r.ID))
		half := c.countAt(r.ID, d/2)
		resp, err := c.receive(r.ID, deadline)
		was, counted := half()
		doing, calls := "", uint64(0)
		if err != nil || resp.Spent {
			doing, calls = wire.ReadPage(c.page, r.ID)
		}
		switch {
		case err == nil:
			if c.lane == checks.NVML && r.Op == wire.OpCheck {
				p.mu.Lock()
				p.answered = true
				p.mu.Unlock()
			}
			emit(r, answered(resp))
			if resp.Worn && !resp.Spent {
				c.worn = true
				c.finish()
				return i + 1, true
			}
			if resp.Spent {
				step := r.Line
				if len(resp.Stuck) > 0 { // the step continues without them
					step, doing = resp.Stuck[0], resp.Stuck[0]
					p.addStuck(resp.Stuck...)
				}
				p.bury(c, step, &checks.Hung{PID: c.pid, Doing: doing, For: time.Since(began)})
				return i + 1, true
			}
		case ctx.Err() != nil:
			p.bury(c, r.Line, c.autopsy(doing, time.Since(began)))
			return i, true
		case errors.Is(err, os.ErrDeadlineExceeded):
			hang := c.autopsy(doing, time.Since(began))
			hang.Cut = r.Limit > 0 && d < r.Limit
			hang.Moved = counted && doing != "" && calls != was
			p.bury(c, r.Line, hang)
			if hang.Moved {
				p.mu.Lock()
				p.ended[c.lane] = "is slow"
				p.mu.Unlock()
			}
			if c.lane == checks.Local && doing != "" {
				p.addStuck(doing)
			}
			emit(r, hung(hang))
			return i + 1, true
		default:
			how := c.howItDied(err, doing)
			p.bury(c, r.Line, &checks.Hung{PID: c.pid, Doing: doing, For: time.Since(began)}) // its children
			o := died(how)
			if c.inLibrary(doing) {
				o.crashes = countCrash(p)
			}
			emit(r, o)
			return i + 1, true
		}
	}
	return len(reqs), false
}

// addStuck gives later workers of the local lane the calls that blocked one.
func (p *Pool) addStuck(calls ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stuck = append(p.stuck, calls...)
	p.version++
}

// bury kills a worker that hangs; what no signal can end goes into the ledger.
func (p *Pool) bury(c *client, step string, hung *checks.Hung) {
	left := c.kill()
	c.close()
	if len(left) == 0 {
		return
	}
	hung.Stuck = true
	p.ledger.add(stuckProcesses(left, c.lane, step, hung)...)
}

// stuckProcesses describes the processes that survived SIGKILL; the first that sleeps
// uninterruptibly becomes the face of the hang.
func stuckProcesses(pids []int, lane checks.Lane, step string, hung *checks.Hung) []wire.StuckProcess {
	var out []wire.StuckProcess
	face := false
	for _, pid := range pids {
		st, err := process.ReadStat(pid)
		if err != nil {
			continue
		}
		state, w := process.Whereabouts(pid)
		if !face {
			hung.PID, hung.State, hung.Wchan = pid, state, w
			face = state == "D"
		}
		out = append(out, wire.StuckProcess{PID: pid, Start: st.Start, Lane: lane, Step: step, Doing: hung.Doing, State: state, Wchan: w, Since: time.Now().Truncate(time.Second)})
	}
	return out
}

// Call carries out one request outside the plan: reading a configuration file,
// writing the log, running scontrol. A limit of 0 means none.
func (p *Pool) Call(ctx context.Context, lane checks.Lane, r *wire.Request, limit time.Duration) Outcome {
	var out Outcome
	p.Do(ctx, lane, []*wire.Request{r}, func(*wire.Request) time.Duration { return limit }, func(_ *wire.Request, o Outcome) { out = o })
	return out
}

// Doing is what the worker of a lane says it is about to do, "" if it has not said.
func (p *Pool) Doing(lane checks.Lane) string {
	p.mu.Lock()
	c := p.workers[lane.Worker()]
	p.mu.Unlock()
	if c == nil {
		return ""
	}
	doing, _ := wire.ReadPage(c.page, int(c.request.Load()))
	return doing
}

// Pid is the process of a lane's worker, 0 if there is none.
func (p *Pool) Pid(lane checks.Lane) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.workers[lane.Worker()]; c != nil {
		return c.pid
	}
	return 0
}

// Bury enters processes that no signal could end into the ledger and describes
// the first of them.
func (p *Pool) Bury(pids []int, lane checks.Lane, step string) *checks.Hung {
	hung := &checks.Hung{Stuck: true}
	p.ledger.add(stuckProcesses(pids, lane, step, hung)...)
	p.keepLedger()
	return hung
}

// Close ends all workers.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.workers { // they leave side by side
		c.close()
	}
	for lane, c := range p.workers {
		c.finish()
		delete(p.workers, lane)
	}
}

// Kill ends all workers at once, whatever they do.
func (p *Pool) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for lane, c := range p.workers {
		c.kill()
		c.close()
		delete(p.workers, lane)
	}
}
