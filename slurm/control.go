// Package slurm reports the result of the checks to Slurm: it reads the node's state, decides, and
// drains or resumes the node.
//
// [Decide] is the rule, a pure function. [Controller.Act] carries it out, so that a decision is
// never lost, never carried out twice and never outlives its reason, whatever slurmctld is doing.
// [StateDir] is its memory between runs. [MarkOffline] and [MarkOnline] are LBNL NHC's helpers.
//
// The package starts no process: a [Runner] does, under a deadline. No other package reads
// SLURM_* or calls Slurm.
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

// Runner starts a command and waits for it no longer than ctx allows, even if the command cannot
// be killed.
type Runner interface {
	// Run starts argv with exactly the environment env; it looks for argv[0] in the PATH of
	// env. It returns an error if the command cannot be started, then Output.Status is 126 or 127, or if
	// nothing is known about it. If ctx ends first, the command is killed or abandoned, and
	// Output.TimedOut is set.
	Run(ctx context.Context, argv, env []string) (Output, error)
}

// Output is the result of a command.
type Output struct {
	Stdout, Stderr []byte
	Status         int  // exit status as a shell shows it: 127 not found, 128+N killed by signal N
	TimedOut       bool // it did not end in time; Status is not valid
	Cut            bool // Stdout is incomplete
}

// DefaultDeadline limits one call to Slurm. On its own, scontrol blocks for 9 s if slurmctld is
// down, for 59 s without slurm.conf and forever with a hung munged (tested with 22.05).
const DefaultDeadline = 5 * time.Second

// Controller acts on one node.
type Controller struct {
	Node     string // the node's name in Slurm
	Runner   Runner
	Settings Settings
	Deadline time.Duration // of each call; 0 is [DefaultDeadline]

	Dir    StateDir // nil: nothing is stored between runs
	BootID string   // ID of this boot; memory of another boot is ignored

	// Observe is set if decisions are made and not sent. The memory holds the decisions, as if
	// Slurm had carried them out, and later decisions depend on it.
	Observe bool

	// NodeIsHealthy is SLURM_NODE_IS_HEALTHY, which slurmd sets for its HealthCheckProgram
	// from 26.05 on: "no" while the node is down, drained, failed or in maintenance. A change
	// of it is a reason to ask Slurm.
	NodeIsHealthy string

	// Guard decides about each drain; nil permits all. A drain first waits, at most MaxWait; 0 means no
	// wait. Wait is called for it; nil sleeps.
	Guard   *Guard
	MaxWait time.Duration
	Wait    func(time.Duration)

	// Remote is set if the node is another one than this: a sweep drains its suspects. A failing
	// verdict follows the rules of all others; a healthy one resumes only what a sweep has drained.
	Remote bool

	Now func() time.Time // nil: the clock

	calls  int  // number of commands started
	waited bool // the wait before the count is over

	stored Memory // as this run has read it, or stored it last
	locked bool   // it has the lock on the memory

	// Stderr receives the error output of the commands that the helpers run; nil discards it.
	// Act puts it into its error instead.
	Stderr io.Writer
}

// NewController returns a controller with the settings from env. The caller sets the
// memory.
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
	what := "read node " + c.Node
	if c.Settings.bySinfo() {
		return ask(ctx, c, what, c.Settings.sinfoArgv, parseSinfo)
	}
	node, err := ask(ctx, c, what, c.Settings.nodeArgv, parseColumns)
	if errors.Is(err, errUnanswered) {
		return ask(ctx, c, what, c.Settings.showArgv, parseShowNode)
	}
	return node, err
}

// awaits reports whether slurmctld waits for the node's slurmd, and then puts the node into service:
// slurmctld has not seen it since its own start, or has set it DOWN for its silence, and its
// ReturnToService is not 0. Only the second case needs a call.
func (c *Controller) awaits(ctx context.Context, node NodeInfo) bool {
	switch {
	case node.State.Order != "":
		return false
	case node.State.Base == "unknown":
		return true
	case node.State.Base != "down" || !node.State.is("NOT_RESPONDING") || node.Reason != "Not responding":
		return false
	}
	conf, err := AskConfig(ctx, c)
	return err == nil && (conf["ReturnToService"] == "1" || conf["ReturnToService"] == "2")
}

// errUnanswered means that a command is missing, or gives no answer.
var errUnanswered = errors.New("no answer to the question")

// ask runs a command about the node and parses its output. subject is for errors.
func ask[T any](ctx context.Context, c *Controller, subject string, argvOf func(string) ([]string, error), parse func([]byte) (T, error)) (answer T, err error) {
	argv, err := argvOf(c.Node)
	if err != nil {
		return answer, fmt.Errorf("%s: %w", subject, err)
	}
	out, err := c.call(ctx, argv)
	switch {
	case err != nil && !out.TimedOut && (out.Cut || out.Status == 126 || out.Status == 127 || strings.Contains(string(out.Stderr), "format")):
		return answer, fmt.Errorf("%s: %w: %w", subject, errUnanswered, err)
	case err != nil:
		return answer, fmt.Errorf("%s: %w", subject, err)
	}
	if answer, err = parse(out.Stdout); err != nil {
		return answer, fmt.Errorf("%s: %w: %w", subject, errUnanswered, err)
	}
	return answer, nil
}

// write carries out a decision with one call, or with none for [Controller.Observe]. After an error the
// decision may still have been carried out.
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

// heldComment begins each comment that nhc-gpu writes about a node.
const heldComment = Prefix + " drain held by guard"

// commentColumn is the width at which sinfo prints a comment.
const commentColumn = 2048

// updateComment has the comment of the node in Slurm state that the guard holds its drain. It
// overwrites no comment of another writer. An error has no effect: the comment is for people only,
// and Slurm before 20.11 has none.
func (c *Controller) updateComment(ctx context.Context, m *Memory) {
	text := ""
	if m.Pending.Held != "" {
		text = cut(fmt.Sprintf("%s since %s: %s", heldComment, m.Pending.Since.Format(time.RFC3339), m.Pending.Message), MaxReason)
	}
	if c.Observe || c.Remote || text == m.Comment {
		return
	}
	m.Comment = text // after an error, too: one try
	now, err := ask(ctx, c, "read the comment of node "+c.Node, c.Settings.nodeCommentArgv, func(out []byte) (string, error) {
		return strings.TrimSpace(firstLine(out)), nil
	})
	if err != nil || now != "" && now != "(null)" && !strings.HasPrefix(now, heldComment) {
		return
	}
	if argv, err := c.Settings.setNodeCommentArgv(c.Node, text); err == nil {
		_, _ = c.call(ctx, argv)
	}
}

// call runs one command under the deadline. Any exit status except 0 is an error that quotes the
// command's output.
func (c *Controller) call(ctx context.Context, argv []string) (Output, error) {
	out, err := c.start(ctx, argv, c.Settings.environ())
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
	case out.Cut:
		return out, fmt.Errorf("run %s: it printed more than %d bytes", argv[0], len(out.Stdout))
	}
	return out, nil
}

func (c *Controller) start(ctx context.Context, argv, env []string) (Output, error) {
	c.calls++
	ctx, cancel := context.WithTimeout(ctx, c.deadline())
	defer cancel()
	return c.Runner.Run(ctx, argv, env)
}

func (c *Controller) deadline() time.Duration { return cmp.Or(c.Deadline, DefaultDeadline) }
