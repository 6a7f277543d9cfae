package slurm

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite testdata/decisions.txt")

// now is the message of a failing verdict in the tests.
const now = "check_fs_mount:  /home not mounted"

// The reasons of a node.
var (
	noReasons  = []string{"", "none", "(null)", " "}
	ourReasons = []string{
		"NHC:", "NHC: check_x:  old", "NHC: check_x:  old : reboot issued", "NHC: " + now + " : Not responding", "NHC: " + now,
	}
	foreignReasons = []string{
		"disk swap pending", "x", "NHC", "nhc: x", "NHC:x y", "None", "none really", "Prolog error", "Not responding",
		"Kill task failed : NHC: x", "Reboot ASAP : reboot issued",
	}
)

// spellings returns all words for a state, by sinfo and by scontrol, of every release, with the
// suffixes.
func spellings(t *testing.T) []string {
	t.Helper()
	seen := map[string]bool{}
	var all []string
	add := func(words ...string) {
		for _, w := range words {
			if !seen[w] {
				seen[w] = true
				all = append(all, w)
			}
		}
	}
	for _, s := range recordedStates(t) {
		add(s.short, s.long)
	}
	// Words of other releases, and those in LBNL NHC.
	add("undrain", "resume", "pow_dn", "pow_up", "power_dn", "powering_down", "drain-", "drain+", "drain@", "drain^", "maint$", "maint#", "maint-", "maint@",
		"idle+", "idle-", "idle@", "idle$", "idle^", "comp-", "resv-", "resv#", "resv@", "plnd*", "block*", "fail~", "err", "foo", "?")
	for _, s := range recordedStates(t) {
		add(s.scontrol)
	}
	add("IDLE*+DRAIN", "MIXED*+DRAIN", "DOWN*+DRAIN", "IDLE#", "IDLE~+CLOUD", "ALLOCATED@", "MAINT", "RESERVED", "PLANNED", "ERROR", "FOO+DRAIN")
	return all
}

// columns are the cases of the table: reason x verdict.
var columns = []struct {
	name, reason string
	verdict      Verdict
	policy       Policy
}{
	{"none", "none", Verdict{Message: now}, Policy{}},
	{"none*", "none", Verdict{Message: now}, Policy{IgnoreEmptyNote: true}},
	{"ours", "NHC: check_x:  old", Verdict{Message: now}, Policy{}},
	{"ours+", "NHC: check_x:  old : reboot issued", Verdict{Message: now}, Policy{}},
	{"same", "NHC: " + now, Verdict{Message: now}, Policy{}},
	{"same+", "NHC: " + now + " : reboot issued", Verdict{Message: now}, Policy{}},
	{"other", "disk swap pending", Verdict{Message: now}, Policy{}},
	{"none", "none", Verdict{Healthy: true}, Policy{}},
	{"none*", "none", Verdict{Healthy: true}, Policy{IgnoreEmptyNote: true}},
	{"ours", "NHC: check_x:  old", Verdict{Healthy: true}, Policy{}},
	{"ours+", "NHC: check_x:  old : reboot issued", Verdict{Healthy: true}, Policy{}},
	{"other", "disk swap pending", Verdict{Healthy: true}, Policy{}},
}

