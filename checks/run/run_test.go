package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// recorder is an observer that records its calls.
type recorder struct {
	results map[int]checks.Result
	heard   []string
	stopAt  int // index of the step after which the run stops, -1 for none
	expired *checks.Hung
	late    bool // results that are there after TIMEOUT are wanted
}

func (r *recorder) Begin(s *plan.Step) { r.heard = append(r.heard, "begin "+s.Text) }

func (r *recorder) Native(s *plan.Step, res checks.Result) bool {
	if r.results == nil {
		r.results = map[int]checks.Result{}
	}
	r.results[s.Index] = res
	return r.stopAt != s.Index
}

func (r *recorder) Assigned(s *plan.Step) { r.heard = append(r.heard, "assign "+s.Text) }

func (r *recorder) Line(s *plan.Step) bool {
	r.heard = append(r.heard, "line "+s.Text)
	return true
}

func (r *recorder) Expired(s *plan.Step, h *checks.Hung) bool {
	r.heard, r.expired = append(r.heard, "expired "+s.Text), h
	return r.late
}
func (r *recorder) Goes() bool { return true }

func buildPlan(timeout time.Duration, lines ...string) *plan.Plan {
	p := new(plan.Plan)
	for i, l := range lines {
		words := strings.Fields(l)
		s := plan.Step{Index: i, Text: l, Kind: plan.ShellLine, Lane: checks.Shell, Barrier: true}
		if info, ok := checks.Lookup(words[0]); ok {
			s.Kind, s.Lane, s.Name, s.Args = plan.Native, info.Lane, info.Name, words[1:]
			s.Barrier, s.Timeout = info.Acts != nil, plan.StepTimeout(info, info.New(), timeout)
		}
		p.Steps = append(p.Steps, s)
	}
	return p
}

func newTestPool(t *testing.T, dir string) *Pool {
	t.Helper()
	p := NewPool(Options{Root: "/", Env: []string{"PATH=/usr/bin:/bin"}})
	t.Cleanup(p.Kill)
	if dir != "" {
		openTestState(t, p, dir, "")
	}
	return p
}

func openTestState(t *testing.T, p *Pool, dir, kind string) {
	t.Helper()
	if busy, doubts, err := p.OpenState(dir, kind, ""); busy != nil || doubts != nil || err != nil {
		t.Fatal(busy, doubts, err)
	}
}

// stateDirOf creates a directory that is accepted as state directory.
func stateDirOf(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// worst returns the worst severity of each step, in order.
func worst(rec *recorder, n int) []checks.Severity {
	var out []checks.Severity
	for i := range n {
		res, ok := rec.results[i]
		if !ok {
			out = append(out, -1)
			continue
		}
		out = append(out, checks.Worst(res.Findings))
	}
	return out
}

// A worker that breaks causes one finding, for its current step; another worker runs the steps
// after it.
func TestBrokenWorker(t *testing.T) {
	t.Parallel()
	for how, want := range map[string]string{
		"segv":    "its worker died in rogue segv: exit status 2: SIGSEGV: segmentation violation",
		"exit127": "its worker died in rogue exit127: exit status 127: symbol lookup error: undefined symbol: nvmlFoo",
		"panic":   "internal error: rogue",
		"garbage": `its worker is broken: its answer is not a message: "this is not an answer\n"`,
		"wrongid": "its worker is broken: it answered request 99999 instead of 2",
		"half":    "its worker died in rogue half: exit status 0",
		"flood":   fmt.Sprintf("its worker is broken: its answer is not a message: %d bytes, limit %d", wire.MaxMessage+1, wire.MaxMessage),
		"close":   "its worker closed its descriptors",

		"forked":     "its worker died in rogue forked: exit status 2: SIGSEGV: segmentation violation",
		"forkedhalf": "its worker died in rogue forkedhalf: exit status 0",
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			p := newTestPool(t, "")
			e := &Engine{Pool: p, Deadline: time.Now().Add(30 * time.Second)}
			rec := &recorder{stopAt: -1}
			if err := e.Do(t.Context(), buildPlan(0, "check_rogue warn", "check_rogue "+how, "check_rogue ok", "check_rogue warn"), rec); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]checks.Severity{checks.Warn, checks.Unknown, checks.OK, checks.Warn}, worst(rec, 4)); diff != "" {
				t.Fatalf("severities (-want +got):\n%s", diff)
			}
			got := rec.results[1].Findings
			if len(got) != 1 || got[0].Message != "check_rogue:  no result: "+want {
				t.Errorf("got %+v, want one finding that ends in %q", got, want)
			}
		})
	}
}

