package topology

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// azureTopology is part of a virtual machine's file in Azure's form: bridges are
// invented, and show which devices are near to each other.
const azureTopology = `<system version="1">
  <cpu numaid="1" affinity="00000000,0000ffff,ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="ffff:ff:05.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16" vendor="0x0000" device="0x0000">
      <pci busid="0009:00:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="0105:00:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16"/>
    </pci>
    <nic><net name="eth0" dev="0"/></nic>
  </cpu>
</system>
`

// hwlocTopology is a file of lstopo of a node with one GPU, one adapter and one disk,
// and other objects.
const hwlocTopology = `<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0xff" nodeset="0x00000003" gp_index="1">
    <info name="Backend" value="Linux"/>
    <object type="Package" os_index="0" nodeset="0x00000001">
      <object type="NUMANode" os_index="0" nodeset="0x00000001"/>
      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[33-63]">
        <object type="Bridge" bridge_type="1-1" bridge_pci="0000:[53-63]" pci_busid="0000:33:01.0" pci_type="0604 [1000:c030] [1000:a064] b0" pci_link_speed="63.015385">
          <object type="PCIDev" name="H100" pci_busid="0000:13:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="63.015385"/>
          <object type="PCIDev" pci_busid="0000:23:00.0" pci_type="0207 [15b3:1021] [15b3:0041] 00" pci_link_speed="63.015385">
            <object type="OSDev" name="mlx5_3" osdev_type="3"/>
          </object>
        </object>
        <object type="PCIDev" pci_busid="0000:43:00.0" pci_type="0108 [144d:a80a] [144d:aa8b] 00"/>
        <object type="PCIDev" pci_busid="0000:99:00.0" pci_type="0300 [1a03:2000] [1a03:2000] 41"/>
      </object>
    </object>
  </object>
</topology>
`

func TestParseTopology(t *testing.T) {
	t.Parallel()
	made := []string{"ffff:ff:05.0"}
	for name, c := range map[string]struct {
		text string
		want []filedDevice
		err  string
	}{
		"Azure": {azureTopology, []filedDevice{{"0009:00:00.0", "gpu", 1, made, 16, 4}, {"0105:00:00.0", "hca", 1, made, 16, 5}}, ""},
		"lstopo": {hwlocTopology, []filedDevice{
			{"0000:13:00.0", "gpu", 0, []string{"0000:33:01.0"}, 0, 10}, {"0000:23:00.0", "hca", 0, []string{"0000:33:01.0"}, 0, 11},
			{"0000:43:00.0", "nvme", 0, nil, 0, 15},
		}, ""},
		"without classes": {`<system><cpu><pci busid="00000000:C1:00.0"><gpu/></pci><pci busid="0000:c2:00.0" link_width=""><nic/></pci><pci busid="0000:c3:00.0"/></cpu></system>`,
			[]filedDevice{{"0000:c1:00.0", "gpu", -1, nil, 0, 1}, {"0000:c2:00.0", "hca", -1, nil, 0, 1}}, ""},
		"of hwloc 1": {`<topology><object type="Machine" nodeset="0x3"><object type="NUMANode" nodeset="0x2"><object type="PCIDev" pci_busid="0000:c1:00.0" pci_type="0302 [10de:1db6] [10de:1234] a1"/></object></object></topology>`,
			[]filedDevice{{"0000:c1:00.0", "gpu", 1, nil, 0, 1}}, ""},
		"of several nodes":  {`<system><cpu host_hash="0x1"><pci busid="0000:c1:00.0"><gpu/></pci></cpu><cpu host_hash="0x2"/></system>`, nil, "t.xml: describes 2 hosts (host_hash), want one"},
		"empty":             {"", nil, "t.xml: names no GPU and no adapter"},
		"no device":         {"<system>\n<cpu numaid=\"0\"/></system>", nil, "t.xml: names no GPU and no adapter"},
		"another language":  {"<html>\n</html>", nil, "t.xml:1: begins with <html>, want NCCL's <system> or lstopo's <topology>"},
		"two documents":     {"<system/>\n<system/>", nil, "t.xml:2: a second document begins with <system>"},
		"not XML":           {"gpu0 0000:c1:00.0\n", nil, "t.xml: names no GPU and no adapter"},
		"cut off":           {"<system>\n<cpu", nil, "t.xml:2: unexpected EOF"},
		"a wrong end":       {"<system>\n<cpu></system>", nil, "t.xml:2: element <cpu> closed by </system>"},
		"an entity":         {"<!DOCTYPE x [<!ENTITY e SYSTEM \"file:///etc/shadow\">]>\n<system>&e;</system>", nil, "t.xml:2: invalid character entity &e;"},
		"another encoding":  {`<?xml version="1.0" encoding="UTF-16"?><system/>`, nil, `t.xml:1: xml: encoding "UTF-16" declared but Decoder.CharsetReader is nil`},
		"a bad address":     {`<system><pci busid="c1" class="0x030200"/></system>`, nil, `t.xml:1: bus id "c1": want the form 0000:c1:00.0`},
		"a device twice":    {"<system><pci busid=\"0000:c1:00.0\" class=\"0x030200\"/>\n<pci busid=\"0000:C1:00.0\" class=\"0x030200\"/></system>", nil, "t.xml:2: 0000:c1:00.0 is already on line 1"},
		"a bad set":         {`<topology><object type="Machine" nodeset="many"/></topology>`, nil, `t.xml:1: nodeset "many": want a set of bits`},
		"too deep":          {strings.Repeat("<system>", 101), nil, "t.xml:1: more than 100 nested elements"},
		"too many devices":  {manyDevices(), nil, "t.xml:1: more than 4096 devices"},
		"characters of old": {"<system>\n<cpu numaid=\"\xff\"/></system>", nil, "t.xml:2: invalid UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseTopology("t.xml", []byte(c.text))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if text := fmt.Sprint(err); text != c.err && (err != nil || c.err != "") {
				t.Errorf("%s, want %s", text, c.err)
			}
		})
	}
}

func manyDevices() string {
	var b strings.Builder
	b.WriteString("<system>")
	for i := range 4097 {
		fmt.Fprintf(&b, `<pci busid="%04x:00:00.0" class="0x030200"/>`, i)
	}
	return b.String()
}

func TestOneOfSet(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"0x00000001": 0, "0x00000002": 1, "0x00000001,0x0": 32, "0x00000001,,0x0": 64, "0x3": -1, "0x0": -1, "0xf...f": -1, "0xf...f,0x1": -1, "0x1,0x1": -1} {
		if got, ok := parseNodeset(text); got != want || !ok {
			t.Errorf("%s: %d, %v; want %d", text, got, ok, want)
		}
	}
	if _, ok := parseNodeset("0x100000000"); ok {
		t.Error("a word of 33 bits")
	}
}

func FuzzParseTopology(f *testing.F) {
	for _, text := range []string{azureTopology, hwlocTopology, ncclTopology(), lstopoTopology(), "<system>&e;</system>", "<topology><object type=\"Bridge\"/></topology>"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		list, err := parseTopology("t.xml", data)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("an error with several lines: %q", err)
			}
			return
		}
		seen := map[string]bool{}
		for _, d := range list {
			address, ok := checks.PCIAddress(d.PCI)
			if !ok || address != d.PCI || seen[d.PCI] || d.NUMA < -1 || d.Width < 0 || d.Width > 32 || kindWords[d.Kind] == "" || d.Line < 1 {
				t.Errorf("%+v", d)
			}
			seen[d.PCI] = true
		}
	})
}
