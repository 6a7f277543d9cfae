package event

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// faulty is a run with one result of each severity.
func faulty() *Event {
	e := &Event{
		Schema: Schema, Version: "1.2.3", Node: "gpu017", Time: time.Date(2026, 11, 22, 3, 12, 41, 5e8, time.UTC), Boot: "b", Context: "healthcheck", Mode: "enforce",
		Exit: 1, Milliseconds: 41.5, Message: "gpu3 lost 0000:66:00.0",
		Results: []Result{
			{Check: "check_gpu_count", Line: "check_gpu_count 8", Message: "8 GPUs", Milliseconds: 3},
			{Check: "check_gpu_recovery", Line: "check_gpu_recovery", Code: "gpu.recovery.lost", Severity: checks.Fail, Remedy: checks.RebootNode, Message: "check_gpu_recovery:  gpu3 0000:66:00.0: the GPU is lost | \"x\"\n",
				Device: checks.Device{Kind: "gpu", Name: "gpu3", PCI: "0000:66:00.0", Serial: "165", UUID: "GPU-1"}},
			{Check: "check_gpu_recovery", Line: "check_gpu_recovery", Code: "gpu.recovery.lost", Severity: checks.Fail, Message: "gpu4", Device: checks.Device{Kind: "gpu", Name: "gpu4"}},
			{Check: "check_fs_used", Line: "check_fs_used /home/alice 90%", Code: "fs.used", Severity: checks.Warn, Message: "check_fs_used:  /home/alice is full", Device: checks.Device{Kind: "mount", Name: "/home/alice"}, Want: "90%", Got: "95%"},
			{Check: "check_ib_ports", Line: "check_ib_ports", Code: "ib.none", Severity: checks.Skip, Message: "no port"},
			{Check: Shell, Line: "[ -d /x ]", Severity: checks.Unknown, Message: "Check [ -d /x ] returned 127"},
		},
		Slurm: &Action{Action: "drain", Sent: true, Owner: OwnerNHC, Reason: "NHC: gpu3 lost"},
	}
	e.Judge()
	return e
}

func healthy() *Event {
	e := faulty()
	e.Results, e.Slurm, e.Message = e.Results[:1], &Action{Action: "none"}, ""
	e.Judge()
	return e
}

func TestJudge(t *testing.T) {
	t.Parallel()
	if got := healthy().Verdict; got != checks.OK {
		t.Errorf("healthy: %v", got)
	}
	if got := faulty().Verdict; got != checks.Fail {
		t.Errorf("faulty: %v", got)
	}
	skipped := &Event{Results: []Result{{Severity: checks.Skip}}}
	if skipped.Judge(); skipped.Verdict != checks.OK {
		t.Errorf("skipped: %v", skipped.Verdict)
	}
}

// An event is one line, and is read as it was written.
func TestLine(t *testing.T) {
	t.Parallel()
	for _, e := range []*Event{healthy(), faulty(), {}} {
		line := e.Line()
		if bytes.ContainsRune(line, '\n') {
			t.Errorf("a newline in %s", line)
		}
		got, err := Parse(line)
		if err != nil || !cmp.Equal(got, e) {
			t.Errorf("%v\n%s", err, cmp.Diff(e, got))
		}
	}
	if _, err := Parse([]byte("{")); err == nil {
		t.Error("half an event: no error")
	}
}

// held is a faulty run whose drain the guard holds.
func held() *Event {
	e := faulty()
	e.Slurm.Sent, e.Slurm.Held, e.Slurm.Owner = false, true, ""
	return e
}

