package network

import (
	"encoding/binary"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// An interface of hardware that loses its link, gains it or disappears is a change; one of a container
// is not. It uses a network namespace of its own, where virtual pairs stand for hardware.
func TestLinkWatch(t *testing.T) {
	t.Parallel()
	need.Program(t, "ip")
	need.Root(t, "a network namespace")
	const inside = "NHC_TEST_LINKWATCH"
	if os.Getenv(inside) != "" {
		watchPairs(t)
		return
	}
	// Another process: /proc/net is that of the first thread, which may not change its namespace.
	child := exec.Command(os.Args[0], "-test.run=^TestLinkWatch$")
	child.Env = append(os.Environ(), inside+"=1")
	child.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if out, err := child.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func watchPairs(t *testing.T) {
	t.Helper()
	ip := func(words ...string) {
		t.Helper()
		if out, err := exec.Command("ip", words...).CombinedOutput(); err != nil {
			t.Errorf("ip %v: %v: %s", words, err, out)
		}
	}
	h := probe.NewHost(probetest.Tree(t, map[string]string{"sys/class/net/eth0/device/vendor": "0x15b3\n", "sys/class/net/eth1/device/vendor": "0x15b3\n", "sys/class/net/veth0/mtu": "1500\n"}))
	pair := func(name string) {
		ip("link", "add", name, "type", "veth", "peer", "name", name+"p")
		ip("link", "set", name, "up")
		ip("link", "set", name+"p", "up")
	}
	pair("eth0")
	pair("veth0")
	w, err := WatchLinks(h)
	if err != nil {
		t.Error(err)
		return
	}
	defer w.Close()
	changes := func(want ...string) {
		t.Helper()
		var all []string
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && len(all) < len(want); {
			changed, lost, err := w.Wait(time.Second)
			if lost || err != nil {
				t.Errorf("lost %v, %v", lost, err)
				return
			}
			all = append(all, changed...)
		}
		if !slices.Equal(all, want) {
			t.Errorf("got %q, want %q", all, want)
		}
	}
	if changed, _, err := w.Wait(time.Second); len(changed) != 0 || err != nil { // the answer about all interfaces
		t.Errorf("at the start %q, %v", changed, err)
	}
	ip("link", "set", "veth0p", "down")
	ip("link", "set", "eth0p", "down")
	changes("eth0 down")
	ip("link", "set", "eth0p", "up")
	changes("eth0 up")
	pair("eth1") // new hardware is no change
	ip("link", "del", "veth0")
	ip("link", "del", "eth0")
	changes("eth1 up", "eth0 down", "eth0 removed")
}

// A message of a bridge about an interface that leaves it says nothing about the interface itself.
func TestLinkWatchBridge(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{"sys/class/net/eth0/device/vendor": "0x15b3\n"}))
	w := &LinkWatch{h: h, up: map[int32]bool{}, name: map[int32]string{}}
	message := func(kind uint16, family byte) []byte {
		info := make([]byte, unix.SizeofIfInfomsg, 64)
		info[0], info[4] = family, 7
		binary.NativeEndian.PutUint32(info[8:], unix.IFF_LOWER_UP)
		info = binary.NativeEndian.AppendUint16(info, 9)
		info = append(binary.NativeEndian.AppendUint16(info, unix.IFLA_IFNAME), "eth0\x00\x00\x00\x00"...)
		head := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(info)))
		head = append(binary.NativeEndian.AppendUint16(head, kind), make([]byte, 10)...)
		return append(head, info...)
	}
	for _, test := range []struct {
		kind   uint16
		family byte
		want   []string
	}{{unix.RTM_NEWLINK, unix.AF_UNSPEC, nil}, {unix.RTM_NEWLINK, unix.AF_BRIDGE, nil}, {unix.RTM_DELLINK, unix.AF_BRIDGE, nil}, {unix.RTM_DELLINK, unix.AF_UNSPEC, []string{"eth0 removed"}}} {
		if got := w.add(message(test.kind, test.family)); !slices.Equal(got, test.want) {
			t.Errorf("message %d of family %d: %q, want %q", test.kind, test.family, got, test.want)
		}
	}
}

func TestLinkWatchGarbage(t *testing.T) {
	t.Parallel()
	w := &LinkWatch{h: probe.NewHost(t.TempDir()), up: map[int32]bool{}, name: map[int32]string{}}
	for _, data := range [][]byte{nil, {1}, make([]byte, 16), slices.Repeat([]byte{0xff}, 200)} {
		if changed := w.add(data); len(changed) != 0 {
			t.Errorf("%v: %q", data, changed)
		}
	}
}
