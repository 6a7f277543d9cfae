package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// sock_diag lists the sockets of a protocol over netlink, as ss reads them. With the 262,144
// hash buckets of a large node and few sockets it costs a seventh of the CPU time of
// /proc/net/tcp and tcp6.

// diagModules are the parts of the kernel that answer for a protocol, each with its number.
// They need inet_diag, which is there if they are.
var diagModules = map[string]struct {
	name   string
	number uint8
}{
	"tcp": {"tcp_diag", unix.IPPROTO_TCP},
	"udp": {"udp_diag", unix.IPPROTO_UDP},
}

// errNoDiag says that only /proc/net has the sockets.
var errNoDiag = errors.New("no sock_diag")

// diagSockets lists the TCP or UDP sockets of this machine by sock_diag. After any error
// /proc/net has the answer.
func (h *Host) diagSockets(protocol string) (sockets []Socket, err error) {
	module := diagModules[protocol]
	if h.root != "/" || !h.isPartOfKernel(module.name) {
		return nil, errNoDiag
	}
	n, err := dialNetlink(unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer n.close()
	for _, family := range [...]uint8{unix.AF_INET, unix.AF_INET6} {
		err := n.exchange(unix.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, diagRequest(family, module.number), func(body []byte) error {
			s, err := diagSocket(body)
			sockets = append(sockets, s)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return sockets, nil
}

// isPartOfKernel reports that the kernel has a module already, or is built without modules. A
// request for a missing one makes the kernel load it (sock_load_diag_module in
// net/core/sock_diag.c), which a health check must not do.
func (h *Host) isPartOfKernel(module string) bool {
	noModules := h.TestFile('d', "/proc/sys/kernel") && !h.TestFile('e', "/proc/sys/kernel/modprobe") && !h.TestFile('e', "/proc/modules")
	return noModules || h.BuiltIn(module)
}

// struct inet_diag_req_v2 and struct inet_diag_msg (linux/inet_diag.h).
const (
	diagRequestSize = 56
	diagAnswerSize  = 72
	diagStates      = 1<<13 - 2 // 1 to 11, and 12, which both sources show as SYN-RECV
)

// diagRequest asks for all sockets of a family and a protocol.
func diagRequest(family, protocol uint8) []byte {
	request := make([]byte, diagRequestSize)
	request[0], request[1] = family, protocol
	binary.NativeEndian.PutUint32(request[4:], diagStates)
	return request
}

// diagSocket reads an answer. It returns [errNoDiag] for a half-open connection without an
// owner: only /proc/net/tcp names that of its listener (tcp_req_diag_fill in the kernel).
func diagSocket(body []byte) (Socket, error) {
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
		State:  inetStateName(body[1]),
		UID:    binary.NativeEndian.Uint32(body[64:]),
		Inode:  uint64(binary.NativeEndian.Uint32(body[68:])),
		local:  netip.AddrPortFrom(local, binary.BigEndian.Uint16(body[4:])),
		remote: netip.AddrPortFrom(remote, binary.BigEndian.Uint16(body[6:])),
	}
	s.Owned = isOwned(s.Inode, s.UID)
	if s.State == "SYN-RECV" && !s.Owned {
		return Socket{}, errNoDiag
	}
	return s, nil
}