func TestCompare(t *testing.T) {
	t.Parallel()
	with := func(e *Event, change func(*Event)) *Event {
		change(e)
		return e
	}
	later := func(e *Event) *Event { e.Time = e.Time.Add(time.Hour); return e }
	helped := func() *Event {
		return with(healthy(), func(e *Event) { e.Slurm = &Action{Action: "resume", Sent: true, Helper: true} })
	}
	for name, tt := range map[string]struct {
		old, now *Event
		want     []string
	}{
		"the first run":             {nil, healthy(), []string{FirstRun}},
		"a faulty first run":        {nil, faulty(), []string{FirstRun, NewFinding, Drained}},
		"the same":                  {healthy(), later(healthy()), nil},
		"faulty for a while":        {faulty(), with(later(faulty()), func(e *Event) { e.Slurm = &Action{Action: "none", Owner: OwnerNHC} }), nil},
		"a new fault":               {healthy(), faulty(), []string{NewVerdict, NewFinding, Drained}},
		"another device":            {faulty(), with(faulty(), func(e *Event) { e.Slurm = nil; e.Results[2].Device.Name = "gpu5" }), []string{NewFinding}},
		"another message":           {faulty(), with(faulty(), func(e *Event) { e.Slurm = nil; e.Results[1].Message = "y" }), nil},
		"a line that fails":         {healthy(), with(healthy(), func(e *Event) { e.Results[0] = Result{Check: Shell, Line: "false", Severity: checks.Fail}; e.Judge() }), []string{NewVerdict, NewFinding}},
		"repaired":                  {faulty(), with(healthy(), func(e *Event) { e.Slurm = &Action{Action: "resume", Sent: true} }), []string{NewVerdict, NewFinding, Resumed}},
		"observed":                  {healthy(), with(healthy(), func(e *Event) { e.Mode = "observe" }), []string{NewMode}},
		"would drain":               {healthy(), with(faulty(), func(e *Event) { e.Slurm.Sent = false }), []string{NewVerdict, NewFinding, Drained}},
		"would drain again":         {with(faulty(), func(e *Event) { e.Slurm.Sent = false }), with(faulty(), func(e *Event) { e.Slurm.Sent = false }), nil},
		"slurmctld does not answer": {healthy(), with(faulty(), func(e *Event) { e.Slurm = &Action{Action: "none", Error: "timed out"} }), []string{NewVerdict, NewFinding, Undeliver}},
		"drained by a person":       {healthy(), with(healthy(), func(e *Event) { e.Slurm = &Action{Action: "none", Owner: OwnerOther} }), []string{NewOwner}},
		"a helper drains":           {healthy(), with(faulty(), func(e *Event) { e.Slurm.Helper = true }), []string{NewVerdict, NewFinding, Drained}},
		"a helper drains again":     {with(faulty(), func(e *Event) { e.Slurm.Helper = true }), with(faulty(), func(e *Event) { e.Slurm.Helper = true }), nil},
		"a helper resumes":          {faulty(), helped(), []string{NewVerdict, NewFinding, Resumed}},
		"a helper resumes again":    {helped(), helped(), nil},
		"held by guard":             {healthy(), held(), []string{NewVerdict, NewFinding, Held}},
		"held for a while":          {held(), later(held()), nil},
		"held, then drained":        {held(), later(faulty()), []string{Drained, Released}},
		"held, then released":       {held(), with(held(), func(e *Event) { e.Slurm = &Action{Action: "none", Owner: OwnerNHC} }), []string{Released, NewOwner}},
		"Slurm was not asked":       {with(healthy(), func(e *Event) { e.Slurm = &Action{Owner: OwnerOther} }), with(healthy(), func(e *Event) { e.Slurm = nil }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.now.Compare(tt.old)
			if diff := cmp.Diff(tt.want, tt.now.Changed); diff != "" {
				t.Error(diff)
			}
		})
	}
	now := later(faulty())
	old := faulty()
	old.Compare(nil)
	if now.Compare(old); now.Since != old.Time {
		t.Errorf("since %v, want %v", now.Since, old.Time)
	}
	fixed := later(healthy())
	if fixed.Compare(now); fixed.Since != fixed.Time {
		t.Errorf("since %v, want %v", fixed.Since, fixed.Time)
	}
	outside := with(healthy(), func(e *Event) { e.Results[0].Held = "outside 08:00-18:00" })
	for found, want := range map[bool]int{true: 0, false: 2} { // the fault of the drain, and another one
		outside.Found = found
		if outside.Compare(fixed); outside.Healthy != want {
			t.Errorf("found %v outside its hours: healthy run %d, want %d", found, outside.Healthy, want)
		}
	}
	early := with(healthy(), func(e *Event) { e.Results[0].Severity, e.Results[0].Code = checks.Skip, "gpu.nvlink.boot" })
	if early.Compare(fixed); early.Healthy != 0 {
		t.Errorf("healthy run %d although the links are not judged yet", early.Healthy)
	}
	for _, drained := range []time.Time{{}, fixed.Time.Add(time.Second)} { // by no run, and by a prolog
		next := later(later(healthy()))
		next.Drained = drained
		next.Compare(fixed)
		want, from := 2, fixed.Time
		if !drained.IsZero() {
			want, from = 1, next.Time
		}
		if next.Healthy != want || !next.HealthySince.Equal(from) {
			t.Errorf("drained at %v: %d healthy runs since %v, want %d since %v", drained, next.Healthy, next.HealthySince, want, from)
		}
	}
}

