package tomltext

import (
	"testing"

	"github.com/BurntSushi/toml"
)

// Each text of the decoder has a plain one, with the line.
func TestPlace(t *testing.T) {
	t.Parallel()
	type table struct {
		Text  string
		Count int
		Small int8
		Share float64
		On    bool
		List  []string
		Sub   struct{ A int }
		Map   map[string]int
	}
	for text, want := range map[string]string{
		"\ntext = 5":                   "f:2: text: want text in quotes, got a whole number",
		"count = \"5\"":                "f:1: count: want a whole number, got text in quotes",
		"count = 1.5":                  "f:1: count: want a whole number, got a number",
		"small = 300":                  "f:1: small: 300 is too large",
		"share = true":                 "f:1: share: want a number, got true or false",
		"on = 1":                       "f:1: on: want true or false, got a whole number",
		"on = 2026-01-02":              "f:1: on: want true or false, got a date",
		"list = \"a\"":                 "f:1: list: want a list, got text in quotes",
		"list = [1]":                   "f:1: list: want text in quotes, got a whole number",
		"sub = 1":                      "f:1: sub: want a table, got a whole number",
		"[[sub]]\na = 1":               "f:1: sub: want a table, got a list",
		"[sub]\na = \"x\"":             "f:2: sub.a: want a whole number, got text in quotes",
		"text = home":                  `f:1: got "home", want text in quotes, a number, true, false or a list`,
		"text = /home":                 `f:1: got "/", want text in quotes, a number, true, false or a list`,
		"\ntext =\n":                   "f:2: got the end of the line, want text in quotes, a number, true, false or a list",
		"text = ":                      `f:1: no value after "=", want text in quotes, a number, true, false or a list`,
		"text \"a\"":                   `f:1: got "\"" after the key, want "="`,
		"text":                         `f:1: no "=" after the key, want KEY = VALUE`,
		"text = \"a":                   `f:1: the file ends before the closing "\""`,
		"text = \"a\n":                 "f:1: quotes are not closed on this line, want a quote at the end of the text",
		"text = \"a\" \"b\"":           `f:1: got "\"" after the value, want a new line`,
		"list = [\"a\" \"b\"]":         `f:1: got "\"" in a list, want "," or "]"`,
		"list = [\"a\"\n":              `f:1: got the end of file in a list, want "," or "]"`,
		"list = [,]":                   `f:1: a "," without a value before it, want one "," between two values`,
		"map = {a = 1 b = 2}":          `f:1: got "b" in a table, want "," or "}"`,
		"[sub":                         `f:1: got the end of the file in a header, want [NAME] or [[NAME]]`,
		"[]":                           "f:1: headers need a name, want [NAME]",
		"[[sub]":                       "f:1: got the end of the file in a header, want [[NAME]]",
		"count = 1\ncount = 2":         `f:2: the key "count" is given twice, want it once`,
		"count = 1\n[count]\n":         `f:2: the key "count" is given twice, want it once`,
		"[sub]\n[[sub]]\n":             `f:2: "sub" is both a table and something else, want one of them`,
		"count = 99999999999999999999": "f:1: count: 99999999999999999999 is too large",
	} {
		var v table
		_, err := toml.Decode(text, &v)
		if err == nil {
			t.Errorf("%q: no error", text)
		} else if got := Place("f", err).Error(); got != want {
			t.Errorf("%q:\ngot  %s\nwant %s\n(%v)", text, got, want, err)
		}
	}
}

func TestValue(t *testing.T) {
	t.Parallel()
	var v map[string]any
	const text = `a = [1, 2.5, "x", true, [], { b = 1 }, 2026-01-02T03:04:05Z]`
	if _, err := toml.Decode(text, &v); err != nil {
		t.Fatal(err)
	}
	if got := "a = " + Value(v["a"]); got != text {
		t.Errorf("got %s, want %s", got, text)
	}
	if got := Value(v["b"]); got != "nothing" {
		t.Errorf("got %s, want nothing", got)
	}
}
