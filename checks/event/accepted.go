package event

import (
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Gone returns the findings of the kept event before this run that a person has accepted, and that this run has
// looked for in vain: ended, and passed if an accepted finding of the same fault is left, by another line. A check
// that has anything to say about the device has not passed there. The run is of the node's own file, or of another.
func (e *Event) Gone(old *Event, other bool) (ended, passed []Result) {
	if old == nil || e.Stopped {
		return nil, nil
	}
	var left []Result
	for _, r := range old.accepted() {
		if e.passes(&r, other) {
			passed = append(passed, r)
		} else {
			left = append(left, r)
		}
	}
	isLeft := func(r Result) bool {
		return slices.ContainsFunc(left, func(l Result) bool { return l.Code == r.Code && l.isAt(&r) })
	}
	for _, r := range passed {
		if !isLeft(r) {
			ended = append(ended, r)
		}
	}
	return ended, slices.DeleteFunc(passed, func(r Result) bool { return !isLeft(r) })
}

// Accepts reports whether the kept event has an accepted finding of the same fault: any, or only one of another file
// than the node's.
func (e *Event) Accepts(r *Result, onlyOther bool) bool {
	return slices.ContainsFunc(e.accepted(), func(a Result) bool { return a.Code == r.Code && a.isAt(r) && (a.Other || !onlyOther) })
}

// isAt reports whether a finding is about the same device. Two ports can have one address.
func (r *Result) isAt(o *Result) bool {
	return r.Device == o.Device || o.Device.Kind != "port" && r.Device.Of(o.Device)
}

// passes reports whether a run has looked for an accepted finding in vain. A line of another file can look for
// less, unless it is the same line.
func (e *Event) passes(r *Result, other bool) bool {
	if r.Other != other && (other || r.Line == "") {
		return false
	}
	found := func(n Result) bool { // by another line, too: a silence is for all lines that find it
		return n.Code == r.Code && n.Severity > checks.Skip && n.isAt(r)
	}
	speaks := func(n Result) bool {
		return n.Severity != checks.OK && (n.isAt(r) || n.hardware() == r.hardware() || n.hardware() == "" || r.hardware() == "")
	}
	now := r.among(e.Results)
	switch {
	case r.Other && !other:
		now = slices.DeleteFunc(now, func(n Result) bool { return n.Line == "" })
	case len(now) == 0 && !e.Part && !other: // the line was edited
		now = (&Result{Check: r.Check}).among(e.Results)
	}
	return len(now) > 0 && !slices.ContainsFunc(now, speaks) && !slices.ContainsFunc(e.Results, found)
}

// OfOther returns the event to keep of a run of another file than the node's. If the file is no trial, its accepted
// findings count until the file passes.
func (e *Event) OfOther(trial bool) *Event {
	o := *e
	o.Other = true
	for _, r := range (&Event{Results: e.Results}).accepted() {
		if r.Other = true; !trial {
			o.Accepted = append(slices.Clip(o.Accepted), r)
		}
	}
	o.Results = slices.Clone(e.Results)
	for i := range o.Results {
		o.Results[i].Other = o.Results[i].Silenced != nil
	}
	return &o
}

// Carry returns the event with the accepted findings of the kept event before it that it does not have itself,
// and that are not gone.
func (e *Event) Carry(old *Event, gone []Result) *Event {
	if old == nil {
		return e
	}
	carried := *e
	for _, r := range old.accepted() {
		same := func(n Result) bool { // with privacy a check has no lines
			return n.Code == r.Code && n.Device == r.Device && n.Line == r.Line && n.Check == r.Check && n.Other == r.Other
		}
		if !slices.ContainsFunc(gone, same) && !slices.ContainsFunc(carried.accepted(), same) && len(carried.Accepted) < maxFindings {
			carried.Accepted = append(slices.Clip(carried.Accepted), r)
		}
	}
	return &carried
}

// accepted returns the findings that a person has accepted, with those of earlier runs. It omits those of a device
// until a date: a run that passes does not end that.
func (e *Event) accepted() (list []Result) {
	for _, r := range e.Results {
		if r.Silenced != nil && !r.Drill && !r.Other && (r.Silenced.Until.IsZero() || r.Device == (checks.Device{})) {
			list = append(list, r)
		}
	}
	return append(list, e.Accepted...)
}
