package sweep

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nhc-gpu/nhc-gpu/tests/schema"
)

func TestSchemaHasTheFields(t *testing.T) {
	t.Parallel()
	schema.HasFields(t, schema.SweepFile(), map[string]any{
		"": Report{}, "node": NodeReport{}, "plane": Plane{}, "rail": Rail{}, "task": Task{}, "result": Result{}, "loss": Loss{}, "check": CheckResult{}, "suspect": Suspect{},
		"distribution": Distribution{}, "stagereport": StageReport{}, "eas": EASResult{}, "comparison": Comparison{}, "moved": Moved{},
	})
}

// whole returns a report in which every field is set.
func whole() *Report {
	at := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	gpu := 3
	s := Suspect{
		Node: "n1", Peer: "n2", Leaves: []string{"l1", "l2"}, Plane: "eth0", GPU: &gpu, Ops: []string{"all_reduce"}, Way: "sends", Stage: StageTCP, Kind: KindStream, Code: "sweep.tcp.slow", Value: 1, Expect: 2, Unit: "Gb/s",
		Looks: 3, Partners: []string{"n3"}, Confidence: 0.9, Text: "slow", Do: "swap", Doubt: true,
	}
	node := Node{
		Name: "n1", Leaf: "l1", Model: "H100", GPUs: 8, Host: "XE9680", Closed: 4, Busy: true, Planes: []Plane{{Name: "eth0", Address: netip.MustParsePrefix("10.0.0.1/24"), MTU: 1500, Speed: 100000, PCIe: 230}},
		Rails: []Rail{{Name: "mlx5_0:1", Layer: "InfiniBand", GID: -1, Speed: 400, PCIe: 460, Interface: "ib0", Left: "the default route"}},
	}
	task := Task{ID: 1, Stage: StageTCP, Kind: KindStream, Nodes: []string{"n1", "n2"}, Plane: "eth0", Rails: []string{"mlx5_0"}, Op: "x", Size: 1, Flows: 8, Count: 10, Repeats: 4, Time: time.Second, Limit: time.Minute, NoP2P: true, Confirms: true}
	result := Result{
		Task: task, Values: []float64{1}, Windows: []float64{2}, Low: 1, Mid: 2, Sent: 10, Lost: 1, Fault: FaultWrong, Text: "wrong", Blame: []string{"n2"}, Rank: 1, Network: "IB", Began: at, Took: time.Second, Beside: true,
		Losses: []Loss{{Node: "n2", At: at, Gone: true, Responds: true, Text: "silent"}},
		Checks: []CheckResult{{Check: "check_gpu_ecc", Severity: "fail", Code: "gpu.ecc", Device: "gpu3", Message: "m"}},
	}
	d := Distribution{Stage: StageTCP, Kind: KindStream, Op: "x", Plane: "eth0", Model: "H100", Far: "leaf", Unit: "Gb/s", Count: 1, Median: 2, Sigma: 3, Floor: 1, Note: "all are slow", Remark: "one is elsewhere", Nodes: "n1,n2"}
	return &Report{
		Schema: 1, Version: "1", ID: "s1", Began: at, Ended: at, Command: []string{"nhc-gpu", "sweep"}, Cluster: "c", Job: "1", Interrupted: "scancel", Continued: []time.Time{at},
		Nodes:  []NodeReport{{Node: node, State: "suspect", Why: "w", Held: "h", After: "a", History: Written}},
		Stages: []StageReport{{Stage: StageTCP, Began: at, Ended: at, Skipped: "s", Unproven: "u", Rounds: 1, Results: []Result{result}, Fleet: []Distribution{d}, Suspects: []Suspect{s}}}, Suspects: []Suspect{s},
		EAS: []EASResult{{"gemm_flops", "Succeeded", "t"}},
		Comparison: &Comparison{
			With: "s0", Began: at, New: []Suspect{s}, Still: []Suspect{s}, Cleared: []Suspect{s}, Untested: []Suspect{s}, Added: []string{"n1"}, Missing: []string{"n0"},
			Moved: []Moved{{StageTCP, KindStream, "x", "eth0", "H100", "leaf", "Gb/s", 2, 1, -50, true}},
		},
	}
}

