package page

import (
	"bufio"
	_ "embed" // style.css
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
)

//go:embed style.css
var style string

// Write writes the page.
func (f *Fleet) Write(to io.Writer, title string, now time.Time) error {
	w := &writer{w: bufio.NewWriter(to)}
	w.print(`<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">`)
	w.print("<title>%s</title><style>%s</style></head><body><main><h1>%s</h1>\n", title, raw(style), title)
	rows := f.rows()
	f.head(w, rows, now)
	if len(rows) == 1 {
		f.timeline(w, rows[0])
	} else {
		f.heatMap(w, rows)
	}
	f.findings(w, rows)
	f.lists(w)
	w.print("</main></body></html>\n")
	if w.err == nil {
		w.err = w.w.Flush()
	}
	if w.err != nil {
		return fmt.Errorf("write the report: %w", w.err)
	}
	return nil
}

// raw is text of ours, which is not escaped.
type raw string

type writer struct {
	w   *bufio.Writer
	err error
}

// print writes formatted text. It escapes every argument that is text, unless it is [raw].
func (w *writer) print(format string, args ...any) {
	for i, a := range args {
		switch a := a.(type) {
		case string:
			args[i] = html.EscapeString(strings.ToValidUTF8(a, "?"))
		case raw:
			args[i] = string(a)
		}
	}
	if w.err == nil {
		_, w.err = fmt.Fprintf(w.w, format, args...)
	}
}

const clock = "2006-01-02 15:04:05"

// class returns the class of a severity in style.css.
func class(s checks.Severity) raw { return raw([...]string{"o", "s", "w", "u", "f"}[s]) }

func (f *Fleet) head(w *writer, rows []*nodeState, now time.Time) {
	w.print("<p>%d events of %d nodes, %s to %s UTC. Written %s UTC.</p>\n", f.Events, len(rows), f.first.UTC().Format(clock), f.last.UTC().Format(clock), now.UTC().Format(clock))
	count := map[checks.Severity]int{}
	drained := map[string]int{}
	for _, n := range rows {
		count[n.last.Verdict]++
		if n.last.Slurm != nil && n.last.Slurm.Owner != "" {
			drained[n.last.Slurm.Owner]++
		}
	}
	w.print(`<ul class="sum">`)
	for _, s := range []checks.Severity{checks.Fail, checks.Unknown, checks.Warn, checks.OK} {
		w.print(`<li class="%s"><b>%d</b> %s</li>`, class(s), count[s], s.String())
	}
	w.print("<li><b>%d</b> drained by nhc-gpu</li><li><b>%d</b> out of service otherwise</li></ul>\n", drained[event.OwnerNHC], drained[event.OwnerOther])
}

// heatMap shows nodes and checks. A node whose checks all pass is one cell.
func (f *Fleet) heatMap(w *writer, rows []*nodeState) {
	columns := f.columns()
	w.print("<h2>Nodes and checks, last run of each node</h2>\n")
	f.legend(w, columns)
	w.print(`<table class="map"><thead><tr><th>node</th>`)
	for i := range columns {
		w.print("<th>%d</th>", i+1)
	}
	w.print("</tr></thead><tbody>\n")
	for _, n := range rows {
		w.print(`<tr class="node"><th title="%s">%s</th>`, n.last.Time.UTC().Format(clock), n.name)
		if n.last.Verdict == checks.OK {
			w.print(`<td class="o" colspan="%d"></td></tr>`+"\n", max(len(columns), 1))
			continue
		}
		f.cells(w, columns, n.cells)
		w.print("</tr>\n")
	}
	w.print("</tbody></table>\n")
}

func (f *Fleet) cells(w *writer, columns []*checkState, cells map[string]checks.Severity) {
	for i, c := range columns {
		s, ran := cells[c.name]
		switch {
		case !ran:
			w.print("<td></td>")
		case s <= checks.Skip:
			w.print(`<td class="%s"></td>`, class(s))
		default:
			w.print(`<td class="%s" title="%d %s: %s">%s</td>`, class(s), i+1, c.name, s.String(), strings.ToUpper(s.String()[:1]))
		}
	}
}

func (f *Fleet) legend(w *writer, columns []*checkState) {
	w.print(`<ol class="legend">`)
	for _, c := range columns {
		w.print("<li>%s", c.name)
		if c.failing > 0 {
			w.print(" <b>%d failing</b>", c.failing)
		}
		w.print("</li>")
	}
	w.print("</ol>\n")
}

// timeline shows the runs of one node.
func (f *Fleet) timeline(w *writer, n *nodeState) {
	columns := f.columns()
	w.print("<h2>Runs and checks of %s, the newest first</h2>\n", n.name)
	f.legend(w, columns)
	w.print(`<table class="map"><thead><tr><th>run</th>`)
	for i := range columns {
		w.print("<th>%d</th>", i+1)
	}
	w.print("</tr></thead><tbody>\n")
	for _, run := range slices.Backward(n.runs) {
		w.print(`<tr class="node"><th>%s</th>`, run.time.UTC().Format(clock))
		f.cells(w, columns, run.cells)
		w.print("</tr>\n")
	}
	w.print("</tbody></table>\n")
}

// findings lists the present findings.
func (f *Fleet) findings(w *writer, rows []*nodeState) {
	w.print("<h2>Findings of the last runs</h2>\n<table class=\"found\"><thead><tr><th>node</th><th>since</th><th>code</th><th>device</th><th>message</th></tr></thead><tbody>\n")
	found := false
	for _, n := range rows {
		for _, r := range n.last.Findings() {
			found = true
			since := ""
			if !n.last.Since.IsZero() {
				since = n.last.Since.UTC().Format(clock)
			}
			w.print(`<tr><th>%s</th><td>%s</td><td class="%s">%s</td><td>%s</td><td>%s</td></tr>`+"\n", n.name, since, class(r.Severity), r.Severity.String()+" "+r.Code, r.Device.String(), r.Message)
		}
	}
	if !found {
		w.print(`<tr><td colspan="5">none</td></tr>`)
	}
	w.print("</tbody></table>\n")
}

func (f *Fleet) lists(w *writer) {
	w.print("<h2>What changed</h2>\n<table><thead><tr><th>time, UTC</th><th>node</th><th>verdict</th><th>first finding</th></tr></thead><tbody>\n")
	for _, c := range f.changes() {
		w.print(`<tr><td>%s</td><th>%s</th><td class="%s">%s</td><td>%s</td></tr>`+"\n", c.time.UTC().Format(clock), c.node, class(c.to), c.from.String()+" to "+c.to.String(), c.what)
	}
	w.print("</tbody></table>\n<h2>Flapping nodes</h2>\n<table><thead><tr><th>node</th><th>changes of the verdict</th><th>now</th></tr></thead><tbody>\n")
	for _, n := range f.flapping() {
		w.print(`<tr><th>%s</th><td>%d</td><td class="%s">%s</td></tr>`+"\n", n.name, n.changes, class(n.last.Verdict), n.last.Verdict.String())
	}
	w.print("</tbody></table>\n<h2>Slowest checks</h2>\n<table><thead><tr><th>check</th><th>mean, ms</th><th>slowest, ms</th><th>on node</th></tr></thead><tbody>\n")
	for _, c := range f.slowest() {
		w.print("<tr><th>%s</th><td>%.1f</td><td>%.1f</td><td>%s</td></tr>\n", c.name, c.total/float64(c.runs), c.slowest, c.slowestOn)
	}
	w.print("</tbody></table>\n")
}
