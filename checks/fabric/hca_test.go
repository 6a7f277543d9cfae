package fabric

import (
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"go/format"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
)

//go:embed hca.toml
var hcaTOML string

var writeHCAs = flag.Bool("hcas", false, "rewrite hca_rows.go")

// parseHCAs parses hca.toml, and rejects ambiguous rows.
func parseHCAs(text string) (*hcaFile, error) {
	var f hcaFile
	meta, err := toml.Decode(text, &f)
	if err != nil {
		return nil, err
	}
	if keys := meta.Undecoded(); len(keys) > 0 {
		return nil, fmt.Errorf("key %s: unknown", keys[0])
	}
	seen := map[string]bool{}
	once := func(what, id string) error {
		if id == "" || seen[what+id] {
			return fmt.Errorf("%s %q: want it once", what, id)
		}
		seen[what+id] = true
		return nil
	}
	cite := func(source *string) error {
		full, ok := f.Sources[*source]
		*source = full
		if !ok {
			return errors.New("a row without a source")
		}
		return nil
	}
	for i := range f.HCAs {
		m := &f.HCAs[i]
		err := errors.Join(once("hca", m.Name), cite(&m.Source))
		for _, id := range m.Devices {
			err = errors.Join(err, once("device", id))
		}
		if err != nil {
			return nil, err
		}
	}
	for i := range f.Boards {
		b := &f.Boards[i]
		err := cite(&b.Source)
		for _, id := range b.IDs {
			err = errors.Join(err, once("board", id))
		}
		if !seen["hca"+b.HCA] {
			err = errors.Join(err, fmt.Errorf("hca %q: unknown", b.HCA))
		}
		if err != nil {
			return nil, err
		}
	}
	return &f, nil
}

// hcaTable is the content of hca.toml.
func hcaTable(t *testing.T) *hcaFile {
	t.Helper()
	f, err := parseHCAs(hcaTOML)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestHCARows compares the rows in the program with the file that they are generated from.
func TestHCARows(t *testing.T) {
	t.Parallel()
	f := *hcaTable(t)
	f.Sources = nil
	text := strings.NewReplacer("[]fabric.", "\n[]", "{fabric.HCAModel", "{\n", "{fabric.hcaBoard", "{\n", ", fabric.HCAModel", ",\n", ", fabric.hcaBoard", ",\n", "fabric.", "").Replace(fmt.Sprintf("%#v", f))
	want, err := format.Source([]byte("// Code generated from hca.toml: go test ./checks/fabric -run HCARows -hcas. DO NOT EDIT.\n\npackage fabric\n\nvar hcaRows = " + text + "\n"))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	const path = "hca_rows.go"
	if *writeHCAs {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is not what hca.toml says; go test ./checks/fabric -run HCARows -hcas writes it (-want +got):\n%s", path, diff)
	}
}

func TestHCAModel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		vendor, device, board string
		want                  string // "" is unknown
		rate, gen             int
		onBoard               bool
	}{
		{"0x15b3", "0x1021", "MT_0000000838", "ConnectX-7", 400, 5, true},
		{"15b3", "1021", "MT_0000000844", "ConnectX-7", 200, 5, true},
		{"0x15B3\n", " 0x1021\n", "MT_0000000844\n", "ConnectX-7", 200, 5, true},
		{"15b3", "1021", "MT_0000000223", "ConnectX-7", 400, 5, false}, // a board of another device
		{"15b3", "1021", "", "ConnectX-7", 400, 5, false},
		{"15b3", "1021", "XX_1", "ConnectX-7", 400, 5, false},
		{"15b3", "101b", "LNV0000000019", "ConnectX-6", 200, 4, true},
		{"15b3", "1023", "", "ConnectX-8", 800, 6, false},
		{"15b3", "1023", "MT_0000001222", "ConnectX-8", 400, 6, true},
		{"15b3", "a2dc", "MT_0000000966", "BlueField-3", 100, 4, true},
		{"15b3", "101e", "", "ConnectX virtual function", 0, 0, false},
		{"1d0f", "efa1", "", "AWS EFA", 0, 0, false},
		{"14e4", "1760", "", "Broadcom BCM57608", 400, 0, false},
		{"8086", "159b", "", "Intel E810", 0, 0, false},
		{"15b3", "", "", "", 0, 0, false}, {"", "", "", "", 0, 0, false}, {"10de", "2330", "", "", 0, 0, false},
		{"15b3:1021", "", "", "", 0, 0, false}, {"0x0x15b3", "1021", "", "", 0, 0, false}, {"15b3", "\xff\x00", "\xff", "", 0, 0, false},
	} {
		m := ModelOf(c.vendor, c.device, c.board)
		if m == nil {
			if c.want != "" {
				t.Errorf("%q %q is unknown, want %s", c.vendor, c.device, c.want)
			}
			continue
		}
		if m.Name != c.want || m.Rate != c.rate || m.PCIeGen != c.gen || (m.Board != "") != c.onBoard {
			t.Errorf("%q %q %q: %+v, want %+v", c.vendor, c.device, c.board, *m, c)
		}
	}
	m := ModelOf("15b3", "1023", "")
	m.DataPorts[0], m.Rate = 1, 1 // of the caller
	if again := ModelOf("15b3", "1023", ""); again.DataPorts[0] != 3 || again.Rate != 800 {
		t.Errorf("changed for all: %+v", again)
	}
}

