package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// diagAnswer returns a struct inet_diag_msg.
func diagAnswer(family, state uint8, local, remote string, uid, inode uint32) []byte {
	a, b := netip.MustParseAddrPort(local), netip.MustParseAddrPort(remote)
	body := make([]byte, 72)
	body[0], body[1] = family, state
	binary.BigEndian.PutUint16(body[4:], a.Port())
	binary.BigEndian.PutUint16(body[6:], b.Port())
	copy(body[8:], a.Addr().AsSlice())
	copy(body[24:], b.Addr().AsSlice())
	binary.NativeEndian.PutUint32(body[64:], uid)
	binary.NativeEndian.PutUint32(body[68:], inode)
	return body
}

func TestDiagSocket(t *testing.T) {
	t.Parallel()
	for want, body := range map[string][]byte{
		"LISTEN  0.0.0.0:22 0.0.0.0:* 0 87":                                               diagAnswer(unix.AF_INET, 10, "0.0.0.0:22", "0.0.0.0:0", 0, 87),
		"ESTABLISHED  10.1.2.3:22 10.9.8.7:60000 5001 88":                                 diagAnswer(unix.AF_INET, 1, "10.1.2.3:22", "10.9.8.7:60000", 5001, 88),
		"TIME-WAIT  10.1.2.3:80 10.9.8.7:1 - 0":                                           diagAnswer(unix.AF_INET, 6, "10.1.2.3:80", "10.9.8.7:1", 0, 0),
		"SYN-RECV  10.1.2.3:81 10.9.8.7:1 33 0":                                           diagAnswer(unix.AF_INET, 3, "10.1.2.3:81", "10.9.8.7:1", 33, 0),
		"UNKNOWN  10.1.2.3:82 10.9.8.7:1 4294967295 4294967295":                           diagAnswer(unix.AF_INET, 255, "10.1.2.3:82", "10.9.8.7:1", 4294967295, 4294967295),
		"UNKNOWN  10.1.2.3:83 10.9.8.7:1 1 1":                                             diagAnswer(unix.AF_INET, 0, "10.1.2.3:83", "10.9.8.7:1", 1, 1),
		"LISTEN  *:6022 *:* 0 90":                                                         diagAnswer(unix.AF_INET6, 10, "[::]:6022", "[::]:0", 0, 90),
		"CLOSE-WAIT  [::ffff:127.0.0.1]:36836 [::ffff:127.0.0.1]:6025 0 92":               diagAnswer(unix.AF_INET6, 8, "[::ffff:127.0.0.1]:36836", "[::ffff:127.0.0.1]:6025", 0, 92),
		"UNCONN  [fe80::a:b]:546 [::]:* 0 93":                                             append(diagAnswer(unix.AF_INET6, 7, "[fe80::a:b]:546", "[::]:0", 0, 93), "attributes"...),
		"not a socket: 02":                                                                {2},
		"not a socket: ":                                                                  {},
		fmt.Sprintf("not a socket: %x", diagAnswer(1, 1, "1.2.3.4:1", "1.2.3.4:1", 0, 1)): diagAnswer(1, 1, "1.2.3.4:1", "1.2.3.4:1", 0, 1),
		"no sock_diag": diagAnswer(unix.AF_INET, 3, "10.1.2.3:81", "10.9.8.7:1", 0, 0),
	} {
		s, err := parseDiagSocket(body)
		got := probetest.Message(err)
		if err == nil {
			got = row(s)
		}
		if got != want {
			t.Errorf("diagSocket(%x) = %q, want %q", body, got, want)
		}
	}
}

// FuzzDiagSockets checks that formatting and parsing a parsed socket returns the same socket.
func FuzzDiagSockets(f *testing.F) {
	f.Add(packet(unix.SOCK_DIAG_BY_FAMILY, 7, diagAnswer(unix.AF_INET, 10, "0.0.0.0:22", "0.0.0.0:0", 0, 87)))
	f.Add(packet(unix.SOCK_DIAG_BY_FAMILY, 7, diagAnswer(unix.AF_INET6, 1, "[::1]:22", "[::1]:1", 1, 2)[:70]))
	f.Add(append(packet(unix.SOCK_DIAG_BY_FAMILY, 7, diagAnswer(unix.AF_INET6, 8, "[::1]:22", "[::1]:1", 1, 2)), packet(unix.NLMSG_DONE, 7, nil)...))
	f.Add([]byte("\x10\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = parseNetlink(data, 7, func(body []byte) error {
			s, err := parseDiagSocket(body)
			if err != nil {
				return err
			}
			again, err := parseDiagSocket(diagAnswer(body[0], body[1], s.LocalAddress.String(), s.RemoteAddress.String(), s.UID, uint32(s.Inode)))
			if err != nil || row(again) != row(s) {
				t.Errorf("%q, again: %q, %v", row(s), row(again), err)
			}
			return nil
		})
	})
}

