package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// Options are the settings that all workers of a run share.
type Options struct {
	Root string   // root directory of the node, "/" except in tests
	Env  []string // environment of the workers
}

const (
	// execLane is the worker for commands outside the plan.
	execLane checks.Lane = "exec"
	// lockedLane is the lane in the ledger of workers that only wait for the memory of a process, or for a file
	// in the background. No step runs in it.
	lockedLane checks.Lane = "processes"
)

// Pool has one worker for each lane and starts it when it is first needed. Its methods are safe for
// concurrent use; calls for the same lane wait for each other.
type Pool struct {
	opts   Options
	ledger Ledger   // processes that earlier runs left behind
	state  stateDir // of the node

	mu      sync.Mutex
	claims  map[checks.Lane]*sync.Mutex // held while a lane carries out requests, see claim
	workers map[checks.Lane]*client
	ended   map[checks.Lane]string // vendor lanes that have ended, and why; they do not start again in this run
	scanned map[checks.Lane]bool   // vendor lanes in which a scan of processes was slow
	lastID  int
	warn    []error
	stuck   []string // blocked calls that later workers of this run do not repeat
	vars    wire.Vars
	guarded *process.Guarded
	version int // of vars; a worker with an older version gets the new variables

	answered, crashed bool // NVML's library has answered a check; it has crashed a worker
	silent            bool // see noteSilence
}

// NewPool returns a pool without workers.
func NewPool(opts Options) *Pool {
	return &Pool{opts: opts, claims: map[checks.Lane]*sync.Mutex{}, workers: map[checks.Lane]*client{}, ended: map[checks.Lane]string{}, scanned: map[checks.Lane]bool{}}
}

// claim waits until no other caller has requests in progress in a lane.
func (p *Pool) claim(lane checks.Lane) (release func()) {
	p.mu.Lock()
	c := p.claims[lane]
	if c == nil {
		c = new(sync.Mutex)
		p.claims[lane] = c
	}
	p.mu.Unlock()
	c.Lock()
	return c.Unlock
}

// Start starts the worker of a lane before its first request, so that it is ready when the
// supervisor has read its arguments.
func (p *Pool) Start(lane checks.Lane) error {
	_, err := p.worker(lane)
	return err
}

// Silent reports whether a read of a directory, or below it, has not returned, in this run or an earlier one.
func (p *Pool) Silent(dir string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(slices.Concat(p.ledger.Doing(checks.Local), p.ledger.Doing(lockedLane), p.stuck), func(call string) bool {
		path, reads := strings.CutPrefix(call, "read ")
		return reads && (path == dir || strings.HasPrefix(path, dir+"/"))
	})
}

// SetVars sets the variables of the run that checks see from now on.
func (p *Pool) SetVars(v wire.Vars) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.vars = v
	p.vars.Plain, p.vars.Arrays = maps.Clone(v.Plain), maps.Clone(v.Arrays)
	p.version++
}

// addVars adds the variables to the first request to a worker that does not have this version of
// them.
func (p *Pool) addVars(c *client, r *wire.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.version != p.version {
		vars := p.vars
		vars.Supervisor = os.Getpid()
		if c.lane == execLane { // its commands run on this machine, whichever node the checks inspect
			vars.Root = ""
		}
		p.state.mu.Lock()
		if vars.State = p.state.dir; p.state.gone != nil {
			vars.State, vars.Spare = "", "" // the spare directory is in it
		}
		p.state.mu.Unlock()
		vars.Stuck = slices.Concat(vars.Stuck, p.ledger.Doing(c.lane), p.ledger.Doing(lockedLane), p.stuck)
		r.Vars, c.version = &vars, p.version
	}
}

// Ledger returns the list of processes that earlier runs left behind.
func (p *Pool) Ledger() *Ledger { return &p.ledger }

// Warnings returns the errors that are not about a step, for example a ledger that cannot be
// written.
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
		env = nil // each of its commands gets its own
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

// KeepGuard starts the local worker again if there is none and a shell must be guarded.
func (p *Pool) KeepGuard() {
	p.mu.Lock()
	lacks := p.guarded != nil && p.workers[checks.Local] == nil
	p.mu.Unlock()
	if lacks {
		_, _ = p.worker(checks.Local) // without a guard the run continues
	}
}

// Guard makes the local worker end a shell and the line that it runs if this process dies: bash
// does not notice that while it waits for a command.
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
	c := p.workers[lane]
	delete(p.workers, lane)
	switch {
	case !lane.Vendor() || c != nil && c.worn || p.ended[lane] != "":
	case c != nil && c.crashed:
		p.ended[lane] = crashedBefore
	default:
		p.ended[lane] = hungBefore
	}
}

// hasEnded returns the format of why the worker of a vendor's lane ended, "" if the lane can be used.
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

// Limit returns the time limit of a request, counted from the answer before it.
type Limit func(*wire.Request) time.Duration

