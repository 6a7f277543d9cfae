package outputs

import (
	"slices"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sessiontest"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// A failure that a person has accepted is a warning. A run that no longer finds it ends the silence,
// unless that has a date.
func TestSilences(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck)
	mount := checks.Device{Kind: "mount", Name: "/scratch"}
	fault := checks.Finding{Code: "fs.mount.missing", Severity: checks.Fail, Device: mount, Message: "gone"}
	by := checks.Silenced{By: "alice", Why: "moved", Since: time.Now().UTC()}
	if got := n.Silence([]checks.Finding{fault}, "l"); got[0].Severity != checks.Fail {
		t.Errorf("without a record: %+v", got)
	}
	dated := checks.Silence{Code: "fs.free", Silenced: checks.Silenced{Until: time.Now().Add(time.Hour), Since: by.Since}}
	if err := accept(n, []checks.Silence{{Code: fault.Code, Device: mount, Silenced: by}, dated}); err != nil {
		t.Fatal(err)
	}
	if got := n.Silence([]checks.Finding{fault}, "l"); got[0].Severity != checks.Fail {
		t.Error("a run reads the record twice")
	}
	found := event.Result{Check: "check_fs_mount", Code: fault.Code, Device: mount, Severity: checks.Warn, Silenced: &by}
	full := event.Result{Check: "check_fs_free", Code: "fs.free", Severity: checks.Warn, Silenced: &dated.Silenced}
	for _, tt := range []struct {
		run  Run
		list []event.Result
		left int
	}{
		{OfNode, []event.Result{found, full}, 2},
		{Trial, []event.Result{{Check: "check_fs_mount"}, {Check: "check_fs_free"}}, 2},
		{OfNode, []event.Result{found, full}, 2},
		{OfNode, []event.Result{{Check: "check_fs_mount"}, {Check: "check_fs_free"}}, 1},
	} {
		e := &event.Event{Schema: event.Schema, Node: n.Name, Time: time.Now(), Context: "healthcheck", Mode: "enforce", Results: tt.list}
		e.Judge()
		Deliver(n.Node, conf.Output{}, tt.run, e)
		if list, err := n.Silences(); err != nil || len(list) != tt.left {
			t.Errorf("%d: %d silences, want %d, %v", tt.run, len(list), tt.left, err)
		}
	}
}

