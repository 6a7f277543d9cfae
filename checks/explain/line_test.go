package explain

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
)

// Every line that wakes a check, and every other line that a person meets, is explained, with the prefix of dmesg or
// syslog, too.
func TestExplainLines(t *testing.T) {
	t.Parallel()
	env := checktest.ExplainEnv(t, nil)
	var examples []string
	for _, l := range monitor.Lines() {
		examples = append(examples, l.Example)
	}
	for _, l := range otherLines() {
		if l.Has == "" || l.Means == "" || l.Check == "" || l.Do == "" || l.Source == "" {
			t.Errorf("%+v: want all fields", l)
		}
		examples = append(examples, l.Example)
	}
	for _, line := range examples {
		for _, text := range []string{line, "[  131.2] " + line, "Jan  2 03:04:05 n1 kernel: " + line} {
			got, err := Explain(env, text)
			for _, want := range []string{"  means ", "  do ", "  source "} {
				if err != nil || !strings.Contains(got, want) && !strings.Contains(got, "  code ") {
					t.Errorf("%q: %v, want %q in\n%s", text, err, want, got)
				}
			}
		}
	}
	for text, want := range map[string]string{
		"EXT4-fs error (device md0): ext4_lookup:1855: inode #2: comm a: deleted inode referenced: 12": "it makes the checks of fs, nvme, kernel that only read",
		"INFO: task python:123 blocked for more than 120 seconds.":                                     "check_kernel_log: warns",
		"NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.":                                          "Xid 79",
		"NVRM: RmInitAdapter failed!":                                                                  "the driver could not start a GPU",
		"NVRM: _fabricNotifyEvent: Unable to notify ImexSessionApi":                                    "do         Nothing",
	} {
		if got, err := Explain(env, text); err != nil || !strings.Contains(got, want) {
			t.Errorf("%q: %v, want %q in\n%s", text, err, want, got)
		}
	}
}
