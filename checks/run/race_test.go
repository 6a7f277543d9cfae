package run

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// A context that ends while the last answer is passed on must not end the wait of the next request.
func TestLateCancel(t *testing.T) {
	p := newTestPool(t, "")
	limit := func(*wire.Request) time.Duration { return 10 * time.Second }
	for i := range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		p.Do(ctx, checks.Local, []*wire.Request{{Op: wire.OpFind, Line: "a"}}, limit, func(*wire.Request, Outcome) { cancel() })
		if o := p.Call(t.Context(), checks.Local, &wire.Request{Op: wire.OpFind, Line: "b"}, 10*time.Second); o.Failure() != nil {
			t.Fatalf("request %d after a cancelled one: %v", i, o.Failure())
		}
	}
}

// Concurrent requests for one lane wait for each other: none gets the answer of another, or counts
// as hung because its own went to another.
func TestLaneShared(t *testing.T) {
	p := newTestPool(t, "")
	limit := func(*wire.Request) time.Duration { return 10 * time.Second }
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				reqs := []*wire.Request{{Op: wire.OpFind, Line: "a"}, {Op: wire.OpFind, Line: "b"}, {Op: wire.OpFind, Line: "c"}}
				p.Do(t.Context(), checks.Local, reqs, limit, func(r *wire.Request, o Outcome) {
					if resp, err := o.Answer(); err != nil || resp.ID != r.ID {
						t.Errorf("request %s: %v", r.Line, err)
					}
				})
			}
		})
	}
	all.Wait()
}

// Lanes that hang at the same time write to the same ledger.
func TestLedgerConcurrent(t *testing.T) {
	t.Parallel()
	self, err := process.ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dir := stateDirOf(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			p := newTestPool(t, dir)
			p.ledger.add(wire.StuckProcess{PID: os.Getpid(), Start: self.Start, Lane: checks.Local, Step: fmt.Sprint(i)})
			p.keepLedger()
			for _, w := range p.Warnings() {
				t.Error(w)
			}
		})
	}
	all.Wait()
	if n := len(newTestPool(t, dir).Ledger().StuckProcesses()); n != 8 {
		t.Errorf("%d stuck processes, want 8", n)
	}
}
