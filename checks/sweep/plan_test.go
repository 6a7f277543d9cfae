package sweep

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// TestCircle shows that the rounds of the circle method have each pair once.
func TestCircle(t *testing.T) {
	t.Parallel()
	for n := range 40 {
		seen := map[[2]int]bool{}
		for r := range circleRounds(n) {
			busy := map[int]bool{}
			for i, j := range circle(n, r) {
				pair := [2]int{min(i, j), max(i, j)}
				if i == j || i < 0 || j < 0 || i >= n || j >= n || busy[i] || busy[j] || seen[pair] {
					t.Fatalf("%d nodes, round %d: pair %d %d", n, r, i, j)
				}
				busy[i], busy[j], seen[pair] = true, true, true
			}
		}
		if len(seen) != n*(n-1)/2 && n > 0 {
			t.Errorf("%d nodes: %d pairs", n, len(seen))
		}
	}
}

// TestPickRounds shows that any choice of rounds is a connected graph with one partner a round.
func TestPickRounds(t *testing.T) {
	t.Parallel()
	for n := 2; n < 200; n++ {
		rng := rand.New(rand.NewPCG(uint64(n), 0))
		for _, count := range []int{2, 6} {
			rounds := pickRounds(rng, n, count)
			root := make([]int, n)
			for i := range root {
				root[i] = i
			}
			var find func(int) int
			find = func(i int) int {
				if root[i] != i {
					root[i] = find(root[i])
				}
				return root[i]
			}
			for _, r := range rounds {
				for i, j := range circle(n, r) {
					root[find(i)] = find(j)
				}
			}
			parts := map[int]bool{}
			for i := range n {
				parts[find(i)] = true
			}
			if len(rounds) != min(count, circleRounds(n)) || len(parts) != 1 {
				t.Errorf("%d nodes: rounds %v: %d parts", n, rounds, len(parts))
			}
		}
	}
}

func TestNewPlanErrors(t *testing.T) {
	t.Parallel()
	nodes := newWorld(2, 0, 1).nodes
	for _, tc := range []struct {
		stage Stage
		nodes []Node
		o     PlanOptions
		want  string
	}{
		{"pair", nodes, PlanOptions{}, `unknown stage "pair": want pairs`},
		{StageTCP, nil, PlanOptions{}, "plan of stage tcp: no nodes"},
		{StageTCP, append(nodes, nodes[0]), PlanOptions{}, "plan of stage tcp: node gpu00000 is twice in the list"},
		{StageTCP, []Node{{}}, PlanOptions{}, "plan of stage tcp: node 1 has no name"},
		{StageTCP, nodes, PlanOptions{Repeats: -1}, "plan of stage tcp: Repeats is -1: want a positive number"},
		{StageTCP, nodes, PlanOptions{Time: -1}, "plan of stage tcp: a time is -1ns: want a positive one"},
		{StageGroups, nodes, PlanOptions{GroupSizes: []int{1}}, "plan of stage groups: a group of 1 nodes: want 2 or more, or 0 for all"},
		{StageNode, nodes, PlanOptions{}, "plan of stage node: no check: want at least one line of nhc.conf"},
	} {
		_, err := NewPlan(tc.stage, tc.nodes, tc.o)
		if err == nil || err.Error() != tc.want {
			t.Errorf("got %v, want %s", err, tc.want)
		}
	}
}

// TestSeed shows that the same seed and results give the same tasks and suspects.
func TestSeed(t *testing.T) {
	t.Parallel()
	for _, stage := range []Stage{StageReach, StageTCP, StageGroups} {
		var first []Task
		for range 2 {
			w := newWorld(40, 8, 7)
			w.factor = map[string]float64{name(3): 0.5}
			p := w.plan(t, stage, PlanOptions{Seed: 11, FirstID: 100})
			var all []Task
			for tasks := p.Next(); len(tasks) > 0; tasks = p.Next() {
				all = append(all, tasks...)
				var results []Result
				for _, task := range tasks {
					r, _ := w.run(task)
					results = append(results, r)
				}
				p.Take(results)
			}
			if all[0].ID != 100 {
				t.Errorf("the first ID is %d", all[0].ID)
			}
			if first == nil {
				first = all
			} else if diff := cmp.Diff(first, all); diff != "" {
				t.Errorf("%s: %s", stage, diff)
			}
		}
	}
}

