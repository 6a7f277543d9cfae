package conf

import (
	"slices"
	"strings"
	"testing"
)

const sitePlatforms = "/etc/nhc/profiles.toml"

// The built-in platforms parse, every figure has a source, and no two platforms match the same
// GPUs.
func TestShippedPlatforms(t *testing.T) {
	t.Parallel()
	list, err := ShippedPlatforms()
	if err != nil {
		t.Fatal(err)
	}
	if err := distinct(list); err != nil {
		t.Error(err)
	}
	for _, p := range list {
		if len(p.Devices) == 0 || len(p.Figures) == 0 {
			t.Errorf("%s: %s has %d devices and %d figures", p.Pos, p.Name, len(p.Devices), len(p.Figures))
		}
		// Checks use these figures only together.
		for key, needs := range map[string]string{
			FigureGPUNetwork: FigureNetworkGPUs, FigureNetworkGPUs: FigureNetworkPorts,
			FigureNetworkPCIeGen: FigureNetworkRate, FigureNetworkPCIeWidth: FigureNetworkRate, FigureNetworkTreeGen: FigureNetworkRate,
			FigureNVSwitchGPUs: FigureNVLinks, FigureNVLinkGPUs: FigureNVLinks, FigureNVLinkBandwidth: FigureNVLinks,
		} {
			if p.Figures[key].Values != nil && p.Figures[needs].Values == nil {
				t.Errorf("%s: %s has %s and no %s", p.Pos, p.Name, key, needs)
			}
		}
		if p.Value(FigureNVSwitchGPUs) > 0 && p.Value(FigureNVLinkDomain) > 0 {
			t.Errorf("%s: %s has NVSwitches of its own and those of a rack", p.Pos, p.Name)
		}
		for _, f := range p.Floors {
			if len(f.Source) < 40 || f.Pos.File != p.Pos.File || f.Pos.Line <= p.Pos.Line {
				t.Errorf("%s: %s, %s: source %q", f.Pos, p.Name, f.Of(), f.Source)
			}
			if f.Verified {
				t.Errorf("%s: %s, %s: who has verified it?", f.Pos, p.Name, f.Of())
			}
		}
		for key, f := range p.Figures {
			if len(f.Source) < 20 || strings.HasPrefix(f.Source, "conf/") {
				t.Errorf("%s: %s, %s: source %q", p.Pos, p.Name, key, f.Source)
			}
			if f.At == "" && (key == "allreduce_bandwidth" || strings.HasPrefix(key, "network_") || key == FigureGPUNetwork && p.Word(key) != "numa") {
				t.Errorf("%s: %s, %s: does not say what it was measured with", p.Pos, p.Name, key)
			}
		}
	}
}

// Every GPU of the source table has its platform; GH200 is not H200.
func TestFindPlatform(t *testing.T) {
	t.Parallel()
	var none Platforms
	for want, ids := range map[string][]string{
		"V100 SXM2": {"1db1", "1db5"}, "V100 PCIe": {"1db4", "1db6"}, "V100S PCIe": {"1df6"}, "HGX A100 40GB": {"20b0"}, "A100 PCIe 40GB": {"20f1"},
		"A100 PCIe 80GB": {"20b5"}, "HGX H100": {"2330"}, "H100 NVL": {"2321"}, "H100 PCIe": {"2331"}, "HGX H200": {"2335"}, "GH200": {"2342"},
		"GH200 144GB": {"2348"}, "HGX B200": {"2901"}, "HGX B200 168GB": {"2909"}, "GB200": {"2941"}, "HGX B300": {"3182"}, "GB300": {"31c2"},
		"L4": {"27b8"}, "L40S": {"26b9"}, "H200 NVL": {"233b"}, "HGX A800 80GB": {"20f3"}, "HGX A800 40GB": {"20bd"}, "A800 PCIe": {"20f5"}, "HGX H800": {"2324"},
		"HGX H20": {"2329"}, "HGX H20 141GB": {"232c"}, "": {"1db8", "20b2", "20b3", "2322", "2339", "31c3", "ffff", ""},
	} {
		for _, id := range ids {
			if got := foundName(t, &none, id, "10de:0001", 4); got != want {
				t.Errorf("%s is %q, want %q", id, got, want)
			}
		}
	}
	for _, c := range []struct {
		device, subsystem string
		gpus              int
		want              string
	}{
		{"20b2", "10de:147f", 8, "HGX A100 80GB"},
		{"20b2", "10de:1625", 8, ""},
		{"2330", "10de:16c1", 8, "HGX H100"},
		{"2330", "10de:16c1", 7, "HGX H100"}, // a GPU is missing
		{"2330", "10de:16c1", 9, ""},
		{"26b9", "10de:1851", 10, "L40S"},
	} {
		if got := foundName(t, &none, c.device, c.subsystem, c.gpus); got != c.want {
			t.Errorf("%d of %s, %s: %q, want %q", c.gpus, c.device, c.subsystem, got, c.want)
		}
	}
}

