package checks

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/conf/spell"
	"github.com/nhc-gpu/nhc-gpu/conf/tomltext"
)

// SiteFile collects the errors of a file that a site has written, each with its
// line.
type SiteFile struct {
	Path, Text string
	Errs       []error
}

// DecodeSite decodes a TOML file of a site. The result holds an error for each unknown key. err
// is set if the file cannot be decoded.
func DecodeSite(path, text string, into any) (*SiteFile, error) {
	md, err := toml.Decode(text, into)
	if err != nil {
		return nil, tomltext.Place(path, err)
	}
	r := &SiteFile{Path: path, Text: text}
	for _, key := range md.Undecoded() {
		name := key[len(key)-1]
		line := r.Line(`\s*`+regexp.QuoteMeta(name)+`\s*=|\s*\[+\s*`+regexp.QuoteMeta(key.String()), 0)
		if known := keysOf(reflect.TypeOf(into), key[:len(key)-1]); known != nil { // nil: the table is unknown, too
			r.Wrong(line, "unknown key %s, want %s", key, spell.Want(name, known))
		}
	}
	return r, nil
}

// keysOf returns the keys that a table can have, sorted; nil if there is no such table.
func keysOf(t reflect.Type, table toml.Key) (keys []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Map && len(table) > 0:
		return keysOf(t.Elem(), table[1:])
	case t.Kind() != reflect.Struct:
		return nil
	}
	for _, field := range reflect.VisibleFields(t) {
		key := field.Tag.Get("toml")
		switch {
		case key == "":
		case len(table) == 0:
			keys = append(keys, key)
		case key == table[0]:
			return keysOf(field.Type, table[1:])
		}
	}
	slices.Sort(keys)
	return keys
}

// Wrong adds an error about a line; 0 is the whole file.
func (r *SiteFile) Wrong(line int, format string, args ...any) {
	place := r.Path
	if line > 0 {
		place = fmt.Sprintf("%s:%d", place, line)
	}
	r.Errs = append(r.Errs, fmt.Errorf("%s: %s", place, fmt.Sprintf(format, args...)))
}

// Line returns the line of the nth match, from 0, of a regular expression at the beginning of a
// line; 0 if there is none. The decoder does not provide the lines of values.
func (r *SiteFile) Line(form string, n int) int {
	all := regexp.MustCompile(`(?m)^(?:`+form+`)`).FindAllStringIndex(r.Text, n+1)
	if len(all) <= n {
		return 0
	}
	return 1 + strings.Count(r.Text[:all[n][1]], "\n")
}
