package active

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

func TestToleranceOf(t *testing.T) {
	t.Parallel()
	rows, err := parseActiveRows(activeData)
	if err != nil {
		t.Fatal(err)
	}
	for test, row := range rows.tolerances {
		if len(row.Source) < 20 && !strings.HasPrefix(row.Source, "as ") {
			t.Errorf("%q: source %q", test, row.Source)
		}
	}
	if got := toleranceOf("memory_bandwidth"); got.Test != "memory_bandwidth" || got.Peers >= toleranceOf("launch").Peers {
		t.Errorf("%+v", got)
	}
	if got := toleranceOf("one of tomorrow"); got.Test != "" || got.MADs < 1 || got.Peers == 0 || got.Baseline == 0 {
		t.Errorf("the others: %+v", got)
	}
}

func TestWrongTolerances(t *testing.T) {
	t.Parallel()
	const row = "[[tolerance]]\ntest = \"\"\npeers = 0.1\nbaseline = 0.1\nmads = 6\nsource = \"s\"\n"
	for text, want := range map[string]string{
		"":        `no row for test ""`,
		row + row: "duplicate",
		"x = 1":   "unknown key x",
		row + "[[floor]]\ntest = \"a\"\nfigure = \"speed\"\npart = 0.5\n": `floor of test "a": want a figure with its part, or a value`,
		row + "[[floor]]\ntest = \"a\"\nvalue = 1\n":                      `floor of test "a": want test, algorithm, unit and source`,
		strings.Replace(row, "mads", "warn = 0.1\nmads", 1):               "warn 0.1, again 0: want less than peers",
		"[": "expected",
		strings.Replace(row, "peers = 0.1", "peers = 15", 1):       "peers 15, baseline 0.1: want parts of 1",
		strings.Replace(row, "baseline = 0.1", "baseline = 0", 1):  "baseline 0: want parts of 1",
		strings.Replace(row, "mads = 6", "mads = 0", 1):            "mads 0: want 1 or more",
		strings.Replace(row, "source = \"s\"", "source = \"\"", 1): "no source",
	} {
		if _, err := parseActiveRows(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// Each test of GPUs without a limit of its own has a default time, and a wrong row is rejected.
func TestActiveTimes(t *testing.T) {
	t.Parallel()
	if _, err := parseActiveTimes(activeTimes); err != nil {
		t.Fatal(err)
	}
	const row = "[[time]]\ntest = \"\"\nbound = \"40s\"\npatience = \"10s\"\nsource = \"s\"\n"
	for text, want := range map[string]string{
		row:                                   `no row for test "nccl"`,
		strings.Replace(row, "10s", "40s", 1): "want a patience below the bound",
		row + "x = 1":                         "unknown key time.x",
	} {
		if _, err := parseActiveTimes(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if network := timeOf(timeOfNetwork); network.Patience <= 30*time.Second || network.Bound < network.Patience+30*time.Second {
		t.Errorf("%v of %v: NCCL itself waits for 30s", network.Patience, network.Bound)
	}
	for _, name := range checks.Names() {
		info, _ := checks.Lookup(name)
		c, ok := info.New().(checks.Bounded)
		if !ok || !info.Active || info.Lane != checks.CUDA || strings.HasPrefix(name, "check_ib_") {
			continue
		}
		if least := timeOf(timeOfOthers).Bound; c.Bound() < least {
			t.Errorf("%s: at most %v, want %v: GPUs without persistence mode are slow to begin", name, c.Bound(), least)
		}
	}
}

// A node with uniformly slow GPUs is reported, each model by its own figures. A GPU with lowered
// limits, another algorithm and a small size are not judged.
func TestCommonFloors(t *testing.T) {
	t.Parallel()
	h100 := &checks.Platform{Name: "HGX H100", MemoryPeak: 3350, BF16: 794}
	triad := measure{Test: "memory_bandwidth", Algorithm: "triad", Size: 512 << 20, Ranks: 1, What: "triad", Unit: "GB/s", Value: 2500}
	gemm := measure{Test: "gemm", Algorithm: "bf16 cublaslt", Size: 8192, Ranks: 1, What: "bf16", Unit: "TFLOP/s", Value: 500}
	launch := measure{Test: "launch", Algorithm: "empty", Ranks: 1, What: "launch", Unit: "us", Lower: true, Value: 80}
	with := func(m measure, change func(*measure)) measure { change(&m); return m }
	for name, c := range map[string]struct {
		platform *checks.Platform
		of       measure
		want     string
	}{
		"slow memory":            {h100, triad, "at least 2680 GB/s"},
		"healthy memory":         {h100, with(triad, func(m *measure) { m.Value = 2950 }), ""},
		"small arrays":           {h100, with(triad, func(m *measure) { m.Size = 64 << 10 }), ""},
		"copy":                   {h100, with(triad, func(m *measure) { m.Algorithm = "copy" }), ""},
		"no figure":              {&checks.Platform{Name: "L4"}, triad, ""},
		"no platform":            {nil, triad, ""},
		"slow products":          {h100, gemm, "at least 635.2 TFLOP/s"},
		"healthy products":       {h100, with(gemm, func(m *measure) { m.Value = 690 }), ""},
		"own kernels":            {h100, with(gemm, func(m *measure) { m.Algorithm = "bf16 own" }), ""},
		"a lowered power limit":  {h100, with(gemm, func(m *measure) { m.Limited = "power limit 500 of 700 W" }), ""},
		"a number of the line":   {h100, with(gemm, func(m *measure) { m.Least = 400 }), ""},
		"soak":                   {h100, with(gemm, func(m *measure) { m.Test = "soak" }), "at least 555.8 TFLOP/s"},
		"a warm soak":            {h100, with(gemm, func(m *measure) { m.Test, m.Value = "soak", 600 }), ""},
		"slow launches anywhere": {nil, launch, "at most 30.0 us"},
		"a virtual machine":      {h100, with(launch, func(m *measure) { m.Value = 18 }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, _ := trialEnv(t, nil)
			env.Platform = func(string, string, int) *checks.Platform { return c.platform }
			findings := judgedTrial(t, env, eightRates(c.of, c.of.Value)...)
			want := 0
			if c.want != "" {
				want = 8
			}
			if len(findings) != want {
				t.Fatalf("%q", brief(findings))
			}
			for _, f := range findings {
				if f.Severity != checks.Warn || f.Code != "trial.floor" || f.Want != c.want {
					t.Errorf("%s %s, want %s", f.Severity, f.Code, f.Want)
				}
			}
		})
	}
}

// A GPU below its peers fails if a second measurement confirms it, among at least three.
func TestPeersAreMeasuredAgain(t *testing.T) {
	t.Parallel()
	gemm := measure{Test: "gemm", Algorithm: "bf16 own", Size: 4096, Ranks: 1, Model: "H100", What: "bf16", Unit: "TFLOP/s", Value: 600}
	rates := func(n int, odd, again float64) []measure {
		list := eightRates(gemm, odd)
		list[3].Again = again
		return list[3 : 3+n]
	}
	for name, c := range map[string]struct {
		of   []measure
		want []string
	}{
		"healthy spread":     {rates(5, 550, 0), nil},
		"a little below":     {rates(5, 520, 0), []string{"warn at least 540.0 TFLOP/s"}},
		"far below, once":    {rates(5, 400, 0), []string{"warn at least 540.0 TFLOP/s"}},
		"far below, and not": {rates(5, 400, 590), []string{"warn at least 540.0 TFLOP/s"}},
		"far below, twice":   {rates(5, 400, 410), []string{"fail at least 480.0 TFLOP/s"}},
		"one of two":         {rates(2, 400, 400), []string{"warn at least 480.0 TFLOP/s"}},
		"one of three":       {rates(3, 400, 400), []string{"fail at least 480.0 TFLOP/s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, _ := trialEnv(t, nil)
			var got []string
			for _, f := range judgedTrial(t, env, c.of...) {
				got = append(got, f.Severity.String()+" "+f.Want)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
