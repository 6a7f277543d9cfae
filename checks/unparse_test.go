package checks

import (
	"math/big"
	"testing"
)

func TestUnparse(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ n, size, count string }{
		{"0", "0kB", "0"},
		{"-5", "-5kB", "-5"},
		{"999", "999kB", "999"},
		{"1000", "1000kB", "1k"},
		{"1024", "1MB", "1k"},
		{"1126", "1MB", "1126"}, // a remainder of 9 % and of 12 %
		{"1139", "1139kB", "1139"},
		{"1900", "1900kB", "2k"},
		{"5121", "5MB", "5121"},
		{"5632", "5632kB", "5632"},
		{"1047552", "1023MB", "1047552"},
		{"1572864", "1536MB", "1572864"},
		{"1500000", "1500000kB", "1500k"},
		{"2197949513728", "2PB", "2197949513728"}, // 2047 T
		{"1180591620717411303424", "1048576EB", "1180591620717411303424"},
		{"1/2", "0kB", "0"},
		{"10752", "10752kB", "10752"},
	} {
		n, ok := new(big.Rat).SetString(test.n)
		if !ok {
			t.Fatalf("%q is no number", test.n)
		}
		if got := UnparseSize(n); got != test.size {
			t.Errorf("unparseSize(%s) = %q, want %q", test.n, got, test.size)
		}
		if got := unparseCount(n); got != test.count {
			t.Errorf("unparseCount(%s) = %q, want %q", test.n, got, test.count)
		}
	}
}
