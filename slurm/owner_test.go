package slurm

import (
	"errors"
	"strings"
	"testing"
)

const etherReason = "NHC: nosuch0 missing (check_eth_link) [eth.missing]"

// A reason that a person has changed is not ours, however it begins or ends: no run resumes the node or writes a reason,
// and no remedy acts.
func TestChangedReasonIsForeign(t *testing.T) {
	t.Parallel()
	ether := Verdict{Message: strings.TrimPrefix(etherReason, "NHC: "), Code: "eth.missing", Device: "nosuch0", Cause: Cause{Check: "check_eth_link", File: "/etc/nhc/nhc.conf"}}
	for name, test := range map[string]struct {
		reason string
		ours   bool
	}{
		"as set":                       {etherReason, true},
		"rebooting":                    {etherReason + " : reboot requested : reboot issued", true},
		"a remedy":                     {etherReason + " : remedy reset-gpu : reboot complete", true},
		"held":                         {etherReason + " : held for RMA", true},
		"Slurm's":                      {etherReason + " : gres/gpu count reported lower than configured (7 < 8)", true},
		"Slurm's memory":               {etherReason + " : Low RealMemory (reported:1 < 100.00% of configured:2)", true},
		"extended":                     {etherReason + " : ticket 4711, vendor on site, do not resume", false},
		"extended like a reboot":       {etherReason + " : reboot after the vendor has left", false},
		"extended after Slurm's":       {etherReason + " : reboot issued : ticket 4711", false},
		"same finding, other words":    {"NHC: nosuch0 missing: VENDOR ON SITE DO NOT RESUME (check_eth_link) [eth.missing]", false},
		"another number of findings":   {etherReason + " +2", false},
		"another job":                  {etherReason + " [job 4711]", false},
		"a further line":               {etherReason + "\nDO NOT RESUME", false},
		"copied from scontrol":         {etherReason + " [root@2026-11-21T06:23:00] : ticket 4711", false},
		"shortened":                    {"NHC: nosuch0 missing", false},
		"a person's with our prefix":   {"NHC: hands off", false},
		"with a comment in the reason": {etherReason + " Comment=ticket", false},
	} {
		f := &fake{state: "IDLE", groups: "main|drain|1|gpu01|x\n"}
		c := controller(t, f)
		act(t, c, ether, "read", "DRAIN "+etherReason)
		f.reason = test.reason
		if !strings.Contains(name, "line") && !strings.Contains(name, "comment") { // scontrol shows these in another form
			if p, err := AskPatient(t.Context(), c, defaults, 0, false); err != nil || p.Ours != test.ours {
				t.Errorf("%s: %+v, %v: want ours %v", name, p, err, test.ours)
			}
			if err := Reboot(t.Context(), c); errors.Is(err, ErrNotOurs) == test.ours {
				t.Errorf("%s: reboot: %v", name, err)
			}
			f.state = "IDLE+DRAIN"
			if !test.ours {
				f.is(t, "IDLE+DRAIN", test.reason)
			}
		}
		f.calls = nil
		for _, v := range []Verdict{ether, by("check_fs_mount", "no /home"), healthy} {
			if o, err := c.Act(t.Context(), v, HealthCheck); err != nil || (o.Action != None) && !test.ours {
				t.Errorf("%s: %+v, %v", name, o, err)
			}
		}
		if resumed := f.state == "IDLE"; resumed != test.ours {
			t.Errorf("%s: the node is %s %q, want it resumed: %v", name, f.state, f.reason, test.ours)
		}
	}
}

// A changed reason is noticed, too, if the answer to the drain was lost.
func TestChangedReasonAfterLostAnswer(t *testing.T) {
	t.Parallel()
	f := &fake{state: "IDLE", on: always(applied, "DRAIN")}
	c := controller(t, f)
	act(t, c, failing, "read", "DRAIN "+ourReason, "read")
	f.on = nil
	f.reason = ourReason + " : ticket 4711"
	act(t, c, healthy, "read")
	f.is(t, "IDLE+DRAIN", f.reason)
}

