package page

import (
	"bufio"
	_ "embed" // style.css
	"fmt"
	"html"
	"io"
	"strings"
)

//go:embed style.css
var style string

// Raw is text of ours, which is not escaped.
type Raw string

// Writer writes a page. It keeps the first error.
type Writer struct {
	w   *bufio.Writer
	err error
}

// Begin writes the head of a page: the style of all pages and more of its own.
func Begin(to io.Writer, title string, more Raw) *Writer {
	w := &Writer{w: bufio.NewWriter(to)}
	w.Print(`<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">`)
	w.Print("<title>%s</title><style>%s%s</style></head><body><main><h1>%s</h1>\n", title, Raw(style), more, title)
	return w
}

// End writes the end of the page, and returns the first error.
func (w *Writer) End() error {
	w.Print("</main></body></html>\n")
	if w.err == nil {
		w.err = w.w.Flush()
	}
	if w.err != nil {
		return fmt.Errorf("write the report: %w", w.err)
	}
	return nil
}

// Print writes formatted text. It escapes every argument that is text, unless it is [Raw].
func (w *Writer) Print(format string, args ...any) {
	for i, a := range args {
		switch a := a.(type) {
		case string:
			args[i] = html.EscapeString(strings.ToValidUTF8(a, "?"))
		case Raw:
			args[i] = string(a)
		}
	}
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.w, format, args...)
	}
}
