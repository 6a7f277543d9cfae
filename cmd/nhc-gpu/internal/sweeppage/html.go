package sweeppage

import (
	"cmp"
	_ "embed" // sweep.css
	"fmt"
	"io"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/page"
)

//go:embed sweep.css
var css string

// Limits of the page. The JSON report has all.
const (
	mostCards = 24
	mostRows  = 500
	mostHists = 32 // of a stage
)

// HTML writes a report as one page that needs no network and no script.
func HTML(to io.Writer, r *sweep.Report) error {
	w := page.Begin(to, "Sweep "+r.ID, page.Raw(css))
	c := newCluster(r)
	head(w, r)
	cards(w, r.Suspects)
	changes(w, r.Comparison)
	easTable(w, r.EAS)
	nodeTables(w, r)
	c.maps(w)
	c.distributions(w, r)
	stageTable(w, r)
	return w.End()
}

func head(w *page.Writer, r *sweep.Report) {
	w.Print("<p class=\"verdict\">%s.</p><p>%s; %s.</p>\n", upper(verdict(r)), span(r), origin(r))
	if len(r.Command) > 0 {
		w.Print("<p><code>%s</code></p>\n", strings.Join(r.Command, " "))
	}
	tests := 0
	for i := range r.Stages {
		tests += len(r.Stages[i].Results)
	}
	class := page.Raw("o")
	if len(r.Suspects) > 0 {
		class = "f"
	} else if len(unproven(r)) > 0 {
		class = "w"
	}
	w.Print(`<ul class="sum"><li class="%s"><b>%s</b> %s</li><li><b>%s</b> tested</li><li><b>%s</b> not tested</li><li><b>%s</b> tests</li>`, class,
		thousands(len(r.Suspects)), plural(len(r.Suspects), "suspect"), thousands(len(nodesIn(r, tested, suspect))), thousands(len(nodesIn(r, untested...))), thousands(tests))
	if r.Interrupted != "" {
		w.Print(`<li class="w">interrupted: %s</li>`, r.Interrupted)
	}
	for _, why := range unproven(r) {
		w.Print(`<li class="w">no verdict by %s</li>`, why)
	}
	w.Print("</ul>\n")
	if list := notes(r); len(list) > 0 {
		w.Print("<ul>")
		for _, note := range list {
			w.Print("<li>%s</li>", note)
		}
		w.Print("</ul>\n")
	}
}

func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

func plural(n int, thing string) string {
	if n == 1 {
		return thing
	}
	return thing + "s"
}

func cards(w *page.Writer, list []sweep.Suspect) {
	if len(list) == 0 {
		return
	}
	w.Print(`<h2>Suspects, the most certain first</h2><div class="cards">` + "\n")
	for i := range min(len(list), mostCards) {
		card(w, &list[i])
	}
	w.Print("</div>\n")
	if len(list) <= mostCards {
		return
	}
	w.Print("<h3>%s more</h3>\n<table class=\"found\"><thead><tr><th>suspect</th><th>certain</th><th>code</th><th>number</th><th>finding</th></tr></thead><tbody>\n", thousands(len(list)-mostCards))
	shown := min(len(list), mostCards+mostRows)
	for i := mostCards; i < shown; i++ {
		s := &list[i]
		w.Print("<tr><th>%s</th><td>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>\n", nameOf(s), certainty(s.Confidence), s.Code, measured(s), s.Text)
	}
	w.Print("</tbody></table>\n")
	if more := len(list) - shown; more > 0 {
		w.Print("<p>%s more are in the JSON report.</p>\n", thousands(more))
	}
}

func card(w *page.Writer, s *sweep.Suspect) {
	class := page.Raw("card")
	if s.Doubt {
		class = "card doubt"
	}
	w.Print(`<article class="%s"><h3>%s</h3>`, class, nameOf(s))
	if m := measured(s); m != "" {
		w.Print("<p><b>%s</b></p>", m)
		if share := s.Value / s.Expect; s.Expect > 0 && !s.Kind.Lower() && share <= 1.05 {
			w.Print(`<svg class="gauge" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="%.0f %%"><rect class="all" width="100" height="6"/><rect class="part" width="%.1f" height="6"/></svg>`, 100*share, min(100, 100*share))
		}
	}
	w.Print(`<p>%s</p><p><code>%s</code> %s</p>`, evidence(s, 120), s.Code, s.Text)
	if do := cmp.Or(s.Do, checks.WhatToDo(s.Code)); do != "" {
		w.Print(`<p class="do">%s</p>`, do)
	}
	w.Print("</article>\n")
}

