package slurm

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// A run with an unchanged verdict, on a node that is already out of service, asks
// nothing: slurmctld would give thousands of nodes the same answer every few minutes
// while a file server is dead. It asks at once if something changes, and slowly
// otherwise.

// DefaultRecheck is how long an unchanged answer of Slurm's counts at most
// ([Settings.Recheck]).
const DefaultRecheck = 30 * time.Minute

// heldRecheck is how long it counts at most where something waits for a change: a
// reboot that keeps a node from being resumed, the end of a maintenance, the right to
// drain. It is never longer than the other one.
const heldRecheck = 10 * time.Minute

func (c *Controller) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}

// next is when Slurm is asked again if nothing changes. Each node has its own moment
// between a half of the time and all of it, so that nodes that fail together do not ask
// together.
func (c *Controller) next(d time.Duration) time.Time {
	h := fnv.New32a()
	h.Write([]byte(c.Node))
	share := time.Duration(h.Sum32() % 1000)
	return c.now().UTC().Add(d - d/2*share/1000).Truncate(time.Second)
}

// due says whether that moment has come. One that is further away than it can be comes
// from a clock that was wrong.
func (c *Controller) due(m Memory) bool {
	now := c.now()
	return !now.Before(m.Next) || m.Next.Sub(now) > c.Settings.Recheck
}

// spared says of a run that it need not ask.
func (c *Controller) spared(m Memory, v Verdict, role Role) bool {
	switch {
	case role == Prolog || m.For != c.question(m, v) || c.news(m):
		return false // a job has just been given to the node
	case m.Refusal.Text != "":
	case m.Pending != (Pending{}) || m.Told != ToldDrained && m.Told != ToldLeftAlone:
		return false
	}
	return !c.due(m)
}

// question identifies the question of a verdict: two verdicts with the same question
// get the same answer of an unchanged node.
func (c *Controller) question(m Memory, v Verdict) string {
	if !v.Healthy {
		return strings.Join([]string{v.fault(), v.Cause.Check, v.Cause.Line, v.Cause.File, fmt.Sprint(v.Cause.Job)}, "\x00")
	}
	words := []string{"healthy"}
	standing, _ := m.standing(v)
	for _, k := range standing {
		words = append(words, k.String(), k.Line)
	}
	return strings.Join(words, "\x00")
}

// news reports whether SLURM_NODE_IS_HEALTHY has changed and differs from our memory of
// the node, so that Slurm must be asked. It lags behind the node by some seconds: a value
// that it had at the last read is not new.
func (c *Controller) news(m Memory) bool {
	expected := "no"
	if m.Told == ToldOK {
		expected = "yes"
	}
	return c.NodeIsHealthy != "" && c.NodeIsHealthy != expected && c.NodeIsHealthy != m.IsHealthy
}

// fault identifies a fault by code and device: the numbers in a message change, but
// the fault is the same. A finding without a device is identified by its line. A line that
// bash runs may find many faults, so its text counts, too.
func (v Verdict) fault() string {
	switch {
	case v.Healthy:
		return ""
	case v.pending != "":
		return v.pending
	case v.Device != "":
		return checks.FaultOf(v.Code) + " " + v.Device
	}
	text := ""
	if v.Code == "" && v.Cause.Line == "" {
		text = cut(withoutNumbers(attributed().ReplaceAllString(v.Message, "")), mostFaultText)
	}
	return strings.TrimSpace(strings.Join([]string{v.Code, v.Cause.Check, v.Cause.Line, text}, " "))
}

// mostFaultText is how much of a text identifies a fault.
const mostFaultText = 256

// withoutNumbers replaces the numbers in a text, except those that name a device: gpu3,
// GPU 3, mlx5_0.
func withoutNumbers(text string) string {
	return numbers().ReplaceAllStringFunc(text, func(n string) string {
		if n[0] < '0' || n[0] > '9' {
			return n
		}
		return "#"
	})
}

var numbers = checks.Lazily(`(?i)(?:[\pL_]|\b(?:gpu|card|device|index|slot|port|link|bus|cpu|socket|dimm|disk|drive|fan|xid)s?[ #:=]{1,2})?\d[\d.,:]*`)

// Refusal is a permanent refusal of Slurm: it does not accept root, or it knows no such
// node.
type Refusal struct {
	Text string    `json:"text"`
	Said time.Time `json:"said"` // time of the last report to the administrator
}

// sayAgain is how often the same refusal is reported.
const sayAgain = 24 * time.Hour

// refusals are Slurm's texts for that (tried with 22.05, 24.11 and 26.05). "run scontrol:
// permission denied" is not from Slurm: this machine cannot execute scontrol.
var refusals = checks.Lazily(`(?i)access[^.]{0,20}denied|error: [^:]*permission denied|invalid user id|invalid node name|knows no such node|node \S+ not found`)

// NoSuchNode says of an error that Slurm does not know the node.
func NoSuchNode(err error) bool { return err != nil && unknownNode().MatchString(err.Error()) }

var unknownNode = checks.Lazily(`(?i)invalid node name|knows no such node|node \S+ not found`)

// refuse notes a refusal, and says whether it was reported already.
func (c *Controller) refuse(m *Memory, err error) (repeated bool) {
	text, now := refusals().FindString(err.Error()), c.now().UTC().Truncate(time.Second)
	repeated = m.Refusal.Text == text && now.Sub(m.Refusal.Said) < sayAgain && !now.Before(m.Refusal.Said)
	if !repeated {
		m.Refusal = Refusal{Text: text, Said: now}
	}
	if repeated || !NoSuchNode(err) { // slurmd may be about to register a new node
		m.Next = c.next(min(heldRecheck, c.Settings.Recheck))
	}
	return repeated
}

func isRefusal(err error) bool { return err != nil && refusals().MatchString(err.Error()) }
