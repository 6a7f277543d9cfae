package outputs

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sessiontest"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

var at = time.Date(2026, 11, 23, 18, 0, 0, 0, time.UTC)

// newEvent returns the event of a run with a failure for each code.
func newEvent(codes ...string) *event.Event {
	e := &event.Event{Schema: event.Schema, Node: "node1", Time: at, Context: "healthcheck", Mode: "enforce", Results: []event.Result{}}
	for _, code := range codes {
		e.Results = append(e.Results, event.Result{Check: "check_x", Code: code, Severity: checks.Fail, Message: "bad"})
	}
	e.Judge()
	return e
}

func TestArchiveOf(t *testing.T) {
	t.Parallel()
	const past = "/var/lib/nhc-gpu/node1"
	old := func(path string, e *event.Event) *event.Event {
		e.Evidence = path
		return e
	}
	warned := func() *event.Event {
		e := newEvent()
		e.Results = []event.Result{{Code: "gpu.ecc", Severity: checks.Warn}}
		return e
	}
	hang := func(jobs ...string) *event.Event {
		e := newEvent()
		for _, job := range jobs {
			e.Results = append(e.Results, event.Result{Check: event.JobHealth, Code: "job.hang", Severity: checks.Warn, Would: "drain", Held: "observed only", Jobs: job})
		}
		return e
	}
	for _, tt := range []struct {
		name       string
		now, old   *event.Event
		code, path string // of the archive; path of an older one
	}{
		{name: "a healthy run", now: newEvent()},
		{name: "a healthy run after a fault", now: newEvent(), old: old("/x", newEvent("gpu.ecc"))},
		{name: "a fault of the first run", now: newEvent("gpu.ecc"), code: "gpu.ecc"},
		{name: "a new fault", now: newEvent("gpu.ecc"), old: newEvent(), code: "gpu.ecc"},
		{name: "the same fault", now: newEvent("gpu.ecc"), old: old("/x", newEvent("gpu.ecc")), path: "/x"},
		{name: "the same fault, whose archive was not written", now: newEvent("gpu.ecc"), old: newEvent("gpu.ecc"), code: "gpu.ecc"},
		{name: "a second fault", now: newEvent("gpu.ecc", "gpu.count"), old: old("/x", newEvent("gpu.ecc")), code: "gpu.count"},
		{name: "a warning that became a failure", now: newEvent("gpu.ecc"), old: old("/x", warned()), code: "gpu.ecc"},
		{name: "a warning", now: warned()},
		{name: "a job that hangs", now: hang("7"), old: newEvent(), code: "job.hang"},
		{name: "it still hangs", now: hang("7"), old: old("/x", hang("7")), path: "/x"},
		{name: "a second job hangs", now: hang("7", "8"), old: old("/x", hang("7")), code: "job.hang"},
		{name: "another job hangs", now: hang("8"), old: old("/x", hang("7")), code: "job.hang"},
		{name: "both still hang", now: hang("8", "7"), old: old("/x", hang("7", "8")), path: "/x"},
		{name: "a failure without a code", now: newEvent(""), old: old("/x", newEvent("")), path: "/x"},
	} {
		wantName, wantPath := "", tt.path
		if tt.code != "" {
			wantName = "20261123T180000Z-" + tt.code + ".tar.gz"
			wantPath = past + "/evidence/" + wantName
		}
		if name, path := archiveOf(tt.now, tt.old, past); name != wantName || path != wantPath {
			t.Errorf("%s: %q at %q, want %q at %q", tt.name, name, path, wantName, wantPath)
		}
	}
}

