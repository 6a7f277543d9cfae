package wire

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	printSize = sha256.Size
	tokenSize = 32
)

// Config configures a [Listener].
type Config struct {
	Address string        // host:port; "" is every address, and a free port
	Version string        // of nhc-gpu: a rank of another version is refused
	Silence time.Duration // a rank that is silent for that long is lost
	// Admit returns why a rank with the right token and version is refused all the same, "" if it is
	// not. It is called by several goroutines. Nil admits all.
	Admit func(*Hello) string
	// Strangers is how many connections may be open that have not proven themselves, 0 for 512. More
	// wait in the kernel. One address has at most an eighth of them, so that it does not keep the
	// others out.
	Strangers int
}

// Listener is the launcher's end: it admits ranks.
type Listener struct {
	config   Config
	listener net.Listener
	tls      *tls.Config
	print    [printSize]byte
	token    [tokenSize]byte
	admitted chan arrival
	closed   context.Context
	end      context.CancelFunc
	serving  sync.WaitGroup

	mu        sync.Mutex
	strangers map[netip.Addr]int // guarded by mu
}

// arrival is a rank that has proven itself, or one that is refused.
type arrival struct {
	conn *Conn
	err  error
}

// RefusedError is the refusal of a rank, on both ends.
type RefusedError struct {
	Hello *Hello // of the rank
	Why   string
}

func (e *RefusedError) Error() string { return "the launcher refuses this rank: " + e.Why }

// Listen listens for ranks. Its certificate lives as long as the Listener, and exists in memory
// only.
func Listen(c Config) (*Listener, error) {
	if c.Strangers == 0 {
		c.Strangers = 512
	}
	l := &Listener{config: c, admitted: make(chan arrival), strangers: map[netip.Addr]int{}}
	_, _ = rand.Read(l.token[:]) // never fails
	cert, err := newCertificate()
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	l.print = sha256.Sum256(cert.Certificate[0])
	l.tls = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true}
	if c.Address == "" {
		c.Address = ":0"
	}
	if l.listener, err = net.Listen("tcp", c.Address); err != nil {
		return nil, fmt.Errorf("listen for ranks: %w", err)
	}
	l.closed, l.end = context.WithCancel(context.Background())
	l.serving.Go(l.serve)
	return l, nil
}

// newCertificate makes a certificate that names nothing: a rank knows its hash.
func newCertificate() (tls.Certificate, error) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0)}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, nil
}

// Ticket returns the ticket for the ranks, without Addresses, Limit and Job.
func (l *Listener) Ticket() Ticket {
	return Ticket{Print: l.print[:], Token: l.token[:], Version: l.config.Version, Silence: l.config.Silence}
}

// Address returns host:port. The host is empty if the Listener has every address.
func (l *Listener) Address() string {
	host, port, _ := net.SplitHostPort(l.listener.Addr().String())
	if a, err := netip.ParseAddr(host); err == nil && a.IsUnspecified() {
		host = ""
	}
	return net.JoinHostPort(host, port)
}

// Port returns the port.
func (l *Listener) Port() int {
	a, _ := l.listener.Addr().(*net.TCPAddr)
	return a.Port
}

