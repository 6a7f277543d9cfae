package verdict

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable makes text safe for a terminal, a log, syslog and mail. It replaces each character
// that does not print, except newlines and tabs, by a question mark. Users choose the names of
// processes, files and jobs; some characters control a terminal (ESC, and U+009B, which means
// the same), or reorder a line (U+202E).
func Printable(text string) string {
	clean := func(r rune) bool { return unicode.IsPrint(r) || r == '\n' || r == '\t' }
	if utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !clean(r) }) < 0 {
		return text
	}
	return strings.Map(func(r rune) rune {
		if !clean(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, text)
}

// printable returns the report with every text made printable.
func (r *Report) printable() *Report {
	c := *r
	c.From, c.Node = Printable(r.From), Printable(r.Node)
	c.Facts, c.Rows = printableRows(r.Facts), printableRows(r.Rows)
	return &c
}

func printableRows(rows []Row) []Row {
	list := make([]Row, len(rows))
	for i, row := range rows {
		for _, field := range []*string{
			&row.Name, &row.Message, &row.Fact, &row.Line, &row.Do, &row.Device.Kind, &row.Device.Name, &row.Device.PCI, &row.Device.Serial, &row.Device.UUID,
		} {
			*field = Printable(*field)
		}
		list[i] = row
	}
	return list
}
