package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// LinkWatch reports which network interfaces of hardware change their link.
type LinkWatch struct {
	h    *probe.Host
	n    *netlink
	up   map[int32]bool // by interface: whether it has a carrier; without those that no hardware backs
	name map[int32]string
	buf  []byte
}

// linkBuffer holds the messages of a storm of interfaces, as containers start and end.
const linkBuffer = 1 << 20

// manyLinks bounds the changes that are returned: links that flap have thousands.
const manyLinks = 64

// WatchLinks listens to the kernel's messages about interfaces. It asks for the state of all.
func WatchLinks(h *probe.Host) (*LinkWatch, error) {
	n, err := dialNetlink(unix.NETLINK_ROUTE)
	if err == nil {
		_ = unix.SetsockoptInt(n.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, linkBuffer)
		if err = unix.SetsockoptInt(n.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.RTNLGRP_LINK); err != nil {
			n.close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen to the kernel's messages about links: %w", err)
	}
	w := &LinkWatch{h: h, n: n, up: map[int32]bool{}, name: map[int32]string{}, buf: make([]byte, 64<<10)}
	return w, w.askAll()
}

// askAll asks for all interfaces; the answers come like the other messages.
func (w *LinkWatch) askAll() error {
	msg := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(msg, uint32(len(msg)))
	binary.NativeEndian.PutUint16(msg[4:], unix.RTM_GETLINK)
	binary.NativeEndian.PutUint16(msg[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	if err := unix.Sendto(w.n.fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask for all links: %w", err)
	}
	return nil
}

// Close ends the watch.
func (w *LinkWatch) Close() { w.n.close() }

// Wait waits for changes, at most for limit, and returns the interfaces: "eth0 down". lost reports that
// the kernel has dropped messages; then the state of all interfaces is asked for again.
func (w *LinkWatch) Wait(limit time.Duration) (changed []string, lost bool, err error) {
	fds := []unix.PollFd{{Fd: int32(w.n.fd), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, int(limit.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
		return changed, lost, fmt.Errorf("wait for messages about links: %w", err)
	}
	for { // those that are there
		size, from, err := unix.Recvfrom(w.n.fd, w.buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			return changed, lost, nil
		case errors.Is(err, unix.ENOBUFS):
			lost = true
			if err := w.askAll(); err != nil {
				return changed, lost, err
			}
			continue
		case err != nil:
			return changed, lost, fmt.Errorf("read messages about links: %w", err)
		}
		if kernel, ok := from.(*unix.SockaddrNetlink); ok && kernel.Pid == 0 {
			if list := w.add(w.buf[:size]); len(changed) < manyLinks {
				changed = append(changed, list...)
			}
		}
	}
}

// add returns the interfaces whose links have changed.
func (w *LinkWatch) add(data []byte) (changed []string) {
	list, err := syscall.ParseNetlinkMessage(data)
	if err != nil {
		return nil
	}
	for _, m := range list {
		if len(m.Data) < unix.SizeofIfInfomsg || m.Header.Type != unix.RTM_NEWLINK && m.Header.Type != unix.RTM_DELLINK {
			continue
		}
		if m.Data[0] != unix.AF_UNSPEC { // a bridge's message about its port
			continue
		}
		index, flags := int32(binary.NativeEndian.Uint32(m.Data[4:])), binary.NativeEndian.Uint32(m.Data[8:])
		is := flags&unix.IFF_LOWER_UP != 0
		was, known := w.up[index]
		if known && is == was && m.Header.Type == unix.RTM_NEWLINK {
			continue
		}
		name := ""
		for a := range attrs(m.Data[unix.SizeofIfInfomsg:]) {
			if a.kind == unix.IFLA_IFNAME {
				name = a.text()
				break
			}
		}
		switch {
		case m.Header.Type == unix.RTM_DELLINK:
			if known {
				changed = append(changed, w.name[index]+" removed")
			}
			delete(w.up, index)
			delete(w.name, index)
		case !known && !w.ofHardware(name):
		default:
			w.up[index], w.name[index] = is, name
			if known {
				changed = append(changed, name+map[bool]string{true: " up", false: " down"}[is])
			}
		}
	}
	return changed
}

// ofHardware reports whether an interface is that of a device: not one of a container, a bridge, a VLAN.
func (w *LinkWatch) ofHardware(name string) bool {
	_, err := w.h.Names("/sys/class/net/" + name + "/device")
	return name != "" && !errors.Is(err, fs.ErrNotExist)
}
