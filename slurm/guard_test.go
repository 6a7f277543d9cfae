package slurm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	dnsReason  = "NHC: DNS down (check_net_dns) [net.dns.server]"
	ecc2Reason = "NHC: gpu2 DRAM error 0000:55:00.0: reset the GPU (check_gpu_ecc) [gpu.ecc.dram]"
	ecc5Reason = "NHC: gpu5 DRAM error 0000:88:00.0: reset the GPU (check_gpu_ecc) [gpu.ecc.dram] +1 : Not responding"
	mounted    = "NHC: check_fs_mount:  /scratch not mounted"
)

// defaults are the limits of a site without settings.
var defaults = Guard{Percent: 10, Nodes: 3, RepairPartition: 1, RepairCluster: 2, Jitter: 30 * time.Second}

func TestGuardRules(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		guard  Guard
		reason string
		groups []string // as sinfo prints them; the node is n01
		want   Ruling
	}{
		{"nothing is drained", defaults, dnsReason, []string{"main|idle|40|n[01-40]|none"}, Ruling{Fault: "net.dns.server", Partition: "main", Of: 40, Limit: 4}},
		{"below the limit", defaults, dnsReason, []string{"main|idle|37|n[01-37]|none", "main|drain|3|n[38-40]|" + dnsReason}, Ruling{Fault: "net.dns.server", Partition: "main", Out: 3, Of: 40, Limit: 4}},
		{"at the limit", defaults, dnsReason, []string{"main|idle|36|n[01-36]|none", "main|drain|4|n[37-40]|" + dnsReason}, Ruling{Hold: true, Fault: "net.dns.server", Partition: "main", Out: 4, Of: 40, Limit: 4}},
		{"the number of a small partition", defaults, dnsReason, []string{"main|idle|5|n[01-05]|none", "main|drng|3|n[06-08]|" + dnsReason}, Ruling{Hold: true, Fault: "net.dns.server", Partition: "main", Out: 3, Of: 8, Limit: 3}},
		{
			"one fault on several devices, with texts of Slurm", defaults, ecc2Reason,
			[]string{"main|idle|5|n[01-05]|none", "main|drain*|2|n[06-07]|" + ecc5Reason, "main|down*|1|n08|" + ecc2Reason},
			Ruling{Hold: true, Fault: "gpu.ecc.dram", Partition: "main", Out: 3, Of: 8, Limit: 3},
		},
		{
			"other faults, other people, nodes in service with an old reason", defaults, dnsReason,
			[]string{"main|mix|5|n[01-05]|none", "main|drain|3|n[06-08]|" + ecc2Reason, "main|drain|3|n[09-11]|alice: " + dnsReason, "main|idle|4|n[12-15]|" + dnsReason},
			Ruling{Fault: "net.dns.server", Partition: "main", Of: 15, Limit: 3},
		},
		{
			"this node does not count", defaults, dnsReason,
			[]string{"main|idle|7|n[02-08]|none", "main|drain|3|n01,n[09-10]|" + dnsReason},
			Ruling{Fault: "net.dns.server", Partition: "main", Out: 2, Of: 10, Limit: 3},
		},
		{
			"the same nodes in several partitions; the fullest one decides", defaults, dnsReason,
			[]string{"all|idle|96|n[01-48],m[01-48]|none", "all|drain|4|m[49-52]|" + dnsReason, "debug|idle|2|n[01-02]|none", "debug|drain|3|m[49-51]|" + dnsReason},
			Ruling{Hold: true, Fault: "net.dns.server", Partition: "debug", Out: 3, Of: 5, Limit: 3},
		},
		{
			"another partition is full", defaults, dnsReason,
			[]string{"main|idle|9|n[01-09]|none", "far|drain|9|m[1-9]|" + dnsReason},
			Ruling{Fault: "net.dns.server", Partition: "main", Of: 9, Limit: 3},
		},
		{
			"a hang in another check", defaults, "NHC: gpu3 hung 0000:66:00.0: reboot (check_gpu_ecc) [probe.hung]",
			[]string{"main|idle|5|n[01-05]|none", "main|drain|3|n[06-08]|NHC: /scratch hung (check_fs_used) [probe.hung]", "main|drain|1|n09|NHC: gpu1 hung 0000:44:00.0: reboot (check_gpu_ecc) [probe.hung]"},
			Ruling{Fault: "probe.hung check_gpu_ecc", Partition: "main", Out: 1, Of: 9, Limit: 3},
		},
		{"no partition", defaults, dnsReason, []string{"far|drain|9|m[1-9]|" + dnsReason}, Ruling{}},
		{
			"a check of LBNL NHC, whatever its text", defaults, "NHC: check_fs_free:  /tmp has only 3% free (5000kB)",
			[]string{"main|idle|5|n[01-05]|none", "main|drain|2|n[06-07]|NHC: check_fs_free:  /tmp has only 4% free (6001kB) [job 77]", "main|drain|1|n08|NHC: check_fs_free:  /tmp has only 1% free (7kB) : Not responding", "main|drain|1|n09|" + mounted},
			Ruling{Hold: true, Fault: "check_fs_free", Partition: "main", Out: 3, Of: 9, Limit: 3},
		},
		{"limits of a site", Guard{Percent: 50, Nodes: 1}, mounted, []string{"main|idle|5|n[01-05]|none", "main|drain|4|n[06-09]|" + mounted}, Ruling{Hold: true, Fault: "check_fs_mount:  /scratch not mounted", Partition: "main", Out: 4, Of: 9, Limit: 4}},
	} {
		groups, err := parseGroups([]byte(strings.Join(test.groups, "\n") + "\n"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want, test.guard.Rule("n01", test.reason, groups)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestGuardExempts(t *testing.T) {
	t.Parallel()
	site := Guard{Exempt: []string{"gpu.ecc.", "check_ps_"}}
	for reason, want := range map[string][2]bool{ // by default, and of the site
		"NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost] +2": {true, true},
		"NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_xid) [gpu.xid.79]":             {true, true},
		ecc2Reason: {false, true},
		"NHC: check_ps_service:  Service sssd (process sssd) owned by root not running": {false, true},
		dnsReason: {false, false}, mounted: {false, false}, "NHC: the site's own line": {false, false},
	} {
		if got := [2]bool{defaults.exempts(reason), site.exempts(reason)}; got != want {
			t.Errorf("%s: exempt %v, want %v", reason, got, want)
		}
	}
}

func TestSharedFaults(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]bool{
		dnsReason: true, mounted: true, "NHC: hung (check_fs_mount) [probe.hung]": true,
		"NHC: mlx5_0:1 no subnet mgr (check_ib_ports) [ib.ports.init]":                              true,
		"NHC: Script timed out while executing \"check_fs_mount_rw -f /home\".":                     true,
		"NHC: mlx5_0:1 link down 0000:18:00.0: check the cable (check_ib_ports) [ib.ports.polling]": false,
		ecc2Reason: false, "NHC: check_file_test:  -f /etc/nhc/ok returned 1.": false, "NHC: disk is gone": false,
	} {
		if got := isShared(reason); got != want {
			t.Errorf("%s: shared %v, want %v", reason, got, want)
		}
	}
}

func TestMayRepair(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name               string
		groups             []string
		partition, cluster int
		may                bool
	}{
		{"none", []string{"main|idle|5|n[01-05]|none", "main|drain|2|n[06-07]|" + ecc2Reason}, 0, 0, true},
		{"a reboot of ours in this partition", []string{"main|idle|5|n[01-05]|none", "main|boot^|1|n06|" + ecc2Reason + " : reboot issued"}, 1, 1, false},
		{"one elsewhere, in two partitions", []string{"main|idle|5|n[01-05]|none", "far|drain@|1|m1|" + ecc2Reason, "all|drain@|1|m1|" + ecc2Reason}, 0, 1, true},
		{"two elsewhere", []string{"main|idle|5|n[01-05]|none", "far|drain@|2|m[1-2]|" + ecc2Reason}, 0, 2, false},
		{"a person's reboot, and this node's", []string{"main|idle|5|n[02-05]|none", "main|drain@|1|n06|alice: kernel", "main|drain@|1|n01|" + ecc2Reason}, 0, 0, true},
	} {
		groups, err := parseGroups([]byte(strings.Join(test.groups, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		partition, cluster := inRepair("n01", groups)
		if may := defaults.mayRepair("n01", groups); partition != test.partition || cluster != test.cluster || may != test.may {
			t.Errorf("%s: %d in the partition, %d in the cluster, %v, want %d, %d, %v", test.name, partition, cluster, may, test.partition, test.cluster, test.may)
		}
	}
}

func TestHostlists(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"n1": "n1", "n1,m2": "n1 m2", "n[1-3]": "n1 n2 n3", "n[08-10,12]": "n08 n09 n10 n12", "n[098-100]x": "n098x n099x n100x",
		"r[1-2]n[1-2],login": "r1n1 r1n2 r2n1 r2n2 login", "gpu-a[01,03]": "gpu-a01 gpu-a03", "n[1-": "n[1-", "n[x]": "",
	} {
		names := hostlistNames(list)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s is %q, want %q", list, got, want)
		}
		for _, name := range names {
			if !inHostlist(list, name) {
				t.Errorf("%s does not have %s", list, name)
			}
		}
		if inHostlist(list, "n") || inHostlist(list, "n0") || inHostlist(list, "") {
			t.Errorf("%s has a node that it does not name", list)
		}
	}
}

func TestParseGroups(t *testing.T) {
	t.Parallel()
	const out = "main|idle|2|n[1-2]|none\nmain|drain|1|n3|alice: a|b\nand a line more\nn/a|idle|many|n4|none\n"
	groups, err := parseGroups([]byte(out))
	want := []NodeGroup{
		{Partition: "main", State: ParseState("idle"), Nodes: 2, Names: "n[1-2]", Reason: "none"},
		{Partition: "main", State: ParseState("drain"), Nodes: 1, Names: "n3", Reason: "alice: a|b"},
	}
	if diff := cmp.Diff(want, groups); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, out := range []string{"", "NodeName=n1 State=IDLE\n"} {
		if groups, err := parseGroups([]byte(out)); err == nil {
			t.Errorf("%q: %v, want an error", out, groups)
		}
	}
}

// guarded returns a controller with a guard, of a node in a partition of 20, and some nodes of it are
// drained for a dead name server.
func guarded(t *testing.T, out int) (*fake, *Controller) {
	t.Helper()
	f := &fake{state: "IDLE", groups: partitionWith(out)}
	c := controller(t, f)
	guard := defaults
	c.Guard, c.Wait = &guard, func(time.Duration) { t.Error("it waits") }
	return f, c
}

func partitionWith(out int) string {
	return fmt.Sprintf("main|idle|%d|gpu[01-%02d]|none\nmain|drain|%d|gpu[%02d-20]|%s\n", 20-out, 20-out, out, 21-out, dnsReason)
}

var noDNS = Verdict{Message: strings.TrimPrefix(dnsReason, "NHC: "), Code: "net.dns.server", Cause: Cause{Check: "check_net_dns", Line: "check_net_dns"}}

const heldText = "3 of 20 nodes of partition main are drained for net.dns.server, the limit is 3"

// A drain beyond the limit is held, stated in the node's comment, and sent when the number falls.
func TestGuardHolds(t *testing.T) {
	t.Parallel()
	f, c := guarded(t, 3)
	now := time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC)
	c.Now, c.Settings.Recheck = func() time.Time { return now }, DefaultRecheck
	comment := "COMMENT NHC: drain held by guard since 2026-11-23T03:00:00Z: " + noDNS.Message
	o := act(t, c, noDNS, "read", "count", "comment", comment)
	if o.Guarded != heldText || o.Repeats || !o.Pending || o.Action != Drain || o.Why != "held by guard: "+heldText || o.Reason != dnsReason {
		t.Errorf("outcome %+v, want it held, for the first time", o)
	}
	noteTold(t, c, o, true)
	o = act(t, c, noDNS) // not before all nodes had their turn
	if o.Guarded != heldText || !o.Repeats || !o.Spared || o.Action != Drain {
		t.Errorf("outcome %+v, want it still held", o)
	}
	deliver(t, c)
	now = now.Add(4 * time.Second)
	if o = act(t, c, noDNS, "read", "count"); !o.Repeats || o.Guarded == "" {
		t.Errorf("outcome %+v, want it still held", o)
	}
	now = now.Add(4 * time.Second)
	deliver(t, c, "read", "count")
	f.is(t, "IDLE", "")
	f.groups = partitionWith(2)
	now = now.Add(4 * time.Second)
	o = act(t, c, noDNS, "read", "count", "DRAIN "+dnsReason, "comment", "COMMENT ")
	if o.Guarded != "" || o.Pending || o.Why != "in service; 2 of 20 nodes of partition main are drained for net.dns.server, the limit is 3" {
		t.Errorf("outcome %+v, want a drain", o)
	}
	f.is(t, "IDLE+DRAIN", dnsReason)
	if f.comment != "" {
		t.Errorf("the comment is %q", f.comment)
	}
	f.groups = partitionWith(18)
	now = now.Add(time.Hour)
	act(t, c, noDNS, "read")                                                         // drained already
	act(t, c, Verdict{Message: "another fault"}, "read", "DRAIN NHC: another fault") // a new reason is no drain
	act(t, c, healthy, "read", "RESUME")
}

// noteTold records that a hold was reported.
func noteTold(t *testing.T, c *Controller, o Outcome, whole bool) {
	t.Helper()
	if err := c.NoteReported(t.Context(), o, whole); err != nil {
		t.Error(err)
	}
}

// A hold is reported until the log or syslog has taken the report, also by a run that does not count, and
// by one without a verdict. If only one has taken it, the next count reports it again.
func TestGuardHoldIsTold(t *testing.T) {
	t.Parallel()
	_, c := holding(t)
	now := c.now()
	c.Now, c.Settings.Recheck = func() time.Time { return now }, DefaultRecheck
	last := Outcome{}
	repeats := func(when string, want bool, run func() (Outcome, error)) {
		t.Helper()
		o, err := run()
		if last = o; err != nil || o.Guarded != heldText || o.Repeats != want {
			t.Errorf("%s: outcome %+v, %v, want it held, repeated: %v", when, o, err, want)
		}
	}
	failing := func() (Outcome, error) { return c.Act(t.Context(), noDNS, HealthCheck) }
	unknown := func() (Outcome, error) { return c.Deliver(t.Context()) }
	repeats("the first run died", false, failing)
	repeats("the first run died", false, unknown)
	now = now.Add(time.Hour)
	repeats("the first count died", false, failing)
	noteTold(t, c, last, false)
	repeats("syslog is dead", true, failing)
	repeats("syslog is dead", true, unknown)
	now = now.Add(time.Hour)
	repeats("the next count", false, unknown)
	noteTold(t, c, last, true)
	repeats("both have it", true, unknown)
	now = now.Add(time.Hour)
	repeats("both have it", true, failing)
	ecc := Verdict{Message: "another fault", Code: noDNS.Code, Cause: Cause{Check: "check_net_ping"}}
	noteTold(t, c, last, true)
	if o, err := c.Act(t.Context(), ecc, HealthCheck); err != nil || o.Repeats {
		t.Errorf("another fault: outcome %+v, %v, want it reported", o, err)
	}
	noteTold(t, c, last, true) // a late report of the former one
	if m := memoryOf(t, c); m.Pending.Reported {
		t.Errorf("another fault counts as reported: %+v", m.Pending)
	}
}

// A held drain ends when the checks pass, and when another user drains the node.
func TestGuardHoldEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *fake, *Controller){
		"healthy": func(t *testing.T, _ *fake, c *Controller) { act(t, c, healthy, "read", "comment", "COMMENT ") },
		"drained by a person": func(t *testing.T, f *fake, c *Controller) {
			f.state, f.reason = "IDLE+DRAIN", "alice: disk"
			act(t, c, noDNS, "read", "comment", "COMMENT ")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, c := holding(t)
			end(t, f, c)
			if m := memoryOf(t, c); m.Pending != (Pending{}) || m.Comment != "" || f.comment != "" {
				t.Errorf("memory %+v, comment %q, want nothing held", m, f.comment)
			}
		})
	}
}

