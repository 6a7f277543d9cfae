package slurm

import (
	"os"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

func TestParseState(t *testing.T) {
	t.Parallel()
	tests := []struct {
		text  string
		base  string
		class Class
		drain bool
	}{
		{text: "idle", base: "idle", class: InService},
		{text: "idle*", base: "idle", class: InService},
		{text: "mix-", base: "mixed", class: InService},
		{text: "alloc+", base: "allocated", class: InService},
		{text: "plnd", base: "planned", class: InService},
		{text: "boot^", base: "boot", class: InService},
		{text: "pow_dn", base: "power", class: InService},
		{text: "resume", base: "resume", class: InService},
		{text: "undrain", base: "undrain", class: InService},
		{text: "drng@", base: "drain", class: Drained},
		{text: "failg", base: "fail", class: Drained},
		{text: "maint", base: "maint", class: Drained},
		{text: "down~", base: "down", class: Down},
		{text: "inval", base: "inval", class: Unknown},
		{text: "IDLE+PLANNED", base: "idle", class: InService},
		{text: "IDLE+DRAIN+NOT_RESPONDING", base: "drain", class: Drained, drain: true},
		{text: "MIXED+DRAIN+REBOOT_REQUESTED", base: "drain", class: Drained, drain: true},
		{text: "MIXED+REBOOT_REQUESTED", base: "mixed", class: InService},
		{text: "DOWN+REBOOT_ISSUED", base: "boot", class: InService},
		{text: "DOWN+DRAIN+REBOOT_ISSUED", base: "boot", class: InService, drain: true},
		{text: "UNKNOWN+DRAIN+INVALID_REG", base: "inval", class: Unknown, drain: true},
		{text: "IDLE+MAINTENANCE+RESERVED", base: "maint", class: Drained},
		{text: "IDLE+DRAIN+MAINTENANCE+RESERVED", base: "drain", class: Drained, drain: true},
		{text: "MIXED+MAINTENANCE", base: "mixed", class: InService},
		{text: "DOWN+NOT_RESPONDING", base: "down", class: Down},
		// Before 21.08.
		{text: "IDLE*+DRAIN", base: "drain", class: Drained, drain: true},
		{text: "IDLE*", base: "idle", class: InService},
		{text: "DOWN*+DRAIN", base: "drain", class: Drained, drain: true},
		{text: "IDLE+CLOUD+POWERED_DOWN", base: "idle", class: InService},
		// A flag of a future release does not hide the state.
		{text: "IDLE+FANCY", base: "idle", class: InService},
		{text: "IDLE+DRAIN+FANCY", base: "drain", class: Drained, drain: true},
		// Not words of Slurm.
		{text: "", class: Unknown},
		{text: "?", class: Unknown},
		{text: "+", class: Unknown},
		{text: "Idle", class: Unknown},
		{text: "DRAIN", class: Unknown},
		{text: "idle+drain", class: Unknown},
		{text: "slurm_load_partitions:", class: Unknown},
	}
	for _, tt := range tests {
		got := ParseState(tt.text)
		if got.Text != tt.text || got.Base != tt.base || got.Class != tt.class || got.DrainFlag != tt.drain {
			t.Errorf("ParseState(%q) = %+v, want base %q class %v drain flag %v", tt.text, got, tt.base, tt.class, tt.drain)
		}
	}
}

// recorded is a line of testdata/states.txt.
type recorded struct{ releases, short, long, scontrol string }

func recordedStates(t *testing.T) []recorded {
	t.Helper()
	b, err := os.ReadFile("testdata/states.txt")
	if err != nil {
		t.Fatal(err)
	}
	var states []recorded
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[0] != "#" {
			states = append(states, recorded{f[0], f[1], f[2], f[3]})
		}
	}
	return states
}

// scontrol's and sinfo's texts for the same node have the same meaning, except where sinfo
// contradicts itself: for a node in a power state that has not registered with slurmctld since its
// restart, %t prints "unk" and %T "powering_up".
func TestParseStateAgrees(t *testing.T) {
	t.Parallel()
	for _, s := range recordedStates(t) {
		short, long, full := ParseState(s.short), ParseState(s.long), ParseState(s.scontrol)
		if strings.HasPrefix(s.scontrol, "UNKNOWN+POWER") {
			long.Class = short.Class
		}
		if short.Class != full.Class || long.Class != full.Class {
			t.Errorf("%s: %s is %v, %s is %v, %s is %v", s.releases,
				s.short, short.Class, s.long, long.Class, s.scontrol, full.Class)
		}
		if !full.Full || short.Full || long.Full {
			t.Errorf("%s: Full of %s %v, %s %v, %s %v", s.releases, s.short, short.Full, s.long, long.Full, s.scontrol, full.Full)
		}
		if drain := strings.Contains(s.scontrol, "+DRAIN") || strings.Contains(s.scontrol, "+FAIL"); full.DrainFlag != drain {
			t.Errorf("%s: DrainFlag is %v, want %v", s.scontrol, full.DrainFlag, drain)
		}
	}
}

func TestStatesFile(t *testing.T) {
	t.Parallel()
	var file struct {
		State []stateRow
		Flag  []flagRow
		Order []orderRow
	}
	meta, err := toml.Decode(statesTOML, &file)
	if err != nil {
		t.Fatal(err)
	}
	if u := meta.Undecoded(); len(u) > 0 {
		t.Errorf("keys no one reads: %v", u)
	}
	for _, row := range file.Order {
		if row.Word == "" || row.Text == "" || row.Source == "" || len(row.Sign) > 1 || !strings.Contains(flags, row.Sign) {
			t.Errorf("order %q: want a text, a source and one of %s or no sign", row.Word, flags)
		}
	}
	names, words := map[string]bool{}, map[string]bool{}
	for _, row := range file.State {
		if names[row.Name] || row.Source == "" {
			t.Errorf("row %q: want a name of its own and a source", row.Name)
		}
		names[row.Name] = true
		for _, w := range append(row.Sinfo, row.Scontrol...) {
			if words[w] {
				t.Errorf("row %q: %q is in two rows", row.Name, w)
			}
			words[w] = true
		}
	}
	for _, f := range file.Flag {
		if !names[f.State] {
			t.Errorf("flag %s: no state %q", f.Word, f.State)
		}
	}
}

func FuzzParseState(f *testing.F) {
	for _, s := range []string{"idle*", "IDLE+DRAIN", "", "+++", "IDLE*+DRAIN"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := ParseState(text)
		if s.Text != text || (s.Base == "") && s.Class != Unknown {
			t.Errorf("ParseState(%q) = %+v", text, s)
		}
	})
}

// Only Slurm's state determines whether a node is empty.
func TestEmpty(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"IDLE": true, "IDLE+DRAIN": true, "IDLE+PLANNED": true, "IDLE*+DRAIN": true, "DOWN+DRAIN+NOT_RESPONDING": true,
		"IDLE+COMPLETING": false, "IDLE+DRAIN+COMPLETING": false, "MIXED": false, "MIXED+DRAIN": false, "ALLOCATED": false, "UNKNOWN": false,
		"idle": true, "idle*": true, "drain": true, "drained": true, "down*": true,
		"idle+": false, "drng": false, "draining": false, "mix": false, "alloc": false, "comp": false, "maint": false, "resv": false, "": false, "?": false,
	} {
		if got := ParseState(text).Empty(); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
