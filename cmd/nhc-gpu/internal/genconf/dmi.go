package genconf

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// maxDMILines is how many lines of DMI data a person may want to choose from;
// a server with many memory modules has some hundred speeds.
const maxDMILines = 500

// dmiSection offers lines of the DMI data, as comments: another firmware writes
// other texts, so that a site has to say which of them matter.
func (g *generator) dmiSection(a answers) {
	if _, ok := checks.Lookup("check_dmi_data_match"); !ok {
		return
	}
	s := &g.sheet
	s.heading("DMI checks")
	inv := a.have[string(inventory.PartDMI)]
	if inv == nil {
		if err := a.err[string(inventory.PartDMI)]; err != nil {
			s.comment("no line: %v", err)
		}
		return
	}
	m := match.Matcher{Warn: func(text string) { s.warn("-b %s: %s", g.dmi, text) }}
	n := 0
	for _, l := range inv.DMI {
		ok, err := m.Match(l.Text, g.dmi)
		if err != nil {
			s.warn("-b %s: %v", g.dmi, err)
			return
		}
		if !ok {
			continue
		}
		if n++; n <= maxDMILines {
			s.suggest("check_dmi_data_match", "-h", l.Handle, "-t", l.Type, literalMatch(l.Text))
		}
	}
	if n > maxDMILines {
		s.comment("and %d more: choose with -b", n-maxDMILines)
	}
	g.dbg("%d of %d lines of DMI data match %s", n, len(inv.DMI), g.dmi)
}
