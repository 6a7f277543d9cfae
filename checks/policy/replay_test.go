package policy

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
)

// history makes the events of a node, one every five minutes.
type history struct {
	node string
	now  time.Time
	r    *Replay
}

var began = time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)

func (h *history) run(context string, done *event.Action, results ...event.Result) {
	h.now = h.now.Add(5 * time.Minute)
	h.r.Add(&event.Event{Node: h.node, Time: h.now, Context: context, Results: append(results, event.Result{Check: "check_fs_mount"}), Slurm: done})
}

func (h *history) health(done *event.Action, results ...event.Result) {
	h.run("healthcheck", done, results...)
}

func port(severity checks.Severity) event.Result {
	return event.Result{Check: "check_ib_ports", Code: "ib.ports.down", Severity: severity, Device: checks.Device{Name: "mlx5_0:1"}}
}

var (
	drains  = &event.Action{Action: "drain", Sent: true, Reason: "NHC: mlx5_0:1 link down (check_ib_ports) [ib.ports.down]"}
	resumes = &event.Action{Action: "resume", Sent: true}
)

func TestReplay(t *testing.T) {
	t.Parallel()
	const five = 5.0 / 60 // hours
	for name, c := range map[string]struct {
		policy string
		events func(h *history)
		want   []Effects
	}{
		"a link that is down in one run": {
			events: func(h *history) {
				h.health(drains, port(checks.Fail))
				h.health(resumes)
				h.health(nil)
			},
			want: []Effects{{"ib.ports.down", Effect{1, 1, five}, Effect{}}},
		},
		"a drill": {
			policy: "[policy.ib]\nstrikes = 1",
			events: func(h *history) {
				drill := port(checks.Fail)
				drill.Drill = true
				h.health(drains, drill)
				h.health(resumes)
			},
			want: []Effects{{"drill.ib.ports.down", Effect{1, 1, five}, Effect{}}},
		},
		"a link that stays down": {
			events: func(h *history) {
				h.health(drains, port(checks.Fail))
				h.health(nil, port(checks.Fail)) // drained now
				h.health(nil, port(checks.Fail))
				h.health(resumes)
				h.health(nil) // the second run that passes
			},
			want: []Effects{{"ib.ports.down", Effect{1, 1, 3 * five}, Effect{1, 1, 3 * five}}},
		},
		"at once, by the site's policy; the drain lasts": {
			policy: "[policy.\"ib.ports.down\"]\nstrikes = 1\npasses = 5",
			events: func(h *history) {
				h.health(drains, port(checks.Fail))
				h.health(resumes)
				h.health(nil)
			},
			want: []Effects{{"ib.ports.down", Effect{1, 1, five}, Effect{1, 0, 2 * five}}},
		},
		"a run just after a boot": {
			policy: "[policy.\"ib.ports.down\"]\nstrikes = 1\npasses = 1",
			events: func(h *history) {
				h.health(drains, port(checks.Fail))
				h.health(nil, event.Result{Check: "check_ib_ports", Code: "ib.ports.boot", Severity: checks.Skip})
				h.health(resumes)
			},
			want: []Effects{{"ib.ports.down", Effect{1, 1, 2 * five}, Effect{1, 1, 2 * five}}},
		},
		"a run in a context without the check": {
			policy: "[policy.check_ib_ports]\ncontexts = [\"healthcheck\"]\nstrikes = 1\npasses = 1",
			events: func(h *history) {
				for range 4 {
					h.health(drains, port(checks.Fail))
					h.run("manual", nil, port(checks.Fail))
				}
				h.run("manual", nil)
				h.health(resumes)
			},
			want: []Effects{{"ib.ports.down", Effect{1, 1, 9 * five}, Effect{1, 1, 9 * five}}},
		},
		"what a policy held back": {
			policy: "[policy.ib]\nstrikes = 1",
			events: func(h *history) {
				held := port(checks.Warn)
				held.Would, held.Held = "fail-job", "observed only"
				h.health(nil, held)
				h.health(nil, port(checks.Warn)) // a warning of the check itself
			},
			want: []Effects{{"ib.ports.down", Effect{}, Effect{1, 0, five}}},
		},
		"a cool-down": {
			policy: "[policy.ib]\nstrikes = 1\npasses = 1\ncooldown = \"10m\"",
			events: func(h *history) {
				h.health(drains, port(checks.Fail))
				h.health(resumes)
				h.health(nil)
				h.health(nil)
			},
			want: []Effects{{"ib.ports.down", Effect{1, 1, five}, Effect{1, 1, 3 * five}}},
		},
		"a prolog needs no strikes, and resumes no node": {
			events: func(h *history) {
				h.run("prolog", drains, port(checks.Fail))
				h.run("epilog", nil)
				h.run("epilog", nil)
				h.health(resumes)
				h.health(nil)
			},
			want: []Effects{{"ib.ports.down", Effect{1, 1, 3 * five}, Effect{1, 1, 4 * five}}},
		},
		"an unknown result resumes no node, and becomes a finding": {
			policy: "[policy.\"unknown.gpu\"]\nstrikes = 3\n[policy.\"unknown.stays\"]\naction = \"none\"",
			events: func(h *history) {
				for range 4 {
					h.health(nil, event.Result{Check: "check_gpu_ecc", Code: "probe.hung", Severity: checks.Unknown})
				}
				h.health(nil)
			},
			want: []Effects{{"unknown.gpu", Effect{}, Effect{1, 1, 2 * five}}},
		},
		"a line of bash": {
			events: func(h *history) {
				h.health(&event.Action{Action: "drain", Sent: true, Reason: "NHC: false"}, event.Result{Check: event.Shell, Severity: checks.Fail})
				h.health(resumes)
			},
			want: []Effects{{"shell", Effect{1, 1, five}, Effect{1, 1, five}}},
		},
		"the monitor counts no strikes, and resumes no node": {
			events: func(h *history) {
				held := port(checks.Warn)
				held.Would, held.Held = "fail-job", "strike 0 of 2"
				h.run("monitor", nil, held)
				h.run("monitor", nil, held)
				h.health(nil, held)
				h.health(drains, port(checks.Fail))
				for range 3 {
					h.run("monitor", nil)
					h.health(nil, port(checks.Fail))
				}
				h.run("monitor", nil)
			},
			want: []Effects{{"ib.ports.down", Effect{1, 0, 7 * five}, Effect{1, 0, 7 * five}}},
		},
		"a fault of a prolog ends the healthy runs": {
			policy: "[policy.ib]\npasses = 2",
			events: func(h *history) {
				h.run("prolog", drains, port(checks.Fail))
				h.health(nil)
				h.run("prolog", nil, port(checks.Fail))
				h.health(nil)
				h.health(resumes)
			},
			want: []Effects{{"ib.ports.down", Effect{1, 1, 4 * five}, Effect{1, 1, 4 * five}}},
		},
		"each context counts its strikes": {
			policy: "[policy.ib]\nstrikes = 2",
			events: func(h *history) {
				h.health(nil, port(checks.Fail))
				h.run("manual", nil, port(checks.Fail))
				h.health(nil)
				h.run("manual", nil)
			},
			want: nil,
		},
		"a check that does not run in this context": {
			policy: "[policy.check_ib_ports]\ncontexts = [\"prolog\"]\nstrikes = 1",
			events: func(h *history) {
				h.health(drains, port(checks.Fail))
				h.health(nil, port(checks.Unknown))
				h.health(resumes)
			},
			want: []Effects{{"ib.ports.down", Effect{1, 1, 2 * five}, Effect{}}},
		},
		"a class that runs in no context": {
			policy: "[policy.ib]\ncontexts = []\nstrikes = 1",
			events: func(h *history) { h.health(drains, port(checks.Fail)) },
			want:   []Effects{{"ib.ports.down", Effect{1, 0, 0}, Effect{}}},
		},
		"the policy of a [[check]]": {
			policy: "[[check]]\nname = \"ib_ports\"\naction = \"warn\"\n[policy.ib]\nstrikes = 1",
			events: func(h *history) { h.health(drains, port(checks.Fail)) },
			want:   []Effects{{"ib.ports.down", Effect{1, 0, 0}, Effect{}}},
		},
		"[[check]] tables that differ": {
			policy: "[[check]]\nname = \"ib_ports\"\naction = \"warn\"\n[[check]]\nname = \"ib_ports\"\n[policy.ib]\nstrikes = 1",
			events: func(h *history) { h.health(drains, port(checks.Fail)) },
			want:   []Effects{{"ib.ports.down", Effect{1, 0, 0}, Effect{1, 0, 0}}},
		},
		"nothing was sent": {
			events: func(h *history) {
				h.health(&event.Action{Action: "drain"}, port(checks.Fail))
				h.health(nil, port(checks.Fail))
			},
			want: []Effects{{"ib.ports.down", Effect{}, Effect{1, 0, 0}}},
		},
	} {
		h := &history{node: "n1", now: began, r: NewReplay(parse(t, c.policy))}
		c.events(h)
		near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
		if diff := cmp.Diff(c.want, h.r.Effects(), near); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// The policies of some [[check]] tables cannot be replayed: an event does not name the table.
func TestReplayLeft(t *testing.T) {
	t.Parallel()
	table := func(name, more string) string { return "[[check]]\nname = \"" + name + "\"\n" + more + "\n" }
	for text, want := range map[string]string{
		"": "",
		table("ib_ports", "action = 'warn'") + table("ib_ports", "action = 'warn'"):   "",
		table("ib_ports", "action = 'warn'") + table("ib_ports", ""):                  "check_ib_ports",
		table("ib_ports", "contexts = []") + table("ib_ports", ""):                    "check_ib_ports",
		table("ib_ports", "") + table("ib_ports", "hosts = 'n1'"):                     "",
		table("ib_ports", "hosts = 'n1'\naction = 'warn'") + table("gpu_count 8", ""): "check_ib_ports",
	} {
		if got := strings.Join(NewReplay(parse(t, text)).Left, " "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestReplayOfManyNodes(t *testing.T) {
	t.Parallel()
	r := NewReplay(nil)
	for i := range 10 {
		h := &history{node: fmt.Sprint("n", i), now: began, r: r}
		h.health(nil)
		h.health(drains, port(checks.Fail))
		h.health(nil, port(checks.Fail))
	}
	r.Add(&event.Event{Node: "n1", Time: began, Context: "healthcheck", Results: []event.Result{port(checks.Fail)}})
	r.Add(&event.Event{Node: "n1", Time: began, Changed: []string{event.Cleared}})
	want := []Effects{{"ib.ports.down", Effect{10, 0, 10 * 5.0 / 60}, Effect{10, 0, 0}}}
	near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
	if diff := cmp.Diff(want, r.Effects(), near); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r.Nodes() != 10 || r.Events != 31 || r.Late != 1 || !r.From.Equal(began.Add(5*time.Minute)) || !r.To.Equal(began.Add(15*time.Minute)) {
		t.Errorf("%d nodes, %d events, %d late, %s to %s", r.Nodes(), r.Events, r.Late, r.From, r.To)
	}
}
