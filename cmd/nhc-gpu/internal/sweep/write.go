package sweep

import (
	"encoding/json"
	"errors"
	"os"
	"slices"

	"golang.org/x/term"

	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/sweeppage"
)

// write prints the report, and writes the files.
func (f *flags) write(r *sweep.Report, events []*event.Event) error {
	var bad error
	if f.report != "" {
		bad = errors.Join(bad, console.WriteFile(f.report, 0o644, false, func(w *os.File) error { return json.NewEncoder(w).Encode(r) }))
	}
	if f.html != "" {
		bad = errors.Join(bad, console.WriteFile(f.html, 0o644, false, func(w *os.File) error { return sweeppage.HTML(w, r) }))
	}
	if f.events != "" {
		bad = errors.Join(bad, console.WriteFile(f.events, 0o644, true, func(w *os.File) error {
			for _, e := range events {
				if _, err := w.Write(append(e.Line(), '\n')); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	switch {
	case f.json && len(f.checks) > 0:
		return errors.Join(bad, printHosts(r))
	case f.json:
		return errors.Join(bad, printJSON(r))
	}
	width := 0
	if fd := int(os.Stdout.Fd()); term.IsTerminal(fd) {
		width, _, _ = term.GetSize(fd)
	}
	return errors.Join(bad, sweeppage.Print(console.Screen, r, width))
}

// hostChecks is the line of a node in the answer to --check.
type hostChecks struct {
	Host   string              `json:"host"`
	State  string              `json:"state"`
	Why    string              `json:"why,omitempty"`
	Checks []sweep.CheckResult `json:"checks"`
}

// hosts returns the results of checks by node.
func hosts(r *sweep.Report) (list []hostChecks) {
	for _, n := range r.Nodes {
		h := hostChecks{Host: n.Name, State: n.State, Why: n.Why, Checks: []sweep.CheckResult{}}
		var lines []string
		last := map[string][]sweep.CheckResult{} // by line: a check that could not run has run twice
		for _, s := range r.Stages {
			for _, x := range s.Results {
				if x.Task.Kind != sweep.KindCheck || !slices.Contains(x.Task.Nodes, n.Name) {
					continue
				}
				if !slices.Contains(lines, x.Task.Op) {
					lines = append(lines, x.Task.Op)
				}
				if last[x.Task.Op] = x.Checks; len(x.Checks) == 0 {
					last[x.Task.Op] = []sweep.CheckResult{{Check: x.Task.Op, Severity: "unknown", Message: x.Text}}
				}
			}
		}
		for _, line := range lines {
			h.Checks = append(h.Checks, last[line]...)
		}
		list = append(list, h)
	}
	return list
}

// isUnknown reports whether a check could not be evaluated on a node.
func isUnknown(h hostChecks) bool {
	return slices.ContainsFunc(h.Checks, func(c sweep.CheckResult) bool { return c.Severity == "unknown" })
}

// printHosts prints the results of checks, an object of JSON for each node.
func printHosts(r *sweep.Report) error {
	for _, h := range hosts(r) {
		if err := printJSON(h); err != nil {
			return err
		}
	}
	return nil
}

func printJSON(v any) error {
	e := json.NewEncoder(os.Stdout)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
