package lbnl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// dmiText returns the output of dmidecode on a node with eight memory slots; the sixth is empty.
func dmiText() string {
	var b strings.Builder
	b.WriteString("# dmidecode 3.4\n\nHandle 0x0000, DMI type 0, 26 bytes\nBIOS Information\n\tVendor: Dell Inc.\n\tVersion: 2.10.2\n" +
		"\tCharacteristics:\n\t\tPCI is supported\n\nHandle 0x0100, DMI type 1, 27 bytes\nSystem Information\n\tSerial Number: ABC1234\n")
	for i := range 8 {
		size := "32 GB"
		if i == 5 {
			size = "No Module Installed"
		}
		fmt.Fprintf(&b, "\nHandle 0x110%d, DMI type 17, 84 bytes\nMemory Device\n\tSize: %s\n\tLocator: A%d\n", i, size, i)
	}
	return b.String() + "\nHandle 0x7F00, DMI type 127, 4 bytes\nEnd Of Table\n\n"
}

// onDMI returns a scenario of a node whose dmidecode prints dmiText and a warning.
func onDMI(name string, words []string, want ...checks.Finding) checktest.Scenario {
	s := onTool(name, "dmidecode", "echo warning >&2; cat {root}/dmi; exit 1", want...)
	s.Files["dmi"] = dmiText()
	s.Words = words
	return s
}

func noDMIMatch(check, expr, got string) checks.Finding {
	return checks.Finding{Code: "dmi.missing", Severity: checks.Fail, Want: "a line that matches " + expr, Got: got,
		Message: check + ":  No match found for " + expr}
}

func dmiMatchFound(check, expr, line string) checks.Finding {
	return checks.Finding{Code: "dmi.found", Severity: checks.Fail, Want: "no line that matches " + expr, Got: line,
		Message: check + ":  Match found for " + expr + ":  " + line}
}

// The reasons why a node has no DMI tables.
const (
	noDMIDecode = "run dmidecode: file does not exist"
	silentDMI   = "dmidecode printed nothing, exit status 1"
)

func TestDMIDataMatch(t *testing.T) { checktest.Run(t, "check_dmi_data_match") }

var _ = checktest.Table("check_dmi_data_match", func(name string) (list []checktest.Scenario) {
	noMatch := func(expr string) checks.Finding { return noDMIMatch(name, expr, "") }
	noHandles := func(want, got string) checks.Finding {
		return checks.Finding{Code: "dmi.handles", Severity: checks.Fail, Message: name + ":  No valid DMI handles found", Want: want, Got: got}
	}
	absent := checks.Finding{Code: "dmi.absent", Severity: checks.Skip, Message: name + ":  " + noDMIDecode}
	list = append(list,
		onDMI("a line", checktest.Of("BIOS Information: Version: 2.10.2")).OrTable(map[string]any{"match": "BIOS Information: Version: 2.10.2"}),
		onDMI("several arguments", checktest.Of("BIOS", "Information:", "Version:", "2.10.2")),
		onDMI("glob", checktest.Of("*Version: 2*")),
		onDMI("regular expression", checktest.Of("/Characteristics: PCI is/")),
		onDMI("type by number", checktest.Of("-t", "17", "*Size: 32 GB")).OrTable(map[string]any{"type": int64(17), "match": "*Size: 32 GB"}),
		onDMI("type by name", checktest.Of("-t", "Memory Device", "*Size: 32 GB")),
		onDMI("one table", checktest.Of("-h", "0x1100", "*Size: 32 GB")).OrTable(map[string]any{"handles": "0x1100", "match": "*Size: 32 GB"}),
		onDMI("one of two tables", checktest.Of("-h", "0x1105  4352", "*Size: 32 GB")),
		onDMI("no such line, -!", checktest.Of("-!", "*Version: 9*")).OrTable(map[string]any{"absent": true, "match": "*Version: 9*"}),
		onDMI("no such line, -n", checktest.Of("-n", "-h", "0x1100", "-t", "17", "*No Module*")).
			OrTable(map[string]any{"absent": true, "handles": "0x1100", "type": "17", "match": "*No Module*"}),
		onDMI("no such line, !", checktest.Of("!", "*Version: 9*")),
		onDMI("negated match string", checktest.Of("!*Version: 2*")),
		checktest.Scenario{Name: "no dmidecode, nothing there", Words: checktest.Of("-n", "-h", "0", "x"), Want: []checks.Finding{absent}},
	)
	list = append(list,
		onDMI("not the whole line", checktest.Of("Version: 2.10.2"), noMatch("Version: 2.10.2")),
		onDMI("other type", checktest.Of("-t", "0", "*Size: 32 GB"), noMatch("*Size: 32 GB")),
		onDMI("other table", checktest.Of("-h", "0x1105", "*Size: 32 GB"), noMatch("*Size: 32 GB")),
		onDMI("table of another type", checktest.Of("-h", "0x1100", "-t", "0", "*Size*"), noMatch("*Size*")),
		onDMI("no such table", checktest.Of("-h", "0x9999", "*"), noMatch("*")),
		onDMI("the last table has no lines", checktest.Of("-t", "127", "*"), noMatch("*")),
		onDMI("no such type", checktest.Of("-t", "99", "*"), noHandles("a table of type 99", "11 tables of other types")),
		onDMI("part of a name", checktest.Of("-t", "Memory", "*"), noHandles("a table of type Memory", "11 tables of other types")),
		onDMI("no match string", nil, noMatch("")),
		onDMI("one of eight is missing", checktest.Of("-!", "-t", "17", "*No Module*"),
			dmiMatchFound(name, "*No Module*", "Memory Device: Size: No Module Installed")),
		onDMI("found, -n", checktest.Of("-n", "*Version: 2*"), dmiMatchFound(name, "*Version: 2*", "BIOS Information: Version: 2.10.2")),
		onDMI("found, !", checktest.Of("!", "*A7"), dmiMatchFound(name, "*A7", "Memory Device: Locator: A7")),

		onDMI("option that does not exist", checktest.Of("-z", "x"), checktest.UsageFinding(name+":  Invalid option:  -z", "one of -t -h -! -n")),
		onDMI("option without its argument", checktest.Of("-t"), checktest.UsageFinding(name+":  Option -t requires an argument.", "")),
		onDMI("handle is no number", checktest.Of("-h", "first", "x"), cmdValue(name, "handle", "first", "a number such as 0x1100")),
		onDMI("negative handle", checktest.Of("-h", "-1", "*"), noMatch("*")),
		onDMI("match string that cannot be judged", checktest.Of(`/(a)\1/`),
			checks.Finding{Code: "config.match", Severity: checks.Unknown, Remedy: checks.FixConfig, Message: `match expression "/(a)\\1/": back-references are not supported`},
			noMatch(`/(a)\1/`)),

		checktest.Scenario{Name: "no dmidecode", Words: checktest.Of("*"), Want: []checks.Finding{noHandles("a table", noDMIDecode)}},
		checktest.Scenario{Name: "no dmidecode, a table", Words: checktest.Of("-h", "0", "*"), Want: []checks.Finding{noDMIMatch(name, "*", noDMIDecode)}},
		onTool("dmidecode is silent", "dmidecode", "exit 1", noHandles("a table", silentDMI)).OnBroken(),
		onTool("garbage", "dmidecode", `printf 'Handle \0\n\nHandle 0x1, DMI type 9999999999999999999999, \n\t\t\377'`, noMatch("")).OnBroken(),
		onTool("without an end", "dmidecode", "head -c 2000000 /dev/zero", checks.Unreadable(fmt.Errorf("output of dmidecode is longer than 1048576 bytes"))...).OnBroken(),
	)
	return list
})