// TestReachPairs shows that up to 64 nodes reach tests all pairs, and beyond that six partners.
func TestReachPairs(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]int{2: 1, 3: 2, 10: 9, 64: 63, 65: 6, 300: 6} {
		w := newWorld(n, 0, 1)
		p := w.plan(t, StageReach, PlanOptions{})
		partners := map[string]map[string]bool{}
		ends := false
		for tasks := p.Next(); len(tasks) > 0; tasks = p.Next() {
			var results []Result
			for _, task := range tasks {
				if task.Kind == KindEcho && task.Plane == "eth1" {
					a, b := task.Nodes[0], task.Nodes[1]
					for _, pair := range [][2]string{{a, b}, {b, a}} {
						if partners[pair[0]] == nil {
							partners[pair[0]] = map[string]bool{}
						}
						partners[pair[0]][pair[1]] = true
					}
					ends = ends || a == name(0) && b == name(n-1) || b == name(0) && a == name(n-1)
				}
				r, _ := w.run(task)
				results = append(results, r)
			}
			p.Take(results)
		}
		short := 0
		for _, list := range partners {
			if len(list) < want {
				short++
			}
		}
		if len(partners) != n || short > 6*(n%2) || !ends { // of an odd number one is free in each round
			t.Errorf("%d nodes: %d were tested, %d with fewer than %d partners; head and tail: %v", n, len(partners), short, want, ends)
		}
	}
}

// TestOnePlaneOfTwoNames shows that interfaces in one subnet are one plane.
func TestOnePlaneOfTwoNames(t *testing.T) {
	t.Parallel()
	w := newWorld(6, 0, 1)
	for i := range w.nodes {
		if i%2 == 0 {
			w.nodes[i].Planes[1].Name = "ens1"
		}
	}
	p := w.plan(t, StageTCP, PlanOptions{NoRing: true})
	planes := map[string]bool{}
	for tasks := p.Next(); len(tasks) > 0; tasks = p.Next() {
		var results []Result
		for _, task := range tasks {
			planes[task.Plane] = true
			r, _ := w.run(task)
			results = append(results, r)
		}
		p.Take(results)
	}
	if diff := cmp.Diff(map[string]bool{"eth0": true, "10.78.0.0/16": true}, planes); diff != "" {
		t.Error(diff)
	}
}

// TestNoResults shows that a plan ends if no test ever has a result, and accuses no node.
func TestNoResults(t *testing.T) {
	t.Parallel()
	for _, stage := range Stages {
		p := newWorld(20, 4, 1).plan(t, stage, PlanOptions{Lines: []string{"check_gpu_gemm"}})
		rounds := 0
		for tasks := p.Next(); len(tasks) > 0; tasks = p.Next() {
			if rounds++; rounds > 2000 {
				t.Fatalf("%s: the plan does not end", stage)
			}
			p.Take(nil)
		}
		if s := p.Suspects(); len(s) > 0 || rounds == 0 {
			t.Errorf("%s: %d rounds, suspects %+v", stage, rounds, s)
		}
	}
}

func TestCommonest(t *testing.T) {
	t.Parallel()
	if n, times := commonest([]int{1, 9, 9, 1, 3}); n != 9 || times != 2 {
		t.Errorf("got %d %d", n, times)
	}
}

