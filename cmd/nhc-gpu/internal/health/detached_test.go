package health

import "testing"

func TestParseResult(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ data, status, message string }{
		{"", "", ""},
		{"\n", "", ""},
		{"0\n", "0", ""},
		{"7 bad disk", "7", "bad disk"},
		{" \t42  some 'old'   \"msg\" \\t \n", "42", `some 'old'   "msg" t`},
		{"1 first\nsecond\n", "1", "first"},
		{"1 joined \\\nline\nrest\n", "1", "joined line"},
		{"1 a\\\\b\\", "1", `a\b`},
		{"unknown read /x: denied\n", "unknown", "read /x: denied"},
	} {
		if got := parseResult(test.data); got != (result{test.status, test.message}) {
			t.Errorf("parseResult(%q) = %q, want %q %q", test.data, got, test.status, test.message)
		}
	}
}