// The guard does not overwrite a site's comment.
func TestGuardLeavesComments(t *testing.T) {
	t.Parallel()
	f, c := guarded(t, 3)
	f.comment = "rack 7"
	act(t, c, noDNS, "read", "count", "comment")
	act(t, c, noDNS, "read", "count")
	f.groups = partitionWith(0)
	act(t, c, noDNS, "read", "count", "DRAIN "+dnsReason, "comment")
	if f.comment != "rack 7" {
		t.Errorf("the comment is %q", f.comment)
	}
}

// The guard holds the drain of a node that slurmd has not registered yet, too.
func TestGuardHoldsBeforeSlurmd(t *testing.T) {
	t.Parallel()
	for state, calls := range map[string][]string{"UNKNOWN": {"read", "count"}, "DOWN+NOT_RESPONDING": {"read", "config", "count"}} {
		f, c := guarded(t, 3)
		f.state, f.reason, f.returns = state, "Not responding", 1
		o, err := c.Act(t.Context(), noDNS, HealthCheck)
		if err != nil || o.Guarded != heldText || !slices.Equal(f.calls[:len(calls)], calls) {
			t.Errorf("%s: outcome %+v, %v, calls %q, want it held", state, o, err, f.calls)
		}
		f.is(t, state, "Not responding")
	}
}

