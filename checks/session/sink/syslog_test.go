package sink

import (
	"strings"
	"testing"
)

// A long line is split between two characters; other lines are unchanged.
func TestRecord(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ line, want string }{
		{"", ""},
		{"bad \xff byte", "bad ? byte"},
		{strings.Repeat("x", maxRecord), strings.Repeat("x", maxRecord)},
		{strings.Repeat("x", maxRecord-1) + "é", strings.Repeat("x", maxRecord-1)},
		{strings.Repeat("x", 1<<20), strings.Repeat("x", maxRecord)},
	} {
		if got := record(test.line); got != test.want {
			t.Errorf("record of %d bytes: %d bytes, want %d", len(test.line), len(got), len(test.want))
		}
	}
}
