package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// connect makes a TCP connection from one node to another, and returns how long that took.
func (c *Cluster) connect(from, to *Node, plane string, limit time.Duration) (took time.Duration, err error) {
	listener := to.listen(plane)
	defer listener.Close()
	err = from.net.do(func() error {
		began := time.Now()
		conn, err := net.DialTimeout("tcp4", listener.Addr().String(), limit)
		took = time.Since(began)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return took, err
}

// listen opens a listener on a node.
func (n *Node) listen(plane string) (listener net.Listener) {
	n.c.t.Helper()
	if err := n.net.do(func() (err error) {
		listener, err = net.Listen("tcp4", n.Address(plane)+":0")
		return err
	}); err != nil {
		n.c.t.Fatal(err)
	}
	return listener
}

// rate returns the Mbit/s that arrive at a node from another.
func (c *Cluster) rate(from, to *Node, plane string) float64 {
	c.t.Helper()
	listener := to.listen(plane)
	defer listener.Close()
	var conn net.Conn
	if err := from.net.do(func() (err error) {
		conn, err = net.DialTimeout("tcp4", listener.Addr().String(), time.Minute)
		return err
	}); err != nil {
		c.t.Fatal(err)
	}
	defer conn.Close()
	received, err := listener.Accept()
	if err != nil {
		c.t.Fatal(err)
	}
	defer received.Close()
	go func() {
		block := make([]byte, 64<<10)
		for {
			if _, err := conn.Write(block); err != nil {
				return
			}
		}
	}()
	const warm, size = 64 << 10, 256 << 10 // the first bytes pass a filter that has been idle at once
	if _, err := io.CopyN(io.Discard, received, warm); err != nil {
		c.t.Fatal(err)
	}
	began := time.Now()
	if _, err := io.CopyN(io.Discard, received, size); err != nil {
		c.t.Fatal(err)
	}
	return size * 8 / 1e6 / time.Since(began).Seconds()
}

// datagrams sends datagrams of that size, which must not be fragmented, and returns how many arrive.
func (c *Cluster) datagrams(from, to *Node, plane string, count, size int) (arrived int) {
	c.t.Helper()
	var in, out net.PacketConn
	listen := func(n *Node, conn *net.PacketConn) {
		if err := n.net.do(func() (err error) {
			config := net.ListenConfig{Control: doNotFragment}
			*conn, err = config.ListenPacket(context.Background(), "udp4", n.Address(plane)+":0")
			return err
		}); err != nil {
			c.t.Fatal(err)
		}
	}
	listen(to, &in)
	defer in.Close()
	listen(from, &out)
	defer out.Close()
	done := make(chan int)
	go func() {
		got, buf := 0, make([]byte, 64<<10)
		for {
			n, _, err := in.ReadFrom(buf)
			if err != nil {
				done <- got
				return
			}
			if n == size {
				got++
			}
		}
	}()
	for i := range count {
		_, _ = out.WriteTo(make([]byte, size), in.LocalAddr()) // EMSGSIZE is one that does not arrive
		if i%50 == 49 {
			time.Sleep(20 * time.Millisecond) // no more than the link's rate, and its queue
		}
	}
	time.Sleep(200 * time.Millisecond)
	_ = in.Close()
	return <-done
}

func doNotFragment(_, _ string, raw syscall.RawConn) error {
	var err error
	failed := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	})
	return errors.Join(failed, err)
}

// Every fault of the network does what it says, on one link and in one direction only where it says
// so, and ends with Undo.
func TestNetwork(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, 8)
	if out := c.Exec("srun", "-N8", "--overcommit", "hostname"); strings.Count(out, "gpu0") != 8 {
		t.Errorf("srun ran on\n%s", out)
	}
	if out := c.Exec("srun", "-w", "gpu05", "ls", "/sys/class/net"); strings.Join(strings.Fields(out), " ") != "eth_a eth_b lo" {
		t.Errorf("the interfaces of a node are %s", out)
	}
	if out := c.Exec(As(65534, "srun", "--chdir=/", "-w", "gpu05", "id", "-u")...); out != "65534\n" {
		t.Errorf("a job of an ordinary user is of %s", out)
	}
	bad, other := c.Node(3), c.Node(6)
	for _, tt := range []struct {
		name  string
		make  func()
		fault func() error // nil if the fault can be measured
	}{
		{"rate towards the node", func() { bad.RateTo(planeB, "5mbit") }, func() error { return c.slow(other, bad, planeB) }},
		{"rate from the node", func() { bad.RateFrom(planeB, "5mbit") }, func() error { return c.slow(bad, other, planeB) }},
		{"loss", func() { bad.Loss(planeB, 20) }, func() error { return c.loses(other, bad) }},
		{"loss from the node", func() { bad.LossFrom(planeB, 20) }, func() error { return c.loses(bad, other) }},
		{"delay", func() { bad.Delay(planeB, 30*time.Millisecond) }, func() error { return c.late(other, bad, 60*time.Millisecond) }},
		{"blocked towards the node", func() { bad.BlockTo(planeB) }, func() error { return c.oneWay(bad, other) }},
		{"blocked from the node", func() { bad.BlockFrom(planeB) }, func() error { return c.oneWay(other, bad) }},
		{"cable", func() { bad.Down(planeB) }, func() error { return c.noCarrier(bad) }},
		{"MTU", func() { bad.MTU(planeB, 1400) }, func() error { return c.small(other, bad) }},
		{"leaves", func() { c.LeafPair(planeB, c.Nodes[:4], c.Nodes[4:], "5mbit") }, func() error { return errors.Join(c.slow(bad, other, planeB), c.slow(other, bad, planeB)) }},
	} {
		if tt.fault() == nil {
			t.Errorf("%s: there before it is made", tt.name)
		}
		tt.make()
		if err := tt.fault(); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err := c.healthy(c.Node(1), c.Node(2), planeB); err != nil {
			t.Errorf("%s: other nodes: %v", tt.name, err)
		}
		if err := c.healthy(bad, other, planeA); err != nil {
			t.Errorf("%s: the other plane: %v", tt.name, err)
		}
		for _, n := range c.Nodes {
			if n == bad || tt.name == "leaves" {
				n.Undo()
			}
		}
		if tt.fault() == nil {
			t.Errorf("%s: there after its end", tt.name)
		}
		if err := errors.Join(c.healthy(bad, other, planeB), c.healthy(other, bad, planeB)); err != nil {
			t.Errorf("%s: after its end: %v", tt.name, err)
		}
	}
}

