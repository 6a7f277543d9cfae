package slurm_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

var update = flag.Bool("update", false, "rewrite the table of orders in docs/reference/slurm.md")

// ordersConf allows a person to order a reboot and a power-down. The programs do nothing, so the
// order stays as long as slurmctld waits for it. The tests start the health checks.
const ordersConf = `
HealthCheckInterval=0
RebootProgram=/bin/true
ResumeTimeout=600
SuspendProgram=/bin/true
ResumeProgram=/bin/true
SuspendTime=1000000
SuspendTimeout=1
`

// order is an order that a person can give for a node.
type order struct {
	name  string
	busy  bool     // a job keeps slurmctld from carrying it out
	give  []string // arguments of scontrol; NODE is the node
	wait  string   // a flag that the state has after some time
	keeps []string // the parts of state, reason or other fields that must stay
}

var orders = []order{
	{name: "`scontrol reboot`, a job runs", busy: true, give: []string{"reboot", "NODE"}, keeps: []string{"+REBOOT_REQUESTED"}},
	{name: "`scontrol reboot ASAP`, a job runs", busy: true, give: []string{"reboot", "ASAP", "NODE"}, keeps: []string{"+REBOOT_REQUESTED", "+DRAIN"}},
	{name: "`scontrol reboot ASAP nextstate=RESUME reason=kernel`, a job runs", busy: true,
		give: []string{"reboot", "ASAP", "nextstate=RESUME", "reason=kernel", "NODE"}, keeps: []string{"+REBOOT_REQUESTED", "+DRAIN", "Reason=kernel"}},
	{name: "`scontrol reboot`, under way", give: []string{"reboot", "NODE"}, wait: "+REBOOT_ISSUED", keeps: []string{"+REBOOT_ISSUED"}},
	{name: "State=POWER_DOWN, a job runs", busy: true, give: []string{"update", "NodeName=NODE", "State=POWER_DOWN"}, keeps: []string{"+POWER_DOWN"}},
	{name: "State=POWER_DOWN_ASAP, a job runs", busy: true, give: []string{"update", "NodeName=NODE", "State=POWER_DOWN_ASAP"}, keeps: []string{"+POWER_DOWN", "+DRAIN"}},
	{name: "State=POWER_DOWN, powered down", give: []string{"update", "NodeName=NODE", "State=POWER_DOWN"}, wait: "+POWERED_DOWN", keeps: []string{"+POWERED_DOWN"}},
	{name: "State=POWER_UP, powering up", give: []string{"update", "NodeName=NODE", "State=POWER_UP"}, wait: "+POWERING_UP", keeps: []string{"+POWERING_UP"}},
	{name: "a maintenance reservation", give: []string{"create", "reservation", "ReservationName=maint", "StartTime=now", "Duration=60", "Nodes=NODE", "Users=root", "Flags=MAINT,IGNORE_JOBS"},
		wait: "+MAINTENANCE", keeps: []string{"+MAINTENANCE", "+RESERVED"}},
	{name: "a reservation", give: []string{"create", "reservation", "ReservationName=course", "StartTime=now", "Duration=60", "Nodes=NODE", "Users=root"},
		wait: "+RESERVED", keeps: []string{"+RESERVED"}},
	{name: "State=DRAIN with a reason", give: []string{"update", "NodeName=NODE", "State=DRAIN", "Reason=new DIMMs"}, keeps: []string{"+DRAIN", "Reason=new DIMMs"}},
	{name: "Comment= and Extra=", give: []string{"update", "NodeName=NODE", "Comment=ticket-4711", "Extra=row7"}, keeps: []string{"Comment=ticket-4711", "Extra=row7"}},
	{name: "State=FAIL", give: []string{"update", "NodeName=NODE", "State=FAIL", "Reason=switch"}, keeps: []string{"+FAIL", "Reason=switch"}},
	{name: "State=DOWN", give: []string{"update", "NodeName=NODE", "State=DOWN", "Reason=fire"}, keeps: []string{"DOWN", "Reason=fire"}},
	{name: "State=FUTURE", give: []string{"update", "NodeName=NODE", "State=FUTURE"}, keeps: []string{"FUTURE"}},
}

// No order of a person is reverted, whether before our drain or after it: the test checks it after
// a check fails, fails again, and passes again. The table in docs/reference/slurm.md has the
// resulting state of the node.
func TestOrdersStand(t *testing.T) {
	tier.All(t)
	t.Parallel()
	var mu sync.Mutex
	got := map[string]string{} // by order, before and after our drain
	t.Run("clusters", func(t *testing.T) {
		for from := 0; from < len(orders); from += 4 {
			for _, before := range []bool{true, false} {
				some := orders[from:min(from+4, len(orders))]
				t.Run(fmt.Sprintf("%d/before=%v", from, before), func(t *testing.T) {
					t.Parallel()
					c := newCluster(t)
					c.conf = strings.Replace(c.conf, "HealthCheckInterval=2\n", "", 1) + ordersConf
					c.up()
					for i, o := range some {
						row := c.Nodes[i].carryOut(o, before)
						mu.Lock()
						got[fmt.Sprint(o.name, before)] = row
						mu.Unlock()
					}
				})
			}
		}
	})
	if t.Failed() {
		return
	}
	var table strings.Builder
	table.WriteString("| a person's order | given | after a check has failed | when all pass again |\n|---|---|---|---|\n")
	for _, o := range orders {
		for _, before := range []bool{true, false} {
			given := map[bool]string{true: "before", false: "after our drain"}[before]
			fmt.Fprintf(&table, "| %s | %s | %s |\n", o.name, given, got[fmt.Sprint(o.name, before)])
		}
	}
	inDocs(t, "orders", table.String())
}

