package sweep

import (
	"strings"
	"testing"
)

// A node that a sweep had drained passes only if its fault was looked for, with nodes that were in service.
func TestCleared(t *testing.T) {
	t.Parallel()
	pair := func(kind Kind, plane, other string) Result {
		return Result{Task: Task{Kind: kind, Plane: plane, Nodes: []string{"gpu01", other}}}
	}
	tcp := func(results ...Result) StageReport { return StageReport{Stage: StageTCP, Rounds: 2, Results: results} }
	three := []Result{pair(KindStream, "eth1", "gpu02"), pair(KindStream, "eth1", "gpu03"), pair(KindStream, "eth1", "gpu04")}
	gemm := Result{Task: Task{Kind: KindCheck, Nodes: []string{"gpu01"}, Op: "check_gpu_gemm"}}
	failed, unable := pair(KindStream, "eth1", "gpu04"), pair(KindStream, "eth1", "gpu04")
	failed.Fault, unable.Fault = FaultSilent, FaultUnable
	for name, tt := range map[string]struct {
		code, device string
		lines        []string
		stages       []StageReport
		suspects     []Suspect
		want         string // begins the reason
	}{
		"it passes":                   {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{tcp(three...)}},
		"with two nodes in service":   {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{tcp(three[0], three[1], pair(KindStream, "eth1", "held1"))}, want: "tested on eth1 with 2 nodes that were in service, want 3"},
		"one test fails":              {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{tcp(three[0], three[1], failed)}, want: "tested on eth1 with 2"},
		"one test cannot run":         {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{tcp(three[0], three[1], unable)}, want: "tested on eth1 with 2"},
		"on another plane":            {code: "sweep.tcp.slow", device: "eth0", stages: []StageReport{tcp(three...)}, want: "tested on eth0 with 0"},
		"not on all planes":           {code: "sweep.tcp.slow", stages: []StageReport{tcp(append(three, Result{Task: Task{Plane: "eth0", Nodes: []string{"gpu02", "gpu03"}}})...)}, want: "tested on eth0 with 0"},
		"its stage is skipped":        {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{{Stage: StageTCP, Skipped: "it needs two nodes"}}, want: "stage tcp has not run"},
		"another stage":               {code: "sweep.rdma.slow", device: "mlx5_0:1", stages: []StageReport{tcp(three...)}, want: "stage rdma has not run"},
		"the whole fleet is bad":      {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{{Stage: StageTCP, Rounds: 1, Results: three, Unproven: "stream eth1: most nodes fail"}}, want: "stage tcp has no verdict: stream eth1: most nodes fail"},
		"a remark":                    {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{{Stage: StageTCP, Rounds: 1, Results: three, Fleet: []Distribution{{Remark: "another subnet"}}}}},
		"a remark that names it":      {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{{Stage: StageTCP, Rounds: 1, Results: three, Fleet: []Distribution{{Remark: "25 Gb/s", Nodes: "gpu00,gpu01"}}}}, want: "stage tcp has a remark about the node: 25 Gb/s"},
		"a remark about others":       {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{{Stage: StageTCP, Rounds: 1, Results: three, Fleet: []Distribution{{Remark: "25 Gb/s", Nodes: "gpu00,gpu011"}}}}},
		"a suspect":                   {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{tcp(three...)}, suspects: []Suspect{{Node: "gpu01", Text: "slow"}}, want: "suspect: slow"},
		"of a pair":                   {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{tcp(three...)}, suspects: []Suspect{{Node: "gpu02", Peer: "gpu01"}}, want: "suspect"},
		"of a switch":                 {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{tcp(three...)}, suspects: []Suspect{{Leaves: []string{"s1", "s2"}}}, want: "suspect"},
		"a partner of a doubt":        {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{tcp(three...)}, suspects: []Suspect{{Node: "gpu02", Partners: []string{"gpu01"}, Doubt: true}}, want: "suspect"},
		"a partner that has proven":   {code: "sweep.tcp.slow", device: "eth1", stages: []StageReport{tcp(three...)}, suspects: []Suspect{{Node: "gpu02", Partners: []string{"gpu01"}}}},
		"NCCL in a group":             {code: "sweep.nccl.slow", stages: []StageReport{{Stage: StageGroups, Rounds: 1, Results: []Result{{Task: Task{Kind: KindNCCL, Nodes: []string{"gpu02", "gpu01", "gpu03", "gpu04"}}}}}}},
		"its check passes":            {code: "sweep.node.check", lines: []string{"check_gpu_gemm"}, stages: []StageReport{{Stage: StageNode, Rounds: 1, Results: []Result{gemm}}}},
		"another check":               {code: "sweep.node.check", lines: []string{"check_gpu_gemm", "check_gpu_pcie"}, stages: []StageReport{{Stage: StageNode, Rounds: 1, Results: []Result{gemm}}}, want: "not run: check_gpu_pcie"},
		"a check without a report":    {code: "sweep.node.check", stages: []StageReport{{Stage: StageNode, Rounds: 1, Results: []Result{gemm}}}, want: "no report has the check that had failed"},
		"it was lost, and is here":    {code: "sweep.node.lost", stages: []StageReport{{Stage: StageNode, Rounds: 1, Results: []Result{gemm}}}},
		"it was lost, others are":     {code: "sweep.node.lost", stages: []StageReport{{Stage: StageNode, Rounds: 1, Results: []Result{{Task: Task{Kind: KindCheck, Nodes: []string{"gpu02"}}}}}}, want: "no test has passed on it"},
		"it was lost, its test fails": {code: "sweep.node.lost", stages: []StageReport{tcp(failed, unable)}, want: "no test has passed on it"},
		"it was lost, nothing is run": {code: "sweep.node.lost", want: "stage node has not run"},
		"no code":                     {want: `"" is not a fault that a sweep finds`},
		"a code of the health check":  {code: "gpu.recovery.lost", want: `"gpu.recovery.lost" is not`},
	} {
		r := &Report{Stages: tt.stages, Suspects: tt.suspects}
		got := r.Cleared(&Drained{Node: "gpu01", Leaf: "s1", Code: tt.code, Device: tt.device, Checks: func() []string { return tt.lines }, Held: map[string]string{"gpu01": "x", "held1": "y"}})
		if (got == "") != (tt.want == "") || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
