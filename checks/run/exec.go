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

// Output is the output of a command and its exit status.
type Output struct {
	Stdout, Stderr []byte
	Cut            bool // Stdout is incomplete
	Status         int  // as bash counts: 126, 127, or 128 plus the signal
	TimedOut       bool
}

// Exec runs a command with an input (nil: none) in its own worker: the program file may lie on a
// dead mount, and it may be impossible to end the command by a signal. The context has the
// deadline. The error explains why there is no exit status, except 126 or 127 of a command that could not be
// started; the caller adds the name of the command.
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
	return o.output(), o.Failure()
}

// output returns the output of a command, also if the answer reports an error: it then has a status.
func (o Outcome) output() Output {
	r := o.answer
	if r == nil {
		return Output{}
	}
	return Output{Stdout: r.Data, Cut: r.Cut, Stderr: r.Stderr, Status: r.Status, TimedOut: r.TimedOut}
}

// Job is a command that runs like a child of this process: the end of the context ends it.
type Job struct {
	Argv, Env []string
	Program   string        // the file to run if it is not the one that Argv names
	Input     string        // file that is its standard input; "" is /dev/null
	Merge     bool          // its standard error is part of Stdout, and processes that it leaves behind continue
	Timeout   time.Duration // 0 means none
}

// Run carries out a job in the worker of [Pool.Exec]. If the program could not be started, Run
// returns the error and bash's status for it, 126 or 127. A job that no signal can end is added to
// the ledger and does not start again while it is there.
func (p *Pool) Run(ctx context.Context, j Job) (Output, error) {
	patience := j.Timeout
	if patience > 0 {
		patience += time.Second // for the end of the job, see probe.Grace
	}
	r := &wire.Request{
		Op: wire.OpExec, Args: j.Argv, Env: j.Env, Program: j.Program, Path: j.Input, Merge: j.Merge, Timeout: j.Timeout, Line: "run " + j.Argv[0],
	}
	o := p.Call(ctx, execLane, r, patience)
	if o.hung != nil {
		return Output{}, fmt.Errorf("hangs (%s)", Describe(o.hung))
	}
	out := o.output()
	if !out.TimedOut {
		return out, o.Failure()
	}
	if left := p.killJob(); len(left) > 0 {
		p.AddStuck(left, execLane, r.Line)
	}
	return out, nil
}

// killJob ends the processes of a timed-out job that are still in its worker's session. It returns
// the PIDs that no signal can end.
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
