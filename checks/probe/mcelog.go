package probe

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// MemoryErrors is one counter of "mcelog --client": the errors of one memory
// module within the last 24 hours.
type MemoryErrors struct {
	DIMM      string // "SOCKET 0 CHANNEL 1 DIMM 0"; "" if unknown
	Corrected bool   // ECC corrected these errors; otherwise it could not
	Day       int64  // in 24 hours, 0 if it is not a number
}

// ParseMemoryErrors finds the counters in the output of "mcelog --client", in
// their order:
//
//	SOCKET 0 CHANNEL 1 DIMM 0
//	corrected memory errors:
//		325 total
//		9 in 24h
//	uncorrected memory errors:
//		0 total
//		0 in 24h
func ParseMemoryErrors(text string) []MemoryErrors {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
	var all []MemoryErrors
	dimm := ""
	for i, line := range lines {
		switch {
		case strings.HasPrefix(line, "SOCKET "):
			dimm = strings.TrimSpace(line)
		case line == "corrected memory errors:", line == "uncorrected memory errors:":
			e := MemoryErrors{DIMM: dimm, Corrected: line[0] == 'c'}
			if i+2 < len(lines) { // the line between them has the total
				e.Day = parseLeadingNumber(lines[i+2])
			}
			all = append(all, e)
		}
	}
	return all
}

// parseLeadingNumber returns the first word of a line as a number, 0 if it is not one. A number that is
// too large becomes the largest one.
func parseLeadingNumber(line string) int64 {
	words := strings.Fields(line)
	if len(words) == 0 {
		return 0
	}
	n, err := strconv.ParseInt(words[0], 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) && n > 0:
		return math.MaxInt64
	case err != nil:
		return 0
	}
	return n
}