func TestSchemaAccepts(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Report){
		"whole":   func(*Report) {},
		"minimal": func(r *Report) { *r = Report{Schema: 1, ID: "x"} },
	} {
		r := whole()
		change(r)
		data, err := json.Marshal(r)
		if err == nil {
			err = schema.CheckSweep(data)
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, change := range map[string]func(*Report){
		"another schema": func(r *Report) { r.Schema = 2 }, "no ID": func(r *Report) { r.ID = "" }, "an unknown stage": func(r *Report) { r.Stages[0].Stage = "x" }, "an unknown kind": func(r *Report) { r.Stages[0].Results[0].Task.Kind = "x" },
		"an unknown fault": func(r *Report) { r.Stages[0].Results[0].Fault = "x" }, "an unknown state": func(r *Report) { r.Nodes[0].State = "x" }, "no code": func(r *Report) { r.Suspects[0].Code = "" },
		"too sure": func(r *Report) { r.Suspects[0].Confidence = 2 }, "a comparison with no suspect's stage": func(r *Report) { r.Comparison.Moved[0].Stage = "" },
	} {
		r := whole()
		change(r)
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if schema.CheckSweep(data) == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Every stage, kind and fault of the package is one of the schema.
func TestSchemaKnowsTheNames(t *testing.T) {
	t.Parallel()
	for _, stage := range Stages {
		for _, kind := range []Kind{KindCheck, KindEcho, KindMTU, KindConnect, KindName, KindStream, KindRing, KindWrite, KindLatency, KindNCCL} {
			for _, fault := range []Fault{FaultNone, FaultRefused, FaultSilent, FaultWrong, FaultMTU, FaultCheck, FaultUnable, FaultLost, FaultError, FaultNetwork} {
				r := &Report{Schema: 1, ID: "x", Stages: []StageReport{{Stage: stage, Results: []Result{{Task: Task{Stage: stage, Kind: kind}, Fault: fault}}}}}
				data, err := json.Marshal(r)
				if err == nil {
					err = schema.CheckSweep(data)
				}
				if err != nil {
					t.Errorf("%s %s %s: %v", stage, kind, fault, err)
				}
			}
		}
	}
}

func TestCompare(t *testing.T) {
	t.Parallel()
	suspectOf := func(node, plane, way string) Suspect {
		return Suspect{Node: node, Plane: plane, Way: way, Stage: StageTCP, Kind: KindStream, Code: "sweep.tcp.slow"}
	}
	node := func(name string) NodeReport {
		return NodeReport{Node: Node{Name: name, Leaf: "leaf" + name[1:]}, State: "tested"}
	}
	test := func(plane, a, b string) Result {
		return Result{Task: Task{Stage: StageTCP, Kind: KindStream, Plane: plane, Nodes: []string{a, b}}, Values: []float64{90}}
	}
	fleet := func(eth0, eth1, echo float64) []Distribution {
		return []Distribution{
			{Stage: StageTCP, Kind: KindStream, Plane: "eth0", Unit: "Gb/s", Median: eth0}, {Stage: StageTCP, Kind: KindStream, Plane: "eth1", Unit: "Gb/s", Median: eth1},
			{Stage: StageTCP, Kind: KindEcho, Plane: "eth0", Unit: "ms", Median: echo},
		}
	}
	old := &Report{ID: "old", Nodes: []NodeReport{node("n1"), node("n2"), node("n3"), node("n9")}, Stages: []StageReport{{Stage: StageTCP, Fleet: fleet(100, 100, 0.1)}}, Suspects: []Suspect{
		suspectOf("n1", "eth0", "sends"), suspectOf("n2", "eth1", ""), suspectOf("n3", "eth1", ""), {Node: "n2", Peer: "n1", Plane: "eth1", Stage: StageTCP, Kind: KindStream, Code: "sweep.tcp.slow"}, {Leaves: []string{"leaf2", "leaf1"}, Stage: StageTCP, Kind: KindStream, Code: "sweep.tcp.slow"},
	}}
	now := &Report{ID: "now", Nodes: []NodeReport{node("n1"), node("n2"), node("n3"), node("n4")}, Suspects: []Suspect{suspectOf("n1", "eth0", ""), suspectOf("n4", "eth0", "")}, Stages: []StageReport{
		{Stage: StageTCP, Fleet: fleet(104, 80, 0.2), Results: []Result{test("eth0", "n1", "n2"), test("eth1", "n2", "n1"), test("eth0", "n3", "n4")}},
	}}
	got := Compare(old, now)
	names := func(list []Suspect) (names []string) {
		for _, s := range list {
			names = append(names, s.Node+s.Peer+strings.Join(s.Leaves, "+"))
		}
		return names
	}
	for _, tt := range []struct {
		what      string
		got, want []string
	}{
		{"new", names(got.New), []string{"n4"}}, {"still", names(got.Still), []string{"n1"}}, {"cleared", names(got.Cleared), []string{"n2", "n2n1", "leaf2+leaf1"}},
		{"untested: n3 was tested on the other plane", names(got.Untested), []string{"n3"}}, {"added", got.Added, []string{"n4"}}, {"missing", got.Missing, []string{"n9"}},
	} {
		if !slices.Equal(tt.got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.what, tt.got, tt.want)
		}
	}
	want := []Moved{{Stage: StageTCP, Kind: KindEcho, Plane: "eth0", Unit: "ms", Old: 0.1, New: 0.2, Percent: 100, Worse: true}, {Stage: StageTCP, Kind: KindStream, Plane: "eth1", Unit: "Gb/s", Old: 100, New: 80, Percent: -20, Worse: true}}
	if diff := cmp.Diff(want, got.Moved, cmpopts.EquateApprox(0, 1e-6)); diff != "" {
		t.Errorf("moved (-want +got)\n%s", diff)
	}
	if same := Compare(now, now); len(same.New)+len(same.Cleared)+len(same.Untested)+len(same.Moved)+len(same.Added)+len(same.Missing) != 0 || len(same.Still) != 2 {
		t.Errorf("a sweep with itself: %+v", same)
	}
}
