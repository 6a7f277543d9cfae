package peer

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// both runs the two ends of a stream.
func both(ctx context.Context, l *Listener, local Local, s Streams) (Rates, error, error) {
	sent := make(chan error, 1)
	go func() { sent <- SendStreams(ctx, local, l.Address(), testKey, s) }()
	r, err := ReceiveStreams(ctx, l, s)
	return r, err, <-sent
}

func TestStreams(t *testing.T) {
	t.Parallel()
	for _, local := range locals(t) {
		for _, s := range []Streams{{Flows: 1, Repeats: 1, Time: 400 * time.Millisecond}, {Flows: 4, Repeats: 2, Time: 600 * time.Millisecond}} {
			r, err, failed := both(within60(t), listen(t, local, testKey), local, s)
			if err != nil || failed != nil {
				t.Fatalf("%s: %v, %v", local.Address, err, failed)
			}
			if len(r.Values) != s.Repeats || len(r.Windows) < s.Repeats { // a busy machine has few and long ones
				t.Errorf("%+v has %+v", s, r)
			}
			for _, v := range r.Values {
				if v <= 0 {
					t.Errorf("%+v has %+v", s, r)
				}
			}
		}
	}
}

// A receiver that is too busy to look in time says nothing about the sender, but one whose flows end early does.
func TestStreamsOnBusyNode(t *testing.T) {
	t.Parallel()
	s := Streams{Flows: 1, Repeats: 1, Time: 400 * time.Millisecond}
	for length, want := range map[time.Duration]error{s.Time + after: nil, s.Time / 2: ErrEnded} {
		var total atomic.Int64
		total.Store(int64(length.Seconds() * 1e9 / 8)) // 1 Gb/s
		began, ended := make(chan time.Time, 1), make(chan time.Time, 1)
		start := time.Now().Add(-time.Minute)
		began <- start
		ended <- start.Add(length)
		value, windows, err := s.measure(t.Context(), &total, began, ended)
		if err != want { //nolint:errorlint // the same value
			t.Errorf("flows of %v: %v, want %v", length, err, want)
		}
		if want == nil && (value < 0.999 || value > 1.001 || len(windows) != 1) {
			t.Errorf("flows of %v: %v Gb/s, %v, want 1 Gb/s in one window", length, value, windows)
		}
	}
}

// A value is what arrives, not what the sender has handed to its kernel.
func TestStreamsAreMeasuredByTheReceiver(t *testing.T) {
	t.Parallel()
	const bytes, every = 20_000, 10 * time.Millisecond // 16 Mb/s
	l := listen(t, four, testKey)
	s := Streams{Flows: 1, Repeats: 1, Time: time.Second}
	go func() {
		conn, _, err := Connect(t.Context(), four, l.Address(), testKey, 0)
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 1))
		began := time.Now()
		for i := 0; time.Since(began) < s.Time+after; i++ {
			time.Sleep(time.Until(began.Add(time.Duration(i) * every)))
			_, _ = conn.Write(make([]byte, bytes))
		}
	}()
	r, err := ReceiveStreams(within60(t), l, s)
	if err != nil {
		t.Fatal(err)
	}
	// Late wake-ups on a busy machine shift a few of the packets.
	if v := r.Values[0]; v <= 0 || v > 0.032 {
		t.Errorf("%v Gb/s, want at most 0.016", v)
	}
}

func TestStreamsFail(t *testing.T) {
	t.Parallel()
	s := Streams{Flows: 2, Repeats: 1, Time: time.Hour}
	for name, tt := range map[string]struct {
		sender func(ctx context.Context, address string)
		ctx    context.Context
		want   []error
	}{
		"no sender": {func(context.Context, string) {}, soon(t), []error{ErrSilent}},
		"wrong key": {func(ctx context.Context, address string) { _ = SendStreams(ctx, four, address, other, s) }, soon(t), []error{ErrSilent}},
		"connects and says nothing": {func(ctx context.Context, address string) {
			for i := range s.Flows {
				_, _, _ = Connect(ctx, four, address, testKey, uint32(i))
			}
		}, soon(t), []error{ErrSilent}},
		"dies": {func(ctx context.Context, address string) {
			ctx, cancel := context.WithTimeout(ctx, short)
			defer cancel()
			_ = SendStreams(ctx, four, address, testKey, s)
		}, within60(t), []error{ErrEnded}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := listen(t, four, testKey)
			go tt.sender(t.Context(), l.Address())
			r, err := ReceiveStreams(tt.ctx, l, s)
			if !reset(err) || !errors.Is(tt.want[0], ErrEnded) {
				wantError(t, err, tt.want[0])
			}
			if len(r.Values) != 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestSendStreamsFails(t *testing.T) {
	t.Parallel()
	s := Streams{Flows: 2, Repeats: 1, Time: time.Hour}
	l := listen(t, four, testKey)
	go func() { // takes the connections, and dies
		for range s.Flows {
			conn, _, err := l.Accept(t.Context())
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte{1})
			_, _ = conn.Read(make([]byte, 1000))
			_ = conn.Close()
		}
	}()
	if err := SendStreams(within60(t), four, l.Address(), testKey, s); !reset(err) {
		t.Error(err)
	}
	wantError(t, SendStreams(within60(t), four, l.Address(), other, s), ErrStranger)
	wantError(t, SendStreams(soon(t), four, probetest.Serve(t, func(net.Conn) {}), testKey, s), ErrSilent)
	for _, wrong := range []Streams{{}, {Flows: 1, Repeats: 1, Time: Window}, {Flows: 1000, Repeats: 1, Time: time.Second}, {Flows: 1, Repeats: -1, Time: time.Second}} {
		if SendStreams(within60(t), four, l.Address(), testKey, wrong) == nil {
			t.Errorf("%+v was sent", wrong)
		}
		if _, err := ReceiveStreams(within60(t), l, wrong); err == nil {
			t.Errorf("%+v was received", wrong)
		}
	}
}