func TestEndOf(t *testing.T) {
	t.Parallel()
	began, now := at, at.Add(10*time.Second)
	for _, tt := range []struct {
		name       string
		role       slurm.Role
		background bool
		allowed    time.Duration
		want       time.Duration // from now; -1 for none
	}{
		{"by hand", slurm.Manual, false, 30 * time.Second, -1},
		{"a health check", slurm.HealthCheck, false, 30 * time.Second, 47 * time.Second},
		{"a health check without an end", slurm.HealthCheck, false, 0, 47 * time.Second},
		{"the background half", slurm.HealthCheck, true, 120 * time.Second, 57 * time.Second},
		{"a prolog", slurm.Prolog, false, 30 * time.Second, 650 * time.Millisecond},
		{"a prolog at its end", slurm.Prolog, false, 10 * time.Second, 650 * time.Millisecond},
		{"a prolog beyond its end", slurm.Prolog, false, 9 * time.Second, -350 * time.Millisecond},
		{"an epilog without an end", slurm.Epilog, false, 0, 650 * time.Millisecond},
	} {
		n := &node.Node{Role: tt.role, Background: tt.background, Budget: session.Budget{Began: began}}
		n.Budget.Give(tt.allowed)
		got := endOf(n, now)
		if tt.want == -1 && got.IsZero() {
			continue
		}
		if got.IsZero() || got.Sub(now) != tt.want {
			t.Errorf("%s: ends at %v, want %s after %v", tt.name, got, tt.want, now)
		}
	}
}

func TestLeft(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		end      time.Duration // from now; 0 for none
		min, max time.Duration
	}{
		{"no end", 0, 10 * time.Second, 10 * time.Second},
		{"much time", time.Hour, 10 * time.Second, 10 * time.Second},
		{"some time", 5 * time.Second, 4 * time.Second, 5 * time.Second},
		{"no time", -time.Second, least, least},
	} {
		var d delivery
		if tt.end != 0 {
			d.end = time.Now().Add(tt.end)
		}
		if got := d.left(10 * time.Second); got < tt.min || got > tt.max {
			t.Errorf("%s: %s, want %s to %s", tt.name, got, tt.min, tt.max)
		}
	}
}

func TestCommandDue(t *testing.T) {
	t.Parallel()
	argv := []string{"/site/command"}
	changed := func(e *event.Event) *event.Event {
		e.Changed = []string{event.NewVerdict}
		return e
	}
	for _, tt := range []struct {
		name   string
		argv   []string
		on     string
		run    Run
		forget bool // the node has no memory
		e      *event.Event
		want   bool
	}{
		{"no command", nil, conf.Always, OfNode, false, changed(newEvent("x")), false},
		{"a trial", argv, conf.Always, Trial, false, changed(newEvent("x")), false},
		{"another configuration of the site", argv, conf.Always, Other, false, newEvent(), true},
		{"always", argv, conf.Always, OfNode, false, newEvent(), true},
		{"no change", argv, conf.OnChange, OfNode, false, newEvent("x"), false},
		{"a change", argv, conf.OnChange, OfNode, false, changed(newEvent()), true},
		{"a change to healthy", argv, conf.OnFail, OfNode, false, changed(newEvent()), false},
		{"a change to failing", argv, conf.OnFail, OfNode, false, changed(newEvent("x")), true},
		{"still failing", argv, conf.OnFail, OfNode, false, newEvent("x"), false},
		{"without a memory each failure counts", argv, conf.OnFail, OfNode, true, newEvent("x"), true},
		{"without a memory no healthy run counts", argv, conf.OnChange, OfNode, true, newEvent(), false},
	} {
		d := delivery{Output: conf.Output{Command: tt.argv, CommandOn: tt.on}, run: tt.run, event: tt.e, remembers: !tt.forget}
		if got := d.commandDue(); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	all := conf.Output{JSONL: "/log/nhc.jsonl", JSONLMax: 7, Textfile: "/prom/nhc.prom", Journald: true}
	changed := newEvent("gpu.ecc")
	changed.Changed = []string{event.NewVerdict}
	prolog := newEvent()
	prolog.Context = "prolog"
	for _, tt := range []struct {
		name    string
		out     conf.Output
		role    slurm.Role
		run     Run
		forgets bool
		e       *event.Event
		want    string
	}{
		{"no output", conf.Output{}, slurm.HealthCheck, OfNode, false, newEvent(), "history keep run-healthcheck"},
		{"a change", conf.Output{}, slurm.HealthCheck, OfNode, false, changed, "history keep run-healthcheck|history note history"},
		{"no memory", conf.Output{}, slurm.HealthCheck, OfNode, true, changed, ""},
		{"all", all, slurm.HealthCheck, OfNode, false, newEvent(), "history keep run-healthcheck|textfile put /prom/nhc.prom|journald journal|jsonl append /log/nhc.jsonl"},
		{"metrics are of the node's own configuration", all, slurm.Manual, Other, true, newEvent(), "journald journal|jsonl append /log/nhc.jsonl"},
		{"a trial", all, slurm.Manual, Trial, true, newEvent(), "journald journal|jsonl append /log/nhc.jsonl"},
		{"a prolog writes no metrics", all, slurm.Prolog, OfNode, false, prolog, "history keep run-prolog|journald journal|jsonl append /log/nhc.jsonl"},
	} {
		n := &node.Node{Role: tt.role, Set: &setting.Settings{Vars: map[string]string{"NAME": "nhc"}}}
		d := delivery{n: n, Output: tt.out, run: tt.run, event: tt.e, remembers: !tt.forgets}
		var got []string
		for _, o := range d.requests(nil) {
			got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s%s", o.name, o.Op, o.Name, o.Path)))
			switch o.Op {
			case wire.OpPut:
				if o.Mode != 0o644 || !strings.Contains(string(o.Data), "nhc_gpu_") {
					t.Errorf("%s: metrics with mode %o: %.60s", tt.name, o.Mode, o.Data)
				}
			case wire.OpAppend:
				if e, err := event.Parse(o.Data); o.Most != 7 || err != nil || e.Node != "node1" || o.Data[len(o.Data)-1] != '\n' {
					t.Errorf("%s: a line of JSON for at most %d bytes: %v %.60s", tt.name, o.Most, err, o.Data)
				}
			case wire.OpJournal:
				if len(o.Entries) == 0 {
					t.Errorf("%s: no entry for the journal", tt.name)
				}
			case wire.OpNote:
				if e, err := event.Parse(o.Data); err != nil || len(e.Changed) == 0 || o.Most != historyMost {
					t.Errorf("%s: a change for at most %d bytes: %v %s", tt.name, o.Most, err, o.Data)
				}
			}
		}
		if text := strings.Join(got, "|"); text != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, text, tt.want)
		}
	}
}