func TestDMIRawDataMatch(t *testing.T) { checktest.Run(t, "check_dmi_raw_data_match") }

var _ = checktest.Table("check_dmi_raw_data_match", func(name string) []checktest.Scenario {
	return []checktest.Scenario{
		onDMI("part of a line", checktest.Of("/Version: 2/")).OrTable(map[string]any{"match": "/Version: 2/"}),
		onDMI("name of a table", checktest.Of("Memory", "Device")),
		onDMI("glob", checktest.Of("*Version: 2.10.2")),
		onDMI("blanks at the beginning", checktest.Of("/^[[:space:]]Vendor/")),
		onDMI("heading", checktest.Of("# dmidecode *")),
		onDMI("no such line", checktest.Of("!", "/Version: 9/")).OrTable(map[string]any{"absent": true, "match": "/Version: 9/"}),
		{Name: "no dmidecode, nothing there", Words: checktest.Of("!", "/x/"), Want: []checks.Finding{
			{Code: "dmi.absent", Severity: checks.Skip, Message: name + ":  " + noDMIDecode}}},

		{Name: "no dmidecode is one empty line", Words: checktest.Of("!/x/")},

		onDMI("not the whole line", checktest.Of("Version: 2.10.2"), noDMIMatch(name, "Version: 2.10.2", "")),
		onDMI("no match string", nil, noDMIMatch(name, "", "")),
		onDMI("no options", checktest.Of("-n", "x"), noDMIMatch(name, "-n x", "")),
		onDMI("found", checktest.Of("!", "/Serial/"), dmiMatchFound(name, "/Serial/", "\tSerial Number: ABC1234")),
		onDMI("one of eight is missing", checktest.Of("!", "*No Module*"), dmiMatchFound(name, "*No Module*", "\tSize: No Module Installed")),
		{Name: "no dmidecode, anything found", Words: checktest.Of("!", "*"), Want: []checks.Finding{dmiMatchFound(name, "*", "")}},
		{Name: "no dmidecode", Words: checktest.Of("/x/"), Want: []checks.Finding{noDMIMatch(name, "/x/", noDMIDecode)}},
		onTool("dmidecode is silent", "dmidecode", "exit 1", noDMIMatch(name, "", silentDMI)).OnBroken(),
		onTool("without an end", "dmidecode", "head -c 2000000 /dev/zero", checks.Unreadable(fmt.Errorf("output of dmidecode is longer than 1048576 bytes"))...).OnBroken(),
	}
})
