package peer

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// patience bounds the wait for an event that must come, on a machine however busy.
const patience = 5 * time.Minute

// short is the deadline of an event that never comes.
const short = 300 * time.Millisecond

var (
	four    = Local{Address: netip.MustParseAddr("127.0.0.1"), Interface: "lo"}
	six     = Local{Address: netip.MustParseAddr("::1"), Interface: "lo"}
	testKey = Key{1, 2, 3}
	other   = Key{4, 5, 6}
)

// locals returns the loopback addresses of this machine.
func locals(t *testing.T) []Local {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Log("without IPv6")
		return []Local{four}
	}
	_ = l.Close()
	return []Local{four, six}
}

func within60(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), short)
	t.Cleanup(cancel)
	return ctx
}

func listen(t *testing.T, local Local, key Key) *Listener {
	t.Helper()
	l, err := Listen(t.Context(), local, key)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// closedPort returns an address at which nothing listens.
func wantError(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestConnects(t *testing.T) {
	t.Parallel()
	for _, local := range locals(t) {
		l := listen(t, local, testKey)
		go l.Drain(t.Context())
		values, err := Connects(within60(t), local, l.Address(), testKey, 5)
		if err != nil || len(values) != 5 {
			t.Errorf("%s: %v, %v", local.Address, values, err)
		}
		for _, v := range values {
			if v <= 0 {
				t.Errorf("connected in %v ms", v)
			}
		}
	}
}

// Each way in which a connection fails has its own error.
func TestConnectFails(t *testing.T) {
	t.Parallel()
	l := listen(t, four, testKey)
	for name, tt := range map[string]struct {
		address string
		want    error
		ctx     context.Context
	}{
		"refused":         {probetest.ClosedPort(t), unix.ECONNREFUSED, within60(t)},
		"wrong key":       {l.Address(), ErrStranger, within60(t)},
		"closes":          {probetest.Serve(t, func(c net.Conn) { _ = c.Close() }), ErrStranger, within60(t)},
		"answers rubbish": {probetest.Serve(t, func(c net.Conn) { _, _ = c.Write(make([]byte, 64)) }), ErrStranger, within60(t)},
		"silent":          {probetest.Serve(t, func(net.Conn) {}), ErrSilent, soon(t)},
	} {
		t.Run(name, func(t *testing.T) {
			conn, _, err := Connect(tt.ctx, four, tt.address, other, 0)
			if conn != nil {
				t.Error("got a connection")
			}
			wantError(t, err, tt.want)
		})
	}
}

// A Listener closes a connection without the key, and never returns it.
func TestListenerClosesStrangers(t *testing.T) {
	t.Parallel()
	l := listen(t, four, testKey)
	for _, text := range []string{strings.Repeat("x", 100), string(other[:]) + "0000", string(testKey[:15]) + "\x7f0000"} {
		conn, err := net.Dial("tcp", l.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if got, err := io.ReadAll(conn); len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
	conn, _, err := Connect(within60(t), four, listen(t, four, testKey).Address(), testKey, 7)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	_, _, err = l.Accept(soon(t))
	wantError(t, err, ErrSilent)
}

// Accept returns the number of the sender.
func TestAccept(t *testing.T) {
	t.Parallel()
	l := listen(t, four, testKey)
	conn, took, err := Connect(within60(t), four, l.Address(), testKey, 7)
	if err != nil || took <= 0 {
		t.Fatal(took, err)
	}
	defer conn.Close()
	got, number, err := l.Accept(within60(t))
	if err != nil || number != 7 {
		t.Fatal(number, err)
	}
	_ = got.Close()
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	l.Close()
	_, _, err = l.Accept(within60(t))
	wantError(t, err, net.ErrClosed)
}

func TestResolve(t *testing.T) {
	t.Parallel()
	loop := []netip.Addr{four.Address, six.Address}
	if took, err := Resolve(within60(t), "localhost", loop); err != nil || took <= 0 {
		t.Error(took, err)
	}
	if _, err := Resolve(within60(t), "localhost", nil); err != nil {
		t.Error(err)
	}
	_, err := Resolve(within60(t), "localhost", []netip.Addr{netip.MustParseAddr("192.0.2.1")})
	wantError(t, err, ErrName)
	if text := probetest.Message(err); !strings.Contains(text, "127.0.0.1") || !strings.Contains(text, "want 192.0.2.1") {
		t.Error(text)
	}
	_, err = Resolve(within60(t), "no..such", nil)
	wantError(t, err, ErrName)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Resolve(ctx, "example.invalid", nil)
	wantError(t, err, context.Canceled)
}

// Nothing is left of a test whose context ends in the middle: no goroutine, no socket. The test is
// not parallel, so that the process has no others.
func TestNothingIsLeft(t *testing.T) {
	goroutines, sockets := runtime.NumGoroutine(), countSockets(t)
	ctx, cancel := context.WithCancel(t.Context())
	streaming := Streams{Flows: 4, Repeats: 1, Time: time.Hour}
	var listeners []*Listener
	for range 4 {
		l, err := Listen(ctx, four, testKey)
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
	}
	r, err := Respond(ctx, four, testKey)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := net.Dial("tcp", listeners[3].Address()) // sends no key
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	started := runtime.NumGoroutine()
	ended := make(chan error)
	addresses := []string{listeners[1].Address(), listeners[2].Address()}
	for _, do := range []func() error{
		func() error { return SendStreams(ctx, four, listeners[0].Address(), testKey, streaming) },
		func() error { _, err := ReceiveStreams(ctx, listeners[0], streaming); return err },
		func() error {
			_, err := Echo(ctx, four, r.Address(), testKey, 1000, 100, time.Hour)
			if err == nil { // the answer of the first datagram has come
				err = ctx.Err()
			}
			return err
		},
		func() error {
			return runRing(ctx, listeners[1], RingTest{Rank: 0, Addresses: addresses, Bytes: 1 << 16, Flows: 2, Repeats: 1, Time: time.Hour})
		},
		func() error {
			return runRing(ctx, listeners[2], RingTest{Rank: 1, Addresses: addresses, Bytes: 1 << 16, Flows: 2, Repeats: 1, Time: time.Hour})
		},
	} {
		go func() { ended <- do() }()
	}
	probetest.Await(t, "all run", func() bool { return runtime.NumGoroutine() > started+10 && countSockets(t) > sockets+20 })
	cancel()
	for range 5 {
		wantError(t, <-ended, context.Canceled)
	}
	_ = stranger.Close()
	for _, l := range listeners {
		l.Close()
	}
	r.Close()
	probetest.Await(t, "all goroutines and sockets end", func() bool { return runtime.NumGoroutine() <= goroutines && countSockets(t) <= sockets })
}

func runRing(ctx context.Context, l *Listener, test RingTest) error {
	r, err := JoinRing(ctx, four, l, testKey, test)
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = r.Run(ctx)
	return err
}

func countSockets(t *testing.T) (n int) {
	t.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if to, _ := os.Readlink(name); strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}
