package network

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// SocketProtocols are the protocols that [Sockets] accepts, named as in ss. IPv4 and IPv6 are one
// protocol; u_seq are Unix sockets of type SEQPACKET.
var SocketProtocols = [...]string{"tcp", "udp", "raw", "unix", "u_seq"}

// Socket is one socket in the terms of ss.
type Socket struct {
	State string // LISTEN, UNCONN, TIME-WAIT ...; ESTABLISHED, which ss abbreviates
	Type  string // of a unix socket: STREAM or DGRAM
	Inode uint64 // 0: no process has it any more, or none has it yet
	UID   uint32 // owner, if Owned
	Owned bool   // the kernel knows the owner

	LocalAddress, RemoteAddress netip.AddrPort
	path                        string // of a Unix socket
}

// Local returns the local address of the socket: "127.0.0.1:25", "[::1]:25", "0.0.0.0:22" and
// "*:22" (IPv6) for every address, the path of a Unix socket, "@name" of one without a path, "*" of
// one without a name.
func (s Socket) Local() string {
	if s.LocalAddress.IsValid() {
		return formatAddress(s.LocalAddress)
	}
	if s.path == "" {
		return "*"
	}
	return s.path
}

// Remote returns the address of the other end. If there is none it returns "0.0.0.0:*", "*:*" or
// "[::]:*"; the last is for a socket bound to an IPv6 address, which accepts no IPv4 (__inet6_bind
// in the kernel's net/ipv6/af_inet6.c). For a Unix socket it is empty.
func (s Socket) Remote() string {
	if !s.RemoteAddress.IsValid() {
		return ""
	}
	local, none := s.LocalAddress.Addr(), s.RemoteAddress == netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
	if none && local.Is6() && !local.IsUnspecified() && !local.Is4In6() {
		return "[::]:*"
	}
	return formatAddress(s.RemoteAddress)
}

// formatAddress formats an address as ss -n does. The port of a raw socket is its protocol.
func formatAddress(a netip.AddrPort) string {
	b := make([]byte, 0, 48)
	switch ip := a.Addr(); {
	case ip.Is4():
		b = ip.AppendTo(b)
	case ip.IsUnspecified():
		b = append(b, '*')
	default:
		b = append(ip.AppendTo(append(b, '[')), ']')
	}
	b = append(b, ':')
	if a.Port() == 0 {
		return string(append(b, '*'))
	}
	return string(strconv.AppendUint(b, uint64(a.Port()), 10))
}

// Sockets lists the sockets of a protocol in the network namespace of this process.
//
// TCP and UDP come from sock_diag if the kernel has it loaded (listDiagSockets), the others from
// /proc/net. sock_diag has two more properties: the interface of a bound socket, and whether an
// IPv6 socket accepts IPv4, too. ss shows them as "0.0.0.0%eth0:68" and "[::]:22". Sockets shows
// "0.0.0.0:68" and "*:22" from either source.
func Sockets(h *probe.Host, protocol string) ([]Socket, error) {
	return probe.Once(h, "sockets "+protocol, func() ([]Socket, error) {
		switch protocol {
		case "unix", "u_seq":
			all, err := readSocketFile(h, "unix", parseUnixSockets)
			return filterProtocol(all, protocol), err
		case "tcp", "udp":
			if sockets, err := listDiagSockets(h, protocol); err == nil {
				return sockets, nil
			}
		}
		return readInetFiles(h, protocol)
	})
}

// readInetFiles reads the sockets of a protocol, IPv4 and IPv6, from /proc/net.
func readInetFiles(h *probe.Host, protocol string) ([]Socket, error) {
	four, err := readSocketFile(h, protocol, parseInetSockets)
	if err != nil {
		return nil, err
	}
	six, err := readSocketFile(h, protocol+"6", parseInetSockets)
	return append(four, six...), err
}

// filterProtocol returns one kind of Unix sockets: ss has another name for those that are neither
// streams nor datagrams.
func filterProtocol(all []Socket, protocol string) []Socket {
	var some []Socket
	for _, s := range all {
		if (s.Type == "") == (protocol == "u_seq") {
			some = append(some, s)
		}
	}
	return some
}