// While the guard counts, a person drains the node: that drain is not overwritten. A change that leaves
// the node in service only costs a further look.
func TestGuardSeesChange(t *testing.T) {
	t.Parallel()
	f, c := guarded(t, 0)
	f.on = func(f *fake, call string) (Output, error, bool) {
		if call == "count" {
			f.state, f.reason = "IDLE+DRAIN", "alice: disk"
			f.groups = strings.Replace(f.groups, "main|idle|", "main|drain|1|gpu01|alice: disk\nmain|idle|", 1)
		}
		return Output{}, nil, false
	}
	if o := act(t, c, noDNS, "read", "count", "read"); o.Action != None {
		t.Errorf("%+v, want no drain", o)
	}
	f.is(t, "IDLE+DRAIN", "alice: disk")

	f, c = guarded(t, 0)
	f.groups = "main|drain|1|gpu01|alice: disk\n" // and back in service by the next read
	if o := act(t, c, noDNS, "read", "count", "read", "count", "DRAIN "+dnsReason); o.Action != Drain {
		t.Errorf("%+v, want a drain", o)
	}
}

// These drains are sent whatever else is drained, without a count.
func TestGuardDoesNotHold(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]Verdict{
		"a lost device":         {Message: "gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost]", Code: "gpu.recovery.lost"},
		"an exempt code":        {Message: strings.TrimPrefix(ecc2Reason, "NHC: "), Code: "gpu.ecc.dram"},
		"a job that is refused": {Message: noDNS.Message, Code: noDNS.Code, Refused: true},
	} {
		f, c := guarded(t, 18)
		c.Guard.Exempt = []string{"gpu.ecc"}
		if o := act(t, c, v, "read", "DRAIN "+Reason(v.Message)); o.Action != Drain || o.Guarded != "" {
			t.Errorf("%s: %+v", name, o)
		}
		f.is(t, "IDLE+DRAIN", Reason(v.Message))
	}
	f, c := holding(t) // the prolog of a node whose drain is held
	o, err := c.Act(t.Context(), Verdict{Message: noDNS.Message, Code: noDNS.Code, Cause: noDNS.Cause, Refused: true}, Prolog)
	if err != nil || o.Guarded != "" || o.Action != Drain {
		t.Errorf("outcome %+v, %v", o, err)
	}
	f.is(t, "IDLE+DRAIN", dnsReason)
}