func TestRecent(t *testing.T) {
	t.Parallel()
	line := func(age time.Duration, message string) []byte {
		e := newEvent()
		e.Time, e.Message = at.Add(-age), message
		return e.Line()
	}
	var many [][]byte
	for i := range historyChanges + 5 {
		many = append(many, line(time.Duration(len(many))*time.Second, fmt.Sprint(i)))
	}
	for _, tt := range []struct {
		name        string
		lines       [][]byte
		first, last string
		n           int
	}{
		{"none", nil, "", "", 0},
		{"sorted by time", [][]byte{line(time.Hour, "b"), line(2*time.Hour, "a"), line(0, "c")}, "a", "c", 3},
		{"damaged lines", [][]byte{[]byte(`{"schema":1,"no`), line(0, "a"), []byte("[]"), nil}, "a", "a", 1},
		{"too old", [][]byte{line(HistoryAge+time.Second, "a"), line(HistoryAge, "b")}, "b", "b", 1},
		{"too many", many, fmt.Sprint(historyChanges - 1), "0", historyChanges},
	} {
		list := recent(tt.lines, at)
		if len(list) != tt.n {
			t.Errorf("%s: %d changes, want %d", tt.name, len(list), tt.n)
		} else if tt.n > 0 && (list[0].Message != tt.first || list[len(list)-1].Message != tt.last) {
			t.Errorf("%s: %s to %s, want %s to %s", tt.name, list[0].Message, list[len(list)-1].Message, tt.first, tt.last)
		}
	}
}

func TestMode(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{"": "enforce", "enforce": "enforce", "observe": "observe"} {
		n := &node.Node{Set: &setting.Settings{Vars: map[string]string{"MODE": mode}}}
		if got := Mode(n); got != want {
			t.Errorf("MODE=%s: %s, want %s", mode, got, want)
		}
	}
}

