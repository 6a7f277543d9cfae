package network

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

const (
	inetHead = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	unixHead = "Num       RefCount Protocol Flags    Type St Inode Path\n"
)

// hexAddress formats an address as the kernel does.
func hexAddress(a netip.AddrPort) string {
	text, b := "", a.Addr().AsSlice()
	for i := 0; i < len(b); i += 4 {
		text += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(b[i:]))
	}
	return fmt.Sprintf("%s:%04X", text, a.Port())
}

// inetLineOf returns a line of /proc/net/tcp.
func inetLineOf(local, remote, state string, uid, inode int) string {
	return fmt.Sprintf("%4d: %s %s %s 00000000:00000000 00:00000000 00000000 %5d        0 %d 1 0000000000000000 100 0 0 10 0\n",
		0, hexAddress(netip.MustParseAddrPort(local)), hexAddress(netip.MustParseAddrPort(remote)), state, uid, inode)
}

// row formats a socket as ss would.
func row(s Socket) string {
	owner := "-"
	if s.Owned {
		owner = fmt.Sprint(s.UID)
	}
	return strings.Join([]string{s.State, s.Type, s.Local(), s.Remote(), owner, fmt.Sprint(s.Inode)}, " ")
}

func rows(t *testing.T, h *probe.Host, protocol string) []string {
	t.Helper()
	sockets, err := Sockets(h, protocol)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, s := range sockets {
		list = append(list, row(s))
	}
	return list
}

func TestSockets(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		"proc/net/tcp": inetHead +
			inetLineOf("0.0.0.0:22", "0.0.0.0:0", "0A", 0, 87) +
			inetLineOf("10.1.2.3:22", "10.9.8.7:60000", "01", 5001, 88) +
			inetLineOf("10.1.2.3:80", "10.9.8.7:1", "06", 0, 0) +
			inetLineOf("10.1.2.3:81", "10.9.8.7:1", "03", 33, 0) +
			inetLineOf("10.1.2.3:82", "10.9.8.7:1", "0F", 4294967295, 18446744073709551),
		"proc/net/tcp6": inetHead +
			inetLineOf("[::]:6022", "[::]:0", "0A", 0, 90) +
			inetLineOf("[::1]:6023", "[::]:0", "0A", 0, 91) +
			inetLineOf("[::ffff:127.0.0.1]:6024", "[::]:0", "0A", 0, 96) +
			inetLineOf("[::ffff:127.0.0.1]:36836", "[::ffff:127.0.0.1]:6025", "08", 0, 92) +
			inetLineOf("[fe80::a:b]:546", "[2001:db8:0:1::2]:65535", "02", 0, 93),
		"proc/net/udp": inetHead + inetLineOf("127.0.0.1:514", "0.0.0.0:0", "07", 0, 94),
		"proc/net/raw": inetHead + inetLineOf("0.0.0.0:1", "0.0.0.0:0", "07", 0, 95),
		"proc/net/unix": unixHead +
			"0000000000000000: 00000002 00000000 00010000 0001 01 18265 /run/my.sock\n" +
			"00000000c847ee09: 00000003 00000000 00000000 0002 03 18267 /run/with blank\n" +
			"0000000066a3816c: 00000002 00000000 00010000 0005 01 18269 @ab@stract\n" +
			"00000000b948d0fa: 00000003 00000000 00000000 0001 03  1607\n" +
			"00000000b948d0fb: 00000003 00000000 00000000 0001 02     0 /run/my.sock\n" +
			"00000000b948d0fc: 00000003 00000000 00000000 0002 01  1608 /tmp/a\nFFFF: b\n\n",
	}))
	for protocol, want := range map[string][]string{
		"tcp": {
			"LISTEN  0.0.0.0:22 0.0.0.0:* 0 87",
			"ESTABLISHED  10.1.2.3:22 10.9.8.7:60000 5001 88",
			"TIME-WAIT  10.1.2.3:80 10.9.8.7:1 - 0",
			"SYN-RECV  10.1.2.3:81 10.9.8.7:1 33 0",
			"UNKNOWN  10.1.2.3:82 10.9.8.7:1 4294967295 18446744073709551",
			"LISTEN  *:6022 *:* 0 90",
			"LISTEN  [::1]:6023 [::]:* 0 91",
			"LISTEN  [::ffff:127.0.0.1]:6024 *:* 0 96",
			"CLOSE-WAIT  [::ffff:127.0.0.1]:36836 [::ffff:127.0.0.1]:6025 0 92",
			"SYN-SENT  [fe80::a:b]:546 [2001:db8:0:1::2]:65535 0 93",
		},
		"udp": {"UNCONN  127.0.0.1:514 0.0.0.0:* 0 94"},
		"raw": {"UNCONN  0.0.0.0:1 0.0.0.0:* 0 95"},
		"unix": {
			"LISTEN STREAM /run/my.sock  - 18265",
			"ESTABLISHED DGRAM /run/with blank  - 18267",
			"ESTABLISHED STREAM *  - 1607",
			"UNCONN DGRAM /tmp/a\nFFFF: b\n  - 1608",
		},
		"u_seq": {"LISTEN  @ab@stract  - 18269"},
	} {
		if diff := cmp.Diff(want, rows(t, h, protocol)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", protocol, diff)
		}
	}
}

