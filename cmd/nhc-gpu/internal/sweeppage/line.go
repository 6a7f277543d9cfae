package sweeppage

import (
	"fmt"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// Line is the line that a person sees while a sweep runs. console.Progress.Say shows it on a terminal,
// cut to its width: what matters most comes first.
type Line struct {
	Stage    sweep.Stage   // "" before the first
	Doing    string        // in place of rounds: "start the ranks"
	Round    int           // from 1
	Rounds   int           // estimate; 0 is unknown
	Running  int           // tests
	Suspects int           // so far
	Left     time.Duration // estimate for the whole sweep; 0 is unknown
}

func (l Line) String() string {
	head := ""
	if l.Stage != "" {
		head = string(l.Stage) + ": "
	}
	if l.Doing != "" {
		head += l.Doing
	} else {
		head += fmt.Sprintf("round %d", l.Round)
		if l.Rounds >= l.Round {
			head += fmt.Sprintf(" of about %d", l.Rounds)
		}
	}
	parts := []string{head}
	if l.Suspects > 0 {
		parts = append(parts, counted(l.Suspects, "suspect"))
	}
	if l.Running > 0 {
		parts = append(parts, counted(l.Running, "test")+" running")
	}
	if l.Left > 0 {
		parts = append(parts, "about "+checks.Lasted(l.Left)+" left")
	}
	return strings.Join(parts, ", ")
}
