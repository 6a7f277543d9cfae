package active

import (
	"math"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// judgedTrial returns the findings about measures, without the rates.
func judgedTrial(t *testing.T, env *checks.Env, of ...measure) []checks.Finding {
	t.Helper()
	findings := (&trial{do: func(r *activeRun) {
		for _, m := range of {
			r.record(m)
		}
	}}).Run(t.Context(), env)
	return checktest.Scenario{}.WithoutRates(findings)
}

// eightRates returns measures of eight GPUs, with another value for one.
func eightRates(m measure, odd float64) (list []measure) {
	for i := range checktest.H100s().GPUs {
		each := m
		each.Device = checks.GPUDevice(&checktest.H100s().GPUs[i])
		if i == 3 {
			each.Value = odd
		}
		list = append(list, each)
	}
	return list
}

// limited lowers the limits of some GPUs.
func limited(list []measure, limit string, gpus ...int) []measure {
	for _, i := range gpus {
		list[i].Limited = limit
	}
	return list
}

func TestActiveJudges(t *testing.T) {
	t.Parallel()
	copied := measure{Test: "host_to_device", Algorithm: "ce", Size: 512 << 20, Ranks: 1, Model: "H100", What: "copy", Value: 55, Unit: "GB/s"}
	floor := checks.Floor{Test: "host_to_device", Algorithm: "ce", Size: 512 << 20, Ranks: 1, Value: 54, Unit: "GB/s"}
	sure := floor
	sure.Verified = true
	latency := measure{Test: "launch", Algorithm: "sync", Ranks: 1, Model: "H100", What: "launch", Value: 4, Unit: "us", Lower: true}
	with := func(m measure, change func(*measure)) measure { change(&m); return m }
	one, two := eightRates(copied, 55)[3:4], eightRates(copied, 40)[2:4]
	for name, c := range map[string]struct {
		floors []checks.Floor
		of     []measure
		want   []string
	}{
		"alike":         {of: eightRates(copied, 54)},
		"far off":       {of: eightRates(copied, 30), want: []string{"fail trial.peers: check_trial:  gpu3 0000:13:00.0: copy: far from its peers (median 55.0 GB/s), want at least 46.8 GB/s, got 30.0 GB/s"}},
		"far better":    {of: eightRates(copied, 99)},
		"two":           {of: two, want: []string{"warn trial.peers: check_trial:  gpu3 0000:13:00.0: copy: the other one reaches 55.0 GB/s, want at least 46.8 GB/s, got 40.0 GB/s"}},
		"alone":         {of: one},
		"unlike things": {of: append(eightRates(copied, 55), eightRates(with(copied, func(m *measure) { m.Value, m.Peers = 20, "pcie" }), 20)...)},
		"other models":  {of: append(eightRates(copied, 55)[:4], eightRates(with(copied, func(m *measure) { m.Value, m.Model = 20, "V100" }), 20)[4:]...)},
		"no number":     {of: eightRates(copied, nan()), want: []string{"fail trial.peers: check_trial:  gpu3 0000:13:00.0: copy: far from its peers (median 55.0 GB/s), want at least 46.8 GB/s, got NaN GB/s"}},
		"slow launch":   {of: eightRates(latency, 9), want: []string{"fail trial.peers: check_trial:  gpu3 0000:13:00.0: launch: far from its peers (median 4.00 us), want at most 6.00 us, got 9.00 us"}},
		"quick launch":  {of: eightRates(latency, 1)},
		"a floor":       {floors: []checks.Floor{floor}, of: eightRates(copied, 53), want: []string{"warn trial.floor: check_trial:  gpu3 0000:13:00.0: copy (figure host_to_device of the platform HGX H100), want at least 54.0 GB/s, got 53.0 GB/s"}},
		"in doubt": {
			floors: []checks.Floor{sure}, of: eightRates(with(copied, func(m *measure) { m.Doubt = "memory may be far" }), 53),
			want: []string{"warn trial.floor: check_trial:  gpu3 0000:13:00.0: copy (figure host_to_device of the platform HGX H100) (memory may be far), want at least 54.0 GB/s, got 53.0 GB/s"},
		},
		"on an unknown NUMA node": {
			floors: []checks.Floor{sure}, of: eightRates(with(copied, func(m *measure) { m.Unlike = unplaced }), 53),
			want: []string{"warn trial.floor: check_trial:  gpu3 0000:13:00.0: copy (figure host_to_device of the platform HGX H100) (the kernel does not report its NUMA node), want at least 54.0 GB/s, got 53.0 GB/s"},
		},
		"on an unknown NUMA node, with a number on the line": {
			of:   eightRates(with(copied, func(m *measure) { m.Unlike, m.Least = unplaced, 54 }), 30),
			want: []string{"fail trial.slow: check_trial:  gpu3 0000:13:00.0: copy, want at least 54.0 GB/s, got 30.0 GB/s"},
		},
		"in a slower slot": {
			of:   eightRates(with(copied, func(m *measure) { m.Unlike = "its slot is x8" }), 30),
			want: []string{"warn trial.peers: check_trial:  gpu3 0000:13:00.0: copy: far from its peers (median 55.0 GB/s) (its slot is x8), want at least 46.8 GB/s, got 30.0 GB/s"},
		},
		"a sure floor":    {floors: []checks.Floor{sure}, of: eightRates(copied, 53), want: []string{"fail trial.floor: check_trial:  gpu3 0000:13:00.0: copy (figure host_to_device of the platform HGX H100), want at least 54.0 GB/s, got 53.0 GB/s"}},
		"a lowered limit": {floors: []checks.Floor{sure}, of: eightRates(with(copied, func(m *measure) { m.Limited = "its power limit is 500 of 700 W" }), 53)},
		"its own limit lowered": {
			of:   limited(eightRates(copied, 30), "its power limit is 400 W of 700 W", 3),
			want: []string{"warn trial.peers: check_trial:  gpu3 0000:13:00.0: copy: far from its peers (median 55.0 GB/s) (its power limit is 400 W of 700 W), want at least 46.8 GB/s, got 30.0 GB/s"},
		},
		"all limits lowered alike": {
			of:   limited(eightRates(copied, 30), "its power limit is 400 W of 700 W", 0, 1, 2, 3, 4, 5, 6, 7),
			want: []string{"fail trial.peers: check_trial:  gpu3 0000:13:00.0: copy: far from its peers (median 55.0 GB/s), want at least 46.8 GB/s, got 30.0 GB/s"},
		},
		"all limits lowered, another one more": {
			of:   limited(limited(eightRates(copied, 30), "its power limit is 500 W of 700 W", 0, 1, 2, 3, 4, 5, 6), "its power limit is 450 W of 700 W", 7),
			want: []string{"fail trial.peers: check_trial:  gpu3 0000:13:00.0: copy: far from its peers (median 55.0 GB/s), want at least 46.8 GB/s, got 30.0 GB/s"},
		},
		"all limits lowered, its own more": {
			of:   limited(limited(eightRates(copied, 30), "its power limit is 500 W of 700 W", 0, 1, 2, 4, 5, 6, 7), "its power limit is 450 W of 700 W", 3),
			want: []string{"warn trial.peers: check_trial:  gpu3 0000:13:00.0: copy: far from its peers (median 55.0 GB/s) (its power limit is 450 W of 700 W), want at least 46.8 GB/s, got 30.0 GB/s"},
		},
		"the limits of the others lowered": {
			of:   limited(eightRates(copied, 30), "its power limit is 400 W of 700 W", 0, 1, 2, 4, 5, 6, 7),
			want: []string{"fail trial.peers: check_trial:  gpu3 0000:13:00.0: copy: far from its peers (median 55.0 GB/s), want at least 46.8 GB/s, got 30.0 GB/s"},
		},
		"a number on the line": {floors: []checks.Floor{sure}, of: eightRates(with(copied, func(m *measure) { m.Least = 50 }), 53)},
		"another size":         {floors: []checks.Floor{sure}, of: eightRates(with(copied, func(m *measure) { m.Size = 1 << 20 }), 53)},
		"another way":          {floors: []checks.Floor{sure}, of: eightRates(with(copied, func(m *measure) { m.Algorithm = "sm" }), 53)},
		"more ranks":           {floors: []checks.Floor{sure}, of: eightRates(with(copied, func(m *measure) { m.Ranks = 2 }), 53)},
		"another unit":         {floors: []checks.Floor{sure}, of: eightRates(with(copied, func(m *measure) { m.Unit = "MB/s" }), 53)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, _ := trialEnv(t, nil)
			env.Platform = func(string, string, int) *checks.Platform {
				return &checks.Platform{Name: "HGX H100", Floors: c.floors}
			}
			wantBrief(t, judgedTrial(t, env, c.of...), c.want...)
		})
	}
}

