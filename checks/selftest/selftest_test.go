package selftest

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
)

func bench(t *testing.T) *Bench {
	t.Helper()
	b, err := NewBench()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// Try reports the differences between a check's findings and the wanted ones.
func TestSelftestNotices(t *testing.T) {
	t.Parallel()
	b := bench(t)
	const head = "checks = [\"check_gpu_ecc\"]\n[[scenario]]\nname = \"x\"\nnode = \"h100\"\n"
	off := Finding{Severity: "fail", Code: "gpu.ecc.off", Device: "gpu3 0000:13:00.0", Remedy: checks.FixConfig, Message: "check_gpu_ecc:  gpu3 0000:13:00.0: ECC, want on, got off"}
	for _, c := range []struct{ name, text, want string }{
		{"healthy, and a failure is wanted", "[[scenario.want]]\nseverity = \"fail\"\ncode = \"gpu.ecc.off\"\nmessage = \"m\"\n",
			"want fail gpu.ecc.off, about none, remedy none: m\ngot  nothing"},
		{"faulty, and a pass is wanted", "[scenario.nvml]\n\"gpu3.ECC.On\" = false\n\"gpu3.ECC.Pending\" = false\n", "want nothing\ngot  " + off.String()},
		{"another GPU is named", "[[scenario.want]]\nseverity = \"fail\"\ncode = \"gpu.ecc.off\"\ndevice = \"gpu4 0000:14:00.0\"\nremedy = \"fix-config\"\nmessage = \"" + off.Message +
			"\"\n[scenario.nvml]\n\"gpu3.ECC\" = { unsupported = true }\n\"gpu3.ECC.On\" = false\n\"gpu3.ECC.Pending\" = false\n",
			"want fail gpu.ecc.off, about gpu4 0000:14:00.0, remedy fix-config: " + off.Message + "\ngot  " + off.String()},
		{"an unknown field", "[scenario.nvml]\n\"gpu3.ECC.Nonsense\" = 1\n", `create a node: nvml: gpu3.ECC.Nonsense: NVML has no "Nonsense"`},
		{"an unknown GPU", "[scenario.nvml]\n\"gpu8.VBIOS\" = \"1\"\n", "create a node: nvml: gpu8.VBIOS: the node has no such GPU"},
		{"a value of another kind", "[scenario.nvml]\n\"gpu3.VBIOS\" = 1\n", "create a node: nvml: gpu3.VBIOS: json: cannot unmarshal number into Go value of type string"},
		{"an error instead of an address", "[scenario.nvml]\n\"gpu3.PCI\" = { error = 15, call = \"c\" }\n", "create a node: nvml: gpu3.PCI: this value cannot be an error"},
		{"a file outside of the node", "[scenario.files]\n\"../x\" = \"1\"\n", `create a node: "../x" is not a path below the node's root`},
		{"an invalid option", "words = [\"-Z\"]\n", "invalid option -Z"},
	} {
		list, err := Parse(head + c.text)
		if err != nil {
			t.Fatal(err)
		}
		_, wrong, err := b.Try(t.Context(), &list[0])
		if err != nil {
			t.Error(err)
		}
		if got := strings.Join(wrong, "\n"); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Moved exchanges the faulty GPU and another one.
func TestSelftestMoves(t *testing.T) {
	t.Parallel()
	s := Scenario{
		Check: "check_gpu_ecc", Name: "x", Node: "h100", Words: []string{"gpu3"}, Lacks: []string{"dev/nvidia3", "dev/nvidia7"},
		Files: map[string]string{"sys/bus/pci/devices/0000:13:00.0/x": "0000:17:00.0 GPU-00000000-0000-0000-0000-000000000003"},
		NVML:  map[string]any{"gpu3.ECC.On": map[string]any{"error": int64(15), "call": "nvmlDeviceGetX(3)"}, "gpu7.VBIOS": "3", "gpu3.Minor": int64(3)},
		Want:  []Finding{{Device: "gpu3 0000:13:00.0", Message: "gpu3 0000:13:00.0: nvmlDeviceGetX(3)"}},
	}
	want := &Scenario{
		Check: "check_gpu_ecc", Name: "x", Node: "h100", Words: []string{"gpu7"}, Lacks: []string{"dev/nvidia7", "dev/nvidia3"},
		Files: map[string]string{"sys/bus/pci/devices/0000:17:00.0/x": "0000:13:00.0 GPU-00000000-0000-0000-0000-000000000007"},
		NVML:  map[string]any{"gpu7.ECC.On": map[string]any{"error": int64(15), "call": "nvmlDeviceGetX(7)"}, "gpu3.VBIOS": "3", "gpu7.Minor": int64(3)},
		Want:  []Finding{{Device: "gpu7 0000:17:00.0", Message: "gpu7 0000:17:00.0: nvmlDeviceGetX(7)"}},
	}
	if diff := cmp.Diff(want, s.Moved(7)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	two := s
	two.Want = append(two.Want, Finding{Device: "gpu4 0000:14:00.0"})
	for what, s := range map[string]Scenario{"two are faulty": two, "no node": {Want: s.Want}, "none is faulty": {Node: "h100"}} {
		if m := s.Moved(7); m != nil {
			t.Errorf("%s: %+v", what, m)
		}
	}
	if m := s.Moved(3); m != nil {
		t.Errorf("to where it is: %+v", m)
	}
}

// The self-test does not change this machine.
func TestSelftestRefuses(t *testing.T) {
	t.Parallel()
	b := bench(t)
	for _, s := range []Scenario{
		{Check: "check_cmd_output", Words: []string{"-m", "x", "touch /tmp/x"}}, {Check: "check_ps_service", Words: []string{"-r", "x"}},
	} {
		if _, wrong, err := b.Try(t.Context(), &s); err != nil || len(wrong) != 1 || !strings.HasPrefix(wrong[0], "not tested, ") {
			t.Errorf("%s: %q", s.Check, wrong)
		}
	}
}

// An error of the file system is not a result of a check.
func TestSelftestWithoutAPlace(t *testing.T) {
	t.Parallel()
	gone := filepath.Join(t.TempDir(), "gone")
	if b, err := newBench(gone, nil); err == nil {
		t.Errorf("%+v in a directory that is not there", b)
	}
	b := &Bench{dir: gone, base: map[string]string{}}
	got, wrong, err := b.Try(t.Context(), &Scenario{Check: "check_gpu_ecc", Node: "h100"})
	if _, ok := errors.AsType[*BenchError](err); !ok || got != nil || wrong != nil {
		t.Errorf("%v, %v, %v", got, wrong, err)
	}
	if want := "cannot create test nodes (set TMPDIR to another directory): "; !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestParseSelftests(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                       "no scenario, or no name of a check",
		"checks = [\"check_x\"]\n[[scenario]]\n": `no check is called "check_x"`,
		"check = 1\n":                            "unknown key check",
		"checks = [\"check_gpu_ecc\"]\nscenario=1": "toml: ",
	} {
		if _, err := Parse(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func FuzzSelftest(f *testing.F) {
	f.Add("gpu3.ECC.On", "true", "{x00}")
	f.Add("gpu*", "{ unsupported = true }", "{x")
	f.Add("CC", "{ error = 15 }", "{xff}{xgg}")
	f.Add("gpu3.Rows.Histogram", "{ Max = 1 }", "a{x4")
	f.Fuzz(func(t *testing.T, path, value, content string) {
		if got := RawBytes(content); len(got) > len(content) {
			t.Errorf("%q grew to %q", content, got)
		}
		list, err := Parse("checks = [\"check_gpu_ecc\"]\n[[scenario]]\nnode = \"h100\"\n[scenario.nvml]\n" + strconv.Quote(path) + " = " + value)
		if err != nil {
			return
		}
		n, err := ReadNode("h100")
		if err != nil {
			t.Fatal(err)
		}
		_ = n.Change(list[0].NVML) // it must not panic
	})
}

// A scenario can lack files that the scenarios of its file share.
func TestSelftestLacksCommonFiles(t *testing.T) {
	t.Parallel()
	list, err := Parse("checks = [\"check_gpu_ecc\"]\n[files]\n\"a/b\" = \"1\"\n\"a/c\" = \"2\"\nd = \"3\"\n" +
		"[[scenario]]\nlacks = [\"a/\"]\n[scenario.files]\n\"a/c\" = \"4\"\n[[scenario]]\nlacks = [\"d\"]\n[[scenario]]\nnode = \"h100\"\n")
	if err != nil {
		t.Fatal(err)
	}
	var got []map[string]string
	for _, s := range list {
		got = append(got, s.Files)
	}
	if diff := cmp.Diff([]map[string]string{{"a/c": "4", "d": "3"}, {"a/b": "1", "a/c": "2"}, nil}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