// readSocketFile reads a file of /proc/net. The file is missing, and there are no such sockets, if the
// kernel lacks a protocol or has IPv6 turned off.
func readSocketFile(h *probe.Host, name string, parse func([]byte) ([]Socket, error)) ([]Socket, error) {
	const dir = "/proc/net"
	path := dir + "/" + name
	return probe.Once(h, path, func() ([]Socket, error) {
		data, err := h.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) && probe.TestFile(h, 'd', dir) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		sockets, err := parse(data)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", path, err)
		}
		return sockets, nil
	})
}

var errNoSockets = errors.New("not a list of sockets")

// inetLine is the approximate length of a line of /proc/net/tcp, bytes.
const inetLine = 150

// parseInetSockets parses /proc/net/tcp, udp, raw and those of IPv6, which have the same columns
// (tcp4_seq_show and similar functions in the kernel's net/ipv4):
//
// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode ...
func parseInetSockets(data []byte) ([]Socket, error) {
	head, data, _ := bytes.Cut(data, []byte("\n"))
	if !bytes.Contains(head, []byte("local_address")) {
		return nil, errNoSockets
	}
	sockets := make([]Socket, 0, len(data)/inetLine+1)
	for line := range bytes.Lines(data) {
		s, ok := parseInetSocket(line)
		if !ok {
			return nil, fmt.Errorf("not a socket: %.100q", line)
		}
		sockets = append(sockets, s)
	}
	return sockets, nil
}

func parseInetSocket(line []byte) (s Socket, ok bool) {
	var f [10][]byte
	for i := range f {
		f[i], line = cutField(line)
	}
	local, okLocal := parseInetAddress(f[1])
	remote, okRemote := parseInetAddress(f[2])
	state, okState := parseInetState(f[3])
	uid, err1 := strconv.ParseUint(string(f[7]), 10, 32)
	inode, err2 := strconv.ParseUint(string(f[9]), 10, 64)
	if !okLocal || !okRemote || !okState || err1 != nil || err2 != nil {
		return Socket{}, false
	}
	return Socket{State: state, Inode: inode, UID: uint32(uid), Owned: isOwned(inode, uint32(uid)), LocalAddress: local, RemoteAddress: remote}, true
}

// isOwned reports whether the kernel knows the owner: for a connection that its process has closed
// it shows uid 0.
func isOwned(inode uint64, uid uint32) bool { return inode != 0 || uid != 0 }