// holding returns a controller of a node whose drain the guard holds.
func holding(t *testing.T) (*fake, *Controller) {
	t.Helper()
	f, c := guarded(t, 3)
	if o, err := c.Act(t.Context(), noDNS, HealthCheck); err != nil || o.Guarded == "" {
		t.Fatalf("outcome %+v, %v", o, err)
	}
	f.calls = nil
	return f, c
}

// A person releases a held drain.
func TestRelease(t *testing.T) {
	t.Parallel()
	_, c := guarded(t, 3)
	if o, err := c.Release(t.Context()); err != nil || o.Calls != 0 || !o.Spared || o.Pending || o.Why != "the guard holds no drain of this node" {
		t.Errorf("outcome %+v, %v", o, err)
	}
	_, c = holding(t)
	o, err := c.Release(t.Context())
	if err != nil || o.Action != Drain {
		t.Errorf("outcome %+v, %v", o, err)
	}
	called(t, c, o, "read", "DRAIN "+dnsReason, "comment", "COMMENT ")
}

// After a release that Slurm did not hear, the next run drains without a count; for another fault it
// counts.
func TestReleaseUnheard(t *testing.T) {
	t.Parallel()
	for _, another := range []bool{false, true} {
		f, c := holding(t)
		f.on = always(refused, "read")
		if o, err := c.Release(t.Context()); err == nil || !o.Pending || o.Guarded != "" {
			t.Errorf("outcome %+v, %v, want it pending and not held", o, err)
		}
		f.on, f.calls = nil, nil
		if o, err := c.Release(t.Context()); err != nil || !o.Spared || !o.Pending || o.Action != None || o.Why != "the drain of this node is released already, and not delivered yet" {
			t.Errorf("a second time: outcome %+v, %v", o, err)
		}
		if f.calls = nil; another {
			act(t, c, failing, "read", "count", "DRAIN "+ourReason)
		} else {
			act(t, c, noDNS, "read", "DRAIN "+dnsReason)
		}
	}
}

