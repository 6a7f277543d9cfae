package slurm

import (
	"cmp"
	"fmt"
	"slices"
)

// Cause is what a run has failed by.
type Cause struct {
	Check string `json:"check,omitempty"` // its name, or the line that bash runs; "": the run itself has failed
	Line  string `json:"line,omitempty"`  // the words, of a check in a file of lines
	File  string `json:"file,omitempty"`  // where the line is; "": in none
	Job   bool   `json:"job,omitempty"`   // the run was a prolog or an epilog, which no drained node sees again
}

func (c Cause) String() string {
	name := cmp.Or(c.Check, "a run")
	if c.File == "" {
		return name
	}
	return fmt.Sprintf("%s (%s)", name, c.File)
}

// Mark is a cause that the node is drained for, and stays so until a run has looked at
// it and passed: the health check of every few minutes knows nothing of what a run of
// another file has found at night.
type Mark struct {
	Cause

	Message string `json:"message,omitempty"` // no more of it than a reason holds
	Fault   string `json:"fault,omitempty"`   // which it is about
	Owed    bool   `json:"owed,omitempty"`    // the node was not drained for it: Slurm did not answer, or the state did not allow it
}

// mostMarks bounds what is kept; the oldest are forgotten first.
const mostMarks = 16

// mark keeps what a failing verdict is about.
func (m *Memory) mark(v Verdict) {
	if v.Healthy || v.Cause == (Cause{}) {
		return
	}
	isSame := func(k Mark) bool { return k.Cause == v.Cause }
	if i := slices.IndexFunc(m.Marks, isSame); i >= 0 && m.Marks[i].Fault == v.fault() && m.Marks[i].Message != "" {
		return // its message is what stands in the reason
	}
	marks := slices.DeleteFunc(slices.Clone(m.Marks), isSame)
	marks = append(marks, Mark{Cause: v.Cause, Message: cut(printable(v.Message), MaxReason), Fault: v.fault()})
	m.Marks = marks[max(0, len(marks)-mostMarks):]
}

// standing are the marks that a verdict leaves, and why the last of them stays. A
// failing one leaves them all.
func (m *Memory) standing(v Verdict) (marks []Mark, why string) {
	if !v.Healthy {
		return m.Marks, ""
	}
	for _, k := range m.Marks {
		if v.Lacks == nil {
			break
		}
		if lacks := v.Lacks(k.Cause); lacks != "" {
			marks, why = append(marks, k), lacks
		}
	}
	return marks, why
}

// owed returns the drain that the marks are still to have; ok is false if there is none.
func (m *Memory) owed(marks []Mark) (v Verdict, ok bool) {
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

// owe notes whether the drain for a cause is still to be delivered. Once the node is drained
// it is so for all of them.
func (m *Memory) owe(cause Cause, owed bool) {
	m.Marks = slices.Clone(m.Marks)
	for i := range m.Marks {
		if k := &m.Marks[i]; !owed || k.Cause == cause {
			k.Owed = owed
		}
	}
}

// passes says of a node that is not drained that its state does not allow it now, and
// ends without a person's State=RESUME: a maintenance, a slurmctld that has just started.
func (s State) passes() bool {
	return !s.Held && (s.Class == Unknown || s.Base == "maint" || s.Class == Down && s.is("NOT_RESPONDING"))
}

// keepDrained is what a healthy verdict means for a node that is drained by us for
// something else. Its reason names that, and nothing that is over.
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

// mayBeHeld says of a node that a healthy verdict leaves alone whether it may be drained
// by us all the same.
func (n NodeInfo) mayBeHeld() bool {
	return n.State.Class == Unknown || n.State.Class == InService && n.State.Held
}