// A ConnectX-8 carries data on four of twelve ports, or on its one or two ports.
func TestCarries(t *testing.T) {
	t.Parallel()
	carry := func(device string, ports int) (list []int) {
		m := ModelOf("15b3", device, "")
		for port := 1; port <= ports; port++ {
			if m.Carries(port, ports) {
				list = append(list, port)
			}
		}
		return list
	}
	for _, c := range []struct {
		device string
		ports  int
		want   []int
	}{{"1023", 12, []int{3, 6, 9, 12}}, {"1023", 1, []int{1}}, {"1023", 2, []int{1, 2}}, {"1021", 2, []int{1, 2}}, {"1021", 0, nil}} {
		if diff := cmp.Diff(c.want, carry(c.device, c.ports)); diff != "" {
			t.Errorf("%s with %d ports (-want +got):\n%s", c.device, c.ports, diff)
		}
	}
}

// The values of hca.toml are possible.
func TestHCATable(t *testing.T) {
	t.Parallel()
	id := regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{4}$`)
	modules := []string{"mlx5_ib", "efa", "bnxt_re", "irdma", "hfi1"}
	used := map[string]bool{}
	f := hcaTable(t)
	for _, m := range f.HCAs {
		used[m.Source] = true
		if len(m.Devices) == 0 || slices.ContainsFunc(m.Devices, func(d string) bool { return !id.MatchString(d) }) {
			t.Errorf("%s: devices %q", m.Name, m.Devices)
		}
		switch planes := len(m.DataPorts); {
		case !slices.Contains(modules, m.Module), len(m.Source) < 20:
			t.Errorf("%s: module %q, source %q", m.Name, m.Module, m.Source)
		case m.PCIeGen > 6, m.PCIeWidth > 16, m.Rate > 1600, m.ReadRequest&(m.ReadRequest-1) != 0, m.ReadRequest > 4096:
			t.Errorf("%+v", m)
		case planes > 0 && (!slices.IsSorted(m.DataPorts) || m.DataPorts[planes-1] > m.Ports || m.Rate%planes != 0), planes == 0 && m.Ports != 0:
			t.Errorf("%s: ports %d of %d", m.Name, m.DataPorts, m.Ports)
		case m.Virtual && (m.Rate > 0 || m.PCIeGen > 0 || m.PCIeWidth > 0 || m.ReadRequest > 0):
			t.Errorf("%s: a virtual function has %+v", m.Name, m)
		case m.Virtual != strings.Contains(m.Name, "virtual") && m.Module != "efa":
			t.Errorf("%s: virtual is %v", m.Name, m.Virtual)
		}
	}
	for _, b := range f.Boards {
		used[b.Source] = true
		at := slices.IndexFunc(f.HCAs, func(m HCAModel) bool { return m.Name == b.HCA })
		if m := &f.HCAs[at]; b.Rate <= 0 || b.Rate > m.Rate || b.PCIeGen > m.PCIeGen || len(b.IDs) == 0 {
			t.Errorf("%v can do more than a %s", b, m.Name)
		}
	}
	for name, text := range f.Sources {
		if !used[text] {
			t.Errorf("source %s is not used", name)
		}
	}
}

func TestWrongHCAs(t *testing.T) {
	t.Parallel()
	const source = "[sources]\nx = \"y\"\n"
	for text, want := range map[string]string{
		"x": "expected",
		source + "[[hca]]\nname = \"a\"\nsource = \"x\"\nspeed = 3\n":                                                    "key hca.speed: unknown",
		source + "[[hca]]\nsource = \"x\"\n":                                                                             `hca "": want it once`,
		source + "[[hca]]\nname = \"a\"\n":                                                                               "a row without a source",
		source + "[[hca]]\nname = \"a\"\nsource = \"x\"\n[[hca]]\nname = \"a\"\nsource = \"x\"\n":                        `hca "a": want it once`,
		source + "[[hca]]\nname = \"a\"\nsource = \"x\"\ndevices = [\"1\", \"1\"]\n":                                     `device "1": want it once`,
		source + "[[board]]\nids = [\"b\"]\nhca = \"a\"\nsource = \"x\"\n":                                               `hca "a": unknown`,
		source + "[[hca]]\nname = \"a\"\nsource = \"x\"\n[[board]]\nids = [\"b\"]\nhca = \"a\"\nsource = \"z\"\n":        "a row without a source",
		source + "[[hca]]\nname = \"a\"\nsource = \"x\"\n[[board]]\nids = [\"b\", \"b\"]\nhca = \"a\"\nsource = \"x\"\n": `board "b": want it once`,
	} {
		if _, err := parseHCAs(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func FuzzHCAModel(f *testing.F) {
	f.Add("0x15b3", "0x1021", "MT_0000000838")
	f.Add("15B3\n", "1023", "")
	f.Add("1d0f", "efa1", "\xff")
	f.Fuzz(func(t *testing.T, vendor, device, board string) {
		m := ModelOf(vendor, device, board)
		if m == nil {
			return
		}
		if plain := ModelOf(vendor, device, ""); plain == nil || plain.Name != m.Name || plain.Rate < m.Rate || plain.PCIeGen < m.PCIeGen {
			t.Errorf("%q makes a %s of %+v", board, m.Name, plain)
		}
	})
}

func FuzzParseHCAs(f *testing.F) {
	f.Add("[sources]\nx = \"y\"\n[[hca]]\nname = \"a\"\nsource = \"x\"\ndevices = [\"15b3:1021\"]\ndata_ports = [3]\nports = 3\n[[board]]\nids = [\"b\"]\nhca = \"a\"\nsource = \"x\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := parseHCAs(text)
		if err != nil {
			return
		}
		for _, m := range file.HCAs {
			for _, d := range m.Devices {
				vendor, device, _ := strings.Cut(d, ":")
				if got := file.find(vendor, device, "b"); got != nil && got.Carries(1, 1) != (got.Ports != 1 || len(m.DataPorts) == 0 || slices.Contains(m.DataPorts, 1)) && got.Name == m.Name {
					t.Errorf("port 1 of %+v", got)
				}
			}
		}
	})
}
