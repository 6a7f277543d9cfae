package checks

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/BurntSushi/toml"
)

// SiteFile collects what is wrong with a file that a site has written, each with
// its line.
type SiteFile struct {
	Path, Text string
	Errs       []error
}

// Wrong notes what is wrong in a line.
func (r *SiteFile) Wrong(line int, format string, args ...any) {
	place := r.Path
	if line > 0 {
		place = fmt.Sprintf("%s:%d", place, line)
	}
	r.Errs = append(r.Errs, fmt.Errorf("%s: %s", place, fmt.Sprintf(format, args...)))
}

// Line is that of the nth text of a form at the beginning of a line, from 0; the
// decoder does not tell. 0 is none.
func (r *SiteFile) Line(form string, n int) int {
	all := regexp.MustCompile(`(?m)^(?:`+form+`)`).FindAllStringIndex(r.Text, n+1)
	if len(all) <= n {
		return 0
	}
	return 1 + strings.Count(r.Text[:all[n][1]], "\n")
}

// wrongType finds what the decoder says of a value of the wrong type, in words of Go.
var wrongType = Lazily(`^line (\d+) \(last key "(.*)"\): (?:incompatible types: TOML value has type (\S+); destination has type (\S+)|type mismatch for \S+ expected (\S+) but found (\S+))`)

// typeWord names a type of the decoder as a user does.
func typeWord(kind string) string {
	switch {
	case kind == "string":
		return "a string"
	case kind == "integer" || strings.HasPrefix(kind, "int") || strings.HasPrefix(kind, "uint"):
		return "a whole number"
	case strings.HasPrefix(kind, "float"):
		return "a number"
	case strings.HasPrefix(kind, "bool"):
		return "true or false"
	case strings.HasPrefix(kind, "map") || kind == "table":
		return "a table"
	}
	return "a list"
}

// TOMLPlace gives an error of the decoder its place.
func TOMLPlace(path string, err error) error {
	if parse, ok := errors.AsType[toml.ParseError](err); ok {
		return fmt.Errorf("%s:%d: %s", path, parse.Position.Line, parse.Message)
	}
	text := strings.TrimPrefix(err.Error(), "toml: ")
	if m := wrongType().FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s:%s: %s: want %s, got %s", path, m[1], m[2], typeWord(m[4]+m[5]), typeWord(m[3]+m[6]))
	}
	if rest, ok := strings.CutPrefix(text, "line "); ok {
		line, rest, _ := strings.Cut(rest, " ")
		return fmt.Errorf("%s:%s: %s", path, line, rest)
	}
	return fmt.Errorf("%s: %s", path, text)
}