// The outcome of a release has the error of the memory: nothing held was read, or the release is not stored.
func TestReleaseWithoutMemory(t *testing.T) {
	t.Parallel()
	_, c := holding(t)
	c.Dir.(*store).broken = errors.New("broken")
	if o, err := c.Release(t.Context()); err != nil || o.Warning == nil || !o.Spared {
		t.Errorf("outcome %+v, %v", o, err)
	}
	f, c := holding(t)
	f.on, c.Dir.(*store).full = always(refused, "read"), errors.New("full")
	if o, err := c.Release(t.Context()); err == nil || o.Warning == nil || o.Spared || !o.Pending {
		t.Errorf("outcome %+v, %v", o, err)
	}
}

// A release during a maintenance is carried out after it, without a count.
func TestReleaseInMaintenance(t *testing.T) {
	t.Parallel()
	f, c := holding(t)
	c.Settings.Recheck = DefaultRecheck
	f.state = "IDLE+MAINTENANCE+RESERVED"
	o, err := c.Release(t.Context())
	if err != nil || o.Action != None || !o.Pending || o.Why == "" {
		t.Errorf("outcome %+v, %v, want it pending", o, err)
	}
	called(t, c, o, "read", "comment", "COMMENT ")
	if o = act(t, c, noDNS, "read"); !o.Pending {
		t.Errorf("a health check in the maintenance: %+v, want it pending", o)
	}
	f.state = "IDLE"
	act(t, c, noDNS, "read", "DRAIN "+dnsReason)

	f, c = holding(t) // the checks pass meanwhile
	f.state = "IDLE+MAINTENANCE+RESERVED"
	if _, err = c.Release(t.Context()); err != nil {
		t.Error(err)
	}
	f.state, f.calls = "IDLE", nil
	act(t, c, healthy, "read")

	f, c = holding(t) // a person has drained the node
	f.state, f.reason = "IDLE+DRAIN", "alice: disk"
	if o, err = c.Release(t.Context()); err != nil || o.Action != None || o.Pending || o.Why != "drained for another reason (alice: disk, by root)" {
		t.Errorf("outcome %+v, %v, want no drain", o, err)
	}
}

