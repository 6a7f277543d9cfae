package slurm

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// A run with an unchanged verdict, on a node that is already out of service, makes no call:
// otherwise slurmctld would give thousands of nodes the same answer every few minutes, for example
// while a file server is dead. It asks immediately if something changes, and slowly
// otherwise.

// DefaultRecheck is how long an unchanged answer of Slurm is valid at most
// ([Settings.Recheck]).
const DefaultRecheck = 30 * time.Minute

// heldRecheck is the same limit while an action waits for a change: for the end of a reboot or a
// maintenance before a resume, or for the permission to drain. It is never longer than the other
// limit.
const heldRecheck = 10 * time.Minute

func (c *Controller) now() time.Time {
	if c.Now != nil {
		return c.Now()
	}
	return time.Now()
}

// next returns when to ask Slurm again if nothing changes. Each node has its own time between half
// of d and d, so that nodes that fail together do not ask together.
func (c *Controller) next(d time.Duration) time.Time {
	h := fnv.New32a()
	h.Write([]byte(c.Node))
	share := time.Duration(h.Sum32() % 1000)
	return c.now().UTC().Add(d - d/2*share/1000).Truncate(time.Second)
}

// due reports whether that time has come. A time that is too far in the future comes from a wrong
// clock.
func (c *Controller) due(m Memory) bool {
	now := c.now()
	return !now.Before(m.Next) || m.Next.Sub(now) > c.Settings.Recheck
}

// spared reports that a run need not ask Slurm.
func (c *Controller) spared(m Memory, v Verdict, role Role) bool {
	switch {
	case role == Prolog || role == Epilog && !v.Healthy || m.For != c.question(m, v) || c.news(m):
		return false // a job was on the node: it can be in service again
	case m.Refusal.Text != "", m.Pending.Held != "":
	case m.Pending != (Pending{}) || !m.isSettled():
		return false
	}
	return !c.due(m)
}

// question identifies the question of a verdict: for an unchanged node, two verdicts with the same
// question get the same answer.
func (c *Controller) question(m Memory, v Verdict) string {
	if !v.Healthy {
		return strings.Join([]string{v.fault(), v.Cause.Check, v.Cause.Line, v.Cause.File, fmt.Sprint(v.Cause.Job)}, "\x00")
	}
	words := []string{"healthy"}
	if v.Early {
		words = append(words, "early")
	}
	standing, _ := m.findStanding(v)
	for _, k := range standing {
		words = append(words, k.String(), k.Line)
	}
	return strings.Join(words, "\x00")
}

// news reports whether SLURM_NODE_IS_HEALTHY has changed and differs from the stored state, so that
// Slurm must be asked. It lags behind the node by some seconds: a value that it had at the last read
// is not new.
func (c *Controller) news(m Memory) bool {
	expected := "no"
	if m.Reported == ReportedOK {
		expected = "yes"
	}
	return c.NodeIsHealthy != "" && c.NodeIsHealthy != expected && c.NodeIsHealthy != m.IsHealthy
}

// fault identifies a fault by code and device: the numbers in a message change, but the fault is the
// same. A finding without a device is identified by its line. A line that bash runs can find
// different faults, so its text counts, too.
func (v Verdict) fault() string {
	switch {
	case v.Healthy:
		return ""
	case v.pending != "":
		return v.pending
	case strings.HasPrefix(v.Message, checks.DrillMark): // a real fault of the same device is another one
		v.Message = strings.TrimPrefix(v.Message, checks.DrillMark)
		return checks.DrillMark + v.fault()
	case v.Device != "":
		return checks.FaultOf(v.Code) + " " + v.Device
	}
	text := ""
	if v.Code == "" && v.Cause.Line == "" {
		text = cut(withoutNumbers(attributed().ReplaceAllString(v.Message, "")), mostFaultText)
	}
	return strings.TrimSpace(strings.Join([]string{v.Code, v.Cause.Check, v.Cause.Line, text}, " "))
}

// mostFaultText is the maximum length of a text that identifies a fault.
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

// Refusal is a permanent refusal by Slurm: it does not accept root, or it knows no such
// node.
type Refusal struct {
	Text string    `json:"text"`
	Said time.Time `json:"said"` // time of the last report to the administrator
}

// sayAgain is the interval at which the same refusal is reported.
const sayAgain = 24 * time.Hour

// noSuchNode matches Slurm's texts about a node that it does not know.
const noSuchNode = `invalid node name|knows no such node|node \S+ not found`

// refusals matches Slurm's texts for that (tested with 22.05, 24.11 and 26.05). "run scontrol:
// permission denied" is not from Slurm: this machine cannot execute scontrol.
var refusals = checks.Lazily(`(?i)access[^.]{0,20}denied|error: [^:]*permission denied|invalid user id|` + noSuchNode)

// NoSuchNode reports whether an error means that Slurm does not know the node.
func NoSuchNode(err error) bool { return err != nil && unknownNode().MatchString(err.Error()) }

// NoSuchJob reports whether an error means that Slurm does not know the job.
func NoSuchJob(err error) bool { return err != nil && strings.Contains(err.Error(), "Invalid job id") }

var unknownNode = checks.Lazily(`(?i)` + noSuchNode)

// refuse records a refusal, and returns whether it was already reported.
func (c *Controller) refuse(m *Memory, err error) (repeated bool) {
	text, now := refusals().FindString(err.Error()), c.now().UTC().Truncate(time.Second)
	repeated = m.Refusal.Text == text && now.Sub(m.Refusal.Said) < sayAgain && !now.Before(m.Refusal.Said)
	if !repeated {
		m.Refusal = Refusal{Text: text, Said: now}
	}
	if repeated || !NoSuchNode(err) { // slurmd may register a new node soon
		m.Next = c.next(min(heldRecheck, c.Settings.Recheck))
	}
	return repeated
}

func isRefusal(err error) bool { return err != nil && refusals().MatchString(err.Error()) }