// TestDecisions pins the decision for every state, reason and verdict.
func TestDecisions(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	fmt.Fprint(&b, "# What Decide says, for every word of Slurm's for a state: -update writes this file.\n"+
		"# Reasons: none; none* with IgnoreEmptyNote; ours, another or the same as now, + with\n"+
		"# Slurm's \" : reboot issued\" behind it; other: a person's. Left the checks fail, right they pass.\n")
	fmt.Fprintf(&b, "%-36s %-11s", "# STATE", "CLASS")
	for _, c := range columns {
		if c.verdict.Healthy && c.name == "none" {
			b.WriteString(" |")
		}
		fmt.Fprintf(&b, " %-6s", c.name)
	}
	for _, word := range spellings(t) {
		state := ParseState(word)
		fmt.Fprintf(&b, "\n%-36s %-11s", word, state.Class)
		for _, c := range columns {
			if c.verdict.Healthy && c.name == "none" {
				b.WriteString(" |")
			}
			action := Decide(NodeInfo{State: state, Reason: c.reason}, c.verdict, c.policy).Action.String()
			fmt.Fprintf(&b, " %-6s", strings.Replace(action, "none", "-", 1))
		}
	}
	var lines strings.Builder
	for line := range strings.Lines(b.String() + "\n") {
		lines.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	golden(t, "testdata/decisions.txt", lines.String())
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// TestDecideHolds checks rules that must hold for every row of the table.
func TestDecideHolds(t *testing.T) {
	t.Parallel()
	reasons := append(append(append([]string{}, noReasons...), ourReasons...), foreignReasons...)
	for _, word := range spellings(t) {
		for i, reason := range reasons {
			for _, ignore := range []bool{false, true} {
				node := NodeInfo{State: ParseState(word), Reason: reason}
				mine := i >= len(noReasons) && i < len(noReasons)+len(ourReasons)
				empty := i < len(noReasons)
				p := Policy{IgnoreEmptyNote: ignore}
				holdsFailing(t, node, mine, empty && ignore, Decide(node, Verdict{Message: now}, p))
				holdsHealthy(t, node, mine, empty && ignore, Decide(node, Verdict{Healthy: true}, p))
			}
		}
	}
}

// out reports whether a node is out of service by the word for its state alone. It reads the word
// in another way than ParseState.
func out(text string) bool {
	if strings.Contains(text, "+DRAIN") || strings.Contains(text, "+FAIL") {
		return true
	}
	for _, w := range []string{"drain", "drng", "fail", "maint"} {
		if strings.HasPrefix(text, w) {
			return true
		}
	}
	return false
}

func holdsFailing(t *testing.T, node NodeInfo, mine, taken bool, d Decision) {
	t.Helper()
	bad := func(why string) {
		t.Helper()
		t.Errorf("%s, reason %q, failing: %v: %s", node.State.Text, node.Reason, d.Action, why)
	}
	if d.Action == Resume {
		bad("resumes a failing node")
	}
	if d.Action != None && d.Reason != Reason(now) {
		bad("reason " + d.Reason)
	}
	if out(node.State.Text) && !mine && !taken && d.Action != None {
		bad("touches what another drained")
	}
	if d.Action != None && node.State.Order == failOrder() {
		bad("undoes FAIL")
	}
	if mine && sameReason(node.Reason, Reason(now)) && out(node.State.Text) && d.Action != None {
		bad("writes the same reason again")
	}
	if node.State.Class == InService && !out(node.State.Text) && d.Action != Drain {
		bad("leaves a failing node in service")
	}
	if (node.State.Class == Down || node.State.Class == Unknown) && d.Action != None {
		bad("touches a node that is not up")
	}
	if d.Why == "" {
		bad("does not say why")
	}
}

func holdsHealthy(t *testing.T, node NodeInfo, mine, taken bool, d Decision) {
	t.Helper()
	bad := func(why string) {
		t.Helper()
		t.Errorf("%s, reason %q, healthy: %v: %s", node.State.Text, node.Reason, d.Action, why)
	}
	if d.Action == Drain || d.Action == Renew {
		bad("drains a healthy node")
	}
	if d.Action == Resume && !mine && !taken {
		bad("resumes what another drained")
	}
	if d.Action == Resume && node.State.Class != Drained && node.State.Class != Down {
		bad("resumes a node that is not out of service")
	}
	ordered := false // read in another way than in ParseState
	for _, w := range []string{"REBOOT_", "POWER_DOWN", "POWERED_DOWN", "POWERING_DOWN", "+FAIL"} {
		ordered = ordered || strings.Contains(node.State.Text, w)
	}
	if ordered && d.Action != None {
		bad("undoes what a person ordered")
	}
	if mine && node.State.Class == Drained && node.State.DrainFlag && !ordered && d.Action != Resume {
		bad("keeps a healthy node that we drained")
	}
	if d.Why == "" {
		bad("does not say why")
	}
}

// Slurm's own reason for the status of our prolog or epilog is replaced by ours, and no other
// reason is.
func TestDecideSlurmsWords(t *testing.T) {
	t.Parallel()
	reasons := append(append(append([]string{}, noReasons...), ourReasons...), foreignReasons...)
	reasons = append(reasons, "Epilog error", "Prolog error : reboot issued", "prolog error", "Prolog error (JobId=1)", "Kill task failed")
	for _, word := range spellings(t) {
		for _, reason := range reasons {
			for _, v := range []Verdict{{Message: now}, {Healthy: true}} {
				node := NodeInfo{State: ParseState(word), Reason: reason}
				want := Decide(node, v, Policy{})
				slurms := reason == "Prolog error" || reason == "Epilog error"
				if slurms && strings.HasPrefix(want.Why, "drained for another reason") && !v.Healthy {
					want = Decision{Action: Renew, Reason: Reason(now), Why: "drained by Slurm for nhc-gpu's exit status (" + reason + ")"}
				}
				node.Refused = true
				if diff := cmp.Diff(want, Decide(node, v, Policy{})); diff != "" {
					t.Errorf("%s, reason %q, healthy %v (-want +got):\n%s", word, reason, v.Healthy, diff)
				}
			}
		}
	}
}

func TestReason(t *testing.T) {
	t.Parallel()
	tests := []struct{ message, want string }{
		{"check_x:  failed  now", "NHC: check_x:  failed  now"},
		{"", "NHC:"},
		{"  x  ", "NHC: x"},
		{"a\nState=IDLE\tb\r\n", "NHC: a State=IDLE b"},
		{"\x1b[31mred\x00\x7f", "NHC: [31mred"},
		{`1 returned by "cmd".`, "NHC: 1 returned by 'cmd'."},
		{"bad \xff byte", "NHC: bad \uFFFD byte"},
		{"gpu3 46 \u00b0C", "NHC: gpu3 46 \u00b0C"},
		{"a\u2028b\u202ec\u00a0d", "NHC: a b c d"},
		{Attributed("gpu3 is lost", []string{"12", "13"}), "NHC: gpu3 is lost [job 12 13]"},
		{Attributed(strings.Repeat("x", 2000), []string{"12"}), "NHC: " + strings.Repeat("x", 1024-5-9-3) + "... [job 12]"},
	}
	for _, tt := range tests {
		if got := Reason(tt.message); got != tt.want {
			t.Errorf("Reason(%q) = %q, want %q", tt.message, got, tt.want)
		}
	}
}

// The job where a fault began stays in the reason after it has ended.
func TestReasonKeepsJob(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		have, message string
		want          Action
	}{
		{"NHC: gpu3 is lost [job 12]", "gpu3 is lost", None},
		{"NHC: gpu3 is lost [job 12] : reboot issued", "gpu3 is lost", None},
		{"NHC: gpu3 is lost [job 12]", "gpu3 is lost [job 12]", None},
		{"NHC: gpu3 is lost", "gpu3 is lost [job 12]", Renew},
		{"NHC: gpu3 is lost [job 12]", "gpu3 is lost [job 13]", None}, // the first job stays
		{"NHC: gpu3 is lost [job 12 13]", "gpu3 is lost [job 13]", None},
		{"NHC: gpu3 is lost [job 12]", "gpu4 is lost", Renew},
		{"NHC: gpu3 is lost [job x]", "gpu3 is lost", Renew},
		{"NHC: gpu3 is lost, too", "gpu3 is lost", Renew},
	} {
		got := Decide(NodeInfo{State: ParseState("drained"), Reason: tt.have}, Verdict{Message: tt.message}, Policy{})
		if got.Action != tt.want {
			t.Errorf("reason %q, message %q: %s, want %s", tt.have, tt.message, got.Action, tt.want)
		}
	}
}

func TestReasonIsCut(t *testing.T) {
	t.Parallel()
	for _, message := range []string{strings.Repeat("x", 1019), strings.Repeat("x", 1020), strings.Repeat("\u00e9", 700), strings.Repeat("a ", 700)} {
		got := Reason(message)
		if len(got) > MaxReason || !utf8.ValidString(got) || strings.HasSuffix(got, " ...") {
			t.Errorf("Reason of %d bytes: %d bytes, ends in %q", len(message), len(got), got[len(got)-8:])
		}
		if whole := len("NHC: ")+len(message) <= MaxReason; strings.HasSuffix(got, "...") == whole {
			t.Errorf("Reason of %d bytes ends in %q", len(message), got[len(got)-8:])
		}
	}
}

func FuzzReason(f *testing.F) {
	f.Add("a\nb")
	f.Add(strings.Repeat("\u20ac", 500))
	f.Fuzz(func(t *testing.T, message string) {
		got := Reason(message)
		if len(got) > MaxReason || !utf8.ValidString(got) || ownerOf(got) != ours || got != strings.TrimSpace(got) {
			t.Errorf("Reason(%q) = %q", message, got)
		}
		if strings.ContainsFunc(got, func(r rune) bool { return r == '"' || !unicode.IsPrint(r) }) {
			t.Errorf("Reason(%q) = %q", message, got)
		}
	})
}

// A finding's reason is the same as long as device and fault are, regardless of other findings, the
// check that detected it, and the running job.
func TestSameReasonOfFinding(t *testing.T) {
	t.Parallel()
	const have = "NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost] +2 [job 12]"
	for want, same := range map[string]bool{
		have: true,
		"NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_count) [gpu.recovery.lost]":        true,
		"NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_recovery) [gpu.recovery.lost] +14": true,
		"NHC: gpu3 lost 0000:66:00.0: reboot (check_gpu_xid) [gpu.xid.79]":                 true,
		"NHC: gpu4 lost 0000:77:00.0: reboot (check_gpu_count) [gpu.recovery.lost] +2":     false,
		"NHC: gpu3 Xid 119 0000:66:00.0: reset the GPU (check_gpu_xid) [gpu.xid.119]":      false,
		"NHC: check_gpu_count:  want 8 GPUs, got 7":                                        false,
		"NHC: gpu3 lost 0000:66:00.0":                                                      false,
	} {
		if got := sameReason(have, want); got != same {
			t.Errorf("%q: same %v, want %v", want, got, same)
		}
		if got := sameReason(have+" : reboot issued", want); got != same {
			t.Errorf("%q, with Slurm's own words: same %v, want %v", want, got, same)
		}
	}
	if !sameReason("NHC: GPU count 7, want 8: power cycle (check_gpu_count) [gpu.count]", "NHC: GPU count 7, want 8: power cycle (check_gpu_count) [gpu.count] +1") {
		t.Error("a fault of no device is another one with another number of others")
	}
}
