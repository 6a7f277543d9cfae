package worker

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// exec runs a command for the supervisor: scontrol, a helper.
func (w *worker) exec(req *wire.Request) *wire.Response {
	w.host.SetEnviron(req.Env)
	c := probe.Command{Argv: req.Args, Program: req.Program, Input: req.Path, Stdin: req.Data, Timeout: req.Timeout, Output: wire.MaxOutput, Errors: wire.MaxErrors, Merge: req.Merge, Linger: leftBehind}
	x := w.host.Run(context.Background(), c)
	resp := &wire.Response{Data: x.Output, Cut: x.Truncated, Stderr: x.Errors, Status: x.Status, TimedOut: x.TimedOut}
	if x.Err != nil {
		resp.Err = x.Err.Error()
		if why := (*fs.PathError)(nil); errors.As(x.Err, &why) {
			resp.Err = why.Err.Error()
		}
	}
	return resp
}

// leftBehind is how long a daemon that a command started may hold the command's output open,
// counted from the command's end.
const leftBehind = time.Second
