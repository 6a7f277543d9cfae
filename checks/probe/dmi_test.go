package probe

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

const dmiText = `# dmidecode 3.4
Getting SMBIOS data from sysfs.
SMBIOS 3.2.0 present.

Handle 0x0000, DMI type 0, 26 bytes
BIOS Information
	Vendor: Dell Inc.
	Characteristics:
		PCI is supported
		BIOS is upgradeable
	Version: 2.10.2

Handle 0x1100, DMI type 17, 84 bytes
Memory Device
	Size: 32 GB

Handle 0x7F00, DMI type 127, 4 bytes
End Of Table
	Lost: yes
`

func TestParseDMI(t *testing.T) {
	t.Parallel()
	want := DMI{
		Lines: strings.Split(strings.TrimSpace(strings.ReplaceAll(dmiText, "\n\n", "\n")), "\n"),
		Records: []DMIRecord{
			{Handle: 0, Type: "0", Name: "BIOS Information", Data: []string{
				"BIOS Information: Vendor: Dell Inc.",
				"BIOS Information: Characteristics:",
				"BIOS Information: Characteristics: PCI is supported",
				"BIOS Information: Characteristics: BIOS is upgradeable",
				"BIOS Information: Version: 2.10.2",
			}},
			{Handle: 0x1100, Type: "17", Name: "Memory Device", Data: []string{"Memory Device: Size: 32 GB"}},
			{Handle: 0x7f00, Type: "127", Name: "End Of Table"},
		},
	}
	if diff := cmp.Diff(want, parseDMI(dmiText)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseOddDMI(t *testing.T) {
	t.Parallel()
	const end = "\nHandle 0xFF, DMI type 127, 4 bytes\n"
	for text, want := range map[string][]DMIRecord{
		"":                             nil,
		"\n\n":                         nil,
		"no handle\n\tx":               nil,
		"Handle 0x1, DMI type 17":      nil, // no size
		"Handle 0x1, DMI type x, 4":    nil,
		"Handle 0xQ, DMI type 1, 4":    nil,
		"Handle x, DMI type 1, 4":      nil,
		"Handle 0x1, DMI type 1, 4":    {{Handle: 1, Type: "1"}},
		"handle 0x1, DMI type 1, 4\nA": nil,
		// Unindented lines precede their data, and the last one is the name.
		"Handle 0x2, DMI type 3, 4\nA\nB\n\tC" + end: {
			{Handle: 2, Type: "3", Name: "B", Data: []string{"A: C"}}, {Handle: 255, Type: "127"}},
		// A line with only white space is not data.
		"Handle 0x2, DMI type 3, 4\n\t\n\tC" + end: {
			{Handle: 2, Type: "3", Name: "\t", Data: []string{"\t: C"}}, {Handle: 255, Type: "127"}},
		// The indentation is deeper than the sections.
		"Handle 0x2, DMI type 3, 4\n   a\n   b:\n c" + end: {
			{Handle: 2, Type: "3", Data: []string{"a", "a: b:", "a: c"}}, {Handle: 255, Type: "127"}},
	} {
		if diff := cmp.Diff(want, parseDMI(text).Records); diff != "" {
			t.Errorf("of %q (-want +got):\n%s", text, diff)
		}
	}
}

func TestDMI(t *testing.T) {
	t.Parallel()
	node := func(script string) *Host {
		h := NewHost(probetest.Tree(t, map[string]string{"bin/dmidecode": script}))
		for _, tool := range []string{"sh", "head"} {
			if err := os.Symlink("/bin/"+tool, h.Path("/bin/"+tool)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(h.Path("/bin/dmidecode"), 0o755); err != nil {
			t.Fatal(err)
		}
		return h
	}
	for script, want := range map[string]string{
		"#!/bin/sh\necho line":                      "",
		"#!/bin/sh\nexit 1":                         "dmidecode printed nothing, exit status 1",
		"\x7fELF\x00":                               "run /bin/dmidecode: exec format error",
		"#!/bin/sh\nexec head -c 2000000 /dev/zero": "output of dmidecode is longer than 1048576 bytes",
	} {
		h := node(script)
		d, err := ReadDMI(t.Context(), h)
		if err == nil {
			err = d.Missing
		}
		if got := strings.ReplaceAll(probetest.Message(err), h.Path("/bin"), "/bin"); got != want {
			t.Errorf("of %q: %s, want %s", script, got, want)
		}
	}
	if d, err := ReadDMI(t.Context(), NewHost(probetest.Tree(t, nil))); err != nil || probetest.Message(d.Missing) != "run dmidecode: file does not exist" {
		t.Errorf("without dmidecode: %+v, %v", d, err)
	}
}

// Every table has a heading line, every data line ends with a line of the text, and its prefix
// stays bounded.
func FuzzParseDMI(f *testing.F) {
	f.Add(dmiText)
	f.Add("Handle 0x1, DMI type 1, 1\n\t\t\ta\n\t\t\tb\n c\n" + strings.Repeat(" ", 20) + "d\nHandle 0x2, DMI type 2, 2\n\xff")
	f.Fuzz(func(t *testing.T, text string) {
		d := parseDMI(text)
		if want := strings.Count("\n"+text, "\nHandle "); len(d.Records) > want {
			t.Errorf("%d tables of at most %d", len(d.Records), want)
		}
		rest := d.Lines
		for i, r := range d.Records {
			if i == len(d.Records)-1 && r.Data != nil {
				t.Errorf("the last table has data: %q", r.Data)
			}
			for _, data := range r.Data {
				for len(rest) > 0 && (strings.TrimLeft(rest[0], space) == "" || !strings.HasSuffix(data, strings.TrimLeft(rest[0], space))) {
					rest = rest[1:]
				}
				if len(rest) == 0 {
					t.Fatalf("%q is of no line", data)
				}
				if most := len(rest[0]) + maxSections*(maxSection+2); len(data) > most {
					t.Errorf("%d bytes, want at most %d", len(data), most)
				}
				rest = rest[1:]
			}
		}
	})
}
