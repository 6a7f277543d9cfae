package conf

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The printed platform can be parsed again, and is the same.
func TestPlatformTOML(t *testing.T) {
	t.Parallel()
	site, err := ParsePlatforms(sitePlatforms, []byte("[[platform]]\nname = \"HGX H100\"\ngpus = 8\n\n[[platform]]\nname = \"ours\"\ndevices = [\"abcd\"]\nsubsystems = [\"10de:1234\"]\n"+
		"p2p_bandwidth = { value = 3, at = \"a \\\"pair\\\"\" }\ngpu_network = \"system\"\n"+
		"[[platform.floor]]\ntest = \"gemm\"\nalgorithm = \"bf16 own\"\nsize = 8192\nvalue = 12.25\nsource = \"a \\\"meter\\\"\"\nverified = true\n"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := site.All()
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for i := range all {
		count[all[i].Name]++
		again, err := parsePlatforms("f", all[i].TOML(), "")
		if err != nil || len(again) != 1 {
			t.Errorf("%s: %v\n%s", all[i].Name, err, all[i].TOML())
			continue
		}
		want := all[i]
		want.Pos = again[0].Pos
		want.Floors = slices.Clone(want.Floors)
		for j := range min(len(want.Floors), len(again[0].Floors)) {
			want.Floors[j].Pos = again[0].Floors[j].Pos
		}
		if diff := cmp.Diff(want, again[0]); diff != "" {
			t.Errorf("%s (-printed +read):\n%s", want.Name, diff)
		}
	}
	if count["HGX H100"] != 1 || count["ours"] != 1 || count["HGX H200"] != 1 || all[0].Value(FigureGPUs) != 8 {
		t.Errorf("%v", count)
	}
}
