package network

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// dnsServer starts a name server on this machine, on UDP and TCP. answer returns the reply to a
// query, nil for none.
func dnsServer(t *testing.T, answer func(query []byte, tcp bool) []byte) (address string) {
	t.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	for range 20 { // the port must be free for both
		var err error
		if tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if udp, err = net.ListenPacket("udp", tcp.Addr().String()); err == nil {
			break
		}
		tcp.Close()
	}
	if udp == nil {
		t.Fatal("no port is free")
	}
	t.Cleanup(func() { tcp.Close(); udp.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			if reply := answer(buf[:n], false); reply != nil {
				_, _ = udp.WriteTo(reply, from)
			}
		}
	}()
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 512)
			if n, err := conn.Read(buf); err == nil && n > 2 {
				if reply := answer(buf[2:n], true); reply != nil {
					_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
				}
			}
			conn.Close()
		}
	}()
	return tcp.Addr().String()
}

// These are parts of a message (RFC 1035, section 4.1.1).
const (
	dnsHeader   = 12 // bytes
	dnsClassIN  = 1
	dnsRecurse  = 1 << 8
	dnsTruncate = 1 << 9
	dnsResponse = 1 << 15
)

// replyTo returns a reply with a code and some addresses.
func replyTo(query []byte, flags uint16, addresses int) []byte {
	m := append([]byte(nil), query...)
	binary.BigEndian.PutUint16(m[2:], dnsResponse|dnsRecurse|flags)
	binary.BigEndian.PutUint16(m[6:], uint16(addresses))
	for range addresses {
		m = append(m, 0xc0, dnsHeader, 0, DNSTypeA, 0, dnsClassIN, 0, 0, 0, 60, 0, 4, 10, 0, 0, 1)
	}
	return m
}

