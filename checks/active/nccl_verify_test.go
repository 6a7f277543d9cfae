package active

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// Data that are mostly wrong on all GPUs are attributed to none, and do not drain the node,
// unless the exchange of pairs shows the GPU that they come from.
func TestNCCLWrongEverywhere(t *testing.T) {
	t.Parallel()
	const of = 16384
	for name, c := range map[string]struct {
		count func(rank int) uint64
		pairs bool // rank 3 gives others wrong data, too
		want  string
	}{
		"some":          {func(int) uint64 { return 3 }, false, "fail nccl.wrong "},
		"all":           {func(int) uint64 { return of }, false, "unknown nccl.alike "},
		"all but one":   {func(rank int) uint64 { return uint64(min(rank, 1)) * of }, false, "fail nccl.wrong "},
		"all, of one":   {func(int) uint64 { return of }, true, "fail nccl.wrong gpu3"},
		"many, counted": {func(int) uint64 { return ncclCounted }, false, "unknown nccl.alike "},
	} {
		run := &ncclRun{activeRun: &activeRun{activeTest: activeTest{Check: "check_x", Code: "nccl"}}}
		for i := range 4 {
			run.ranks = append(run.ranks, &ncclGPU{gpu: &nvml.GPU{Index: i}, rank: i, n: 4})
		}
		for i, g := range run.ranks {
			if n := c.count(i); n > 0 {
				run.wrong = append(run.wrong, ncclWrong{doing: "all_reduce", receiver: g, count: n, of: max(n, of)})
			}
			if c.pairs && i != 3 {
				run.wrong = append(run.wrong, ncclWrong{doing: "pairs", receiver: g, sender: run.ranks[3], count: of, of: of})
			}
		}
		reportWrong(run)
		var got string
		for _, f := range run.findings {
			got += fmt.Sprint(f.Severity, " ", f.Code, " ", f.Device.Name)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Data that are wrong on a GPU before NCCL moves them are attributed to that GPU; data that are
// wrong on all, to none.
func TestNCCLWritten(t *testing.T) {
	t.Parallel()
	for want, wrong := range map[string]int{"": 0, "fail nccl.wrong gpu0;fail nccl.wrong gpu1;": 2, "unknown nccl.alike ;": 4} {
		run := &ncclRun{activeRun: &activeRun{activeTest: activeTest{Check: "check_x", Code: "nccl"}}}
		for i := range 4 {
			g := &ncclGPU{NCCLGPU: cuda.NCCLGPU{Answer: make([]byte, cuda.NCCLMismatchBytes)}, gpu: &nvml.GPU{Index: i}, rank: i, n: 4}
			if i < wrong {
				g.Answer[0] = 1
			}
			run.ranks = append(run.ranks, g)
		}
		if ok := run.verifyWritten(cuda.NCCLOpOf("all_reduce"), 4, "write"); ok != (wrong == 0) {
			t.Errorf("%d wrong: %v", wrong, ok)
		}
		var got string
		for _, f := range run.findings {
			got += fmt.Sprint(f.Severity, " ", f.Code, " ", f.Device.Name, ";")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d wrong (-want +got):\n%s", wrong, diff)
		}
	}
}
