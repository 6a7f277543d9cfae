package console

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A long line is broken below its text, and a paragraph is filled.
func TestWrap(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"one two three\nfour five\n\nsix":  "one two three\nfour five\n\nsix\n",
		"one\ntwo three four":              "one two three\nfour\n",
		"  ok  one two three\n  no  four":  "  ok  one two\n      three\n  no  four\n",
		"  - one two\n  - three four\n":    "  - one two\n  - three\n    four\n",
		"  ok  one\n      two\n  last run": "  ok  one two\n  last run\n",
		"# settings of a file":             "# settings of\n  a file\n",
		"  unbreakable-word":               "  unbreakable-word\n",
		"  a  äöü äöü ü\n":                 "  a  äöü äöü\n     ü\n",
		"  gpu0  PIX  SYS  NODE\n":         "  gpu0  PIX  SYS  NODE\n", // a row of a table
	} {
		if diff := cmp.Diff(want, Wrap(text, 13)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}
