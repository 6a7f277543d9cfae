package outputs

import (
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
	if err := n.KeepSilences([]checks.Silence{{Code: fault.Code, Device: mount, Silenced: by}, dated}); err != nil {
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
