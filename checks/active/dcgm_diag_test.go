package active

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/hostengine"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestDCGMDiag(t *testing.T) { checktest.Run(t, "check_dcgm_diag") }

var _ = checktest.Table("check_dcgm_diag", func(name string) []checktest.Scenario {
	// all returns the results on eight GPUs, with some replaced.
	all := func(status string, but ...hostengine.Result) (list []hostengine.Result) {
		for i := range 8 {
			x := hostengine.Result{Test: "memory", Entity: checktest.DCGMGPU(i), Status: status}
			for _, b := range but {
				if b.Entity == x.Entity {
					x = b
				}
			}
			list = append(list, x)
		}
		return list
	}
	result := func(status string, notes ...hostengine.Note) hostengine.Result {
		return hostengine.Result{Test: "memory", Entity: checktest.DCGMGPU(3), Status: status, Notes: notes}
	}
	gpu := func(f checks.Finding, text string) checks.Finding { return checktest.GPUFinding(name, 3, f, text) }
	on := func(scene string, words []string, e *checktest.FakeDCGM, want ...checks.Finding) checktest.Scenario {
		s := checktest.OnDCGM(scene, words, e, want...)
		s.Files[boot] = "11111111-2222-3333-4444-555555555555\n"
		return s
	}
	ready := func(list []checktest.Scenario) []checktest.Scenario {
		for i := range list {
			if list[i].Files != nil {
				list[i].Files[boot] = "11111111-2222-3333-4444-555555555555\n"
			}
		}
		return list
	}
	failing := func(scene string, words []string, err error, f checks.Finding, results ...hostengine.Result) checktest.Scenario {
		f.Message = name + ":  cannot run the diagnostic by nv-hostengine at here: " + err.Error()
		s := on(scene, words, &checktest.FakeDCGM{Err: err, Results: results}, f)
		s.Broken = f.Severity != checks.Fail
		return s
	}
	mismatch := hostengine.Note{Code: 58, Message: "A memory mismatch was detected on GPU 4"}
	bad := gpu(checks.Finding{Code: "dcgm.fr.58", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}, "DCGM_FR_MEMORY_MISMATCH (58), test memory: "+mismatch.Message)
	hung := &hostengine.HungError{Doing: "dcgmActionValidate_v2", For: 150 * time.Second}
	missing := &checktest.FakeDCGM{Results: all(hostengine.DCGMPass), Listed: checktest.FromLast()[4:]}
	var unseen []checks.Finding
	for i := range 4 {
		unseen = append(unseen, checktest.GPUFinding(name, i, checks.Finding{Code: "dcgm.diag.gpu", Severity: checks.Unknown}, "nv-hostengine at here does not list it"))
	}
	node := func(severity checks.Severity, code, text string) checks.Finding {
		return checks.Finding{Code: code, Severity: severity, Got: text, Message: name + ":  " + text}
	}
	// without returns results of GPUs with a failed test that reports an error of another device.
	without := func(list ...int) (findings []checks.Finding) {
		for _, i := range list {
			f := checks.Finding{Code: "dcgm.diag.failed", Severity: checks.Warn, Want: "pass", Got: "fail"}
			findings = append(findings, checktest.GPUFinding(name, i, f, "test memory, without an error of its own"))
		}
		return findings
	}
	rates := gpu(checks.Finding{Code: "dcgm.diag.rates", Severity: checks.OK}, "memory pass, pcie skip")
	one := &checktest.FakeDCGM{Results: []hostengine.Result{result(hostengine.DCGMPass), {Test: "pcie", Entity: checktest.DCGMGPU(3), Status: hostengine.DCGMSkip}}}
	single := on("the result of each test", checktest.Of("1"), one, rates)
	single.NVML.GPUs = single.NVML.GPUs[3:4]
	mig := on("MIG", checktest.Of("1"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass)}, checks.Finding{Code: "active.left", Severity: checks.Skip, Got: "MIG splits it"})
	mig.NVML.GPUs[3].Modes.MIG = nvml.Known(true)
	mig.Want[0].Device = checks.GPUDevice(&mig.NVML.GPUs[3])
	mig.Want[0].Message = name + ":  gpu3 0000:13:00.0: skipped: MIG splits it"
	lost := on("the GPUs cannot be asked for", checktest.Of("1"), &checktest.FakeDCGM{GPUErr: &hostengine.Error{Call: "dcgmEntitiesGetLatestValues", Code: -3, Text: "error"}},
		checks.Finding{Code: "dcgm.failed", Severity: checks.Unknown,
			Message: name + ":  cannot ask nv-hostengine at here for its GPUs: dcgmEntitiesGetLatestValues: error (DCGM error -3)"})
	lost.Broken = true
	unsaid := on("DCGM says nothing of one", checktest.Of("1"), &checktest.FakeDCGM{Results: append(all(hostengine.DCGMPass)[:3], all(hostengine.DCGMPass)[4:]...)},
		gpu(checks.Finding{Code: "dcgm.diag.gpu", Severity: checks.Unknown}, "DCGM has no result for it"))
	unsaid.Broken = true

	return append(ready(checktest.DCGMCommon(name, "1")),
		checktest.Scenario{Name: "no GPU", Words: checktest.Of("1"), NVMLErr: probe.ErrNoLibrary, Want: []checks.Finding{{Code: "gpu.none", Severity: checks.Skip, Message: name + ":  no NVIDIA GPU on this node"}}},
		on("pass", checktest.Of("1"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass)}).OrTable(map[string]any{"level": int64(1)}),
		on("pass, all words", checktest.Of("2", "--exclude", "pcie", "-t", "60"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass)}).
			OrTable(map[string]any{"level": int64(2), "exclude": "pcie", "timeout": "60"}),
		single, mig, lost, unsaid,
		on("one of eight fails", checktest.Of("2"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass, result(hostengine.DCGMFail, mismatch))}, bad),
		on("excluded tests are not judged", checktest.Of("2", "--exclude=memory"), &checktest.FakeDCGM{Results: append(all(hostengine.DCGMPass, result(hostengine.DCGMFail, mismatch)), sameOf("software")...)}),
		on("passes with an error", checktest.Of("2"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass, result(hostengine.DCGMPass, hostengine.Note{Code: 56, Message: "no memory"}))},
			gpu(checks.Finding{Code: "dcgm.fr.56", Severity: checks.Warn}, "DCGM_FR_MEMORY_ALLOC (56), test memory, reported as passed by DCGM: no memory")),
		on("passes with a grave error", checktest.Of("2"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass, result(hostengine.DCGMPass, mismatch))},
			gpu(checks.Finding{Code: "dcgm.fr.58", Severity: checks.Warn, Remedy: checks.ReseatOrRMA}, "DCGM_FR_MEMORY_MISMATCH (58), test memory, reported as passed by DCGM: "+mismatch.Message)),
		on("fails by a threshold that is disputed", checktest.Of("3"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass, result(hostengine.DCGMFail, hostengine.Note{Code: 62, Message: "slow"}))},
			gpu(checks.Finding{Code: "dcgm.fr.62", Severity: checks.Warn}, "DCGM_FR_MEMORY_BANDWIDTH (62), test memory: slow")),
		on("fails by an error of the future", checktest.Of("3"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass, result(hostengine.DCGMFail, hostengine.Note{Code: 999, Message: "new"}))},
			gpu(checks.Finding{Code: "dcgm.fr.999", Severity: checks.Warn}, "DCGM error 999, test memory: new")),
		on("fails without a reason", checktest.Of("3"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass, result(hostengine.DCGMFail))},
			gpu(checks.Finding{Code: "dcgm.diag.failed", Severity: checks.Fail, Want: "pass", Got: "fail"}, "test memory")),
		on("fails by an error of the test itself, on all", checktest.Of("3"), &checktest.FakeDCGM{Results: append(all(hostengine.DCGMFail),
			hostengine.Result{Test: "memory", Status: hostengine.DCGMFail, Notes: []hostengine.Note{{Code: 44, Message: "no executable"}}})},
			append(without(0, 1, 2, 3, 4, 5, 6, 7), node(checks.Warn, "dcgm.fr.44", "DCGM_FR_INTERNAL (44), test memory: no executable"))...),
		on("fails by an error of one, on all", checktest.Of("3"), &checktest.FakeDCGM{Results: all(hostengine.DCGMFail, result(hostengine.DCGMFail, mismatch))},
			append(append(without(0, 1, 2), bad), without(4, 5, 6, 7)...)...),
		on("fails without a reason, and another test with one", checktest.Of("3"), &checktest.FakeDCGM{Results: append(all(hostengine.DCGMPass, result(hostengine.DCGMFail)),
			hostengine.Result{Test: "pcie", Status: hostengine.DCGMFail, Notes: []hostengine.Note{{Code: 44, Message: "internal"}}})},
			gpu(checks.Finding{Code: "dcgm.diag.failed", Severity: checks.Fail, Want: "pass", Got: "fail"}, "test memory"),
			node(checks.Warn, "dcgm.fr.44", "DCGM_FR_INTERNAL (44), test pcie: internal")),
		on("fails without a reason, and another GPU passes with an error", checktest.Of("3"), &checktest.FakeDCGM{Results: append(all(hostengine.DCGMPass, result(hostengine.DCGMFail))[1:],
			hostengine.Result{Test: "memory", Entity: checktest.DCGMGPU(0), Status: hostengine.DCGMPass, Notes: []hostengine.Note{{Code: 56, Message: "no memory"}}})},
			gpu(checks.Finding{Code: "dcgm.diag.failed", Severity: checks.Fail, Want: "pass", Got: "fail"}, "test memory"),
			checktest.GPUFinding(name, 0, checks.Finding{Code: "dcgm.fr.56", Severity: checks.Warn}, "DCGM_FR_MEMORY_ALLOC (56), test memory, reported as passed by DCGM: no memory")),
		on("fails, and tells something else", checktest.Of("3"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass, result(hostengine.DCGMFail, hostengine.Note{Code: 27, Message: "x"}))},
			gpu(checks.Finding{Code: "dcgm.fr.27", Severity: checks.OK}, "DCGM_FR_FIELD_QUERY (27), test memory: x"),
			gpu(checks.Finding{Code: "dcgm.diag.failed", Severity: checks.Warn, Want: "pass", Got: "fail"}, "test memory")),
		on("warns", checktest.Of("3"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass, result(hostengine.DCGMWarn))},
			gpu(checks.Finding{Code: "dcgm.diag.failed", Severity: checks.Warn, Want: "pass", Got: "warn"}, "test memory")),
		on("a result of the future", checktest.Of("3"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass, result("maybe"))},
			gpu(checks.Finding{Code: "dcgm.diag.failed", Severity: checks.Unknown, Want: "pass", Got: "maybe"}, "test memory")).OnBroken(),
		on("skips", checktest.Of("3"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass, result(hostengine.DCGMSkip))}, gpu(checks.Finding{Code: "dcgm.diag.none", Severity: checks.Skip}, "no test was run: memory skip")),
		on("does not run", checktest.Of("3"), &checktest.FakeDCGM{Results: all(hostengine.DCGMPass, result(hostengine.DCGMNotRun))},
			gpu(checks.Finding{Code: "dcgm.diag.none", Severity: checks.Skip}, "no test was run: memory not run")),
		on("an error of the node", checktest.Of("1"), &checktest.FakeDCGM{Results: append(all(hostengine.DCGMPass), hostengine.Result{Status: hostengine.DCGMFail, Notes: []hostengine.Note{{Code: 44, Message: "internal"}}})},
			node(checks.Warn, "dcgm.fr.44", "DCGM_FR_INTERNAL (44): internal")),
		on("level 1 of DCGM 3", checktest.Of("1"), &checktest.FakeDCGM{Results: []hostengine.Result{{Test: "Denylist", Status: hostengine.DCGMPass}}}),
		on("DCGM does not show some", checktest.Of("1"), missing, unseen...).OnBroken(),
		failing("another one runs", checktest.Of("1"), &hostengine.Error{Call: "dcgmActionValidate_v2", Code: -39, Text: "running"}, checks.Finding{Code: "dcgm.running", Severity: checks.Unknown}),
		failing("an old DCGM", checktest.Of("1"), &hostengine.Error{Call: "dcgmActionValidate_v2", Code: -12, Text: "old"}, checks.Finding{Code: "dcgm.old", Severity: checks.Unknown}),
		failing("the engine hangs in it", checktest.Of("1"), hung, checks.Finding{Code: "dcgm.hung", Severity: checks.Warn, Got: hung.Error()}),
		failing("an error", checktest.Of("1"), &hostengine.Error{Call: "dcgmi diag", Code: -30, Text: "GPU Diagnostic returned an error."}, checks.Finding{Code: "dcgm.failed", Severity: checks.Unknown}),
		withBefore(bad, failing("an error, and results", checktest.Of("1"), &hostengine.Error{Call: "dcgmActionValidate_v2", Code: -30, Text: "error"},
			checks.Finding{Code: "dcgm.failed", Severity: checks.Unknown}, result(hostengine.DCGMFail, mismatch))),
	)
})