// With privacy the error of an output, which can name a file, is only printed.
func TestFail(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		privacy bool
		want    []event.Failure
	}{
		{false, []event.Failure{{Output: "jsonl", Error: "write /home/alice: denied"}}},
		{true, []event.Failure{{Output: "jsonl"}}},
	} {
		n := sessiontest.New(t, slurm.HealthCheck)
		d := delivery{n: n.Node, Output: conf.Output{Privacy: tt.privacy}}
		d.fail("textfile", nil)
		d.fail("jsonl", errors.New("write /home/alice: denied"))
		if diff := gocmp.Diff(tt.want, d.failed); diff != "" {
			t.Errorf("privacy %v: (-want +got)\n%s", tt.privacy, diff)
		}
		if got, want := n.Err.String(), "nhc-gpu: warning: output jsonl: write /home/alice: denied\n"; got != want {
			t.Errorf("privacy %v: %q, want %q", tt.privacy, got, want)
		}
	}
}

// A second run compares itself with the first, and a fault keeps its evidence.
func TestDeliver(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck)
	n.Script(t, "command", `cat >>"${0%/*}/given"`)
	out := conf.Output{
		JSONL: n.Dir + "/log.jsonl", JSONLMax: 1 << 20, Textfile: n.Dir + "/nhc.prom", Command: []string{n.Dir + "/command"}, CommandOn: conf.OnChange, CommandTimeout: 10 * time.Second,
	}
	for i, tt := range []struct {
		codes    []string
		changed  string
		evidence bool // a new archive
	}{
		{nil, event.FirstRun, false},
		{nil, "", false},
		{[]string{"gpu.ecc"}, event.NewVerdict + " " + event.NewFinding, true},
		{[]string{"gpu.ecc"}, "", false},
		{[]string{"gpu.ecc", "gpu.count"}, event.NewFinding, true},
		{nil, event.NewVerdict + " " + event.NewFinding, false},
	} {
		e := newEvent(tt.codes...)
		e.Time = time.Now().UTC().Add(time.Duration(i) * time.Second).Truncate(time.Millisecond)
		before := archives(n)
		Deliver(n.Node, out, OfNode, e)
		list, err := Last(n.Node)
		if err != nil || len(list) != 1 {
			t.Fatalf("run %d: %d events, %v", i, len(list), err)
		}
		got := list[0]
		if strings.Join(got.Changed, " ") != tt.changed || got.Verdict != e.Verdict || len(got.Outputs) > 0 {
			t.Errorf("run %d: %+v, want the changes %q", i, got, tt.changed)
		}
		if made := archives(n) - before; (made == 1) != tt.evidence || tt.evidence && filepath.Dir(got.Evidence) != n.Dir+"/past/evidence" {
			t.Errorf("run %d: %d new archives, %q in the event", i, made, got.Evidence)
		}
	}
	list, err := History(n.Node, time.Now().Add(time.Minute))
	if err != nil || len(list) != 4 || list[0].Changed[0] != event.FirstRun {
		t.Errorf("the history has %d changes, want 4: %v", len(list), err)
	}
	if lines := strings.Count(n.Read("log.jsonl"), "\n"); lines != 6 {
		t.Errorf("%d lines of JSON, want 6", lines)
	}
	if lines := strings.Count(n.Read("given"), "\n"); lines != 4 {
		t.Errorf("the command got %d events, want 4", lines)
	}
	if !strings.Contains(n.Read("nhc.prom"), "nhc_gpu_") || n.Err.String() != "" {
		t.Errorf("metrics %.60q, warnings %q", n.Read("nhc.prom"), n.Err)
	}
}

