package active

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// baselineNode returns a node with the driver's files of two GPUs, and a state directory.
func baselineNode(t *testing.T, driver string, uuids ...string) (*checks.Env, string) {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{
		"proc/sys/kernel/random/boot_id": "b00t\n",
		"proc/driver/nvidia/version":     "NVRM version: NVIDIA UNIX x86_64 Kernel Module  " + driver + "  Mon Jan  1 00:00:00 UTC 2024\n",
	}
	for i, uuid := range uuids {
		files["proc/driver/nvidia/gpus/0000:0"+string(rune('1'+i))+":00.0/information"] = "Model: \t NVIDIA H100\nGPU UUID: \t " + uuid + "\nDevice Minor: \t " + string(rune('0'+i)) + "\n"
	}
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return baselineEnv(root), root
}

func baselineEnv(root string) *checks.Env {
	env := &checks.Env{Host: probe.NewHost(root)}
	env.Host.SetPast("/past")
	return env
}

func gemmOf(value float64) measure {
	return measure{
		Test: "gemm", Algorithm: "bf16 cublaslt", Size: 8192, Ranks: 1, What: "BF16", Unit: "TFLOP/s", Value: value,
		Device: checks.Device{Kind: "gpu", Name: "gpu0", PCI: "0000:01:00.0", UUID: "GPU-a"},
	}
}

// learnAll records each number in a test of its own.
func learnAll(t *testing.T, env *checks.Env, m func(float64) measure, values ...float64) {
	t.Helper()
	env.Learn = true
	defer func() { env.Learn = false }()
	for _, v := range values {
		b := recallBaselines(env)
		b.judge(m(v))
		b.learn(m(v))
		if f := keepBaselines(env, "check_x", b); len(f) > 0 {
			t.Fatalf("%+v", f)
		}
	}
}

