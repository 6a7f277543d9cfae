package checks

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// ParseTime parses a number of seconds, or a number with the suffix s, m, h or d.
func ParseTime(word string) (time.Duration, bool) {
	units := map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}
	unit := time.Second
	if word != "" {
		if u, ok := units[word[len(word)-1]]; ok {
			unit, word = u, word[:len(word)-1]
		}
	}
	n, err := strconv.ParseFloat(word, 64)
	if err != nil || !(n >= 0) || n > float64(math.MaxInt64/int64(unit)) {
		return 0, false
	}
	return time.Duration(n * float64(unit)), true
}

// Size is a number of bytes. In arguments it has the binary units of nccl-tests and perftest:
// 8M is 8 MiB.
type Size int64

var binaryUnits = []struct {
	name  string
	bytes Size
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

// String returns the size in the largest unit that divides it. If none does, a size of 1 MiB
// or more gets one decimal.
func (s Size) String() string {
	for _, u := range binaryUnits {
		if s >= u.bytes && s%u.bytes == 0 {
			return fmt.Sprintf("%d %s", s/u.bytes, u.name)
		}
	}
	for _, u := range binaryUnits {
		if s >= max(u.bytes, 1<<20) {
			return fmt.Sprintf("%.1f %s", float64(s)/float64(u.bytes), u.name)
		}
	}
	return fmt.Sprintf("%d bytes", int64(s))
}

// ParseBytes parses 512M, 512MB, 512MiB, or a number of bytes.
func ParseBytes(word string) (Size, bool) {
	digits := strings.TrimRight(word, "iBbKkMmGgTt")
	unit := strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(word[len(digits):]), "b"), "i"))
	shift, ok := map[string]int{"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[unit]
	n, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, false
	}
	return Size(n << shift), true
}
