package checks

import (
	"fmt"
	"strings"
	"testing"
)

// dmiText is a node with eight memory modules, of which the sixth is missing.
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

// onDMI is a node whose dmidecode prints dmiText, and a warning.
func onDMI(name string, words []string, want ...Finding) scenario {
	s := onTool(name, "dmidecode", "echo warning >&2; cat {root}/dmi; exit 1", want...)
	s.files["dmi"] = dmiText()
	s.words = words
	return s
}

func noDMIMatch(check, expr, got string) Finding {
	return Finding{Code: "dmi.missing", Severity: Fail, Want: "a line that matches " + expr, Got: got,
		Message: check + ":  No match found for " + expr}
}

func dmiMatchFound(check, expr, line string) Finding {
	return Finding{Code: "dmi.found", Severity: Fail, Want: "no line that matches " + expr, Got: line,
		Message: check + ":  Match found for " + expr + ":  " + line}
}

// Why a node may have no DMI.
const (
	noDMIDecode = "run dmidecode: file does not exist"
	silentDMI   = "dmidecode printed nothing, exit status 1"
)

func TestDMIDataMatch(t *testing.T) { testCheck(t, "check_dmi_data_match") }

var _ = table("check_dmi_data_match", func(name string) (list []scenario) {
	noMatch := func(expr string) Finding { return noDMIMatch(name, expr, "") }
	noHandles := func(want, got string) Finding {
		return Finding{Code: "dmi.handles", Severity: Fail, Message: name + ":  No valid DMI handles found", Want: want, Got: got}
	}
	absent := Finding{Code: "dmi.absent", Severity: Skip, Message: name + ":  " + noDMIDecode}
	list = append(list,
		onDMI("a line", of("BIOS Information: Version: 2.10.2")).orTable(map[string]any{"match": "BIOS Information: Version: 2.10.2"}),
		onDMI("several words", of("BIOS", "Information:", "Version:", "2.10.2")),
		onDMI("glob", of("*Version: 2*")),
		onDMI("regular expression", of("/Characteristics: PCI is/")),
		onDMI("type by number", of("-t", "17", "*Size: 32 GB")).orTable(map[string]any{"type": int64(17), "match": "*Size: 32 GB"}),
		onDMI("type by name", of("-t", "Memory Device", "*Size: 32 GB")),
		onDMI("one table", of("-h", "0x1100", "*Size: 32 GB")).orTable(map[string]any{"handles": "0x1100", "match": "*Size: 32 GB"}),
		onDMI("one of two tables", of("-h", "0x1105  4352", "*Size: 32 GB")),
		onDMI("no such line, -!", of("-!", "*Version: 9*")).orTable(map[string]any{"absent": true, "match": "*Version: 9*"}),
		onDMI("no such line, -n", of("-n", "-h", "0x1100", "-t", "17", "*No Module*")).
			orTable(map[string]any{"absent": true, "handles": "0x1100", "type": "17", "match": "*No Module*"}),
		onDMI("no such line, !", of("!", "*Version: 9*")),
		onDMI("negated match string", of("!*Version: 2*")),
		scenario{name: "no dmidecode, nothing there", words: of("-n", "-h", "0", "x"), want: []Finding{absent}},
	)
	list = append(list,
		onDMI("not the whole line", of("Version: 2.10.2"), noMatch("Version: 2.10.2")),
		onDMI("other type", of("-t", "0", "*Size: 32 GB"), noMatch("*Size: 32 GB")),
		onDMI("other table", of("-h", "0x1105", "*Size: 32 GB"), noMatch("*Size: 32 GB")),
		onDMI("table of another type", of("-h", "0x1100", "-t", "0", "*Size*"), noMatch("*Size*")),
		onDMI("no such table", of("-h", "0x9999", "*"), noMatch("*")),
		onDMI("the last table has no lines", of("-t", "127", "*"), noMatch("*")),
		onDMI("no such type", of("-t", "99", "*"), noHandles("a table of type 99", "11 tables of other types")),
		onDMI("part of a name", of("-t", "Memory", "*"), noHandles("a table of type Memory", "11 tables of other types")),
		onDMI("no match string", nil, noMatch("")),
		onDMI("one of eight is missing", of("-!", "-t", "17", "*No Module*"),
			dmiMatchFound(name, "*No Module*", "Memory Device: Size: No Module Installed")),
		onDMI("found, -n", of("-n", "*Version: 2*"), dmiMatchFound(name, "*Version: 2*", "BIOS Information: Version: 2.10.2")),
		onDMI("found, !", of("!", "*A7"), dmiMatchFound(name, "*A7", "Memory Device: Locator: A7")),

		onDMI("option that does not exist", of("-z", "x"), usageFinding(name+":  Invalid option:  -z", "one of -t -h -! -n")),
		onDMI("option without its argument", of("-t"), usageFinding(name+":  Option -t requires an argument.", "")),
		onDMI("handle is no number", of("-h", "first", "x"), cmdValue(name, "handle", "first", "a number such as 0x1100")),
		onDMI("negative handle", of("-h", "-1", "*"), noMatch("*")),
		onDMI("match string that cannot be judged", of(`/(a)\1/`),
			Finding{Code: "config.match", Severity: Unknown, Remedy: FixConfig, Message: `match expression "/(a)\\1/": back-references are not supported`},
			noMatch(`/(a)\1/`)),

		scenario{name: "no dmidecode", words: of("*"), want: []Finding{noHandles("a table", noDMIDecode)}},
		scenario{name: "no dmidecode, a table", words: of("-h", "0", "*"), want: []Finding{noDMIMatch(name, "*", noDMIDecode)}},
		onTool("dmidecode is silent", "dmidecode", "exit 1", noHandles("a table", silentDMI)).onBroken(),
		onTool("garbage", "dmidecode", `printf 'Handle \0\n\nHandle 0x1, DMI type 9999999999999999999999, \n\t\t\377'`, noMatch("")).onBroken(),
		onTool("without an end", "dmidecode", "head -c 2000000 /dev/zero", unreadable(fmt.Errorf("output of dmidecode is longer than 1048576 bytes"))...).onBroken(),
	)
	return list
})