// planAll runs a plan in which every test passes.
func planAll(t testing.TB, p Plan) (rounds, tasks int) {
	t.Helper()
	for list := p.Next(); len(list) > 0; list = p.Next() {
		rounds++
		tasks += len(list)
		results := make([]Result, len(list))
		for i, task := range list {
			results[i] = Result{Task: task}
			if task.Kind != KindMTU {
				results[i].Values = []float64{1, 1, 1, 1}
			}
		}
		p.Take(results)
	}
	return rounds, tasks
}

// TestPlanning10000 counts what a plan of 10,000 nodes costs: its tasks, and no list of 50 million pairs.
func TestPlanning10000(t *testing.T) {
	t.Parallel()
	for stage, want := range map[Stage][2]int{
		StageTCP:    {2*2*2 + 1, 2*2*2*5000 + 625},
		StageRDMA:   {2 * 2 * 3, 2 * 2 * 3 * 5000},
		StagePairs:  {2 * 5, 2 * 5 * 5000},
		StageGroups: {14 * 3, 3 * 10000},
		StageReach:  {6*3*2 + 6*2, (6*3*2+6*2)*5000 + 0},
	} {
		w := newWorld(10000, 32, 1)
		o := PlanOptions{NoRing: true}
		if stage == StageTCP {
			want = [2]int{8, 40000}
		}
		p := w.plan(t, stage, o)
		rounds, tasks := planAll(t, p)
		if more := rounds - want[0]; more < 0 || more > 16 || tasks < want[1]-60 || tasks > want[1]+16 { // head and tail
			t.Errorf("%s: %d rounds, %d tasks, want %v", stage, rounds, tasks, want)
		}
	}
}

func BenchmarkPlan10000(b *testing.B) {
	w := newWorld(10000, 32, 1)
	b.ReportAllocs()
	for b.Loop() {
		planAll(b, w.plan(b, StageTCP, PlanOptions{NoRing: true}))
	}
}

// outcome counts what a simulation missed and accused.
type outcome struct {
	missed, accused, doubts, bad, rounds int
}

// simulate sweeps a fleet with 1 % of bad nodes, at least one: slow in one plane, one direction, or
// altogether.
func simulate(t testing.TB, n int, seed uint64, sigma, fault float64, oneWay bool) (o outcome) {
	t.Helper()
	w := newWorld(n, 0, seed)
	for i := range w.nodes {
		w.nodes[i].Planes = w.nodes[i].Planes[:1]
	}
	w.sigma, w.factor = sigma, map[string]float64{}
	bad := map[string]bool{}
	rng := rand.New(rand.NewPCG(seed, 99))
	for range max(n/100, 1) {
		b := name(rng.IntN(n))
		bad[b] = true
		key := b
		if oneWay {
			key = b + []string{"/sends", "/receives"}[rng.IntN(2)]
		}
		w.factor[key] = 1 - fault
	}
	p := w.plan(t, StageTCP, PlanOptions{Seed: seed, NoRing: true})
	for tasks := p.Next(); len(tasks) > 0; tasks = p.Next() {
		o.rounds++
		results := make([]Result, len(tasks))
		for i, task := range tasks {
			results[i], _ = w.run(task)
		}
		p.Take(results)
	}
	found := map[string]bool{}
	for _, s := range p.Suspects() {
		switch {
		case s.Doubt:
			o.doubts++
		case s.Peer != "" || !bad[s.Node]:
			o.accused++
		default:
			found[s.Node] = true
		}
	}
	o.bad, o.missed = len(bad), len(bad)-len(found)
	return o
}

