package checks

import (
	"math/big"
	"strconv"
	"strings"
	"testing"
)

func TestParseInteger(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]int64{"": 0, "0": 0, "12": 12, "-3": -3, "+3": 3, "0x1F": 31, "010": 8, "-0x10": -16, " 7\t": 7} {
		if got, ok := ParseInteger(word); !ok || got != want {
			t.Errorf("parseInteger(%q) = %d, %v; want %d", word, got, ok, want)
		}
	}
	for _, word := range []string{" ", "08", "1.5", "12x", "1_000", "0b1", "0o7", "-", "0x", "ten", "9223372036854775808", "1e3"} {
		if got, ok := ParseInteger(word); ok {
			t.Errorf("parseInteger(%q) = %d, want none", word, got)
		}
	}
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]struct{ kB, text string }{
		"":              {kB: "0", text: ""},
		"5":             {kB: "5", text: "5"},
		"5b":            {kB: "5", text: "5"},
		"5k":            {kB: "5", text: "5"},
		"5kB":           {kB: "5", text: "5"},
		"0x10":          {kB: "16", text: "0x10"},
		"010":           {kB: "8", text: "010"},
		"-1":            {kB: "-1", text: "-1"},
		"0.5k":          {kB: "1/2", text: "0.5"},
		"1.5M":          {kB: "1536", text: "1536"},
		"2g":            {kB: "2097152", text: "2097152"},
		"0.3G":          {kB: "1572864/5", text: "314572.8"},
		"1TB":           {kB: "1073741824", text: "1073741824"},
		"1p":            {kB: "1099511627776", text: "1099511627776"},
		"1E":            {kB: "1125899906842624", text: "1125899906842624"},
		"99999999999PB": {kB: "109951162776500488372224", text: "109951162776500488372224"},
	} {
		got, ok := ParseSize(word)
		kB, _ := new(big.Rat).SetString(want.kB)
		if !ok || got.KB.Cmp(kB) != 0 || got.Text != want.text {
			t.Errorf("parseSize(%q) = %v %q, %v; want %+v", word, got.KB, got.Text, ok, want)
		}
	}
	for _, word := range []string{"b", "M", "MB", "1.5.2G", "1..5M", "1,5M", "ten", "%", "10%", "5Q", "1.5x", "1.5GG", "12x", ".5k", "1.", "1/2", "1e5", "08", " 5"} {
		if got, ok := ParseSize(word); ok {
			t.Errorf("parseSize(%q) = %v, want none", word, got.KB)
		}
	}
}

func TestParseCount(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]struct{ n, text, limit string }{
		"":       {"0", "", "0"},
		"5":      {"5", "5", "5"},
		"5k":     {"5000", "5000", "5k"},
		"1.5M":   {"1500000", "1500000", "1500k"},
		"0.0015": {"3/2000", "0.0015", "0"},
		"2g":     {"2000000000", "2000000000", "2G"},
		"1E":     {"1000000000000000000", "1000000000000000000", "1E"},
		"0x10":   {"16", "0x10", "0x10"},
		"010k":   {"8000", "8000", "8k"},
		"-3":     {"-3", "-3", "-3"},
		"+1500":  {"1500", "+1500", "+1500"},
	} {
		got, ok := ParseCount(word)
		n, _ := new(big.Rat).SetString(want.n)
		if !ok || got.N.Cmp(n) != 0 || got.text != want.text || got.LimitText() != want.limit {
			t.Errorf("parseCount(%q) = %v %q, printed %q, %v; want %+v", word, got.N, got.text, got.LimitText(), ok, want)
		}
	}
	for _, word := range []string{"5b", "5kB", "k", "5Q", "1.5.2G", "1e5", "ten", "%", "10%", " 5", "08"} {
		if got, ok := ParseCount(word); ok {
			t.Errorf("parseCount(%q) = %v, want none", word, got.N)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	for _, word := range []string{"1.5M", "0x1Eb", "-1.25tb", "08.5k", "e", "kb", "10%", "0x10", "+7", "9999999999999999999999P"} {
		f.Add(word, int64(len(word)))
	}
	f.Fuzz(func(t *testing.T, word string, n int64) {
		fuzzWhole(t, n)
		_, _ = ParseNumber(word)
		if c, ok := ParseCount(word); ok {
			_ = c.LimitText()
			_ = unparseCount(c.N)
		}
		s, ok := ParseSize(word)
		if !ok || word == "" {
			return
		}
		_ = UnparseSize(s.KB)
		if text := s.LimitText(); !strings.HasSuffix(text, "B") {
			t.Errorf("parseSize(%q) is printed as %q", word, text)
		}
		if strings.ContainsAny(word, "xX") { // b and e are hexadecimal digits
			return
		}
		// What it prints is a size of its own, and the same one but for the digits that are cut.
		again, ok := ParseSize(s.Text)
		if !ok {
			t.Fatalf("parseSize(%q) prints %q, which is no size", word, s.Text)
		}
		if diff := new(big.Rat).Sub(s.KB, again.KB); diff.Abs(diff).Cmp(big.NewRat(1, 1000000)) > 0 {
			t.Errorf("parseSize(%q) is %v, its text %q is %v", word, s.KB, s.Text, again.KB)
		}
	})
}

// fuzzWhole holds that a whole number of kB, or of things, is what it says in
// every way of writing it, and that a text never is off by more than a tenth.
func fuzzWhole(t *testing.T, n int64) {
	t.Helper()
	word, exact := strconv.FormatInt(n, 10), new(big.Rat).SetInt64(n)
	for _, unit := range []string{"", "b", "B", "k", "K", "kB"} {
		if s, ok := ParseSize(word + unit); !ok || s.KB.Cmp(exact) != 0 || s.Text != word {
			t.Errorf("parseSize(%q) = %v %q, %v", word+unit, s.KB, s.Text, ok)
		}
	}
	if c, ok := ParseCount(word); !ok || c.N.Cmp(exact) != 0 || c.text != word {
		t.Errorf("parseCount(%q) = %v %q, %v", word, c.N, c.text, ok)
	}
	if n < 0 {
		return
	}
	for text, parsed := range map[string]*big.Rat{UnparseSize(exact): mustSize(UnparseSize(exact)), unparseCount(exact): mustCount(unparseCount(exact))} {
		if parsed == nil {
			t.Errorf("%d is printed as %q, which cannot be read", n, text)
			continue
		}
		off := new(big.Rat).Sub(parsed, exact)
		// Each division by 1000 may be off by a tenth, and there are six.
		if off.Abs(off).Cmp(new(big.Rat).Mul(exact, big.NewRat(12, 100))) > 0 {
			t.Errorf("%d is printed as %q, off by %v", n, text, off)
		}
	}
}

func mustSize(word string) *big.Rat {
	s, _ := ParseSize(word)
	return s.KB
}

func mustCount(word string) *big.Rat {
	c, _ := ParseCount(word)
	return c.N
}
