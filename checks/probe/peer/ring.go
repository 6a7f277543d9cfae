package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// RingTest is a ring all-reduce of float32 sums: each rank sends to the next one. All ranks have the
// same, except for Rank.
type RingTest struct {
	Rank      int
	Addresses []string      // of the Listeners, by rank
	Bytes     int64         // of the data on each rank
	Flows     int           // rings at once, each with a part of the data
	Repeats   int           // each gives a value
	Time      time.Duration // of each repeat: all-reduces follow until then; 0: one
}

// The sums are whole numbers that float32 holds exactly for that many ranks.
const maxRanks = 1 << 24 / (maxWord + 8)

// maxRingBytes bounds the memory of a rank.
const maxRingBytes = 1 << 30

func (t *RingTest) valid() error {
	n := len(t.Addresses)
	switch {
	case n < 2 || n > maxRanks || t.Rank < 0 || t.Rank >= n:
		return fmt.Errorf("rank %d of a ring of %d: want 2 to %d ranks", t.Rank, n, maxRanks)
	case t.Bytes < 4 || t.Bytes > maxRingBytes:
		return fmt.Errorf("ring of %d bytes: want 4 to %d", t.Bytes, maxRingBytes)
	case t.Flows < 1 || t.Flows > 64 || t.Repeats < 1 || t.Repeats > 1000:
		return fmt.Errorf("ring of %d flows, %d times: want 1 to 64, 1 to 1000", t.Flows, t.Repeats)
	}
	return nil
}

// WrongError is data that a rank has received from the one before it, and that is not what that one
// should have sent. The rank corrects it, so that no other rank reports it again.
type WrongError struct {
	Rank      int // that received it
	From      int
	Word      int // of the data, the first one
	Want, Got float32
	Words     int64 // how many are wrong
}

func (e *WrongError) Error() string {
	return fmt.Sprintf("rank %d received wrong data from rank %d: %d words, word %d is %v, want %v", e.Rank, e.From, e.Words, e.Word, e.Got, e.Want)
}

// RingError is a connection of a ring that failed. Other ranks fail later, since they wait for this
// one.
type RingError struct {
	Peer     int // the rank at its other end, which is gone or does not answer; -1 is unknown
	Received int // parts of the data that had come from the rank before this one
	Err      error
}

func (e *RingError) Error() string {
	return fmt.Sprintf("ring: %v, after %d parts", e.Err, e.Received)
}

func (e *RingError) Unwrap() error { return e.Err }

// Ring has the connections of a rank. They stay open until Close: the other ranks would take their
// end for that of this node.
type Ring struct {
	RingTest
	next, prev []net.Conn // by flow
	flows      []*flow
	received   atomic.Int64

	mu    sync.Mutex
	wrong *WrongError // guarded by mu
}