func simulateMany(t *testing.T, seeds int, size func(seed uint64) int, sigma, fault float64, oneWay bool) {
	t.Helper()
	var all outcome
	for seed := range uint64(seeds) {
		o := simulate(t, size(seed), seed, sigma, fault, oneWay)
		if o.missed > 0 || o.accused > 0 || o.doubts > 0 {
			t.Errorf("seed %d, %d nodes: %+v", seed, size(seed), o)
		}
		all = outcome{all.missed + o.missed, all.accused + o.accused, all.doubts + o.doubts, all.bad + o.bad, all.rounds + o.rounds}
	}
	t.Logf("noise %v, fault %v, one way %v: %d seeds, %d bad nodes, %d missed, %d accused, %.1f rounds", sigma, fault, oneWay, seeds, all.bad, all.missed, all.accused, float64(all.rounds)/float64(seeds))
}

// TestPromise shows the promise in small: 5 % of noise, faults of 15 %.
func TestPromise(t *testing.T) {
	t.Parallel()
	simulateMany(t, 20, func(uint64) int { return 500 }, 0.05, 0.15, false)
	simulateMany(t, 10, func(uint64) int { return 500 }, 0.05, 0.15, true)
}

// TestPromise1000 shows it for 1,000 seeds.
func TestPromise1000(t *testing.T) {
	tier.All(t)
	size := func(seed uint64) int { return 64 + int(seed*37%449) }
	simulateMany(t, 1000, size, 0.05, 0.15, false)
	simulateMany(t, 200, size, 0.05, 0.15, true)
}

// TestPromise10000 shows it for 1,000 seeds of 10,000 nodes.
func TestPromise10000(t *testing.T) {
	tier.Long(t)
	simulateMany(t, 1000, func(uint64) int { return 10000 }, 0.05, 0.15, false)
}

// TestSmallestFault shows that the stated smallest fault is found, and that a much smaller one is not
// promised in vain.
func TestSmallestFault(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		sigma   float64
		repeats int
		want    float64
	}{{0.05, 4, 0.142}, {0.05, 10, 0.119}, {0.02, 4, 0.105}, {0.02, 1, 0.129}, {0, 4, 0.105}} {
		if got := smallestFault(tc.sigma, tc.repeats); math.Abs(got-tc.want) > 0.001 {
			t.Errorf("noise %v, %d repeats: got %.4f, want %.3f", tc.sigma, tc.repeats, got, tc.want)
		}
	}
	for _, sigma := range []float64{0.02, 0.05, 0.08} {
		fault := smallestFault(sigma, 4)
		simulateMany(t, 10, func(uint64) int { return 300 }, sigma, fault+0.01, true)
		found := 0
		for seed := range uint64(5) {
			o := simulate(t, 300, seed, sigma, fault/4, true)
			found += o.bad - o.missed
		}
		if found > 0 {
			t.Errorf("noise %v: %d faults of %.3f are found: the stated one is too large", sigma, found, fault/4)
		}
	}
}

// TestSmallestFaultInDocs compares the table in docs/sweep.md.
func TestSmallestFaultInDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/sweep.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| noise | 1 repeat | 4 repeats | 10 repeats |\n|---|---|---|---|\n")
	rows := 0
	for line := range strings.Lines(table) {
		var noise, one, four, ten float64
		if n, _ := fmt.Sscanf(line, "| %f %% | %f %% | %f %% | %f %% |", &noise, &one, &four, &ten); n != 4 {
			break
		}
		rows++
		for repeats, got := range map[int]float64{1: one, 4: four, 10: ten} {
			if want := 100 * smallestFault(noise/100, repeats); math.Abs(got-want) > 0.051 {
				t.Errorf("noise %v %%, %d repeats: docs/sweep.md has %v %%, want %.1f %%", noise, repeats, got, want)
			}
		}
	}
	if rows < 6 {
		t.Errorf("docs/sweep.md has %d rows of the table of the smallest fault", rows)
	}
}

// TestRounds shows how often a fault that comes and goes must be looked at.
func TestRounds(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		share, sure float64
		want        int
	}{{0.3, 0.99, 13}, {0.3, 1 - 1e-8, 52}, {0.05, 0.99, 90}, {1, 0.99, 1}} {
		if got := Rounds(tc.share, tc.sure); got != tc.want {
			t.Errorf("%v: got %d, want %d", tc, got, tc.want)
		}
	}
}

