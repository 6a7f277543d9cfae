package run

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// A library that makes new calls is slow, however long that takes; one that stays in a call hangs.
func TestSlow(t *testing.T) {
	t.Parallel()
	tests := []struct {
		hung checks.Hung
		code string
		want checks.Severity
	}{
		{checks.Hung{Doing: "nvmlDeviceGetUUID(2)", For: 8 * time.Second, Moved: true}, "probe.slow", checks.Unknown},
		{checks.Hung{Doing: "nvmlDeviceGetUUID(2)", For: 25 * time.Second, Moved: true}, "probe.slow", checks.Unknown},
		{checks.Hung{Doing: "nvmlDeviceGetUUID(2)", For: 8 * time.Second}, "probe.hung", checks.Fail},
	}
	for _, tt := range tests {
		r := new(Engine).result(&plan.Step{Name: "check_gpu_count"}, hung(&tt.hung))
		if len(r.Findings) != 1 || r.Findings[0].Code != tt.code || r.Findings[0].Severity != tt.want {
			t.Errorf("%+v: %+v, want %s", tt.hung, r.Findings, tt.code)
		}
	}
}

// Calls with the same text are distinguished: about eight calls of each GPU have the same text. In the
// local lane only the scan of many processes is slow: devices and files that take so long are half dead. Every
// lane goes on after such a scan.
func TestSlowCallsOfOneText(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][2]string{
		"check_rogue_nvml creep": {"probe.slow", "nvmlDeviceGetMemoryErrorCounter(0)"}, "check_rogue_nvml stop": {"probe.hung", "nvmlDeviceGetMemoryErrorCounter(0)"},
		"check_rogue scan": {"probe.scan", "read /proc"}, "check_rogue_nvml scan": {"probe.scan", "read /proc"}, "check_rogue stop": {"probe.hung", "nvmlDeviceGetMemoryErrorCounter(0)"},
		"check_rogue files": {"probe.hung", "stat /scratch/"}, "check_rogue scanned": {"probe.hung", "stat /scratch/"}, "check_rogue before": {"probe.hung", "read /proc"},
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			next := "check_rogue ok"
			if want[0] == "probe.scan" {
				next, _, _ = strings.Cut(line, " ")
				next += " ok" // of the same lane
			}
			p := buildPlan(0, line, next)
			p.Steps[0].Timeout, p.Steps[1].Timeout = 2*time.Second, 20*time.Second
			rec := &recorder{stopAt: -1}
			e := &Engine{Pool: newTestPool(t, ""), Deadline: time.Now().Add(time.Minute), Timeout: func() time.Duration { return time.Minute }}
			if err := e.Do(t.Context(), p, rec); err != nil {
				t.Fatal(err)
			}
			if f := rec.results[0].Findings; len(f) != 1 || f[0].Code != want[0] || !strings.Contains(f[0].Message, "in "+want[1]) {
				t.Errorf("%+v, want %s", f, want)
			}
			if f := rec.results[1].Findings; len(f) != 0 {
				t.Errorf("the next check: %+v", f)
			}
		})
	}
}

// If the end of the run ends an active test early, it is unknown whether the test hangs. The run
// has time left for the remaining steps.
func TestOutOfTime(t *testing.T) {
	t.Parallel()
	p := buildPlan(0, "check_rogue sleep", "check_rogue warn", "check_rogue sleep")
	p.Steps[0].Active, p.Steps[0].Barrier, p.Steps[0].Timeout = true, true, time.Minute
	p.Steps[0].Bound = 45 * time.Second
	p.Steps[1].Barrier = true
	p.Steps[2].Active, p.Steps[2].Barrier, p.Steps[2].Timeout = true, true, 300*time.Millisecond
	rec := &recorder{stopAt: -1}
	e := &Engine{Pool: newTestPool(t, ""), Deadline: time.Now().Add(9 * time.Second), Timeout: func() time.Duration { return 27 * time.Second }}
	if err := e.Do(t.Context(), p, rec); err != nil {
		t.Fatal(err)
	}
	if rec.expired != nil {
		t.Fatalf("the run timed out: %+v", rec.expired)
	}
	if diff := cmp.Diff([]checks.Severity{checks.Unknown, checks.Warn, checks.Fail}, worst(rec, 3)); diff != "" {
		t.Fatalf("severities (-want +got):\n%s", diff)
	}
	if f := rec.results[0].Findings[0]; f.Code != "active.time" || !strings.HasPrefix(f.Message, "check_rogue:  no result: the run ended after ") || !strings.HasSuffix(f.Message, "s, in rogue sleep: the test may take 45s") {
		t.Errorf("%+v", f)
	}
	if f := rec.results[2].Findings[0]; f.Code != "probe.hung" {
		t.Errorf("%+v, want one that had all its time to hang", f)
	}
}

