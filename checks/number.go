package checks

import (
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// integerForm is what an arithmetic context of bash takes for a number:
// decimal, 0x hexadecimal, octal behind a zero.
var integerForm = Lazily(`^[-+]?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)$`)

// parseInteger reads a count of nhc.conf. An empty word is 0.
func parseInteger(word string) (int64, bool) {
	if word == "" {
		return 0, true
	}
	word = strings.Trim(word, " \t\n") // so does bash
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
var fractionForm = Lazily(`^[-+]?[0-9]+\.[0-9]+$`)

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
	number, power := cutUnit(number)
	kB, ok := parseNumber(number)
	if !ok {
		return size{}, false
	}
	if power <= 1 {
		return size{kB: kB, text: number}, true
	}
	scale(kB, 1024, power-1)
	return size{kB: kB, text: decimal(kB)}, true
}

// count is a number of things as written in nhc.conf: "1500000", "1.5M", "20k".
type count struct {
	n    *big.Rat
	text string // the number as LBNL NHC prints it; "" if none was given
}

// parseCount reads a count, with a unit of base 1000 or without one. An empty
// word is 0.
func parseCount(word string) (count, bool) {
	if word == "" {
		return count{n: new(big.Rat)}, true
	}
	number, power := cutUnit(word)
	n, ok := parseNumber(number)
	if !ok {
		return count{}, false
	}
	if power == 0 {
		return count{n: n, text: number}, true
	}
	scale(n, 1000, power)
	return count{n: n, text: decimal(n)}, true
}

// cutUnit takes the unit off an amount. The power of a k is 1, that of no unit 0.
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

// decimal prints a number with as many digits as it needs, six at most.
func decimal(r *big.Rat) string {
	if r.IsInt() {
		return r.Num().String()
	}
	return strings.TrimRight(strings.TrimRight(r.FloatString(6), "0"), ".")
}

// Lazily compiles an expression when it is first needed: most runs need none,
// and every process of a run would pay for it at its start.
func Lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// commonest is the key with the highest count, the first of them by the alphabet.
func commonest(count map[string]int) string {
	best := ""
	for v, n := range count {
		if best == "" || n > count[best] || n == count[best] && v < best {
			best = v
		}
	}
	return best
}

// parseCode reads the number of an error: digits only.
func parseCode(word string) (int, bool) {
	if word == "" || len(word) > 5 || strings.Trim(word, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(word)
	return n, err == nil
}

// maxCode is more than any number of an error.
const maxCode = 99999
