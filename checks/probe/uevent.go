package probe

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// DeviceWatch reports which devices the kernel removes.
type DeviceWatch struct{ fd int }

// removable are the subsystems of GPUs, adapters and disks.
var removable = []string{"pci", "infiniband", "nvme", "block", "drm"}

// WatchDevices listens to the kernel's messages about devices (lib/kobject_uevent.c).
func WatchDevices() (*DeviceWatch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err == nil {
		const kernel = 1 // the group of the kernel; udev sends to another one
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1<<20)
		if err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernel}); err != nil {
			unix.Close(fd)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen to the kernel's messages about devices: %w", err)
	}
	return &DeviceWatch{fd}, nil
}

// Close ends the watch.
func (w *DeviceWatch) Close() { unix.Close(w.fd) }

// Wait waits for removed devices, at most for limit, and returns their paths in sysfs. lost reports that
// the kernel has dropped messages.
func (w *DeviceWatch) Wait(limit time.Duration) (removed []string, lost bool, err error) {
	buf := make([]byte, 16<<10)
	for wait := limit; ; wait = 0 {
		fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, int(wait.Milliseconds())); err != nil && !errors.Is(err, unix.EINTR) {
			return removed, lost, fmt.Errorf("wait for messages about devices: %w", err)
		}
		size, from, err := unix.Recvfrom(w.fd, buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			return removed, lost, nil
		case errors.Is(err, unix.ENOBUFS):
			lost = true
			continue
		case err != nil:
			return removed, lost, fmt.Errorf("read messages about devices: %w", err)
		}
		sender, ok := from.(*unix.SockaddrNetlink)
		if path := removedDevice(buf[:size]); path != "" && ok && sender.Pid == 0 {
			removed = append(removed, path)
		}
	}
}

// removedDevice returns the path of the device in a message about its removal, "" for any other:
// "remove@/devices/pci0000:00/0000:00:01.0\0ACTION=remove\0SUBSYSTEM=pci\0...". A device without hardware (dm, loop) is
// none; the name space of an NVMe disk with several paths is below virtual/nvme-subsystem.
func removedDevice(message []byte) string {
	parts := bytes.Split(message, []byte{0})
	path, ok := bytes.CutPrefix(parts[0], []byte("remove@"))
	if bytes.HasPrefix(path, []byte("/devices/virtual/")) && !bytes.HasPrefix(path, []byte("/devices/virtual/nvme")) {
		return ""
	}
	for _, p := range parts[1:] {
		if subsystem, is := bytes.CutPrefix(p, []byte("SUBSYSTEM=")); is && ok && slices.Contains(removable, string(subsystem)) {
			return string(path)
		}
	}
	return ""
}