// A test that had its full time and the time to clean up hangs, even if the run ends it before its
// worker's grace is over.
func TestHadItsTime(t *testing.T) {
	t.Parallel()
	active := &plan.Step{Active: true, Bound: 20 * time.Second}
	for name, c := range map[string]struct {
		step *plan.Step
		hung checks.Hung
		want bool
	}{
		"cut short":         {active, checks.Hung{Cut: true, For: 22 * time.Second}, true},
		"it had its time":   {active, checks.Hung{Cut: true, For: 25 * time.Second}, false},
		"not cut":           {active, checks.Hung{For: 22 * time.Second}, false},
		"an ordinary check": {&plan.Step{}, checks.Hung{Cut: true, For: time.Second}, false},
	} {
		if got := isOutOfTime(c.step, &c.hung); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// After TIMEOUT the results that are there are still passed on, if the observer wants them; other steps have expired.
func TestFoldsAfterTimeout(t *testing.T) {
	t.Parallel()
	p := buildPlan(0, "check_rogue sleep", "check_rogue_nvml warn", "check_rogue ok", "check_rogue_nvml ok")
	cut := hung(&checks.Hung{Cut: true})
	for late, want := range map[bool][]string{
		true:  {"begin check_rogue sleep", "expired check_rogue sleep", "begin check_rogue_nvml warn", "begin check_rogue ok", "expired check_rogue ok", "begin check_rogue_nvml ok"},
		false: {"begin check_rogue sleep", "expired check_rogue sleep"},
	} {
		results := map[int]chan Outcome{}
		for i := range p.Steps {
			results[i] = make(chan Outcome, 1)
		}
		results[0] <- cut
		results[1] <- answered(&wire.Response{Findings: []checks.Finding{{Severity: checks.Warn}}})
		results[3] <- answered(&wire.Response{})
		rec := &recorder{stopAt: -1, late: late}
		if more := (&Engine{Deadline: time.Now()}).fold(t.Context(), p.Steps, results, rec); more {
			t.Error("the run goes on with steps that may change something")
		}
		if diff := cmp.Diff(want, rec.heard); diff != "" {
			t.Errorf("%v (-want +got)\n%s", late, diff)
		}
		if _, there := rec.results[3]; there != late || late && worst(rec, 2)[1] != checks.Warn {
			t.Errorf("%v: %+v", late, rec.results)
		}
	}
}

// After the end of the run no check is sent, and none of those that are left hangs. The lane stays free for others.
func TestUnsentAfterTheEnd(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, "")
	for _, lane := range []checks.Lane{checks.Local, checks.NVML} {
		var reqs []*wire.Request
		for range 100 {
			reqs = append(reqs, &wire.Request{Op: wire.OpCheck, Name: "check_rogue", Args: []string{"ok"}, Line: "check_rogue ok", End: 1})
		}
		came := 0
		p.Do(t.Context(), lane, reqs, func(*wire.Request) time.Duration { t.Errorf("%s: a check was sent", lane); return time.Millisecond }, func(_ *wire.Request, o Outcome) {
			came++
			if f := new(Engine).result(&plan.Step{Name: "check_rogue", Lane: lane}, o).Findings; len(f) != 1 || f[0].Severity != checks.Unknown || !o.Late() {
				t.Errorf("%s: %+v of %+v", lane, f, o.hung)
			}
		})
		if came != len(reqs) || p.Pid(lane) != 0 || p.hasEnded(lane) != "" {
			t.Errorf("%s: %d results, worker %d, %q", lane, came, p.Pid(lane), p.hasEnded(lane))
		}
	}
}

// A check to which slow checks before it have left only a moment is late. One that has had time, or that no signal ends,
// hangs; so does one whose own time is as short.
func TestHangInAMoment(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		hung        checks.Hung
		ended, code string
	}{
		"a moment":      {checks.Hung{Cut: true, Short: true}, noTime, "probe.lost"},
		"stuck":         {checks.Hung{Cut: true, Short: true, Stuck: true}, hungBefore, "probe.hung"},
		"seconds":       {checks.Hung{Cut: true, For: time.Second}, hungBefore, "probe.hung"},
		"at work in it": {checks.Hung{Cut: true, Short: true, Moved: true, Doing: "nvmlInit"}, slowBefore, "probe.slow"},
	} {
		p := NewPool(Options{})
		client := &client{lane: checks.NVML}
		p.workers[checks.NVML] = client
		r := new(Engine).result(&plan.Step{Name: "check_gpu_count", Lane: checks.NVML}, p.endSlow(client, &c.hung))
		if r.Findings[0].Code != c.code {
			t.Errorf("%s: %+v, want %s", name, r.Findings, c.code)
		}
		p.drop(checks.NVML)
		if how := p.hasEnded(checks.NVML); how != c.ended {
			t.Errorf("%s: ended: %q, want %q", name, how, c.ended)
		}
	}
	for own, want := range map[time.Duration]string{10 * time.Second: "probe.lost", 400 * time.Millisecond: "probe.hung"} {
		p := newTestPool(t, "")
		ok := &wire.Request{Op: wire.OpCheck, Name: "check_rogue_nvml", Args: []string{"ok"}, Line: "check_rogue_nvml ok"}
		p.Call(t.Context(), checks.NVML, ok, time.Minute) // the start of the worker is not part of the 300 ms
		req := &wire.Request{Op: wire.OpCheck, Name: "check_rogue_nvml", Args: []string{"stop"}, Line: "check_rogue_nvml stop", Limit: own}
		o := p.Call(t.Context(), checks.NVML, req, min(own, 300*time.Millisecond))
		if r := new(Engine).result(&plan.Step{Name: "check_rogue_nvml", Lane: checks.NVML}, o); r.Findings[0].Code != want {
			t.Errorf("300 ms of %s: %+v, want %s", own, r.Findings, want)
		}
	}
}

