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

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
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

type simulatedRun struct{ ended chan struct{} }

func (r simulatedRun) Ended() <-chan struct{} { return r.ended }
func (simulatedRun) Status() int              { return 1 }
func (simulatedRun) Kill()                    {}

func (s *simulated) check(kinds []monitor.Kind) (child, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs[monitor.Join(kinds)]++
	r := simulatedRun{make(chan struct{})}
	run.Go(func() {
		time.Sleep(20 * time.Second) // until it has found that the driver hangs
		close(r.ended)
	})
	return r, nil
}

func (s *simulated) store(ledger []byte) error {
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
