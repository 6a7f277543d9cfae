package verdict

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// View says how a report is printed for a person.
type View struct {
	Width    int  // of the terminal, in characters; 0 does not wrap lines
	Coloured bool // for a terminal
	Quiet    bool // print only failures and unknown results
}

// Table prints the report for a person: failures first, then checks that pass, then the facts. It
// returns the error of the first write that failed.
func (r *Report) Table(w io.Writer, v View) error {
	r = r.printable()
	p := &page{to: w, View: v}
	rows := fold(r.shown(v))
	if v.Quiet {
		p.rows(rows)
		return p.err
	}
	p.wrapped("", 2, fmt.Sprintf("nhc-gpu %s on %s, checking %s", r.Version, r.Node, r.From))
	if text := r.shellText(); text != "" || len(rows) > 0 {
		p.line("%s", text)
	}
	p.rows(rows)
	if !r.Failed && len(r.Facts) > 0 {
		p.line("\nThis node:")
		p.facts(r.Facts)
	}
	p.devices(r.Rows)
	count := r.count()
	p.line("\n%d ok, %d skipped, %d warn, %d unknown, %d fail", count[checks.OK], count[checks.Skip], count[checks.Warn], count[checks.Unknown], count[checks.Fail])
	if n := r.countNotDone(); n > 0 {
		them := "them"
		if n == 1 {
			them = "it"
		}
		p.line("%s held; --act carries %s out", checks.Plural(n, "action"), them)
	}
	return p.err
}

// shellText says how many lines bash ran, in one line; "" without any.
func (r *Report) shellText() string {
	lines, them := "1 shell line was", "it"
	if r.ShellLines != 1 {
		lines, them = fmt.Sprintf("%d shell lines were", r.ShellLines), "them"
	}
	switch {
	case r.ShellLines == 0:
		return ""
	case r.NoShell:
		return fmt.Sprintf("%s not run (--no-shell)\n", lines)
	}
	return fmt.Sprintf("%s run; --no-shell skips %s\n", lines, them)
}

// rank orders rows: failures first, skipped checks last.
func rank(s checks.Severity) int {
	return slices.Index([]checks.Severity{checks.Fail, checks.Unknown, checks.Warn, checks.OK, checks.Skip}, s)
}

// shown returns the rows that are printed, in their order.
func (r *Report) shown(v View) []Row {
	rows := slices.DeleteFunc(slices.Clone(r.Rows), func(row Row) bool {
		return v.Quiet && row.Severity < checks.Unknown || r.Failed && row.Severity < checks.Warn
	})
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(rank(a.Severity), rank(b.Severity)) })
	return rows
}

// fact returns the text of a row: its message with the device, the fact of a check that passes, or
// the arguments of its line.
func (r *Row) fact() string {
	device := cmp.Or(r.Device.PCI, r.Device.Name)
	switch {
	case r.Message == "" && r.Fact != "":
		return r.Fact
	case r.Message == "":
		return strings.TrimSpace(strings.TrimPrefix(r.Line, r.Name))
	case device != "" && !strings.Contains(r.Message, device):
		return r.Device.String() + ": " + r.Message
	}
	return r.Message
}

// action returns the remedy and the advice of a row, or "".
func (r *Row) action() string {
	if r.Severity < checks.Warn {
		return ""
	}
	words := r.Remedy.Words()
	if words != "" && r.Do != "" {
		words += ": "
	}
	return words + r.Do
}

// page prints the parts of a report.
type page struct {
	View
	to  io.Writer
	err error // of the first write that failed
}

// line prints a line without blanks at its end.
func (p *page) line(format string, args ...any) {
	_, err := fmt.Fprintln(p.to, strings.TrimRight(fmt.Sprintf(format, args...), " "))
	p.err = cmp.Or(p.err, err)
}

const (
	resultWidth = len("unknown") + 2 // and a blank before it
	mostName    = 24                 // columns of the name of a check where lines are wrapped
	leastText   = 24                 // columns that a text has at least
)

// rows prints each result, and the action below each that is not ok.
func (p *page) rows(rows []Row) {
	width := 0
	for i := range rows {
		if n := utf8.RuneCountInString(rows[i].Name); p.Width <= 0 || n <= mostName {
			width = max(width, n)
		}
	}
	indent := resultWidth + width + 2
	for i := range rows {
		row := &rows[i]
		if i > 0 && row.Severity <= checks.Skip && rows[i-1].Severity >= checks.Warn {
			p.line("")
		}
		text := row.fact()
		if row.Took >= time.Second {
			text += fmt.Sprintf(" (%.1f s)", row.Took.Seconds())
		}
		head := fmt.Sprintf(" %s %-*s", p.result(row), width, row.Name)
		if utf8.RuneCountInString(row.Name) > width {
			p.line("%s", head)
			head = strings.Repeat(" ", indent-2)
		}
		p.wrapped(head+"  ", indent, text)
		if do := row.action(); do != "" && (i+1 == len(rows) || rows[i+1].action() != do) {
			p.wrapped(strings.Repeat(" ", resultWidth)+"-> ", resultWidth+3, do)
		}
	}
}

// facts prints the facts about the node.
func (p *page) facts(facts []Row) {
	facts, width := foldFacts(facts), 0
	for i := range facts {
		width = max(width, utf8.RuneCountInString(facts[i].Name))
	}
	for i := range facts {
		p.wrapped(fmt.Sprintf(" %-4s%-*s  ", found(facts[i].Severity), width, facts[i].Name), width+7, Plain(facts[i].Message))
	}
}

// wrapped prints a text behind its head; the lines after the first are indented.
func (p *page) wrapped(head string, indent int, text string) {
	left := p.Width - indent
	if p.Width <= 0 {
		left = len(text)
	}
	left = max(left, leastText)
	var line strings.Builder
	n := 0
	for word := range strings.FieldsSeq(text) {
		length := utf8.RuneCountInString(word)
		if n > 0 && n+1+length > left {
			p.line("%s%s", head, line.String())
			head, n = strings.Repeat(" ", indent), 0
			line.Reset()
		}
		if n > 0 {
			line.WriteByte(' ')
			n++
		}
		line.WriteString(word)
		n += length
	}
	p.line("%s%s", head, line.String())
}

// devices prints the serial numbers and UUIDs of devices that are not ok.
func (p *page) devices(rows []Row) {
	seen := map[checks.Device]bool{}
	for i := range rows {
		d := rows[i].Device
		if rows[i].Severity < checks.Warn || rows[i].Remedy == checks.FixConfig || seen[d] || d.Serial == "" && d.UUID == "" {
			continue
		}
		if len(seen) == 0 {
			p.line("\nDevices:")
		}
		seen[d] = true
		p.line("  %s%s%s", d, checks.Before(", serial ", d.Serial, ""), checks.Before(", UUID ", d.UUID, ""))
	}
}

// result returns the result of a row: "held" for an action that was not carried out.
func (p *page) result(r *Row) string {
	if r.isHeld() {
		return fmt.Sprintf("%-*s", len("unknown"), "held")
	}
	return p.colour(r.Severity)
}

// colour returns a severity, as wide as the widest.
func (p *page) colour(s checks.Severity) string {
	text := fmt.Sprintf("%-*s", len("unknown"), s)
	switch {
	case !p.Coloured || s == checks.Skip:
		return text
	case s == checks.Fail:
		return "\x1b[31m" + text + "\x1b[0m"
	case s == checks.OK:
		return "\x1b[32m" + text + "\x1b[0m"
	}
	return "\x1b[33m" + text + "\x1b[0m"
}
