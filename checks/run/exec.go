package run

import (
	"context"
	"fmt"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// exec runs a command for the supervisor: scontrol, a helper.
func (w *worker) exec(req *Request) *Response {
	w.host.SetEnviron(req.Env)
	x := w.host.Run(context.Background(), probe.Command{Argv: req.Args, Timeout: req.Timeout, Output: maxOutput})
	return &Response{Data: x.Output, Status: x.Status, TimedOut: x.TimedOut}
}

// maxOutput bounds what is kept of a command's output, bytes.
const maxOutput = 1 << 20

// Output is what a command printed and how it ended.
type Output struct {
	Stdout, Stderr []byte
	Status         int // as bash counts: 126, 127, 128 and the signal
	TimedOut       bool
}

// execLane is the worker for commands outside the plan.
const execLane checks.Lane = "exec"

// Exec runs a command in a worker of its own: the program file may lie on a
// dead mount, and the command may be one that no signal can end. The deadline
// is the context's.
func (p *Pool) Exec(ctx context.Context, argv, env []string) (Output, error) {
	limit := time.Duration(0)
	if d, ok := ctx.Deadline(); ok {
		if limit = time.Until(d); limit <= 0 {
			return Output{}, fmt.Errorf("run %s: %w", argv[0], context.DeadlineExceeded)
		}
	}
	line := fmt.Sprintf("run %s", argv[0])
	if c, ok := p.opts.Ledger.Find(execLane, line); ok {
		return Output{}, fmt.Errorf("run %s: process %d of an earlier run still hangs in it", argv[0], c.PID)
	}
	o := p.Call(context.Background(), execLane, &Request{Op: OpExec, Args: argv, Env: env, Timeout: limit, Line: line}, limit+killGrace)
	if err := o.Failure(); err != nil {
		return Output{}, fmt.Errorf("run %s: %w", argv[0], err)
	}
	return Output{Stdout: o.Data, Stderr: o.Stderr, Status: o.Status, TimedOut: o.TimedOut}, nil
}
