package sweep

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/launch"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/sweeppage"
)

// printStatus lists the sweeps.
func (f *flags) printStatus(state string) error {
	all, err := launch.List(state)
	if err != nil {
		return err
	}
	list := []sweeppage.Summary{}
	for _, s := range all {
		x := sweeppage.Summary{
			ID: s.ID, State: sweeppage.Done, Why: s.Interrupted, Began: s.Began, Ended: s.Ended, Nodes: len(s.Nodes), Suspects: s.Suspects,
			Job: s.Job, Stage: string(s.Stage), Left: s.About, File: s.File,
		}
		switch {
		case s.Running:
			x.State, x.Why, x.File = sweeppage.Running, "", ""
		case s.Interrupted != "":
			x.State = sweeppage.Interrupted
		}
		if s.Unsettled {
			x.Why = cmp.Or(x.Why, "its job or its maintenance is not ended") + "; run nhc-gpu sweep --repair"
		}
		list = append(list, x)
	}
	if f.json {
		return printJSON(list)
	}
	return sweeppage.PrintStatus(console.Screen, list)
}

// lastSweep is the value of --compare for the last sweep that can be compared.
const lastSweep = "last"

// earlier returns the sweep to compare with, nil for none.
func (f *flags) earlier(state string, stages []sweep.Stage) (*sweep.Report, error) {
	switch f.compare {
	case "":
		return nil, nil
	case lastSweep:
		r, err := launch.LastReport(state, stages, f.goOn)
		if r == nil && err == nil {
			logLine("--compare %s: no earlier sweep has run these stages to its end", lastSweep)
		}
		return r, err
	}
	r, err := launch.ReadReport(f.compare)
	if errors.Is(err, os.ErrNotExist) && !strings.ContainsAny(f.compare, "/.") {
		return launch.LoadReport(state, f.compare)
	}
	if err != nil {
		return nil, fmt.Errorf("--compare %s: %w", f.compare, err)
	}
	return r, nil
}
