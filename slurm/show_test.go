package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The files are the output of a real scontrol -o show node. In the spoofed one, a reason with a
// newline, a comment and an extra each contain State= and
// Reason=.
func TestParseShowNode(t *testing.T) {
	t.Parallel()
	tests := []struct{ file, state, reason string }{
		{"22.05-idle", "IDLE", ""},
		{"24.11-idle", "IDLE", ""},
		{"26.05-idle", "IDLE", ""},
		{"22.05-drained", "IDLE+DRAIN", "bad dimm"},
		{"24.11-drained", "IDLE+DRAIN", "bad dimm"},
		{"26.05-drained", "IDLE+DRAIN", "bad dimm"},
		{"22.05-spoof", "IDLE+DRAIN", "bad dimm"},
		{"24.11-spoof", "IDLE+DRAIN", "bad dimm"},
		{"26.05-spoof", "IDLE+DRAIN", "bad dimm"},
		{"22.05-resumed", "IDLE", ""}, // its comment poses as a reason
		{"24.11-resumed", "IDLE", "NHC: x y"},
		{"26.05-resumed", "IDLE", ""},
	}
	for _, tt := range tests {
		b, err := os.ReadFile(filepath.Join("testdata", "show", tt.file+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		node, err := parseShowNode(b)
		if err != nil || node.State.Text != tt.state || node.Reason != tt.reason {
			t.Errorf("%s: %q, reason %q, %v, want %q, reason %q", tt.file, node.State.Text, node.Reason, err, tt.state, tt.reason)
		}
	}
}

func TestParseShowNodeForms(t *testing.T) {
	t.Parallel()
	const stamped = " [root@2026-11-21T06:23:00]"
	tests := []struct{ line, state, reason string }{
		{"NodeName=n State=IDLE*+DRAIN CPUs=1 Reason=NHC: a  b : reboot issued" + stamped, "IDLE*+DRAIN", "NHC: a  b : reboot issued"},
		{"NodeName=n CPUs=1 State=DOWN Reason=no stamp Comment=c", "DOWN", "no stamp"},
		{"NodeName=n State=DOWN Reason=[x] y" + stamped + " Comment=c", "DOWN", "[x] y"},
		{"NodeName=n State=IDLE Comment=c Reason=NHC: x" + stamped, "IDLE", ""},
		{"NodeName=n State=IDLE Reason= " + stamped, "IDLE", ""},
		// Broken output.
		{line: ""},
		{line: "Node n not found"},
		{line: "slurm_load_node error: Invalid node name specified"},
		{line: "NodeName=n CPUs=1"},
		{line: "NodeName=n State= CPUs=1"},
		{line: "NodeName=n Comment=c State=IDLE"},
		{line: "NodeName=n Reason=NHC: x State=IDLE+DRAIN"},
		{line: "x\nNodeName=n State=IDLE"},
	}
	for _, tt := range tests {
		node, err := parseShowNode([]byte(tt.line + "\n"))
		if (err != nil) != (tt.state == "") || node.State.Text != tt.state || node.Reason != tt.reason {
			t.Errorf("%q: %q, reason %q, %v, want %q, reason %q", tt.line, node.State.Text, node.Reason, err, tt.state, tt.reason)
		}
	}
}

func TestParseSinfo(t *testing.T) {
	t.Parallel()
	tests := []struct{ out, state, reason string }{
		{"idle* none\n", "idle*", "none"},
		{"drain NHC: a  b\n", "drain", "NHC: a  b"},
		{"drain NHC: x\nidle NHC: x\n", "drain", "NHC: x"},
		{"mix NHC: old\nmix bad dimm\n", "mix", "NHC: old"},
		{"drain bad dimm\nState=IDLE Reason=NHC: x\n", "drain", "bad dimm"},
		{"down\n", "down", ""},
		{out: ""}, // exit status 0 for a node that does not exist
		{out: " \n"},
		{out: "\nidle none\n"},
	}
	for _, tt := range tests {
		node, err := parseSinfo([]byte(tt.out))
		if (err != nil) != (tt.state == "") || node.State.Text != tt.state || node.Reason != tt.reason {
			t.Errorf("%q: %q, reason %q, %v, want %q, reason %q", tt.out, node.State.Text, node.Reason, err, tt.state, tt.reason)
		}
	}
}

// No text in a reason can change the state or, except by its first word, the
// owner.
func FuzzParseShowNode(f *testing.F) {
	f.Add("bad dimm\n   State=IDLE Reason=NHC: x [root@2026-01-01T00:00:00]")
	f.Add(" State=DOWN")
	f.Fuzz(func(t *testing.T, reason string) {
		first, rest, more := strings.Cut(reason, "\n")
		line := "NodeName=n State=MIXED CPUs=1 Reason=" + first + " [root@2026-11-21T06:23:00]"
		if more { // scontrol -o joins the lines of a reason
			line += "        " + strings.ReplaceAll(rest, "\n", " ")
		}
		node, err := parseShowNode([]byte(line))
		if err != nil || node.State.Text != "MIXED" {
			t.Fatalf("%q: %+v, %v", line, node, err)
		}
		if got, want := ownerOf(node.Reason), ownerOf(first); got != want && !stamp().MatchString(" "+first) && !freeText().MatchString(" "+first) {
			t.Errorf("%q: owner %v, want %v", line, got, want)
		}
	})
}

// The columns are from a real sinfo of 22.05, 24.11 and 26.05.
func TestParseColumns(t *testing.T) {
	t.Parallel()
	column := func(state, author, reason string) string {
		return fmt.Sprintf("%-200s%-60s%-2048s", state, author, reason)
	}
	for _, tt := range []struct{ out, state, author, reason string }{
		{column("idle", "Unknown", "none"), "IDLE", "", "none"},
		{column("mixed+drain+reboot_requested", "root", "NHC: gpu3 é lost"), "MIXED+DRAIN+REBOOT_REQUESTED", "root", "NHC: gpu3 é lost"},
		{column("idle+drain", "alice", "two  blanks") + "\nidle none\n" + column("idle", "x", "y"), "IDLE+DRAIN", "alice", "two  blanks"},
		{column("idle+drain", "root", "a line")[:270] + "\nIDLE", "IDLE+DRAIN", "root", "a line"},
		{"drain@ disk swap\n", "drain@", "", "disk swap"}, // a site's own sinfo
	} {
		node, err := parseColumns([]byte(tt.out))
		if err != nil || node.State.Text != tt.state || node.Author != tt.author || node.Reason != tt.reason || node.State.Class == Unknown {
			t.Errorf("%.60q: %+v, %v", tt.out, node, err)
		}
	}
	for _, out := range []string{"", "\n", "sinfo: error: x", "Idle none", "\x00"} {
		if node, err := parseColumns([]byte(out)); err == nil {
			t.Errorf("%q: %+v, want an error", out, node)
		}
	}
}
