package checks

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestExpandWords(t *testing.T) {
	t.Parallel()
	vars := map[string]string{"A": "1", "LONG_name2": "two  words ", "HOME": "/root", "E": ""}
	lookup := func(name string) string { return vars[name] }
	for text, want := range map[string][]string{
		"":                        nil,
		"  \t ":                   nil,
		"a b\tc":                  {"a", "b", "c"},
		`'a b'"c d"e\ f`:          {"a bc de f"},
		`""`:                      {""},
		`''x`:                     {"x"},
		`$A${A}"$A"`:              {"111"},
		`x$LONG_name2`:            {"xtwo", "words"},
		`"$LONG_name2"`:           {"two  words "},
		`$E`:                      nil,
		`$E"$E"`:                  {""},
		`$UNSET/x`:                {"/x"},
		`'$A'\$A"\$A"`:            {"$A$A$A"},
		`"\x\"\\"`:                {`\x"\`},
		`~`:                       {"/root"},
		`~/x ~ a~ '~'`:            {"/root/x", "/root", "a~", "~"},
		`$ $/ a$ "$"`:             {"$", "$/", "a$", "$"},
		`a#b *?[x]`:               {"a#b", "*?[x]"},
		"caf\u00e9 '\u00fc' \xff": {"caf\u00e9", "\u00fc", "\xff"},
	} {
		got, ok := ExpandWords(text, lookup)
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			t.Errorf("expandWords(%q): %v (-want +got):\n%s", text, ok, diff)
		}
	}
	for _, text := range []string{
		"`x`", "$(x)", "a;b", "a&", "a|b", "a<b", ">a", "(a)", "{a,b}", "#c", "a\nb", "'a", `"a`, `a\`, "${A:-x}", "${}", "${1}", "$1", "$$", "$?",
		"~user", "\"`x`\"", `"$(x)"`, "${A", `$'a'`,
	} {
		if got, ok := ExpandWords(text, lookup); ok {
			t.Errorf("expandWords(%q) = %q, want to leave it to the shell", text, got)
		}
	}
	if _, ok := ExpandWords("~", func(string) string { return "" }); ok {
		t.Error("~ without HOME was expanded")
	}
}

func FuzzExpandWords(f *testing.F) {
	f.Add(`a "b $A" 'c' ~ \d ${A}`)
	f.Fuzz(func(_ *testing.T, text string) {
		_, _ = ExpandWords(text, func(name string) string { return name + " " + name })
	})
}
