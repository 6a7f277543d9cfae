package sweep

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	all := func(kind Kind, plane, op string) (list []Result) {
		for _, r := range three {
			r.Task.Kind, r.Task.Plane, r.Task.Op = kind, plane, op
			list = append(list, r)
		}
		return list
	}
	ran := func(stage Stage, results ...[]Result) StageReport {
		return StageReport{Stage: stage, Rounds: 2, Results: slices.Concat(results...)}
	}
	check := func(lines ...string) []Accusal {
		return []Accusal{{Code: "sweep.node.check", Stage: StageNode, Kind: KindCheck, Ops: lines}}
	}
	slow := Accusal{Code: "sweep.tcp.slow", Device: "eth1", Stage: StageTCP, Kind: KindStream, Planes: []string{"eth1"}}
	rail := Accusal{Code: "sweep.rdma.slow", Device: "mlx5_3:1", Stage: StageRDMA, Kind: KindWrite, Planes: []string{"mlx5_3:1"}}
	groups := []Accusal{{Code: "sweep.nccl.slow", Stage: StageGroups, Kind: KindNCCL, Planes: []string{""}, Ops: []string{"all_reduce"}}}
	pairs := []Accusal{{Code: "sweep.nccl.slow", Stage: StagePairs, Kind: KindNCCL, Planes: []string{""}, Ops: []string{"all_to_all"}}}
	for name, tt := range map[string]struct {
		code, device string
		faults       []Accusal // from reports
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
		"NCCL in a group":             {code: "sweep.nccl.slow", faults: groups, stages: []StageReport{{Stage: StageGroups, Rounds: 1, Results: []Result{{Task: Task{Kind: KindNCCL, Op: "all_reduce", Nodes: []string{"gpu02", "gpu01", "gpu03", "gpu04"}}}}}}},
		"found in groups, not run":    {code: "sweep.nccl.slow", faults: groups, stages: []StageReport{ran(StagePairs, all(KindNCCL, "", "all_reduce"))}, want: "stage groups has not run"},
		"groups may have found it":    {code: "sweep.nccl.slow", stages: []StageReport{ran(StagePairs, all(KindNCCL, "", "all_reduce"))}, want: "stage groups has not run"},
		"both stages of NCCL":         {code: "sweep.nccl.slow", stages: []StageReport{ran(StagePairs, all(KindNCCL, "", "all_reduce")), ran(StageGroups, all(KindNCCL, "", "all_reduce"))}},
		"a GPU of NCCL":               {code: "sweep.nccl.wrong", device: "gpu3", stages: []StageReport{ran(StagePairs, all(KindNCCL, "", "all_reduce")), ran(StageGroups, all(KindNCCL, "", "all_reduce"))}},
		"another collective":          {code: "sweep.nccl.slow", faults: pairs, stages: []StageReport{ran(StagePairs, all(KindNCCL, "", "all_reduce"))}, want: "tested by all_to_all with 0 nodes"},
		"the collective":              {code: "sweep.nccl.slow", faults: pairs, stages: []StageReport{ran(StagePairs, all(KindNCCL, "", "all_reduce"), all(KindNCCL, "", "all_to_all"))}},
		"another kind of test":        {code: "sweep.tcp.slow", device: "eth1", faults: []Accusal{slow}, stages: []StageReport{tcp(all(KindRing, "eth1", "")...)}, want: "tested on eth1 with 0 nodes"},
		"two faults, one is tested":   {code: "sweep.tcp.slow", device: "eth1", faults: []Accusal{slow, rail}, stages: []StageReport{tcp(three...)}, want: "stage rdma has not run"},
		"two faults, other rail":      {code: "sweep.tcp.slow", device: "eth1", faults: []Accusal{rail, slow}, stages: []StageReport{tcp(three...), ran(StageRDMA, all(KindWrite, "mlx5_0:1", ""))}, want: "tested on mlx5_3:1 with 0 nodes"},
		"two faults, both are tested": {code: "sweep.tcp.slow", device: "eth1", faults: []Accusal{rail, slow}, stages: []StageReport{tcp(three...), ran(StageRDMA, all(KindWrite, "mlx5_3:1", ""))}},
		"a fault of another reason":   {code: "sweep.tcp.slow", device: "eth0", faults: []Accusal{slow}, stages: []StageReport{tcp(three...)}, want: "tested on eth0 with 0 nodes"},
		"it was lost in RDMA":         {code: "sweep.node.lost", faults: []Accusal{{Code: "sweep.node.lost", Stage: StageRDMA, Kind: KindWrite}}, stages: []StageReport{tcp(three...)}, want: "stage rdma has not run"},
		"its check passes":            {code: "sweep.node.check", faults: check("check_gpu_gemm"), stages: []StageReport{{Stage: StageNode, Rounds: 1, Results: []Result{gemm}}}},
		"another check":               {code: "sweep.node.check", faults: check("check_gpu_gemm", "check_gpu_pcie"), stages: []StageReport{{Stage: StageNode, Rounds: 1, Results: []Result{gemm}}}, want: "not run: check_gpu_pcie"},
		"a check without a report":    {code: "sweep.node.check", stages: []StageReport{{Stage: StageNode, Rounds: 1, Results: []Result{gemm}}}, want: "no report has the check that had failed"},
		"it was lost, and is here":    {code: "sweep.node.lost", stages: []StageReport{{Stage: StageNode, Rounds: 1, Results: []Result{gemm}}}},
		"it was lost, others are":     {code: "sweep.node.lost", stages: []StageReport{{Stage: StageNode, Rounds: 1, Results: []Result{{Task: Task{Kind: KindCheck, Nodes: []string{"gpu02"}}}}}}, want: "no test has passed on it"},
		"it was lost, its test fails": {code: "sweep.node.lost", stages: []StageReport{tcp(failed, unable)}, want: "no test has passed on it"},
		"it was lost, nothing is run": {code: "sweep.node.lost", want: "no stage has run"},
		"no code":                     {want: `"" is not a fault that a sweep finds`},
		"a code of the health check":  {code: "gpu.recovery.lost", want: `"gpu.recovery.lost" is not`},
	} {
		r := &Report{Stages: tt.stages, Suspects: tt.suspects}
		got := r.Cleared(&Drained{Node: "gpu01", Leaf: "s1", Code: tt.code, Device: tt.device, Faults: tt.faults, Held: map[string]string{"gpu01": "x", "held1": "y"}})
		if (got == "") != (tt.want == "") || !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// The faults of a report are those of single nodes, without doubt. That on no single plane is one on all planes
// that were tested.
func TestAccusals(t *testing.T) {
	t.Parallel()
	gpu := 3
	on := func(kind Kind, plane string, fault Fault) Result {
		return Result{Task: Task{Stage: StageTCP, Kind: kind, Plane: plane, Nodes: []string{"gpu01", "gpu02"}}, Fault: fault}
	}
	r := &Report{
		Suspects: []Suspect{
			{Node: "gpu01", Stage: StageTCP, Kind: KindStream, Code: "sweep.tcp.slow"},
			{Node: "gpu01", Plane: "mlx5_0:1", Stage: StageRDMA, Kind: KindWrite, Code: "sweep.rdma.slow"},
			{Node: "gpu02", GPU: &gpu, Stage: StageNode, Kind: KindCheck, Ops: []string{"check_gpu_gemm"}, Code: "sweep.node.check"},
			{Node: "gpu02", Doubt: true, Stage: StageTCP, Code: "sweep.tcp.slow"},
			{Node: "gpu02", Peer: "gpu03", Stage: StageTCP, Code: "sweep.tcp.slow"},
			{Leaves: []string{"s1"}, Stage: StageTCP, Code: "sweep.tcp.slow"},
		},
		Stages: []StageReport{{Stage: StageTCP, Results: []Result{on(KindStream, "eth1", FaultNone), on(KindStream, "eth0", FaultSilent), on(KindRing, "eth2", FaultNone), on(KindStream, "eth3", FaultUnable)}}},
	}
	want := []Accusal{
		{Node: "gpu01", Code: "sweep.tcp.slow", Stage: StageTCP, Kind: KindStream, Planes: []string{"eth0", "eth1"}},
		{Node: "gpu01", Code: "sweep.rdma.slow", Device: "mlx5_0:1", Stage: StageRDMA, Kind: KindWrite, Planes: []string{"mlx5_0:1"}},
		{Node: "gpu02", Code: "sweep.node.check", Device: "gpu3", Stage: StageNode, Kind: KindCheck, Ops: []string{"check_gpu_gemm"}},
	}
	if diff := cmp.Diff(want, r.Accusals()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if (&Report{}).Accusals() == nil {
		t.Error("without suspects: nil, which is an unknown list")
	}
}
