package ask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
)

// simulated is a node whose time is simulated: a job runs on it, and its driver hangs from a time on.
type simulated struct {
	hangs time.Time

	mu     sync.Mutex
	next   uint64 // record of the kernel's log
	left   int    // workers that were left behind
	asked  map[string]int
	lines  []string
	runs   map[string]int
	ledger monitor.Ledger
	jobs   bool // the jobs have been reported
}

func (s *simulated) ask(source string, q *wire.Request, limit time.Duration) (*wire.Response, error) {
	s.mu.Lock()
	s.asked[source]++
	resp := &wire.Response{Heard: &wire.Heard{}}
	wait := q.Timeout
	switch source {
	case monitor.GPUs:
		if time.Now().After(s.hangs) {
			if s.left++; s.left > 1 { // the ledger of stuck processes knows it
				s.left, wait = 1, 0
			} else {
				wait = limit
			}
			s.mu.Unlock()
			time.Sleep(wait)
			return nil, errors.New("watch gpus: hung in nvmlDeviceGetFieldValues")
		}
	case monitor.Kernel: // the kernel repeats a line about the driver
		wait = min(wait, 7*time.Second)
		s.next += 10
		resp.Heard.Events = []wire.Event{{Kind: string(monitor.GPU), Text: "NVRM: Xid (PCI:0000:13:00): 119"}}
		resp.Mark = &checks.LogMark{Boot: "b", Next: s.next}
	case monitor.Jobs:
		if !s.jobs {
			wait = 0
		}
		s.jobs = true
		resp.Heard.Jobs = []string{"4711"}
	}
	s.mu.Unlock()
	time.Sleep(wait)
	return resp, nil
}

type simulatedRun struct {
	ended  chan struct{}
	status int
}

func (r simulatedRun) Ended() <-chan struct{} { return r.ended }
func (r simulatedRun) Status() int            { return r.status }
func (simulatedRun) Kill()                    {}

func (s *simulated) check(kinds []monitor.Kind) (child, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[monitor.Join(kinds)]++
	r := simulatedRun{make(chan struct{}), 1}
	run.Go(func() {
		time.Sleep(20 * time.Second) // until it has found that the driver hangs
		close(r.ended)
	})
	return r, nil
}

func (*simulated) holder() int { return 4711 }

func (s *simulated) store(ledger []byte, _ bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return json.Unmarshal(ledger, &s.ledger)
}

func (s *simulated) print(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, line)
}

// heap returns the size of the live heap, bytes.
func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// In 24 hours with a job, a storm, and a driver that hangs for good after an hour, the monitor stays up, reports the
// driver once, starts few runs, and neither goroutines nor memory grow.
func TestDayWithDeadDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &simulated{hangs: time.Now().Add(time.Hour), asked: map[string]int{}, runs: map[string]int{}}
		w := newWatch(ctx, s, nil)
		end := make(chan error)
		go func() { end <- w.run() }()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		goroutines, before := runtime.NumGoroutine(), heap()
		s.mu.Lock()
		lines := len(s.lines)
		s.lines = nil
		s.mu.Unlock()
		for hour := range 22 {
			time.Sleep(time.Hour)
			synctest.Wait()
			if n := runtime.NumGoroutine(); n > goroutines+1 { // a run
				t.Errorf("hour %d: %d goroutines, want %d", hour+3, n, goroutines)
			}
		}
		after := heap()
		s.mu.Lock()
		defer s.mu.Unlock()
		if after > before+512<<10 {
			t.Errorf("the heap has grown from %d to %d bytes", before, after)
		}
		said := 0
		for _, line := range s.lines {
			if strings.Contains(line, "watch gpus") {
				said++
			}
		}
		if said != 0 || len(s.lines) > 22*15 || lines == 0 {
			t.Errorf("hours 3 to 24: %d lines, %d about the driver", len(s.lines), said)
		}
		if !slices.Equal(s.ledger.Silent, []string{monitor.GPUs}) || s.ledger.Stopped {
			t.Errorf("%+v, want silent GPUs", s.ledger)
		}
		// The retries every 5 minutes, the signs of life every 30 s.
		if n := s.asked[monitor.GPUs]; n > 720+24*12+20 {
			t.Errorf("the driver was asked %d times", n)
		}
		if n := s.runs["gpu"] + s.runs["gpu,job"]; n < 24*11 || n > 24*13+20 || s.runs["job"]+s.runs["gpu,job"] < 24*50 {
			t.Errorf("runs %v: want one each minute for the job, and for the storm one every 5 minutes", s.runs)
		}
		t.Logf("asked %v, runs %v, %d goroutines, heap %d and %d bytes, %d lines", s.asked, s.runs, goroutines, before, after, len(s.lines))
		cancel()
		s.mu.Unlock()
		if err := <-end; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // the calls of sources end
		s.mu.Lock()
		if !s.ledger.Stopped || fmt.Sprint(s.left) != "1" {
			t.Errorf("%+v, %d workers left behind", s.ledger, s.left)
		}
	})
}