func changes(w *page.Writer, c *sweep.Comparison) {
	if c == nil {
		return
	}
	w.Print("<h2>Changes since sweep %s of %s UTC</h2>\n<table class=\"change\"><thead><tr><th>change</th><th>of</th></tr></thead><tbody>\n", c.With, moment(c.Began))
	rows := 0
	row := func(class page.Raw, what, of string) {
		if rows++; rows <= mostRows {
			w.Print(`<tr><td class="%s">%s</td><td>%s</td></tr>`+"\n", class, what, of)
		}
	}
	for _, group := range []struct {
		class page.Raw
		what  string
		list  []sweep.Suspect
	}{{"f", "new suspect", c.New}, {"w", "still suspect", c.Still}, {"o", "cleared", c.Cleared}, {"s", "not tested again", c.Untested}} {
		for i := range group.list {
			row(group.class, group.what, nameOf(&group.list[i])+": "+group.list[i].Code)
		}
	}
	for i := range c.Moved {
		class := page.Raw("o")
		if c.Moved[i].Worse {
			class = "w"
		}
		row(class, movedWord(&c.Moved[i]), movedText(&c.Moved[i]))
	}
	if len(c.Added) > 0 {
		row("s", "nodes added", few(c.Added, 2000))
	}
	if len(c.Missing) > 0 {
		row("s", "nodes missing", few(c.Missing, 2000))
	}
	if rows == 0 {
		row("o", "none", fmt.Sprintf("no median has moved by more than %d %%", sweep.MovedPercent))
	}
	w.Print("</tbody></table>\n")
	if rows > mostRows {
		w.Print("<p>%s more changes are in the JSON report.</p>\n", thousands(rows-mostRows))
	}
}

func easTable(w *page.Writer, list []sweep.EASResult) {
	if len(list) == 0 {
		return
	}
	w.Print("<h2>Check items of the EAS file</h2>\n<table class=\"change\"><thead><tr><th>result</th><th>item</th></tr></thead><tbody>\n")
	for _, e := range list {
		class := page.Raw("f")
		if e.Result == "Succeeded" {
			class = "o"
		}
		w.Print(`<tr><td class="%s">%s</td><td>%s</td></tr>`+"\n", class, e.Result, strings.TrimSuffix(e.Name+": "+e.Text, ": "))
	}
	w.Print("</tbody></table>\n")
}

// nodeTables lists the nodes that were not tested, and those that were drained before the sweep.
func nodeTables(w *page.Writer, r *sweep.Report) {
	for _, table := range []struct {
		title string
		of    func(*sweep.NodeReport) bool
	}{{"Nodes that were not tested", isUntested}, {"Nodes that were drained before the sweep", wasDrained}} {
		groups := groupNodes(r, table.of)
		if len(groups) == 0 {
			continue
		}
		w.Print("<h2>%s</h2>\n<table class=\"nodes\"><thead><tr><th>state</th><th>count</th><th>nodes</th><th>why</th></tr></thead><tbody>\n", table.title)
		for i, g := range groups {
			if i == mostRows {
				w.Print(`<tr><td colspan="4">%s more reasons are in the JSON report</td></tr>`, thousands(len(groups)-mostRows))
				break
			}
			why := []string{}
			for _, part := range []struct{ lead, text string }{{"", g.why}, {"before: ", g.held}, {"now: ", g.after}} {
				if part.text != "" {
					why = append(why, part.lead+part.text)
				}
			}
			class := page.Raw("s")
			if g.state == dead || g.state == frozen {
				class = "f"
			}
			w.Print(`<tr><td class="%s">%s</td><td>%s</td><td>%s</td><td>%s</td></tr>`+"\n", class, g.state, thousands(len(g.names)), few(g.names, 4000), strings.Join(why, "; "))
		}
		w.Print("</tbody></table>\n")
	}
}

// title returns the heading of a series.
func (s *series) title() string {
	names := map[sweep.Kind]string{
		sweep.KindEcho: "Round-trip time", sweep.KindMTU: "Full packets (MTU)", sweep.KindConnect: "TCP connect time", sweep.KindName: "Name resolution", sweep.KindStream: "TCP bandwidth",
		sweep.KindRing: "Ring all-reduce over TCP", sweep.KindWrite: "RDMA write bandwidth", sweep.KindLatency: "RDMA write latency", sweep.KindNCCL: "NCCL bus bandwidth, " + s.op,
	}
	return cmp.Or(names[s.kind], string(s.kind))
}

