package checks

import (
	"math/big"
	"strings"
	"testing"
)

func TestParseInteger(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]int64{"": 0, "0": 0, "12": 12, "-3": -3, "+3": 3, "0x1F": 31, "010": 8, "-0x10": -16} {
		if got, ok := parseInteger(word); !ok || got != want {
			t.Errorf("parseInteger(%q) = %d, %v; want %d", word, got, ok, want)
		}
	}
	for _, word := range []string{" ", "08", "1.5", "12x", "1_000", "0b1", "0o7", "-", "0x", "ten", "9223372036854775808", "1e3"} {
		if got, ok := parseInteger(word); ok {
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
		got, ok := parseSize(word)
		kB, _ := new(big.Rat).SetString(want.kB)
		if !ok || got.kB.Cmp(kB) != 0 || got.text != want.text {
			t.Errorf("parseSize(%q) = %v %q, %v; want %+v", word, got.kB, got.text, ok, want)
		}
	}
	for _, word := range []string{"b", "M", "MB", "1.5.2G", "1..5M", "1,5M", "ten", "%", "10%", "5Q", "1.5x", "1.5GG", "12x", ".5k", "1.", "1/2", "1e5", "08", " 5"} {
		if got, ok := parseSize(word); ok {
			t.Errorf("parseSize(%q) = %v, want none", word, got.kB)
		}
	}
}

func FuzzSize(f *testing.F) {
	for _, word := range []string{"1.5M", "0x1Eb", "-1.25tb", "08.5k", "e", "kb"} {
		f.Add(word)
	}
	f.Fuzz(func(t *testing.T, word string) {
		s, ok := parseSize(word)
		if !ok || word == "" || strings.ContainsAny(word, "xX") { // b and e are hexadecimal digits
			return
		}
		// What it prints is a size of its own, and the same one but for the digits that are cut.
		again, ok := parseSize(s.text)
		if !ok {
			t.Fatalf("parseSize(%q) prints %q, which is no size", word, s.text)
		}
		if diff := new(big.Rat).Sub(s.kB, again.kB); diff.Abs(diff).Cmp(big.NewRat(1, 1000000)) > 0 {
			t.Errorf("parseSize(%q) is %v, its text %q is %v", word, s.kB, s.text, again.kB)
		}
	})
}
