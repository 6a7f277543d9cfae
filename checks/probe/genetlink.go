package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// genl is a socket of generic netlink: requests by attributes, as ethtool and devlink send
// them. The netlink library that others use has neither of what is asked here.
type genl struct {
	fd  int
	seq uint32
}

// genlWait is how long the kernel may take for one answer. A driver that hangs is not heard
// of; the process that asks is ended by the one that started it.
const genlWait = 1 // seconds

func dialGenl() (*genl, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_GENERIC)
	if err != nil {
		return nil, fmt.Errorf("open generic netlink: %w", err)
	}
	err = errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: genlWait}))
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open generic netlink: %w", err)
	}
	return &genl{fd: fd}, nil
}

func (g *genl) close() { unix.Close(g.fd) }

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

// putText appends an attribute that is a text, with the zero that ends it.
func putText(to []byte, kind uint16, text string) []byte {
	return putAttr(to, kind, append([]byte(text), 0))
}

// parseAttrs reads attributes; what is cut is left out.
func parseAttrs(data []byte) (list []attr) {
	const flags = unix.NLA_F_NESTED | 0x4000 // and NLA_F_NET_BYTEORDER
	for len(data) >= attrHeader {
		n, kind := int(binary.NativeEndian.Uint16(data)), binary.NativeEndian.Uint16(data[2:])
		if n < attrHeader || n > len(data) {
			return list
		}
		list = append(list, attr{kind &^ flags, data[attrHeader:n]})
		data = data[min(len(data), (n+attrAlign-1)/attrAlign*attrAlign):]
	}
	return list
}

func (a attr) text() string {
	v := a.value
	if n := len(v); n > 0 && v[n-1] == 0 {
		v = v[:n-1]
	}
	return cleanText(string(v))
}

// number reads an unsigned number of 1, 2, 4 or 8 bytes.
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

// ask sends one request and returns the attributes of each answer.
func (g *genl) ask(family uint16, command, version uint8, dump bool, attrs []byte) (answers [][]attr, err error) {
	g.seq++
	flags := uint16(unix.NLM_F_REQUEST | unix.NLM_F_ACK)
	if dump {
		flags = unix.NLM_F_REQUEST | unix.NLM_F_DUMP
	}
	msg := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+genlHeader+len(attrs)))
	msg = binary.NativeEndian.AppendUint16(msg, family)
	msg = binary.NativeEndian.AppendUint16(msg, flags)
	msg = binary.NativeEndian.AppendUint32(msg, g.seq)
	msg = binary.NativeEndian.AppendUint32(msg, 0)
	msg = append(msg, command, version, 0, 0)
	msg = append(msg, attrs...)
	if err := unix.Sendto(g.fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, fmt.Errorf("ask netlink: %w", err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(g.fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ask netlink: %w", err)
		}
		more, done, err := parseGenl(buf[:n], g.seq)
		answers = append(answers, more...)
		if done || err != nil {
			return answers, err
		}
	}
}

// parseGenl reads the messages of one packet; done says that the last one is among them.
func parseGenl(data []byte, seq uint32) (answers [][]attr, done bool, err error) {
	for len(data) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(data))
		if size < unix.NLMSG_HDRLEN || size > len(data) {
			return answers, true, fmt.Errorf("ask netlink: %w", fs.ErrInvalid)
		}
		body := data[unix.NLMSG_HDRLEN:size]
		mine := binary.NativeEndian.Uint32(data[8:]) == seq
		switch kind := binary.NativeEndian.Uint16(data[4:]); {
		case !mine:
		case kind == unix.NLMSG_ERROR || kind == unix.NLMSG_DONE:
			if len(body) >= 4 {
				if code := int32(binary.NativeEndian.Uint32(body)); code < 0 {
					err = fmt.Errorf("ask netlink: %w", unix.Errno(-code))
				}
			}
			return answers, true, err
		case len(body) >= genlHeader:
			answers = append(answers, parseAttrs(append([]byte(nil), body[genlHeader:]...)))
		}
		data = data[min(len(data), (size+attrAlign-1)/attrAlign*attrAlign):]
	}
	return answers, false, nil
}

// family is the number that the kernel has given to a family.
func (g *genl) family(name string) (uint16, error) {
	answers, err := g.ask(unix.GENL_ID_CTRL, unix.CTRL_CMD_GETFAMILY, 1, false, putText(nil, unix.CTRL_ATTR_FAMILY_NAME, name))
	for _, a := range answers {
		for _, x := range a {
			if x.kind == unix.CTRL_ATTR_FAMILY_ID {
				return uint16(x.number()), nil
			}
		}
	}
	return 0, errors.Join(fmt.Errorf("netlink has no family %s", name), err)
}