// A reboot that a person has requested for a node that we have drained is carried out, and then the
// node is resumed.
func TestRebootIsCarriedOut(t *testing.T) {
	tier.All(t)
	t.Parallel()
	c := newCluster(t)
	c.conf += "RebootProgram=/bin/true\nResumeTimeout=600\n"
	c.up()
	n := c.Nodes[0]
	job := strings.TrimSpace(c.Exec("sbatch", "--parsable", "--nodelist="+n.Name, "--output=/dev/null", "--chdir=/", "--wrap=sleep 1000"))
	n.WaitState("mix alloc", soon)
	n.Remove("ok")
	n.WaitReason("drng", reason, soon)
	c.Exec("scontrol", "reboot", n.Name)
	n.Create("ok")
	n.WaitRounds(3)
	if show := n.show(); !strings.Contains(show, "+REBOOT_REQUESTED") {
		t.Errorf("the reboot is gone: %s", show)
	}
	c.Exec("scancel", job)
	c.WaitFor(2*soon, "reboot", func() (string, bool) { return n.show(), strings.Contains(n.show(), "+REBOOT_ISSUED") })
	n.reboot()
	n.WaitState("idle", 2*soon)
	n.WaitRounds(2)
	n.WaitState("idle", soon)
}

// inDocs compares a part of docs/reference/slurm.md, between two comments, with the results.
func inDocs(t *testing.T, part, want string) {
	t.Helper()
	const path = "../../docs/reference/slurm.md"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, begins := strings.Cut(string(data), "<!-- "+part+" -->\n")
	got, tail, ends := strings.Cut(rest, "<!-- end -->\n")
	switch {
	case !begins || !ends:
		t.Errorf("%s has no part %q", path, part)
	case *update:
		err := os.WriteFile(path, []byte(head+"<!-- "+part+" -->\n"+want+"<!-- end -->\n"+tail), 0o644)
		if err != nil {
			t.Fatal(err)
		}
	case got != want:
		t.Errorf("%s, %s (-update writes it):\n%s", path, part, cmp.Diff(got, want))
	}
}

// carryOut gives the order before or after our drain, and describes the node after a run that fails
// and one that passes again.
func (n *Node) carryOut(o order, before bool) string {
	n.c.t.Helper()
	if o.busy {
		n.c.Exec("sbatch", "--nodelist="+n.Name, "--output=/dev/null", "--chdir=/", "--wrap=sleep 1000")
		n.WaitState("mix alloc", soon)
	}
	n.check(0)
	if before {
		n.give(o)
	}
	n.Remove("ok")
	n.check(1)
	if !before {
		n.give(o)
		n.check(1)
	}
	n.still(o, "a check has failed")
	failed := n.described()
	n.check(1)
	n.still(o, "it fails on")
	n.Conf("* || check_file_test -f /etc/nhc/ok2") // another fault
	n.check(1)
	n.still(o, "another fails")
	n.Conf(defaultConf)
	n.Create("ok")
	for range 3 {
		n.check(0)
	}
	n.still(o, "all pass")
	return failed + " | " + n.described()
}

// check runs nhc-gpu by hand.
func (n *Node) check(want int) {
	n.c.t.Helper()
	out, err := n.Try("/run/bin/nhc-gpu")
	if (err == nil) != (want == 0) {
		n.c.t.Errorf("%s: nhc-gpu: %v, want status %d: %s", n.Name, err, want, out)
	}
}

func (n *Node) give(o order) {
	n.c.t.Helper()
	words := []string{"scontrol"}
	for _, w := range o.give {
		words = append(words, strings.Replace(w, "NODE", n.Name, 1))
	}
	if o.wait == "+POWERING_UP" {
		n.c.Update(n, "State=POWER_DOWN")
		n.c.WaitFor(60*time.Second, "powered down", func() (string, bool) { return n.show(), strings.Contains(n.show(), "+POWERED_DOWN") })
	}
	n.c.Exec(words...)
	n.c.WaitFor(60*time.Second, o.name, func() (string, bool) { return n.show(), strings.Contains(n.show(), o.wait) })
}

// show returns scontrol's output about the node.
func (n *Node) show() string {
	n.c.t.Helper()
	out, err := n.c.Try("scontrol", "--future", "-o", "show", "node", n.Name)
	if err != nil {
		return err.Error()
	}
	return out
}

// still fails the test unless the order is still there.
func (n *Node) still(o order, when string) {
	n.c.t.Helper()
	show := n.show()
	for _, want := range o.keeps {
		if !strings.Contains(show, want) {
			n.c.t.Errorf("%s: when %s: no %s: %s", o.name, when, want, show)
		}
	}
}

// described describes the parts of the node's state that come from us.
func (n *Node) described() string {
	show := n.show()
	drain, ours := strings.Contains(show, "+DRAIN"), strings.Contains(show, "Reason=NHC:")
	switch {
	case drain && ours:
		return "drained by us"
	case drain || strings.Contains(show, "+FAIL") || strings.Contains(show, "State=DOWN") || strings.Contains(show, "State=FUTURE"):
		return "left as ordered"
	}
	return "not drained"
}