// A process that a vendor's library has forked ends with the worker.
func TestForkedByLibrary(t *testing.T) {
	t.Parallel()
	p, rec := newTestPool(t, ""), &recorder{stopAt: -1}
	e := &Engine{Pool: p, Deadline: time.Now().Add(30 * time.Second)}
	if err := e.Do(t.Context(), buildPlan(0, "check_rogue_nvml fork"), rec); err != nil || checks.Worst(rec.results[0].Findings) != checks.OK {
		t.Fatal(err, rec.results)
	}
	session := p.Pid(checks.NVML)
	if len(process.InSession(session)) != 2 {
		t.Fatal("the worker and its child do not run")
	}
	p.Close()
	waitFor(t, func() bool { return len(process.InSession(session)) == 0 })
}

// A failure reaches the supervisor, also if the findings are too large for an answer.
func TestCrowdedAnswer(t *testing.T) {
	t.Parallel()
	rec := &recorder{stopAt: -1}
	e := &Engine{Pool: newTestPool(t, ""), Deadline: time.Now().Add(30 * time.Second)}
	if err := e.Do(t.Context(), buildPlan(0, "check_rogue crowd"), rec); err != nil {
		t.Fatal(err)
	}
	if got := rec.results[0].Findings; len(got) < 100 || got[0].Severity != checks.Fail || !strings.HasPrefix(got[0].Message, "rogue fails xxx") {
		t.Errorf("%d findings, first %.200v", len(got), got[:min(len(got), 1)])
	}
}

// A worker that was stopped by a signal continues.
func TestStoppedWorker(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, "")
	rec := &recorder{stopAt: -1}
	e := &Engine{Pool: p, Deadline: time.Now().Add(30 * time.Second)}
	if err := e.Do(t.Context(), buildPlan(20*time.Second, "check_rogue sigstop", "check_rogue warn"), rec); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]checks.Severity{checks.OK, checks.Warn}, worst(rec, 2)); diff != "" {
		t.Errorf("severities (-want +got):\n%s", diff)
	}
}

// The output of a library on standard output has no effect.
func TestNoisyWorker(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, "")
	rec := &recorder{stopAt: -1}
	e := &Engine{Pool: p, Deadline: time.Now().Add(30 * time.Second)}
	if err := e.Do(t.Context(), buildPlan(0, "check_rogue stdout", "check_rogue ok"), rec); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]checks.Severity{checks.OK, checks.OK}, worst(rec, 2)); diff != "" {
		t.Errorf("severities (-want +got):\n%s", diff)
	}
}

func TestWorkerOutOfMemory(t *testing.T) {
	t.Parallel()
	group := cgroup(t, "memory")
	if err := os.WriteFile(filepath.Join(group, "memory.limit_in_bytes"), []byte("64M"), 0); err != nil {
		need.Skip(t, "cannot limit memory by cgroup v1: %v", err)
	}
	_ = os.WriteFile(filepath.Join(group, "memory.memsw.limit_in_bytes"), []byte("64M"), 0)
	p := newTestPool(t, "")
	rec := &recorder{stopAt: -1}
	e := &Engine{Pool: p, Deadline: time.Now().Add(30 * time.Second)}
	if err := e.Do(t.Context(), buildPlan(0, "check_rogue oom "+group, "check_rogue warn"), rec); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]checks.Severity{checks.Unknown, checks.Warn}, worst(rec, 2)); diff != "" {
		t.Fatalf("severities (-want +got):\n%s", diff)
	}
	if m := rec.results[0].Findings[0].Message; !strings.Contains(m, "signal: killed (by the kernel for want of memory, or by a person)") {
		t.Errorf("got %q", m)
	}
}

