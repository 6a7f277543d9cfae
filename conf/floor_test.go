package conf

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A site's floor replaces the built-in floor of the same run, and of no other
// run.
func TestFloorsOfASite(t *testing.T) {
	t.Parallel()
	const text = `
[sources]
may = "measured on 12 nodes in May, lowest 471"

[[platform]]
name = "HGX H100"

[[platform.floor]]
test = "all_reduce"
algorithm = "nvls"
size = "16G"
ranks = 8
value = 470.5
source = "may"
verified = true

[[platform.floor]] # another size
test = "all_reduce"
algorithm = "nvls"
size = 1073741824
ranks = 8
value = 400
unit = "GB/s"
source = "may"

[[platform.floor]]
test = "gemm"
algorithm = "bf16 cublaslt"
size = 8192
value = 600
source = "may"

[[platform]]
name = "ours"
devices = ["abcd"]
floor = [{ test = "launch", algorithm = "empty", value = 9, source = "may" }]
`
	l, err := ParsePlatforms(sitePlatforms, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	const may = "measured on 12 nodes in May, lowest 471"
	shipped, err := shippedPlatforms(`name = "HGX H100"` + "\n")
	if err != nil {
		t.Fatal(err)
	}
	p, _ := l.Find("2330", "", 8)
	if want := len(shipped[0].Floors) + 2; len(p.Floors) != want {
		t.Errorf("%d floors, want %d", len(p.Floors), want)
	}
	got := map[string]Floor{}
	for _, f := range p.Floors {
		got[f.Of()] = f
	}
	for _, want := range []Floor{
		{Pos{sitePlatforms, 8}, "all_reduce", "nvls", 16 << 30, 8, 470.5, "GB/s", may, true},
		{Pos{sitePlatforms, 17}, "all_reduce", "nvls", 1 << 30, 8, 400, "GB/s", may, false},
		{Pos{sitePlatforms, 26}, "gemm", "bf16 cublaslt", 8192, 1, 600, "TFLOP/s", may, false},
	} {
		if diff := cmp.Diff(want, got[want.Of()]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", want.Of(), diff)
		}
	}
	if f := got["host_to_device, ce, 512M"]; f.Value != 48 || f.Pos.File != "conf/profiles/h100.toml" || !strings.Contains(f.Source, "AzureHPC") {
		t.Errorf("what is shipped: %+v", f)
	}
	ours, _ := l.Find("abcd", "", 1)
	if diff := cmp.Diff([]Floor{{Pos{sitePlatforms, 33}, "launch", "empty", 0, 1, 9, "us", may, false}}, ours.Floors); diff != "" {
		t.Errorf("on one line (-want +got):\n%s", diff)
	}
	if of := p.Floors[0].Of(); of != "all_reduce, nvls, 1G, 8 ranks" {
		t.Errorf("first is %s", of)
	}
}

func TestWrongFloors(t *testing.T) {
	t.Parallel()
	const head = "[[platform]]\nname = \"a\"\ndevices = [\"2330\"]\n"
	const floor = "\n[[platform.floor]]\ntest = \"all_reduce\"\nalgorithm = \"ring\"\nsize = \"16G\"\nranks = 8\nvalue = 300\nunit = \"GB/s\"\nsource = \"measured\"\nverified = false\n"
	with := func(from, to string) string {
		if !strings.Contains(floor, from) {
			t.Fatal(from)
		}
		return head + floor + strings.Replace(strings.Replace(floor, "16G", "8G", 1), strings.Replace(from, "16G", "8G", 1), to, 1)
	}
	for text, want := range map[string]string{
		with("test = \"all_reduce\"", "test = \"all_redcue\""):   ":16: floor: test = \"all_redcue\": want all_gather, all_gather_no_p2p, all_reduce",
		with("test = \"all_reduce\"\n", ""):                      ":15: floor: no test: want all_gather",
		with("\"ring\"", "\"auto\""):                             ":17: floor: algorithm = \"auto\": want the one that ran",
		with("\"ring\"", "\"Ring\""):                             ":17: floor: algorithm = \"Ring\": want the one that ran",
		with("\"ring\"", "3"):                                    ":17: floor: algorithm = 3: want the one that ran",
		with("\"16G\"", "\"16GB\""):                              ":18: floor: size = \"16GB\": want bytes, like 1048576, \"512M\" or \"16G\"",
		with("\"16G\"", "\"G\""):                                 ":18: floor: size = \"G\": want bytes",
		with("\"16G\"", "\"99999999999T\""):                      ":18: floor: size = \"99999999999T\": want bytes",
		with("\"16G\"", "-1"):                                    ":18: floor: size = -1: want bytes",
		with("size = \"16G\"\n", ""):                             ":15: floor: no size: want bytes",
		with("ranks = 8\n", ""):                                  ":15: floor: no ranks: want how many GPUs or ports are at work together, 2 or more",
		with("ranks = 8", "ranks = 1"):                           ":19: floor: ranks = 1: want how many GPUs or ports are at work together, 2 or more",
		with("value = 300", "value = \"300\""):                   ":20: floor: value = \"300\": want a number above 0",
		with("value = 300", "value = 0"):                         ":20: floor: value = 0: want a number above 0",
		with("value = 300", "value = nan"):                       ":20: floor: value = nan: want a number above 0",
		with("value = 300", "value = inf"):                       ":20: floor: value = inf: want a number above 0",
		with("\"GB/s\"", "\"MB/s\""):                             ":21: floor: unit = \"MB/s\": want \"GB/s\", the unit of all_reduce",
		with("source = \"measured\"\n", ""):                      ":15: floor: no source: want where the number is from",
		with("verified = false", "verified = \"no\""):            ":23: floor: verified = \"no\": want true or false",
		with("verified = false", "checked = false"):              ":23: floor: unknown key checked: want one of test, algorithm, size, ranks, value, unit, source, verified",
		head + floor + floor:                                     ":15: floor of all_reduce, ring, 16G, 8 ranks is there already, at line 5",
		head + "floor = 3":                                       ":4: ",
		"[[platform.floor]]\nvalue = 3\n":                        ":1: a floor before any [[platform]]",
		head + strings.Replace(floor, "all_reduce", "gemm", 1):   ":8: floor: size = \"16G\": want n of matrices of n x n, like 8192",
		head + strings.Replace(floor, "all_reduce", "launch", 1): ":8: floor: size = \"16G\": want none: launch has no size",
	} {
		_, err := ParsePlatforms(sitePlatforms, []byte(text))
		if err == nil || !strings.HasPrefix(err.Error(), sitePlatforms+want) {
			t.Errorf("%s\n%v, want %s", text, err, want)
		}
	}
}
