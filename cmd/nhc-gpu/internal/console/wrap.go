package console

import (
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// HelpWidth is the width of a help text: a terminal of 80 columns shows it without a line that it breaks itself.
const HelpWidth = 79

// columnOf finds the text of a line behind its label: "  last run   ...", "- ...", "# ...".
var columnOf = checks.Lazily(`^( *(?:[#-] +)?(?:\S+(?: \S+)*  +)?)\S`)

// Wrap breaks the lines of a text that are longer than width at their blanks. The lines that follow are indented as the
// text behind the label of the first one is. Lines without an indentation are a paragraph, which is filled.
func Wrap(text string, width int) string {
	var b strings.Builder
	for _, item := range items(text) {
		b.WriteString(wrapLine(item, width))
	}
	return b.String()
}

// Fit breaks the lines of a text that are longer than the terminal on standard output; without a terminal it returns
// the text.
func Fit(text string) string {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil || width < 40 {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(wrapLine(strings.TrimSuffix(line, "\n"), width))
	}
	return b.String()
}

// items joins the lines of a text that continue another one.
func items(text string) (list []string) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if n := len(list); n > 0 && line != "" && list[n-1] != "" && continues(list[n-1], line) {
			list[n-1] += " " + strings.TrimSpace(line)
			continue
		}
		list = append(list, line)
	}
	return list
}

// continues reports whether a line has no label and begins where the text of the one before it does.
func continues(before, line string) bool {
	indent := len(line) - len(strings.TrimLeft(line, " "))
	return indent == textColumn(before) && !strings.HasPrefix(line[indent:], "- ") && (indent == 0 || textColumn(before) > len(before)-len(strings.TrimLeft(before, " ")))
}

// textColumn returns the column of the text of a line, behind its label.
func textColumn(line string) int {
	m := columnOf().FindStringSubmatch(line)
	if m == nil {
		return 0
	}
	return utf8.RuneCountInString(m[1])
}

// wrapLine breaks a line. It leaves a row of a table as it is, whose cells would no longer stand below their heads.
func wrapLine(line string, width int) string {
	runes := []rune(line)
	indent := textColumn(line)
	if len(runes) <= width || strings.Contains(strings.TrimRight(string(runes[indent:]), " "), "  ") {
		return line + "\n"
	}
	var b strings.Builder
	if indent > width/2 {
		indent = len(line) - len(strings.TrimLeft(line, " "))
	}
	now, n := string(runes[:indent]), indent
	for word := range strings.FieldsSeq(string(runes[indent:])) {
		length := utf8.RuneCountInString(word)
		if n > indent && n+1+length > width {
			b.WriteString(now + "\n")
			now, n = strings.Repeat(" ", indent), indent
		}
		if n > indent {
			now, n = now+" ", n+1
		}
		now, n = now+word, n+length
	}
	return b.String() + now + "\n"
}