// cgroup creates a cgroup v1 group and removes it at the end of the test.
func cgroup(t *testing.T, controller string) string {
	t.Helper()
	need.Root(t, "to make a cgroup")
	dir, err := os.MkdirTemp("/sys/fs/cgroup/"+controller, "nhc-gpu-test-")
	if err != nil {
		need.Skip(t, "needs cgroup v1 with the %s controller: %v", controller, err)
	}
	t.Cleanup(func() {
		if controller == "freezer" {
			_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
		}
		for range 200 {
			if os.Remove(dir) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("left behind: %s", dir)
	})
	return dir
}

// A step that hangs but reacts to signals is killed at its deadline; another worker runs the next
// step.
func TestHangKilled(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, "")
	rec := &recorder{stopAt: -1}
	e := &Engine{Pool: p, Deadline: time.Now().Add(10 * time.Second)}
	began := time.Now()
	if err := e.Do(t.Context(), buildPlan(time.Second, "check_rogue sleep", "check_rogue deaf", "check_rogue warn"), rec); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("took %s, want less than the run has: two steps of half a second", took)
	}
	if diff := cmp.Diff([]checks.Severity{checks.Fail, checks.Fail, checks.Warn}, worst(rec, 3)); diff != "" {
		t.Fatalf("severities (-want +got):\n%s", diff)
	}
	h := rec.results[0].Hung
	if h == nil || h.Stuck || h.Doing != "rogue sleep" {
		t.Errorf("hung = %+v, want one that could be killed, in \"rogue sleep\"", h)
	}
	if n := len(p.Ledger().StuckProcesses()); n != 0 {
		t.Errorf("%d stuck processes in the ledger, want none", n)
	}
}

// A step that no signal can end is left behind and added to the ledger; a later run reports it at
// once and starts no process for it; after the thaw all is normal.
func TestHangStuck(t *testing.T) {
	t.Parallel()
	group := cgroup(t, "freezer")
	state := stateDirOf(t)
	lines := []string{"check_rogue freeze " + group, "check_rogue warn"}

	first := newTestPool(t, state)
	rec := &recorder{stopAt: -1}
	e := &Engine{Pool: first, Deadline: time.Now().Add(10 * time.Second)}
	began := time.Now()
	if err := e.Do(t.Context(), buildPlan(time.Second, lines...), rec); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("took %s, want the step's 0.5 s and a little", took)
	}
	if diff := cmp.Diff([]checks.Severity{checks.Fail, checks.Warn}, worst(rec, 2)); diff != "" {
		t.Fatalf("severities (-want +got):\n%s", diff)
	}
	msg := rec.results[0].Findings[0].Message
	for _, want := range []string{"check_rogue:  hung (in rogue freeze", "state D", "wait channel ", "no signal can end"} {
		if !strings.Contains(msg, want) {
			t.Errorf("message %q lacks %q", msg, want)
		}
	}

	second := newTestPool(t, state)
	rec = &recorder{stopAt: -1}
	e = &Engine{Pool: second, Deadline: time.Now().Add(20 * time.Second)}
	began = time.Now()
	if err := e.Do(t.Context(), buildPlan(18*time.Second, lines[0]), rec); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 6*time.Second {
		t.Errorf("the next run took %s, want an answer at once, not after the step's 9 s", took)
	}
	if got := rec.results[0].Findings; len(got) != 1 || got[0].Message != msg {
		t.Errorf("the next run says %+v, want the same message %q", got, msg)
	}
	if pid := second.Pid(checks.Local); pid != 0 {
		t.Errorf("the next run started a worker (pid %d) for a step that hangs", pid)
	}

	if err := os.WriteFile(filepath.Join(group, "freezer.state"), []byte("THAWED"), 0); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return len(newTestPool(t, state).Ledger().StuckProcesses()) == 0 })
	third := newTestPool(t, state)
	rec = &recorder{stopAt: -1}
	e = &Engine{Pool: third, Deadline: time.Now().Add(10 * time.Second)}
	if err := e.Do(t.Context(), buildPlan(time.Second, "check_rogue ok"), rec); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]checks.Severity{checks.OK}, worst(rec, 1)); diff != "" {
		t.Errorf("after the thaw (-want +got):\n%s", diff)
	}
}

func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatal("waited 10 s in vain")
}

// After a hang in the lane of a vendor library the rest of that lane does not run; other lanes are
// not delayed.
func TestHangVendorLane(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, "")
	rec := &recorder{stopAt: -1}
	e := &Engine{Pool: p, Deadline: time.Now().Add(10 * time.Second)}
	pl := buildPlan(time.Second, "check_rogue_nvml sleep", "check_rogue warn", "check_rogue_nvml warn")
	if err := e.Do(t.Context(), pl, rec); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]checks.Severity{checks.Fail, checks.Warn, checks.Unknown}, worst(rec, 3)); diff != "" {
		t.Fatalf("severities (-want +got):\n%s", diff)
	}
	if m := rec.results[2].Findings[0].Message; m != "check_rogue_nvml:  no result: not run: NVML hung in an earlier check" {
		t.Errorf("got %q", m)
	}
}

