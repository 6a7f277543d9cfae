package probe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
)

// A name server is asked directly, so that each can be told from the others: the
// resolver of the C library, and that of Go, say of several only what came of them
// together, and nothing of how the first did.

// DNSReply is what a name server has answered (RFC 1035, section 4.1).
type DNSReply struct {
	Code    int  // 0 no error, 2 server failure, 3 no such name, 5 refused
	Answers int  // records of the type that was asked for
	cut     bool // the rest did not fit into UDP
}

// The codes of replies that are told apart.
const (
	DNSNoError = 0
	DNSFailure = 2
	DNSNoName  = 3
	DNSRefused = 5
)

// The types of records that are asked for.
const (
	DNSTypeA    = 1
	DNSTypeNS   = 2
	DNSTypeAAAA = 28
)

// ErrNoReply says that a name server has not answered in time.
var ErrNoReply = errors.New("no answer")

// ErrBadReply says that what came is no answer to what was asked.
var ErrBadReply = errors.New("no DNS message, or none that answers")

const (
	dnsClassIN  = 1
	dnsHeader   = 12
	dnsName     = 255 // longest name, bytes
	dnsMessage  = 4096
	dnsTruncate = 1 << 9
	dnsResponse = 1 << 15
	dnsRecurse  = 1 << 8
)

// dnsResends is after how long a question is asked again: a single packet may be
// lost on its way and nothing is wrong.
var dnsResends = []time.Duration{time.Second, 2 * time.Second}

// AskDNS asks the name server at an address, "10.0.0.53:53", for the records of a
// name. It comes back before the context's end. Time is how long the answer took.
func AskDNS(ctx context.Context, server, name string, kind uint16) (reply DNSReply, took time.Duration, err error) {
	query, err := dnsQuery(name, kind)
	if err != nil {
		return reply, 0, err
	}
	start := time.Now()
	reply, err = askUDP(ctx, server, query)
	if err == nil && reply.cut {
		reply, err = askTCP(ctx, server, query)
	}
	if err != nil && ctx.Err() != nil && !errors.Is(err, ErrBadReply) { // whatever call was cut off
		err = ErrNoReply
	}
	if e, ok := errors.AsType[*net.OpError](err); ok { // it names both ends' ports
		err = e.Err
	}
	return reply, time.Since(start), err
}

// dnsQuery is a message that asks for the records of a name.
func dnsQuery(name string, kind uint16) ([]byte, error) {
	message := make([]byte, dnsHeader, dnsHeader+len(name)+6)
	_, _ = rand.Read(message[:2]) // it never fails
	binary.BigEndian.PutUint16(message[2:], dnsRecurse)
	binary.BigEndian.PutUint16(message[4:], 1)
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if label == "" && name == "." {
			break
		}
		if label == "" || len(label) > 63 {
			return nil, fmt.Errorf("%q is no name", name)
		}
		message = append(append(message, byte(len(label))), label...)
	}
	if len(message)-dnsHeader+1 > dnsName {
		return nil, fmt.Errorf("%q is no name", name)
	}
	message = append(message, 0)
	message = binary.BigEndian.AppendUint16(message, kind)
	return binary.BigEndian.AppendUint16(message, dnsClassIN), nil
}

// askUDP asks, and asks again where no answer comes. What is no answer to this
// question, as a late one to another, is passed over.
func askUDP(ctx context.Context, server string, query []byte) (DNSReply, error) {
	conn, err := dial(ctx, "udp", server)
	if err != nil {
		return DNSReply{}, err
	}
	defer conn.Close()
	start, bad := time.Now(), error(nil)
	buf := make([]byte, dnsMessage)
	for i := range len(dnsResends) + 1 {
		until, _ := ctx.Deadline()
		again := i < len(dnsResends) && start.Add(dnsResends[i]).Before(until)
		if again {
			until = start.Add(dnsResends[i])
		}
		if _, err := conn.Write(query); err != nil {
			if again && refused(ctx, err, until) {
				continue
			}
			return DNSReply{}, err
		}
		if err := conn.SetReadDeadline(until); err != nil {
			return DNSReply{}, err
		}
		for {
			n, err := conn.Read(buf)
			if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
				break
			}
			if err != nil && again && refused(ctx, err, until) {
				break
			}
			if err != nil {
				return DNSReply{}, err
			}
			reply, err := parseDNS(buf[:n], query)
			if err == nil {
				return reply, nil
			}
			bad = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	if bad != nil {
		return DNSReply{}, bad
	}
	return DNSReply{}, ErrNoReply
}

// refused waits until a moment if nobody listens: a server that is being restarted
// does in a second.
func refused(ctx context.Context, err error, until time.Time) bool {
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return false
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Until(until)):
	}
	return true
}

// askTCP asks for what did not fit into UDP (RFC 7766): messages have their length
// before them.
func askTCP(ctx context.Context, server string, query []byte) (DNSReply, error) {
	conn, err := dial(ctx, "tcp", server)
	if err != nil {
		return DNSReply{}, err
	}
	defer conn.Close()
	if until, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(until); err != nil {
			return DNSReply{}, err
		}
	}
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)); err != nil {
		return DNSReply{}, err
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return DNSReply{}, tcpEnd(err)
	}
	message := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, message); err != nil {
		return DNSReply{}, tcpEnd(err)
	}
	return parseDNS(message, query)
}

// tcpEnd is that the other end has said less than it should.
func tcpEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrBadReply
	}
	return err
}

func dial(ctx context.Context, network, server string) (net.Conn, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, errors.New("asked without an end")
	}
	var d net.Dialer
	return d.DialContext(ctx, network, server)
}

// parseDNS reads a reply to a query.
func parseDNS(message, query []byte) (r DNSReply, err error) {
	if len(message) < dnsHeader || [2]byte(message) != [2]byte(query) {
		return r, ErrBadReply
	}
	flags := binary.BigEndian.Uint16(message[2:])
	questions, answers := binary.BigEndian.Uint16(message[4:]), binary.BigEndian.Uint16(message[6:])
	if flags&dnsResponse == 0 || questions > 1 {
		return r, ErrBadReply
	}
	r.Code, r.cut = int(flags&0xf), flags&dnsTruncate != 0
	at := dnsHeader
	if questions == 1 { // a server that fails may leave the question out
		asked := query[dnsHeader:]
		if len(message) < at+len(asked) || !strings.EqualFold(string(message[at:at+len(asked)]), string(asked)) {
			return r, ErrBadReply
		}
		at += len(asked)
	}
	if r.cut {
		return r, nil
	}
	kind := binary.BigEndian.Uint16(query[len(query)-4:])
	for range answers {
		end := skipName(message, at)
		if end < 0 || len(message) < end+10 {
			return r, ErrBadReply
		}
		if binary.BigEndian.Uint16(message[end:]) == kind {
			r.Answers++
		}
		if at = end + 10 + int(binary.BigEndian.Uint16(message[end+8:])); at > len(message) {
			return r, ErrBadReply
		}
	}
	return r, nil
}

// skipName is where a name ends: at a byte of 0, or behind a pointer. -1 is nowhere.
func skipName(message []byte, at int) int {
	for at < len(message) {
		switch n := int(message[at]); {
		case n == 0:
			return at + 1
		case n >= 0xc0:
			return at + 2
		case n > 63:
			return -1
		default:
			at += 1 + n
		}
	}
	return -1
}