// maps draws the tests between two nodes: a matrix of the pairs, of many nodes also a map of the nodes,
// and each plane or rail by itself.
func (c *cluster) maps(w *page.Writer) {
	for i, s := range c.series {
		if i == 0 {
			w.Print("<h2>Measurements between two nodes, relative to the usual ones</h2>\n")
			w.Print("<p>100 %% is the median of tests of the same kind, network, model and distance; less is worse, also of times. The names of suspects are bold.</p>\n")
			legend(w)
		}
		planes := s.planes()
		w.Print("<h3>%s</h3>\n", s.title())
		if len(c.nodes) > maxCells {
			_, each := bins(len(c.nodes))
			w.Print("<p>Each cell is a node, its usual test%s. Framed nodes are suspect. Each row begins with the named node.</p>\n", ofWorst(planes, s.stage))
			c.wall(w, s, "", true)
			w.Print("<p>Pairs: rows send, columns receive. A row is a group of %s; its cells show the worst pair.</p>\n", counted(each, "node"))
		} else {
			w.Print("<p>Pairs: rows send, columns receive%s.</p>\n", ofWorst(planes, s.stage))
		}
		c.matrix(w, s, "", true)
		if len(planes) < 2 {
			continue
		}
		w.Print(`<div class="grid">` + "\n")
		for _, plane := range planes {
			w.Print("<figure><figcaption><b>%s</b> %s</figcaption>", plane, c.planeWords(s, plane))
			if len(c.nodes) > maxCells {
				c.wall(w, s, plane, false)
			} else {
				c.matrix(w, s, plane, false)
			}
			w.Print("</figure>\n")
		}
		w.Print("</div>\n")
	}
}

func ofWorst(planes []string, stage sweep.Stage) string {
	if len(planes) < 2 {
		return ""
	}
	return ", on the worst " + planeWord(stage)
}

// planeWords sums up a plane: its median and the failed tests.
func (c *cluster) planeWords(s *series, plane string) string {
	var values []float64
	failed := 0
	for k, p := range s.pairs {
		if k.plane != plane {
			continue
		}
		if p.fault != "" {
			failed++
		}
		if len(p.values) > 0 {
			values = append(values, p.value)
		}
	}
	text := counted(len(values), "pair")
	if len(values) > 0 && s.unit != "" {
		text = fmt.Sprintf("median %s %s, %s", number(median(values)), s.unit, text)
	}
	if failed > 0 {
		text += ", " + thousands(failed) + " failed"
	}
	return text
}

// distributions draws the histograms of all stages.
func (c *cluster) distributions(w *page.Writer, r *sweep.Report) {
	first := true
	for i := range r.Stages {
		g := &r.Stages[i]
		drawn := 0
		for j := range g.Fleet {
			d := &g.Fleet[j]
			s := c.seriesOf(d)
			if s == nil {
				continue
			}
			if first {
				first = false
				w.Print("<h2>Distributions</h2>\n<p>The height of a bar is the square root of the number of pairs. The dashed line is the floor: a value beyond it is suspicious. Triangles below the axis mark the worst value of each suspect.</p>\n")
			}
			if drawn == 0 {
				w.Print("<h3>Stage %s</h3><div class=\"grid\">\n", string(g.Stage))
			}
			if drawn++; drawn <= mostHists {
				c.histogram(w, s, d)
			}
		}
		if drawn > 0 {
			w.Print("</div>\n")
		}
		if drawn > mostHists {
			w.Print("<p>%s more distributions are in the JSON report.</p>\n", thousands(drawn-mostHists))
		}
	}
}

// seriesOf returns the tests that a distribution describes, nil if they are not between two nodes.
func (c *cluster) seriesOf(d *sweep.Distribution) *series {
	for _, s := range c.series {
		if s.stage == d.Stage && s.kind == d.Kind && s.op == d.Op {
			return s
		}
	}
	return nil
}

func stageTable(w *page.Writer, r *sweep.Report) {
	if len(r.Stages) == 0 {
		return
	}
	w.Print("<h2>Stages</h2>\n<table class=\"stages\"><thead><tr><th>stage</th><th>tests</th><th>rounds</th><th>time</th><th>failed</th><th>numbers</th></tr></thead><tbody>\n")
	for i := range r.Stages {
		g := &r.Stages[i]
		took, numbers := "", ""
		if !g.Began.IsZero() && !g.Ended.IsZero() {
			took = checks.Lasted(g.Ended.Sub(g.Began))
		}
		if g.Skipped != "" {
			numbers = "skipped: " + g.Skipped
		}
		w.Print("<tr><th>%s</th><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%s", string(g.Stage), thousands(len(g.Results)), thousands(g.Rounds), took, thousands(faults(g)), numbers)
		name := ""
		for j, line := range fleetLines(g.Fleet) {
			if name = cmp.Or(line[0], name); j > 0 {
				w.Print("<br>")
			}
			w.Print("%s %s", name, line[1])
		}
		w.Print("</td></tr>\n")
	}
	w.Print("</tbody></table>\n")
}