// failing is a node with one event, whose runs end with given statuses; -1 is a run that does not end.
type failing struct {
	*simulated
	statuses []int
	marks    []uint64 // of the ledger when each run begins
}

func (f *failing) ask(source string, q *wire.Request, _ time.Duration) (*wire.Response, error) {
	resp := &wire.Response{Heard: &wire.Heard{}}
	f.mu.Lock()
	if source == monitor.Kernel {
		if f.next == 0 {
			f.next = 10
			resp.Heard.Events = []wire.Event{{Kind: string(monitor.GPU), Text: "NVRM: Xid (PCI:0000:13:00): 79"}}
		}
		resp.Mark = &checks.LogMark{Boot: "b", Next: f.next}
	}
	f.mu.Unlock()
	time.Sleep(max(q.Timeout, time.Second))
	return resp, nil
}

func (f *failing) check([]monitor.Kind) (child, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := simulatedRun{ended: make(chan struct{})}
	if n := len(f.marks); n < len(f.statuses) {
		r.status = f.statuses[n]
	}
	f.marks = append(f.marks, f.ledger.Mark.Next)
	if r.status >= 0 {
		close(r.ended)
	}
	return r, nil
}

// An event counts as followed only by a run that had a verdict.
func TestRunWithoutVerdict(t *testing.T) {
	for name, tt := range map[string]struct {
		statuses []int
		runs     int
	}{
		"it fails":            {[]int{1}, 1},
		"killed, crashed, ok": {[]int{137, 2, 0}, 3},
		"it hangs, then ok":   {[]int{-1, 0}, 2},
		"always killed":       {[]int{137, 137, 137, 137, 137, 137, 137}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				f := &failing{simulated: &simulated{}, statuses: tt.statuses}
				w := newWatch(ctx, f, nil)
				end := make(chan error)
				go func() { end <- w.run() }()
				time.Sleep(time.Hour)
				f.mu.Lock()
				if len(f.marks) != tt.runs || slices.Max(f.marks) != 0 || f.ledger.Mark.Next != 10 {
					t.Errorf("%d runs at the marks %v, then %d; want %d runs, and the mark moved after the last", len(f.marks), f.marks, f.ledger.Mark.Next, tt.runs)
				}
				f.mu.Unlock()
				cancel()
				if err := <-end; err != nil {
					t.Error(err)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// unwritable is a failing node whose state directory cannot be written for some signs of life.
type unwritable struct {
	*failing
	err    error
	times  int
	stored int
}

func (u *unwritable) store(ledger []byte, again bool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.times > 0 {
		if again {
			u.times--
		}
		return u.err
	}
	u.stored++
	return json.Unmarshal(ledger, &u.ledger)
}

// A monitor goes on with a full state directory, and with one that is slow once; it ends if the directory never
// answers.
func TestStateCannotBeWritten(t *testing.T) {
	for name, tt := range map[string]struct {
		err   error
		times int
		ends  bool
		lines int
	}{
		"full for a while":    {unix.ENOSPC, 20, false, 2},
		"full":                {unix.ENOSPC, 1 << 20, false, 1},
		"slow once":           {run.ErrNoState, 1, false, 2},
		"slow, then answered": {run.ErrNoState, mostMute - 1, false, 2},
		"dead":                {run.ErrNoState, 1 << 20, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				u := &unwritable{failing: &failing{simulated: &simulated{}}, err: fmt.Errorf("write: %w", tt.err), times: tt.times}
				w := newWatch(ctx, u, nil)
				end := make(chan error, 1)
				go func() { end <- w.run() }()
				time.Sleep(time.Hour)
				synctest.Wait()
				var err error
				select {
				case err = <-end:
				default:
				}
				u.mu.Lock()
				if (err != nil) != tt.ends || len(u.lines) != 1+tt.lines || // that of the event
					len(u.marks) != 1 || (u.stored > 50) != (tt.times < 100) {
					t.Errorf("ended with %v, %d runs, stored %d times: %q", err, len(u.marks), u.stored, u.lines)
				}
				u.mu.Unlock()
				cancel()
				time.Sleep(time.Minute)
			})
		})
	}
}

// A run that finds another one under way is tried again every 10 seconds at most, and the holder of the lock is named
// once.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f := &failing{simulated: &simulated{}, statuses: slices.Repeat([]int{health.Busy}, 100)}
		w := newWatch(ctx, f, nil)
		end := make(chan error, 1)
		go func() { end <- w.run() }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		f.mu.Lock()
		if n := len(f.marks); n < 60 || n > 66 {
			t.Errorf("%d runs in 10 minutes", n)
		}
		f.mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		f.mu.Lock()
		named := strings.Count(strings.Join(f.lines, "\n"), "process 4711 holds the lock")
		if len(f.marks) != 101 || f.ledger.Mark.Next != 10 || named != 1 || len(f.lines) != 2 {
			t.Errorf("%d runs, the mark %d: %q", len(f.marks), f.ledger.Mark.Next, f.lines)
		}
		f.mu.Unlock()
		cancel()
		if err := <-end; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
	})
}

