package checktest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func writeTable[T any](t *testing.T, b *strings.Builder, head string, m map[string]T) {
	t.Helper()
	if len(m) == 0 {
		return
	}
	fmt.Fprintf(b, "[%s]\n", head)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(b, "%s = %s\n", quoteKey(k), inline(t, m[k]))
	}
}

// quoteKey returns a key in TOML syntax.
func quoteKey(k string) string {
	if strings.Trim(k, "abcdefghijklmnopqrstuvwxyz_ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" {
		return k
	}
	return tomlString(k)
}

// inline returns a value on one line of TOML.
func inline(t *testing.T, v any) string {
	t.Helper()
	switch v := v.(type) {
	case string:
		return tomlString(v)
	case map[string]any:
		var parts []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, quoteKey(k)+" = "+inline(t, v[k]))
		}
		return "{ " + strings.Join(parts, ", ") + " }"
	case []any:
		var parts []string
		for _, x := range v {
			parts = append(parts, inline(t, x))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case []string:
		return inline(t, toJSON(v))
	case bool, json.Number:
		return fmt.Sprint(v)
	}
	t.Fatalf("no TOML for %T", v)
	return ""
}

// tomlString returns a TOML string; bytes that are not UTF-8 become {xNN}.
func tomlString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, "{x%02x}", s[0])
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
		s = s[n:]
	}
	return b.String() + `"`
}