// An acceptance stays while a line that has found the fault has not passed: one of the node's file, or one of
// another file, which only that file can judge. A trial of a file is no such run.
func TestSilencesOfSeveralLines(t *testing.T) {
	t.Parallel()
	by := checks.Silenced{By: "alice", Why: "ordered", Since: time.Now().UTC()}
	disk := checks.Device{Kind: "nvme", Name: "nvme0", PCI: "0000:c1:00.0"}
	type run struct {
		kind Run
		list []event.Result
	}
	worn := func(line string) event.Result {
		return event.Result{Check: "check_nvme", Line: line, Code: "nvme.wear", Device: disk, Severity: checks.Warn, Silenced: &by}
	}
	pass := func(line string) event.Result { return event.Result{Check: "check_nvme", Line: line} }
	slow := func(line string) event.Result {
		return event.Result{Check: "check_nvme", Line: line, Code: "probe.slow", Severity: checks.Unknown}
	}
	other := func(r event.Result) event.Result { r.Check = "check_hw_disk"; return r }
	const lax, strict = "check_nvme -u 90", "check_nvme -u 80"
	both := run{OfNode, []event.Result{worn(lax), worn(strict)}}
	for name, tt := range map[string]struct {
		runs    []run
		privacy bool
		left    int
	}{
		"one line was slow":          {[]run{both, {OfNode, []event.Result{pass(lax), slow(strict)}}}, false, 1},
		"and then it passes":         {[]run{both, {OfNode, []event.Result{pass(lax), slow(strict)}}, {OfNode, []event.Result{pass(lax), pass(strict)}}}, false, 0},
		"two checks, with privacy":   {[]run{{OfNode, []event.Result{worn(lax), other(worn(strict))}}, {OfNode, []event.Result{slow(lax), other(slow(strict))}}, {OfNode, []event.Result{pass(lax), other(slow(strict))}}}, true, 1},
		"another file":               {[]run{{Other, []event.Result{worn(strict)}}, {OfNode, []event.Result{pass(lax)}}}, false, 1},
		"another file, with privacy": {[]run{{Other, []event.Result{worn(strict)}}, {OfNode, []event.Result{pass(lax)}}}, true, 1},
		"another file, later":        {[]run{{OfNode, []event.Result{worn(lax)}}, {Other, []event.Result{worn(strict)}}, {OfNode, []event.Result{pass(lax)}}}, false, 1},
		"another file passes":        {[]run{{OfNode, []event.Result{worn(lax)}}, {Other, []event.Result{worn(strict)}}, {Other, []event.Result{pass(strict)}}, {OfNode, []event.Result{pass(lax)}}}, false, 0},
		"it passes last":             {[]run{{OfNode, []event.Result{worn(lax)}}, {Other, []event.Result{worn(strict)}}, {OfNode, []event.Result{pass(lax)}}, {Other, []event.Result{pass(strict)}}, {OfNode, []event.Result{pass(lax)}}}, false, 0},
		"the same, with privacy":     {[]run{{OfNode, []event.Result{worn(lax)}}, {Other, []event.Result{worn(strict)}}, {Other, []event.Result{pass(strict)}}, {OfNode, []event.Result{pass(lax)}}}, true, 0},
		"another file alone":         {[]run{{OfNode, []event.Result{worn(lax)}}, {Other, []event.Result{pass(strict)}}}, false, 1},
		"a trial":                    {[]run{{OfNode, []event.Result{worn(lax)}}, {Trial, []event.Result{worn(strict)}}, {OfNode, []event.Result{pass(lax)}}}, false, 0},
		"a trial alone":              {[]run{{Trial, []event.Result{worn(strict)}}, {OfNode, []event.Result{pass(lax)}}}, false, 1},
	} {
		n := sessiontest.New(t, slurm.Manual)
		if err := accept(n, []checks.Silence{{Code: "nvme.wear", Device: disk, Silenced: by}}); err != nil {
			t.Fatal(err)
		}
		for _, r := range tt.runs {
			e := &event.Event{Schema: event.Schema, Node: n.Name, Time: time.Now(), Context: "manual", Mode: "enforce", Results: r.list}
			e.Judge()
			Deliver(n.Node, conf.Output{Privacy: tt.privacy}, r.kind, e)
		}
		if list, err := n.Silences(); err != nil || len(list) != tt.left {
			t.Errorf("%s: %d silences, want %d; %v", name, len(list), tt.left, err)
		}
	}
}

// The node's file runs as a health check, and another file by a timer: each keeps its own event.
func TestSilencesOfSeveralContexts(t *testing.T) {
	t.Parallel()
	by := checks.Silenced{By: "alice", Why: "ordered", Since: time.Now().UTC()}
	disk := checks.Device{Kind: "nvme", Name: "nvme0", PCI: "0000:c1:00.0"}
	found := func(line string) event.Result {
		return event.Result{Check: "check_nvme", Line: line, Code: "nvme.wear", Device: disk, Severity: checks.Warn, Silenced: &by}
	}
	pass := func(line string) event.Result { return event.Result{Check: "check_nvme", Line: line} }
	const lax, strict = "check_nvme -u 90", "check_nvme -u 80"
	type run struct {
		kind   Run
		result event.Result
	}
	for name, tt := range map[string]struct {
		runs []run
		left int
	}{
		"the node's file passes": {[]run{{OfNode, found(lax)}, {Other, found(strict)}, {OfNode, pass(lax)}, {OfNode, pass(lax)}}, 1},
		"both pass":              {[]run{{OfNode, found(lax)}, {Other, found(strict)}, {OfNode, pass(lax)}, {Other, pass(strict)}, {OfNode, pass(lax)}}, 0},
		"the other passes first": {[]run{{OfNode, found(lax)}, {Other, found(strict)}, {Other, pass(strict)}, {OfNode, pass(lax)}}, 0},
		"a trial":                {[]run{{OfNode, found(lax)}, {Trial, found(strict)}, {OfNode, pass(lax)}}, 0},
		"the other alone":        {[]run{{Other, found(strict)}, {Other, pass(strict)}, {OfNode, pass(lax)}}, 1},
	} {
		n := sessiontest.New(t, slurm.HealthCheck)
		if err := accept(n, []checks.Silence{{Code: "nvme.wear", Device: disk, Silenced: by}}); err != nil {
			t.Fatal(err)
		}
		for _, r := range tt.runs {
			context := "healthcheck"
			if r.kind != OfNode {
				context = "manual"
			}
			e := &event.Event{Schema: event.Schema, Node: n.Name, Time: time.Now(), Context: context, Mode: "enforce", Results: []event.Result{r.result}}
			e.Judge()
			Deliver(n.Node, conf.Output{}, r.kind, e)
		}
		if list, err := n.Silences(); err != nil || len(list) != tt.left {
			t.Errorf("%s: %d silences, want %d; %v", name, len(list), tt.left, err)
		}
	}
}

