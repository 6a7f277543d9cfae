package verdict

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Table prints the report. width is the width of the terminal in characters; 0 does not limit
// the lines. coloured is for a terminal.
func (r *Report) Table(w io.Writer, width int, coloured bool) {
	r = r.printable()
	fmt.Fprintf(w, "nhc-gpu %s on %s, checking %s\n%s\n", r.Version, r.Node, r.From, r.shellText())
	if len(r.Facts) > 0 {
		t := newTable(w, table.Row{"found", "thing", "detail"})
		for _, f := range r.Facts {
			t.add(found(f.Severity), f.Name, f.Message)
		}
		t.print(width, 3)
		fmt.Fprintln(w)
	}
	t := newTable(w, table.Row{"result", "check", "device", "message", "ms"})
	for _, row := range mergeRows(r.Rows) {
		message := strings.TrimPrefix(row.Message, row.Device.String()+": ")
		if message == "" {
			message = row.Line
		}
		if row.Remedy != checks.NoRemedy {
			message += "  -> " + string(row.Remedy)
		}
		took := ""
		if row.Took > 0 {
			took = fmt.Sprintf("%.1f", float64(row.Took)/float64(time.Millisecond))
		}
		t.add(colour(row.Severity, coloured), row.Name, row.Device.String(), message, took)
	}
	t.print(width, 4)
	count := r.count()
	fmt.Fprintf(w, "\n%d ok, %d skipped, %d warn, %d unknown, %d fail\n", count[checks.OK], count[checks.Skip], count[checks.Warn], count[checks.Unknown], count[checks.Fail])
	if n := r.countNotDone(); n > 0 {
		actions, them := "actions", "them"
		if n == 1 {
			actions, them = "action", "it"
		}
		fmt.Fprintf(w, "%d %s not done; --act carries %s out\n", n, actions, them)
	}
	r.devices(w)
	r.advise(w, width)
}

// shellText returns one line with the number of lines that bash ran; "" for none.
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

// mergeRows merges the rows of checks with the same message: the node has no GPU, or its driver
// does not answer.
func mergeRows(rows []Row) (list []Row) {
	type saying struct {
		checks.Severity
		device, message string
	}
	of := func(r *Row) saying { return saying{r.Severity, r.Device.String(), r.Message} }
	same := map[saying]int{}
	for i := range rows {
		same[of(&rows[i])]++
	}
	for _, row := range rows {
		n := same[of(&row)]
		switch {
		case n < 0:
			continue
		case n > 2 && !row.isHeld() && (row.Severity == checks.Skip || row.Severity == checks.Unknown):
			same[of(&row)] = -1
			row.Name = fmt.Sprintf("%s and %d more", row.Name, n-1)
		}
		list = append(list, row)
	}
	return list
}

// devices prints, for each device with a finding, the serial number and UUID that its vendor
// needs.
func (r *Report) devices(w io.Writer) {
	told := map[checks.Device]bool{}
	for _, row := range r.Rows {
		d := row.Device
		if row.Severity < checks.Warn || told[d] || d.Serial == "" && d.UUID == "" {
			continue
		}
		if len(told) == 0 {
			fmt.Fprint(w, "\nDevices:\n")
		}
		told[d] = true
		line := "  " + d.String()
		if d.Serial != "" {
			line += ", serial " + d.Serial
		}
		if d.UUID != "" {
			line += ", UUID " + d.UUID
		}
		fmt.Fprintln(w, line)
	}
}

// advise prints the advice on each kind of finding once.
func (r *Report) advise(w io.Writer, width int) {
	var order []string
	names := map[string][]string{} // names of the checks, by advice
	seen := map[string]bool{}
	for _, row := range r.Rows {
		if row.Do == "" || row.Severity < checks.Warn || seen[row.Name+row.Do] {
			continue
		}
		seen[row.Name+row.Do] = true
		if names[row.Do] == nil {
			order = append(order, row.Do)
		}
		names[row.Do] = append(names[row.Do], row.Name)
	}
	for i, do := range order {
		if i == 0 {
			fmt.Fprint(w, "\nWhat to do:\n")
		}
		who := names[do]
		if more := len(who) - 1; more > 1 {
			who = []string{fmt.Sprintf("%s and %d more", who[0], more)}
		}
		line := strings.Join(who, ", ") + ": " + do
		if width > minWidth {
			line = strings.ReplaceAll(text.WrapSoft(line, width-4), "\n", "\n    ")
		}
		fmt.Fprintf(w, "  %s\n", line)
	}
}

// minWidth is the minimum width of a wrapped column.
const minWidth = 24

// grid is a table with one column that is wrapped on a narrow terminal.
type grid struct {
	table.Writer
	widths []int
}

func newTable(w io.Writer, header table.Row) *grid {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Options = table.OptionsNoBordersAndSeparators
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(header)
	g := &grid{t, make([]int, len(header))}
	g.measure(header)
	return g
}

func (g *grid) add(cells ...any) {
	g.AppendRow(cells)
	g.measure(cells)
}

func (g *grid) measure(cells []any) {
	for i, c := range cells {
		g.widths[i] = max(g.widths[i], text.StringWidthWithoutEscSequences(fmt.Sprint(c)))
	}
}

// print prints the table, with the column number wrapped (from 1) wrapped to fit.
func (g *grid) print(width, wrapped int) {
	if width > 0 {
		left := width - 2*len(g.widths)
		for i, w := range g.widths {
			if i != wrapped-1 {
				left -= w
			}
		}
		g.SetColumnConfigs([]table.ColumnConfig{{Number: wrapped, WidthMax: max(left, minWidth), WidthMaxEnforcer: text.WrapSoft}})
	}
	g.Render()
}

func colour(s checks.Severity, coloured bool) string {
	switch {
	case coloured && s == checks.Fail:
		return text.FgRed.Sprint(s)
	case coloured && s > checks.Skip:
		return text.FgYellow.Sprint(s)
	}
	return s.String()
}
