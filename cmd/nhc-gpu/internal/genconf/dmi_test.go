package genconf

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
)

func TestDMISection(t *testing.T) {
	t.Parallel()
	inv := &inventory.Inventory{DMI: []inventory.DMILine{
		{Handle: "0x0000", Type: "0", Text: "BIOS Information: Version: 3.2a (x*)"},
		{Handle: "0x0011", Type: "17", Text: "Memory Device: Size: 64 GB"},
		{Handle: "0x0011", Type: "17", Text: "Memory Device: Speed: 4800 MT/s"},
	}}
	found := answers{have: map[string]*inventory.Inventory{"dmi": inv}}
	for expr, want := range map[string][]string{
		dmiDefault: {
			`#check_dmi_data_match -h 0x0000 -t 0 'BIOS Information: Version: 3.2a \(x\*\)'`,
			`#check_dmi_data_match -h 0x0011 -t 17 'Memory Device: Speed: 4800 MT/s'`,
		},
		"*Size*": {`#check_dmi_data_match -h 0x0011 -t 17 'Memory Device: Size: 64 GB'`},
		"/":      nil, // no match string at all
	} {
		g := generator{dmi: expr, Node: Node{Get: func(string) string { return "" }}}
		g.dmiSection(found)
		if diff := cmp.Diff(want, lines(&g.sheet)); diff != "" {
			t.Errorf("-b %s (-want +got):\n%s", expr, diff)
		}
	}
	g := generator{dmi: dmiDefault}
	g.dmiSection(answers{err: map[string]error{"dmi": errors.New("run dmidecode: permission denied")}})
	if len(lines(&g.sheet)) > 0 || len(g.sheet.warnings) > 0 {
		t.Errorf("without DMI data: %+v", g.sheet)
	}
}