// TestSchemes compares ways to test a fleet, for the table in docs/sweep.md.
func TestSchemes(t *testing.T) {
	tier.All(t)
	const n, seeds, sigma, fault = 1000, 20, 0.05, 0.15
	for _, scheme := range []struct {
		name    string
		repeats int
		rounds  int     // of all nodes
		second  bool    // suspects once more with another partner
		cut     float64 // in sigma
	}{
		{"one round, one value", 1, 1, false, 2.5},
		{"one round, four repeats", 4, 1, false, 2.5},
		{"one round, four repeats, cut 3.5", 4, 1, false, 3.5},
		{"two rounds", 4, 1, true, 2.5},
		{"two rounds, cut 3.5", 4, 1, true, 3.5},
		{"all pairs, mean of a node", 1, n - 1, false, 4.5},
	} {
		missed, accused, bad := 0, 0, 0
		for seed := range uint64(seeds) {
			rng := rand.New(rand.NewPCG(seed, 5))
			factor := make([]float64, n)
			for i := range factor {
				if factor[i] = 1; i < n/100 {
					factor[i] = 1 - fault
				}
			}
			s := sigma / math.Sqrt(float64(scheme.repeats))
			value := func(i, j int) float64 { return min(factor[i], factor[j]) * (1 + s*rng.NormFloat64()) }
			sum := make([]float64, n)
			suspects := map[int]bool{}
			order := rng.Perm(n)
			for r := range scheme.rounds {
				for i, j := range circle(n, r) {
					i, j = order[i], order[j]
					v := value(i, j)
					sum[i], sum[j] = sum[i]+v, sum[j]+v
				}
			}
			k := float64(scheme.rounds)
			for i, v := range sum {
				if v/k < 1-scheme.cut*s/math.Sqrt(k)-boolean(k > 1)*0.01 { // 1 % of the partners are bad
					suspects[i] = true
				}
			}
			if scheme.second {
				for _, i := range slices.Sorted(mapsKeys(suspects)) {
					j := n/100 + rng.IntN(n-n/100)
					if value(i, j) >= 1-scheme.cut*s {
						delete(suspects, i)
					}
				}
			}
			bad += n / 100
			for i := range n {
				switch {
				case i < n/100 && !suspects[i]:
					missed++
				case i >= n/100 && suspects[i]:
					accused++
				}
			}
		}
		t.Logf("%-34s missed %.2f of 100, accused %.2f a sweep", scheme.name, 100*float64(missed)/float64(bad), float64(accused)/seeds)
		if scheme.name == "one round, four repeats" && accused < seeds {
			t.Errorf("a single round accuses %d healthy nodes: want the partners of bad nodes at least", accused)
		}
	}
}

// TestCables shows how many rounds it takes to meet a bad path between two leaves: a cable of one pair
// of 313 leaves, and one of 64 uplinks of a leaf.
func TestCables(t *testing.T) {
	t.Parallel()
	const n, perLeaf = 10000, 32
	order := rand.New(rand.NewPCG(1, 1)).Perm(n)
	met := map[[2]int]bool{}
	leaves := (n + perLeaf - 1) / perLeaf
	all := float64(leaves * (leaves - 1) / 2)
	for r := range 45 {
		for i, j := range circle(n, r) {
			a, b := order[i]/perLeaf, order[j]/perLeaf
			if a != b {
				met[[2]int{min(a, b), max(a, b)}] = true
			}
		}
		share := float64(len(met)) / all
		if want := 1 - math.Pow(1-perLeaf*perLeaf/float64(n-1), float64(r+1)); math.Abs(share-want) > 0.025 { // rounds are not independent
			t.Errorf("%d rounds meet %.3f of all pairs of leaves, want about %.3f", r+1, share, want)
		}
		if r == 0 || r == 1 || r == 9 || r == 44 {
			t.Logf("%d rounds meet %.1f %% of %.0f pairs of leaves", r+1, 100*share, all)
		}
	}
	for _, tc := range []struct{ rounds, flows int }{{2, 1}, {3, 1}, {2, 8}, {3, 8}} {
		t.Logf("%d rounds, %d flows: one of 64 uplinks is met with %.4f", tc.rounds, tc.flows, 1-math.Pow(63.0/64, float64(tc.rounds*tc.flows*perLeaf)))
	}
}