// Do makes the worker of a lane carry out requests in order and passes each outcome to emit. It
// replaces a worker that hangs or dies, and the new worker carries out the next request. A vendor
// library's lane ends instead, because the next call would hang, too; but not after a slow scan of
// processes, nor if only the background of a step hangs. Do skips a step that an earlier run left hanging, for as
// long as it hangs, and each check after the end of the run.
func (p *Pool) Do(ctx context.Context, lane checks.Lane, reqs []*wire.Request, limit Limit, emit func(*wire.Request, Outcome)) {
	lane = lane.Worker()
	if len(reqs) > 0 && !usesState(reqs[0]) {
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
			o := lost(fmt.Sprintf("not run: "+how, libraries[lane]))
			if how == outOfTime {
				o = late(lane)
			}
			for _, r := range reqs {
				emit(r, o)
			}
			return
		}
		if r := reqs[0]; r.End > 0 && wire.Monotonic() >= r.End { // each worker would be killed at once
			emit(r, unsent())
			reqs = reqs[1:]
			continue
		}
		c, err := p.worker(lane)
		if err != nil {
			for _, r := range reqs {
				emit(r, lost(err.Error()))
			}
			return
		}
		p.addVars(c, reqs[0])
		for _, r := range reqs {
			if r.Op == wire.OpKeep || r.Op == wire.OpRecall { // can use a spare directory
				r.Timeout = limit(r)
			}
		}
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

// answers passes on the answers of one worker until all are there or the worker ended. done is the number of
// requests that have an outcome.
func (p *Pool) answers(ctx context.Context, c *client, reqs []*wire.Request, limit Limit, emit func(*wire.Request, Outcome)) (done int, ended bool) {
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		c.stopWaiting()
	})
	defer func() {
		if !stop() {
			<-woken // or it would end a later wait
		}
	}()
	for i, r := range reqs {
		began, d := time.Now(), limit(r)
		if ctx.Err() != nil {
			c.kill()
			c.close()
			return i, true
		}
		c.request.Store(int64(r.ID))
		moves := c.movesAfter(r.ID, d/2)
		resp, err := c.receive(ctx, r, began, d)
		doing, calls := "", uint64(0)
		if err != nil || resp.Spent {
			doing, calls = wire.ReadPage(c.page, r.ID)
		}
		moved := moves(doing, calls)
		switch {
		case err == nil:
			if c.lane == checks.NVML && r.Op == wire.OpCheck {
				p.mu.Lock()
				p.answered = true
				p.mu.Unlock()
			}
			emit(r, answered(resp))
			p.noteLocked(c, resp.Locked)
			p.addStuckCalls(resp.Stuck...)
			p.noteSilence(resp.Silence)
			if resp.Worn || resp.Spent {
				p.retire(c, r.Line, resp, doing, began)
				return i + 1, true
			}
		case ctx.Err() != nil:
			p.abandon(c, r.Line, c.describeHang(doing, time.Since(began)))
			return i, true
		case errors.Is(err, os.ErrDeadlineExceeded):
			hang := c.describeHang(doing, time.Since(began))
			hang.Cut = r.Limit > 0 && d < r.Limit
			hang.Short = hang.Cut && d < min(leastHang, r.Limit/2)
			hang.Moved = moved
			p.abandon(c, r.Line, hang)
			if c.lane == checks.Local && doing != "" && !hang.Moved {
				p.addStuckCalls(doing)
			}
			emit(r, p.endSlow(c, hang))
			return i + 1, true
		default:
			emit(r, p.endCrashed(c, r.Line, err, doing, began))
			return i + 1, true
		}
	}
	return len(reqs), false
}

// retire ends a worker that has answered and cannot go on: it leaves by itself, or a call of it is blocked.
func (p *Pool) retire(c *client, step string, resp *wire.Response, doing string, began time.Time) {
	if !resp.Spent {
		c.worn = true
		c.finish()
		return
	}
	if len(resp.Stuck) > 0 { // the step has ended without these calls, and another worker continues the lane
		step, doing, c.worn = resp.Stuck[0], resp.Stuck[0], true
	}
	p.abandon(c, step, &checks.Hung{PID: c.pid, Doing: doing, For: time.Since(began)})
}

// endCrashed returns the outcome of a step whose worker has died, and ends what the worker has started.
func (p *Pool) endCrashed(c *client, step string, err error, doing string, began time.Time) Outcome {
	c.crashed = true
	how := c.howItDied(err, doing)
	p.abandon(c, step, &checks.Hung{PID: c.pid, Doing: doing, For: time.Since(began)}) // kills its children
	o := died(how)
	if c.inLibrary(doing) {
		o.crashes = countCrash(p)
	}
	return o
}