// A run of the monitor makes some checks only: what others have found stays known until they pass, or a health
// check passes them.
func TestDeliverPart(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.Monitor)
	n.Script(t, "command", `cat >>"${0%/*}/given"`)
	out := conf.Output{Command: []string{n.Dir + "/command"}, CommandOn: conf.OnFail, CommandTimeout: 10 * time.Second}
	result := func(check, code string, severity checks.Severity) event.Result {
		return event.Result{Check: check, Line: check, Code: code, Severity: severity}
	}
	lost, alive := result("check_gpu_xid", "gpu.xid.79", checks.Fail), result("check_gpu_xid", "", checks.OK)
	down, up := result("check_ib_ports", "ib.ports.state", checks.Fail), result("check_ib_ports", "", checks.OK)
	hangs, goesOn := result("check_job_health", "job.hang", checks.Warn), result("check_job_health", "", checks.OK)
	hangs.Would = "drain"
	hung, edited := result("check_gpu_xid", "probe.hung", checks.Unknown), lost
	edited.Line = "check_gpu_xid -w"
	start := time.Now().UTC().Add(-time.Hour).Truncate(time.Millisecond)
	since := time.Time{}
	for i, tt := range []struct {
		by       string // "" for the monitor
		now      []event.Result
		told     bool // to the command and the history
		evidence bool // a new archive
		kept     string
		lines    []event.Result // of the configuration
	}{
		{now: []event.Result{lost}, told: true, evidence: true, kept: "gpu.xid.79"},
		{now: []event.Result{goesOn}, kept: "gpu.xid.79"},
		{now: []event.Result{lost}, kept: "gpu.xid.79"},
		{now: []event.Result{hangs}, evidence: true, kept: "gpu.xid.79 job.hang"},
		{now: []event.Result{lost}, kept: "gpu.xid.79 job.hang"},
		{now: []event.Result{down}, told: true, evidence: true, kept: "gpu.xid.79 ib.ports.state job.hang"},
		{now: []event.Result{hangs}, kept: "gpu.xid.79 ib.ports.state job.hang"},
		{now: []event.Result{lost}, kept: "gpu.xid.79 ib.ports.state job.hang"},
		{now: []event.Result{up}, kept: "gpu.xid.79 job.hang"},
		{by: "healthcheck", now: []event.Result{lost}, told: true, evidence: true},
		{now: []event.Result{goesOn}, kept: "gpu.xid.79"},
		{now: []event.Result{lost}, kept: "gpu.xid.79"},
		{by: "healthcheck", now: []event.Result{alive}},
		{now: []event.Result{goesOn}, kept: ""},
		{now: []event.Result{hangs}, evidence: true, kept: "job.hang"},
		{by: "healthcheck", now: []event.Result{alive}},
		{now: []event.Result{hangs}, kept: "job.hang"},
		{now: []event.Result{lost}, told: true, evidence: true, kept: "gpu.xid.79 job.hang"},
		{now: []event.Result{hung}, kept: "gpu.xid.79 job.hang probe.hung"},
		{now: []event.Result{lost}, kept: "gpu.xid.79 job.hang"},
		{by: "manual", now: []event.Result{lost}, told: true, evidence: true},
		{now: []event.Result{lost}, kept: "gpu.xid.79 job.hang"},
		{by: "manual", now: []event.Result{alive}},
		{now: []event.Result{goesOn}, kept: ""},
		{now: []event.Result{lost}, told: true, evidence: true, kept: "gpu.xid.79"},
		{now: []event.Result{goesOn}, lines: []event.Result{edited, goesOn}, kept: ""},
		{now: []event.Result{edited}, lines: []event.Result{edited, goesOn}, told: true, evidence: true, kept: "gpu.xid.79"},
	} {
		e := newEvent()
		e.Context, e.Part, e.Results, e.Time = cmp.Or(tt.by, "monitor"), tt.by == "", tt.now, start.Add(time.Duration(i)*time.Minute)
		e.Lines = tt.lines
		e.Judge()
		made, said := archives(n), strings.Count(n.Read("given"), "\n")
		Deliver(n.Node, out, Other, e)
		if got := archives(n) - made; (got == 1) != tt.evidence {
			t.Errorf("run %d: %d new archives", i, got)
		}
		if got := strings.Count(n.Read("given"), "\n") - said; (got == 1) != tt.told {
			t.Errorf("run %d: the command got %d events: %v", i, got, e.Changed)
		}
		if tt.by != "" {
			continue
		}
		kept, err := event.Parse([]byte(n.Read("past/run-monitor.json")))
		if err != nil {
			t.Fatal(err)
		}
		var codes []string
		for _, r := range kept.Findings() {
			codes = append(codes, r.Code)
		}
		slices.Sort(codes)
		fails := slices.ContainsFunc(kept.Results, func(r event.Result) bool { return r.Severity == checks.Fail })
		if strings.Join(codes, " ") != tt.kept || (kept.Verdict == checks.Fail) != fails || (kept.Evidence != "") != (tt.kept != "") {
			t.Errorf("run %d: kept %s, %v, %q, want %s", i, codes, kept.Verdict, kept.Evidence, tt.kept)
		}
		if i == 0 {
			since = kept.Since
		}
		if i < 12 && !kept.Since.Equal(since) {
			t.Errorf("run %d: since %v, want %v", i, kept.Since, since)
		}
	}
}

