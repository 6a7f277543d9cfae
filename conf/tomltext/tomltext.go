// Package tomltext writes the errors of a TOML file for its author: file, line, the value found and
// the value to write, without the terms of the decoder.
package tomltext

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/BurntSushi/toml"
)

// Place returns an error of the decoder as "FILE:LINE: TEXT".
func Place(file string, err error) error {
	if parse, ok := errors.AsType[toml.ParseError](err); ok {
		key := ""
		if parse.LastKey != "" && strings.Contains(parse.Message, "out of range") {
			key = parse.LastKey + ": "
		}
		return fmt.Errorf("%s:%d: %s%s", file, parse.Position.Line, key, explain(parse.Message))
	}
	text := strings.TrimPrefix(err.Error(), "toml: ")
	if m := ofKey().FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s:%s: %s: %s", file, m[1], m[2], explain(m[3]))
	}
	if m := ofLine().FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s:%s: %s", file, m[1], explain(m[2]))
	}
	return fmt.Errorf("%s: %s", file, explain(text))
}

var (
	ofKey  = lazily(`^line (\d+) \(last key "(.*?)"\): (.*)$`)
	ofLine = lazily(`^line (\d+):? (.*)$`)
)

// explanations replace the decoder's texts; its other texts are plain.
var explanations = []struct {
	find func() *regexp.Regexp
	text string
}{
	{lazily(`^incompatible types: TOML value has type (\S+); destination has type (.+)$`), "want {type 2}, got {type 1}"},
	{lazily(`^type mismatch for .+: expected (\S+) but found (.+)$`), "want {type 1}, got {type 2}"},
	{lazily(`^(?:value )?(\S+) is out of (?:range for|the safe) \S+(?: range)?$`), "$1 is too large"},
	{lazily(`^expected a top-level item to end with a newline, comment, or EOF, but got (.+) instead$`), "got {char 1} after the value, want a new line"},
	{lazily(`^(?:unexpected EOF; )?expected value but found (.+) instead$`), "got {char 1}, want text in quotes, a number, true, false or a list"},
	{lazily(`^unexpected EOF; expected value$`), `no value after "=", want text in quotes, a number, true, false or a list`},
	{lazily(`^expected '\.' or '=', but got (.+) instead$`), `got {char 1} after the key, want "="`},
	{lazily(`^unexpected EOF; expected key separator '='$`), `no "=" after the key, want KEY = VALUE`},
	{lazily(`^unexpected EOF; expected (.+)$`), "the file ends before the closing {char 1}"},
	{lazily(`^unexpected EOF$`), "the file ends in the middle of a line, want KEY = VALUE"},
	{lazily(`^expected a comma \(','\) or array terminator \('\]'\), but got (.+)$`), `got {char 1} in a list, want "," or "]"`},
	{lazily(`^expected a comma or an inline table terminator '}', but got (.+) instead$`), `got {char 1} in a table, want "," or "}"`},
	{lazily(`^expected end of table array name delimiter '\]', but got (.+) instead$`), "got {char 1} in a header, want [[NAME]]"},
	{lazily(`^expected '\.' or '\]' to end table name, but got (.+) instead$`), "got {char 1} in a header, want [NAME] or [[NAME]]"},
	{lazily(`^unexpected (?:end of table name|table separator) \(table names cannot be empty\)$`), "headers need a name, want [NAME]"},
	{lazily(`^strings cannot contain newlines$`), "quotes are not closed on this line, want a quote at the end of the text"},
	{lazily(`^unexpected comma$`), `a "," without a value before it, want one "," between two values`},
	{lazily(`^Key '(.+)' has already been defined\.$`), `the key "$1" is given twice, want it once`},
	{lazily(`^Key '(.+)' was already created (?:and cannot be used as an array|as a hash)\.$`), `"$1" is both a table and something else, want one of them`},
}

// explain returns the plain text for a text of the decoder.
func explain(text string) string {
	for _, e := range explanations {
		m := e.find().FindStringSubmatch(text)
		if m == nil {
			continue
		}
		text = e.text
		for i, part := range m {
			n := strconv.Itoa(i)
			text = strings.NewReplacer("$"+n, part, "{type "+n+"}", nameType(part), "{char "+n+"}", nameChar(part)).Replace(text)
		}
		return text
	}
	return text
}

// nameType returns the name of a type, of TOML or of Go.
func nameType(kind string) string {
	switch {
	case strings.HasPrefix(kind, "string"), strings.HasPrefix(kind, "primitive"):
		return "text in quotes"
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "a whole number"
	case strings.HasPrefix(kind, "float"):
		return "a number"
	case strings.HasPrefix(kind, "bool"):
		return "true or false"
	case strings.HasPrefix(kind, "map"), kind == "table":
		return "a table"
	case strings.HasPrefix(kind, "time"), strings.Contains(kind, "date"):
		return "a date"
	}
	return "a list"
}

// nameChar returns a character or a text that the decoder has quoted.
func nameChar(quoted string) string {
	switch text, err := strconv.Unquote(quoted); {
	case err != nil: // end of file
		return "the " + quoted
	case text == "\n" || text == "\r":
		return "the end of the line"
	case text == "\x00":
		return "the end of the file"
	default:
		return Value(text)
	}
}

// Value returns a decoded value as it is written in TOML, "nothing" for nil.
func Value(v any) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case string:
		return strconv.Quote(v)
	case float64:
		return strings.TrimPrefix(strings.ToLower(strconv.FormatFloat(v, 'g', -1, 64)), "+")
	case time.Time:
		return v.Format(time.RFC3339)
	case []any:
		return "[" + joinValues(v) + "]"
	case []map[string]any:
		items := make([]any, len(v))
		for i := range v {
			items[i] = v[i]
		}
		return Value(items)
	case map[string]any:
		var pairs []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			pairs = append(pairs, key+" = "+Value(v[key]))
		}
		return "{ " + strings.Join(pairs, ", ") + " }"
	}
	return fmt.Sprint(v) // true, 12
}

func joinValues(list []any) string {
	texts := make([]string, len(list))
	for i, item := range list {
		texts[i] = Value(item)
	}
	return strings.Join(texts, ", ")
}

// lazily compiles an expression at its first use: a correct file needs none of them.
func lazily(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