// An accepted failure ends at the first run that looks for it in vain, whatever the runs between have judged.
func TestSilencesOfEarlierRuns(t *testing.T) {
	t.Parallel()
	by := checks.Silenced{By: "alice", Why: "no cable", Since: time.Now().UTC()}
	port := func(name string) checks.Device {
		return checks.Device{Kind: "port", Name: name, PCI: "0000:c1:00.0"}
	}
	down := func(name string) event.Result {
		return event.Result{Check: "check_ib_ports", Line: "check_ib_ports", Code: "ib.ports.polling", Device: port(name), Severity: checks.Warn, Silenced: &by}
	}
	pass := event.Result{Check: "check_ib_ports", Line: "check_ib_ports"}
	unknown := event.Result{Check: "check_ib_ports", Line: "check_ib_ports", Code: "probe.slow", Severity: checks.Unknown}
	other := event.Result{Check: "check_fs_mount", Line: "check_fs_mount /", Code: "fs.mount.missing", Severity: checks.Fail}
	for name, tt := range map[string]struct {
		runs    [][]event.Result // nil: the run of another file
		privacy bool
		left    []string
	}{
		"it passes":                {runs: [][]event.Result{{down("p:1"), down("p:2")}, {pass}}},
		"unknown":                  {runs: [][]event.Result{{down("p:1"), down("p:2")}, {unknown}, {unknown}, {pass}}},
		"a run ended before it":    {runs: [][]event.Result{{down("p:1"), down("p:2")}, {other}, {pass}}},
		"a run of another file":    {runs: [][]event.Result{{down("p:1"), down("p:2")}, nil, {pass}}},
		"one port":                 {runs: [][]event.Result{{down("p:1"), down("p:2")}, {down("p:2")}}, left: []string{"p:2"}},
		"one port after the other": {runs: [][]event.Result{{down("p:1"), down("p:2")}, {down("p:2")}, {unknown}, {pass}}},
		"with privacy":             {runs: [][]event.Result{{down("p:1"), down("p:2")}, {unknown}, {pass}}, privacy: true},
		"never judged":             {runs: [][]event.Result{{down("p:1"), down("p:2")}, {unknown}, {other}}, left: []string{"p:1", "p:2"}},
	} {
		n := sessiontest.New(t, slurm.HealthCheck)
		accepted := []checks.Silence{{Code: "ib.ports.polling", Device: port("p:1"), Silenced: by}, {Code: "ib.ports.polling", Device: port("p:2"), Silenced: by}}
		if err := accept(n, accepted); err != nil {
			t.Fatal(err)
		}
		for _, list := range tt.runs {
			e := &event.Event{Schema: event.Schema, Node: n.Name, Time: time.Now(), Context: "healthcheck", Mode: "enforce", Results: list}
			e.Judge()
			e.Stopped = e.Verdict == checks.Fail
			kind := OfNode
			if list == nil {
				kind, e.Results = Other, []event.Result{pass}
			}
			Deliver(n.Node, conf.Output{Privacy: tt.privacy}, kind, e)
		}
		list, err := n.Silences()
		var left []string
		for _, s := range list {
			left = append(left, s.Device.Name)
		}
		if err != nil || !slices.Equal(left, tt.left) {
			t.Errorf("%s: silenced are %q, want %q; %v", name, left, tt.left, err)
		}
	}
}

// accept replaces the accepted faults of a node.
func accept(n *sessiontest.Node, list []checks.Silence) error {
	return n.ChangeSilences(func([]checks.Silence) ([]checks.Silence, error) { return list, nil })
}
