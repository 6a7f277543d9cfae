package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// outcome is what a rank of a ring returns.
type outcome struct {
	rates Rates
	err   error
}

// hooks are what a test does with the ranks of a ring; nil is nothing.
type hooks struct {
	edit   func(*RingTest) // changes the test of a rank
	joined func(*Ring)     // when a rank has its connections
	ended  func(rank int)
}

// runRanks runs all ranks of a ring.
func runRanks(ctx context.Context, t *testing.T, local Local, n int, test RingTest, on hooks) []outcome {
	t.Helper()
	listeners := make([]*Listener, n)
	for i := range listeners {
		listeners[i] = listen(t, local, testKey)
		test.Addresses = append(test.Addresses, listeners[i].Address())
	}
	outcomes := make([]outcome, n)
	var all sync.WaitGroup
	for i, l := range listeners {
		own := test
		own.Rank, own.Addresses = i, slices.Clone(test.Addresses)
		if on.edit != nil {
			on.edit(&own)
		}
		all.Go(func() {
			if on.ended != nil {
				defer on.ended(i)
			}
			r, err := JoinRing(ctx, local, l, testKey, own)
			if r != nil {
				t.Cleanup(r.Close) // not before all have ended
			}
			if err != nil {
				outcomes[i].err = err
				return
			}
			if on.joined != nil {
				on.joined(r)
			}
			outcomes[i].rates, outcomes[i].err = r.Run(ctx)
		})
	}
	all.Wait()
	return outcomes
}

// All ranks have the sum of all at the end, whatever the sizes are.
func TestRing(t *testing.T) {
	t.Parallel()
	for _, local := range locals(t) {
		for _, tt := range []struct {
			ranks, flows int
			bytes        int64
		}{{2, 1, 1 << 20}, {8, 1, 1 << 20}, {8, 3, 1<<20 + 52}, {5, 2, 12}, {3, 1, 4}} {
			t.Run(fmt.Sprint(local.Address, tt), func(t *testing.T) {
				t.Parallel()
				var mu sync.Mutex
				var rings []*Ring
				test := RingTest{Bytes: tt.bytes, Flows: tt.flows, Repeats: 2}
				for rank, o := range runRanks(within60(t), t, local, tt.ranks, test, hooks{joined: func(r *Ring) {
					mu.Lock()
					defer mu.Unlock()
					rings = append(rings, r)
				}}) {
					want := 0
					if rank == 0 {
						want = test.Repeats
					}
					if o.err != nil || len(o.rates.Values) != want || len(o.rates.Windows) != want {
						t.Fatalf("rank %d: %+v", rank, o)
					}
				}
				for _, r := range rings {
					checkSums(t, r, test.Repeats)
				}
			})
		}
	}
}

// checkSums adds the data of all ranks one by one. Ranks other than 0 have filled their data for the
// next round already.
func checkSums(t *testing.T, r *Ring, rounds int) {
	t.Helper()
	words := 0
	for _, f := range r.flows {
		for i := 0; i < len(f.data); i += 4 {
			at, sum := f.first+i/4, float32(0)
			if r.Rank == 0 {
				for rank := range r.Addresses {
					sum += float32(share(rank) + word(at, rounds-1))
				}
			} else {
				sum = float32(share(r.Rank) + word(at, rounds))
			}
			if got := get(f.data[i:]); got != sum {
				t.Fatalf("rank %d: word %d is %v, want %v", r.Rank, at, got, sum)
			}
			words++
		}
	}
	if want := int(r.Bytes / 4); words != want {
		t.Errorf("rank %d: %d words, want %d", r.Rank, words, want)
	}
}

// proxy forwards to an address. change gets the data behind the key and its position.
func proxy(t *testing.T, address string, change func(at int, data []byte)) string {
	t.Helper()
	return probetest.Serve(t, func(in net.Conn) {
		out, err := net.Dial("tcp", address)
		if err != nil {
			_ = in.Close()
			return
		}
		go func() {
			_, _ = io.Copy(in, out)
			_ = in.Close()
		}()
		defer out.Close()
		buf := make([]byte, 32<<10)
		for at := -len(Key{}) - 4; ; {
			n, err := in.Read(buf)
			if start := max(0, -at); start < n {
				change(at+start, buf[start:n])
			}
			at += n
			if _, failed := out.Write(buf[:n]); err != nil || failed != nil {
				return
			}
		}
	})
}

