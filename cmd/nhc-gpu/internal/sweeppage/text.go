package sweeppage

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// Limits of what a terminal shows. The JSON report has all.
const (
	mostSuspects = 20
	mostGroups   = 15  // of nodes that were not tested
	mostNames    = 400 // characters of a hostlist
	leastWidth   = 40
	usualWidth   = 80
)

// screen collects lines of at most width characters; a word that is longer stays whole.
type screen struct {
	strings.Builder
	width int
}

// line adds a line without blanks at its end.
func (s *screen) line(format string, args ...any) {
	s.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " ") + "\n")
}

// fold adds a text behind its head. The lines after the first are indented as wide as the head. Lines
// break at blanks, and hostlists at their commas.
func (s *screen) fold(head, text string) {
	indent := strings.Repeat(" ", utf8.RuneCountInString(head))
	room, line, n := s.width-len(indent), "", 0
	for word := range strings.FieldsSeq(text) {
		for i, part := range strings.SplitAfter(word, ",") {
			length := utf8.RuneCountInString(part)
			glue := ""
			if i == 0 && n > 0 {
				glue = " "
			}
			if n > 0 && n+len(glue)+length > room {
				s.line("%s%s", head, line)
				head, line, n, glue = indent, "", 0, ""
			}
			line += glue + part
			n += len(glue) + length
		}
	}
	s.line("%s%s", head, line)
}

// title begins a section.
func (s *screen) title(text string) { s.line("\n%s", text) }

// Print prints a report for a person, the suspects first. The width is that of the terminal in
// characters, 0 if it is unknown.
func Print(w io.Writer, r *sweep.Report, width int) error {
	if width <= 0 {
		width = usualWidth
	}
	s := &screen{width: max(width, leastWidth)}
	s.fold("", "Sweep "+r.ID+": "+verdict(r))
	s.fold("", span(r)+"; "+origin(r))
	if r.Interrupted != "" {
		s.fold("", "INTERRUPTED: "+r.Interrupted)
	}
	for _, why := range unproven(r) {
		s.fold("", "NO VERDICT by "+why)
	}
	s.suspects(r.Suspects)
	s.comparison(r.Comparison)
	s.eas(r.EAS)
	s.notTested(r)
	s.drained(r)
	s.stages(r)
	if list := notes(r); len(list) > 0 {
		s.title("NOTES")
		for _, note := range list {
			s.fold("  - ", note)
		}
	}
	if _, err := io.WriteString(w, s.String()); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	return nil
}

func (s *screen) suspects(list []sweep.Suspect) {
	if len(list) == 0 {
		return
	}
	s.title("SUSPECTS, the most certain first")
	advised := map[string]int{}
	for i := range min(len(list), mostSuspects) {
		s.suspect(i+1, &list[i], advised)
	}
	if len(list) <= mostSuspects {
		return
	}
	s.title(fmt.Sprintf("%s MORE SUSPECTS by code; --json has all", thousands(len(list)-mostSuspects)))
	s.byCode(list[mostSuspects:])
}

// suspect prints one suspect: what, how much, the code with the finding, what to do. advised has the
// number of the suspect that has the same advice.
func (s *screen) suspect(i int, x *sweep.Suspect, advised map[string]int) {
	const indent = "      "
	s.line("")
	s.fold(fmt.Sprintf("%4d  ", i), nameOf(x))
	if m := measured(x); m != "" {
		s.fold(indent, m)
	}
	s.fold(indent, evidence(x, s.width))
	s.fold(indent, x.Code+": "+x.Text)
	do := cmp.Or(x.Do, checks.WhatToDo(x.Code))
	switch same := advised[do]; {
	case do == "":
	case same > 0:
		s.line("%s-> as for %d", indent, same)
	default:
		advised[do] = i
		s.fold(indent+"-> ", do)
	}
}