// From five samples on a number is judged by their median and spread, and never by those of
// another test, algorithm, size, device or driver.
func TestBaselineJudges(t *testing.T) {
	t.Parallel()
	env, root := baselineNode(t, "550.1", "GPU-a", "GPU-b")
	bad := func(env *checks.Env, m measure) bool {
		want, bad := recallBaselines(env).judge(m)
		if bad && !m.worse(want) {
			t.Errorf("%+v is bad, and not worse than %v", m, want)
		}
		return bad
	}
	learnAll(t, env, gemmOf, 700, 702, 698, 701)
	if bad(env, gemmOf(100)) {
		t.Error("four samples judge")
	}
	learnAll(t, env, gemmOf, 699)
	// The median is 700, its MAD 1: 10 % of the median is farther than 6 sigma.
	for value, want := range map[float64]bool{700: false, 631: false, 629: true, 0: true, 900: false, math.NaN(): true} {
		if got := bad(env, gemmOf(value)); got != want {
			t.Errorf("%v is bad: %v, want %v", value, got, want)
		}
	}
	for name, change := range map[string]func(*measure){
		"test":      func(m *measure) { m.Test = "memory_bandwidth" },
		"algorithm": func(m *measure) { m.Algorithm = "bf16 own" },
		"size":      func(m *measure) { m.Size = 4096 },
		"ranks":     func(m *measure) { m.Ranks = 8 },
		"device":    func(m *measure) { m.Device.PCI = "0000:02:00.0" },
		"board":     func(m *measure) { m.Device.UUID = "GPU-c" },
		"the node":  func(m *measure) { m.Device = checks.Device{} },
	} {
		m := gemmOf(1)
		if change(&m); bad(env, m) {
			t.Errorf("another %s is judged", name)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "proc/driver/nvidia/version"), []byte("NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.2  Mon\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := recallBaselines(baselineEnv(root))
	if _, bad := b.judge(gemmOf(1)); bad {
		t.Error("another driver is judged")
	}
	got := b.reportDoubts("check_gpu_gemm")
	if len(got) != 1 || got[0].Code != "active.baseline.driver" || got[0].Severity != checks.Warn ||
		got[0].Message != "check_gpu_gemm:  the baseline is from another driver and is not used, want 550.1, got 560.2" {
		t.Errorf("%+v", got)
	}
}

// A GPU with a lowered limit is compared only with samples of the same limit, and does not add to others.
func TestBaselineLimit(t *testing.T) {
	t.Parallel()
	env, _ := baselineNode(t, "550.1", "GPU-a")
	capped := func(value float64) measure {
		m := gemmOf(value)
		m.Limited = "its power limit is 500 W of 700 W"
		return m
	}
	reported := func(m measure, want ...string) {
		t.Helper()
		r := &activeRun{activeTest: activeTest{Check: "check_gpu_gemm", Code: "gpu.gemm"}, env: env}
		r.record(m)
		r.judge()
		wantBrief(t, checktest.Scenario{}.WithoutRates(r.findings), want...)
	}
	learnAll(t, env, gemmOf, 700, 700, 700, 700, 700)
	reported(capped(590), "warn active.baseline.limit: check_gpu_gemm:  the baseline is from before a limit was lowered and is not used for 1 number (first: gpu0 0000:01:00.0), "+
		"got its power limit is 500 W of 700 W")
	reported(gemmOf(590), "fail gpu.gemm.baseline: check_gpu_gemm:  gpu0 0000:01:00.0: BF16: worse than the node's baseline, want at least 630.0 TFLOP/s, got 590.0 TFLOP/s")
	learnAll(t, env, capped, 590, 590, 590, 590)
	reported(capped(300))
	learnAll(t, env, capped, 590)
	reported(capped(590))
	reported(capped(500), "fail gpu.gemm.baseline: check_gpu_gemm:  gpu0 0000:01:00.0: BF16: worse than the node's baseline, want at least 531.0 TFLOP/s, got 500.0 TFLOP/s")
	reported(gemmOf(500), "fail gpu.gemm.baseline: check_gpu_gemm:  gpu0 0000:01:00.0: BF16: worse than the node's baseline, want at least 531.0 TFLOP/s, got 500.0 TFLOP/s")
}

// A node with a large spread is not compared with the limit of a node with a small one; for
// latencies more is worse.
func TestBaselineSpread(t *testing.T) {
	t.Parallel()
	env, _ := baselineNode(t, "550.1", "GPU-a")
	learnAll(t, env, gemmOf, 700, 600, 500, 650, 550) // median 600, MAD 50
	want, bad := recallBaselines(env).judge(gemmOf(200))
	if limit := 600 - 6*madSigma*50; bad || math.Abs(want-limit) > 1e-9 {
		t.Errorf("want %v, %v; want %v", want, bad, limit)
	}
	launch := func(v float64) measure {
		m := gemmOf(v)
		m.Test, m.Unit, m.Lower = "launch", "us", true
		return m
	}
	learnAll(t, env, launch, 5, 5, 5, 5, 5)
	for value, want := range map[float64]bool{1: false, 7.4: false, 7.6: true} {
		if _, bad := recallBaselines(env).judge(launch(value)); bad != want {
			t.Errorf("%v us is bad: %v", value, bad)
		}
	}
}

// Only a run that records a baseline adds samples; the oldest are dropped, and all of another
// board in the same slot.
func TestBaselineLearns(t *testing.T) {
	t.Parallel()
	env, root := baselineNode(t, "550.1", "GPU-a")
	b := recallBaselines(env)
	b.learn(gemmOf(700))
	if rows, err := Baselines(env); err != nil || len(rows) > 0 || len(b.learned) > 0 {
		t.Errorf("learned by the way: %+v, %v", rows, err)
	}
	var many []float64
	for i := range baselineMost + 9 {
		many = append(many, 1000+float64(i))
	}
	learnAll(t, env, gemmOf, many...)
	rows, err := Baselines(env)
	if err != nil || len(rows) != 1 || rows[0].Samples != baselineMost || rows[0].Median != 1009+float64(baselineMost/2) || rows[0].Driver != "550.1" {
		t.Errorf("%+v, %v", rows, err)
	}
	other := func(v float64) measure {
		m := gemmOf(v)
		m.Device.UUID = "GPU-new"
		return m
	}
	learnAll(t, env, other, 800)
	if rows, err = Baselines(env); err != nil || len(rows) != 1 || rows[0].Samples != 1 || rows[0].Median != 800 || rows[0].Limit != 0 {
		t.Errorf("another board: %+v, %v", rows, err)
	}
	if st, err := os.Stat(filepath.Join(root, "past", baselineName+".json")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	if !BaselineOfThisNode(env) {
		t.Error("not of this node")
	}
	learnAll(t, env, func(v float64) measure { m := other(v); m.Test = "all_reduce"; return m }, 400)
	for _, c := range []struct{ words, cleared []string }{{[]string{"all_reduce"}, []string{"all_reduce"}}, {nil, []string{"gemm"}}, {nil, nil}} {
		cleared, err := ClearBaseline(env, c.words, "root")
		if diff := cmp.Diff(c.cleared, cleared); diff != "" || err != nil {
			t.Errorf("clear %v: %v (-want +got):\n%s", c.words, err, diff)
		}
	}
	if _, err := ClearBaseline(env, []string{"a", "b"}, "root"); err == nil {
		t.Error("two tests at once")
	}
	if BaselineOfThisNode(env) {
		t.Error("nothing is of this node")
	}
}

// A number that is a fault is not recorded, which is reported; nor is any number of a run with
// another failure.
func TestBaselineRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(*activeRun)
		learned int
		refused string
	}{
		"healthy":         {func(*activeRun) {}, 4, ""},
		"slow GPU":        {func(r *activeRun) { r.measures[2].Value = 300 }, 3, "not recorded: 1 number of 4"},
		"below its words": {func(r *activeRun) { r.measures[0].Least = 1000 }, 3, "not recorded: 1 number of 4"},
		"not a number":    {func(r *activeRun) { r.measures[0].Value = math.NaN() }, 3, "not recorded: 1 number of 4"},
		"wrong result": {func(r *activeRun) {
			r.report(checks.Device{}, checks.Finding{Code: "x", Severity: checks.Fail}, "a wrong bit")
		}, 0, "not recorded: 4 numbers of 4"},
		"stopped before end": {func(r *activeRun) { r.failures = true }, 0, "not recorded: 4 numbers of 4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, _ := baselineNode(t, "550.1", "GPU-a")
			env.Learn = true
			r := &activeRun{activeTest: activeTest{Check: "check_gpu_gemm", Code: "gpu.gemm"}, env: env}
			for i := range 4 {
				m := gemmOf(700)
				m.Device.PCI, m.Device.Name = "0000:0"+string(rune('1'+i))+":00.0", "gpu"+string(rune('0'+i))
				r.record(m)
			}
			c.prepare(r)
			r.judge()
			rows, err := Baselines(env)
			if err != nil || len(rows) != c.learned {
				t.Errorf("learned %d, want %d: %v", len(rows), c.learned, err)
			}
			said := slices.IndexFunc(r.findings, func(f checks.Finding) bool { return f.Code == "active.baseline.refused" })
			if c.refused == "" && said >= 0 || c.refused != "" && (said < 0 || !strings.Contains(r.findings[said].Message, c.refused)) {
				t.Errorf("%+v, want %q", r.findings, c.refused)
			}
		})
	}
}