// Of one wrong word only the rank that receives it reports, in both halves of the all-reduce.
func TestRingFindsWrongData(t *testing.T) {
	t.Parallel()
	const ranks, bytes = 8, 1 << 16
	for _, at := range []int{1 + 2, 1 + bytes/ranks*6 + 400, 1 + bytes/ranks*9 + 402} { // behind the token
		for _, victim := range []int{0, 3, 7} {
			outcomes := runRanks(within60(t), t, four, ranks, RingTest{Bytes: bytes, Flows: 1, Repeats: 3}, hooks{edit: func(r *RingTest) {
				if (r.Rank+1)%ranks == victim {
					r.Addresses[victim] = proxy(t, r.Addresses[victim], func(from int, data []byte) {
						if at >= from && at < from+len(data) {
							data[at-from] ^= 0x40
						}
					})
				}
			}})
			for rank, o := range outcomes {
				wrong := new(WrongError)
				if errors.As(o.err, &wrong) != (rank == victim) || rank != victim && o.err != nil {
					t.Errorf("rank %d, %d is wrong: %v", rank, victim, o.err)
				}
				if rank == victim && (wrong.Rank != victim || wrong.From != (victim+ranks-1)%ranks || wrong.Words != 1 || wrong.Want == wrong.Got) {
					t.Errorf("%+v", wrong)
				}
			}
		}
	}
}

// When a rank dies its two neighbours name it, and no one else is accused.
func TestRingNamesTheDead(t *testing.T) {
	t.Parallel()
	const ranks, dead = 8, 3
	ctx, cancel := context.WithCancel(within60(t))
	defer cancel()
	neighbours := int64(2)
	outcomes := runRanks(ctx, t, four, ranks, RingTest{Bytes: 1 << 16, Flows: 2, Repeats: 1, Time: time.Hour}, hooks{
		joined: func(r *Ring) {
			if r.Rank == dead {
				time.AfterFunc(short, r.Close)
			}
		},
		ended: func(rank int) {
			if rank != dead && atomic.AddInt64(&neighbours, -1) == 0 {
				cancel() // the others wait for them
			}
		},
	})
	named := 0
	for rank, o := range outcomes {
		broken := new(RingError)
		if !errors.As(o.err, &broken) {
			t.Errorf("rank %d: %v", rank, o.err)
			continue
		}
		switch {
		case rank == dead:
		case broken.Peer == dead && reset(o.err):
			named++
		case broken.Peer != -1 || !errors.Is(o.err, context.Canceled):
			t.Errorf("rank %d accuses %d: %v", rank, broken.Peer, o.err)
		}
	}
	if named != 2 {
		t.Errorf("%d ranks name the dead one: %v", named, outcomes)
	}
}

// A rank that does not reach the next one accuses that one, and is not accused by those that have
// joined.
func TestRingWithABrokenPath(t *testing.T) {
	t.Parallel()
	const ranks, cut = 4, 1
	ctx, cancel := context.WithCancel(within60(t))
	defer cancel()
	closed := probetest.ClosedPort(t)
	outcomes := runRanks(ctx, t, four, ranks, RingTest{Bytes: 1 << 16, Flows: 2, Repeats: 1}, hooks{
		edit: func(r *RingTest) {
			if r.Rank == cut {
				r.Addresses[cut+1] = closed
			}
		},
		ended: func(rank int) {
			if rank == cut {
				time.AfterFunc(short, cancel) // the others wait
			}
		},
	})
	for rank, o := range outcomes {
		want := -1
		if rank == cut {
			want = cut + 1
		}
		if broken := new(RingError); !errors.As(o.err, &broken) || broken.Peer != want {
			t.Errorf("rank %d accuses %d: %v", rank, broken.Peer, o.err)
		}
	}
}

// A rank that never comes is not confused with the others, which wait.
func TestJoinRingFails(t *testing.T) {
	t.Parallel()
	l := listen(t, four, testKey)
	test := RingTest{Addresses: []string{l.Address(), probetest.ClosedPort(t)}, Bytes: 1000, Flows: 1, Repeats: 1}
	_, err := JoinRing(within60(t), four, l, testKey, test)
	broken := new(RingError)
	if !errors.As(err, &broken) || broken.Peer != 1 {
		t.Error(err)
	}
	// A silent rank is named by one that hears from its other neighbour, and by no other.
	test.Addresses[1] = probetest.Serve(t, func(net.Conn) {})
	_, err = JoinRing(soon(t), four, l, testKey, test)
	wantError(t, err, ErrSilent)
	if !errors.As(err, &broken) || broken.Peer != -1 {
		t.Error(err)
	}
	conn, _, err := Connect(within60(t), four, l.Address(), testKey, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = JoinRing(soon(t), four, l, testKey, test)
	wantError(t, err, ErrSilent)
	if !errors.As(err, &broken) || broken.Peer != 1 {
		t.Error(err)
	}
	for _, wrong := range []RingTest{
		{},
		{Addresses: make([]string, 1), Bytes: 4, Flows: 1, Repeats: 1},
		{Addresses: make([]string, 2), Rank: 2, Bytes: 4, Flows: 1, Repeats: 1},
		{Addresses: make([]string, 2), Rank: -1, Bytes: 4, Flows: 1, Repeats: 1},
		{Addresses: make([]string, 2), Bytes: 1 << 40, Flows: 1, Repeats: 1},
		{Addresses: make([]string, 2), Bytes: 4, Flows: 1 << 20, Repeats: 1},
	} {
		if _, err := JoinRing(within60(t), four, l, testKey, wrong); err == nil {
			t.Errorf("%+v has joined", wrong)
		}
	}
}
