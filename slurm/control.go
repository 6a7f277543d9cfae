// Package slurm tells Slurm what the checks came to: it reads the node's state,
// decides, and drains or resumes the node.
//
// [Decide] is the rule, a pure function. [Controller.Act] carries it out, so
// that a decision is never lost, never done twice and never outlives its
// reason, whatever slurmctld is doing meanwhile; [StateDir] is its memory
// between runs. [MarkOffline] and [MarkOnline] are LBNL NHC's helpers.
//
// The package starts no process: a [Runner] does, under a deadline. No other
// package reads SLURM_* or calls Slurm.
package slurm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Runner starts a command and waits for it no longer than ctx allows, whether
// the command can be killed or not.
type Runner interface {
	// Run starts argv with exactly the environment env (argv[0] is looked for
	// in its PATH). An error says that the command could not be started; that
	// it was killed, or left behind, when ctx ended is Output.TimedOut.
	Run(ctx context.Context, argv, env []string) (Output, error)
}

// Output is what a command came to.
type Output struct {
	Stdout, Stderr []byte
	Status         int  // exit status as a shell shows it: 127 not found, 128+N killed by signal N
	TimedOut       bool // did not end in time; Status means nothing
}

// DefaultDeadline bounds one call to Slurm. Left alone scontrol blocks for 9 s
// with slurmctld down, 59 s without slurm.conf and for ever with a hung munged
// (22.05 run).
const DefaultDeadline = 5 * time.Second

// Controller acts on one node.
type Controller struct {
	Node     string // the node's name in Slurm
	Runner   Runner
	Settings Settings
	Deadline time.Duration // of each call; 0 is [DefaultDeadline]

	Dir    StateDir // nil: no memory between runs
	BootID string   // of this boot of the host; memory of another one is void

	// Observe makes every decision and sends none: the memory has what Slurm would have been
	// sent, and later decisions follow from that.
	Observe bool

	// NodeIsHealthy is SLURM_NODE_IS_HEALTHY, which slurmd gives its
	// HealthCheckProgram from 26.05 on: "no" while the node is down, drained,
	// failed or in maintenance. A change of it is worth asking.
	NodeIsHealthy string

	Now func() time.Time // nil: the clock

	calls int // commands started

	// Stderr is where the helpers pass on what commands complain of; nil
	// discards it. Acting puts it into its error instead.
	Stderr io.Writer
}

// NewController makes a controller of the environment, or of whatever env puts
// in its place; memory is up to the caller.
func NewController(node string, runner Runner, env func(string) string) *Controller {
	return &Controller{
		Node:          node,
		Runner:        runner,
		Settings:      SettingsFrom(env),
		NodeIsHealthy: env("SLURM_NODE_IS_HEALTHY"),
	}
}

// Read asks Slurm for the node's state and reason: one call, or two if sinfo has no
// answer.
func (c *Controller) Read(ctx context.Context) (NodeInfo, error) {
	if c.Settings.bySinfo() {
		return c.ask(ctx, c.Settings.sinfoArgv, parseSinfo)
	}
	node, err := c.ask(ctx, c.Settings.nodeArgv, parseColumns)
	if errors.Is(err, errUnanswered) {
		return c.ask(ctx, c.Settings.showArgv, parseShowNode)
	}
	return node, err
}

// errUnanswered reports that a command is missing, or has no answer.
var errUnanswered = errors.New("no answer to the question")

func (c *Controller) ask(ctx context.Context, argvOf func(string) ([]string, error), parse func([]byte) (NodeInfo, error)) (NodeInfo, error) {
	argv, err := argvOf(c.Node)
	if err != nil {
		return NodeInfo{}, fmt.Errorf("read node %s: %w", c.Node, err)
	}
	out, err := c.call(ctx, argv)
	switch {
	case err != nil && !out.TimedOut && (out.Status == 0 || out.Status == 126 || out.Status == 127 || strings.Contains(string(out.Stderr), "format")):
		return NodeInfo{}, fmt.Errorf("read node %s: %w: %w", c.Node, errUnanswered, err)
	case err != nil:
		return NodeInfo{}, fmt.Errorf("read node %s: %w", c.Node, err)
	}
	node, err := parse(out.Stdout)
	if err != nil {
		return NodeInfo{}, fmt.Errorf("read node %s: %w: %w", c.Node, errUnanswered, err)
	}
	return node, nil
}

// write carries out a decision: one call, or none with [Controller.Observe]. An error does
// not mean that it was not carried out.
func (c *Controller) write(ctx context.Context, d Decision) error {
	argv, err := c.Settings.updateArgv(c.Node, d)
	if err == nil && !c.Observe {
		_, err = c.call(ctx, argv)
	}
	if err != nil {
		return fmt.Errorf("%s node %s: %w", d.Action, c.Node, err)
	}
	return nil
}

// call runs one command under the deadline. Anything but exit status 0 is an
// error that quotes what the command said.
func (c *Controller) call(ctx context.Context, argv []string) (Output, error) {
	out, err := c.start(ctx, argv)
	switch {
	case err != nil:
		return out, fmt.Errorf("run %s: %w", argv[0], err)
	case out.TimedOut && ctx.Err() != nil:
		return out, fmt.Errorf("run %s: no answer: %w", argv[0], context.Cause(ctx))
	case out.TimedOut:
		return out, fmt.Errorf("run %s: no answer within %s", argv[0], c.deadline())
	case out.Status != 0:
		said := strings.TrimSpace(string(out.Stderr) + " " + string(out.Stdout))
		return out, fmt.Errorf("run %s: exit status %d: %s", argv[0], out.Status, cut(printable(said), 300))
	}
	return out, nil
}

func (c *Controller) start(ctx context.Context, argv []string) (Output, error) {
	c.calls++
	ctx, cancel := context.WithTimeout(ctx, c.deadline())
	defer cancel()
	return c.Runner.Run(ctx, argv, c.Settings.environ())
}

func (c *Controller) deadline() time.Duration { return cmp.Or(c.Deadline, DefaultDeadline) }
