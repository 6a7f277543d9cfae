package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// asEnd has the test's program be one end of a test, in a network namespace of its own.
const asEnd = "NHC_GPU_TEST_PEER"

func TestMain(m *testing.M) {
	if words := strings.Fields(os.Getenv(asEnd)); len(words) > 0 {
		if err := beEnd(words[0], words[1], words[2:]); err != nil {
			fmt.Println(err)
			os.Exit(exitOf(err))
		}
		return
	}
	os.Exit(m.Run())
}

var wireStreams = Streams{Flows: 4, Repeats: 1, Time: time.Second}

// beEnd serves until the end of the standard input, or makes the tests of another end.
func beEnd(what, address string, args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	local := Local{Address: netip.MustParseAddr(address), Interface: "eth_a"}
	switch what {
	case "serve":
		r, err := Respond(ctx, local, testKey)
		if err != nil {
			return err
		}
		l, err := Listen(ctx, local, testKey)
		if err != nil {
			return err
		}
		fmt.Println(r.Address(), l.Address())
		go func() {
			if rates, err := ReceiveStreams(ctx, l, wireStreams); err == nil {
				fmt.Println(rates.Values[0])
			}
		}()
		_, err = io.Copy(io.Discard, os.Stdin)
		return err
	case "mtu":
		var mtu int
		if _, err := fmt.Sscan(args[1], &mtu); err != nil {
			return err
		}
		return MTU(ctx, local, args[0], testKey, mtu)
	case "connect":
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		_, err := Connects(ctx, local, args[0], testKey, 1)
		return err
	case "stream":
		return SendStreams(ctx, local, args[0], testKey, wireStreams)
	}
	return errors.New("unknown end " + what)
}

// exitOf returns the exit status for the errors that the test distinguishes.
func exitOf(err error) int {
	for i, e := range []error{ErrMTU, ErrSilent, unix.EHOSTUNREACH, unix.ENETUNREACH} {
		if errors.Is(err, e) {
			return 10 + i
		}
	}
	return 1
}

// nets are two namespaces with a link in between: eth_a in both.
type nets struct {
	t    *testing.T
	a, b string
}

func newNets(t *testing.T) *nets {
	t.Helper()
	need.Root(t, "to make network namespaces")
	need.Program(t, "ip")
	n := &nets{t: t, a: fmt.Sprintf("rank-peer-a-%d", os.Getpid()), b: fmt.Sprintf("rank-peer-b-%d", os.Getpid())}
	for _, name := range []string{n.a, n.b} {
		n.ip("netns", "add", name)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	}
	n.ip("-n", n.a, "link", "add", "eth_a", "type", "veth", "peer", "name", "eth_a", "netns", n.b)
	for name, host := range map[string]string{n.a: "1", n.b: "2"} {
		n.ip("-n", name, "address", "add", "10.77.0."+host+"/24", "dev", "eth_a")
		n.ip("-n", name, "address", "add", "fd77::"+host+"/64", "dev", "eth_a", "nodad")
		n.ip("-n", name, "link", "set", "eth_a", "up")
		n.ip("-n", name, "link", "set", "lo", "up")
	}
	return n
}

func (n *nets) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// end returns the command of an end.
func (n *nets) end(ns, what, address string, args ...string) *exec.Cmd {
	cmd := exec.Command("ip", "netns", "exec", ns, "/proc/self/exe")
	if exe, err := os.Executable(); err == nil {
		cmd.Args[len(cmd.Args)-1] = exe
	}
	cmd.Env = append(os.Environ(), asEnd+"="+strings.Join(append([]string{what, address}, args...), " "))
	return cmd
}

// serve starts the serving end, and returns its addresses and its further output.
func (n *nets) serve(ns, address string) (udp, tcp string, more *bufio.Reader) {
	n.t.Helper()
	cmd := n.end(ns, "serve", address)
	in, err := cmd.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	more = bufio.NewReader(out)
	line, err := more.ReadString('\n')
	if _, bad := fmt.Sscan(line, &udp, &tcp); err != nil || bad != nil {
		n.t.Fatalf("%s: %q, %v", address, line, err)
	}
	return udp, tcp, more
}

// test runs a testing end and returns its exit status and output.
func (n *nets) test(ns, what, address string, args ...string) (int, string) {
	n.t.Helper()
	out, err := n.end(ns, what, address, args...).CombinedOutput()
	exit := new(exec.ExitError)
	if err != nil && !errors.As(err, &exit) {
		n.t.Fatal(err)
	}
	if err == nil {
		return 0, string(out)
	}
	return exit.ExitCode(), string(out)
}

// On a real link an MTU that is too short is found by the node with the longer one, with IPv4 and
// IPv6; a rate is what the link lets through; and a dead link is silent.
func TestLink(t *testing.T) {
	t.Parallel()
	n := newNets(t)
	for _, address := range [][2]string{{"10.77.0.1", "10.77.0.2"}, {"fd77::1", "fd77::2"}} {
		udpA, _, _ := n.serve(n.a, address[0])
		udpB, tcpB, _ := n.serve(n.b, address[1])
		if status, out := n.test(n.a, "connect", address[0], tcpB); status != 0 {
			t.Errorf("connect: %s", out)
		}
		if status, out := n.test(n.a, "mtu", address[0], udpB, "1500"); status != 0 {
			t.Errorf("MTU 1500: %s", out)
		}
		n.ip("-n", n.b, "link", "set", "eth_a", "mtu", "1400")
		if status, out := n.test(n.a, "mtu", address[0], udpB, "1500"); status != 10 {
			t.Errorf("MTU 1400 at the other end: %d, %s", status, out)
		}
		if status, out := n.test(n.b, "mtu", address[1], udpA, "1400"); status != 0 {
			t.Errorf("MTU 1400 here: %s", out)
		}
		if status, out := n.test(n.b, "mtu", address[1], udpA, "1500"); status != 10 {
			t.Errorf("a datagram longer than the MTU: %d, %s", status, out)
		}
		n.ip("-n", n.b, "link", "set", "eth_a", "mtu", "1500")
	}

	need.Program(t, "tc")
	if out, err := exec.Command("tc", "-n", n.a, "qdisc", "add", "dev", "eth_a", "root", "tbf", "rate", "100mbit", "burst", "32kbit", "latency", "50ms").CombinedOutput(); err != nil {
		t.Fatalf("tc: %v: %s", err, out)
	}
	_, tcp, more := n.serve(n.b, "10.77.0.2")
	if status, out := n.test(n.a, "stream", "10.77.0.1", tcp); status != 0 {
		t.Errorf("stream: %s", out)
	}
	line, err := more.ReadString('\n')
	var rate float64
	if _, bad := fmt.Sscan(line, &rate); err != nil || bad != nil || rate <= 0 || rate > 0.105 {
		t.Errorf("%q Gb/s, %v, want at most 0.1", line, err)
	}

	_, tcp, _ = n.serve(n.b, "10.77.0.2")
	n.ip("-n", n.b, "link", "set", "eth_a", "down")
	if status, out := n.test(n.a, "connect", "10.77.0.1", tcp); status != 11 && status != 12 && status != 13 {
		t.Errorf("a dead link: %d, %s", status, out)
	}
}
