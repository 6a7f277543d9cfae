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
		if !known(row.Kind) || row.Source == "" || row.Begins == "" || row.Means == "" || row.Do == "" {
			t.Errorf("line %+v: want a kind of the table, a beginning, what it means, what to do and a source", row)
		}
		if monitor.KindOf([]byte(row.Example)) != row.Kind {
			t.Errorf("%q is no example of %q", row.Example, row.Begins)
		}
		for _, text := range []string{row.Example, "[  131.2] " + row.Example, "Jan  2 03:04:05 n1 kernel: " + row.Example} {
			if got, ok := monitor.Pasted(text); !ok || got != row {
				t.Errorf("%q: %+v, want %+v", text, got, row)
			}
		}
	}
}
