package rank

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// linkedNodes returns two nodes whose children have network namespaces of their own, between them one
// link, and a function that changes the network by ip or tc: NS0 and NS1 are the namespaces.
func linkedNodes(t *testing.T) (nodes []ncclNode, change func(words ...string)) {
	t.Helper()
	need.Root(t, "network namespaces")
	for _, program := range []string{"ip", "tc", "nsenter"} {
		need.Program(t, program)
	}
	var names [2]string
	for i := range names {
		names[i] = fmt.Sprintf("nhc-nccl-%d-%d-%d", os.Getpid(), time.Now().UnixNano()%1e6, i)
	}
	change = func(words ...string) {
		t.Helper()
		line := strings.NewReplacer("NS0", names[0], "NS1", names[1]).Replace(strings.Join(words, " "))
		if out, err := exec.Command("/bin/sh", "-c", line).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	t.Cleanup(func() {
		for _, name := range names {
			_ = exec.Command("ip", "netns", "del", name).Run()
		}
	})
	change("ip netns add NS0 && ip netns add NS1 && ip -n NS0 link add eth7 type veth peer name eth7 netns NS1")
	for i := range names {
		ns := fmt.Sprint("NS", i)
		change("ip -n", ns, "link set lo up && ip -n", ns, fmt.Sprintf("addr add 10.99.7.%d/24 dev eth7 && ip -n", i+1), ns, "link set eth7 up")
		n := newNCCLNode(t, i, 1, "")
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		n.program = filepath.Join(n.dir, "work")
		if err := probetest.WriteProgram(n.program, fmt.Appendf(nil, "#!/bin/sh\nexec nsenter --net=/run/netns/%s %s \"$@\"\n", names[i], self)); err != nil {
			t.Fatal(err)
		}
		n.Planes = []sweep.Plane{{Name: "eth7", Address: netip.MustParsePrefix(fmt.Sprintf("10.99.7.%d/24", i+1))}}
		nodes = append(nodes, n)
	}
	return nodes, change
}

// A slow link is slow in either direction, and no link is an operation that does not end.
func TestNCCLLink(t *testing.T) {
	tier.All(t)
	t.Parallel()
	nodes, change := linkedNodes(t)
	task := ncclTaskOf("all_reduce", nodes)
	task.Plane = "eth7"
	passed(t, "a link", carryOut(t, nodes, task, nil), 2)
	for _, ns := range []string{"NS0", "NS1"} {
		change("tc -n", ns, "qdisc add dev eth7 root tbf rate 20mbit burst 32kbit latency 50ms")
		results := carryOut(t, nodes, task, nil)
		passed(t, "a slow link", results, 2)
		for _, r := range results { // 20 Mb/s are 0.0025 GB/s, and buffers hide a part
			if len(r.Values) == 0 || r.Values[0] > 0.01 {
				t.Errorf("%s: %+v", ns, r)
			}
		}
		change("tc -n", ns, "qdisc del dev eth7 root")
	}
	task.Limit, task.Time, task.Repeats = 20*time.Second, time.Second, 1000
	wantFaults(t, carryOut(t, nodes, task, func(ends []kind) {
		waitFor(t, ends, "repeat 1")
		change("ip -n NS1 link set eth7 down")
	}), "0 silent", "1 silent")
}