// A clock that was ahead delays no cool-down: it begins with the first run that knows the right time.
func TestCompareAfterClockWasAhead(t *testing.T) {
	t.Parallel()
	old, now := healthy(), healthy()
	old.Time = now.Time.Add(48 * time.Hour)
	old.Compare(nil)
	if now.Compare(old); now.Healthy != 2 || !now.HealthySince.Equal(now.Time) {
		t.Errorf("%d healthy runs since %v, want 2 since %v", now.Healthy, now.HealthySince, now.Time)
	}
}

// Users can make many findings: they bound the event, and remove no other fault from it.
func TestTrim(t *testing.T) {
	t.Parallel()
	const many = 3 * maxFindings
	user := Result{Check: "check_ps_unauth_users", Code: "ps.user.unauthorized", Device: checks.Device{Kind: "process"}}
	for _, severity := range []checks.Severity{checks.Warn, checks.Unknown, checks.Fail} {
		e := &Event{}
		for i := range many {
			user.Severity, user.Device.Name = severity, fmt.Sprint("process", i)
			e.Results = append(e.Results, user)
		}
		later := []Result{
			{Check: "check_ps_load", Code: "ps.load", Severity: checks.Warn},
			{Check: "check_gpu_xid", Code: "gpu.xid.79", Severity: checks.Fail, Device: checks.Device{Kind: "gpu", Name: "gpu3"}},
			{Check: "check_gpu_xid", Code: "gpu.xid.79", Severity: checks.Fail, Device: checks.Device{Kind: "gpu", Name: "gpu4"}},
			{Check: Shell, Line: "false", Severity: checks.Fail},
			{Check: "check_hw_cpuinfo"},
		}
		e.Results = append(e.Results, later...)
		if e.Trim(); len(e.Results) != maxFindings+len(later) {
			t.Errorf("%v: %d results", severity, len(e.Results))
		}
		if diff := cmp.Diff(later, e.Results[len(e.Results)-len(later):]); diff != "" {
			t.Errorf("%v: (-want +got):\n%s", severity, diff)
		}
	}
}

// A plugin for some codes is healthy if other codes fail, and unknown if the whole run is.
func TestOnly(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		codes []string
		want  checks.Severity
		left  int
	}{{[]string{"gpu.recovery"}, checks.Fail, 2}, {[]string{"gpu.ecc", "fs."}, checks.Warn, 1}, {[]string{"gpu.ecc"}, checks.OK, 0}, {[]string{""}, checks.OK, 0}} {
		e := faulty()
		e.Only(tt.codes)
		if e.Verdict != tt.want || len(e.Results) != tt.left {
			t.Errorf("%v: %v with %d results, want %v with %d", tt.codes, e.Verdict, len(e.Results), tt.want, tt.left)
		}
	}
	e := &Event{Results: []Result{{Check: Whole, Severity: checks.Unknown}}}
	if e.Only([]string{"gpu."}); e.Verdict != checks.Unknown {
		t.Errorf("an unusable configuration: %v", e.Verdict)
	}
}

