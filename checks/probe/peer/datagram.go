package peer

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A datagram of this package: the key, a nonce of its sender, a number, and zeros.
const (
	nonceAt  = len(Key{})
	numberAt = nonceAt + 8
	minGram  = numberAt + 8
	maxGram  = 65507 // the longest of IPv4
)

// Responder sends datagrams with the key back to their sender. It answers nothing else, and never
// with more bytes than it has got, so that it does not serve to attack another.
type Responder struct {
	conn *net.UDPConn
	done chan struct{}
	end  context.CancelFunc
}

// Respond starts a Responder, which ends with the context or by Close. Its answers must not be
// fragmented, either.
func Respond(ctx context.Context, local Local, key Key) (*Responder, error) {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(local.Address, 0)))
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", local.Address, err)
	}
	if err := forbidFragments(conn, local.Address); err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetReadBuffer(1 << 20) // a loss in this queue is not one of the network
	r := &Responder{conn: conn, done: make(chan struct{})}
	ctx, r.end = context.WithCancel(ctx)
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	go r.serve(key)
	return r, nil
}

// Address returns host:port.
func (r *Responder) Address() string { return r.conn.LocalAddr().String() }

// Close ends the Responder.
func (r *Responder) Close() {
	r.end()
	<-r.done
}

func (r *Responder) serve(key Key) {
	defer close(r.done)
	buf := make([]byte, 1<<16)
	for {
		n, from, err := r.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < minGram || subtle.ConstantTimeCompare(buf[:len(key)], key[:]) != 1 {
			continue
		}
		_, _ = r.conn.WriteToUDPAddrPort(buf[:n], from) // one that does not fit is lost, and the sender sees it
	}
}

// forbidFragments has datagrams that do not fit lost instead of fragmented.
func forbidFragments(conn *net.UDPConn, local netip.Addr) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	if local.Is6() && !local.Is4In6() {
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
	}
	var set error
	if err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, value) }); err != nil {
		return err
	}
	if set != nil {
		return fmt.Errorf("forbid fragments on %s: %w", local, set)
	}
	return nil
}

// connectUDP opens a socket for a Responder.
func connectUDP(ctx context.Context, local Local, address string) (*net.UDPConn, error) {
	d := local.dialer(address)
	d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(local.Address, 0))
	conn, err := d.DialContext(ctx, "udp", address)
	if err != nil {
		return nil, failed(ctx, "connect to "+address, err)
	}
	udp, ok := conn.(*net.UDPConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("connect to %s: got %T", address, conn)
	}
	if err := forbidFragments(udp, local.Address); err != nil {
		_ = udp.Close()
		return nil, err
	}
	_ = udp.SetReadBuffer(1 << 20)
	return udp, nil
}

// Pings is the result of an echo.
type Pings struct {
	Sent, Lost int
	Fast       time.Duration // within which the fastest tenth of the answers came; 0 without any
}

// lateness is how long Echo waits for the answer to its last datagram.
const lateness = time.Second

// Echo sends count datagrams of size bytes to a Responder, one every interval, and returns how many
// answers did not come. If none has come, or the other end refuses them, it returns an error, too.
func Echo(ctx context.Context, local Local, address string, key Key, count, size int, every time.Duration) (Pings, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := connectUDP(ctx, local, address)
	if err != nil {
		return Pings{}, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(past) })()

	gram := newGram(key, size)
	sentAt := make([]time.Time, count)
	trips := make(chan []time.Duration, 1)
	started := make(chan int, count)
	var refused error
	go func() {
		var list []time.Duration
		list, refused = receive(conn, gram, sentAt, started)
		trips <- list
	}()
	p := Pings{}
	for ; p.Sent < count && ctx.Err() == nil; p.Sent++ {
		binary.LittleEndian.PutUint64(gram[numberAt:], uint64(p.Sent))
		sentAt[p.Sent] = time.Now()
		started <- p.Sent
		if _, err := conn.Write(gram); errors.Is(err, unix.EMSGSIZE) {
			cancel()
			<-trips
			return Pings{}, fmt.Errorf("send %d bytes to %s: %w", len(gram), address, err)
		} // a datagram that is not sent for another reason is lost
		if p.Sent < count-1 && !sleep(ctx, time.Until(sentAt[0].Add(time.Duration(p.Sent+1)*every))) {
			p.Sent++
			break
		}
	}
	_ = conn.SetReadDeadline(earlier(ctx, time.Now().Add(lateness)))
	list := <-trips
	p.Lost = p.Sent - len(list)
	slices.Sort(list)
	switch {
	case len(list) > 0:
		p.Fast = list[len(list)/10]
		return p, nil
	case errors.Is(ctx.Err(), context.Canceled):
		return p, ctx.Err()
	case errors.Is(refused, unix.ECONNREFUSED):
		return p, fmt.Errorf("echo from %s: %w", address, unix.ECONNREFUSED)
	}
	return p, fmt.Errorf("echo from %s: %w to %d datagrams", address, ErrSilent, p.Sent)
}

// receive returns the times of the answers, until all have come or the deadline of the connection.
// It takes the numbers of those sent from a channel, which orders its view of sentAt.
func receive(conn *net.UDPConn, gram []byte, sentAt []time.Time, started <-chan int) (trips []time.Duration, refused error) {
	buf := make([]byte, len(gram)+1)
	nonce := [8]byte(gram[nonceAt:])
	seen := make([]bool, len(sentAt))
	sent := 0
	for len(trips) < len(sentAt) {
		n, err := conn.Read(buf)
		now := time.Now()
		for more := true; more; {
			select {
			case <-started:
				sent++
			default:
				more = false
			}
		}
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			refused = err
			continue
		case errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH): // by ICMP, for one datagram
			continue
		case err != nil:
			return trips, refused
		}
		if n != len(gram) || [8]byte(buf[nonceAt:]) != nonce {
			continue
		}
		i := binary.LittleEndian.Uint64(buf[numberAt:])
		if i >= uint64(sent) || seen[i] { // never sent, or twice
			continue
		}
		seen[i] = true
		trips = append(trips, now.Sub(sentAt[i]))
	}
	return trips, refused
}

// newGram returns a datagram of size bytes, as far as that is possible.
func newGram(key Key, size int) []byte {
	gram := make([]byte, min(max(size, minGram), maxGram))
	copy(gram, key[:])
	_, _ = rand.Read(gram[nonceAt:numberAt])
	return gram
}

// ErrMTU means that a full datagram does not pass, although a short one does.
var ErrMTU = errors.New("a full datagram does not pass")

// MTU shows that a datagram that fills the interface's MTU passes to a Responder and back without
// fragments: else it returns ErrMTU. Without an answer to a short one it returns ErrSilent.
func MTU(ctx context.Context, local Local, address string, key Key, mtu int) error {
	header := 20 + 8
	if local.Address.Is6() && !local.Address.Is4In6() {
		header = 40 + 8
	}
	if err := try(ctx, local, address, key, minGram); err != nil {
		return err
	}
	err := try(ctx, local, address, key, mtu-header)
	if errors.Is(err, ErrSilent) || errors.Is(err, unix.EMSGSIZE) {
		return fmt.Errorf("MTU %d of %s to %s: %w", mtu, local.Interface, address, ErrMTU)
	}
	return err
}

// try sends a datagram, and a few more if the first one is lost.
func try(ctx context.Context, local Local, address string, key Key, size int) error {
	_, err := Echo(ctx, local, address, key, 1, size, 0)
	if errors.Is(err, ErrSilent) && ctx.Err() == nil {
		_, err = Echo(ctx, local, address, key, 4, size, 100*time.Millisecond)
	}
	return err
}
