package genconf

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Trial is how a line did: Why is what is wrong with it, "" if it has passed.
type Trial struct {
	Why   string
	Worst checks.Severity
	Early bool // there was nothing to judge yet
}

// try reads the sheet back as the file that it will be, and runs it. A line
// that does not pass here and now becomes a comment with the reason.
func (g *generator) try() {
	var which []int // the sheet's line behind each line of the file
	for i, l := range g.sheet.lines {
		if l.check != "" && l.why == "" {
			which = append(which, i)
		}
	}
	lines, doubts, err := conf.Parse("generated", []byte(g.sheet.render(g.mask)))
	if err != nil || len(lines) != len(which) || len(doubts) > 0 {
		for _, i := range which {
			g.sheet.lines[i].why = "could not be read back"
		}
		g.sheet.warnings = append(g.sheet.warnings, "internal error: the lines cannot be read back, all are comments")
		return
	}
	trials := g.Try(lines)
	for step, i := range which {
		t, done := trials[step]
		why := t.Why
		if !done {
			why = "not tried: out of time"
		}
		if why == "" {
			continue
		}
		l := &g.sheet.lines[i]
		switch {
		case l.stays != 0 && (t.Worst >= l.stays && t.Worst != checks.Unknown || t.Early):
			l.found = visible(why)
			g.sheet.warnings = append(g.sheet.warnings, visible("a fault now, the line is written: "+lines[step].Check+" ("+why+")"))
			continue
		case l.stays != 0 && t.Worst == checks.Skip: // no such device here
			l.why = visible(why)
			continue
		}
		l.why = visible(why)
		g.sheet.warnings = append(g.sheet.warnings, visible("left out: "+lines[step].Check+" ("+why+")"))
	}
}
