package checks

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// discoveredText is what ibnetdiscover -p prints of a small fabric: two nodes below two
// switches of one name, a managed switch, an adapter on a back-to-back cable, an open port.
const discoveredText = `CA    17  1 0xb83fd20300c51a03 4x NDR - SW     2 13 0x0002c90200423d58 ( 'gpu07 mlx5_3' - 'MF0;leaf03:MQM9700/U1' )
CA    18  1 0xb83fd20300c51a04 4x NDR - SW     3 14 0x0002c90200423d60 ( 'gpu07 mlx5_4' - 'Quantum Mellanox Technologies' )
CA    19  1 0xb83fd20300c51a05 4x NDR - SW     4 15 0x0002c90200423d70 ( 'gpu07 mlx5_5' - 'Quantum Mellanox Technologies' )
CA    20  2 0x00000000b83fd206 4x FDR10 - CA    21  1 0x0002c90300001234 ( 'gpu07 mlx5_6' - 'store1 'HCA' - 1' )
SW     2 13 0x0002c90200423d58 4x NDR - CA    17  1 0xb83fd20300c51a03 ( 'MF0;leaf03:MQM9700/U1' - 'gpu07 mlx5_3' )
SW     2 14 0x0002c90200423d58 4x ???                                    'MF0;leaf03:MQM9700/U1'
garbage
`

func TestCabling(t *testing.T) {
	t.Parallel()
	list, ports := Cabling(discoveredText)
	const want = `0x00000000b83fd206,2 store1 'HCA' - 1 port 1 # gpu07 mlx5_6
0xb83fd20300c51a03,1 leaf03 port 13 # gpu07 mlx5_3
0xb83fd20300c51a04,1 Quantum Mellanox Technologies 0x0002c90200423d60 port 14 # gpu07 mlx5_4
0xb83fd20300c51a05,1 Quantum Mellanox Technologies 0x0002c90200423d70 port 15 # gpu07 mlx5_5
`
	if diff := cmp.Diff(want, list); diff != "" || ports != 4 {
		t.Errorf("%d ports (-want +got):\n%s", ports, diff)
	}
	table, err := parseCabling("f", list)
	if err != nil || len(table) != 4 || table["b83fd20300c51a03,1"] != "leaf03 port 13" {
		t.Errorf("read again: %v, %v", table, err)
	}
	if list, ports := Cabling("Topology file: generated on Mon\n"); list != "" || ports != 0 {
		t.Errorf("%q, %d", list, ports)
	}
}

func TestCablingFile(t *testing.T) {
	t.Parallel()
	table, err := parseCabling("f", "\n# comment\n0xB83FD20300C51A03,1 leaf03 swp12 # gpu07\nb83f:d203:00c5:1a04,2\tx\nb83f:d203:00c5:1a04,2 leaf04\nshort,1 x\n0xb83fd20300c51a05,one x\n0xb83fd20300c51a05,1\n")
	want := cablingTable{"b83fd20300c51a03,1": "leaf03 swp12", "b83fd20300c51a04,2": "leaf04"}
	if diff := cmp.Diff(want, table); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err == nil || strings.Count(err.Error(), "want GUID,PORT and the far end") != 4 || !strings.HasPrefix(err.Error(), "f:4: ") {
		t.Errorf("%v", err)
	}
	long, err := parseCabling("f", "b83f:d203:00c5:1a04,2 leaf3"+strings.Repeat("é", 60))
	if end := long["b83fd20300c51a04,2"]; err != nil || end == "" || !utf8.ValidString(end) {
		t.Errorf("%v: far end %q, want valid UTF-8", err, end)
	}
	if CablingErrors("f", []byte("# nothing\n")) != nil || CablingErrors("f", []byte("x")) == nil {
		t.Error("lint")
	}
}

func FuzzCabling(f *testing.F) {
	f.Add(discoveredText)
	f.Fuzz(func(t *testing.T, text string) {
		list, ports := Cabling(text)
		if strings.Count(list, "\n") != ports {
			t.Errorf("%d ports: %q", ports, list)
		}
		_, _ = parseCabling("f", text)
	})
}

// An error of a cabling file names the line, the word and the right form.
func TestCablingErrors(t *testing.T) {
	t.Parallel()
	const want = ", want GUID,PORT and the far end, such as 0x506b4b0300f4a8d2,1 leaf03 port 12"
	for line, wrong := range map[string]string{
		"0x506b4b0300f4a8d2 leaf03":   `"0x506b4b0300f4a8d2" has no port number`,
		"506b:4b03:00f4:a8d,1 leaf03": `"506b:4b03:00f4:a8d" is not a GUID of 16 hexadecimal digits`,
		"mlx5_0,1 leaf03":             `"mlx5_0" is not a GUID of 16 hexadecimal digits`,
		"0x506b4b0300f4a8d2,p1 leaf":  `"p1" is not a port number`,
		"0x506b4b0300f4a8d2, leaf":    `"" is not a port number`,
		"0x506b4b0300f4a8d2,1 # leaf": `"0x506b4b0300f4a8d2,1" has no far end`,
	} {
		err := CablingErrors("cabling", []byte("# ours\n0x506b4b0300f4a8d2,1 leaf03 port 12\n"+line+"\n"))
		if err == nil || err.Error() != "cabling:3: "+wrong+want {
			t.Errorf("%s: %v, want %s", line, err, wrong)
		}
	}
	if err := CablingErrors("cabling", []byte("506b:4b03:00f4:a8d2,1 leaf03\n")); err != nil {
		t.Error(err)
	}
}