// Of a reason with further lines, the first is read, and it is not ours. The same line again is that of another partition.
func TestFurtherLines(t *testing.T) {
	t.Parallel()
	column := string((&fake{state: "IDLE+DRAIN", reason: ourReason}).columns().Stdout)
	long := string((&fake{state: "IDLE+DRAIN", reason: ourReason + "\nDO NOT RESUME"}).columns().Stdout)
	show := "NodeName=n State=IDLE+DRAIN Reason=" + ourReason + " [root@2026-11-21T06:23:00]"
	for out, want := range map[string]bool{
		column: false, column + column: false, long: true, long + long: true,
	} {
		if n, err := parseColumns([]byte(out)); err != nil || n.Reason != ourReason || n.Foreign != want {
			t.Errorf("%q: %+v, %v, want foreign %v", out, n, err, want)
		}
	}
	for out, want := range map[string]bool{"drain " + ourReason + "\n": false, "drain " + ourReason + "\ndrain " + ourReason + "\n": false, "drain " + ourReason + "\nDO NOT RESUME\n": true} {
		if n, err := parseSinfo([]byte(out)); err != nil || n.Reason != ourReason || n.Foreign != want {
			t.Errorf("%q: %+v, %v, want foreign %v", out, n, err, want)
		}
	}
	for out, want := range map[string]bool{show: false, show + " Comment=x": false, show + " NewKey=x": false, show + "        DO NOT RESUME": true} {
		if n, err := parseShowNode([]byte(out)); err != nil || n.Reason != ourReason || n.Foreign != want {
			t.Errorf("%q: %+v, %v, want foreign %v", out, n, err, want)
		}
	}
}

// A person orders a reboot or a power-down of a drained node, and cancels it: the cause of the drain stays.
func TestOrderKeepsMarks(t *testing.T) {
	t.Parallel()
	for _, state := range []string{
		"MIXED+DRAIN+REBOOT_REQUESTED", "IDLE+DRAIN+POWER_DOWN", "MIXED+DRAIN+POWER_DOWN", "IDLE+DRAIN+REBOOT_REQUESTED",
		"DOWN+DRAIN+REBOOT_ISSUED", "IDLE+DRAIN+POWERED_DOWN", "IDLE+DRAIN+POWERING_DOWN", "DOWN+DRAIN", "DOWN+NOT_RESPONDING", "IDLE+DRAIN+MAINTENANCE",
	} {
		f := &fake{state: "IDLE"}
		c := controller(t, f)
		act(t, c, by("check_gpu_gemm", "wrong"), "read", "DRAIN NHC: wrong")
		f.state = state
		for range 2 {
			if o, err := c.Act(t.Context(), passing("check_fs_mount"), HealthCheck); err != nil || o.Action != None {
				t.Errorf("%s: %+v, %v", state, o, err)
			}
			f.calls = nil
		}
		f.state = "IDLE+DRAIN"
		if o, err := c.Act(t.Context(), passing("check_fs_mount"), HealthCheck); err != nil || !o.Kept {
			t.Errorf("%s, cancelled: %+v, %v, want it kept", state, o, err)
		}
		if o, err := c.Act(t.Context(), passing("check_gpu_gemm"), Manual); err != nil || o.Action != Resume {
			t.Errorf("%s: %+v, %v, want it resumed", state, o, err)
		}
	}
}

