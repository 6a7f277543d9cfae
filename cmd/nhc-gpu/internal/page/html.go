package page

import (
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
)

// Write writes the page.
func (f *Fleet) Write(to io.Writer, title string, now time.Time) error {
	w := Begin(to, title, "")
	rows := f.rows()
	f.head(w, rows, now)
	if len(rows) == 1 {
		f.timeline(w, rows[0])
	} else {
		f.heatMap(w, rows)
	}
	f.findings(w, rows)
	f.lists(w)
	return w.End()
}

const clock = "2006-01-02 15:04:05"

// class returns the class of a severity in style.css.
func class(s checks.Severity) Raw { return Raw([...]string{"o", "s", "w", "u", "f"}[s]) }

func (f *Fleet) head(w *Writer, rows []*nodeState, now time.Time) {
	w.Print("<p>%d events of %d nodes, %s to %s UTC. Written %s UTC.</p>\n", f.Events, len(rows), f.first.UTC().Format(clock), f.last.UTC().Format(clock), now.UTC().Format(clock))
	count := map[checks.Severity]int{}
	drained := map[string]int{}
	for _, n := range rows {
		count[n.last.Verdict]++
		if n.last.Slurm != nil && n.last.Slurm.Owner != "" {
			drained[n.last.Slurm.Owner]++
		}
	}
	w.Print(`<ul class="sum">`)
	for _, s := range []checks.Severity{checks.Fail, checks.Unknown, checks.Warn, checks.OK} {
		w.Print(`<li class="%s"><b>%d</b> %s</li>`, class(s), count[s], s.String())
	}
	w.Print("<li><b>%d</b> drained by nhc-gpu</li><li><b>%d</b> out of service otherwise</li></ul>\n", drained[event.OwnerNHC], drained[event.OwnerOther])
}

// heatMap shows nodes and checks. A node whose checks all pass is one cell.
func (f *Fleet) heatMap(w *Writer, rows []*nodeState) {
	columns := f.columns()
	w.Print("<h2>Nodes and checks, last run of each node</h2>\n")
	f.legend(w, columns)
	w.Print(`<table class="map"><thead><tr><th>node</th>`)
	for i := range columns {
		w.Print("<th>%d</th>", i+1)
	}
	w.Print("</tr></thead><tbody>\n")
	for _, n := range rows {
		w.Print(`<tr class="node"><th title="%s">%s</th>`, n.last.Time.UTC().Format(clock), n.name)
		if n.last.Verdict == checks.OK {
			w.Print(`<td class="o" colspan="%d"></td></tr>`+"\n", max(len(columns), 1))
			continue
		}
		f.cells(w, columns, n.cells)
		w.Print("</tr>\n")
	}
	w.Print("</tbody></table>\n")
}

func (f *Fleet) cells(w *Writer, columns []*checkState, cells map[string]checks.Severity) {
	for i, c := range columns {
		s, ran := cells[c.name]
		switch {
		case !ran:
			w.Print("<td></td>")
		case s <= checks.Skip:
			w.Print(`<td class="%s"></td>`, class(s))
		default:
			w.Print(`<td class="%s" title="%d %s: %s">%s</td>`, class(s), i+1, c.name, s.String(), strings.ToUpper(s.String()[:1]))
		}
	}
}

func (f *Fleet) legend(w *Writer, columns []*checkState) {
	w.Print(`<ol class="legend">`)
	for _, c := range columns {
		w.Print("<li>%s", c.name)
		if c.failing > 0 {
			w.Print(" <b>%d failing</b>", c.failing)
		}
		w.Print("</li>")
	}
	w.Print("</ol>\n")
}

// timeline shows the runs of one node.
func (f *Fleet) timeline(w *Writer, n *nodeState) {
	columns := f.columns()
	w.Print("<h2>Runs and checks of %s, the newest first</h2>\n", n.name)
	f.legend(w, columns)
	w.Print(`<table class="map"><thead><tr><th>run</th>`)
	for i := range columns {
		w.Print("<th>%d</th>", i+1)
	}
	w.Print("</tr></thead><tbody>\n")
	for _, run := range slices.Backward(n.runs) {
		w.Print(`<tr class="node"><th>%s</th>`, run.time.UTC().Format(clock))
		f.cells(w, columns, run.cells)
		w.Print("</tr>\n")
	}
	w.Print("</tbody></table>\n")
}

// findings lists the present findings.
func (f *Fleet) findings(w *Writer, rows []*nodeState) {
	w.Print("<h2>Findings of the last runs</h2>\n<table class=\"found\"><thead><tr><th>node</th><th>since</th><th>code</th><th>device</th><th>message</th></tr></thead><tbody>\n")
	found := false
	for _, n := range rows {
		for _, r := range n.last.Findings() {
			found = true
			since := ""
			if !n.last.Since.IsZero() {
				since = n.last.Since.UTC().Format(clock)
			}
			w.Print(`<tr><th>%s</th><td>%s</td><td class="%s">%s</td><td>%s</td><td>%s</td></tr>`+"\n", n.name, since, class(r.Severity), r.Severity.String()+" "+r.Code, r.Device.String(), r.Message)
		}
	}
	if !found {
		w.Print(`<tr><td colspan="5">none</td></tr>`)
	}
	w.Print("</tbody></table>\n")
}

func (f *Fleet) lists(w *Writer) {
	w.Print("<h2>What changed</h2>\n<table><thead><tr><th>time, UTC</th><th>node</th><th>verdict</th><th>first finding</th></tr></thead><tbody>\n")
	for _, c := range f.changes() {
		w.Print(`<tr><td>%s</td><th>%s</th><td class="%s">%s</td><td>%s</td></tr>`+"\n", c.time.UTC().Format(clock), c.node, class(c.to), c.from.String()+" to "+c.to.String(), c.what)
	}
	w.Print("</tbody></table>\n<h2>Flapping nodes</h2>\n<table><thead><tr><th>node</th><th>changes of the verdict</th><th>now</th></tr></thead><tbody>\n")
	for _, n := range f.flapping() {
		w.Print(`<tr><th>%s</th><td>%d</td><td class="%s">%s</td></tr>`+"\n", n.name, n.changes, class(n.last.Verdict), n.last.Verdict.String())
	}
	w.Print("</tbody></table>\n<h2>Slowest checks</h2>\n<table><thead><tr><th>check</th><th>mean, ms</th><th>slowest, ms</th><th>on node</th></tr></thead><tbody>\n")
	for _, c := range f.slowest() {
		w.Print("<tr><th>%s</th><td>%.1f</td><td>%.1f</td><td>%s</td></tr>\n", c.name, c.total/float64(c.runs), c.slowest, c.slowestOn)
	}
	w.Print("</tbody></table>\n")
}