// A private event, and metrics in any case, name no user, process or file.
func TestPrivate(t *testing.T) {
	t.Parallel()
	p := faulty().Private()
	for name, text := range map[string]string{"event": string(p.Line()), "metrics": string(faulty().Prometheus(true, "")), "private metrics": string(p.Prometheus(true, ""))} {
		for _, word := range []string{"alice", "/x", "home", "lost |"} {
			if strings.Contains(text, word) {
				t.Errorf("%s: %q in %s", name, word, text)
			}
		}
		for _, word := range []string{"gpu.recovery.lost", "gpu3", "fs.used"} {
			if !strings.Contains(text, word) {
				t.Errorf("%s: no %q in %s", name, word, text)
			}
		}
	}
	if faulty().Private().Slurm.Action != "drain" || faulty().Slurm.Reason == "" {
		t.Error("the event itself was changed, or the action is lost")
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	drill := faulty()
	for i := range drill.Results {
		drill.Results[i].Drill, drill.Results[i].Message = true, ""
	}
	for _, tt := range []struct {
		format string
		event  *Event
		exit   int
		want   string
	}{
		{"nagios", healthy(), 0, "NHC OK - 1 checks passed|failed=0;;1 warned=0;1 unknown=0 passed=1 time=0.042s\n"},
		{"nagios", faulty(), 2, "NHC CRITICAL - check_gpu_recovery: gpu3 0000:66:00.0: the GPU is lost / \"x\"|failed=2;;1 warned=1;1 unknown=1 passed=1 time=0.042s\n"},
		{"npd", healthy(), 0, "node is healthy\n"},
		{"npd", faulty(), 1, "check_gpu_recovery gpu.recovery.lost gpu3 and 3 more\n"},
		{"npd", &Event{Verdict: checks.Unknown, Results: []Result{{Check: Whole, Severity: checks.Unknown, Remedy: checks.FixConfig, Message: "/home/alice/nhc.conf: x"}}}, 3, "unknown: configuration unusable, run nhc-gpu lint\n"},
		{"npd", drill, 1, "[drill] check_gpu_recovery gpu.recovery.lost gpu3 and 3 more\n"},
		{"nagios", drill, 2, "NHC CRITICAL - [drill] check_gpu_recovery gpu.recovery.lost gpu3|failed=2;;1 warned=1;1 unknown=1 passed=1 time=0.042s\n"},
		{"npd", &Event{Verdict: checks.Unknown, Results: []Result{{Check: "c", Severity: checks.Unknown, Code: "é" + strings.Repeat("d", 90), Message: "alice"}}}, 3, "c _" + strings.Repeat("d", 77) + "\n"},
	} {
		var b bytes.Buffer
		exit, err := tt.event.Write(&b, tt.format, View{})
		if err != nil || exit != tt.exit || b.String() != tt.want {
			t.Errorf("%s: %v, exit %d, want %d\n%s", tt.format, err, exit, tt.exit, cmp.Diff(tt.want, b.String()))
		}
	}
}

func TestJUnit(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if exit, err := faulty().Write(&b, "junit", View{}); exit != 2 || err != nil {
		t.Fatalf("exit %d, %v", exit, err)
	}
	var s junitSuite
	if err := xml.Unmarshal(b.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Tests != 6 || s.Failures != 2 || s.Errors != 1 || s.Skipped != 1 || len(s.Cases) != 6 || s.Cases[1].Failure.Type != "gpu.recovery.lost" || s.Cases[0].Failure != nil || s.Cases[5].Error == nil || s.Cases[4].Skipped == nil {
		t.Errorf("%+v", s)
	}
	b.Reset()
	if _, err := faulty().Write(&b, "junit", View{Failed: true}); err != nil {
		t.Fatal(err)
	}
	s = junitSuite{}
	if err := xml.Unmarshal(b.Bytes(), &s); err != nil || s.Tests != 6 || s.Skipped != 1 || len(s.Cases) != 4 {
		t.Errorf("only what is not ok: %v, %+v", err, s)
	}
}

func TestGone(t *testing.T) {
	t.Parallel()
	accepted := Result{Check: "check_gpu_count", Code: "gpu.count", Severity: checks.Warn, Silenced: &checks.Silenced{By: "alice"}}
	plain := Result{Check: "check_gpu_ecc", Code: "gpu.ecc.dram", Severity: checks.Warn}
	old := &Event{Results: []Result{accepted, plain}}
	pass, other := Result{Check: "check_gpu_count"}, Result{Check: "check_gpu_ecc"}
	skipped := Result{Check: "check_gpu_count", Severity: checks.Skip}
	gpu := func(code, name string) Result {
		return Result{Check: "check_gpu_remap", Line: "check_gpu_remap", Code: code, Severity: checks.Warn, Device: checks.Device{Kind: "gpu", Name: name}}
	}
	remap := gpu("gpu.remap.pending", "gpu3")
	remap.Silenced, remap.Device.PCI = accepted.Silenced, "0000:66:00.0"
	renamed, dated, elsewhere := remap, remap, remap
	elsewhere.Check, elsewhere.Line = "check_gpu_ecc", "check_gpu_ecc"
	dated.Silenced = &checks.Silenced{Until: time.Unix(60, 0)}
	renamed.Device.Name = "gpu2"
	ofGPU, kept := &Event{Results: []Result{remap}}, &Event{Accepted: []Result{remap}}
	quiet := Result{Check: "check_gpu_remap", Line: "check_gpu_remap -w"}
	second, slow := remap, quiet
	second.Line, slow.Code, slow.Severity = quiet.Line, "probe.slow", checks.Unknown
	twice, elsewhereKept := &Event{Results: []Result{remap, second}}, (&Event{Results: []Result{remap}}).OfOther(false)
	rehearsed := gpu("gpu.remap.failed", "gpu3")
	rehearsed.Drill = true
	for _, tt := range []struct {
		name string
		now  Event
		old  *Event
		want []Result
	}{
		{"it passes", Event{Results: []Result{pass, other}}, old, []Result{accepted}},
		{"it is there", Event{Results: []Result{accepted, other}}, old, nil},
		{"the check did not run", Event{Results: []Result{other}}, old, nil},
		{"the check was skipped", Event{Results: []Result{skipped}}, old, nil},
		{"one of its lines was skipped", Event{Results: []Result{pass, skipped}}, old, nil},
		{"the run has stopped", Event{Results: []Result{pass}, Stopped: true}, old, nil},
		{"the first run", Event{Results: []Result{pass}}, nil, nil},
		{"of an earlier run", Event{Results: []Result{{Check: "check_gpu_remap", Line: "check_gpu_remap"}}}, kept, []Result{remap}},
		{"another GPU has a fault", Event{Results: []Result{gpu("gpu.remap.pending", "gpu4")}}, ofGPU, []Result{remap}},
		{"it was accepted until a date", Event{Results: []Result{{Check: "check_gpu_remap", Line: "check_gpu_remap"}}}, &Event{Results: []Result{dated}}, nil},
		{"another line finds it", Event{Results: []Result{{Check: "check_gpu_remap", Line: "check_gpu_remap"}, elsewhere}}, ofGPU, nil},
		{"a boot has renamed the GPU", Event{Results: []Result{renamed}}, ofGPU, nil},
		{"the GPU has another fault", Event{Results: []Result{gpu("gpu.remap.failed", "gpu3")}}, ofGPU, nil},
		{"the GPU has a drill", Event{Results: []Result{rehearsed}}, ofGPU, nil},
		{"the check has a fault without a device", Event{Results: []Result{gpu("gpu.nvml", "")}}, ofGPU, nil},
		{"the line was edited", Event{Results: []Result{quiet}}, ofGPU, []Result{remap}},
		{"another line has not looked", Event{Results: []Result{{Check: "check_gpu_remap", Line: "check_gpu_remap"}, slow}}, twice, nil},
		{"both lines pass", Event{Results: []Result{{Check: "check_gpu_remap", Line: "check_gpu_remap"}, quiet}}, twice, twice.Results},
		{"the line of another file has not run", Event{Results: []Result{quiet}}, elsewhereKept, nil},
		{"the line of another file passes", Event{Results: []Result{{Check: "check_gpu_remap", Line: "check_gpu_remap"}}}, elsewhereKept, elsewhereKept.Accepted},
		{"another file, with privacy", Event{Results: []Result{{Check: "check_gpu_remap"}}}, elsewhereKept.Private(), nil},
		{"a run of another line of the check", Event{Part: true, Results: []Result{quiet}}, ofGPU, nil},
	} {
		ended, _ := tt.now.Gone(tt.old, false)
		if diff := cmp.Diff(tt.want, ended); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	now := &Event{Results: []Result{accepted}}
	both := &Event{Results: []Result{accepted, remap, plain}, Accepted: []Result{remap}}
	if got := now.Carry(both, nil).Accepted; len(got) != 1 || got[0].Code != remap.Code {
		t.Errorf("kept: %+v, want %s", got, remap.Code)
	}
	if got := now.Carry(both, []Result{remap}).Accepted; got != nil || now.Accepted != nil {
		t.Errorf("kept: %+v, although it is gone", got)
	}
	if fields := old.Journal("nhc")[0].Fields; fields["NHC_SILENCED"] != "accepted until the hardware changes" {
		t.Errorf("journal %v", fields)
	}
	private := old.Private().Results[0].Silenced
	if private == nil || private.By != "" || accepted.Silenced.By == "" {
		t.Errorf("with privacy %+v, of %+v", private, accepted.Silenced)
	}
}

// The kept event of a run of some checks forgets a fault when its check has looked for it in vain, or its line is
// gone. A health check ends it only in the former case: it lacks the lines that are for the monitor alone.
func TestJoin(t *testing.T) {
	t.Parallel()
	result := func(line, code string, s checks.Severity, device string) Result {
		check, _, _ := strings.Cut(line, " ")
		return Result{Check: check, Line: line, Code: code, Severity: s, Device: checks.Device{Kind: "gpu", Name: device}}
	}
	private := func(r Result) Result { r.Line = ""; return r }
	const line, other = "check_gpu_xid", "check_ib_ports -s ACTIVE"
	xid, pass := result(line, "gpu.xid.79", checks.Fail, "gpu3"), result(line, "", checks.OK, "")
	slow := result(other, "ib.ports.state", checks.Fail, "")
	doubt := result(line, "gpu.nvml", checks.Unknown, "")
	for _, tt := range []struct {
		name   string
		old    Result
		now    []Result
		lines  []Result // of the configuration
		joined bool     // the fault is kept besides those of the run
		unless bool     // the fault is kept after a health check
	}{
		{"another check", xid, []Result{slow}, nil, true, true},
		{"it passes", xid, []Result{pass}, nil, false, false},
		{"it fails, too", xid, []Result{xid}, nil, false, true},
		{"it fails on another GPU", xid, []Result{result(line, "gpu.xid.79", checks.Fail, "gpu4")}, nil, false, false},
		{"the driver hangs", xid, []Result{doubt}, nil, true, true},
		{"the driver hangs after the fault", xid, []Result{doubt, xid}, nil, false, true},
		{"it cannot be determined", xid, []Result{result(line, "gpu.xid.79", checks.Unknown, "gpu3")}, nil, true, true},
		{"it is skipped", xid, []Result{result(line, "gpu.none", checks.Skip, "")}, nil, true, true},
		{"it is skipped on this GPU", xid, []Result{result(line, "gpu.none", checks.Skip, "gpu3")}, nil, true, true},
		{"it is skipped on another GPU", xid, []Result{result(line, "gpu.none", checks.Skip, "gpu4")}, nil, false, false},
		{"the driver hangs in another way", doubt, []Result{result(line, "probe.hung", checks.Unknown, "gpu3")}, nil, false, false},
		{"privacy began, it passes", xid, []Result{private(pass)}, nil, false, false},
		{"privacy began, it fails", xid, []Result{private(xid)}, nil, false, true},
		{"privacy ended, it passes", private(xid), []Result{pass}, nil, false, false},
		{"privacy ended, another check", private(xid), []Result{slow}, nil, true, true},
		{"the line is not made", xid, []Result{slow}, []Result{pass, slow}, true, true},
		{"the line was edited", xid, []Result{slow}, []Result{result(line+" -w", "", 0, ""), slow}, false, true},
		{"the line was removed", xid, nil, []Result{slow}, false, true},
		{"every line was removed", xid, nil, []Result{}, false, true},
		{"privacy, the line is not made", private(xid), []Result{private(slow)}, []Result{pass, slow}, true, true},
		{"privacy, the line was removed", private(xid), []Result{private(slow)}, []Result{slow}, false, true},
	} {
		old := &Event{Time: time.Unix(60, 0), Part: true, Results: []Result{tt.old}}
		now := &Event{Time: time.Unix(120, 0), Part: true, Results: tt.now, Lines: tt.lines}
		old.Judge()
		now.Judge()
		want := now.Findings()
		if tt.joined {
			want = append(want, tt.old)
		}
		joined := now.Join(old)
		got := joined.Findings()
		byCode := func(a, b Result) int { return strings.Compare(a.Code+a.Severity.String(), b.Code+b.Severity.String()) }
		slices.SortFunc(got, byCode)
		slices.SortFunc(want, byCode)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s, joined (-want +got):\n%s", tt.name, diff)
		}
		if !joined.Time.Equal(now.Time) {
			t.Errorf("%s: joined at %v, want %v", tt.name, joined.Time, now.Time)
		}
		if left := old.Unless(now, now.Time).Findings(); len(left) == 1 != tt.unless {
			t.Errorf("%s: %d findings after a health check", tt.name, len(left))
		}
	}
}

// A finding of a time at which the clock was ahead is over after a later run of the same boot, too.
func TestUnlessTheClockWasAhead(t *testing.T) {
	t.Parallel()
	const line = "check_gpu_xid"
	at := func(minute int64) time.Time { return time.Unix(60*minute, 0) }
	for _, tt := range []struct {
		name           string
		old, later     int64 // minutes; it is minute 30
		boot, thatBoot string
		over           bool
	}{
		{"a later run", 10, 20, "b1", "b1", true},
		{"an earlier run", 20, 10, "b1", "b1", false},
		{"the clock was ahead", 70, 20, "b1", "b1", true},
		{"the clock was ahead, a run before the boot", 70, 20, "b2", "b1", false},
		{"the clock was ahead, unknown boots", 70, 20, "", "", false},
		{"the clock was ahead at both, then a later run", 70, 80, "b1", "b1", true},
		{"the clock was ahead at both, then an earlier run", 70, 60, "b1", "b1", false},
	} {
		old := &Event{Time: at(tt.old), Boot: tt.boot, Part: true, Results: []Result{{Check: line, Line: line, Code: "gpu.xid.79", Severity: checks.Fail}}}
		later := &Event{Time: at(tt.later), Boot: tt.thatBoot, Results: []Result{{Check: line, Line: line}}}
		if left := old.Unless(later, at(30)).Findings(); len(left) == 0 != tt.over {
			t.Errorf("%s: %d findings are left", tt.name, len(left))
		}
	}
}

// A run of some checks reports a fault that is not kept yet, and neither that another one is over, nor one that
// cannot be determined for a while.
func TestCompareParts(t *testing.T) {
	t.Parallel()
	fail := Result{Check: "check_gpu_xid", Line: "check_gpu_xid", Code: "gpu.xid.79", Severity: checks.Fail, Device: checks.Device{Kind: "gpu", Name: "gpu3"}}
	second, doubt, pass := fail, fail, fail
	second.Device.Name, doubt.Severity, doubt.Code = "gpu4", checks.Unknown, "probe.hung"
	pass.Severity, pass.Code = checks.OK, ""
	hang := Result{Check: JobHealth, Line: JobHealth, Code: "job.hang", Severity: checks.Warn, Would: "fail-job", Held: "observed only", Jobs: "7"}
	other, stuck := hang, hang
	other.Jobs, stuck.Held = "8", "strike 1 of 3"
	var kept *Event
	for i, tt := range []struct {
		now  []Result
		told bool
	}{
		{[]Result{stuck}, false}, {[]Result{hang}, true}, {[]Result{hang}, false}, {[]Result{hang, other}, true}, {[]Result{other}, false},
		{[]Result{fail}, true}, {[]Result{doubt}, false}, {[]Result{fail}, false}, {[]Result{fail, second}, true}, {[]Result{fail}, false}, {[]Result{fail, second}, true},
		{[]Result{pass}, false}, {[]Result{fail}, true},
	} {
		e := &Event{Part: true, Time: time.Unix(int64(i), 0), Results: tt.now}
		e.Judge()
		e.Compare(kept)
		if got := slices.Contains(e.Changed, NewFinding); got != tt.told {
			t.Errorf("run %d: reported %v, want %v", i, got, tt.told)
		}
		kept = e.Join(kept)
	}
}