// sameOf returns a pass of a test on eight GPUs.
func sameOf(test string) (list []hostengine.Result) {
	for i := range 8 {
		list = append(list, hostengine.Result{Test: test, Entity: checktest.DCGMGPU(i), Status: hostengine.DCGMPass})
	}
	return list
}

func withBefore(f checks.Finding, s checktest.Scenario) checktest.Scenario {
	s.Want = append([]checks.Finding{f}, s.Want...)
	return s
}

// DCGM's diagnostic runs on the idle GPUs, by DCGM's numbers, and stops when a job starts.
func TestDCGMDiagOfFreeGPUs(t *testing.T) {
	t.Parallel()
	env, _ := trialEnv(t, checktest.Gpu3(func(g *nvml.GPU) { g.Modes.MIG = nvml.Known(true) }))
	e := &checktest.FakeDCGM{Listed: checktest.FromLast()}
	hostengine.Set(env.Host, e, nil)
	(&dcgmDiag{Level: 2, Exclude: "pcie, nvbandwidth"}).Run(t.Context(), env)
	want := hostengine.DiagRequest{Level: 2, GPUs: []int{7, 6, 5, 3, 2, 1, 0}, Exclude: []string{"pcie", "nvbandwidth"}, Timeout: 15 * time.Minute}
	if diff := cmp.Diff(want, e.Asked); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDCGMDiagStopsForAJob(t *testing.T) {
	t.Parallel()
	env, root := trialEnv(t, nil)
	e := &checktest.FakeDCGM{Listed: checktest.FromLast(), Wait: true}
	hostengine.Set(env.Host, e, nil)
	time.AfterFunc(200*time.Millisecond, func() { putStepd(t, root, 4711, "99.extern") })
	wantBrief(t, (&dcgmDiag{Level: 3}).Run(t.Context(), env), "skip active.stopped: check_dcgm_diag:  stopped: a job started on the node: 99")
}

func TestDCGMDiagBound(t *testing.T) {
	t.Parallel()
	for level, want := range []time.Duration{2 * time.Minute, 2 * time.Minute, 15 * time.Minute, 40 * time.Minute, 150 * time.Minute, 150 * time.Minute} {
		if got := (&dcgmDiag{Level: level}).Bound(); got != want {
			t.Errorf("level %d: %v, want %v", level, got, want)
		}
	}
	if got := (&dcgmDiag{Level: 4, Limit: time.Minute}).Bound(); got != time.Minute {
		t.Errorf("-t 60: %v", got)
	}
}
