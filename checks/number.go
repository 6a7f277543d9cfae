package checks

import (
	"math/big"
	"regexp"
	"strings"
	"sync"
)

// integerForm is what an arithmetic context of bash takes for a number:
// decimal, 0x hexadecimal, octal behind a zero.
var integerForm = lazily(`^[-+]?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)$`)

// parseInteger reads a count of nhc.conf. An empty word is 0.
func parseInteger(word string) (int64, bool) {
	if word == "" {
		return 0, true
	}
	if !integerForm().MatchString(word) {
		return 0, false
	}
	n, ok := new(big.Int).SetString(word, 0)
	if !ok || !n.IsInt64() {
		return 0, false
	}
	return n.Int64(), true
}

// fractionForm is a decimal number with a fraction, which bash does not know
// but sizes and percentages may be.
var fractionForm = lazily(`^[-+]?[0-9]+\.[0-9]+$`)

// parseNumber reads a number that may have a fraction, without loss.
func parseNumber(word string) (*big.Rat, bool) {
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

// size is an amount of memory or disk as written in nhc.conf: "64G", "1.5MB",
// "1048576".
type size struct {
	kB   *big.Rat // units of 1024 bytes
	text string   // the amount in kB as LBNL NHC prints it; "" if none was given
}

const sizeUnits = "kmgtpe"

// parseSize reads a size: a number of kB, or with a unit of base 1024. Upper
// and lower case are the same, a "b" behind it means nothing. An empty word is 0.
func parseSize(word string) (size, bool) {
	if word == "" {
		return size{kB: new(big.Rat)}, true
	}
	number := word
	if n := len(number); number[n-1] == 'b' || number[n-1] == 'B' {
		number = number[:n-1]
	}
	power := 0
	if n := len(number); n > 0 {
		if power = strings.IndexByte(sizeUnits, number[n-1]|0x20); power >= 0 {
			number = number[:n-1]
		}
	}
	kB, ok := parseNumber(number)
	if !ok {
		return size{}, false
	}
	if power <= 0 {
		return size{kB: kB, text: number}, true
	}
	unit := new(big.Int).Exp(big.NewInt(1024), big.NewInt(int64(power)), nil)
	kB.Mul(kB, new(big.Rat).SetInt(unit))
	return size{kB: kB, text: decimal(kB)}, true
}

// decimal prints a number with as many digits as it needs, six at most.
func decimal(r *big.Rat) string {
	if r.IsInt() {
		return r.Num().String()
	}
	return strings.TrimRight(strings.TrimRight(r.FloatString(6), "0"), ".")
}

// lazily compiles an expression when it is first needed: most runs need none,
// and every process of a run would pay for it at its start.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
