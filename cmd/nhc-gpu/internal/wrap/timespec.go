package wrap

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// timespec is a time in LBNL's notation: 1d12h, 300, 6h10f.
type timespec struct {
	secs     int64
	fudge    int64
	hasFudge bool
	wrong    string // the error; the rest is not parsed
}

// maxTimespec bounds sums against overflow: a century.
const maxTimespec = 100 * 366 * 86400

func parseTimespec(spec string) (t timespec) {
	number := int64(-1)
	for i := range len(spec) {
		c := spec[i]
		if '0' <= c && c <= '9' {
			number = min(max(number, 0)*10+int64(c-'0'), maxTimespec)
			continue
		}
		unit, known := map[byte]int64{'w': 604800, 'd': 86400, 'h': 3600, 'm': 60, 's': 1, 'f': 0}[c|0x20]
		switch {
		case number < 0:
			t.wrong = fmt.Sprintf("Missing number before character '%c' in timespec %q at position %d.", c, spec, i)
			return t
		case !known:
			t.wrong = fmt.Sprintf("Invalid character '%c' encountered in timespec %q at position %d.", c, spec, i)
			return t
		case unit == 0:
			t.fudge, t.hasFudge = number, true
		default:
			t.secs = min(t.secs+number*unit, maxTimespec)
		}
		number = -1
	}
	t.secs = min(t.secs+max(number, 0), maxTimespec)
	return t
}

// complain prints the error.
func (t timespec) complain() {
	if t.wrong != "" {
		fmt.Fprintf(console.Stdout, "ERROR:  %s\nERROR:  Parsing terminated.  Using %d seconds for expiration of old results.\n", t.wrong, t.secs)
	}
}

// formatTime formats a time as date(1) does; an unknown conversion stays.
func formatTime(t time.Time, format string) string {
	layouts := map[byte]string{
		'F': "2006-01-02", 'T': "15:04:05", 'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'e': "_2", 'H': "15", 'I': "03", 'M': "04",
		'S': "05", 'p': "PM", 'Z': "MST", 'z': "-0700", 'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'h': "Jan", 'j': "002",
		'D': "01/02/06", 'R': "15:04", 'r': "03:04:05 PM", 'N': "000000000", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		layout, ok := layouts[format[i]]
		switch {
		case format[i] == 's':
			fmt.Fprint(&b, t.Unix())
		case format[i] == '%':
			b.WriteByte('%')
		case format[i] == 'N':
			fmt.Fprintf(&b, "%09d", t.Nanosecond())
		case ok:
			b.WriteString(t.Format(layout))
		default:
			b.WriteString("%" + format[i:i+1])
		}
	}
	return b.String()
}

// loopSpec is the argument of -L.
type loopSpec struct {
	every              time.Duration
	clear, ruler, time bool
	none               bool // no time was given
}

// defaultLoop is LBNL's.
const defaultLoop = 300

// parseLoop reads the letters of a timespec as the time and all others as flags, in any order.
func parseLoop(spec string) (l loopSpec) {
	var span, flags strings.Builder
	for i := range len(spec) {
		if strings.IndexByte("0123456789WwDdHhMmSs", spec[i]) >= 0 {
			span.WriteByte(spec[i])
		} else {
			flags.WriteByte(spec[i] | 0x20)
		}
	}
	has := func(c string) bool { return strings.Contains(flags.String(), c) }
	l.clear, l.ruler, l.time = has("c"), has("r"), has("t")
	t := parseTimespec(span.String())
	t.complain()
	if l.none = t.secs == 0; l.none {
		t.secs = defaultLoop
	}
	l.every = time.Duration(t.secs) * time.Second
	return l
}

// untilNext returns the time until the clock shows a multiple of every since midnight: at least a
// second, at most every.
func untilNext(now, midnight time.Time, every time.Duration) time.Duration {
	n := int64(every / time.Second)
	since := (now.Unix() - midnight.Unix()) % n
	if since < 0 { // the clock was set back past midnight
		since += n
	}
	return time.Duration(min(n-since, math.MaxInt64/int64(time.Second))) * time.Second
}
