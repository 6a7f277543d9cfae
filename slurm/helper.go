package slurm

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
)

// MarkOffline is LBNL NHC's node-mark-offline: args are a node and the words of a message; env
// names the resource manager (NHC_RM) and configures the calls. It prints LBNL's lines, decides
// as [Decide] does on Slurm, and returns the exit status: that of the command that marked the
// node, 255 for an unknown resource manager.
//
// Unlike [Controller.Act] it always asks sinfo, because a site may have replaced sinfo by a
// program of its own, and it sets an unchanged reason again. [Reason] turns the message into the
// reason.
func MarkOffline(w io.Writer, argv0 string, args []string, env func(string) string, c *Controller, now time.Time) int {
	fmt.Fprintf(w, "%s %s %s\n", now.Format(logTime), argv0, strings.Join(args, " "))
	h := newHelper(w, argv0, args, env, c)
	message := ""
	if len(args) > 1 {
		message = strings.Join(args[1:], " ")
	}
	switch env("NHC_RM") {
	case "slurm":
		return h.slurmOffline(message)
	case "pbs":
		return h.pbsOffline(message)
	case "lsf":
		return h.lsfOffline(message)
	}
	return h.otherRM()
}

// MarkOnline is LBNL NHC's node-mark-online: args are a node. See [MarkOffline].
func MarkOnline(w io.Writer, argv0 string, args []string, env func(string) string, c *Controller, now time.Time) int {
	fmt.Fprintf(w, "%s [%s] %s %s\n", now.Format(logTime), env("NHC_RM"), argv0, strings.Join(args, " "))
	h := newHelper(w, argv0, args, env, c)
	switch env("NHC_RM") {
	case "slurm":
		return h.slurmOnline()
	case "pbs":
		return h.pbsOnline()
	case "lsf":
		return h.lsfOnline()
	}
	return h.otherRM()
}

// logTime is date(1)'s '+%Y%m%d %H:%M:%S'.
const logTime = "20060102 15:04:05"

// helper is one call of node-mark-offline or node-mark-online.
type helper struct {
	w     io.Writer
	argv0 string
	node  string
	env   func(string) string
	c     *Controller
	took  bool // IGNORE_EMPTY_NOTE: a node without a note counts as ours
	mute  bool // a command gave no answer: the state of the node is unknown
}

// noAnswer is the exit status if a command gives no answer, that of timeout(1).
const noAnswer = 124

func newHelper(w io.Writer, argv0 string, args []string, env func(string) string, c *Controller) *helper {
	h := &helper{w: w, argv0: argv0, node: c.Node, env: env, c: c, took: env("IGNORE_EMPTY_NOTE") == "1"}
	if len(args) > 0 {
		h.node = args[0]
	}
	return h
}

// say prints one of LBNL's lines.
func (h *helper) say(format string, args ...any) {
	fmt.Fprintf(h.w, "%s:  %s\n", h.argv0, fmt.Sprintf(format, args...))
}

func (h *helper) otherRM() int {
	rm := h.env("NHC_RM")
	if rm == "sge" {
		h.say("No additional node marking necessary for SGE and variants.")
		return 0
	}
	h.say("Unsupported RM detected in %s:  %q", h.argv0, rm)
	return 255
}

// note is a node's note as LBNL prints it: the first word, a blank, and the other
// words.
type note struct{ leader, rest string }

func noteOf(words []string) note {
	if len(words) == 0 {
		return note{}
	}
	return note{words[0], strings.Join(words[1:], " ")}
}

func (n note) String() string { return n.leader + " " + n.rest }

// readSlurmNode asks sinfo, regardless of the settings. A node that sinfo does not show has the
// state "".
func (h *helper) readSlurmNode() (NodeInfo, note) {
	argv, err := h.c.Settings.sinfoArgv(h.node)
	if err != nil {
		h.complain(err)
		return NodeInfo{}, note{}
	}
	out := h.query(argv)
	words := strings.Fields(firstLine(out))
	if len(words) == 0 {
		return NodeInfo{}, note{}
	}
	n := noteOf(words[1:])
	node := NodeInfo{State: ParseState(words[0]), Reason: strings.TrimSpace(n.String())}
	node.State.Order = "" // LBNL NHC's helper resumes these nodes, too
	return node, n
}

