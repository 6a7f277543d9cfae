package run

import (
	"context"
	"fmt"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
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