// archives counts the archives of a node.
func archives(n *sessiontest.Node) int {
	list, _ := filepath.Glob(n.Dir + "/past/evidence/*.tar.gz")
	return len(list)
}

// Each output that fails is printed, and counted in the next event. It stops no other output.
func TestFailedOutputs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		out     conf.Output
		prepare func(*sessiontest.Node)
		want    string // the outputs that failed
		err     string
	}{
		{name: "a file without its directory", out: conf.Output{JSONL: "DIR/none/log", JSONLMax: 1 << 20, Textfile: "DIR/nhc.prom"}, want: "jsonl", err: "no such file"},
		{name: "metrics without their directory", out: conf.Output{Textfile: "DIR/none/nhc.prom"}, want: "textfile", err: "no such file"},
		{name: "a command that fails", out: conf.Output{Command: []string{"false"}, CommandOn: conf.Always, CommandTimeout: time.Minute}, want: "command", err: "run false: exit status 1"},
		{name: "a command that does not exist", out: conf.Output{Command: []string{"DIR/none"}, CommandOn: conf.Always, CommandTimeout: time.Minute}, want: "command", err: "DIR/none"},
		{name: "a command that does not end", out: conf.Output{Command: []string{"sleep", "60"}, CommandOn: conf.Always, CommandTimeout: 300 * time.Millisecond}, want: "command", err: "no end within 300ms"},
		{name: "no memory", out: conf.Output{JSONL: "DIR/log", JSONLMax: 1 << 20}, prepare: func(n *sessiontest.Node) {
			n.Set.Past = n.Dir + "/slurm" // a file
			n.Pool.SetVars(n.Set.WorkerVars())
		}, want: "", err: "output history"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := sessiontest.New(t, slurm.HealthCheck)
			if tt.prepare != nil {
				tt.prepare(n)
			}
			dir := func(s string) string { return strings.ReplaceAll(s, "DIR", n.Dir) }
			tt.out.JSONL, tt.out.Textfile = dir(tt.out.JSONL), dir(tt.out.Textfile)
			if len(tt.out.Command) > 0 {
				tt.out.Command[0] = dir(tt.out.Command[0])
			}
			e := newEvent()
			Deliver(n.Node, tt.out, OfNode, e)
			if got := n.Err.String(); !strings.Contains(got, dir(tt.err)) {
				t.Errorf("printed %q, want %q", got, tt.err)
			}
			if tt.want == "" {
				if n.Read("log") == "" {
					t.Error("the other output has failed, too")
				}
				return
			}
			kept, err := event.Parse([]byte(n.Read("past/run-healthcheck.json")))
			if err != nil || len(kept.Outputs) != 1 || kept.Outputs[0].Output != tt.want {
				t.Errorf("kept %+v (%v), want the failure of %s", kept.Outputs, err, tt.want)
			}
			next := newEvent()
			next.Compare(kept)
			if diff := gocmp.Diff(kept.Outputs, next.Outputs); diff != "" {
				t.Errorf("the next event (-want +got)\n%s", diff)
			}
		})
	}
}

// A command is not started at the end of the time for outputs.
func TestCommandWithoutTime(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck)
	d := delivery{n: n.Node, Output: conf.Output{Command: []string{"touch", n.Dir + "/ran"}, CommandOn: conf.Always, CommandTimeout: time.Minute}, event: newEvent(), end: time.Now()}
	d.command()
	want := []event.Failure{{Output: "command", Error: "run touch: no time is left"}}
	if diff := gocmp.Diff(want, d.failed); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := os.Stat(n.Dir + "/ran"); err == nil {
		t.Error("the command has run")
	}
}