// noJobs is a node on which a job runs, and whose source of jobs fails from a time on.
type noJobs struct {
	*simulated
	until time.Time
	gpus  []string // the jobs of the last question to the GPUs
}

func (n *noJobs) ask(source string, q *wire.Request, limit time.Duration) (*wire.Response, error) {
	switch {
	case source == monitor.GPUs:
		n.mu.Lock()
		n.gpus = q.Args
		n.mu.Unlock()
		fallthrough
	case source != monitor.Jobs:
		time.Sleep(max(q.Timeout, time.Second))
		return &wire.Response{Heard: &wire.Heard{}}, nil
	case time.Now().After(n.until):
		return nil, errors.New("watch jobs: input/output error")
	}
	return n.simulated.ask(source, q, limit)
}

// If the source of jobs fails again and again there are none: the GPUs are not kept open, and no run judges them.
func TestJobsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := &noJobs{&simulated{hangs: time.Now().Add(24 * time.Hour), asked: map[string]int{}, runs: map[string]int{}}, time.Now().Add(10 * time.Minute), nil}
		w := newWatch(ctx, n, nil)
		end := make(chan error, 1)
		go func() { end <- w.run() }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		n.mu.Lock()
		if len(n.gpus) != 1 || n.runs["job"] < 8 {
			t.Errorf("while it answers: jobs %v, runs %v", n.gpus, n.runs)
		}
		n.mu.Unlock()
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		n.mu.Lock()
		before := n.runs["job"]
		if len(n.gpus) != 0 {
			t.Errorf("the GPUs are watched for %v", n.gpus)
		}
		n.mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		n.mu.Lock()
		if n.runs["job"] != before {
			t.Errorf("%d further runs", n.runs["job"]-before)
		}
		n.mu.Unlock()
		cancel()
		if err := <-end; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
	})
}

// endingJob is a node whose job ends at some time.
type endingJob struct {
	*simulated
	until time.Time
}

func (n *endingJob) ask(source string, q *wire.Request, _ time.Duration) (*wire.Response, error) {
	time.Sleep(max(min(q.Timeout, 5*time.Second), time.Second))
	resp := &wire.Response{Heard: &wire.Heard{}}
	if source == monitor.Jobs && time.Now().Before(n.until) {
		resp.Heard.Jobs = []string{"4711"}
	}
	return resp, nil
}

// One more run follows the end of the last job, when its samples no longer count: its findings are over.
func TestJobEnds(t *testing.T) {
	for minutes, more := range map[time.Duration]int{10: 1, 0: 0} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			n := &endingJob{&simulated{runs: map[string]int{}}, time.Now().Add(minutes*time.Minute + 10*time.Second)}
			end := make(chan error, 1)
			go func() { end <- newWatch(ctx, n, nil).run() }()
			runs := func(after time.Duration) int {
				time.Sleep(after)
				synctest.Wait()
				n.mu.Lock()
				defer n.mu.Unlock()
				return n.runs["job"]
			}
			before := runs(minutes*time.Minute + 45*time.Second)
			if after := runs(2 * time.Minute); after != before+more || runs(time.Hour) != after {
				t.Errorf("a job of %d minutes: %d runs, %d more, want %d", minutes, before, after-before, more)
			}
			cancel()
			if err := <-end; err != nil {
				t.Error(err)
			}
			time.Sleep(time.Minute)
		})
	}
}

// noting is a node whose sources cannot write their samples until some time.
type noting struct {
	*simulated
	until time.Time
}

func (n noting) ask(source string, q *wire.Request, _ time.Duration) (*wire.Response, error) {
	time.Sleep(max(q.Timeout, time.Second))
	text := "no samples of " + source + ": no space left on device"
	if time.Since(n.until) >= 0 {
		text = "the samples of " + source + " are written again"
	}
	return &wire.Response{Heard: &wire.Heard{Notes: []string{text}}}, nil
}

// A note of a source is printed once a day, as is that of its end, and is no event.
func TestNotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := noting{&simulated{runs: map[string]int{}}, time.Now().Add(50 * time.Hour)}
		end := make(chan error)
		go func() { end <- newWatch(ctx, n, nil).run() }()
		time.Sleep(51 * time.Hour)
		cancel()
		if err := <-end; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // the calls of sources end
		const ports = "nhc-gpu: monitor: no samples of ports: no space left on device"
		count := 0
		for _, line := range n.lines {
			if line == ports {
				count++
			}
		}
		if count != 3 || len(n.lines) != 4*(len(monitor.Sources)-1) || len(n.runs) != 0 || // there is no job: GPUs are not asked
			!slices.Contains(n.lines, "nhc-gpu: monitor: the samples of ports are written again") {
			t.Errorf("%d runs, %d lines, want three and one for each source:\n%s", len(n.runs), len(n.lines), strings.Join(n.lines, "\n"))
		}
	})
}