func boolean(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func mapsKeys(m map[int]bool) func(func(int) bool) {
	return func(yield func(int) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// TestFlaky shows which faults that come and go are found: 20 windows a repeat, four repeats.
func TestFlaky(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		share float64
		found bool
	}{{0.3, true}, {0.2, true}, {0.02, false}} {
		missed, bad := 0, 0
		for seed := range uint64(6) {
			w := newWorld(200, 0, seed)
			w.window = 20
			w.flaky = map[string][2]float64{name(3): {tc.share, 0.5}, name(77): {tc.share, 0.5}}
			suspects := w.drive(t, w.plan(t, StageTCP, PlanOptions{Seed: seed, NoRing: true, Planes: []string{"eth0"}}))
			bad += 2
			found := map[string]bool{}
			for _, s := range suspects {
				if s.Node != name(3) && s.Node != name(77) || s.Peer != "" {
					t.Errorf("accused: %+v", s)
				}
				found[s.Node] = true
			}
			missed += 2 - len(found)
		}
		t.Logf("in %v of the windows: %d of %d missed", tc.share, missed, bad)
		if tc.found != (missed == 0) {
			t.Errorf("in %v of the windows: %d of %d missed, want found: %v", tc.share, missed, bad, tc.found)
		}
	}
}

// TestMemory shows that planning 10,000 nodes keeps no list of all pairs.
func TestMemory(t *testing.T) {
	w := newWorld(10000, 0, 1)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := w.plan(t, StageTCP, PlanOptions{NoRing: true})
	p.Next()
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 64<<20 {
		t.Errorf("a plan and its first round take %d MiB", grown>>20)
	}
}

// A lost node is a suspect if Slurm does not reach it. Nodes that were lost together may share the cause.
func TestLostNodes(t *testing.T) {
	t.Parallel()
	type lost struct {
		node     int
		at       int // seconds
		gone     bool
		responds bool
	}
	for name, tt := range map[string]struct {
		lost []lost
		want []string // of each suspect: its nodes, leaves, and whether it is in doubt
	}{
		"one":                 {[]lost{{0, 0, true, false}}, []string{"gpu00000"}},
		"one that responds":   {[]lost{{0, 0, false, true}}, nil},
		"Slurm is silent":     {[]lost{{0, 0, false, false}}, []string{"doubt gpu00000"}},
		"one after the other": {[]lost{{0, 0, true, false}, {8, 11, true, false}}, []string{"gpu00000", "gpu00008"}},
		"together":            {[]lost{{8, 9, true, false}, {0, 0, true, false}, {1, 10, true, false}, {16, 60, true, false}}, []string{"gpu00016", "doubt gpu00000,gpu00008,gpu00001"}},
		"some of a leaf":      {[]lost{{0, 0, true, false}, {1, 3, true, false}, {2, 2, false, true}}, []string{"doubt gpu00000,gpu00001 leaf0"}},
		"a leaf": {[]lost{{0, 0, true, false}, {1, 9, true, false}, {2, 18, false, false}, {3, 27, true, false}, {4, 9, true, false}},
			[]string{"gpu00004", "doubt gpu00000,gpu00001,gpu00002,gpu00003 leaf0"}},
		"a leaf, hours apart": {[]lost{{0, 0, true, false}, {1, 5, true, false}, {2, 5000, false, false}, {3, 9000, true, false}},
			[]string{"gpu00003", "doubt gpu00000,gpu00001 leaf0", "doubt gpu00002"}},
	} {
		f, err := newFleet(StagePairs, newWorld(20, 4, 1).nodes, PlanOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range tt.lost {
			n := f.name(int32(l.node))
			f.kill(Result{Task: Task{Nodes: []string{n}}, Fault: FaultLost, Blame: []string{n}, Losses: []Loss{{Node: n, At: time.Unix(int64(l.at), 0), Gone: l.gone, Responds: l.responds}}})
			if f.tested(int32(l.node)) {
				t.Errorf("%s: %s still takes part", name, n)
			}
		}
		suspects := f.lostSuspects()
		sortSuspects(suspects)
		var got []string
		for _, s := range suspects {
			text := strings.Join(slices.Concat([]string{s.Node}, s.Partners), ",")
			text = strings.Trim(text, ",") + " " + strings.Join(s.Leaves, ",")
			if s.Doubt {
				text = "doubt " + text
			}
			got = append(got, strings.TrimSpace(text))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// The work for each of many lost nodes, and for each of many groups, does not grow with their number.
func TestWorkOfMany(t *testing.T) { // others would allocate memory, too
	const n = 2000
	f, err := newFleet(StageGroups, newWorld(n, 0, 1).nodes, PlanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	results := make([]Result, n)
	for i := range results {
		node := name(i)
		results[i] = Result{Task: Task{Nodes: []string{node}}, Fault: FaultLost, Blame: []string{node}, Began: time.Unix(int64(20*i), 0)}
	}
	if allocations := testing.AllocsPerRun(1, func() {
		clear(f.dead)
		f.gone = nil
		for _, r := range results {
			f.kill(r)
		}
	}); allocations > n {
		t.Errorf("%v allocations for %d lost nodes", allocations, n)
	}
	if got := len(f.lostSuspects()); got != n {
		t.Errorf("%d suspects of %d lost nodes", got, n)
	}
	p := newGroupPlan(f, PlanOptions{}, []series{{}}, nil)
	key := refKey{size: 2}
	p.refs[key] = []float64{8, 12, 10}
	limit, expect := p.boundsOf(0, 2, "")
	if allocations := testing.AllocsPerRun(1, func() { p.boundsOf(0, 2, "") }); allocations > 0 {
		t.Errorf("%v allocations for a group", allocations)
	}
	p.refs[key] = append(p.refs[key], 50, 50, 50)
	if later, more := p.boundsOf(0, 2, ""); later == limit || more <= expect {
		t.Errorf("limit %v and then %v, expected %v and then %v", limit, later, expect, more)
	}
}

// The forecast has the time in which GPU work begins.
func TestForecastHasTheRamp(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stage     Stage
		perSecond int
		want      time.Duration // in the first round, and in each later one
		later     time.Duration
	}{
		"all at once":    {StagePairs, 0, 0, 0},
		"few per second": {StagePairs, 10, 99800 * time.Millisecond, 9980 * time.Millisecond},
		"many":           {StagePairs, 500, 1996 * time.Millisecond, 1996 * time.Millisecond},
		"no GPUs":        {StageTCP, 10, 0, 0},
		"checks":         {StageNode, 10, 99900 * time.Millisecond, 9990 * time.Millisecond},
	} {
		plan := func() Plan { return newWorld(1000, 0, 1).plan(t, tt.stage, PlanOptions{Lines: []string{"a", "b"}}) }
		without, with := Foresee(tt.stage, plan(), 0), Foresee(tt.stage, plan(), tt.perSecond)
		want := without.About + tt.want + time.Duration(without.Rounds-1)*tt.later
		if with.About != want || with.Rounds != without.Rounds {
			t.Errorf("%s: %v in %d rounds, want %v", name, with.About, with.Rounds, want)
		}
	}
}
