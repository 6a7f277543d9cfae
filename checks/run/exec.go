package run

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// Output is what a command printed and how it ended.
type Output struct {
	Stdout, Stderr []byte
	Cut            bool // Stdout is not all of it; only of a [Job]
	Status         int  // as bash counts: 126, 127, 128 and the signal
	TimedOut       bool
}

// Exec runs a command with an input (nil: none) in a worker of its own: the program file may lie on a
// dead mount, and the command may be one that no signal can end. The deadline
// is the context's. An error says why there is no exit status; the caller says
// of what.
func (p *Pool) Exec(ctx context.Context, argv, env []string, input []byte) (Output, error) {
	limit := time.Duration(0)
	if d, ok := ctx.Deadline(); ok {
		if limit = time.Until(d); limit <= 0 {
			return Output{}, context.DeadlineExceeded
		}
	}
	line := fmt.Sprintf("run %s", argv[0])
	patience := limit
	if limit > 0 {
		patience += process.KillGrace
	}
	o := p.Call(context.Background(), execLane, &wire.Request{Op: wire.OpExec, Args: argv, Env: env, Data: input, Timeout: limit, Line: line}, patience)
	resp, err := o.Answer()
	if err != nil {
		return Output{}, err
	}
	return Output{Stdout: resp.Data, Stderr: resp.Stderr, Status: resp.Status, TimedOut: resp.TimedOut}, nil
}

// Job is a command that is run for its own sake, like a child of this process:
// the end of the context ends it.
type Job struct {
	Argv, Env []string
	Program   string        // the file to run, if it is not the one that Argv names
	Input     string        // file that is its standard input; "" is /dev/null
	Merge     bool          // its standard error is part of Stdout, and what it leaves behind lives on
	Timeout   time.Duration // 0 means none
}

// Run carries out a job in the worker of [Pool.Exec]. With an error that says
// why the program could not be started comes bash's status for it, 126 or 127.
// What no signal can end goes into the ledger and is not started again while it
// is there.
func (p *Pool) Run(ctx context.Context, j Job) (Output, error) {
	patience := j.Timeout
	if patience > 0 {
		patience += time.Second // for its end, see probe.Grace
	}
	r := &wire.Request{
		Op: wire.OpExec, Args: j.Argv, Env: j.Env, Program: j.Program, Path: j.Input, Merge: j.Merge, Timeout: j.Timeout, Line: "run " + j.Argv[0],
	}
	o := p.Call(ctx, execLane, r, patience)
	if o.hung != nil {
		return Output{}, fmt.Errorf("hangs (%s)", Describe(o.hung))
	}
	resp := o.answer // also one that reports an error has a status
	if resp == nil {
		return Output{}, o.Failure()
	}
	out := Output{Stdout: resp.Data, Cut: resp.Cut, Stderr: resp.Stderr, Status: resp.Status, TimedOut: resp.TimedOut}
	if !out.TimedOut {
		return out, o.Failure()
	}
	if left := p.killJob(); len(left) > 0 {
		p.Bury(left, execLane, r.Line)
	}
	return out, nil
}

// killJob ends what a job that was out of time has left in its worker's session.
// It returns what no signal can end.
func (p *Pool) killJob() []int {
	worker := p.Pid(execLane)
	for end := time.Now().Add(process.KillGrace); ; time.Sleep(5 * time.Millisecond) {
		left := slices.DeleteFunc(process.InSession(worker), func(pid int) bool { return pid == worker })
		if len(left) == 0 || time.Now().After(end) {
			return left
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}
