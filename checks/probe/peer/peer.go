// Package peer tests the network between two or more nodes by sockets: echo, MTU, connections,
// names, bandwidth, and a ring all-reduce. Both ends know a key; a connection without it is closed,
// and a datagram without it gets no answer.
//
// Every call ends with its context, and then leaves neither a goroutine nor a socket. Values are in
// ms and Gb/s (10^9 bits).
package peer

import (
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Key is the secret of one test.
type Key [16]byte

// Local is the interface that a test uses on this node.
type Local struct {
	Address   netip.Addr
	Interface string // eth0; "": the kernel chooses by its routes
}

// These are the ways in which a test fails, besides the errors of the system.
var (
	ErrStranger = errors.New("the other end does not know the key of this test")
	ErrSilent   = errors.New("no answer")
	ErrEnded    = errors.New("the other end has closed the connection before the end of the test")
)

const (
	greetLimit   = 5 * time.Second // from the connection to its key
	maxStrangers = 64              // connections at once that have not sent the key yet
)

// Listener accepts the connections of one test.
type Listener struct {
	listener *net.TCPListener
	local    Local
	key      Key
	accepted chan accepted
	ctx      context.Context
	end      context.CancelFunc
	serving  sync.WaitGroup
}

// accepted is a connection that has sent the key, and the number by which its sender names it.
type accepted struct {
	conn   net.Conn
	number uint32
}

// Listen listens on a free port until the context ends or Close is called.
func Listen(ctx context.Context, local Local, key Key) (*Listener, error) {
	conn, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(local.Address, 0)))
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", local.Address, err)
	}
	l := &Listener{listener: conn, local: local, key: key, accepted: make(chan accepted)}
	l.ctx, l.end = context.WithCancel(ctx)
	context.AfterFunc(l.ctx, func() { _ = conn.Close() })
	l.serving.Go(l.serve)
	return l, nil
}

// Address returns host:port, by which the other end connects.
func (l *Listener) Address() string { return l.listener.Addr().String() }

// Close ends the Listener. Connections that Accept has returned stay open.
func (l *Listener) Close() {
	l.end()
	l.serving.Wait()
}

func (l *Listener) serve() {
	room := make(chan struct{}, maxStrangers)
	for {
		room <- struct{}{}
		conn, err := l.listener.Accept()
		if l.ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return
		}
		if err != nil { // no descriptor is left
			<-room
			time.Sleep(10 * time.Millisecond)
			continue
		}
		l.serving.Go(func() {
			defer func() { <-room }()
			l.greet(conn)
		})
	}
}

// greet checks the key of a connection and returns it to show that this end knows it.
func (l *Listener) greet(conn net.Conn) {
	cut := context.AfterFunc(l.ctx, func() { _ = conn.SetDeadline(past) })
	defer cut()
	_ = conn.SetDeadline(time.Now().Add(greetLimit))
	var greeting [len(Key{}) + 4]byte
	if _, err := io.ReadFull(conn, greeting[:]); err != nil || subtle.ConstantTimeCompare(greeting[:len(l.key)], l.key[:]) != 1 {
		_ = conn.Close()
		return
	}
	if _, err := conn.Write(l.key[:]); err != nil || !cut() {
		_ = conn.Close()
		return
	}
	_ = conn.SetDeadline(time.Time{})
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		bind(conn.(*net.TCPConn), l.local, a.AddrPort().Addr())
	}
	select {
	case l.accepted <- accepted{conn, binary.LittleEndian.Uint32(greeting[len(l.key):])}:
	case <-l.ctx.Done():
		_ = conn.Close()
	}
}

// Accept returns the next connection with the key, and its number. The connection ends with the
// context.
func (l *Listener) Accept(ctx context.Context) (net.Conn, uint32, error) {
	select {
	case a := <-l.accepted:
		return within(ctx, a.conn), a.number, nil
	case <-ctx.Done():
		return nil, 0, fmt.Errorf("wait for a connection: %w", silent(ctx))
	case <-l.ctx.Done():
		if ctx.Err() != nil {
			return nil, 0, fmt.Errorf("wait for a connection: %w", silent(ctx))
		}
		return nil, 0, fmt.Errorf("wait for a connection: %w", net.ErrClosed)
	}
}