// A number below the node's baseline fails once.
func TestBaselineFails(t *testing.T) {
	t.Parallel()
	env, _ := baselineNode(t, "550.1", "GPU-a")
	learnAll(t, env, gemmOf, 700, 702, 698, 701, 699)
	r := &activeRun{activeTest: activeTest{Check: "check_gpu_gemm", Code: "gpu.gemm"}, env: env}
	r.record(gemmOf(500))
	r.judge()
	if len(r.findings) != 2 || r.findings[0].Code != "gpu.gemm.baseline" || r.findings[0].Severity != checks.Fail ||
		r.findings[0].Message != "check_gpu_gemm:  gpu0 0000:01:00.0: BF16: worse than the node's baseline, want at least 630.0 TFLOP/s, got 500.0 TFLOP/s" {
		t.Errorf("%+v", r.findings)
	}
}

// An unreadable baseline judges nothing, is reported, and is replaced.
func TestBaselineBroken(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"{", `{"version": 9}`, "[]", ""} {
		env, root := baselineNode(t, "550.1", "GPU-a")
		if err := os.MkdirAll(filepath.Join(root, "past"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "past", baselineName+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		b := recallBaselines(env)
		if _, bad := b.judge(gemmOf(1)); bad {
			t.Errorf("%q judges", text)
		}
		if got := b.reportDoubts("check_x"); len(got) != 1 || got[0].Code != "active.past" || got[0].Severity != checks.Warn {
			t.Errorf("%q: %+v", text, got)
		}
		if _, err := Baselines(env); err == nil {
			t.Errorf("%q is shown", text)
		}
		learnAll(t, env, gemmOf, 700)
		if rows, err := Baselines(env); err != nil || len(rows) != 1 {
			t.Errorf("%q: %+v, %v", text, rows, err)
		}
	}
	env, _ := baselineNode(t, "550.1", "GPU-a")
	env.Host.SetPast("")
	env.Learn = true
	b := recallBaselines(env)
	b.judge(gemmOf(700))
	b.learn(gemmOf(700))
	if got := keepBaselines(env, "check_x", b); len(got) != 1 || got[0].Code != "active.past" {
		t.Errorf("without a memory: %+v", got)
	}
}

// A number that varies too much judges nothing, which is reported when it is recorded. A number
// where less is better always has a limit.
func TestBaselineTooUneven(t *testing.T) {
	t.Parallel()
	env, _ := baselineNode(t, "550.1", "GPU-a")
	env.Learn = true
	uneven := func(value float64) measure {
		return measure{Test: "disk_write", What: "write", Unit: "MB/s", Value: value}
	}
	low := func(value float64) measure {
		return measure{Test: "launch", What: "launch", Unit: "us", Value: value, Lower: true}
	}
	var findings []checks.Finding
	for i, v := range []float64{100, 400, 520, 600, 1200} {
		if i > 0 && len(findings) > 0 {
			t.Errorf("after %d samples: %+v", i, findings)
		}
		b := recallBaselines(env)
		for _, m := range []measure{uneven(v), low(v), gemmOf(700 + v/1000)} {
			b.judge(m)
			b.learn(m)
		}
		findings = keepBaselines(env, "check_x", b)
	}
	if len(findings) != 1 || findings[0].Code != "active.baseline.uneven" || findings[0].Severity != checks.Warn ||
		findings[0].Message != "check_x:  write: varies too much to serve as a baseline, got median 520.0 MB/s, median deviation 120.0 MB/s" {
		t.Errorf("%+v", findings)
	}
	rows, err := Baselines(env)
	if err != nil || len(rows) != 3 {
		t.Fatalf("%+v, %v", rows, err)
	}
	for _, row := range rows {
		if want := row.Test == "disk_write"; row.Uneven != want || (row.Limit > 0) == want {
			t.Errorf("%+v", row)
		}
	}
}