// The time that a slow scan has taken is missed by the checks after it in its lane: that says nothing about the library.
func TestHangAfterSlowScan(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first, second *checks.Hung
		ended, code   string
	}{
		"cut":          {&checks.Hung{Moved: true, Doing: probe.ScanCall}, &checks.Hung{Cut: true}, outOfTime, "probe.scan"},
		"cut and slow": {&checks.Hung{Moved: true, Doing: probe.ScanCall}, &checks.Hung{Cut: true, Moved: true, Doing: "nvmlInit"}, outOfTime, "probe.scan"},
		"its time":     {&checks.Hung{Moved: true, Doing: probe.ScanCall}, &checks.Hung{}, hungBefore, "probe.hung"},
		"stuck":        {&checks.Hung{Moved: true, Doing: probe.ScanCall}, &checks.Hung{Cut: true, Stuck: true}, hungBefore, "probe.hung"},
		"short":        {&checks.Hung{Moved: true, Doing: probe.ScanCall}, &checks.Hung{Cut: true, Short: true}, outOfTime, "probe.scan"},
		"no scan":      {&checks.Hung{Moved: true, Doing: "nvmlInit"}, nil, slowBefore, ""},
	} {
		p := NewPool(Options{})
		end := func(h *checks.Hung) Outcome {
			c := &client{lane: checks.NVML}
			p.workers[checks.NVML] = c
			defer p.drop(checks.NVML)
			return p.endSlow(c, h)
		}
		end(c.first)
		if c.second != nil {
			if how := p.hasEnded(checks.NVML); how != "" {
				t.Errorf("%s: ended: %s", name, how)
			}
			r := new(Engine).result(&plan.Step{Name: "check_gpu_count", Lane: checks.NVML}, end(c.second))
			if r.Findings[0].Code != c.code {
				t.Errorf("%s: %+v, want %s", name, r.Findings, c.code)
			}
		}
		if how := p.hasEnded(checks.NVML); how != c.ended {
			t.Errorf("%s: %q, want %q", name, how, c.ended)
		}
	}
}