// byCode prints suspects by their code, one hostlist each.
func (s *screen) byCode(list []sweep.Suspect) {
	var codes []string
	names, count := map[string][]string{}, map[string]int{}
	for i := range list {
		x := &list[i]
		if count[x.Code]++; count[x.Code] == 1 {
			codes = append(codes, x.Code)
		}
		for _, n := range []string{x.Node, x.Peer} {
			if n != "" {
				names[x.Code] = append(names[x.Code], n)
			}
		}
	}
	for _, code := range codes {
		s.fold(fmt.Sprintf("%6s  ", thousands(count[code])), code+"  "+few(names[code], mostNames))
	}
}

func (s *screen) comparison(c *sweep.Comparison) {
	if c == nil {
		return
	}
	s.title(fmt.Sprintf("CHANGES since sweep %s of %s UTC", c.With, moment(c.Began)))
	none := true
	for _, group := range []struct {
		what string
		list []sweep.Suspect
	}{{"new", c.New}, {"still there", c.Still}, {"cleared", c.Cleared}, {"not tested again", c.Untested}} {
		for i := range min(len(group.list), mostSuspects) {
			s.fold(fmt.Sprintf("  %-17s ", group.what), nameOf(&group.list[i])+": "+group.list[i].Code)
			none = false
		}
		if more := len(group.list) - mostSuspects; more > 0 {
			s.line("  %-17s and %s more", group.what, thousands(more))
		}
	}
	for i := range min(len(c.Moved), mostSuspects) {
		s.fold(fmt.Sprintf("  %-17s ", movedWord(&c.Moved[i])), movedText(&c.Moved[i]))
		none = false
	}
	if more := len(c.Moved) - mostSuspects; more > 0 {
		s.line("  %-17s of %s more", "median", counted(more, "distribution"))
	}
	for _, group := range []struct {
		what  string
		names []string
	}{{"nodes added", c.Added}, {"nodes missing", c.Missing}} {
		if len(group.names) > 0 {
			s.fold(fmt.Sprintf("  %-17s ", group.what), few(group.names, mostNames))
			none = false
		}
	}
	if none {
		s.line("  none; no median has moved by more than %d %%", sweep.MovedPercent)
	}
}

func movedWord(m *sweep.Moved) string {
	if m.Worse {
		return "median is worse"
	}
	return "median is better"
}

// movedText returns a median that has moved: "tcp stream eth0: 92.1 Gb/s, was 98.0 Gb/s (-6.0 %)".
func movedText(m *sweep.Moved) string {
	d := &sweep.Distribution{Plane: m.Plane, Model: m.Model, Far: m.Far}
	text := strings.TrimSpace(fmt.Sprintf("%s %s %s", m.Stage, kindWord(m.Kind, m.Op), place(d)))
	return fmt.Sprintf("%s: %s %s, was %s %s (%+.1f %%)", text, number(m.New), m.Unit, number(m.Old), m.Unit, m.Percent)
}

func (s *screen) eas(list []sweep.EASResult) {
	if len(list) == 0 {
		return
	}
	s.title("CHECK ITEMS of the EAS file")
	for _, e := range list {
		s.fold(fmt.Sprintf("  %-10s %-21s ", e.Result, e.Name), e.Text)
	}
}

func (s *screen) notTested(r *sweep.Report) {
	groups := groupNodes(r, isUntested)
	if len(groups) == 0 {
		return
	}
	s.title(fmt.Sprintf("NOT TESTED: %s", counted(len(nodesIn(r, untested...)), "node")))
	for i, g := range groups {
		if i == mostGroups {
			left := 0
			for _, more := range groups[mostGroups:] {
				left += len(more.names)
			}
			s.line("  and %s for %s; --json has all", counted(left, "node"), counted(len(groups)-mostGroups, "other reason"))
			break
		}
		s.fold(fmt.Sprintf("  %-8s %6s  ", g.state, thousands(len(g.names))), few(g.names, mostNames))
		if g.why != "" {
			s.fold(strings.Repeat(" ", 19), g.why)
		}
	}
}