// A run that did not get the lock does not undo a release that it has not seen.
func TestReleaseBesideRun(t *testing.T) {
	t.Parallel()
	f, c := holding(t)
	now := c.now().Add(time.Hour)
	c.Now, c.Settings.Recheck = func() time.Time { return now }, DefaultRecheck
	s := c.Dir.(*store)
	s.held = true
	f.on = func(f *fake, _ string) (Output, error, bool) { // meanwhile a person releases it, and slurmctld does not answer
		f.on = nil
		other := controller(t, &fake{on: always(timeout, "read")})
		other.Dir.(*store).data = s.data
		if _, err := other.Release(t.Context()); err == nil {
			t.Error("slurmctld answers")
		}
		s.data = other.Dir.(*store).data
		return Output{}, nil, false
	}
	if o, err := c.Act(t.Context(), noDNS, HealthCheck); err != nil || o.Guarded != heldText {
		t.Errorf("outcome %+v, %v, want it held: it has not seen the release", o, err)
	}
	if p := memoryOf(t, c).Pending; !p.Released || p.Held != "" {
		t.Errorf("pending %+v, want it released", p)
	}
	s.held, f.calls = false, nil
	act(t, c, noDNS, "read", "DRAIN "+dnsReason, "comment", "COMMENT ")
}

