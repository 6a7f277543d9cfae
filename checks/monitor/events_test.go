package monitor_test

import (
	"slices"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
)

// Each kind names classes that exist, each line a kind, and each row says why.
func TestEvents(t *testing.T) {
	t.Parallel()
	for _, row := range monitor.Rows().Kind {
		for _, class := range row.Classes {
			if !slices.Contains(checks.Classes(), class) {
				t.Errorf("kind %s: there is no class %q: want one of %q", row.Name, class, checks.Classes())
			}
		}
		if row.Why == "" {
			t.Errorf("kind %s: no reason", row.Name)
		}
	}
	known := func(k monitor.Kind) bool {
		return slices.ContainsFunc(monitor.Rows().Kind, func(row monitor.KindRow) bool { return row.Name == k })
	}
	for _, k := range []monitor.Kind{monitor.GPU, monitor.Link, monitor.Device, monitor.Service, monitor.Lost, monitor.Job} {
		if !known(k) {
			t.Errorf("events.toml has no kind %q", k)
		}
	}
	for _, row := range monitor.Rows().Line {
		if !known(row.Kind) || row.Source == "" || row.Begins == "" {
			t.Errorf("line %+v: want a kind of the table, a beginning and a source", row)
		}
	}
}
