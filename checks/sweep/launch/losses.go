package launch

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// losses are the lost ranks of a sweep, and what Slurm says of their nodes.
type losses struct {
	hub     *hub
	m       *manager
	job     string
	limit   time.Duration            // for Slurm to start a program on a node
	began   time.Time                // a node that is up for a shorter time has started again
	stepEnd func(node string) string // how the step of a rank has ended, "" if that is unknown
	known   map[string]sweep.Loss
}

// examine asks Slurm about the nodes whose ranks were lost since the last call, and adds the answers to
// the results of the tests that lost them. A short loss of the network, or a killed process, ends a rank
// on a healthy node.
func (l *losses) examine(ctx context.Context, results []sweep.Result) {
	var list []sweep.Loss
	l.hub.look(func() {
		for name, why := range l.hub.lost {
			if _, known := l.known[name]; !known {
				list = append(list, sweep.Loss{Node: name, At: l.hub.when[name], Text: why})
			}
		}
	})
	if len(list) > 0 && ctx.Err() == nil {
		l.reach(ctx, list)
	}
	for i := range results {
		if r := &results[i]; r.Fault == sweep.FaultLost {
			for _, name := range r.Blame {
				if x, ok := l.known[name]; ok {
					r.Losses = append(r.Losses, x)
				}
			}
		}
	}
}

// mostReached is the number of lost nodes that are reached at the same time.
const mostReached = 64

// reach finds out which of some lost nodes Slurm still reaches, by starting a program on each: slurmctld
// itself notices only after SlurmdTimeout that a node does not answer. Nodes whose turn does not come
// within twice the limit stay unknown.
func (l *losses) reach(ctx context.Context, list []sweep.Loss) {
	states := map[string]slurm.SweepNode{}
	all, err := l.m.nodes(ctx)
	for _, n := range all {
		states[n.Name] = n
	}
	asking, cancel := context.WithTimeout(ctx, 2*l.limit)
	defer cancel()
	room := make(chan struct{}, mostReached)
	var wg sync.WaitGroup
	for i := range list {
		wg.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			x := &list[i]
			if why := states[x.Node].Silent(); why != "" {
				x.Gone, x.Text = true, x.Text+", and its "+why
			} else if asking.Err() == nil {
				l.start(asking, x, err == nil)
			}
		})
	}
	wg.Wait()
	for _, x := range list {
		l.known[x.Node] = x
	}
}

// start starts a program on a node. A failure says nothing about the node if Slurm does not answer, or has
// not begun the step.
func (l *losses) start(ctx context.Context, x *sweep.Loss, answers bool) {
	exit := l.m.step(ctx, l.job, []string{x.Node}, slurm.StepGPUs{}, l.limit, nil, nil, "cat", "/proc/uptime")
	switch up, ok := uptime(exit.Output); {
	case ok && up < time.Since(l.began):
		x.Gone, x.Text = true, fmt.Sprintf("%s, and the node has started again: it is up for %s", x.Text, up)
	case ok:
		x.Responds = true
		x.Text += ", although the node responds"
		if how := l.stepEnd(x.Node); how != "" {
			x.Text += ": " + how
		}
	case waits(exit.Errors) != "":
		x.Text += ", and Slurm is busy: " + waits(exit.Errors)
	case answers && ctx.Err() == nil:
		x.Gone, x.Text = true, x.Text+", and Slurm starts nothing on the node: "+lastLine(exit.Errors)
	default:
		x.Text += ", and Slurm could not be asked"
	}
}

// waits returns what srun has printed if it waited for a step to its own end, "" if the step was created.
func waits(errs []byte) string {
	if bytes.Contains(errs, []byte("Step created for")) || len(slurm.ParseLaunchFailures(errs)) > 0 {
		return ""
	}
	return printable(string(disabled().Find(errs)))
}

// uptime parses /proc/uptime.
func uptime(text []byte) (up time.Duration, ok bool) {
	word, _, _ := strings.Cut(string(text), " ")
	seconds, err := strconv.ParseFloat(word, 64)
	return time.Duration(seconds * float64(time.Second)).Round(time.Second), err == nil
}