func foundName(t *testing.T, l *Platforms, device, subsystem string, gpus int) string {
	t.Helper()
	p, err := l.Find(device, subsystem, gpus)
	if err != nil {
		t.Fatal(err)
	}
	if p == nil {
		return ""
	}
	return p.Name
}

func TestPlatformsOfASite(t *testing.T) {
	t.Parallel()
	const text = `
[sources]
meter = "the rack's own power meter"

[[platform]] # replaces two figures, keeps the others
name = "HGX H100"
gpus = 8
power_limit = { value = 600, source = "meter", verified = true }

[[platform]]
name = "small"
devices = ["2330", "ABCD"]
gpus = [4, 2]

[[platform]]
name = "odd board"
devices = ["abcd"]
subsystems = ["10DE:1234"]
graphics_clock = 1000
allreduce_bandwidth = { value = 400, at = "16 GiB, 4 GPUs" }
gpu_network = { value = "numa", at = "virtual machines" }
nvswitch_gpus = 0
`
	l, err := ParsePlatforms(sitePlatforms, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		device, subsystem string
		gpus              int
		want              string
	}{
		{"2330", "10de:16c1", 8, "HGX H100"}, {"2330", "10de:16c1", 7, "HGX H100"}, {"2330", "10de:16c1", 2, "small"}, {"2330", "10de:16c1", 4, "small"},
		{"abcd", "10de:1234", 9, "odd board"}, {"abcd", "10de:1235", 2, "small"}, {"2335", "", 8, "HGX H200"},
	} {
		if got := foundName(t, l, c.device, c.subsystem, c.gpus); got != c.want {
			t.Errorf("%d of %s, %s: %q, want %q", c.gpus, c.device, c.subsystem, got, c.want)
		}
	}
	p, _ := l.Find("2330", "", 8)
	if f := p.Figures[FigurePowerLimit]; !slices.Equal(f.Values, []int{600}) || f.Source != "the rack's own power meter" || !f.Verified {
		t.Errorf("power limit %+v", f)
	}
	if f := p.Figures[FigureGPUs]; f.Source != sitePlatforms+":5" || p.Value(FigureGPUs) != 8 {
		t.Errorf("GPUs %+v", f)
	}
	if f := p.Figures[FigureMemoryClock]; p.Value(FigureMemoryClock) != 2619 || !strings.Contains(f.Source, "nvidia-smi") {
		t.Errorf("memory clock %+v", f)
	}
	if f := l.site[2].Figures["allreduce_bandwidth"]; f.At != "16 GiB, 4 GPUs" || f.Values[0] != 400 {
		t.Errorf("all-reduce %+v", f)
	}
	if p := &l.site[2]; p.Word(FigureGPUNetwork) != "numa" || p.Value(FigureNVSwitchGPUs) != 0 || p.Figures[FigureNVSwitchGPUs].Values == nil {
		t.Errorf("network and NVSwitches %+v", p.Figures)
	}
	if p.Word(FigureGPUNetwork) != "root-port" || p.Word(FigureGPUs) != "" || p.Word("x") != "" || p.Value(FigureNVSwitchGPUs) != 8 {
		t.Errorf("network and NVSwitches of ours %+v", p.Figures)
	}
	if p.Pos.String() != sitePlatforms+":5" || p.Value("x") != 0 {
		t.Errorf("at %s", p.Pos)
	}
}