// cutField removes the first word of a line.
func cutField(line []byte) (first, rest []byte) {
	start := 0
	for start < len(line) && isBlank(line[start]) {
		start++
	}
	end := start
	for end < len(line) && !isBlank(line[end]) {
		end++
	}
	return line[start:end], line[end:]
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' || c == '\n' }

// parseInetAddress parses a hexadecimal address, one or four 32-bit numbers in the machine's byte order,
// and a port.
func parseInetAddress(field []byte) (netip.AddrPort, bool) {
	const quad, full = 4, 16
	host, port, ok := bytes.Cut(field, []byte(":"))
	if !ok || len(port) != 4 || len(host) != 2*quad && len(host) != 2*full {
		return netip.AddrPort{}, false
	}
	var buf [full]byte
	n, err := hex.Decode(buf[:], host)
	if err != nil {
		return netip.AddrPort{}, false
	}
	for i := 0; i < n; i += quad {
		binary.NativeEndian.PutUint32(buf[i:], binary.BigEndian.Uint32(buf[i:]))
	}
	number, err := strconv.ParseUint(string(port), 16, 16)
	if err != nil {
		return netip.AddrPort{}, false
	}
	ip := netip.AddrFrom16(buf)
	if n == quad {
		ip = netip.AddrFrom4([quad]byte(buf[:]))
	}
	return netip.AddrPortFrom(ip, uint16(number)), true
}

// inetStates are the states by their numbers (include/net/tcp_states.h of the kernel) in the terms
// of ss. A socket without a connection is "closed".
var inetStates = [...]string{
	1: "ESTABLISHED", 2: "SYN-SENT", 3: "SYN-RECV", 4: "FIN-WAIT-1", 5: "FIN-WAIT-2", 6: "TIME-WAIT",
	7: "UNCONN", 8: "CLOSE-WAIT", 9: "LAST-ACK", 10: "LISTEN", 11: "CLOSING",
}

func parseInetState(field []byte) (string, bool) {
	n, err := strconv.ParseUint(string(field), 16, 8)
	if err != nil {
		return "", false
	}
	return nameInetState(uint8(n)), true
}

func nameInetState(number uint8) string {
	if number == 0 || int(number) >= len(inetStates) {
		return "UNKNOWN" // of a kernel to come
	}
	return inetStates[number]
}

// parseUnixSockets parses /proc/net/unix (unix_seq_show in the kernel's net/unix/af_unix.c):
//
// # Num RefCount Protocol Flags Type St Inode Path
//
// A process chooses the path, which may contain any character. A line that is not a socket is the
// rest of a path with a newline in it.
func parseUnixSockets(data []byte) ([]Socket, error) {
	head, data, _ := bytes.Cut(data, []byte("\n"))
	if !bytes.HasPrefix(head, []byte("Num ")) {
		return nil, errNoSockets
	}
	var sockets []Socket
	for line := range bytes.Lines(data) {
		line = bytes.TrimSuffix(line, []byte("\n"))
		s, ok := parseUnixSocket(line)
		switch {
		case ok:
			sockets = append(sockets, s)
		case len(sockets) == 0:
			return nil, fmt.Errorf("not a socket: %.100q", line)
		default:
			sockets[len(sockets)-1].path += "\n" + string(line)
		}
	}
	return keepWithInode(sockets), nil
}

// keepWithInode drops sockets that no process has accepted yet, as ss does. They are in the list until
// here because they have a path.
func keepWithInode(all []Socket) []Socket {
	some := all[:0]
	for _, s := range all {
		if s.Inode != 0 {
			some = append(some, s)
		}
	}
	return some
}

func parseUnixSocket(line []byte) (s Socket, ok bool) {
	var f [7][]byte
	for i := range f {
		f[i], line = cutField(line)
	}
	num, colon := bytes.CutSuffix(f[0], []byte(":"))
	var n [6]uint64
	for i, field := range [...][]byte{num, f[1], f[2], f[3], f[4], f[5]} {
		v, err := strconv.ParseUint(string(field), 16, 64)
		if err != nil {
			return Socket{}, false
		}
		n[i] = v
	}
	inode, err := strconv.ParseUint(string(f[6]), 10, 64)
	if !colon || err != nil {
		return Socket{}, false
	}
	return Socket{
		State: nameUnixState(n[3], n[5]),
		Type:  nameUnixType(n[4]),
		Inode: inode,
		path:  string(bytes.TrimPrefix(line, []byte(" "))),
	}, true
}

// nameUnixType returns the name of the types that ss shows under "unix".
func nameUnixType(number uint64) string {
	switch number {
	case unix.SOCK_STREAM:
		return "STREAM"
	case unix.SOCK_DGRAM:
		return "DGRAM"
	}
	return ""
}

// nameUnixState converts the flags and the state of a Unix socket to the name in ss.
func nameUnixState(flags, state uint64) string {
	const accepting, connected = 1 << 16, 3 // __SO_ACCEPTCON and SS_CONNECTED of the kernel's include/uapi/linux/net.h
	switch {
	case flags&accepting != 0:
		return "LISTEN"
	case state == connected:
		return "ESTABLISHED"
	}
	return "UNCONN"
}

// sock_diag lists the sockets of a protocol over netlink, as ss reads them. For each request about TCP
// the kernel walks all its hash buckets, 262,144 on a node with 24 GiB of memory and 524,288 on a large
// one, for milliseconds. The older request, TCPDIAG_GETSOCK, lists both families in one walk
// (inet_diag_dump_compat in the kernel's net/ipv4/inet_diag.c): with few sockets it needs a fifth of
// the CPU time of /proc/net/tcp and tcp6, and half of that of two newer requests.

// diagModules are the kernel modules that answer for a protocol. They need inet_diag, which is loaded
// if they are.
var diagModules = map[string]string{"tcp": "tcp_diag", "udp": "udp_diag"}

// errNoDiag means that only /proc/net has the sockets.
var errNoDiag = errors.New("no sock_diag")

// listDiagSockets lists the TCP or UDP sockets of this machine by sock_diag. After any error the caller
// reads /proc/net.
func listDiagSockets(h *probe.Host, protocol string) (sockets []Socket, err error) {
	if h.Recorded() || !isPartOfKernel(h, diagModules[protocol]) {
		return nil, errNoDiag
	}
	n, err := dialNetlink(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer n.close()
	requests, kind := [][]byte{encodeTCPRequest()}, uint16(tcpDiagGetSock)
	if protocol == "udp" {
		requests, kind = [][]byte{encodeUDPRequest(unix.AF_INET), encodeUDPRequest(unix.AF_INET6)}, unix.SOCK_DIAG_BY_FAMILY
	}
	for _, request := range requests {
		err := n.exchange(kind, unix.NLM_F_DUMP, request, func(body []byte) error {
			s, err := parseDiagSocket(body)
			sockets = append(sockets, s)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(sockets, func(a, b Socket) int { return a.LocalAddress.Addr().BitLen() - b.LocalAddress.Addr().BitLen() })
	return sockets, nil
}

// isPartOfKernel reports whether a module is already loaded or built in. A request for a missing
// module makes the kernel load it (sock_load_diag_module in net/core/sock_diag.c), which a health
// check must not do.
func isPartOfKernel(h *probe.Host, module string) bool {
	noModules := probe.TestFile(h, 'd', "/proc/sys/kernel") && !probe.TestFile(h, 'e', "/proc/sys/kernel/modprobe") && !probe.TestFile(h, 'e', "/proc/modules")
	return noModules || probe.BuiltIn(h, module)
}

// TCPDIAG_GETSOCK, and the sizes of struct inet_diag_req, inet_diag_req_v2 and inet_diag_msg
// (linux/inet_diag.h).
const (
	tcpDiagGetSock = 18

	tcpRequestSize = 60
	udpRequestSize = 56
	diagAnswerSize = 72
	diagStates     = 1<<13 - 2 // 1 to 11, and 12, which both sources show as SYN-RECV
)

// encodeTCPRequest encodes a request for all TCP sockets of both families.
func encodeTCPRequest() []byte {
	request := make([]byte, tcpRequestSize)
	binary.NativeEndian.PutUint32(request[52:], diagStates)
	return request
}

// encodeUDPRequest encodes a request for all UDP sockets of a family.
func encodeUDPRequest(family uint8) []byte {
	request := make([]byte, udpRequestSize)
	request[0], request[1] = family, unix.IPPROTO_UDP
	binary.NativeEndian.PutUint32(request[4:], diagStates)
	return request
}

// parseDiagSocket parses an answer. It returns [errNoDiag] for a half-open connection without an owner:
// only /proc/net/tcp has its listener's (tcp_req_diag_fill in the kernel).
func parseDiagSocket(body []byte) (Socket, error) {
	if len(body) < diagAnswerSize {
		return Socket{}, fmt.Errorf("not a socket: %x", body)
	}
	var local, remote netip.Addr
	switch body[0] {
	case unix.AF_INET:
		local, remote = netip.AddrFrom4([4]byte(body[8:])), netip.AddrFrom4([4]byte(body[24:]))
	case unix.AF_INET6:
		local, remote = netip.AddrFrom16([16]byte(body[8:])), netip.AddrFrom16([16]byte(body[24:]))
	default:
		return Socket{}, fmt.Errorf("not a socket: %x", body)
	}
	s := Socket{
		State:         nameInetState(body[1]),
		UID:           binary.NativeEndian.Uint32(body[64:]),
		Inode:         uint64(binary.NativeEndian.Uint32(body[68:])),
		LocalAddress:  netip.AddrPortFrom(local, binary.BigEndian.Uint16(body[4:])),
		RemoteAddress: netip.AddrPortFrom(remote, binary.BigEndian.Uint16(body[6:])),
	}
	s.Owned = isOwned(s.Inode, s.UID)
	if s.State == "SYN-RECV" && !s.Owned {
		return Socket{}, errNoDiag
	}
	return s, nil
}