// JoinRing connects to the next rank, and waits for the one before this. The Listener is this
// rank's. If it fails after some connections were made, it returns the Ring with them, to close.
func JoinRing(ctx context.Context, local Local, l *Listener, key Key, t RingTest) (*Ring, error) {
	if err := t.valid(); err != nil {
		return nil, err
	}
	r := &Ring{RingTest: t, next: make([]net.Conn, t.Flows), prev: make([]net.Conn, t.Flows)}
	n := len(t.Addresses)
	next := (t.Rank + 1) % n
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var both sync.WaitGroup
	errs := make([]error, 2)
	var heard atomic.Bool // from the rank before this one
	attempt := func(i int, do func() error) {
		both.Go(func() {
			if errs[i] = do(); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	// The connections outlive this call, so they are not bound to its context.
	attempt(0, func() error {
		for i := range r.next {
			conn, _, err := Connect(ctx, local, t.Addresses[next], key, uint32(i))
			if err != nil {
				broken := &RingError{Peer: next, Err: err}
				if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, ErrStranger) && !heard.Load() {
					broken.Peer = -1 // none of its neighbours is reached, so it may be this rank
				}
				return broken
			}
			r.next[i] = loose(conn)
		}
		return nil
	})
	attempt(1, func() error {
		for range r.prev {
			conn, i, err := l.Accept(ctx)
			if err != nil {
				return &RingError{Peer: -1, Err: err}
			}
			heard.Store(true)
			if int64(i) >= int64(t.Flows) || r.prev[i] != nil {
				_ = conn.Close()
				return &RingError{Peer: -1, Err: ErrStranger}
			}
			r.prev[i] = loose(conn)
		}
		return nil
	})
	both.Wait()
	if err := first(ctx, errs); err != nil {
		return r, err
	}
	for i := range t.Flows {
		words := t.Bytes / 4
		from, to := words*int64(i)/int64(t.Flows), words*int64(i+1)/int64(t.Flows)
		r.flows = append(r.flows, &flow{ring: r, next: r.next[i], prev: r.prev[i], first: int(from), data: make([]byte, 4*(to-from))})
	}
	return r, nil
}

// loose returns a connection that no longer ends with a context.
func loose(conn net.Conn) net.Conn {
	if b, ok := conn.(*bounded); ok {
		b.cut()
		conn = b.Conn
	}
	_ = conn.SetDeadline(time.Time{})
	return conn
}

// Close closes the connections.
func (r *Ring) Close() {
	for _, c := range append(r.next, r.prev...) {
		if c != nil {
			_ = c.Close()
		}
	}
}

// Tokens of rank 0, which go round before each all-reduce.
const (
	tokenEnd = iota
	tokenReduce
)

// Run carries the test out and verifies every word that arrives. Only rank 0 measures, since all
// others have begun when its token has come round: the data that a node sends, in Gb/s. Wrong data
// does not end the test; Run returns it at the end, as a [*WrongError].
func (r *Ring) Run(ctx context.Context) (Rates, error) {
	r.deadline(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, r.interrupt)
	defer stop()
	unwatch := r.watch(ctx, cancel)
	var rates Rates
	var err error
	if r.Rank == 0 {
		rates, err = r.lead(ctx, cancel)
	} else {
		err = r.follow(ctx, cancel)
	}
	unwatch()
	if err != nil {
		if gone := new(RingError); errors.Is(err, context.Canceled) && errors.As(context.Cause(ctx), &gone) {
			err = gone
		}
		return rates, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wrong != nil {
		return rates, r.wrong
	}
	return rates, nil
}

// watch ends the test when the next rank ends its connections. That rank sends nothing, and this one
// may have nothing to send: it would wait, as all others do, and name no one.
func (r *Ring) watch(ctx context.Context, cancel context.CancelCauseFunc) (unwatch func()) {
	var all sync.WaitGroup
	for _, c := range r.next {
		all.Go(func() {
			_, err := c.Read(make([]byte, 1))
			if err = r.failed(ctx, "connection to", r.after(1), err); reset(err) {
				cancel(err)
			}
		})
	}
	return func() {
		for _, c := range r.next {
			_ = c.SetReadDeadline(past)
		}
		all.Wait()
	}
}

func (r *Ring) interrupt() {
	for _, c := range append(append([]net.Conn(nil), r.next...), r.prev...) {
		_ = c.SetDeadline(past)
	}
}

func (r *Ring) deadline(ctx context.Context) {
	for _, c := range append(append([]net.Conn(nil), r.next...), r.prev...) {
		_ = c.SetDeadline(earlier(ctx, time.Time{}))
	}
	if ctx.Err() != nil {
		r.interrupt()
	}
}

// lead runs the test as rank 0.
func (r *Ring) lead(ctx context.Context, cancel context.CancelCauseFunc) (rates Rates, err error) {
	sent := 2 * int64(len(r.Addresses)-1) * r.Bytes / int64(len(r.Addresses)) // by each rank
	round := 0
	for range r.Repeats {
		var took time.Duration
		var bytes int64
		for end := time.Now().Add(r.Time); bytes == 0 || time.Now().Before(end); round++ {
			r.fill(round)
			if err := r.pass(ctx, tokenReduce); err != nil {
				return rates, err
			}
			began := time.Now()
			if err := r.reduce(ctx, round, cancel); err != nil {
				return rates, err
			}
			d := time.Since(began)
			took += d
			bytes += max(sent, 1)
			rates.Windows = append(rates.Windows, gigabits(sent, d))
		}
		rates.Values = append(rates.Values, gigabits(bytes, took))
	}
	return rates, r.pass(ctx, tokenEnd)
}

// pass sends a token round the ring.
func (r *Ring) pass(ctx context.Context, token byte) error {
	if err := r.give(ctx, token); err != nil {
		return err
	}
	_, err := r.take(ctx)
	return err
}

// follow runs the test as another rank.
func (r *Ring) follow(ctx context.Context, cancel context.CancelCauseFunc) error {
	for round := 0; ; round++ {
		r.fill(round)
		token, err := r.take(ctx)
		if err != nil {
			return err
		}
		if err := r.give(ctx, token); err != nil || token == tokenEnd {
			return err
		}
		if err := r.reduce(ctx, round, cancel); err != nil {
			return err
		}
	}
}

func (r *Ring) give(ctx context.Context, token byte) error {
	_, err := r.next[0].Write([]byte{token})
	return r.failed(ctx, "send to", r.after(1), err)
}

func (r *Ring) take(ctx context.Context) (byte, error) {
	var token [1]byte
	_, err := io.ReadFull(r.prev[0], token[:])
	return token[0], r.failed(ctx, "receive from", r.after(-1), err)
}

// after returns the rank that many places further in the ring.
func (r *Ring) after(places int) int {
	n := len(r.Addresses)
	return ((r.Rank+places)%n + n) % n
}

// failed returns the error of a connection to a rank. One that only waits in vain accuses no one:
// the other rank may wait itself. The context is the one whose end interrupts the connections: it
// has ended before they are, a context made from it may not have.
func (r *Ring) failed(ctx context.Context, what string, rank int, err error) error {
	if err == nil {
		return nil
	}
	err = failed(ctx, fmt.Sprintf("%s rank %d", what, rank), err)
	if !reset(err) {
		rank = -1
	}
	return &RingError{Peer: rank, Received: int(r.received.Load()), Err: err}
}

// reduce makes one all-reduce, in all flows at once. The first that fails cancels the context.
func (r *Ring) reduce(ctx context.Context, round int, cancel context.CancelCauseFunc) error {
	var all sync.WaitGroup
	errs := make([]error, len(r.flows))
	for i, f := range r.flows {
		all.Go(func() {
			if errs[i] = f.reduce(ctx, round, cancel); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	all.Wait()
	return first(ctx, errs)
}

func (r *Ring) fill(round int) {
	for _, f := range r.flows {
		for i := 0; i < len(f.data); i += 4 {
			put(f.data[i:], float32(share(r.Rank)+word(f.first+i/4, round)))
		}
	}
}

// addWrong records wrong data.
func (r *Ring) addWrong(word int, want, got float32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wrong == nil {
		r.wrong = &WrongError{Rank: r.Rank, From: r.after(-1), Word: word, Want: want, Got: got}
	}
	r.wrong.Words++
}

// The data of rank r at a position is share(r) + word(position). So the sum of any ranks is known,
// and a rank can verify each part when it arrives.

const maxWord = 255

func word(at, round int) int {
	return int(uint32(at+round*7919)*2654435761>>24) & maxWord // multiplicative hashing, Knuth 6.4
}

func share(rank int) int { return rank%8 + 1 }

// shares returns the sum of the shares of count ranks, from one rank on around the ring of n.
func shares(from, count, n int) int {
	sum := 0
	for i := range count {
		sum += share((from + i) % n)
	}
	return sum
}

func put(b []byte, v float32) { binary.LittleEndian.PutUint32(b, math.Float32bits(v)) }

func get(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }

// flow is one of the rings at once. Its data is a part of the rank's.
type flow struct {
	ring       *Ring
	next, prev net.Conn
	first      int // position of its first word in the data
	data       []byte
	block      [64 << 10]byte
}

// part returns where a rank's part of the data begins and ends, in bytes of f.data.
func (f *flow) part(rank int) (from, to int) {
	n := len(f.ring.Addresses)
	rank = (rank%n + n) % n
	words := len(f.data) / 4
	return 4 * (words * rank / n), 4 * (words * (rank + 1) / n)
}

// reduce makes a reduce-scatter, after which each rank has the sum of one part, and an all-gather.
func (f *flow) reduce(ctx context.Context, round int, cancel context.CancelCauseFunc) error {
	r := f.ring
	n := len(r.Addresses)
	all := shares(0, n, n)
	sum := 0
	for step := range n - 1 {
		sum += share(r.after(-1 - step))
		if err := f.step(ctx, cancel, r.Rank-step, r.Rank-step-1, round, sum, step+1, true); err != nil {
			return err
		}
	}
	for step := range n - 1 {
		if err := f.step(ctx, cancel, r.Rank+1-step, r.Rank-step, round, all, n, false); err != nil {
			return err
		}
	}
	return nil
}

// step sends one part while another arrives, which is the sum of count ranks with these shares.
func (f *flow) step(ctx context.Context, cancel context.CancelCauseFunc, send, receive, round, shares, count int, add bool) error {
	r := f.ring
	sent := make(chan error, 1)
	go func() {
		from, to := f.part(send)
		_, err := f.next.Write(f.data[from:to])
		if err = r.failed(ctx, "send to", r.after(1), err); err != nil {
			cancel(err) // and ends the reading
		}
		sent <- err
	}()
	err := f.receive(ctx, receive, round, shares, count, add)
	if err != nil {
		cancel(err)
	}
	if failed := <-sent; err == nil || errors.Is(err, context.Canceled) && failed != nil {
		err = failed
	}
	if err == nil {
		r.received.Add(1)
	}
	return err
}

// receive reads a part, verifies it, corrects wrong words, and adds it to this rank's data or
// replaces that.
func (f *flow) receive(ctx context.Context, part, round, shares, count int, add bool) error {
	r := f.ring
	from, to := f.part(part)
	for at := from; at < to; {
		block := f.block[:min(len(f.block), to-at)]
		if _, err := io.ReadFull(f.prev, block); err != nil {
			return r.failed(ctx, "receive from", r.after(-1), err)
		}
		for i := 0; i < len(block); i += 4 {
			position := f.first + (at+i)/4
			want, got := float32(shares+count*word(position, round)), get(block[i:])
			if got != want {
				r.addWrong(position, want, got)
			}
			if add {
				want += get(f.data[at+i:])
			}
			put(f.data[at+i:], want)
		}
		at += len(block)
	}
	return nil
}
