package slurm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Cause is the cause of a failing run.
type Cause struct {
	Check string `json:"check,omitempty"` // the name of the check, or the line that bash runs; "": the run itself failed
	Line  string `json:"line,omitempty"`  // the line of a check in nhc.conf
	File  string `json:"file,omitempty"`  // the file of the line; "": none
	Job   bool   `json:"job,omitempty"`   // the run was a prolog or an epilog, which never runs on a drained node
	Drill bool   `json:"drill,omitempty"` // the fault is a rehearsal: its end resumes the node
}

func (c Cause) String() string {
	name := cmp.Or(c.Check, "a run")
	if c.File == "" {
		return name
	}
	return fmt.Sprintf("%s (%s)", name, c.File)
}

// Mark is a cause of a drain. It stays until a run has checked the same fault
// and passed: the periodic health check cannot judge a fault that a run of another file found
// at night.
type Mark struct {
	Cause

	Message string    `json:"message,omitempty"` // cut to the length of a reason
	Fault   string    `json:"fault,omitempty"`   // the fault of the message
	Since   time.Time `json:"since,omitzero"`    // UTC: when a run found it last, as far as Slurm was asked
	Owed    bool      `json:"owed,omitempty"`    // the node is not yet drained for it: Slurm did not answer, or the state did not allow it
}

// Code returns the code of the fault, "" if it has none.
func (m Mark) Code() string {
	code, _, _ := strings.Cut(strings.TrimPrefix(m.Fault, checks.DrillMark), " ")
	if ofCode().MatchString(code) {
		return code
	}
	return ""
}

// Is reports whether the fault of a finding is that of the mark.
func (m Mark) Is(check, code, device string) bool {
	if device != "" {
		return m.Fault == Verdict{Code: code, Device: device}.fault()
	}
	return m.Check == check && m.Code() == code
}

var ofCode = checks.Lazily(`^[a-z0-9_-]+(\.[a-zA-Z0-9_-]+)+$`)

// mostMarks is the maximum number of marks; the oldest are removed first.
const mostMarks = 16

// mark stores the cause of a failing verdict.
func (m *Memory) mark(v Verdict, now time.Time) {
	if v.Healthy || v.Cause == (Cause{}) {
		return
	}
	isSame := func(k Mark) bool { return k.Cause == v.Cause }
	i := slices.IndexFunc(m.Marks, isSame)
	if i >= 0 && m.Marks[i].Fault == v.fault() && m.Marks[i].Message != "" {
		m.Marks = slices.Clone(m.Marks)
		m.Marks[i].Since = now.UTC()
		return // its message is in the reason
	}
	fault := v.fault()
	if i >= 0 && v.Code == checks.JobStuck && m.Marks[i].Code() != v.Code {
		fault = m.Marks[i].Fault // the end of a stuck process does not answer that one
	}
	marks := slices.DeleteFunc(slices.Clone(m.Marks), isSame)
	marks = append(marks, Mark{Cause: v.Cause, Message: cut(printable(v.Message), MaxReason), Fault: fault, Since: now.UTC()})
	m.Marks = marks[max(0, len(marks)-mostMarks):]
}

// findStanding returns the marks that remain after a verdict, and why the last of them remains.
// After a failing verdict all remain.
func (m *Memory) findStanding(v Verdict) (marks []Mark, why string) {
	if !v.Healthy {
		return m.Marks, ""
	}
	for _, k := range m.Marks {
		if v.Lacks == nil {
			break
		}
		if lacks := v.Lacks(k); lacks != "" {
			marks, why = append(marks, k), lacks
		}
	}
	return marks, why
}

// findOwed returns the drain that the marks still need; ok is false if there is none.
func (m *Memory) findOwed(marks []Mark) (v Verdict, ok bool) {
	for _, k := range slices.Backward(marks) {
		switch {
		case m.Pending.Message != "" && (k.Message == "" || k.Message == m.Pending.Message):
			return m.pendingVerdict(), true
		case k.Owed && k.Message != "":
			return Verdict{Message: k.Message, pending: k.Fault}, true
		}
	}
	return Verdict{}, false
}

// owe records whether the drain for a cause must still be delivered. Once the node is drained, it
// is drained for all of them.
func (m *Memory) owe(cause Cause, owed bool) {
	m.Marks = slices.Clone(m.Marks)
	for i := range m.Marks {
		if k := &m.Marks[i]; !owed || k.Cause == cause {
			k.Owed = owed
		}
	}
}

// passes reports that the state of a node that is not drained does not allow a drain now, but ends
// without a person's State=RESUME: a maintenance, or a slurmctld that has just started.
func (s State) passes() bool {
	return !s.DrainFlag && (s.Class == Unknown || s.Base == "maint" || s.Class == Down && s.is("NOT_RESPONDING"))
}

// keepDrained returns the decision of a healthy verdict for a node that we drained for another
// fault. The reason names that fault only.
func keepDrained(node NodeInfo, marks []Mark, why string) Decision {
	last := marks[len(marks)-1]
	d := Decision{Why: keptFor(marks, why)}
	if !slices.ContainsFunc(marks, func(k Mark) bool { return k.Message == "" || sameReason(node.Reason, Reason(k.Message)) }) {
		d.Action, d.Reason = Renew, Reason(last.Message)
	}
	return d
}

func keptFor(marks []Mark, why string) string {
	return fmt.Sprintf("drained by %s, %s", marks[len(marks)-1].Cause, why)
}

// isHeld reports whether the node is out of service.
func (n NodeInfo) isHeld() bool {
	return n.State.Class == Drained || n.State.Class == Down || n.State.DrainFlag
}

// isTaken reports whether another user has ended our drain: the node is in service, or that user has drained it.
// An order to reboot or to power down ends none, whatever class it gives the node.
func (m *Memory) isTaken(n NodeInfo) bool {
	if n.State.Class == InService && !n.State.DrainFlag {
		return !n.State.maintained()
	}
	return n.State.Class != Unknown && (ownerOf(n.Reason) == foreign || n.owner() == foreign && m.Lost == "")
}

// lostFor returns why a healthy run keeps a node whose memory is lost.
func (m *Memory) lostFor() string {
	return "what drained it is unknown: its memory cannot be read: " + strings.TrimPrefix(m.Lost, "read memory: ")
}