// endSlow ends a vendor's lane whose check did not answer in time. After a slow scan of processes the lane goes on,
// since the library did not block it. If a later check then gets less than its own time and does not answer, it
// is late, not hung: the scan has used the time.
func (p *Pool) endSlow(c *client, hang *checks.Hung) Outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !c.lane.Vendor():
	case isScan(hang):
		c.worn, p.scanned[c.lane] = true, true
	case p.scanned[c.lane] && hang.Cut && !hang.Stuck:
		p.ended[c.lane] = outOfTime
		return late(c.lane)
	case hang.Moved:
		p.ended[c.lane] = slowBefore
	case hang.Short && !hang.Stuck:
		p.ended[c.lane] = noTime
		return lost(fmt.Sprintf(noTime, libraries[c.lane]))
	}
	return hung(hang)
}

// leastHang is how long a check in a vendor's lane must be given, if earlier checks have used most of the run, before no
// answer is a hang: on a loaded node one call of a healthy driver can take a part of it.
const leastHang = time.Second

// addStuckCalls adds blocked calls to the list that later workers get.
func (p *Pool) addStuckCalls(calls ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, call := range calls {
		if !slices.Contains(p.stuck, call) {
			p.stuck = append(p.stuck, call)
			p.version++
		}
	}
}

// noteSilence reports once in a run why the data of earlier runs is not used.
func (p *Pool) noteSilence(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if why != "" && !p.silent {
		p.silent = true
		p.warn = append(p.warn, fmt.Errorf("%s; this run does not use the data of earlier runs", why))
	}
}

// noteLocked adds reads of processes' memory that threads of a worker wait for. The worker goes on. If it
// cannot exit later, the ledger keeps later runs from asking these processes again.
func (p *Pool) noteLocked(c *client, calls []string) {
	calls = slices.DeleteFunc(calls, func(call string) bool { return slices.Contains(c.locked, call) })
	if len(calls) == 0 { // after nearly every answer
		return
	}
	st, err := process.ReadStat(c.pid)
	if err != nil {
		return
	}
	c.locked = append(c.locked, calls...)
	p.addStuckCalls(calls...)
	for _, call := range calls {
		p.ledger.add(wire.StuckProcess{PID: c.pid, Start: st.Start, Lane: lockedLane, Step: call, Doing: call, State: "D", Since: time.Now().Truncate(time.Second)})
	}
}

// abandon kills a worker that hangs and adds processes that no signal can end to the ledger.
func (p *Pool) abandon(c *client, step string, hung *checks.Hung) {
	left := c.kill()
	c.close()
	p.addLeft(c, left, step, hung)
}

// addLeft adds the processes of a worker that survived to the ledger. If the worker itself waits only for
// the memory of users' processes, or a scan of processes was slow, nothing hangs in the step; nor if it has
// answered.
func (p *Pool) addLeft(c *client, left []int, step string, hung *checks.Hung) {
	left = slices.DeleteFunc(left, func(pid int) bool {
		if pid != c.pid {
			return false
		}
		var calls []string
		for _, locked := range process.LockedReads(pid) {
			calls = append(calls, probe.LockedCall(locked))
		}
		only := len(calls) > 0
		p.noteLocked(c, calls)
		return only
	})
	if len(left) == 0 || isScan(hung) {
		return
	}
	hung.Stuck = true
	lane := c.lane
	if c.worn {
		lane = lockedLane
	}
	p.ledger.add(describeStuck(left, lane, step, hung)...)
}

// describeStuck describes the processes that survived SIGKILL. The first that sleeps
// uninterruptibly represents the hang.
func describeStuck(pids []int, lane checks.Lane, step string, hung *checks.Hung) []wire.StuckProcess {
	var out []wire.StuckProcess
	found := false
	for _, pid := range pids {
		st, err := process.ReadStat(pid)
		if err != nil {
			continue
		}
		state, w := process.Whereabouts(pid)
		if !found {
			hung.PID, hung.State, hung.Wchan = pid, state, w
			found = state == "D"
		}
		out = append(out, wire.StuckProcess{PID: pid, Start: st.Start, Lane: lane, Step: step, Doing: hung.Doing, State: state, Wchan: w, Since: time.Now().Truncate(time.Second)})
	}
	return out
}

// Call carries out one request outside the plan, for example to read a configuration file, write
// the log, or run scontrol. A limit of 0 means none.
func (p *Pool) Call(ctx context.Context, lane checks.Lane, r *wire.Request, limit time.Duration) Outcome {
	var out Outcome
	p.Do(ctx, lane, []*wire.Request{r}, func(*wire.Request) time.Duration { return limit }, func(_ *wire.Request, o Outcome) { out = o })
	return out
}

// Doing returns the call that the worker of a lane announced last, "" if none.
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

// Pid returns the PID of a lane's worker, 0 if there is none.
func (p *Pool) Pid(lane checks.Lane) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.workers[lane.Worker()]; c != nil {
		return c.pid
	}
	return 0
}

// AddStuck adds processes that no signal could end to the ledger and describes the first of them.
func (p *Pool) AddStuck(pids []int, lane checks.Lane, step string) *checks.Hung {
	hung := &checks.Hung{Stuck: true}
	p.ledger.add(describeStuck(pids, lane, step, hung)...)
	p.keepLedger()
	return hung
}

// Close ends all workers.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.workers { // they exit in parallel
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