// Runs that say nothing about this node leave nothing, and a prolog leaves no archive.
func TestDeliverNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		prepare func(*sessiontest.Node)
	}{
		{"no memory directory", func(n *sessiontest.Node) { n.Set.Past = "" }},
		{"a recorded node", func(n *sessiontest.Node) { n.Set.Put("HOSTROOT", "/recorded", false) }},
	} {
		n := sessiontest.New(t, slurm.HealthCheck)
		tt.prepare(n)
		Deliver(n.Node, conf.Output{JSONL: n.Dir + "/log", JSONLMax: 1 << 20}, OfNode, newEvent("gpu.ecc"))
		if n.Read("log") != "" || n.Read("past/run-healthcheck.json") != "" {
			t.Errorf("%s: something was written", tt.name)
		}
	}
	n := sessiontest.New(t, slurm.Prolog)
	e := newEvent("gpu.ecc")
	e.Context = "prolog"
	Deliver(n.Node, conf.Output{}, OfNode, e)
	if archives(n) > 0 || e.Evidence != "" {
		t.Errorf("a prolog keeps %d archives, %q, want none", archives(n), e.Evidence)
	}
}

// An archive that cannot be written is tried again by the next run.
func TestEvidenceFails(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck)
	n.Write(t, "past/evidence", "a file\n")
	Deliver(n.Node, conf.Output{}, OfNode, newEvent("gpu.ecc"))
	kept, err := event.Parse([]byte(n.Read("past/run-healthcheck.json")))
	if err != nil || kept.Evidence != "" || len(kept.Outputs) != 1 || kept.Outputs[0].Output != "evidence" {
		t.Fatalf("kept %+v, %v", kept, err)
	}
	if err := os.Remove(n.Dir + "/past/evidence"); err != nil {
		t.Fatal(err)
	}
	Deliver(n.Node, conf.Output{}, OfNode, newEvent("gpu.ecc"))
	if archives(n) != 1 {
		t.Errorf("%d archives, want 1: %s", archives(n), n.Err)
	}
}

// Last skips a damaged event, and sorts the others by time.
func TestLast(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.Manual)
	for name, age := range map[string]time.Duration{"healthcheck": time.Hour, "prolog": 0, "epilog": time.Minute} {
		e := newEvent()
		e.Context, e.Time = name, at.Add(-age)
		n.Write(t, "past/run-"+name+".json", string(e.Line()))
	}
	n.Write(t, "past/run-manual.json", `{"schema":`)
	list, err := Last(n.Node)
	var got []string
	for _, e := range list {
		got = append(got, e.Context)
	}
	if diff := gocmp.Diff([]string{"prolog", "epilog", "healthcheck"}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if want := "the event run-manual is damaged"; !strings.Contains(n.Err.String(), want) {
		t.Errorf("warned %q, want %q", n.Err, want)
	}
	damaged := delivery{n: n.Node, event: &event.Event{Context: "manual"}}
	if old, err := damaged.last(); old != nil || err != nil {
		t.Errorf("a damaged event: %+v, %v", old, err)
	}
	n.Set.Past = ""
	n.Pool.SetVars(n.Set.WorkerVars())
	if _, err := Last(n.Node); err == nil {
		t.Error("events without a memory directory")
	}
	if _, err := History(n.Node, at); err == nil {
		t.Error("a history without a memory directory")
	}
}

// A fault that a health check of the same silence no longer found is over.
func TestLastInSilence(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.Monitor)
	v := n.Set.WorkerVars()
	v.Spare, v.Stuck = n.Dir+"/spare", []string{"read " + v.Past}
	n.Pool.SetVars(v)
	keep := func(context string, age time.Duration, severity checks.Severity, code string) {
		e := newEvent()
		e.Context, e.Part, e.Time = context, context == conf.Monitor, at.Add(-age)
		e.Results = []event.Result{{Check: "check_gpu_xid", Line: "check_gpu_xid", Code: code, Severity: severity}}
		e.Judge()
		n.Write(t, "spare/run-"+context+".json.interim", string(e.Line()))
	}
	keep(conf.Monitor, time.Hour, checks.Fail, "gpu.xid.79")
	d := delivery{n: n.Node, event: &event.Event{Context: conf.Monitor, Part: true, Time: at}}
	if old, err := d.last(); err != nil || old == nil || len(old.Findings()) != 1 {
		t.Errorf("%+v, %v, want the fault", old, err)
	}
	keep(conf.HealthCheck, time.Minute, checks.OK, "")
	if old, err := d.last(); err != nil || old == nil || len(old.Findings()) != 0 {
		t.Errorf("%+v, %v, want no fault after the health check", old, err)
	}
}

