package probe

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const mcelogText = `Memory errors
SOCKET 0 CHANNEL 1 DIMM 0
corrected memory errors:
	325 total
	9 in 24h
uncorrected memory errors:
	0 total
	0 in 24h

SOCKET 1 CHANNEL any DIMM any
uncorrected memory errors:
	7 total
	2 in 24h
`

func TestParseMemoryErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]MemoryErrors{
		"":                                nil,
		"some text\nwithout counters\n":   nil,
		" corrected memory errors:\n1\n2": nil, // indented: another entry
		"corrected memory errors:":        {{Corrected: true}},
		"corrected memory errors:\n\t1 total\n\n\n\tmany in 24h":     {{Corrected: true}},
		"uncorrected memory errors:\n1\n99999999999999999999 in 24h": {{Day: math.MaxInt64}},
		"uncorrected memory errors:\n1\n-3 in 24h":                   {{Day: -3}},
		"SOCKET 3\ncorrected memory errors:\nuncorrected memory errors:\n4 in 24h\n5 in 24h": {
			{DIMM: "SOCKET 3", Corrected: true, Day: 4}, {DIMM: "SOCKET 3", Day: 5}},
		mcelogText: {
			{DIMM: "SOCKET 0 CHANNEL 1 DIMM 0", Corrected: true, Day: 9},
			{DIMM: "SOCKET 0 CHANNEL 1 DIMM 0"},
			{DIMM: "SOCKET 1 CHANNEL any DIMM any", Day: 2},
		},
	} {
		if diff := cmp.Diff(want, ParseMemoryErrors(text)); diff != "" {
			t.Errorf("of %q (-want +got):\n%s", text, diff)
		}
	}
}

// There is one counter for each heading line, whatever the other lines are.
func FuzzParseMemoryErrors(f *testing.F) {
	f.Add(mcelogText)
	f.Add("corrected memory errors:\nuncorrected memory errors:\n\xff")
	f.Fuzz(func(t *testing.T, text string) {
		want := 0
		for line := range strings.SplitSeq(text, "\n") {
			if line == "corrected memory errors:" || line == "uncorrected memory errors:" {
				want++
			}
		}
		if got := ParseMemoryErrors(text); len(got) != want {
			t.Errorf("%d counters, want %d: %+v", len(got), want, got)
		}
	})
}
