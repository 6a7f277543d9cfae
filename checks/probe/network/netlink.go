package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// netlink is a socket of netlink. The netlink library of other packages supports neither devlink's
// reporters nor the memory of a transceiver.
type netlink struct {
	fd  int
	seq uint32
}

// netlinkWait bounds the wait for one answer of the kernel. It does not help if the driver hangs;
// then the parent ends this process.
const netlinkWait = 1 // seconds

// dialGenl opens generic netlink, whose requests consist of attributes, as ethtool and devlink send
// them.
func dialGenl() (*netlink, error) {
	n, err := dialNetlink(unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("open generic netlink: %w", err)
	}
	return n, nil
}

func dialNetlink(protocol int) (*netlink, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, err
	}
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: netlinkWait}))
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &netlink{fd: fd}, nil
}

func (n *netlink) close() { unix.Close(n.fd) }

// attr is an attribute of netlink.
type attr struct {
	kind  uint16
	value []byte
}

const (
	attrHeader = 4
	attrAlign  = 4
	genlHeader = 4
)

// putAttr appends an attribute.
func putAttr(to []byte, kind uint16, value []byte) []byte {
	to = binary.NativeEndian.AppendUint16(to, uint16(attrHeader+len(value)))
	to = binary.NativeEndian.AppendUint16(to, kind)
	to = append(to, value...)
	for len(to)%attrAlign != 0 {
		to = append(to, 0)
	}
	return to
}

// putText appends a text attribute with its final zero byte.
func putText(to []byte, kind uint16, text string) []byte {
	return putAttr(to, kind, append([]byte(text), 0))
}

// parseAttrs parses attributes and ignores a truncated one.
func parseAttrs(data []byte) []attr { return slices.Collect(attrs(data)) }

// attrs passes the attributes one by one.
func attrs(data []byte) iter.Seq[attr] {
	return func(yield func(attr) bool) {
		const flags = unix.NLA_F_NESTED | 0x4000 // and NLA_F_NET_BYTEORDER
		for len(data) >= attrHeader {
			n, kind := int(binary.NativeEndian.Uint16(data)), binary.NativeEndian.Uint16(data[2:])
			if n < attrHeader || n > len(data) || !yield(attr{kind &^ flags, data[attrHeader:n]}) {
				return
			}
			data = data[min(len(data), (n+attrAlign-1)/attrAlign*attrAlign):]
		}
	}
}

func (a attr) text() string {
	v := a.value
	if n := len(v); n > 0 && v[n-1] == 0 {
		v = v[:n-1]
	}
	return pci.CleanText(string(v))
}

// number returns an unsigned number of 1, 2, 4 or 8 bytes.
func (a attr) number() uint64 {
	switch len(a.value) {
	case 1:
		return uint64(a.value[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(a.value))
	case 4:
		return uint64(binary.NativeEndian.Uint32(a.value))
	case 8:
		return binary.NativeEndian.Uint64(a.value)
	}
	return 0
}

// genlVersion is the version of each family that this package asks.
const genlVersion = 1

// ask sends one request of generic netlink and returns the attributes of each answer.
func (n *netlink) ask(family uint16, command uint8, dump bool, attrs []byte) (answers [][]attr, err error) {
	flags := uint16(unix.NLM_F_ACK)
	if dump {
		flags = unix.NLM_F_DUMP
	}
	err = n.exchange(family, flags, append([]byte{command, genlVersion, 0, 0}, attrs...), collectAttrs(&answers))
	return answers, err
}

// collectAttrs appends the attributes of each answer of generic netlink to a list.
func collectAttrs(answers *[][]attr) func(body []byte) error {
	return func(body []byte) error {
		if len(body) >= genlHeader {
			*answers = append(*answers, parseAttrs(bytes.Clone(body[genlHeader:])))
		}
		return nil
	}
}

// exchange sends one request and calls each for the body of each answer. A body is valid only
// during the call.
func (n *netlink) exchange(kind, flags uint16, request []byte, each func(body []byte) error) error {
	n.seq++
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(request)))
	msg = binary.NativeEndian.AppendUint16(msg, kind)
	msg = binary.NativeEndian.AppendUint16(msg, unix.NLM_F_REQUEST|flags)
	msg = binary.NativeEndian.AppendUint32(msg, n.seq)
	msg = binary.NativeEndian.AppendUint32(msg, 0)
	msg = append(msg, request...)
	if err := unix.Sendto(n.fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netlink request: %w", err)
	}
	buf := make([]byte, 64<<10)
	for {
		size, _, err := unix.Recvfrom(n.fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("netlink request: %w", err)
		}
		if done, err := parseNetlink(buf[:size], n.seq, each); done || err != nil {
			return err
		}
	}
}

// parseNetlink calls each for the messages of one packet that answer request seq; done reports
// whether the last one is among them.
func parseNetlink(data []byte, seq uint32, each func(body []byte) error) (done bool, err error) {
	for len(data) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(data))
		if size < unix.NLMSG_HDRLEN || size > len(data) {
			return true, fmt.Errorf("netlink request: %w", fs.ErrInvalid)
		}
		body := data[unix.NLMSG_HDRLEN:size]
		mine := binary.NativeEndian.Uint32(data[8:]) == seq
		switch kind := binary.NativeEndian.Uint16(data[4:]); {
		case !mine:
		case kind == unix.NLMSG_ERROR || kind == unix.NLMSG_DONE:
			if len(body) >= 4 {
				if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
					err = fmt.Errorf("netlink request: %w", unix.Errno(-code))
				}
			}
			return true, err
		default:
			if err := each(body); err != nil {
				return true, err
			}
		}
		data = data[min(len(data), (size+attrAlign-1)/attrAlign*attrAlign):]
	}
	return false, nil
}

// findFamily returns the kernel's number of a family.
func (n *netlink) findFamily(name string) (uint16, error) {
	answers, err := n.ask(unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, false, putText(nil, unix.CTRL_ATTR_FAMILY_NAME, name))
	for _, a := range answers {
		for _, x := range a {
			if x.kind == unix.CTRL_ATTR_FAMILY_ID {
				return uint16(x.number()), nil
			}
		}
	}
	return 0, errors.Join(fmt.Errorf("netlink has no family %s", name), err)
}