func TestAskDNS(t *testing.T) {
	t.Parallel()
	closed, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	unused := closed.LocalAddr().String()
	closed.Close()
	lost := 0
	for name, c := range map[string]struct {
		answer func([]byte, bool) []byte
		want   DNSReply
		err    error
	}{
		"an address":   {func(q []byte, _ bool) []byte { return replyTo(q, DNSNoError, 2) }, DNSReply{Answers: 2}, nil},
		"no such name": {func(q []byte, _ bool) []byte { return replyTo(q, DNSNoName, 0) }, DNSReply{Code: DNSNoName}, nil},
		"failure":      {func(q []byte, _ bool) []byte { return replyTo(q[:dnsHeader], DNSFailure, 0) }, DNSReply{}, ErrBadReply},
		"failure without the question": {func(q []byte, _ bool) []byte {
			m := replyTo(q[:dnsHeader], DNSFailure, 0)
			m[5] = 0
			return m
		}, DNSReply{Code: DNSFailure}, nil},
		"too long for UDP": {func(q []byte, tcp bool) []byte {
			if tcp {
				return replyTo(q, DNSNoError, 30)
			}
			return replyTo(q, dnsTruncate, 0)
		}, DNSReply{Answers: 30}, nil},
		"too long, and TCP is silent": {func(q []byte, tcp bool) []byte {
			if tcp {
				return nil
			}
			return replyTo(q, dnsTruncate, 0)
		}, DNSReply{}, ErrBadReply},
		"silence": {func([]byte, bool) []byte { return nil }, DNSReply{}, ErrNoReply},
		"another question's": {func(q []byte, _ bool) []byte {
			m := replyTo(q, DNSNoError, 1)
			m[0]++
			return m
		}, DNSReply{}, ErrBadReply},
		"a packet is lost": {func(q []byte, _ bool) []byte {
			if lost++; lost == 1 {
				return nil
			}
			return replyTo(q, DNSNoError, 1)
		}, DNSReply{Answers: 1}, nil},
		"garbage": {func([]byte, bool) []byte { return []byte("\xffHTTP/1.1 400") }, DNSReply{}, ErrBadReply},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			got, took, err := AskDNS(ctx, dnsServer(t, c.answer), "node1.cluster.example.", DNSTypeA)
			if c.err == nil && cmp.Diff(c.want, got, cmp.AllowUnexported(DNSReply{})) != "" || !errors.Is(err, c.err) || took > 20*time.Second {
				t.Errorf("%+v, %v, %s; want %+v, %v", got, err, took, c.want, c.err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, _, err := AskDNS(ctx, unused, "node1.", DNSTypeA); !errors.Is(err, syscall.ECONNREFUSED) || strings.Contains(err.Error(), unused) {
		t.Errorf("no one listens: %v", err)
	}
	for _, name := range []string{"", "..", "a..b", ".a", strings.Repeat("a", 64), strings.Repeat("abcdefg.", 31) + "abcdef", strings.Repeat("abcdefg.", 40)} {
		if _, _, err := AskDNS(ctx, unused, name, DNSTypeA); err == nil || !strings.HasSuffix(err.Error(), "is not a DNS name") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// A server that is being restarted gets the query again.
func TestAskDNSRestarted(t *testing.T) {
	t.Parallel()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := conn.LocalAddr().String()
	conn.Close()
	go func() {
		time.Sleep(300 * time.Millisecond)
		conn, err := net.ListenPacket("udp", server)
		if err != nil {
			return // it is said below
		}
		defer conn.Close()
		buf := make([]byte, 512)
		if n, from, err := conn.ReadFrom(buf); err == nil {
			buf[2] |= 0x80
			_, _ = conn.WriteTo(buf[:n], from)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, took, err := AskDNS(ctx, server, "node1.", DNSTypeA); err != nil || took < dnsResends[0] {
		t.Errorf("after %s: %v", took, err)
	}
}

func TestResolvConf(t *testing.T) {
	t.Parallel()
	got := parseResolvConf([]byte("# nameserver 10.0.0.9\nsearch a.example\ndomain b.example\nnameserver 10.0.0.53\nnameserver fd00::53\nnameserver fe80::1%eth0\nnameserver 10.0.0.54\nnameserver dns1\noptions rotate ndots:2 timeout:1\nnameserver\nsearch x.example y.example.\n\xff\xfe\n"))
	want := ResolvConf{Servers: []string{"10.0.0.53", "fd00::53", "fe80::1%eth0"}, Search: []string{"x.example", "y.example."}, NDots: 2, Bad: []string{"dns1"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, want := range map[string]string{
		"node1": "node1.x.example. node1.y.example. node1.", "a.b.c": "a.b.c. a.b.c.x.example. a.b.c.y.example.", "node1.": "node1.",
	} {
		if list := strings.Join(got.Candidates(name), " "); list != want {
			t.Errorf("%s: %s, want %s", name, list, want)
		}
	}
}

func TestRecordedReply(t *testing.T) {
	t.Parallel()
	data := []byte("node1. A 0.003 0 1\nnode2. * 0.1 3 0\nnode3. A x 0 0\nnode4. A 1 zero 0\nnode5. A 0 refused 0\nnode6. A 0 garbage 0\n. NS 0.01 0 13\n")
	for name, want := range map[string]error{"node1.": nil, "NODE2.": nil, "node3.": ErrNotRecorded, "node4.": ErrNotRecorded, "node5.": syscall.ECONNREFUSED, "node6.": ErrBadReply, "node7.": ErrNoReply} {
		if r, took, err := findRecordedReply(data, name, DNSTypeA); !errors.Is(err, want) || name == "node1." && (r.Answers != 1 || took != 3*time.Millisecond) {
			t.Errorf("%s: %+v, %s, %v, want %v", name, r, took, err, want)
		}
	}
}

func FuzzDNS(f *testing.F) {
	query, err := encodeQuery("node1.cluster.example.", DNSTypeA)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(replyTo(query, DNSNoError, 2)[2:], "nameserver 10.0.0.53")
	f.Add(replyTo(query, DNSNoName, 0)[2:], "options ndots:99999999999999999999")
	f.Fuzz(func(t *testing.T, message []byte, conf string) {
		m := append(append([]byte(nil), query[:2]...), message...)
		if r, err := parseDNS(m, query); err == nil && (r.Code < 0 || r.Code > 15 || r.Answers > len(m)) {
			t.Errorf("%x: %+v", m, r)
		}
		if c := parseResolvConf([]byte(conf)); len(c.Servers) > maxServers || c.NDots > maxNDots || c.NDots < 0 {
			t.Errorf("%q: %+v", conf, c)
		}
	})
}
