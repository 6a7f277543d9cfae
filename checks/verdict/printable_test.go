package verdict

import (
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain, ünïcode, 日本\tx\n":                        "plain, ünïcode, 日本\tx\n",
		"a\x1b[2Jb\x00\x7f\r\b":                          "a?[2Jb????",
		"\u009b2J \u0085 \u0080":                         "?2J ? ?",
		"\u202egnp.exe \u2066x\u2069 \u200e\u200f\ufeff": "?gnp.exe ?x? ???",
		"\u2028\u2029\u00ad":                             "???",
		"\xff\xc3 \xf0\x9f":                              "?? ??",
		"\ufffd":                                         "\ufffd",
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\x1b[2J\u202e\xff")
	f.Fuzz(func(t *testing.T, text string) {
		got := Printable(text)
		for _, r := range got {
			if !unicode.IsPrint(r) && r != '\n' && r != '\t' {
				t.Errorf("%q: %q", text, got)
			}
		}
		if !utf8.ValidString(got) || Printable(got) != got {
			t.Errorf("%q: %q", text, got)
		}
	})
}