func (h *helper) slurmOffline(message string) int {
	node, n := h.readSlurmNode()
	if h.mute {
		return noAnswer
	}
	d := Decide(node, Verdict{Message: message}, Policy{IgnoreEmptyNote: h.took})
	switch {
	case d.Action == None && node.State.Class == Unknown:
		h.say("Not sure how to handle node state %q on %s", node.State.Text, h.node)
	case d.Action == None && node.State.Class == Down:
		h.say("Not changing state of down node %s.", h.node)
	case d.Action == None && ownerOf(node.Reason) == noOwner:
		h.say("Not offlining %s:  Already offline with no note set.", h.node)
	case d.Action == None && ownerOf(node.Reason) == foreign:
		h.say("Not offlining %s:  Already offline for non-NHC reason (%s)", h.node, n)
	default:
		d = Decision{Action: Drain, Reason: Reason(message)}
		h.say("Marking %s %s offline:  %s", node.State.Text, h.node, d.Reason)
		return h.slurmWrite(d)
	}
	return 0
}

func (h *helper) slurmOnline() int {
	node, n := h.readSlurmNode()
	if h.mute {
		return noAnswer
	}
	d := Decide(node, Verdict{Healthy: true}, Policy{IgnoreEmptyNote: h.took})
	switch class := node.State.Class; {
	case d.Action == Resume:
		h.say("Marking %s online and clearing note (%s)", h.node, n)
		return h.slurmWrite(d)
	case class == InService:
		h.say("Node %s is already online.", h.node)
		h.say("Skipping %s node %s (%s)", node.State.Text, h.node, n)
	case class == Unknown:
		h.say("Not sure how to handle node state %q on %s", node.State.Text, h.node)
		h.say("Skipping %s node %s (%s)", node.State.Text, h.node, n)
	case ownerOf(node.Reason) == noOwner:
		h.say("Not onlining %s:  No note set.", h.node)
	case ownerOf(node.Reason) == ours:
		h.say("Not onlining %s:  %s (%s)", h.node, d.Why, n)
	default:
		h.say("Not onlining %s:  Down for non-NHC reason (%s)", h.node, n)
	}
	return 0
}

func (h *helper) slurmWrite(d Decision) int {
	argv, err := h.c.Settings.updateArgv(h.node, d)
	if err != nil {
		h.complain(err)
		return 1
	}
	if h.node == h.c.Node {
		if err := h.c.forget(); err != nil {
			h.complain(err)
		}
	}
	return h.mark(argv)
}

// query runs a command and returns its standard output.
func (h *helper) query(argv []string) []byte {
	out, _ := h.run(argv)
	return out.Stdout
}

// mark runs the command that changes the node, prints its output, and returns its exit status:
// 127 if it cannot be started, 124 if it never ends.
func (h *helper) mark(argv []string) int {
	out, err := h.run(argv)
	fmt.Fprintf(h.w, "%s", out.Stdout)
	switch {
	case err != nil:
		return 127
	case out.TimedOut:
		return noAnswer
	}
	return out.Status
}

func (h *helper) run(argv []string) (Output, error) {
	out, err := h.c.start(context.Background(), argv, h.environ())
	if h.c.Stderr != nil {
		fmt.Fprintf(h.c.Stderr, "%s", out.Stderr)
	}
	switch {
	case err != nil:
		h.complain(fmt.Errorf("run %s: %w", argv[0], err))
	case out.TimedOut:
		h.mute = true
		h.complain(fmt.Errorf("run %s: no answer within %s", argv[0], h.c.deadline()))
	}
	return out, err
}

// environ returns the environment of a command. Those of TORQUE and LSF find their server by variables of the site.
func (h *helper) environ() []string {
	if h.env("NHC_RM") != "slurm" && len(h.c.Settings.Exports) > 0 {
		return h.c.Settings.Exports
	}
	return h.c.Settings.environ()
}

func (h *helper) complain(err error) {
	if h.c.Stderr != nil {
		fmt.Fprintf(h.c.Stderr, "%s:  %v\n", h.argv0, err)
	}
}