func TestNetstat(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddrPort
	for want, s := range map[string]Socket{
		"tcp 10.1.2.3:22 10.9.8.7:60000 ESTABLISHED ":  {State: "ESTABLISHED", LocalAddress: addr("10.1.2.3:22"), RemoteAddress: addr("10.9.8.7:60000")},
		"tcp6 :::22 :::* LISTEN ":                      {State: "LISTEN", LocalAddress: addr("[::]:22"), RemoteAddress: addr("[::]:0")},
		"tcp6 ::1:25 :::* LISTEN ":                     {State: "LISTEN", LocalAddress: addr("[::1]:25"), RemoteAddress: addr("[::]:0")},
		"tcp6 127.0.0.1:80 127.0.0.1:6025 CLOSE_WAIT ": {State: "CLOSE-WAIT", LocalAddress: addr("[::ffff:127.0.0.1]:80"), RemoteAddress: addr("[::ffff:127.0.0.1]:6025")},
		"unix /run/my.sock  LISTENING STREAM":          {State: "LISTEN", Type: "STREAM", path: "/run/my.sock"},
		"unix   CONNECTED DGRAM":                       {State: "ESTABLISHED", Type: "DGRAM"},
		"unix @x   DGRAM":                              {State: "UNCONN", Type: "DGRAM", path: "@x"},
	} {
		n := s.AsNetstat("tcp")
		if got := strings.Join([]string{n.Protocol(), n.Local(), n.Remote(), n.State(), n.Type()}, " "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := (&Socket{}).AsNetstat("u_seq").Type(); got != "SEQPACKET" {
		t.Errorf("type %q", got)
	}
}

func TestSocketsOfBrokenNodes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		files          map[string]string
		protocol, want string
	}{
		"no /proc":       {map[string]string{"etc/": ""}, "tcp", "read /proc/net/tcp: no such file or directory"},
		"a directory":    {map[string]string{"proc/net/tcp/": ""}, "tcp", "read /proc/net/tcp: is a directory"},
		"no IPv6":        {map[string]string{"proc/net/tcp": inetHead}, "tcp", ""},
		"no raw sockets": {map[string]string{"proc/net/tcp": inetHead}, "raw", ""},
		"empty":          {map[string]string{"proc/net/udp": ""}, "udp", "parse /proc/net/udp: not a list of sockets"},
		"garbage":        {map[string]string{"proc/net/unix": "\xff\x00\n"}, "unix", "parse /proc/net/unix: not a list of sockets"},
		"bad line":       {map[string]string{"proc/net/tcp": inetHead + "0: zz\n"}, "tcp", `parse /proc/net/tcp: not a socket: "0: zz\n"`},
		"bad IPv6 line":  {map[string]string{"proc/net/tcp": inetHead, "proc/net/tcp6": inetHead + "x"}, "tcp", `parse /proc/net/tcp6: not a socket: "x"`},
		"bad first path": {map[string]string{"proc/net/unix": unixHead + "x\n"}, "u_seq", `parse /proc/net/unix: not a socket: "x"`},
		"cut":            {map[string]string{"proc/net/tcp": inetHead + inetLineOf("0.0.0.0:22", "0.0.0.0:0", "0A", 0, 87)[:60]}, "tcp", `parse /proc/net/tcp: not a socket: "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Sockets(probe.NewHost(probetest.Tree(t, tt.files)), tt.protocol)
			if probetest.Message(err) != tt.want || len(got) != 0 {
				t.Errorf("Sockets = %v, %v; want error %q", got, err, tt.want)
			}
		})
	}
}

// TestSocketsOfThisMachine finds a socket that it opens.
func TestSocketsOfThisMachine(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := probe.NewHost("/")
	sockets, err := Sockets(h, "tcp")
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(sockets, func(s Socket) bool { return s.Local() == l.Addr().String() && s.State == "LISTEN" })
	if at < 0 {
		t.Fatalf("%s is not among %d sockets", l.Addr(), len(sockets))
	}
	holders, err := Holders(h)
	if err != nil {
		t.Fatal(err)
	}
	if s := sockets[at]; !s.Owned || s.UID != uint32(os.Geteuid()) || holders[s.Inode].PID != os.Getpid() {
		t.Errorf("%+v is held by %+v, want process %d", s, holders[s.Inode], os.Getpid())
	}
}

// FuzzInetSockets checks that formatting and parsing a parsed socket returns the same socket.
func FuzzInetSockets(f *testing.F) {
	f.Add([]byte(inetHead + inetLineOf("10.1.2.3:22", "10.9.8.7:60000", "01", 5001, 88)))
	f.Add([]byte(inetHead + inetLineOf("[::]:6022", "[::]:0", "0A", 0, 90) + inetLineOf("[::ffff:1.2.3.4]:1", "[fe80::1]:2", "0B", 0, 0)))
	f.Add([]byte(inetHead + "   0: 00000000:0016 00000000:0000 0A\n"))
	f.Add([]byte("local_address\n\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := parseInetSockets(data)
		if err != nil {
			return
		}
		text := inetHead
		for _, s := range first {
			text += fmt.Sprintf("0: %s %s %02X 0:0 0:0 0 %d 0 %d\n", hexAddress(s.LocalAddress), hexAddress(s.RemoteAddress), slices.Index(inetStates[:], s.State)&0xff, s.UID, s.Inode)
		}
		second, err := parseInetSockets([]byte(text))
		if err != nil || len(second) != len(first) {
			t.Fatalf("%q: %d sockets, again: %d, %v", data, len(first), len(second), err)
		}
		for i := range first {
			if row(first[i]) != row(second[i]) {
				t.Errorf("%q, again: %q", row(first[i]), row(second[i]))
			}
		}
	})
}

// FuzzUnixSockets checks the same property.
func FuzzUnixSockets(f *testing.F) {
	f.Add([]byte(unixHead + "0: 2 0 00010000 0001 01 18265 /run/my.sock\n0: 3 0 0 0002 03 18267 /a b\n0: 3 0 0 5 3 1 \n"))
	f.Add([]byte(unixHead + "0: 3 0 0 1 2 0 /x\n0: 3 0 0 2 1 8 a\nb\n\n0: 3 0 0 2 1 8"))
	f.Add([]byte("Num \n: \n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := parseUnixSockets(data)
		if err != nil {
			return
		}
		text := unixHead
		for _, s := range first {
			flags, state, kind := 0, 1, 5
			switch s.State {
			case "LISTEN":
				flags = 1 << 16
			case "ESTABLISHED":
				state = 3
			}
			switch s.Type {
			case "STREAM":
				kind = 1
			case "DGRAM":
				kind = 2
			}
			text += fmt.Sprintf("0: 2 0 %08X %04X %02X %d %s\n", flags, kind, state, s.Inode, s.path)
		}
		second, err := parseUnixSockets([]byte(text))
		if err != nil || len(second) != len(first) {
			t.Fatalf("%q: %d sockets, again: %d, %v", data, len(first), len(second), err)
		}
		for i := range first {
			if row(first[i]) != row(second[i]) {
				t.Errorf("%q, again: %q", row(first[i]), row(second[i]))
			}
		}
	})
}

// BenchmarkSockets reads the sockets of this machine after it has added ten thousand.
func BenchmarkSockets(b *testing.B) {
	const many = 10_000
	for protocol, open := range map[string]func() (io.Closer, error){
		"tcp": func() (io.Closer, error) { return net.Listen("tcp4", "127.0.0.1:0") },
		"udp": func() (io.Closer, error) { return net.ListenPacket("udp4", "127.0.0.1:0") },
	} {
		b.Run(protocol, func(b *testing.B) {
			for range many {
				c, err := open()
				if err != nil {
					b.Skipf("open a socket: %v", err)
				}
				defer c.Close()
			}
			b.ReportAllocs()
			for b.Loop() {
				sockets, err := Sockets(probe.NewHost("/"), protocol)
				if err != nil || len(sockets) < many {
					b.Fatalf("%d sockets: %v", len(sockets), err)
				}
			}
		})
	}
}