// The drain for a shared thing is stored, waits with the lock free, and is decided again.
func TestGuardWaits(t *testing.T) {
	t.Parallel()
	f, c := guarded(t, 0)
	c.MaxWait = 20 * time.Second
	var waits []time.Duration
	c.Wait = func(d time.Duration) {
		waits = append(waits, d)
		if m := memoryOf(t, c); m.Pending.Message != noDNS.Message || !m.Marks[0].Owed {
			t.Errorf("memory %+v while it waits, want the drain", m)
		}
		unlock, err := c.lock(time.Second)
		if err != nil {
			t.Fatal(err)
		}
		unlock()
		f.groups = partitionWith(3)
	}
	o, err := c.Act(t.Context(), noDNS, HealthCheck)
	if err != nil || o.Guarded != heldText || o.Calls != len(f.calls) || !slices.Equal(f.calls[:3], []string{"read", "read", "count"}) {
		t.Errorf("outcome %+v, %v, calls %q", o, err, f.calls)
	}
	if len(waits) != 1 || waits[0] <= 0 || waits[0] > c.MaxWait {
		t.Errorf("waits %v", waits)
	}

	// A fault of this node waits a shorter time.
	f, c = guarded(t, 0)
	waits, c.Guard.Short, c.MaxWait = nil, 3*time.Second, 20*time.Second
	c.Wait = func(d time.Duration) { waits = append(waits, d) }
	act(t, c, failing, "read", "count", "DRAIN "+ourReason)
	if len(waits) != 1 || waits[0] <= 0 || waits[0] > c.Guard.Short {
		t.Errorf("waits %v", waits)
	}
	act(t, c, Verdict{Message: "check_x:  another fault"}, "read", "DRAIN NHC: check_x:  another fault")
	if len(waits) != 1 {
		t.Errorf("waits %v, want none for a node that is drained", waits)
	}
	// So does one that has been drained by a person or whose drain could not be delivered: all nodes of a
	// maintenance, or of a restart of slurmctld, count at the same time.
	for name, before := range map[string]func(*fake, *Controller){
		"left alone": func(f *fake, c *Controller) {
			f.state, f.reason = "IDLE+DRAIN", "maintenance"
			act(t, c, Verdict{Message: "check_x:  another fault"}, "read")
			f.state, f.reason = "IDLE", ""
		},
		"another fault is held": func(f *fake, c *Controller) {
			f.groups = partitionWith(3)
			act(t, c, noDNS, "read", "count", "comment", "COMMENT NHC: drain held by guard since "+c.now().UTC().Format(time.RFC3339)+": "+noDNS.Message)
		},
		"no answer": func(f *fake, c *Controller) {
			f.on = always(timeout, "read")
			undelivered(t, c, failing, "read")
			f.on = nil
		},
	} {
		f, c := guarded(t, 0)
		c.Wait = func(time.Duration) {}
		before(f, c)
		waits = nil
		c.waited, c.Guard.Short, c.MaxWait = false, 3*time.Second, 20*time.Second
		c.Wait = func(d time.Duration) { waits = append(waits, d) }
		f.calls = nil
		_, err := c.Act(t.Context(), failing, HealthCheck)
		if n := len(f.calls); err != nil || f.calls[0] != "read" || !slices.Equal(f.calls[n-3:], []string{"read", "count", "DRAIN " + ourReason}) {
			t.Errorf("%s: calls %q, %v", name, f.calls, err)
		}
		if len(waits) != 1 || waits[0] <= 0 || waits[0] > c.Guard.Short {
			t.Errorf("%s: waits %v", name, waits)
		}
	}

	// No wait: for a fault of this node and a run that a person has started, without a memory of the drain, and with MODE=observe.
	f, c = guarded(t, 0)
	c.MaxWait = 20 * time.Second
	act(t, c, failing, "read", "count", "DRAIN "+ourReason)
	f.is(t, "IDLE+DRAIN", ourReason)
	_, c = guarded(t, 0)
	c.MaxWait, c.Dir = 20*time.Second, nil
	act(t, c, noDNS, "read", "count", "DRAIN "+dnsReason)
	f, c = guarded(t, 3)
	c.MaxWait, c.Observe = 20*time.Second, true
	if o := act(t, c, noDNS, "read", "count"); o.Guarded != heldText {
		t.Errorf("outcome %+v, want that it would hold", o)
	}
	f.is(t, "IDLE", "")
}

