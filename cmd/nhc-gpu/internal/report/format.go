package report

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// Formats are the values of --format.
var Formats = append([]string{"text", "json"}, event.Formats...)

// UseFormat applies --format.
func (o *Options) UseFormat() error {
	switch {
	case !slices.Contains(Formats, o.Format):
		return fmt.Errorf("option --format=%s: want %s", o.Format, spell.OneOf(o.Format, Formats))
	case o.JSON && o.Format != "json":
		return errors.New("--json and --format exclude each other")
	}
	if o.JSON = o.Format == "json"; o.JSON || o.Format == "text" {
		o.Format = ""
	}
	return nil
}

// asEvent returns a report as the event of a run that has not decided about the node.
func asEvent(r *health.Run, report *verdict.Report) *event.Event {
	e := &event.Event{
		Schema: event.Schema, Version: report.Version, Node: report.Node, Time: time.Now().UTC().Truncate(time.Millisecond),
		Context: r.Role.String(), Mode: outputs.Mode(r.Node), Config: report.From, Exit: report.Exit(),
		Milliseconds: event.Milliseconds(time.Since(r.Budget.Began)), Results: []event.Result{}, Drill: r.Judge.Drill(),
	}
	for i := range report.Rows {
		row := &report.Rows[i]
		res := event.Result{
			Check: row.Name, Line: row.Line, Code: row.Code, Severity: row.Severity, Device: row.Device, Want: row.Want, Got: row.Got, Remedy: row.Remedy,
			Message: row.Fact, Milliseconds: event.Milliseconds(row.Took), Drill: row.Drill,
		}
		if row.Message != "" {
			res.Message = row.Name + ":  " + row.Message
		}
		if row.Shell {
			res.Check, res.Message = event.Shell, row.Message
		}
		e.Results = append(e.Results, res)
	}
	e.Judge()
	if r.Config.Outputs().Privacy {
		return e.Private()
	}
	return e
}
