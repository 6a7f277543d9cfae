package rank

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

func init() {
	kinds[sweep.KindNote] = func(n *node) kind { return &note{node: n} }
}

// note adds an event to the history of the node, in a child process: the file system can hang.
type note struct {
	*node
	event []byte
}

func (k *note) prepare(_ context.Context, p *wire.Prepare) wire.Ready {
	k.event = []byte(p.Task.Op)
	return wire.Ready{}
}

func (k *note) run(ctx context.Context, _ *wire.Run) sweep.Result {
	x := k.again(ctx, []string{"nhc-gpu", "sweep", "note"}, k.event, 0)
	text := ""
	switch {
	case x.Err != nil:
		text = x.Err.Error()
	case x.TimedOut:
		text = "the history cannot be written within the time limit"
	case x.Status != 0:
		lines := strings.Split(strings.TrimSpace(string(x.Errors)), "\n") // warnings come first
		said := strings.TrimPrefix(lines[len(lines)-1], "nhc-gpu sweep note: ")
		text = cmp.Or(probe.OneLine(said), fmt.Sprintf("exit status %d", x.Status))
	default:
		return sweep.Result{}
	}
	return sweep.Result{Fault: sweep.FaultError, Text: text}
}

func (k *note) stop() {} // the context has ended the child