// slurmctld does not answer the guard.
func TestGuardUncounted(t *testing.T) {
	t.Parallel()
	for _, hold := range []bool{false, true} {
		// Not in time, or not at all: the drain is pending, the next run tries again, and then decides.
		for _, a := range []answer{timeout, lost} {
			f, c := guarded(t, 0)
			c.Guard.HoldUncounted = hold
			f.on = always(a, "count")
			undelivered(t, c, noDNS, "read", "count")
			wantUncounted(t, c, hold)
		}
		// There is no such command.
		f, c := guarded(t, 0)
		c.Guard.HoldUncounted = hold
		f.on = always(notFound, "count")
		wantUncounted(t, c, hold)
	}
}

// A drain is sent without a count after two failed counts in a row, not after two in some hours.
func TestGuardUncountedInARow(t *testing.T) {
	t.Parallel()
	f, c := guarded(t, 3)
	now := c.now()
	c.Now, c.Settings.Recheck = func() time.Time { return now }, DefaultRecheck
	f.on = always(timeout, "count")
	undelivered(t, c, noDNS, "read", "count")
	f.on = nil
	if o, err := c.Act(t.Context(), noDNS, HealthCheck); err != nil || o.Guarded != heldText {
		t.Errorf("outcome %+v, %v, want it held", o, err)
	}
	f.on, f.calls, now = always(timeout, "count"), nil, now.Add(time.Hour)
	undelivered(t, c, noDNS, "read", "count")
	wantUncounted(t, c, false)
}

// A hold without numbers is reported again once there are numbers.
func TestGuardReportsNumbers(t *testing.T) {
	t.Parallel()
	f, c := guarded(t, 3)
	c.Guard.HoldUncounted, f.on = true, always(notFound, "count")
	for i, want := range []string{countNodes, countNodes, heldText, heldText} {
		if i == 2 {
			f.on = nil
		}
		o, err := c.Act(t.Context(), noDNS, HealthCheck)
		if err != nil || !strings.HasPrefix(o.Guarded, want) || o.Repeats != (i%2 == 1) {
			t.Errorf("run %d: outcome %+v, %v, want %s, repeated in every second run", i, o, err, want)
		}
		noteTold(t, c, o, true)
	}
	for i := range 6 { // slurmctld answers every second count
		if f.on = nil; i%2 == 0 {
			f.on = always(notFound, "count")
		}
		o, err := c.Act(t.Context(), noDNS, HealthCheck)
		if err != nil || o.Guarded == "" || !o.Repeats {
			t.Errorf("count %d: outcome %+v, %v, want it held, and reported before", i, o, err)
		}
		noteTold(t, c, o, true)
	}
}

func wantUncounted(t *testing.T, c *Controller, hold bool) {
	t.Helper()
	o, err := c.Act(t.Context(), noDNS, HealthCheck)
	if held := c.Runner.(*fake).state == "IDLE"; err != nil || (o.Guarded != "") != hold || o.Action != Drain || held != hold || !strings.Contains(o.Why, "count the drained nodes: ") {
		t.Errorf("outcome %+v, %v; held %v, want %v", o, err, held, hold)
	}
}