func TestWrongPlatforms(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"x":                              ":1: no \"=\" after the key, want KEY = VALUE",
		"\nx = 3":                        ":2: unknown key x: want one of [[platform]], [sources]",
		"platform = 3":                   ":1: unknown key platform: want [[platform]]",
		"[[platform]]\n":                 ":1: no name, want name = \"...\"",
		"\n\n[[platform]]\nname = \"a\"": ":3: platform \"a\" has no devices, and no platform of that name is known",
		"[[platform]]\nname = \"a\"\n\n[[platform]]\nname = \"b\"\ncores = 3":                                          ":6: unknown key cores: want one of name, devices",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\n[[platform]]\nname = \"a\"\ndevices = [\"2331\"]":           ":4: platform \"a\" is there already, at line 1",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\n[[platform]]\nname = \"b\"\ndevices = [\"2331\", \"2330\"]": ":4: platforms \"a\" and \"b\" fit the same GPUs",
		"[[platform]]\nname = \"a\"\ndevices = \"2330\"":                                                               ":3: \"2330\": want a list of PCI device ids",
		"[[platform]]\nname = \"a\"\ndevices = [\"0x2330\"]":                                                           ":3: \"0x2330\": want PCI device ids of 4 hexadecimal digits",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\nsubsystems = [\"16c1\"]":                                    ":4: \"16c1\": want PCI subsystem ids",
		"[[platform]]\nname = \"a\"\ndevices = []":                                                                     ":3: []: want a list of PCI device ids",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\npower_limit = 0":                                            ":4: power_limit = 0: want a whole number up to 5000",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\npower_limit = 7e2":                                          ":4: power_limit = 700: want a whole number",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\npower_limit = [600, 700]":                                   ":4: power_limit = [600, 700]: want one number",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\ngpus = []":                                                  ":4: gpus = []: want one number",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\nnetwork_ports = [4, 8]":                                     ":4: network_ports = [4, 8]: want one number",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\ngpu_network = 2":                                            ":4: gpu_network = 2: want switch, root-port, numa, system",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\ngpu_network = \"near\"":                                     ":4: gpu_network = \"near\": want switch, root-port",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\ngpu_network = [\"numa\", \"switch\"]":                       ":4: gpu_network = [\"numa\", \"switch\"]: want one word",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\nnetwork_rate = \"400\"":                                     ":4: network_rate = \"400\": want a whole number up to 10000",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\ngpus = { source = \"x\" }":                                  ":4: gpus = nothing: want a whole number",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\ngpus = { value = 8, from = \"x\" }":                         ":4: gpus: unknown key from: want one of value, at, source, verified",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\ngpus = { value = 8, verified = 1 }":                         ":4: gpus: verified = 1: want true or false",
		"[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\n\n[[platform]]\nname = \"b\"\ndevices = [\"1\"]\n":          ":7: \"1\": want PCI device ids",
		"\x00": ": binary data, want TOML",
	} {
		_, err := ParsePlatforms(sitePlatforms, []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), sitePlatforms+want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if l, err := ParsePlatforms(sitePlatforms, nil); err != nil || foundName(t, l, "2330", "", 8) != "HGX H100" {
		t.Errorf("no file: %v", err)
	}
}

func FuzzParsePlatforms(f *testing.F) {
	f.Add("[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\ngpus = [4, 8]\n")
	f.Add("[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\ngpu_network = { value = \"numa\", at = \"x\" }\nnvswitch_gpus = 0\n")
	f.Add("[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\n[[platform.floor]]\ntest = \"launch\"\nalgorithm = \"x\"\nvalue = 3\nsource = \"x\"\n")
	f.Add("[sources]\nx = \"y\"\n[[platform]]\nname = '''\n[[platform]]'''\ndevices = [\"abcd\"]\npower_limit = { value = 3, source = \"x\" }\n")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParsePlatforms("f", []byte(text))
		if err != nil {
			return
		}
		for _, p := range l.site {
			for _, d := range p.Devices {
				sub := ""
				if len(p.Subsystems) > 0 {
					sub = p.Subsystems[0]
				}
				n := 1
				if g := p.GPUs(); len(g) > 0 {
					n = g[0]
				}
				if got := foundName(t, l, d, sub, n); got == "" {
					t.Errorf("%d of %s fit nothing, want %s", n, d, p.Name)
				}
			}
		}
	})
}

func BenchmarkFindPlatform(b *testing.B) {
	for b.Loop() {
		l, _ := ParsePlatforms(sitePlatforms, nil)
		if p, _ := l.Find("2330", "10de:16c1", 8); p == nil {
			b.Fatal("none")
		}
	}
}
