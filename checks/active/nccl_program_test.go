package active

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// ncclTestsOutput is what a program of nccl-tests prints: testdata/nccl-tests has it by
// the printf formats of common.cu and util.cu of several releases.
func ncclTestsOutput(file string) string {
	data, err := os.ReadFile("testdata/nccl-tests/" + file)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func TestParseNCCLPerf(t *testing.T) {
	t.Parallel()
	half := func(time, algbw, busbw float64) ncclPerfHalf {
		return ncclPerfHalf{time: time, algbw: algbw, busbw: busbw}
	}
	for file, want := range map[string]ncclPerf{
		"2.17.txt": {rows: []ncclPerfRow{
			{8589934592, []ncclPerfHalf{half(34719, 247.41, 463.90), half(34720, 247.41, 463.89)}},
			{17179869184, []ncclPerfHalf{half(69338, 247.77, 464.57), half(69305, 247.89, 464.79)}},
		}},
		"wrong.txt": {wrong: 5, rows: []ncclPerfRow{
			{1073741824, []ncclPerfHalf{half(4431.2, 242.31, 424.05), half(4428.0, 242.49, 424.36)}},
		}},
		"2.10.txt": {rows: []ncclPerfRow{
			{1048576, []ncclPerfHalf{half(58.20, 18.02, 31.53), half(58, 18.08, 31.64)}},
			{4194304, []ncclPerfHalf{half(96.71, 43.37, 75.90), half(95.99, 43.70, 76.47)}},
		}},
		"all_gather-2.10.txt": {rows: []ncclPerfRow{
			{4294967296, []ncclPerfHalf{half(17016, 252.40, 220.85), half(16474, 260.71, 228.12)}},
		}},
	} {
		got, err := parseNCCLPerf(ncclTestsOutput(file))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if diff := cmp.Diff(&want, got, cmp.AllowUnexported(ncclPerf{}, ncclPerfRow{}, ncclPerfHalf{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
		if last, ok := got.largest(); !ok || last.size != want.rows[len(want.rows)-1].size {
			t.Errorf("%s: the largest is %+v", file, last)
		}
	}
	for _, text := range []string{"", "# size busbw\n", "#  size time algbw busbw #wrong\n 1 x y z 0\n", strings.Repeat("#", 1<<16)} {
		if p, err := parseNCCLPerf(text); err == nil {
			t.Errorf("%.20q: %+v", text, p)
		}
	}
}

func FuzzParseNCCLPerf(f *testing.F) {
	for _, file := range []string{"2.17.txt", "2.10.txt", "all_gather-2.10.txt"} {
		f.Add(ncclTestsOutput(file))
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parseNCCLPerf(text)
		if _, ok := p.largest(); ok != (err == nil) {
			t.Errorf("rows %v, error %v", ok, err)
		}
	})
}

var _ = checktest.Table("check_nccl", func(name string) []checktest.Scenario {
	const dir = "/opt/nccl-tests"
	says := func(f checks.Finding, text string) checks.Finding { return ncclSays(name, f, text) }
	// perf is a line with a program that verifies its arguments and environment, prints a file,
	// and ends with a status.
	perf := func(title, program, file, end string, more []string, want ...checks.Finding) checktest.Scenario {
		script := "#!/bin/bash\n" +
			`[[ $NCCL_DEBUG$NCCL_IB_HCA == "" && $NCCL_SOCKET_IFNAME == lo && $CUDA_VISIBLE_DEVICES == GPU-*,GPU-* && $CUDA_MPS_PIPE_DIRECTORY == /proc/* ]] || { echo "environment: $(declare -p ${!NCCL_@})"; exit 7; }` + "\n" +
			`[[ "$*" == *"-f 2 -n 20 -g 8 -c 1" ]] || { echo "words: $*"; exit 7; }` + "\nprintf '%s' '" + file + "'\n" + end + "\n"
		s := withNCCL(checktest.OnGPUs(title, append(checktest.Of("--nccl-tests", dir, "-t", "5", "-e", "16G"), more...), nil, want...)).Holding("opt/nccl-tests/"+program, script)
		s.Vars = map[string]string{"NCCL_IB_HCA": "mlx5"}
		return s
	}
	broken := func(s checktest.Scenario) checktest.Scenario { s.Broken = true; return s }
	good := ncclTestsOutput("2.17.txt")
	return []checktest.Scenario{
		perf("nccl-tests are content", "all_reduce_perf", good, "", checktest.Of("-w", "460", "all_reduce")),
		perf("old nccl-tests", "all_gather_perf", ncclTestsOutput("all_gather-2.10.txt"), "", checktest.Of("-w", "224", "all_gather")),
		perf("nccl-tests are slow", "all_reduce_perf", good, "", checktest.Of("-w", "470", "--repeats", "2", "all_reduce"),
			says(checks.Finding{Code: "nccl.slow", Severity: checks.Fail, Want: "at least 470.0 GB/s", Got: "464.7 GB/s"}, "bus bandwidth of all_reduce, 16 GiB by nccl-tests")),
		perf("nccl-tests find wrong data", "all_reduce_perf", ncclTestsOutput("wrong.txt"), "exit 1", checktest.Of("all_reduce"),
			says(checks.Finding{Code: "nccl.wrong", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "0", Got: "5"}, "all_reduce of nccl-tests: values out of bounds")),
		perf("nccl-tests do not end", "all_reduce_perf", "", "sleep 20", checktest.Of("-t", "1", "all_reduce"),
			says(checks.Finding{Code: "active.time", Severity: checks.Unknown, Want: "at most 1s"}, "stopped: time limit reached")),
		broken(perf("nccl-tests fail", "all_reduce_perf", "# Using devices\ngpu-node-1: Test NCCL failure common.cu:958 unhandled system error\n", "exit 3", checktest.Of("all_reduce"),
			says(checks.Finding{Code: "nccl.programs", Severity: checks.Unknown}, dir+"/all_reduce_perf: ended with status 3: gpu-node-1: Test NCCL failure common.cu:958 unhandled system error"))),
		broken(perf("nccl-tests without a summary", "all_reduce_perf", strings.Replace(good, "# Out of", "# Out", 1), "", checktest.Of("all_reduce"),
			says(checks.Finding{Code: "nccl.programs", Severity: checks.Unknown}, dir+"/all_reduce_perf: output without a line about out of bounds values"))),
		broken(perf("nccl-tests print something else", "all_reduce_perf", "hello", "", checktest.Of("all_reduce"),
			says(checks.Finding{Code: "nccl.programs", Severity: checks.Unknown}, dir+`/all_reduce_perf: output without a table of nccl-tests: "hello"`))),
		broken(perf("no nccl-tests", "broadcast_perf", good, "", checktest.Of("all_reduce"),
			says(checks.Finding{Code: "nccl.programs", Severity: checks.Unknown}, dir+"/all_reduce_perf: run {root}/opt/nccl-tests/all_reduce_perf: no such file or directory"))),
	}
})
