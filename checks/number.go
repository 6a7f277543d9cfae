package checks

import (
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// integerForm matches the numbers of an arithmetic context in bash:
// decimal, hexadecimal with 0x, octal with a leading zero.
var integerForm = Lazily(`^[-+]?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)$`)

// ParseInteger parses a count of nhc.conf. An empty word is 0.
func ParseInteger(word string) (int64, bool) {
	if word == "" {
		return 0, true
	}
	word = strings.Trim(word, " \t\n") // as bash does
	if !integerForm().MatchString(word) {
		return 0, false
	}
	n, ok := new(big.Int).SetString(word, 0)
	if !ok || !n.IsInt64() {
		return 0, false
	}
	return n.Int64(), true
}

// fractionForm matches a decimal fraction. bash has none, but sizes and percentages can be
// fractions.
var fractionForm = Lazily(`^[-+]?[0-9]+\.[0-9]+$`)

// ParseNumber parses an integer or a decimal fraction, without loss.
func ParseNumber(word string) (*big.Rat, bool) {
	switch {
	case integerForm().MatchString(word):
		n, ok := new(big.Int).SetString(word, 0)
		if !ok {
			return nil, false
		}
		return new(big.Rat).SetInt(n), true
	case fractionForm().MatchString(word):
		return new(big.Rat).SetString(word)
	}
	return nil, false
}

// SizeKB is an amount of memory or disk as written in nhc.conf: "64G", "1.5MB",
// "1048576".
type SizeKB struct {
	KB   *big.Rat // units of 1024 bytes
	Text string   // the number of kB as LBNL NHC prints it; "" for an empty word
}

const sizeUnits = "kmgtpe"

// ParseSize parses a size: a number of kB, or with a unit of base 1024. Case does not matter,
// and a trailing "b" is ignored. An empty word is 0.
func ParseSize(word string) (SizeKB, bool) {
	if word == "" {
		return SizeKB{KB: new(big.Rat)}, true
	}
	number := word
	if n := len(number); number[n-1] == 'b' || number[n-1] == 'B' {
		number = number[:n-1]
	}
	number, power := cutUnit(number)
	kB, ok := ParseNumber(number)
	if !ok {
		return SizeKB{}, false
	}
	if power <= 1 {
		return SizeKB{KB: kB, Text: number}, true
	}
	scale(kB, 1024, power-1)
	return SizeKB{KB: kB, Text: Decimal(kB)}, true
}

// Count is a number of things as written in nhc.conf: "1500000", "1.5M", "20k".
type Count struct {
	N    *big.Rat
	text string // the number as LBNL NHC prints it; "" for an empty word
}

// ParseCount parses a count, with or without a unit of base 1000. An empty word is 0.
func ParseCount(word string) (Count, bool) {
	if word == "" {
		return Count{N: new(big.Rat)}, true
	}
	number, power := cutUnit(word)
	n, ok := ParseNumber(number)
	if !ok {
		return Count{}, false
	}
	if power == 0 {
		return Count{N: n, text: number}, true
	}
	scale(n, 1000, power)
	return Count{N: n, text: Decimal(n)}, true
}

// cutUnit cuts off the unit of an amount. The power is 1 for k, and 0 without a unit.
func cutUnit(word string) (number string, power int) {
	n := len(word)
	if n == 0 {
		return word, 0
	}
	power = strings.IndexByte(sizeUnits, word[n-1]|0x20) + 1
	return word[:n-min(power, 1)], power
}

// scale multiplies r by a power of base.
func scale(r *big.Rat, base int64, power int) {
	unit := new(big.Int).Exp(big.NewInt(base), big.NewInt(int64(power)), nil)
	r.Mul(r, new(big.Rat).SetInt(unit))
}

// Decimal formats a number with as many digits as it needs, at most six.
func Decimal(r *big.Rat) string {
	if r.IsInt() {
		return r.Num().String()
	}
	return strings.TrimRight(strings.TrimRight(r.FloatString(6), "0"), ".")
}

// Lazily compiles an expression at its first use: most runs need none of them, and every
// process of a run would compile them at its start.
func Lazily(expr string) func() *regexp.Regexp { return probe.Lazily(expr) }

// Commonest returns the key with the highest count; of several, the first in alphabetical order.
func Commonest(count map[string]int) string {
	best := ""
	for v, n := range count {
		if best == "" || n > count[best] || n == count[best] && v < best {
			best = v
		}
	}
	return best
}

// ParseCode parses the number of an error: digits only.
func ParseCode(word string) (int, bool) {
	if word == "" || len(word) > 5 || strings.Trim(word, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(word)
	return n, err == nil
}

// MaxCode is greater than the number of any error.
const MaxCode = 99999