// An event of a sweep is part of the history, without its texts if the site wants that. Without a memory,
// and for a recorded node, that is an error.
func TestAdd(t *testing.T) {
	t.Parallel()
	sweep := func() *event.Event {
		e := newEvent("sweep.tcp.slow")
		e.Context, e.Time = "sweep", time.Now().UTC()
		return e
	}
	n := sessiontest.New(t, slurm.Manual)
	for _, o := range []conf.Output{{}, {Privacy: true}} {
		if err := Add(n.Node, o, sweep()); err != nil {
			t.Fatal(err)
		}
	}
	list, err := History(n.Node, time.Now())
	if err != nil || len(list) != 2 || list[0].Context != "sweep" || list[0].Results[0].Message != "bad" || list[1].Results[0].Message != "" || list[1].Results[0].Code != "sweep.tcp.slow" {
		t.Errorf("%+v, %v", list, err)
	}
	for name, prepare := range map[string]func(*sessiontest.Node){
		"no memory": func(n *sessiontest.Node) { n.Set.Past = "" }, "recorded": func(n *sessiontest.Node) { n.Set.Put("HOSTROOT", "/recorded", false) },
	} {
		n := sessiontest.New(t, slurm.Manual)
		prepare(n)
		if err := Add(n.Node, conf.Output{}, sweep()); err == nil || n.Read("past/history.jsonl") != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An action of a person is part of the history.
func TestNote(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.Manual, "MODE=observe")
	Note(n.Node, event.Cleared, "alice cleared gpu3")
	list, err := History(n.Node, time.Now())
	if err != nil || len(list) != 1 {
		t.Fatalf("%d changes, %v", len(list), err)
	}
	e := list[0]
	if e.Message != "alice cleared gpu3" || e.Mode != "observe" || e.Context != "manual" || e.Node != "node1" || gocmp.Diff([]string{event.Cleared}, e.Changed) != "" {
		t.Errorf("%+v", e)
	}
}

func TestWriteEvidence(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.Manual)
	rows := []verdict.Row{{Name: "kernel", Message: "6.1"}, {Name: "driver", Message: "570"}}
	for _, e := range []*event.Event{nil, newEvent("gpu.ecc")} {
		q := &wire.Request{Name: "a.tar.gz"}
		path, err := WriteEvidence(n.Node, rows, e, q, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
		want := []wire.Named{{Name: "facts.txt", Data: []byte("kernel: 6.1\ndriver: 570\n")}}
		if e != nil {
			want = append(want, wire.Named{Name: "event.json", Data: append(e.Line(), '\n')})
		}
		if diff := gocmp.Diff(want, q.Files); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// An archive that cannot be written does not cost the faults that the monitor has found before their archive.
func TestEvidenceOfPartFails(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.Monitor)
	const past, aside = "/past/evidence", "/past/aside"
	start := time.Now().UTC().Add(-time.Hour)
	for i, tt := range []struct {
		code     string
		full     bool
		archives int // all so far
	}{
		{"gpu.xid.79", false, 1}, {"ib.ports.state", true, 1}, {"gpu.xid.79", false, 1}, {"ib.ports.state", false, 2}, {"gpu.xid.79", false, 2}, {"ib.ports.state", false, 2},
	} {
		if tt.full {
			if err := os.Rename(n.Dir+past, n.Dir+aside); err != nil {
				t.Fatal(err)
			}
			n.Write(t, "past/evidence", "a file\n")
		}
		e := newEvent(tt.code)
		e.Context, e.Part, e.Time, e.Results[0].Check = "monitor", true, start.Add(time.Duration(i)*time.Minute), "check of "+tt.code
		Deliver(n.Node, conf.Output{}, Other, e)
		if tt.full {
			if err := errors.Join(os.Remove(n.Dir+past), os.Rename(n.Dir+aside, n.Dir+past)); err != nil {
				t.Fatal(err)
			}
		}
		kept, err := event.Parse([]byte(n.Read("past/run-monitor.json")))
		if err != nil || kept.Evidence == "" || archives(n) != tt.archives {
			t.Errorf("run %d: %d archives, want %d; kept %q, %v", i, archives(n), tt.archives, kept.Evidence, err)
		}
	}
}
