package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Streams is a test of TCP bandwidth. Both ends have the same.
type Streams struct {
	Flows   int           // connections at once
	Repeats int           // each uses new connections, which can take other paths
	Time    time.Duration // of each repeat
}

// Rates is its result, in Gb/s as the receiver measures it.
type Rates struct {
	Values  []float64 // of each repeat
	Windows []float64 // of each Window in them
}

// Window is the shorter time that Streams measures, for faults that come and go. The first one of a
// repeat is the start of TCP, and part of no value.
const Window = 100 * time.Millisecond

// after is how much longer the sender sends than the receiver measures.
const after = 50 * time.Millisecond

// blockSize is how much is sent and received at once, bytes.
const blockSize = 256 << 10

func (s Streams) valid() error {
	if s.Flows < 1 || s.Flows > 256 || s.Repeats < 1 || s.Repeats > 1000 || s.Time < 2*Window {
		return fmt.Errorf("stream of %d flows, %d times %v: want 1 to 256, 1 to 1000, at least %v", s.Flows, s.Repeats, s.Time, 2*Window)
	}
	return nil
}

// number names a flow of a repeat.
func (s Streams) number(repeat, flow int) uint32 { return uint32(repeat*s.Flows + flow) }

// SendStreams sends to ReceiveStreams.
func SendStreams(ctx context.Context, local Local, address string, key Key, s Streams) error {
	if err := s.valid(); err != nil {
		return err
	}
	for repeat := range s.Repeats {
		if err := s.send(ctx, local, address, key, repeat); err != nil {
			return err
		}
	}
	return nil
}

func (s Streams) send(ctx context.Context, local Local, address string, key Key, repeat int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var flows sync.WaitGroup
	errs := make([]error, s.Flows)
	for i := range s.Flows {
		flows.Go(func() {
			if errs[i] = s.sendFlow(ctx, local, address, key, s.number(repeat, i)); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	flows.Wait()
	return first(ctx, errs)
}

// sendFlow connects, waits for the receiver's word to start, and sends.
func (s Streams) sendFlow(ctx context.Context, local Local, address string, key Key, number uint32) error {
	conn, _, err := Connect(ctx, local, address, key, number)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return failed(ctx, "start of a stream to "+address, err)
	}
	block := make([]byte, blockSize)
	for i := range block { // no adapter compresses that
		block[i] = byte(rand.Uint32())
	}
	for end := time.Now().Add(s.Time + after); time.Now().Before(end); {
		if _, err := conn.Write(block); err != nil {
			return failed(ctx, "send to "+address, err)
		}
	}
	return nil
}

// ReceiveStreams receives from SendStreams, and measures.
func ReceiveStreams(ctx context.Context, l *Listener, s Streams) (Rates, error) {
	var r Rates
	if err := s.valid(); err != nil {
		return r, err
	}
	for repeat := range s.Repeats {
		if err := s.receive(ctx, l, repeat, &r); err != nil {
			return r, err
		}
	}
	return r, nil
}

// receive measures one repeat.
func (s Streams) receive(ctx context.Context, l *Listener, repeat int, r *Rates) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for len(conns) < s.Flows {
		conn, number, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		if number < s.number(repeat, 0) || number >= s.number(repeat+1, 0) {
			_ = conn.Close()
			continue
		}
		conns = append(conns, conn)
	}
	var total atomic.Int64
	began := make(chan time.Time, len(conns)) // the first byte of each flow
	var flows sync.WaitGroup
	errs := make([]error, len(conns))
	for i, conn := range conns {
		flows.Go(func() {
			if errs[i] = receiveFlow(ctx, conn, &total, began); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	ended := make(chan time.Time, 1)
	go func() {
		flows.Wait()
		ended <- time.Now()
		close(ended)
	}()
	value, windows, err := s.measure(ctx, &total, began, ended)
	if err != nil {
		cancel(err)
	}
	<-ended
	if failed := first(ctx, errs); failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	r.Values = append(r.Values, value)
	r.Windows = append(r.Windows, windows...)
	return nil
}

// receiveFlow has the sender start, and counts until it has ended.
func receiveFlow(ctx context.Context, conn net.Conn, total *atomic.Int64, began chan<- time.Time) error {
	from := conn.RemoteAddr().String()
	if _, err := conn.Write([]byte{1}); err != nil {
		return failed(ctx, "start a stream from "+from, err)
	}
	buf := make([]byte, blockSize)
	for first := true; ; first = false {
		n, err := conn.Read(buf)
		if first && n > 0 {
			began <- time.Now()
		}
		total.Add(int64(n))
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return failed(ctx, "receive from "+from, err)
		}
	}
}

// measure counts the bytes of each window, from the first byte on. ended has the time at which the flows have ended.
func (s Streams) measure(ctx context.Context, total *atomic.Int64, began, ended <-chan time.Time) (value float64, windows []float64, err error) {
	var start time.Time
	select {
	case start = <-began:
	case end := <-ended:
		select {
		case start = <-began:
		default:
			return 0, nil, ErrEnded
		}
		again := make(chan time.Time, 1)
		again <- end
		ended = again
	case <-ctx.Done():
		return 0, nil, silent(ctx)
	}
	tick := time.NewTicker(Window)
	defer tick.Stop()
	var base, last int64 // bytes at the end of the first window, and of the last one
	var from, at time.Time
	for over := false; !over; {
		var now time.Time
		select {
		case <-tick.C:
			now = time.Now()
		case now = <-ended:
			if now.Sub(start) < s.Time-Window/2 { // the sender sends longer than that: it has died
				return 0, nil, ErrEnded
			}
			if over = true; len(windows) == 0 { // this node was too busy to look at the windows
				from, at, base, last = start, start, 0, 0
			}
		case <-ctx.Done():
			return 0, nil, silent(ctx)
		}
		n := total.Load()
		if from.IsZero() {
			base, from = n, now
		} else {
			windows = append(windows, gigabits(n-last, now.Sub(at)))
		}
		last, at = n, now
		over = over || now.Sub(start) >= s.Time-Window/2 && len(windows) > 0
	}
	if last == 0 {
		return 0, nil, ErrSilent
	}
	return gigabits(last-base, at.Sub(from)), windows, nil
}

// first returns the error that came first, which ended the others.
func first(ctx context.Context, errs []error) error {
	if err := errors.Join(errs...); err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		for _, err := range errs {
			if err == cause { //nolint:errorlint // the same value
				return err
			}
		}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// reset reports whether an error means that the other end of a connection is gone.
func reset(err error) bool {
	return errors.Is(err, ErrEnded) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE)
}
