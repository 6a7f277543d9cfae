package verdict

import (
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Row is one line of the table for a person.
type Row struct {
	Severity checks.Severity
	Name     string
	Device   string
	Message  string
	Took     time.Duration
	Remedy   checks.Remedy
	Do       string // what to do about it
}

// Table prints what was found on the node and what the checks came to, and
// gives the exit status: 0 ok, 1 warn, 2 fail, 3 unknown. A failure outweighs
// what could not be told. coloured is for a terminal.
func Table(w io.Writer, facts, rows []Row, coloured bool) (exit int) {
	if len(facts) > 0 {
		t := newTable(w)
		t.AppendHeader(table.Row{"found", "thing", "detail"})
		for _, r := range facts {
			found := "yes"
			switch r.Severity {
			case checks.Skip:
				found = "no"
			case checks.Unknown:
				found = "?"
			}
			t.AppendRow(table.Row{found, r.Name, r.Message})
		}
		t.Render()
		fmt.Fprintln(w)
	}
	t := newTable(w)
	t.AppendHeader(table.Row{"result", "check", "device", "message", "ms"})
	worst, count := checks.OK, map[checks.Severity]int{}
	for _, r := range rows {
		worst = max(worst, r.Severity)
		count[r.Severity]++
		message := r.Message
		if r.Remedy != checks.NoRemedy {
			message += "  -> " + string(r.Remedy)
		}
		took := ""
		if r.Took > 0 {
			took = fmt.Sprintf("%.1f", float64(r.Took)/float64(time.Millisecond))
		}
		t.AppendRow(table.Row{colour(r.Severity, coloured), r.Name, r.Device, message, took})
	}
	t.Render()
	fmt.Fprintf(w, "\n%d ok, %d skipped, %d warn, %d unknown, %d fail\n", count[checks.OK], count[checks.Skip], count[checks.Warn], count[checks.Unknown], count[checks.Fail])
	advise(w, rows)
	switch worst {
	case checks.Warn:
		return 1
	case checks.Fail:
		return 2
	case checks.Unknown:
		return 3
	}
	return 0
}

// advise says once what to do about each kind of finding.
func advise(w io.Writer, rows []Row) {
	told := map[string]bool{}
	for _, r := range rows {
		if r.Do == "" || r.Severity < checks.Warn || told[r.Name+r.Do] {
			continue
		}
		if len(told) == 0 {
			fmt.Fprint(w, "\nWhat to do:\n")
		}
		told[r.Name+r.Do] = true
		fmt.Fprintf(w, "  %s: %s\n", r.Name, r.Do)
	}
}

func newTable(w io.Writer) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Options = table.OptionsNoBordersAndSeparators
	t.Style().Format.Header = text.FormatDefault
	return t
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