// drained prints the nodes that were drained before the sweep, and what became of them.
func (s *screen) drained(r *sweep.Report) {
	groups := groupNodes(r, wasDrained)
	if len(groups) == 0 {
		return
	}
	s.title("NODES THAT WERE DRAINED, and their state now")
	for i, g := range groups {
		if i == mostGroups {
			s.line("  and %s; --json has all", counted(len(groups)-mostGroups, "other reason"))
			break
		}
		s.fold("  ", few(g.names, mostNames)+": "+g.state)
		if g.held != "" {
			s.fold("      before: ", g.held)
		}
		if g.after != "" {
			s.fold("      now:    ", g.after)
		}
	}
}

// stages prints one line for each stage, and below it one for each kind of test with the values of the
// planes.
func (s *screen) stages(r *sweep.Report) {
	if len(r.Stages) == 0 {
		return
	}
	s.title("STAGES, with the medians of healthy tests")
	for i := range r.Stages {
		g := &r.Stages[i]
		if g.Skipped != "" {
			s.fold(fmt.Sprintf("  %-7s skipped: ", g.Stage), g.Skipped)
			continue
		}
		text := fmt.Sprintf("%s, %s", counted(len(g.Results), "test"), counted(g.Rounds, "round"))
		if !g.Began.IsZero() && !g.Ended.IsZero() {
			text += ", " + checks.Lasted(g.Ended.Sub(g.Began))
		}
		if n := faults(g); n > 0 {
			text += fmt.Sprintf(", %s failed", thousands(n))
		}
		s.fold(fmt.Sprintf("  %-7s ", g.Stage), text)
		for _, line := range fleetLines(g.Fleet) {
			s.fold(fmt.Sprintf("    %-11s ", line[0]), line[1])
		}
	}
}

// faults counts the tests of a stage that have failed.
func faults(g *sweep.StageReport) (n int) {
	for i := range g.Results {
		if f := g.Results[i].Fault; f != sweep.FaultNone && f != sweep.FaultUnable {
			n++
		}
	}
	return n
}

// mostPlanes is the number of planes that a line of a stage lists one by one.
const mostPlanes = 4

// fleetLines returns a line for each kind of test: its name and its numbers. Many planes are summed up
// by the slowest and the fastest.
func fleetLines(fleet []sweep.Distribution) (lines [][2]string) {
	type key struct {
		kind           sweep.Kind
		op, model, far string
	}
	var order []key
	groups := map[key][]*sweep.Distribution{}
	for i := range fleet {
		d := &fleet[i]
		if d.Count == 0 { // a note alone
			continue
		}
		k := key{d.Kind, d.Op, d.Model, d.Far}
		if groups[k] == nil {
			order = append(order, k)
		}
		groups[k] = append(groups[k], d)
	}
	for _, k := range order {
		list := groups[k]
		name := kindWord(k.kind, k.op)
		if len(list) <= mostPlanes {
			for i, d := range list {
				text := fmt.Sprintf("%s %s, spread %s, floor %s %s, %s", number(d.Median), d.Unit, spread(d), number(d.Floor), d.Unit, counted(d.Count, "value"))
				if where := place(d); where != "" {
					text = where + ": " + text
				}
				if i > 0 {
					name = ""
				}
				lines = append(lines, [2]string{name, text})
			}
			continue
		}
		low, high, count := list[0], list[0], 0
		for _, d := range list {
			count += d.Count
			if d.Median < low.Median {
				low = d
			}
			if d.Median > high.Median {
				high = d
			}
		}
		text := fmt.Sprintf("%s: %s %s (%s) to %s %s (%s), %s", counted(len(list), planeWord(low.Stage)), number(low.Median), low.Unit, low.Plane, number(high.Median), high.Unit, high.Plane, counted(count, "value"))
		if where := place(&sweep.Distribution{Model: k.model, Far: k.far}); where != "" {
			text = where + ": " + text
		}
		lines = append(lines, [2]string{name, text})
	}
	return lines
}