// Connect connects to a Listener. The number is for the receiver. It returns how long the connection
// itself took, without the keys. The connection ends with the context.
func Connect(ctx context.Context, local Local, address string, key Key, number uint32) (net.Conn, time.Duration, error) {
	began := time.Now()
	conn, err := local.dialer(address).DialContext(ctx, "tcp", address)
	took := time.Since(began)
	if err != nil {
		return nil, took, failed(ctx, "connect to "+address, err)
	}
	bound := within(ctx, conn)
	_ = conn.SetDeadline(earlier(ctx, time.Now().Add(2*greetLimit)))
	greeting := binary.LittleEndian.AppendUint32(key[:], number)
	_, err = conn.Write(greeting)
	var answer Key
	if err == nil {
		_, err = io.ReadFull(conn, answer[:])
	}
	switch {
	case err == nil && answer == key:
		_ = conn.SetDeadline(earlier(ctx, time.Time{}))
		return bound, took, nil
	case err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, unix.ECONNRESET):
		err = ErrStranger
	}
	_ = bound.Close()
	return nil, took, failed(ctx, "connect to "+address, err)
}

// dialer returns a dialer that leaves by the interface.
func (l Local) dialer(address string) *net.Dialer {
	d := &net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(l.Address, 0)), KeepAlive: -1}
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return d
	}
	d.Control = func(_, _ string, c syscall.RawConn) error {
		l.bindRaw(c, to.Addr())
		return nil
	}
	return d
}

// bind has a connection leave by the interface.
func bind(conn syscall.Conn, l Local, to netip.Addr) {
	if c, err := conn.SyscallConn(); err == nil {
		l.bindRaw(c, to)
	}
}

// bindRaw binds a socket to the interface, as far as the system lets it: kernels before 5.7 want
// CAP_NET_RAW. Without it the routes decide, which is right where each plane has its own subnet. An
// address of this node is reached by lo, whatever interface has it.
func (l Local) bindRaw(c syscall.RawConn, to netip.Addr) {
	if l.Interface == "" || to.Unmap() == l.Address.Unmap() || ownAddress(to) {
		return
	}
	_ = c.Control(func(fd uintptr) {
		_ = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, l.Interface)
	})
}

// ownAddress reports whether an address is one of this node's.
func ownAddress(a netip.Addr) bool {
	list, _ := net.InterfaceAddrs()
	for _, own := range list {
		if prefix, err := netip.ParsePrefix(own.String()); err == nil && prefix.Addr().Unmap() == a.Unmap() {
			return true
		}
	}
	return false
}

var past = time.Unix(1, 0)

// bounded is a connection that ends with a context.
type bounded struct {
	net.Conn
	cut func() bool
}

func within(ctx context.Context, conn net.Conn) net.Conn {
	_ = conn.SetDeadline(earlier(ctx, time.Time{}))
	return &bounded{conn, context.AfterFunc(ctx, func() { _ = conn.SetDeadline(past) })}
}

func (b *bounded) Close() error {
	b.cut()
	return b.Conn.Close()
}

// earlier returns a time, or the deadline of the context if it comes first. The zero time is none.
func earlier(ctx context.Context, t time.Time) time.Time {
	if d, ok := ctx.Deadline(); ok && (t.IsZero() || d.Before(t)) {
		return d
	}
	return t
}

// failed returns an error of a connection. That of an ended context is the context's: the deadline
// means that no answer came.
func failed(ctx context.Context, what string, err error) error {
	var wait net.Error
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		err = ctx.Err()
	case errors.As(err, &wait) && wait.Timeout():
		err = ErrSilent
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		err = ErrEnded
	}
	return fmt.Errorf("%s: %w", what, err)
}

// silent returns the error of a context that has ended.
func silent(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ErrSilent
	}
	return ctx.Err()
}

// sleep waits, and reports whether the context still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Milliseconds returns a time in ms.
func Milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// gigabits returns a rate in Gb/s.
func gigabits(bytes int64, d time.Duration) float64 {
	if d <= 0 {
		return 0
	}
	return float64(bytes) * 8 / float64(d.Nanoseconds())
}
