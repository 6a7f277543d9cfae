package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// exec runs a command for the supervisor: scontrol, a helper.
func (w *worker) exec(req *Request) *Response {
	w.host.SetEnviron(req.Env)
	c := probe.Command{Argv: req.Args, Program: req.Program, Input: req.Path, Stdin: req.Data, Timeout: req.Timeout, Output: maxOutput, Errors: maxErrors, Merge: req.Merge, Linger: leftBehind}
	x := w.host.Run(context.Background(), c)
	resp := &Response{Data: x.Output, Cut: x.Truncated, Stderr: x.Errors, Status: x.Status, TimedOut: x.TimedOut}
	if x.Err != nil {
		resp.Err = x.Err.Error()
		if why := (*fs.PathError)(nil); errors.As(x.Err, &why) {
			resp.Err = why.Err.Error()
		}
	}
	return resp
}

// What is kept of a command's output and of its complaints, bytes.
const (
	maxOutput = 1 << 20
	maxErrors = 4 << 10
)

// Output is what a command printed and how it ended.
type Output struct {
	Stdout, Stderr []byte
	Cut            bool // Stdout is not all of it; only of a [Job]
	Status         int  // as bash counts: 126, 127, 128 and the signal
	TimedOut       bool
}

// execLane is the worker for commands outside the plan.
const execLane checks.Lane = "exec"

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
		patience += killGrace
	}
	o := p.Call(context.Background(), execLane, &Request{Op: OpExec, Args: argv, Env: env, Data: input, Timeout: limit, Line: line}, patience)
	resp, err := o.Answer()
	if err != nil {
		return Output{}, err
	}
	return Output{Stdout: resp.Data, Stderr: resp.Stderr, Status: resp.Status, TimedOut: resp.TimedOut}, nil
}
