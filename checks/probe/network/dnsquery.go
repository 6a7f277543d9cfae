package network

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

	"golang.org/x/net/dns/dnsmessage"
)

// This code queries each name server directly, to distinguish them: the resolvers of the C library
// and of Go report only the combined result of several, and not how the first one answered.

// DNSReply is the answer of a name server (RFC 1035, section 4.1).
type DNSReply struct {
	Code    int  // 0 no error, 2 server failure, 3 no such name, 5 refused
	Answers int  // records of the requested type
	cut     bool // the rest did not fit into UDP
}

// These are the reply codes that the program distinguishes.
const (
	DNSNoError = 0
	DNSFailure = 2
	DNSNoName  = 3
	DNSRefused = 5
)

// These are the record types of queries.
const (
	DNSTypeA    = 1
	DNSTypeNS   = 2
	DNSTypeAAAA = 28
)

// ErrNoReply means that a name server did not answer in time.
var ErrNoReply = errors.New("no answer")

// ErrBadReply means that the answer does not match the query.
var ErrBadReply = errors.New("not a DNS message, or not an answer to the query")

// dnsPacket bounds a reply over UDP, bytes.
const dnsPacket = 4096

// dnsResends are the times after which a query is sent again, because a single packet may be lost
// without a fault.
var dnsResends = []time.Duration{time.Second, 2 * time.Second}

// AskDNS queries the name server at an address, "10.0.0.53:53", for the records of a name. It
// returns before the context's end. took is the time until the answer.
func AskDNS(ctx context.Context, server, name string, kind uint16) (reply DNSReply, took time.Duration, err error) {
	query, err := encodeQuery(name, kind)
	if err != nil {
		return reply, 0, err
	}
	start := time.Now()
	reply, err = askUDP(ctx, server, query)
	if err == nil && reply.cut {
		reply, err = askTCP(ctx, server, query)
	}
	if err != nil && ctx.Err() != nil && !errors.Is(err, ErrBadReply) { // the deadline interrupted a call
		err = ErrNoReply
	}
	if e, ok := errors.AsType[*net.OpError](err); ok { // its text has the ports of both ends
		err = e.Err
	}
	return reply, time.Since(start), err
}

// encodeQuery encodes a query for the records of a name.
func encodeQuery(name string, kind uint16) ([]byte, error) {
	var id [2]byte
	_, _ = rand.Read(id[:]) // never fails
	absolute := name
	if name != "" && !strings.HasSuffix(name, ".") {
		absolute += "."
	}
	asked, err := dnsmessage.NewName(absolute)
	if err != nil {
		return nil, fmt.Errorf("%q is not a DNS name", name)
	}
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: binary.BigEndian.Uint16(id[:]), RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: asked, Type: dnsmessage.Type(kind), Class: dnsmessage.ClassINET}},
	}
	message, err := query.Pack()
	if err != nil {
		return nil, fmt.Errorf("%q is not a DNS name", name)
	}
	return message, nil
}

// askUDP sends a query, and sends it again if no answer comes. It ignores answers to other queries,
// such as a late one.
func askUDP(ctx context.Context, server string, query []byte) (DNSReply, error) {
	conn, err := dial(ctx, "udp", server)
	if err != nil {
		return DNSReply{}, err
	}
	defer conn.Close()
	start, bad := time.Now(), error(nil)
	buf := make([]byte, dnsPacket)
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

// refused waits, at most until a time, if no process listens: a server that is being restarted
// needs a second.
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

// askTCP sends a query whose answer did not fit into UDP (RFC 7766): the length precedes each
// message.
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
		return DNSReply{}, explainTCPEnd(err)
	}
	message := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, message); err != nil {
		return DNSReply{}, explainTCPEnd(err)
	}
	return parseDNS(message, query)
}

// explainTCPEnd converts the error of a connection that ended too early.
func explainTCPEnd(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return ErrBadReply
	}
	return err
}

func dial(ctx context.Context, network, server string) (net.Conn, error) {
	if _, ok := ctx.Deadline(); !ok {
		return nil, errors.New("DNS query without a deadline")
	}
	var d net.Dialer
	return d.DialContext(ctx, network, server)
}

// parseDNS parses a reply to a query.
func parseDNS(message, query []byte) (r DNSReply, err error) {
	var ours, p dnsmessage.Parser
	sent, err := ours.Start(query)
	asked, errAsked := ours.Question()
	header, errHeader := p.Start(message)
	questions, errQuestions := p.AllQuestions()
	if errors.Join(err, errAsked, errHeader, errQuestions) != nil || header.ID != sent.ID || !header.Response || len(questions) > 1 {
		return r, ErrBadReply
	}
	r.Code, r.cut = int(header.RCode), header.Truncated
	for _, q := range questions { // a server that fails may omit the question
		if q.Type != asked.Type || q.Class != asked.Class || !strings.EqualFold(q.Name.String(), asked.Name.String()) {
			return r, ErrBadReply
		}
	}
	if r.cut {
		return r, nil
	}
	for {
		answer, err := p.AnswerHeader()
		if errors.Is(err, dnsmessage.ErrSectionDone) {
			return r, nil
		}
		if err == nil {
			err = p.SkipAnswer()
		}
		if err != nil {
			return r, ErrBadReply
		}
		if answer.Type == asked.Type {
			r.Answers++
		}
	}
}
