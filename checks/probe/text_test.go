package probe

import "testing"

func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain  text\n": "plain text", "Stra\u00dfe \u00e9t\u00e9": "Stra\u00dfe \u00e9t\u00e9", "a\x1b[2Jb": "a?[2Jb", "a\u009b2Jb": "a?2Jb", "a\u202eb": "a?b", "a\xffb": "a?b",
		"\u65e5\u672c": "\u65e5\u672c", "a\u00a0b": "a\u00a0b", "a\x7f": "a?",
	} {
		if got := Printable([]byte(text)); got != want {
			t.Errorf("Printable(%q) = %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{" a b\n": "a b?", "a\u009b2Jb": "a?2Jb", "a\u202eb\ufffd": "a?b?", "\u00e9": "\u00e9"} {
		if got := OneLine(text); got != want {
			t.Errorf("OneLine(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestShorten(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "", 1: "a", 2: "a", 3: "a\u00e9", 4: "a\u00e9b", 9: "a\u00e9b"} {
		if got := Shorten("a\u00e9b", n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
