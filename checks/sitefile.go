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

// typeName is how the decoder names a type of ours, which says nothing to a site.
var typeName = Lazily(`type mismatch for [\w.]+: `)

// TOMLPlace gives an error of the decoder its place.
func TOMLPlace(path string, err error) error {
	if parse, ok := errors.AsType[toml.ParseError](err); ok {
		return fmt.Errorf("%s:%d: %s", path, parse.Position.Line, parse.Message)
	}
	text := typeName().ReplaceAllString(strings.TrimPrefix(err.Error(), "toml: "), "wrong type: ")
	if rest, ok := strings.CutPrefix(text, "line "); ok { // of a value of the wrong type
		line, rest, _ := strings.Cut(rest, " ")
		return fmt.Errorf("%s:%s: %s", path, line, rest)
	}
	return fmt.Errorf("%s: %s", path, text)
}
