package sweep

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// A suspect is cleared by the tests that could have shown its fault again, and by no other ones.
func TestCompareClears(t *testing.T) {
	t.Parallel()
	check := func(node, line string, fault Fault) Result {
		return Result{Task: Task{Stage: StageNode, Kind: KindCheck, Op: line, Nodes: []string{node}}, Fault: fault}
	}
	failed := func(node, line string) Suspect {
		return Suspect{Node: node, Stage: StageNode, Kind: KindCheck, Ops: []string{line}, Code: "sweep.node.check"}
	}
	pair := func(stage Stage, kind Kind, op, plane string, fault Fault) Result {
		return Result{Task: Task{Stage: stage, Kind: kind, Op: op, Plane: plane, Nodes: []string{"a", "b"}}, Fault: fault}
	}
	slow := Suspect{Node: "a", Plane: "eth1", Stage: StageTCP, Kind: KindStream, Code: "sweep.tcp.slow"}
	stream := pair(StageTCP, KindStream, "", "eth1", FaultNone)
	nccl := Suspect{Node: "a", Stage: StagePairs, Kind: KindNCCL, Ops: []string{"all_reduce", "all_gather without P2P"}, Code: "sweep.nccl.slow"}
	reduce, gather := pair(StagePairs, KindNCCL, "all_reduce", "", FaultNone), pair(StagePairs, KindNCCL, "all_gather", "", FaultNone)
	bare := gather
	bare.Task.NoP2P = true
	with := func(s Suspect, change func(*Suspect)) Suspect {
		change(&s)
		return s
	}
	on := func(plane, code string) Suspect {
		return with(slow, func(s *Suspect) { s.Plane, s.Code = plane, code })
	}
	for _, tt := range []struct {
		name    string
		old     Suspect
		now     []Suspect
		results []Result
		want    string // the list of the old suspect; "": none
	}{
		{"the check passes", failed("a", "check_gpu_gemm"), nil, []Result{check("a", "check_gpu_gemm", FaultNone)}, "cleared"},
		{"only another check ran", failed("a", "check_gpu_gemm"), nil, []Result{check("a", "check_gpu_pcie", FaultNone)}, "untested"},
		{"the check ran with other options", failed("a", "check_dcgm_diag 3"), nil, []Result{check("a", "check_dcgm_diag 1", FaultNone)}, "untested"},
		{"the check could not run", failed("a", "check_gpu_gemm"), nil, []Result{check("a", "check_gpu_gemm", FaultUnable)}, "untested"},
		{"the check passes and another one fails", failed("a", "check_gpu_gemm"), []Suspect{failed("a", "check_gpu_pcie")},
			[]Result{check("a", "check_gpu_gemm", FaultNone), check("a", "check_gpu_pcie", FaultCheck)}, "cleared"},
		{"another check fails and this one did not run", failed("a", "check_gpu_gemm"), []Suspect{failed("a", "check_gpu_pcie")}, []Result{check("a", "check_gpu_pcie", FaultCheck)}, "untested"},
		{"the check fails with other options", failed("a", "check_dcgm_diag 3"), []Suspect{failed("a", "check_dcgm_diag 1")}, []Result{check("a", "check_dcgm_diag 1", FaultCheck)}, "still"},

		{"all collectives pass", nccl, nil, []Result{reduce, bare}, "cleared"},
		{"one collective of two ran", nccl, nil, []Result{reduce}, "untested"},
		{"the collective ran with P2P only", nccl, nil, []Result{reduce, gather}, "untested"},

		{"fast", slow, nil, []Result{stream}, "cleared"},
		{"failed with most nodes", slow, nil, []Result{pair(StageTCP, KindStream, "", "eth1", FaultSilent)}, "untested"},
		{"the stage is unproven", slow, nil, []Result{stream}, "untested"},
		{"only the ring ran", slow, nil, []Result{pair(StageTCP, KindRing, "", "eth1", FaultNone)}, "untested"},
		{"the node died", slow, nil, []Result{pair(StageTCP, KindStream, "", "eth1", FaultLost)}, "untested"},
		{"the node died after it passed", slow, []Suspect{on("", "sweep.node.lost")}, []Result{stream}, ""},
		{"failed", slow, []Suspect{on("eth1", "sweep.tcp.failed")}, []Result{stream}, ""},
		{"failed on all planes", slow, []Suspect{on("", "sweep.tcp.failed")}, []Result{stream}, ""},
		{"failed on another plane", slow, []Suspect{on("eth0", "sweep.tcp.failed")}, []Result{stream}, "cleared"},
		{"another node failed", slow, []Suspect{with(slow, func(s *Suspect) { s.Node = "b" })}, []Result{stream}, "cleared"},
		{"slow on all planes, and now on one", on("", "sweep.tcp.slow"), []Suspect{slow}, []Result{stream}, ""},
		{"a doubt about the pair", slow, []Suspect{with(slow, func(s *Suspect) { s.Peer, s.Doubt = "b", true })}, []Result{stream}, ""},
		{"a slow path to a node", slow, []Suspect{with(slow, func(s *Suspect) { s.Node, s.Peer = "b", "a" })}, []Result{stream}, "cleared"},
		{"its whole leaf", slow, []Suspect{{Leaves: []string{"l1"}, Partners: []string{"c", "a"}, Plane: "eth1", Stage: StageTCP, Kind: KindStream, Code: "sweep.tcp.slow"}}, []Result{stream}, ""},
		{"the path between two leaves", slow, []Suspect{{Leaves: []string{"l1", "l2"}, Partners: []string{"a"}, Plane: "eth1", Stage: StageTCP, Kind: KindStream, Code: "sweep.tcp.slow"}}, []Result{stream}, "cleared"},
		{"a name that is resolved, beside a loss", Suspect{Node: "a", Stage: StageReach, Kind: KindName, Code: "sweep.reach.name"},
			[]Suspect{{Node: "a", Plane: "eth0", Stage: StageReach, Kind: KindEcho, Code: "sweep.reach.loss"}}, []Result{pair(StageReach, KindName, "", "", FaultNone)}, "cleared"},
		{"a pair, and now one node of it", with(slow, func(s *Suspect) { s.Peer = "b" }), []Suspect{slow}, []Result{stream}, ""},
		{"a leaf", Suspect{Leaves: []string{"l1"}, Plane: "eth1", Stage: StageTCP, Kind: KindStream, Code: "sweep.tcp.slow"}, nil, []Result{stream}, "cleared"},
		{"slow on all planes, and only one is tested", on("", "sweep.tcp.slow"), nil, []Result{stream}, "untested"},
		{"a node that was lost", with(slow, func(s *Suspect) { s.Plane, s.Kind, s.Code = "", KindRing, "sweep.node.lost" }), nil, []Result{stream}, "cleared"},
	} {
		old := &Report{Suspects: []Suspect{tt.old}, Stages: []StageReport{{Stage: StageTCP, Results: []Result{stream, pair(StageTCP, KindStream, "", "eth0", FaultNone)}}}}
		now := &Report{Suspects: tt.now, Stages: []StageReport{{Stage: StageNode}, {Stage: StageTCP, Results: tt.results}},
			Nodes: []NodeReport{{Node: Node{Name: "a", Leaf: "l1"}}, {Node: Node{Name: "b", Leaf: "l2"}}}}
		if tt.name == "the stage is unproven" {
			now.Stages[1].Unproven = "stream eth1: most nodes fail"
		}
		c := Compare(old, now)
		want := &Comparison{New: tt.now}
		switch list := []Suspect{tt.old}; tt.want {
		case "cleared":
			want.Cleared = list
		case "untested":
			want.Untested = list
		case "still":
			want.New, want.Still = nil, tt.now
		}
		if diff := cmp.Diff(want, c, cmpopts.IgnoreFields(Comparison{}, "Added")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