func TestDMIRawDataMatch(t *testing.T) { testCheck(t, "check_dmi_raw_data_match") }

var _ = table("check_dmi_raw_data_match", func(name string) []scenario {
	return []scenario{
		onDMI("part of a line", of("/Version: 2/")).orTable(map[string]any{"match": "/Version: 2/"}),
		onDMI("name of a table", of("Memory", "Device")),
		onDMI("glob", of("*Version: 2.10.2")),
		onDMI("blanks at the beginning", of("/^[[:space:]]Vendor/")),
		onDMI("heading", of("# dmidecode *")),
		onDMI("no such line", of("!", "/Version: 9/")).orTable(map[string]any{"absent": true, "match": "/Version: 9/"}),
		{name: "no dmidecode, nothing there", words: of("!", "/x/"), want: []Finding{
			{Code: "dmi.absent", Severity: Skip, Message: name + ":  " + noDMIDecode}}},

		{name: "no dmidecode is one empty line", words: of("!/x/")},

		onDMI("not the whole line", of("Version: 2.10.2"), noDMIMatch(name, "Version: 2.10.2", "")),
		onDMI("no match string", nil, noDMIMatch(name, "", "")),
		onDMI("no options", of("-n", "x"), noDMIMatch(name, "-n x", "")),
		onDMI("found", of("!", "/Serial/"), dmiMatchFound(name, "/Serial/", "\tSerial Number: ABC1234")),
		onDMI("one of eight is missing", of("!", "*No Module*"), dmiMatchFound(name, "*No Module*", "\tSize: No Module Installed")),
		{name: "no dmidecode, anything found", words: of("!", "*"), want: []Finding{dmiMatchFound(name, "*", "")}},
		{name: "no dmidecode", words: of("/x/"), want: []Finding{noDMIMatch(name, "/x/", noDMIDecode)}},
		onTool("dmidecode is silent", "dmidecode", "exit 1", noDMIMatch(name, "", silentDMI)).onBroken(),
		onTool("without an end", "dmidecode", "head -c 2000000 /dev/zero", unreadable(fmt.Errorf("output of dmidecode is longer than 1048576 bytes"))...).onBroken(),
	}
})