// Names that users choose steer nothing.
func TestNamesInReasons(t *testing.T) {
	t.Parallel()
	const left = "NHC: left process, %s (check_job_leftovers) [job.left.process]"
	in := func(form, name string) string { return strings.Replace(form, "%s", name, 1) }
	const lbnl, script, full = "NHC: check_ps_mem:  process %s (PID 7) uses 9 GB", "NHC: found %s", "gpu3 lost: reboot (check_gpu_count) [gpu.recovery.lost]"
	for reason, want := range map[string][3]string{ // code, check, key
		in(left, "[gpu.recovery.lost]"):                                       {"job.left.process", "check_job_leftovers", "job.left.process"},
		in(left, full+" : remedy x"):                                          {"job.left.process", "check_job_leftovers", "job.left.process"},
		in(left, full) + " +3 [job 1 2] : reboot issued":                      {"job.left.process", "check_job_leftovers", "job.left.process"},
		Reason(in(left, full+strings.Repeat("x", 2*MaxReason))):               {"", "", strings.TrimPrefix(Reason(in(left, full+strings.Repeat("x", 2*MaxReason))), "NHC: ")},
		in(lbnl, "[gpu.recovery.lost]"):                                       {"", "check_ps_mem", "check_ps_mem"},
		in(lbnl, "other"):                                                     {"", "check_ps_mem", "check_ps_mem"},
		"NHC: check_ps_mem:  process " + full:                                 {"", "check_ps_mem", "check_ps_mem"},
		"NHC: check_ps_mem:  process " + full + " : remedy x":                 {"", "check_ps_mem", "check_ps_mem"},
		"NHC: check_file_test:  -f /etc/nhc/ok2 returned 1.":                  {"", "check_file_test", "check_file_test:  -f /etc/nhc/ok2 returned #"},
		in(script, "[nvme.count]"):                                            {"", "", "found [nvme.count]"},
		in(script, "check_gpu_count"):                                         {"", "", "found check_gpu_count"},
		"NHC: Script timed out while executing 'check_fs_mount_rw -f /home'.": {"", "check_fs_mount_rw", "Script timed out while executing 'check_fs_mount_rw -f /home'."},
	} {
		if strings.Contains(want[2], "xxx") {
			want[2] = strings.TrimSpace(withoutNumbers(want[2]))
		}
		if got := [3]string{ReasonCode(reason), checkOf(reason), faultKey(reason)}; got != want {
			t.Errorf("%.200s: %q, want %q", reason, got, want)
		}
		if defaults.exempts(reason) {
			t.Errorf("%.200s is exempt", reason)
		}
	}

	// Another name on each node is the same fault, and a name is not the fault of another check.
	groups := []NodeGroup{{Partition: "main", State: ParseState("idle"), Nodes: 6, Names: "n[01-06]", Reason: "none"}}
	for i, name := range []string{"a", "[nvme.count]", "b : remedy reset-gpu", "held for RMA"} {
		groups = append(groups, NodeGroup{Partition: "main", State: ParseState("drain"), Nodes: 1, Names: "n1" + string(rune('0'+i)), Reason: in(lbnl, name)})
	}
	if r := defaults.Rule("n01", in(lbnl, "z"), groups); !r.Hold || r.Out != 4 {
		t.Errorf("%+v, want it held", r)
	}
	if r := defaults.Rule("n01", "NHC: nvme count 3, want 4 (check_nvme) [nvme.count]", groups); r.Hold || r.Out != 0 {
		t.Errorf("%+v, want a drain", r)
	}
	if partition, cluster := inRepair("n01", groups); partition != 0 || cluster != 0 {
		t.Errorf("%d and %d in repair, want none", partition, cluster)
	}
	for reason, want := range map[string]bool{
		in(left, "held for RMA"): false, in(lbnl, "held for RMA"): false, in(left, "x : held for RMA"): false,
		in(left, "x") + " : held for RMA": true, in(left, "x") + " : held for RMA : reboot issued": true,
		"NHC: gpu3 held for RMA (check_gpu_count) [remedy.hold]": true,
	} {
		if IsHeldForRMA(reason) != want {
			t.Errorf("%s: held %v, want %v", reason, !want, want)
		}
	}
	for message, want := range map[string]string{
		"found x : remedy reset-gpu": "NHC: found x: remedy reset-gpu", "found x : held for RMA : reboot complete": "NHC: found x: held for RMA: reboot complete", "a : b": "NHC: a : b",
	} {
		if got := Reason(message); got != want || withoutAdditions(got) != got {
			t.Errorf("%s: %s, want %s", message, got, want)
		}
	}
}
