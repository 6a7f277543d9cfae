package sweeppage

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Summary is a sweep in the list of sweeps.
type Summary struct {
	ID       string        `json:"id"`
	State    string        `json:"state"` // running, done or interrupted
	Why      string        `json:"why,omitempty"`
	Began    time.Time     `json:"began"`
	Ended    time.Time     `json:"ended,omitzero"`
	Nodes    int           `json:"nodes"`
	Suspects int           `json:"suspects"`
	Job      string        `json:"job,omitempty"`
	Stage    string        `json:"stage,omitempty"` // of a running sweep
	Left     time.Duration `json:"left,omitempty"`  // of a running sweep, nanoseconds; 0 is unknown
	File     string        `json:"file,omitempty"`  // its report, JSON
}

// States of a sweep.
const (
	Running     = "running"
	Done        = "done"
	Interrupted = "interrupted"
)

// PrintStatus prints a list of sweeps, the newest first, and below each what to do next.
func PrintStatus(w io.Writer, list []Summary) error {
	s := &screen{width: usualWidth}
	if len(list) == 0 {
		s.line("no sweep is recorded here")
	}
	list = slices.SortedStableFunc(slices.Values(list), func(a, b Summary) int { return b.Began.Compare(a.Began) })
	width := 0
	for i := range list {
		width = max(width, len(list[i].ID))
	}
	for i := range list {
		x := &list[i]
		text := fmt.Sprintf("%s, %s", counted(x.Nodes, "node"), counted(x.Suspects, "suspect"))
		if x.Job != "" {
			text += ", job " + x.Job
		}
		s.line("%-*s  %-11s  %s UTC  %s", width, x.ID, x.State, moment(x.Began), text)
		for _, next := range x.next() {
			s.fold("    ", next)
		}
	}
	if _, err := io.WriteString(w, s.String()); err != nil {
		return fmt.Errorf("print the sweeps: %w", err)
	}
	return nil
}

// next returns what a person needs to know or can do about a sweep.
func (x *Summary) next() (lines []string) {
	switch x.State {
	case Running:
		text := "stage " + cmp.Or(x.Stage, "not begun")
		if x.Left > 0 {
			text += ", about " + checks.Lasted(x.Left) + " left"
		}
		if x.Job != "" {
			text += "; to end it: scancel " + x.Job
		}
		lines = append(lines, text)
	case Interrupted:
		if x.Why != "" {
			lines = append(lines, "ended early: "+x.Why)
		}
		lines = append(lines, "to continue it: nhc-gpu sweep --continue "+x.ID)
	}
	if x.File != "" {
		lines = append(lines, "report: "+x.File)
	}
	return lines
}
