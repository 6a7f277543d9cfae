package network

import (
	"net/netip"
	"strconv"
)

// Netstat is a socket in the words of netstat, which LBNL NHC prefers to ss where both are installed.
type Netstat struct {
	*Socket
	protocol string
}

// AsNetstat returns a socket of a protocol of [SocketProtocols] in the words of netstat.
func (s *Socket) AsNetstat(protocol string) Netstat { return Netstat{s, protocol} }

// Protocol returns tcp, udp or raw for IPv4, tcp6, udp6 or raw6 for IPv6, or unix.
func (n Netstat) Protocol() string {
	switch {
	case !n.LocalAddress.IsValid():
		return "unix"
	case n.LocalAddress.Addr().Is4():
		return n.protocol
	}
	return n.protocol + "6"
}

// Local returns the local address: "0.0.0.0:22", ":::22", "::1:25", or the path of a Unix socket, "" of
// one without a name.
func (n Netstat) Local() string {
	if n.LocalAddress.IsValid() {
		return joinNetstat(n.LocalAddress)
	}
	return n.path
}

// Remote returns the address of the other end, "0.0.0.0:*" or ":::*" if there is none.
func (n Netstat) Remote() string {
	if n.RemoteAddress.IsValid() {
		return joinNetstat(n.RemoteAddress)
	}
	return ""
}

func joinNetstat(a netip.AddrPort) string {
	port := "*"
	if a.Port() != 0 {
		port = strconv.Itoa(int(a.Port()))
	}
	return a.Addr().Unmap().String() + ":" + port
}

// netstatStates are the states that netstat names in another way than ss (tcp_state in net-tools'
// netstat.c). It shows none for a UDP socket without a connection.
var netstatStates = map[string]string{
	"SYN-SENT": "SYN_SENT", "SYN-RECV": "SYN_RECV", "FIN-WAIT-1": "FIN_WAIT1", "FIN-WAIT-2": "FIN_WAIT2",
	"TIME-WAIT": "TIME_WAIT", "CLOSE-WAIT": "CLOSE_WAIT", "LAST-ACK": "LAST_ACK", "UNCONN": "",
}

// State returns the state: LISTEN, TIME_WAIT ...; LISTENING or CONNECTED of a Unix socket; "" if there is
// none.
func (n Netstat) State() string {
	if !n.LocalAddress.IsValid() {
		return map[string]string{"LISTEN": "LISTENING", "ESTABLISHED": "CONNECTED"}[n.Socket.State]
	}
	if name, ok := netstatStates[n.Socket.State]; ok {
		return name
	}
	return n.Socket.State
}

// Type returns STREAM, DGRAM or SEQPACKET for a Unix socket.
func (n Netstat) Type() string {
	if n.protocol == "u_seq" {
		return "SEQPACKET"
	}
	return n.Socket.Type
}