// If all GPUs miss the number on the line, the line is the likelier cause; if one does, that GPU.
func TestActiveBlamesTheLine(t *testing.T) {
	t.Parallel()
	copied := measure{Test: "host_to_device", Algorithm: "ce", Size: 512 << 20, Ranks: 1, Model: "H100", What: "copy", Value: 55, Unit: "GB/s", Least: 50}
	for name, c := range map[string]struct {
		all, one float64
		want     checks.Remedy
		findings int
	}{
		"one of eight": {55, 48, checks.NoRemedy, 1},
		"all":          {48, 48, checks.FixConfig, 8},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, _ := trialEnv(t, nil)
			m := copied
			m.Value = c.all
			findings := judgedTrial(t, env, eightRates(m, c.one)...)
			if len(findings) != c.findings {
				t.Fatalf("%v: want %d findings", findings, c.findings)
			}
			for _, f := range findings {
				if f.Code != "trial.slow" || f.Remedy != c.want {
					t.Errorf("%s: remedy %q, want %q", f.Message, f.Remedy, c.want)
				}
			}
		})
	}
}

func nan() float64 { return math.NaN() }

// A node must reach its own baseline.
func TestActiveHoldsAgainstBaseline(t *testing.T) {
	t.Parallel()
	env, root := trialEnv(t, nil)
	copied := measure{Test: "host_to_device", Algorithm: "ce", Size: 512 << 20, Ranks: 1, Model: "H100", What: "copy", Value: 55, Unit: "GB/s"}
	slow := eightRates(copied, 50) // within what its peers allow, not what it did before
	wantBrief(t, judgedTrial(t, env, slow...))
	next := func(learn bool) *checks.Env {
		e := again(env, root, checktest.H100s())
		e.Learn = learn
		return e
	}
	for range baselineLeast {
		wantBrief(t, judgedTrial(t, next(true), eightRates(copied, 57)...))
	}
	wantBrief(t, judgedTrial(t, next(true), eightRates(copied, 20)...),
		"fail trial.peers: check_trial:  gpu3 0000:13:00.0: copy: far from its peers (median 55.0 GB/s), want at least 46.8 GB/s, got 20.0 GB/s",
		"warn active.baseline.refused: check_trial:  not recorded: 1 number of 8, because of a fault")
	wantBrief(t, judgedTrial(t, next(false), eightRates(copied, 56)...))
	wantBrief(t, judgedTrial(t, next(false), slow...),
		"fail trial.baseline: check_trial:  gpu3 0000:13:00.0: copy: worse than the node's baseline, want at least 51.3 GB/s, got 50.0 GB/s")
	for i := range slow {
		slow[i].Unlike = unplaced
	}
	wantBrief(t, judgedTrial(t, next(false), slow...),
		"warn trial.baseline: check_trial:  gpu3 0000:13:00.0: copy: worse than the node's baseline (the kernel does not report its NUMA node), want at least 51.3 GB/s, got 50.0 GB/s")
	for i := range slow {
		slow[i].Unlike, slow[i].Doubt = "", "its memory may be far"
	}
	wantBrief(t, judgedTrial(t, next(false), slow...),
		"warn trial.baseline: check_trial:  gpu3 0000:13:00.0: copy: worse than the node's baseline (its memory may be far), want at least 51.3 GB/s, got 50.0 GB/s")
	for i := range slow {
		slow[i].Value = 57
	}
	wantBrief(t, judgedTrial(t, next(true), slow...), "warn active.baseline.refused: check_trial:  not recorded: 8 numbers of 8, because of a fault")
}