// A frozen node starts nothing until it is thawed. A dead one has no processes, and Undo starts it.
func TestFrozenAndDead(t *testing.T) {
	tier.Long(t)
	t.Parallel()
	c := start(t, 2)
	n := c.Node(2)
	n.Freeze()
	ran := c.Background("srun", c.Command(t.Context(), "srun", "-w", n.Name, "hostname"))
	time.Sleep(time.Second)
	c.MustRun(ran)
	if out := c.Exec("srun", "-w", "gpu01", "hostname"); out != "gpu01\n" {
		t.Errorf("the other node: %s", out)
	}
	n.Thaw()
	if <-ran.Ended; c.lastLine("srun") != n.Name {
		t.Errorf("after the thaw: %s", c.lastLine("srun"))
	}
	n.Die()
	if left := n.net.processes(t); len(left) > 0 {
		t.Errorf("the dead node has processes %v", left)
	}
	n.Undo()
	if out := c.Exec("srun", "-w", n.Name, "hostname"); out != n.Name+"\n" {
		t.Errorf("after Undo: %s", out)
	}
}

// healthy returns an error unless a link has its full rate.
func (c *Cluster) healthy(from, to *Node, plane string) error {
	for range 20 { // another program may have the machine
		if c.rate(from, to, plane) > 20 {
			return nil
		}
	}
	return fmt.Errorf("from %s to %s on plane %s fewer than 20 Mbit/s", from.Name, to.Name, plane)
}

func (c *Cluster) slow(from, to *Node, plane string) error {
	if _, err := c.connect(from, to, plane, time.Minute); err != nil {
		return err
	}
	if rate := c.rate(from, to, plane); rate > 6 {
		return fmt.Errorf("from %s to %s %.1f Mbit/s", from.Name, to.Name, rate)
	}
	return nil
}

// loses returns an error unless about a fifth of the datagrams is lost, in this direction only.
func (c *Cluster) loses(from, to *Node) error {
	there, back := c.datagrams(from, to, planeB, 500, 100), c.datagrams(to, from, planeB, 500, 100)
	if there > 460 || there < 300 || back < 490 {
		return fmt.Errorf("%d of 500 arrive, %d on the way back", there, back)
	}
	return nil
}

func (c *Cluster) late(from, to *Node, want time.Duration) error {
	best := time.Hour
	for range 5 {
		took, err := c.connect(from, to, planeB, time.Minute)
		if err != nil {
			return err
		}
		best = min(best, took)
	}
	if best < want {
		return fmt.Errorf("a connection takes %v", best)
	}
	return nil
}

// oneWay returns an error unless datagrams arrive in this direction only.
func (c *Cluster) oneWay(from, to *Node) error {
	// ARP needs both directions: the addresses are known from before
	there, back := c.datagrams(from, to, planeB, 50, 100), c.datagrams(to, from, planeB, 50, 100)
	if there == 0 || back > 0 {
		return fmt.Errorf("%d of 50 arrive, %d on the way back", there, back)
	}
	return nil
}

func (c *Cluster) noCarrier(n *Node) error {
	carrier, _ := c.Try("srun", "-w", n.Name, "cat", "/sys/class/net/eth_b/carrier")
	_, err := c.connect(c.Node(1), n, planeB, 300*time.Millisecond)
	if carrier != "0\n" || err == nil {
		return fmt.Errorf("carrier %s, connect: %w", carrier, err)
	}
	return nil
}

// small returns an error unless datagrams of 1,500 bytes do not arrive, and those of 1,400 do.
func (c *Cluster) small(from, to *Node) error {
	const headers = 28
	full, less := c.datagrams(from, to, planeB, 10, 1500-headers), c.datagrams(from, to, planeB, 10, 1400-headers)
	if full > 0 || less == 0 {
		return fmt.Errorf("%d of 1500 bytes arrive, %d of 1400", full, less)
	}
	return nil
}

func (c *Cluster) lastLine(daemon string) string {
	lines := strings.Split(strings.TrimSpace(c.Output(daemon)), "\n")
	return lines[len(lines)-1]
}
