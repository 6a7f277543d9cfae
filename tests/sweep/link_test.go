package sweep_test

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// linkRate is the rate of a healthy link in each direction. It is so low that a machine with two
// cores can use all links at once: measured values depend on the links, not on the machine.
const linkRate = "40mbit"

// link is the cable between a node and a plane's switch. Its faults are what the test has asked for;
// apply brings them about.
type link struct {
	t        *testing.T
	node     namespace
	sw       namespace
	inner    string // the interface on the node
	port     string // the interface on the switch
	bridge   string
	address  string // of the inner interface: 10.77.0.3/24
	mac      string // of the inner interface: it stays, because the other nodes remember it
	wire     *wire  // nil: a veth pair
	slow     slow   // of other leaves
	to, from side   // towards the node and from it
	down     bool
	mtu      int
	delay    time.Duration // in each direction
	madeAs   time.Duration // the delay of the link as it is made
}

// side is one direction of a link.
type side struct {
	rate  string // "" is linkRate
	loss  int    // percent
	block bool
}

// slow limits the data from some addresses towards the node.
type slow struct {
	from []string
	rate string
}

// commands returns the commands of ip that make the link: those on the switch, those on the node.
func (l *link) commands() (sw, node string) {
	sw = fmt.Sprintf("link add %s type veth peer name %s netns %s\n", l.port, l.inner, l.node.path()) + l.raise()
	return sw, l.assign()
}

func (l *link) raise() string {
	return fmt.Sprintf("link set %s master %s up\n", l.port, l.bridge)
}

func (l *link) assign() string {
	return fmt.Sprintf("link set lo up\nlink set %s address %s\naddr add %s dev %s\nlink set %s up\n", l.inner, l.mac, l.address, l.inner, l.inner)
}

// shape returns the commands of tc for the interface that sends in a direction.
func shape(device, rate string) string {
	return fmt.Sprintf("qdisc replace dev %s root handle 1: tbf rate %s burst 16kb latency 50ms\n", device, cmp.Or(rate, linkRate))
}

// apply brings the faults of the link about, and ends those that are no more.
func (l *link) apply() {
	l.t.Helper()
	l.remake()
	sw := shape(l.port, l.to.rate)
	if len(l.slow.from) > 0 {
		sw += l.leafClasses()
	}
	l.sw.run(l.t, sw, "tc", "-batch", "-")
	l.node.run(l.t, shape(l.inner, l.from.rate), "tc", "-batch", "-")
	l.node.run(l.t, drops(l.inner, l.to), "nft", "-f", "-")
	l.sw.run(l.t, drops(l.port, l.from), "nft", "-f", "-")
	up := map[bool]string{true: "down", false: "up"}[l.down]
	l.sw.run(l.t, fmt.Sprintf("link set %s %s\n", l.port, up), "ip", "-batch", "-")
	l.node.run(l.t, fmt.Sprintf("link set %s mtu %d\n", l.inner, cmp.Or(l.mtu, 1500)), "ip", "-batch", "-")
}

// leafClasses returns the commands of tc for a port with its own rate for some senders.
func (l *link) leafClasses() string {
	var s strings.Builder
	fmt.Fprintf(&s, "qdisc replace dev %s root handle 2: htb default 1\n", l.port)
	for class, rate := range []string{cmp.Or(l.to.rate, linkRate), l.slow.rate} {
		fmt.Fprintf(&s, "class add dev %s parent 2: classid 2:%d htb rate %s burst 16kb cburst 16kb quantum 1514\n", l.port, class+1, rate)
		fmt.Fprintf(&s, "qdisc add dev %s parent 2:%d handle %d: bfifo limit 256kb\n", l.port, class+1, class+10)
	}
	for _, address := range l.slow.from {
		fmt.Fprintf(&s, "filter add dev %s parent 2: protocol ip prio 1 u32 match ip src %s/32 flowid 2:2\n", l.port, address)
	}
	return s.String()
}

// drops returns the rules of nft that drop what arrives at an interface, ARP included.
func drops(device string, s side) string {
	table := "table netdev " + device
	rules := table + " {}\ndelete " + table + "\n"
	rule := ""
	switch {
	case s.block:
		rule = "drop"
	case s.loss > 0:
		rule = fmt.Sprintf("numgen random mod 100 < %d drop", s.loss)
	default:
		return rules
	}
	return rules + fmt.Sprintf("%s {\n chain arrivals {\n type filter hook ingress device %s priority 0\n %s\n }\n}\n", table, device, rule)
}

// remake replaces the veth pair by a wire with a delay, or the other way round. This kernel has no
// netem.
func (l *link) remake() {
	l.t.Helper()
	if l.delay == l.madeAs {
		return
	}
	if l.wire != nil {
		l.wire.close()
		l.wire = nil
	} else {
		l.sw.run(l.t, fmt.Sprintf("link del %s\n", l.port), "ip", "-batch", "-")
	}
	sw, node := l.commands()
	if l.delay > 0 {
		sw = l.raise()
		l.wire = newWire(l.t, l.delay, tap{l.sw, l.port}, tap{l.node, l.inner})
	}
	l.sw.run(l.t, sw, "ip", "-batch", "-")
	l.node.run(l.t, node, "ip", "-batch", "-")
	l.madeAs = l.delay
}

// tap is the name and the place of a TAP interface.
type tap struct {
	in   namespace
	name string
}

// open makes the interface. It exists until the file is closed.
func (p tap) open() (file *os.File, err error) {
	err = p.in.do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		request, err := unix.NewIfreq(p.name)
		if err != nil {
			return err
		}
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
			_ = unix.Close(fd)
			return fmt.Errorf("make interface %s: %w", p.name, err)
		}
		file = os.NewFile(uintptr(fd), p.name)
		return nil
	})
	return file, err
}

// wire carries frames between two TAP interfaces, with a delay.
type wire struct {
	ends [2]*os.File
	done chan struct{}
}

// maxWaiting is the number of frames that wait in one direction; a wire drops further ones.
const maxWaiting = 4096

type frame struct {
	data []byte
	due  time.Time
}

func newWire(t *testing.T, delay time.Duration, a, b tap) *wire {
	t.Helper()
	w := &wire{done: make(chan struct{})}
	for i, end := range []tap{a, b} {
		file, err := end.open()
		if err != nil {
			t.Fatal(err)
		}
		w.ends[i] = file
	}
	t.Cleanup(w.close)
	for i := range w.ends {
		waiting := make(chan frame, maxWaiting)
		go read(w.ends[i], delay, waiting)
		go w.deliver(w.ends[1-i], waiting)
	}
	return w
}

func read(from *os.File, delay time.Duration, waiting chan<- frame) {
	defer close(waiting)
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		select {
		case waiting <- frame{append([]byte(nil), buf[:n]...), time.Now().Add(delay)}:
		default:
		}
	}
}

func (w *wire) deliver(to *os.File, waiting <-chan frame) {
	for f := range waiting {
		select {
		case <-time.After(time.Until(f.due)):
			_, _ = to.Write(f.data) // fails if the interface is down
		case <-w.done:
			return
		}
	}
}

func (w *wire) close() {
	select {
	case <-w.done:
		return
	default:
	}
	close(w.done)
	for _, end := range w.ends {
		_ = end.Close()
	}
}
