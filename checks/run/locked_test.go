package run

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// A worker that cannot be killed only because a thread waits for the memory of a user's process hangs in no
// step: later runs execute the line, and the lane.
func TestAbandonedWithLockedThread(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		check, file string
		moved       bool
		doing       string
		want        checks.Lane // of the entry, "" for none
	}{
		"locked":            {"check_rogue", "cmdline", false, "", lockedLane},
		"locked in NVML":    {"check_rogue_nvml", "environ", false, "", lockedLane},
		"another read":      {"check_rogue", "status", false, "", checks.Local},
		"another in NVML":   {"check_rogue_nvml", "status", false, "", checks.NVML},
		"a slow scan":       {"check_rogue", "status", true, probe.ScanCall, ""},
		"slow calls (NVML)": {"check_rogue_nvml", "status", true, "nvmlInit", checks.NVML},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fifo := filepath.Join(t.TempDir(), fmt.Sprintf("proc/%d/%s", os.Getpid(), c.file))
			if err := os.MkdirAll(filepath.Dir(fifo), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			p, rec, line := newTestPool(t, ""), &recorder{stopAt: -1}, c.check+" locked "+fifo
			e := &Engine{Pool: p, Deadline: time.Now().Add(30 * time.Second)}
			if err := e.Do(t.Context(), buildPlan(0, line), rec); err != nil {
				t.Fatal(err)
			}
			if f := rec.results[0].Findings; len(f) != 0 {
				t.Fatal(f)
			}
			lane := checks.Lane("local")
			if c.check == "check_rogue_nvml" {
				lane = checks.NVML
			}
			w := p.workers[lane]
			hung := &checks.Hung{PID: w.pid, Moved: c.moved, Doing: c.doing}
			p.addLeft(w, []int{w.pid}, line, hung)
			p.addLeft(w, []int{w.pid}, line, hung) // as if its thread had been announced before
			got := p.ledger.StuckProcesses()
			if c.want == "" && len(got) == 0 {
				return
			}
			if len(got) == 0 || got[0].Lane != c.want || hung.Stuck != (c.want != lockedLane) {
				t.Fatalf("%+v, %+v, want lane %q", got, hung, c.want)
			}
			call := probe.LockedCall(os.Getpid())
			if c.want == lockedLane && (len(got) != 1 || got[0].Doing != call || !slices.Contains(p.stuck, call)) {
				t.Errorf("%+v, want %q once", got, call)
			}
			if _, found := p.ledger.Find(lane, line); found != (c.want != lockedLane) {
				t.Errorf("the line is found: %v", found)
			}
		})
	}
}

// A request can leave a locked process and a command that cannot be killed: the line is then that of the
// command.
func TestLockedAndSpent(t *testing.T) {
	t.Parallel()
	group := cgroup(t, "freezer")
	p, line := newTestPool(t, ""), "check_rogue spent "+group
	rec := &recorder{stopAt: -1}
	e := &Engine{Pool: p, Deadline: time.Now().Add(30 * time.Second)}
	if err := e.Do(t.Context(), buildPlan(0, line), rec); err != nil {
		t.Fatal(err)
	}
	if _, found := p.ledger.Find(checks.Local, line); !found {
		t.Errorf("%+v, want the line", p.ledger.StuckProcesses())
	}
	if !slices.ContainsFunc(p.ledger.StuckProcesses(), func(s wire.StuckProcess) bool { return s.Lane == lockedLane }) {
		t.Errorf("%+v, want the locked process", p.ledger.StuckProcesses())
	}
}

// A directory that does not answer, in the background of a check, ends no lane of a library and belongs to no step.
// Later workers and runs know it.
func TestSilentInLibraryLane(t *testing.T) {
	t.Parallel()
	p, rec := newTestPool(t, ""), &recorder{stopAt: -1}
	e := &Engine{Pool: p, Deadline: time.Now().Add(30 * time.Second)}
	if err := e.Do(t.Context(), buildPlan(0, "check_rogue_nvml silent /memory/node", "check_rogue_nvml warn"), rec); err != nil {
		t.Fatal(err)
	}
	if got := worst(rec, 2); !slices.Equal(got, []checks.Severity{checks.OK, checks.Warn}) {
		t.Fatalf("%v: %+v, want both results", got, rec.results)
	}
	if !p.Silent("/memory") || p.Silent("/memory/node/x") || p.Silent("/mem") {
		t.Errorf("silent: %q", p.stuck)
	}
	w, call := p.workers[checks.NVML], "read /memory/node"
	w.worn = true // as if this one waited, and survived
	p.addLeft(w, []int{w.pid}, call, &checks.Hung{PID: w.pid, Doing: call})
	p.stuck = nil // a later run has only the ledger
	if _, found := p.ledger.Find(checks.NVML, "check_rogue_nvml warn"); found || !p.Silent("/memory") {
		t.Errorf("it blocks a step: %v; %+v", found, p.ledger.StuckProcesses())
	}
}

// A memory directory that gives errors, and for which no thread waits, ends no worker. The run reports it once.
func TestUnusedMemory(t *testing.T) {
	t.Parallel()
	p, rec := newTestPool(t, ""), &recorder{stopAt: -1}
	e := &Engine{Pool: p, Deadline: time.Now().Add(30 * time.Second)}
	if err := e.Do(t.Context(), buildPlan(0, "check_rogue_nvml warn", "check_rogue unused /memory"), rec); err != nil {
		t.Fatal(err)
	}
	local, library := p.Pid(checks.Local), p.Pid(checks.NVML)
	if err := e.Do(t.Context(), buildPlan(0, "check_rogue_nvml unused /memory", "check_rogue warn", "check_rogue_nvml warn"), rec); err != nil {
		t.Fatal(err)
	}
	if local == 0 || local != p.Pid(checks.Local) || library == 0 || library != p.Pid(checks.NVML) {
		t.Errorf("workers %d and %d, then %d and %d", local, library, p.Pid(checks.Local), p.Pid(checks.NVML))
	}
	if !p.Silent("/memory") || len(p.stuck) != 1 || len(p.ledger.StuckProcesses()) > 0 {
		t.Errorf("stuck %q, %+v", p.stuck, p.ledger.StuckProcesses())
	}
	const want = "[read /memory: too many open files; this run does not use the data of earlier runs]"
	if got := fmt.Sprint(p.Warnings()); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A worker learns how long the supervisor waits for a record.
func TestTimeOfRecord(t *testing.T) {
	t.Parallel()
	p, q := newTestPool(t, ""), &wire.Request{Op: wire.OpRecall, Name: "x", Line: "read a record"}
	p.Call(t.Context(), checks.Local, q, time.Hour)
	if q.Timeout != time.Hour {
		t.Errorf("%s, want 1 h", q.Timeout)
	}
	q = &wire.Request{Op: wire.OpFix, Name: "x", Data: []byte("1"), Line: "write a record"} // to no spare directory
	p.Call(t.Context(), checks.Local, q, time.Hour)
	if q.Timeout != 0 {
		t.Errorf("on the disk: %s, want none", q.Timeout)
	}
}
