package lint

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// grade is how bad a finding is.
type grade int

const (
	remark grade = iota
	warning
	mistake
	grades
)

// String returns the word that editors know for it.
func (g grade) String() string { return [...]string{"note", "warning", "error"}[g] }

// MarshalText writes the word.
func (g grade) MarshalText() ([]byte, error) { return []byte(g.String()), nil }

// finding is one mistake in a file, or one conflict with Slurm.
type finding struct {
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`   // from 1; 0: the file as a whole
	Column   int    `json:"column,omitempty"` // characters from 1; 0: the line as a whole
	Severity grade  `json:"severity"`
	Word     string `json:"word,omitempty"` // the text at the place
	Text     string `json:"text"`           // the mistake
	Now      string `json:"now,omitempty"`  // its effect today
	Fix      string `json:"fix,omitempty"`  // what to write, or to do
}

// place returns FILE:LINE:COLUMN as far as they are known.
func (f *finding) place() string {
	switch {
	case f.Line == 0:
		return f.File
	case f.Column == 0:
		return fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	return fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column)
}

// String is the finding in the form that editors parse, with its fix below it.
func (f *finding) String() string {
	var b strings.Builder
	if place := f.place(); place != "" {
		b.WriteString(place + ": ")
	}
	fmt.Fprintf(&b, "%s: %s", f.Severity, f.message())
	if f.Fix != "" {
		b.WriteString("\n    fix: " + f.Fix)
	}
	return b.String()
}

// message returns the mistake and its effect.
func (f *finding) message() string {
	switch {
	case f.Now == "":
		return f.Text
	case strings.HasSuffix(f.Text, "?"):
		return f.Text + " " + f.Now
	}
	return f.Text + ": " + f.Now
}

// findings collects mistakes, each once.
type findings struct {
	list []finding
	seen map[finding]bool
}

func (l *findings) add(f finding) {
	f.Text = strings.TrimSpace(strings.ReplaceAll(f.Text, "\n", "; "))
	if l.seen == nil {
		l.seen = map[finding]bool{}
	}
	if !l.seen[f] {
		l.seen[f] = true
		l.list = append(l.list, f)
	}
}

// count returns the number of findings of a grade.
func (l *findings) count(g grade) (n int) {
	for i := range l.list {
		if l.list[i].Severity == g {
			n++
		}
	}
	return n
}

// at reports whether a line has a finding of at least this grade.
func (l *findings) at(file string, line int, least grade) bool {
	return slices.ContainsFunc(l.list, func(f finding) bool { return f.File == file && f.Line == line && f.Severity >= least })
}

// sort puts the worst first, then the files in the order of their first findings.
func (l *findings) sort() {
	order := map[string]int{}
	for _, f := range l.list {
		if order[f.File] == 0 {
			order[f.File] = 1 + len(order)
		}
	}
	slices.SortStableFunc(l.list, func(a, b finding) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(order[a.File], order[b.File]),
			cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}
