package launch

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

func TestMerge(t *testing.T) {
	t.Parallel()
	part := func(values ...float64) *sweep.Result { return &sweep.Result{Values: values, Windows: values} }
	pair, three := []string{"a", "b"}, []string{"a", "b", "c"}
	wrong := &sweep.Result{Fault: sweep.FaultWrong, Text: "word 7", Rank: 2}
	silent := &sweep.Result{Fault: sweep.FaultSilent, Text: "no answer from c", Blame: []string{"c", "x"}}
	both := &sweep.Result{Fault: sweep.FaultSilent, Text: "no answer from b", Blame: []string{"b", "c"}}
	for name, tt := range map[string]struct {
		kind  sweep.Kind
		nodes []string
		have  sweep.Result // what the launcher has seen
		parts []*sweep.Result
		first *sweep.Result
		want  sweep.Result
	}{
		"the receiver of a stream":   {sweep.KindStream, pair, sweep.Result{}, []*sweep.Result{part(9), part(7)}, nil, *part(7)},
		"the first node of a pair":   {sweep.KindEcho, pair, sweep.Result{}, []*sweep.Result{{Values: []float64{1}, Sent: 100, Lost: 2}, part(7)}, nil, sweep.Result{Values: []float64{1}, Sent: 100, Lost: 2}},
		"the slowest of a ring":      {sweep.KindRing, three, sweep.Result{}, []*sweep.Result{part(9, 5), part(7, 8), part(8, 6, 1)}, nil, *part(7, 5)},
		"the first fault":            {sweep.KindNCCL, three, sweep.Result{}, []*sweep.Result{silent, part(1), wrong}, wrong, sweep.Result{Fault: sweep.FaultWrong, Text: "word 7", Rank: 2, Values: []float64{1}, Windows: []float64{1}}},
		"blame of nodes of a task":   {sweep.KindRing, three, sweep.Result{}, []*sweep.Result{silent, both, nil}, silent, sweep.Result{Fault: sweep.FaultSilent, Text: "no answer from c", Blame: []string{"c", "b"}}},
		"a loss comes first":         {sweep.KindRing, three, sweep.Result{Fault: sweep.FaultLost, Blame: []string{"b"}}, []*sweep.Result{silent, nil, silent}, silent, sweep.Result{Fault: sweep.FaultLost, Blame: []string{"b"}}},
		"the network of NCCL":        {sweep.KindNCCL, pair, sweep.Result{}, []*sweep.Result{{}, {Network: "Socket"}}, nil, sweep.Result{Network: "Socket"}},
		"the checks of a node":       {sweep.KindCheck, []string{"a"}, sweep.Result{}, []*sweep.Result{{Checks: []sweep.CheckResult{{Check: "x"}}}}, nil, sweep.Result{Checks: []sweep.CheckResult{{Check: "x"}}}},
		"no values beside a missing": {sweep.KindStream, pair, sweep.Result{}, []*sweep.Result{part(1), nil}, nil, sweep.Result{}},
	} {
		r := tt.have
		r.Task = sweep.Task{Kind: tt.kind, Nodes: tt.nodes}
		merge(&r, tt.parts, tt.first)
		r.Task = sweep.Task{}
		if diff := cmp.Diff(tt.want, r); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}