// Accept returns the next rank that has proven itself. Its Hello is set, and it has got its Welcome.
// A rank that was refused is an error, [*RefusedError], after which the caller accepts others. After
// Close the error is [net.ErrClosed].
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	select {
	case a := <-l.admitted:
		return a.conn, a.err
	case <-l.closed.Done():
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close stops listening. Ranks that Accept has returned stay connected.
func (l *Listener) Close() error {
	l.end()
	err := l.listener.Close()
	l.serving.Wait()
	return err
}

// serve accepts connections, at most Strangers at once.
func (l *Listener) serve() {
	room := make(chan struct{}, l.config.Strangers)
	for l.closed.Err() == nil {
		room <- struct{}{}
		conn, err := l.listener.Accept()
		if err != nil { // out of descriptors, or closed
			<-room
			select {
			case <-l.closed.Done():
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		l.serving.Go(func() {
			defer func() { <-room }()
			l.greet(conn)
		})
	}
}

// greet has a connection prove itself, and closes it if it does not.
func (l *Listener) greet(raw net.Conn) {
	from := remote(raw)
	if !l.enter(from) {
		_ = raw.Close()
		return
	}
	defer l.leave(from)
	// A Listener that closes does not wait for strangers.
	cut := context.AfterFunc(l.closed, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer cut()
	_ = raw.SetDeadline(time.Now().Add(greetLimit))
	c := newConn(tls.Server(raw, l.tls), l.config.Silence)
	m, err := c.read(maxHello) // shakes hands first
	if err != nil || m.Hello == nil {
		_ = raw.Close()
		return
	}
	c.Hello = m.Hello
	if subtle.ConstantTimeCompare(m.Hello.Token, l.token[:]) != 1 {
		_ = c.Send(&Message{Welcome: &Welcome{Refused: "its token is wrong: it belongs to another sweep"}})
		_ = raw.Close()
		return
	}
	m.Hello.Token = nil
	why := l.refuse(m.Hello)
	if err := c.Send(&Message{Welcome: &Welcome{Refused: why}}); err != nil {
		_ = raw.Close()
		return
	}
	a := arrival{conn: c}
	switch {
	case why != "":
		_ = raw.Close()
		a = arrival{err: &RefusedError{m.Hello, why}}
	case !cut() || raw.SetDeadline(time.Time{}) != nil:
		_ = raw.Close()
		return
	}
	select {
	case l.admitted <- a:
	case <-l.closed.Done():
		_ = raw.Close()
	}
}

// refuse returns why a rank is refused, "" if it is not.
func (l *Listener) refuse(h *Hello) string {
	switch {
	case h.Version != l.config.Version:
		return fmt.Sprintf("%s has nhc-gpu %s, the launcher has %s: install the same version on both", h.Node.Name, h.Version, l.config.Version)
	case l.config.Admit != nil:
		return l.config.Admit(h)
	}
	return ""
}

// enter reports whether an address may have another connection that has not proven itself.
func (l *Listener) enter(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.strangers[from] >= max(l.config.Strangers/8, 1) {
		return false
	}
	l.strangers[from]++
	return true
}

func (l *Listener) leave(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.strangers[from]--; l.strangers[from] == 0 {
		delete(l.strangers, from)
	}
}

// remote returns the address of a peer. All loopback addresses count as one, since every user of the
// launcher's host has all of them.
func remote(conn net.Conn) netip.Addr {
	a, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	from := a.AddrPort().Addr().Unmap()
	if from.IsLoopback() {
		from = netip.IPv6Loopback()
	}
	return from
}

// Dial connects a rank to its launcher. It tries the addresses of the ticket one after the other,
// again and again, until the context ends, the launcher refuses it ([*RefusedError]), or no program has
// listened there for goneAfter: a launcher listens before it starts ranks.
func Dial(ctx context.Context, t *Ticket, h Hello) (*Conn, error) {
	h.Token = t.Token
	remote := t.remote()
	var last error     // of the attempts that the context has not cut off
	var gone time.Time // since when no program listens
	for {
		var errs, ofHost []error
		for _, address := range t.Addresses {
			c, err := dial(ctx, t, address, &h)
			if err == nil || errors.As(err, new(*RefusedError)) {
				return c, err
			}
			errs = append(errs, err)
			if slices.Contains(remote, address) {
				ofHost = append(ofHost, err)
			}
		}
		if ctx.Err() == nil || last == nil {
			last = errors.Join(errs...)
		}
		switch {
		case !isGone(ofHost):
			gone = time.Time{}
		case gone.IsZero():
			gone = time.Now()
		case time.Since(gone) > goneAfter:
			return nil, fmt.Errorf("connect to the launcher: it has ended: %w", errors.Join(errs...))
		}
		// Not all ranks at the same moment, on a launcher that is busy.
		wait := retryAfter + time.Duration(time.Now().UnixNano())%retryAfter
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to the launcher: %w", last)
		case <-time.After(wait):
		}
	}
}

// remote returns the addresses that lead to the launcher's host. One that this host has as well, such as
// that of docker0, leads to this host. If it has all of them, it is the launcher's host.
func (t *Ticket) remote() []string {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return t.Addresses
	}
	return foreign(t.Addresses, own)
}

func foreign(addresses []string, own []net.Addr) []string {
	others := slices.DeleteFunc(slices.Clone(addresses), func(address string) bool {
		a, err := netip.ParseAddrPort(address)
		return err == nil && slices.ContainsFunc(own, func(o net.Addr) bool {
			p, err := netip.ParsePrefix(o.String())
			return err == nil && p.Addr().Unmap() == a.Addr().Unmap()
		})
	})
	if len(others) == 0 {
		return addresses
	}
	return others
}

// isGone reports whether the addresses of a launcher refuse connections, or cannot be reached. A launcher
// that is busy accepts a connection late.
func isGone(errs []error) bool {
	refused := false
	for _, err := range errs {
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			refused = true
		case !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH):
			return false
		}
	}
	return refused
}

// dial connects to one address, and greets.
func dial(ctx context.Context, t *Ticket, address string, h *Hello) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	cut := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer cut()
	c := newConn(tls.Client(raw, clientConfig(t.Print)), t.Silence)
	c.Hello = h
	m, err := c.greeted(h)
	switch {
	case err != nil:
	case m.Welcome == nil:
		err = fmt.Errorf("%w: want a welcome", ErrGarbled)
	case m.Welcome.Refused != "":
		err = &RefusedError{h, m.Welcome.Refused}
	case !cut():
		err = ctx.Err()
	default:
		_ = raw.SetDeadline(time.Time{})
		return c, nil
	}
	_ = raw.Close()
	return nil, fmt.Errorf("%s: %w", address, err)
}

// greeted sends the greeting and returns the answer.
func (c *Conn) greeted(h *Hello) (*Message, error) {
	if err := c.Send(&Message{Hello: h}); err != nil {
		return nil, err
	}
	return c.read(maxHello)
}

// Gone reports whether the launcher has ended for certain: its host answers, and nothing with its
// certificate does. A rank whose own network is down cannot know, and must not act for all others.
func Gone(ctx context.Context, t *Ticket) bool {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	remote := t.remote()
	answers := make(chan error, len(remote))
	for _, address := range remote {
		go func() {
			conn, err := (&tls.Dialer{Config: clientConfig(t.Print)}).DialContext(ctx, "tcp", address)
			if err == nil {
				_ = conn.Close()
			}
			answers <- err
		}()
	}
	gone := false
	for range remote {
		switch err := <-answers; {
		case err == nil:
			return false
		case errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, errPrint):
			gone = true
		}
	}
	return gone
}

var errPrint = errors.New("the certificate is not that of the launcher: another program answers at its address")

// clientConfig accepts the certificate with that hash, and no other.
func clientConfig(hash []byte) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		InsecureSkipVerify: true, // VerifyConnection compares the hash
		VerifyConnection: func(s tls.ConnectionState) error {
			got := sha256.Sum256(s.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare(got[:], hash) != 1 {
				return errPrint
			}
			return nil
		},
	}
}