// The deadline of the run ends it during a step. It leaves the worker time to start.
func TestRunDeadline(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, "")
	rec := &recorder{stopAt: -1}
	e := &Engine{Pool: p, Deadline: time.Now().Add(2 * time.Second)}
	if err := e.Do(t.Context(), buildPlan(0, "check_rogue ok", "check_rogue sleep", "check_rogue ok"), rec); err != nil {
		t.Fatal(err)
	}
	if rec.expired == nil || rec.expired.Doing != "rogue sleep" {
		t.Errorf("expired = %+v, want in \"rogue sleep\"", rec.expired)
	}
	if _, ok := rec.results[2]; ok {
		t.Error("the step behind the deadline has a result")
	}
}

// A step that may change something starts only when every earlier step has its result, and never
// after the run has stopped.
func TestBarrier(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, "")
	rec := &recorder{stopAt: 0}
	e := &Engine{Pool: p, Deadline: time.Now().Add(10 * time.Second)}
	if err := e.Do(t.Context(), buildPlan(0, "check_rogue warn", "check_rogue_acts warn", "echo x"), rec); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"begin check_rogue warn"}, rec.heard); diff != "" {
		t.Errorf("heard (-want +got):\n%s", diff)
	}
	if _, ok := rec.results[1]; ok {
		t.Error("an acting step was run after the run was stopped")
	}
}

// A signal ends the run at once and leaves no worker behind.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	e := &Engine{Pool: p, Deadline: time.Now().Add(30 * time.Second)}
	began := time.Now()
	err := e.Do(ctx, buildPlan(0, "check_rogue ok", "check_rogue sleep"), &recorder{stopAt: -1})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want context.Canceled", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %s, want well under a second after the signal", took)
	}
	if pid := p.Pid(checks.Local); pid != 0 && unix.Kill(pid, 0) == nil {
		t.Errorf("worker %d is still there", pid)
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		in   string
		want process.ProcStat
		bad  bool
	}{
		"plain":   {in: "12 (sh) S 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 1 1", want: process.ProcStat{State: "S", Session: 12, Start: 777}},
		"hostile": {in: "12 (a) R 9 (b)\n) D 1 5 6 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 778 1 1", want: process.ProcStat{State: "D", Session: 6, Start: 778}},
		"short":   {in: "12 (sh) S 1", bad: true},
		"garbage": {in: "\x00\xff", bad: true},
		"words":   {in: "12 (sh) S 1 12 x 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 1 1", bad: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := process.ParseStat([]byte(tc.in))
			if (err != nil) != tc.bad {
				t.Fatalf("err = %v", err)
			}
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// A check knows its deadline, in the step and in the run.
func TestChecksKnowTheirDeadline(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lane               string
		limit, run, at, to time.Duration
	}{
		{"check_rogue", 20 * time.Second, time.Minute, 15 * time.Second, 20 * time.Second},
		{"check_rogue", 20 * time.Second, 10 * time.Second, 5 * time.Second, 10 * time.Second},
		{"check_rogue_nvml", 50 * time.Second, 30 * time.Second, 15 * time.Second, 25 * time.Second},
		{"check_rogue", 20 * time.Second, 0, 15 * time.Second, 20 * time.Second},
	} {
		p := newTestPool(t, "")
		plan := buildPlan(c.run, c.lane+" deadline")
		plan.Steps[0].Timeout = c.limit
		e, rec := &Engine{Pool: p, Timeout: func() time.Duration { return c.run }}, &recorder{stopAt: -1}
		if c.run > 0 {
			e.Deadline = time.Now().Add(c.run)
		}
		if err := e.Do(t.Context(), plan, rec); err != nil {
			t.Fatal(err)
		}
		if len(rec.results[0].Findings) != 1 {
			t.Fatalf("%+v", rec.results[0])
		}
		left, err := time.ParseDuration(rec.results[0].Findings[0].Message)
		if err != nil || left < c.at || left > c.to {
			t.Errorf("%+v: %v left, %v", c, left, err)
		}
	}
}

func TestChecksKnowTheJob(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, "")
	job := &checks.Job{ID: "7", UID: 5001, User: "alice", Node: "gpu01", Ended: true, End: true, Grace: time.Second, GPUs: []checks.JobGPU{{Minor: 3, PCI: "0000:13:00.0"}}}
	p.SetVars(wire.Vars{Job: job})
	rec := &recorder{stopAt: -1}
	if err := (&Engine{Pool: p}).Do(t.Context(), buildPlan(0, "check_rogue job"), rec); err != nil {
		t.Fatal(err)
	}
	if got, want := rec.results[0].Findings[0].Message, fmt.Sprintf("%+v", *job); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