// TestIsPartOfKernel checks that sock_diag is used only if the kernel loads no module for it.
func TestIsPartOfKernel(t *testing.T) {
	t.Parallel()
	const release, modprobe, modules = "proc/sys/kernel/osrelease", "proc/sys/kernel/modprobe", "proc/modules"
	for name, tt := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"not loaded":       {map[string]string{release: "6.8\n", modprobe: "/sbin/modprobe\n", modules: "inet_diag 1 0 - Live 0x0\n", "sys/module/inet_diag/": ""}, false},
		"loaded":           {map[string]string{release: "6.8\n", modprobe: "/sbin/modprobe\n", modules: "", "sys/module/tcp_diag/": ""}, true},
		"built in":         {map[string]string{release: "6.8\n", modprobe: "\n", "lib/modules/6.8/modules.builtin": "kernel/net/ipv4/tcp_diag.ko\n"}, true},
		"built in another": {map[string]string{release: "6.9\n", modprobe: "\n", "lib/modules/6.8/modules.builtin": "kernel/net/ipv4/tcp_diag.ko\n"}, false},
		"no modules":       {map[string]string{release: "6.8\n"}, true},
		"modules hidden":   {map[string]string{release: "6.8\n", modprobe: "/sbin/modprobe\n"}, false},
		"no modprobe":      {map[string]string{release: "6.8\n", modules: "x 1 0 - Live 0x0\n"}, false},
		"nothing in /proc": {map[string]string{"proc/": ""}, false},
	} {
		if got := isPartOfKernel(probe.NewHost(probetest.Tree(t, tt.files)), "tcp_diag"); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	for _, protocol := range []string{"tcp", "udp"} {
		if _, err := listDiagSockets(probe.NewHost(probetest.Tree(t, map[string]string{release: "6.8\n"})), protocol); !errors.Is(err, errNoDiag) {
			t.Errorf("%s of another root: %v", protocol, err)
		}
	}
}

// openSockets opens sockets in every permanent state, and returns their addresses.
func openSockets(t *testing.T) (mine map[netip.AddrPort]bool) {
	t.Helper()
	mine = map[netip.AddrPort]bool{}
	keep := func(c io.Closer, a net.Addr) {
		t.Cleanup(func() { c.Close() })
		at := netip.MustParseAddrPort(a.String())
		for _, ip := range []netip.Addr{at.Addr(), netip.AddrFrom16(at.Addr().As16())} { // or IPv4 on an IPv6 socket
			mine[netip.AddrPortFrom(ip, at.Port())] = true
		}
	}
	for _, l := range []struct {
		network, address string
		clients          []string
	}{
		{"tcp4", "127.0.0.1", []string{"127.0.0.1"}},
		{"tcp4", "0.0.0.0", []string{"127.0.0.1"}},
		{"tcp6", "::1", []string{"::1"}},
		{"tcp", "::", []string{"::1", "127.0.0.1"}}, // the latter is an IPv4 address on an IPv6 socket
	} {
		listener, err := net.Listen(l.network, net.JoinHostPort(l.address, "0"))
		if err != nil {
			t.Logf("no socket at %s: %v", l.address, err)
			continue
		}
		keep(listener, listener.Addr())
		for _, to := range l.clients {
			connect(t, listener, net.JoinHostPort(to, fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)), keep)
		}
		datagrams, err := net.ListenPacket("udp", net.JoinHostPort(l.address, "0"))
		if err != nil {
			t.Fatal(err)
		}
		keep(datagrams, datagrams.LocalAddr())
		client, err := net.Dial("udp", datagrams.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		keep(client, client.LocalAddr())
	}
	return mine
}

// connect creates three connections: an open one, one that the client has closed and one that both
// ends have closed.
func connect(t *testing.T, l net.Listener, to string, keep func(io.Closer, net.Addr)) {
	t.Helper()
	for i := range 3 {
		client, err := net.Dial("tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		keep(client, client.LocalAddr())
		keep(server, server.LocalAddr())
		if i > 0 {
			client.Close()
			_, _ = server.Read(make([]byte, 1)) // until it is closed
		}
		if i > 1 {
			server.Close()
		}
	}
}

// TestDiagSocketsOfThisMachine compares both sources on the same sockets.
func TestDiagSocketsOfThisMachine(t *testing.T) {
	t.Parallel()
	mine := openSockets(t)
	only := func(sockets []Socket, err error) (list []string) {
		if _, ok := errors.AsType[unix.Errno](err); ok || errors.Is(err, errNoDiag) {
			t.Skip("this kernel has no sock_diag ready:", err)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sockets {
			if mine[s.LocalAddress] {
				list = append(list, row(s))
			}
		}
		slices.Sort(list)
		return slices.Compact(list) // /proc/net can repeat a socket while others come and go
	}
	states := map[string]bool{}
	for _, protocol := range []string{"tcp", "udp"} {
		for {
			before := only(readInetFiles(probe.NewHost("/"), protocol))
			got := only(listDiagSockets(probe.NewHost("/"), protocol))
			if !slices.Equal(before, only(readInetFiles(probe.NewHost("/"), protocol))) {
				continue // a connection was still closing
			}
			if diff := cmp.Diff(before, got); diff != "" {
				t.Errorf("%s (-/proc/net +sock_diag):\n%s", protocol, diff)
			}
			for _, s := range got {
				var state string
				_, _ = fmt.Sscan(s, &state)
				states[state] = true
			}
			break
		}
	}
	for _, s := range []string{"LISTEN", "ESTABLISHED", "CLOSE-WAIT", "TIME-WAIT", "UNCONN"} {
		if !states[s] {
			t.Errorf("no socket was %s: %v", s, states)
		}
	}
}
