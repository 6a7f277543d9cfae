package checks

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakecuda"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenccl"
)

// withNCCL gives a scenario the fake libraries: lines for the fake libcuda, which begin
// with cuda:, and for the fake libnccl.
func (s scenario) withNCCL(lines ...string) scenario {
	s.files = maps.Clone(s.files)
	s.files[boot] = "11111111-2222-3333-4444-555555555555\n"
	cuda, nccl := []string{"* memory = 2097152"}, []string{}
	for _, l := range lines {
		if rest, ok := strings.CutPrefix(l, "cuda:"); ok {
			cuda = append(cuda, rest)
		} else {
			nccl = append(nccl, l)
		}
	}
	s.libraries = func(t *testing.T, dir string) map[string]string {
		t.Helper()
		return map[string]string{probe.SettingCUDA: placeCUDA(t, dir, len(s.nvml.GPUs), cuda), probe.SettingNCCL: placeNCCL(t, dir, nccl)}
	}
	return s
}

func placeCUDA(t *testing.T, dir string, gpus int, lines []string) string {
	t.Helper()
	lib, err := fakecuda.Place(dir, fakecuda.Scenario(gpus, lines...))
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

func placeNCCL(t *testing.T, dir string, lines []string, missing ...string) string {
	t.Helper()
	lib, err := fakenccl.Place(dir, strings.Join(lines, "\n"), missing...)
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

// withOldNCCL has the scenario's libnccl lack what an old release lacks, or be absent.
func (s scenario) withOldNCCL(missing ...string) scenario {
	all := s.libraries
	s.libraries = func(t *testing.T, dir string) map[string]string {
		t.Helper()
		vars := all(t, dir)
		vars[probe.SettingNCCL] = dir + "/none/libnccl.so.2"
		if missing != nil {
			vars[probe.SettingNCCL] = placeNCCL(t, dir+"/old", []string{"- version = 2408"}, missing...)
		}
		return vars
	}
	return s
}

// small are words for a test that is quick where a CPU does the work.
func small(op string, more ...string) []string {
	return append(append([]string{"-b", "64K", "-t", "10"}, more...), op)
}

func ncclSays(name string, f Finding, text string) Finding {
	f.Message = name + ":  " + text + wantGot(f)
	if f.Want == "" && f.Got == "" {
		f.Got = text
	}
	return f
}

// pairsSlow is what is said of a GPU whose links carry less than the others'.
func pairsSlow(name string, gpu int, got string) Finding {
	return gpuFinding(name, gpu, Finding{Code: "nccl.peers", Severity: Fail, Want: "at least 331.5 GB/s", Got: got},
		"exchange with each other GPU, each way: far from its peers, whose median is 390.0 GB/s")
}

func init() {
	const name = ncclName
	says := func(f Finding, text string) Finding { return ncclSays(name, f, text) }
	on8 := func(title string, words []string, lines []string, want ...Finding) scenario {
		return onGPUs(title, words, nil, want...).withNCCL(lines...)
	}
	broken := func(s scenario) scenario { s.broken = true; return s }
	var list []scenario
	for _, op := range ncclOpNames() {
		list = append(list, on8("healthy "+op, small(op), nil))
	}
	list = append(list,
		on8("fast enough", small("all_reduce", "-w", "470"), nil).orTable(map[string]any{"op": "all_reduce", "begin": "64K", "limit": 10, "bandwidth": 470}),
		on8("several sizes", small("all_reduce", "-e", "256K", "-f", "2"), nil,
			rates("bus bandwidth of all_reduce, 64 KiB by nvls, GB/s: 480.0"), rates("bus bandwidth of all_reduce, 128 KiB by nvls, GB/s: 480.0"),
			rates("bus bandwidth of all_reduce, 256 KiB by nvls, GB/s: 480.0"), pairRates()),
		on8("one slow GPU of eight", small("all_reduce"), of("3 links = 60"), pairsSlow(name, 3, "60.0 GB/s")),
		on8("slower than the words", small("all_reduce", "-w", "470"), of("- busbw all_reduce = 360"),
			says(Finding{Code: "nccl.slow", Severity: Fail, Want: "at least 470.0 GB/s", Got: "360.0 GB/s"}, "bus bandwidth of all_reduce, 64 KiB by nvls")),
		on8("wrong data on one GPU of eight", small("all_reduce"), of("3 wrong all_reduce = 17 22"),
			gpuFinding(name, 3, Finding{Code: "nccl.wrong", Severity: Fail, Remedy: ReseatOrRMA, Want: "1142 in element 17", Got: "1654"},
				"all_reduce of 64 KiB on 8 GPUs: 1 wrong element")),
	)
	_ = broken
	_ = says
	testCheck(name, list...)
}

func rates(text string) Finding {
	return Finding{Code: "nccl.rates", Severity: OK, Message: ncclName + ":  " + text, Got: text}
}

func pairRates() Finding {
	var each []string
	for i := range 8 {
		each = append(each, fmt.Sprintf("gpu%d 390.0", i))
	}
	return rates("exchange with each other GPU, each way, GB/s: " + strings.Join(each, ", ") + "; spread 0.0 %")
}
