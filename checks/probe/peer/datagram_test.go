package peer

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func respond(t *testing.T, local Local) *Responder {
	t.Helper()
	r, err := Respond(t.Context(), local, testKey)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// udpServer answers each datagram by those that do returns.
func udpServer(t *testing.T, do func(number int, gram []byte) [][]byte) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 1<<16)
		for number := 0; ; number++ {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			for _, answer := range do(number, buf[:n]) {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return conn.LocalAddr().String()
}

func TestEcho(t *testing.T) {
	t.Parallel()
	for _, local := range locals(t) {
		for _, size := range []int{0, 64, 1400} {
			p, err := Echo(within60(t), local, respond(t, local).Address(), testKey, 50, size, time.Millisecond)
			if err != nil || p.Sent != 50 || p.Lost != 0 || p.Fast <= 0 {
				t.Errorf("%s: %+v, %v", local.Address, p, err)
			}
		}
	}
}

// The pace holds: datagrams are not sent in a burst.
func TestEchoIsPaced(t *testing.T) {
	t.Parallel()
	began := time.Now()
	if _, err := Echo(within60(t), four, respond(t, four).Address(), testKey, 20, 64, 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 190*time.Millisecond {
		t.Errorf("20 datagrams, one every 10 ms, took %v", took)
	}
}

// Echo counts exactly the datagrams without an answer: a double answer, one to another datagram and
// one of another length are none.
func TestEchoCountsLosses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer func(number int, gram []byte) [][]byte
		lost   int
	}{
		"every third": {func(number int, gram []byte) [][]byte {
			if number%3 == 0 {
				return nil
			}
			return [][]byte{gram}
		}, 10},
		"double": {func(number int, gram []byte) [][]byte {
			if number == 5 {
				return nil
			}
			return [][]byte{gram, gram}
		}, 1},
		"cut": {func(number int, gram []byte) [][]byte {
			if number == 5 {
				return [][]byte{gram[:len(gram)-1]}
			}
			return [][]byte{gram}
		}, 1},
		"another nonce": {func(number int, gram []byte) [][]byte {
			if number < 7 {
				gram[nonceAt]++
			}
			return [][]byte{gram}
		}, 7},
		"a number never sent": {func(number int, gram []byte) [][]byte {
			if number == 3 {
				gram[numberAt+2] = 1
			}
			return [][]byte{gram}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Echo(within60(t), four, udpServer(t, tt.answer), testKey, 30, 64, time.Millisecond)
			if err != nil || p.Sent != 30 || p.Lost != tt.lost {
				t.Errorf("%+v, %v, want %d lost", p, err, tt.lost)
			}
		})
	}
}

func TestEchoFails(t *testing.T) {
	t.Parallel()
	none := func(int, []byte) [][]byte { return nil }
	for name, tt := range map[string]struct {
		address string
		want    error
	}{
		"silent":    {udpServer(t, none), ErrSilent},
		"wrong key": {respond(t, four).Address(), ErrSilent},
		"refused":   {probetest.ClosedPort(t), unix.ECONNREFUSED},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Echo(within60(t), four, tt.address, other, 5, 64, time.Millisecond)
			wantError(t, err, tt.want)
			if p.Sent != 5 || p.Lost != 5 {
				t.Errorf("%+v", p)
			}
		})
	}
	p, err := Echo(soon(t), four, udpServer(t, none), testKey, 1000, 64, time.Hour) // a deadline in the middle
	wantError(t, err, ErrSilent)
	if p.Sent != 1 || p.Lost != 1 {
		t.Errorf("%+v", p)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(short, cancel)
	_, err = Echo(ctx, four, udpServer(t, none), testKey, 1000, 64, time.Hour)
	wantError(t, err, context.Canceled)
}

// The Responder answers only datagrams with the key, and with as many bytes.
func TestResponder(t *testing.T) {
	t.Parallel()
	conn, err := net.Dial("udp", respond(t, four).Address())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	valid := newGram(testKey, 200)
	for _, gram := range [][]byte{{}, {0}, testKey[:], valid[:minGram-1], newGram(other, 200), slices.Repeat([]byte{'x'}, 1000), valid} {
		if _, err := conn.Write(gram); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 1<<16)
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if n, err := conn.Read(buf); err != nil || !slices.Equal(buf[:n], valid) {
		t.Errorf("the first answer has %d bytes, %v", n, err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(short))
	if n, err := conn.Read(buf); err == nil {
		t.Errorf("another answer has %d bytes", n)
	}
}

func TestMTU(t *testing.T) {
	t.Parallel()
	for _, local := range locals(t) {
		for _, mtu := range []int{1280, 1500, 9000, 65536} {
			if err := MTU(within60(t), local, respond(t, local).Address(), testKey, mtu); err != nil {
				t.Errorf("%s: MTU %d: %v", local.Address, mtu, err)
			}
		}
	}
}

// A path that drops only long datagrams differs from one that drops all.
func TestMTUFails(t *testing.T) {
	t.Parallel()
	var longest atomic.Int64
	drop := func(_ int, gram []byte) [][]byte {
		longest.Store(max(longest.Load(), int64(len(gram))))
		if len(gram) > 1400-28 {
			return nil
		}
		return [][]byte{gram}
	}
	err := MTU(within60(t), four, udpServer(t, drop), testKey, 1500)
	wantError(t, err, ErrMTU)
	if n := longest.Load(); n != 1500-28 {
		t.Errorf("the longest datagram has %d bytes", n)
	}
	if err := MTU(within60(t), four, udpServer(t, drop), testKey, 1400); err != nil {
		t.Error(err)
	}
	silent := udpServer(t, func(int, []byte) [][]byte { return nil })
	if err := MTU(soon(t), four, silent, testKey, 1500); !errors.Is(err, ErrSilent) || errors.Is(err, ErrMTU) {
		t.Error(err)
	}
}

// Datagrams must not be fragmented on their way.
func TestFragmentsAreForbidden(t *testing.T) {
	t.Parallel()
	for _, local := range locals(t) {
		r := respond(t, local)
		conn, err := connectUDP(t.Context(), local, r.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		level, option, want := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
		if local == six {
			level, option, want = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
		}
		for _, c := range []*net.UDPConn{conn, r.conn} {
			raw, err := c.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			_ = raw.Control(func(fd uintptr) {
				if got, err := unix.GetsockoptInt(int(fd), level, option); got != want || err != nil {
					t.Errorf("%s: option %d, %v, want %d", local.Address, got, err, want)
				}
			})
		}
	}
}
