package checks

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestDCGMDiag(t *testing.T) { testCheck(t, "check_dcgm_diag") }

var _ = table("check_dcgm_diag", func(name string) []scenario {
	// all is what the tests come to on eight GPUs, but for some.
	all := func(status string, but ...probe.DCGMResult) (list []probe.DCGMResult) {
		for i := range 8 {
			x := probe.DCGMResult{Test: "memory", Entity: dcgmGPU(i), Status: status}
			for _, b := range but {
				if b.Entity == x.Entity {
					x = b
				}
			}
			list = append(list, x)
		}
		return list
	}
	result := func(status string, notes ...probe.DCGMNote) probe.DCGMResult {
		return probe.DCGMResult{Test: "memory", Entity: dcgmGPU(3), Status: status, Notes: notes}
	}
	gpu := func(f Finding, text string) Finding { return gpuFinding(name, 3, f, text) }
	on := func(scene string, words []string, e *fakeDCGM, want ...Finding) scenario {
		s := onDCGM(scene, words, e, want...)
		s.files[boot] = "11111111-2222-3333-4444-555555555555\n"
		return s
	}
	ready := func(list []scenario) []scenario {
		for i := range list {
			if list[i].files != nil {
				list[i].files[boot] = "11111111-2222-3333-4444-555555555555\n"
			}
		}
		return list
	}
	failing := func(scene string, words []string, err error, f Finding, results ...probe.DCGMResult) scenario {
		f.Message = name + ":  cannot run the diagnostic by nv-hostengine at here: " + err.Error()
		s := on(scene, words, &fakeDCGM{err: err, results: results}, f)
		s.broken = f.Severity != Fail
		return s
	}
	mismatch := probe.DCGMNote{Code: 58, Message: "A memory mismatch was detected on GPU 4"}
	bad := gpu(Finding{Code: "dcgm.fr.58", Severity: Fail, Remedy: ReseatOrRMA}, "DCGM_FR_MEMORY_MISMATCH (58), test memory: "+mismatch.Message)
	hung := &probe.DCGMHungError{Doing: "dcgmActionValidate_v2", For: 150 * time.Second}
	missing := &fakeDCGM{results: all(probe.DCGMPass), gpus: fromLast()[4:]}
	var unseen []Finding
	for i := range 4 {
		unseen = append(unseen, gpuFinding(name, i, Finding{Code: "dcgm.diag.gpu", Severity: Unknown}, "nv-hostengine at here does not show it"))
	}
	node := func(severity Severity, code, text string) Finding {
		return Finding{Code: code, Severity: severity, Got: text, Message: name + ":  " + text}
	}
	// without are GPUs on which a test has failed, and told an error of something else.
	without := func(list ...int) (findings []Finding) {
		for _, i := range list {
			f := Finding{Code: "dcgm.diag.failed", Severity: Warn, Want: "pass", Got: "fail"}
			findings = append(findings, gpuFinding(name, i, f, "test memory, without an error of its own"))
		}
		return findings
	}
	rates := gpu(Finding{Code: "dcgm.diag.rates", Severity: OK}, "memory pass, pcie skip")
	one := &fakeDCGM{results: []probe.DCGMResult{result(probe.DCGMPass), {Test: "pcie", Entity: dcgmGPU(3), Status: probe.DCGMSkip}}}
	single := on("what each test came to", of("1"), one, rates)
	single.nvml.GPUs = single.nvml.GPUs[3:4]
	mig := on("MIG", of("1"), &fakeDCGM{results: all(probe.DCGMPass)}, Finding{Code: "active.left", Severity: Skip, Got: "it is split up by MIG"})
	mig.nvml.GPUs[3].Modes.MIG = probe.Known(true)
	mig.want[0].Device = gpuDevice(&mig.nvml.GPUs[3])
	mig.want[0].Message = name + ":  gpu3 0000:13:00.0: left out: it is split up by MIG"
	lost := on("the GPUs cannot be asked for", of("1"), &fakeDCGM{gpuErr: &probe.DCGMError{Call: "dcgmEntitiesGetLatestValues", Code: -3, Text: "error"}},
		Finding{Code: "dcgm.failed", Severity: Unknown,
			Message: name + ":  cannot ask nv-hostengine at here for its GPUs: dcgmEntitiesGetLatestValues: error (DCGM error -3)"})
	lost.broken = true
	unsaid := on("DCGM says nothing of one", of("1"), &fakeDCGM{results: append(all(probe.DCGMPass)[:3], all(probe.DCGMPass)[4:]...)},
		gpu(Finding{Code: "dcgm.diag.gpu", Severity: Unknown}, "DCGM says nothing of it"))
	unsaid.broken = true

	return append(ready(dcgmCommon(name, "1")),
		scenario{name: "no GPU", words: of("1"), nvmlErr: probe.ErrNoLibrary, want: []Finding{{Code: "gpu.none", Severity: Skip, Message: name + ":  no NVIDIA GPU on this node"}}},
		on("pass", of("1"), &fakeDCGM{results: all(probe.DCGMPass)}).orTable(map[string]any{"level": int64(1)}),
		on("pass, all words", of("2", "--exclude", "pcie", "-t", "60"), &fakeDCGM{results: all(probe.DCGMPass)}).
			orTable(map[string]any{"level": int64(2), "exclude": "pcie", "timeout": "60"}),
		single, mig, lost, unsaid,
		on("one of eight fails", of("2"), &fakeDCGM{results: all(probe.DCGMPass, result(probe.DCGMFail, mismatch))}, bad),
		on("excluded tests are not judged", of("2", "--exclude=memory"), &fakeDCGM{results: append(all(probe.DCGMPass, result(probe.DCGMFail, mismatch)), sameOf("software")...)}),
		on("passes with an error", of("2"), &fakeDCGM{results: all(probe.DCGMPass, result(probe.DCGMPass, probe.DCGMNote{Code: 56, Message: "no memory"}))},
			gpu(Finding{Code: "dcgm.fr.56", Severity: Warn}, "DCGM_FR_MEMORY_ALLOC (56), test memory, which DCGM says has passed: no memory")),
		on("passes with a grave error", of("2"), &fakeDCGM{results: all(probe.DCGMPass, result(probe.DCGMPass, mismatch))},
			gpu(Finding{Code: "dcgm.fr.58", Severity: Warn, Remedy: ReseatOrRMA}, "DCGM_FR_MEMORY_MISMATCH (58), test memory, which DCGM says has passed: "+mismatch.Message)),
		on("fails by a threshold that is disputed", of("3"), &fakeDCGM{results: all(probe.DCGMPass, result(probe.DCGMFail, probe.DCGMNote{Code: 62, Message: "slow"}))},
			gpu(Finding{Code: "dcgm.fr.62", Severity: Warn}, "DCGM_FR_MEMORY_BANDWIDTH (62), test memory: slow")),
		on("fails by an error of the future", of("3"), &fakeDCGM{results: all(probe.DCGMPass, result(probe.DCGMFail, probe.DCGMNote{Code: 999, Message: "new"}))},
			gpu(Finding{Code: "dcgm.fr.999", Severity: Warn}, "DCGM error 999, test memory: new")),
		on("fails without a reason", of("3"), &fakeDCGM{results: all(probe.DCGMPass, result(probe.DCGMFail))},
			gpu(Finding{Code: "dcgm.diag.failed", Severity: Fail, Want: "pass", Got: "fail"}, "test memory")),
		on("fails by an error of the test itself, on all", of("3"), &fakeDCGM{results: append(all(probe.DCGMFail),
			probe.DCGMResult{Test: "memory", Status: probe.DCGMFail, Notes: []probe.DCGMNote{{Code: 44, Message: "no executable"}}})},
			append(without(0, 1, 2, 3, 4, 5, 6, 7), node(Warn, "dcgm.fr.44", "DCGM_FR_INTERNAL (44), test memory: no executable"))...),
		on("fails by an error of one, on all", of("3"), &fakeDCGM{results: all(probe.DCGMFail, result(probe.DCGMFail, mismatch))},
			append(append(without(0, 1, 2), bad), without(4, 5, 6, 7)...)...),
		on("fails without a reason, and another test with one", of("3"), &fakeDCGM{results: append(all(probe.DCGMPass, result(probe.DCGMFail)),
			probe.DCGMResult{Test: "pcie", Status: probe.DCGMFail, Notes: []probe.DCGMNote{{Code: 44, Message: "internal"}}})},
			gpu(Finding{Code: "dcgm.diag.failed", Severity: Fail, Want: "pass", Got: "fail"}, "test memory"),
			node(Warn, "dcgm.fr.44", "DCGM_FR_INTERNAL (44), test pcie: internal")),
		on("fails without a reason, and another GPU passes with an error", of("3"), &fakeDCGM{results: append(all(probe.DCGMPass, result(probe.DCGMFail))[1:],
			probe.DCGMResult{Test: "memory", Entity: dcgmGPU(0), Status: probe.DCGMPass, Notes: []probe.DCGMNote{{Code: 56, Message: "no memory"}}})},
			gpu(Finding{Code: "dcgm.diag.failed", Severity: Fail, Want: "pass", Got: "fail"}, "test memory"),
			gpuFinding(name, 0, Finding{Code: "dcgm.fr.56", Severity: Warn}, "DCGM_FR_MEMORY_ALLOC (56), test memory, which DCGM says has passed: no memory")),
		on("fails, and tells something else", of("3"), &fakeDCGM{results: all(probe.DCGMPass, result(probe.DCGMFail, probe.DCGMNote{Code: 27, Message: "x"}))},
			gpu(Finding{Code: "dcgm.fr.27", Severity: OK}, "DCGM_FR_FIELD_QUERY (27), test memory: x"),
			gpu(Finding{Code: "dcgm.diag.failed", Severity: Warn, Want: "pass", Got: "fail"}, "test memory")),
		on("warns", of("3"), &fakeDCGM{results: all(probe.DCGMPass, result(probe.DCGMWarn))},
			gpu(Finding{Code: "dcgm.diag.failed", Severity: Warn, Want: "pass", Got: "warn"}, "test memory")),
		on("a result of the future", of("3"), &fakeDCGM{results: all(probe.DCGMPass, result("maybe"))},
			gpu(Finding{Code: "dcgm.diag.failed", Severity: Unknown, Want: "pass", Got: "maybe"}, "test memory")).onBroken(),
		on("skips", of("3"), &fakeDCGM{results: all(probe.DCGMPass, result(probe.DCGMSkip))}, gpu(Finding{Code: "dcgm.diag.none", Severity: Skip}, "no test was run: memory skip")),
		on("does not run", of("3"), &fakeDCGM{results: all(probe.DCGMPass, result(probe.DCGMNotRun))},
			gpu(Finding{Code: "dcgm.diag.none", Severity: Skip}, "no test was run: memory not run")),
		on("an error of the node", of("1"), &fakeDCGM{results: append(all(probe.DCGMPass), probe.DCGMResult{Status: probe.DCGMFail, Notes: []probe.DCGMNote{{Code: 44, Message: "internal"}}})},
			node(Warn, "dcgm.fr.44", "DCGM_FR_INTERNAL (44): internal")),
		on("level 1 of DCGM 3", of("1"), &fakeDCGM{results: []probe.DCGMResult{{Test: "Denylist", Status: probe.DCGMPass}}}),
		on("DCGM does not show some", of("1"), missing, unseen...).onBroken(),
		failing("another one runs", of("1"), &probe.DCGMError{Call: "dcgmActionValidate_v2", Code: -39, Text: "running"}, Finding{Code: "dcgm.running", Severity: Unknown}),
		failing("an old DCGM", of("1"), &probe.DCGMError{Call: "dcgmActionValidate_v2", Code: -12, Text: "old"}, Finding{Code: "dcgm.old", Severity: Unknown}),
		failing("the engine hangs in it", of("1"), hung, Finding{Code: "dcgm.hung", Severity: Warn, Got: hung.Error()}),
		failing("an error", of("1"), &probe.DCGMError{Call: "dcgmi diag", Code: -30, Text: "GPU Diagnostic returned an error."}, Finding{Code: "dcgm.failed", Severity: Unknown}),
		withBefore(bad, failing("an error, and results", of("1"), &probe.DCGMError{Call: "dcgmActionValidate_v2", Code: -30, Text: "error"},
			Finding{Code: "dcgm.failed", Severity: Unknown}, result(probe.DCGMFail, mismatch))),
	)
})

// sameOf is a pass of a test on eight GPUs.
func sameOf(test string) (list []probe.DCGMResult) {
	for i := range 8 {
		list = append(list, probe.DCGMResult{Test: test, Entity: dcgmGPU(i), Status: probe.DCGMPass})
	}
	return list
}

func withBefore(f Finding, s scenario) scenario {
	s.want = append([]Finding{f}, s.want...)
	return s
}

// A diagnostic of DCGM's is asked for the GPUs that are free, by DCGM's numbers, and
// ends when a job comes.
func TestDCGMDiagOfFreeGPUs(t *testing.T) {
	t.Parallel()
	env, _ := trialEnv(t, gpu3(func(g *probe.GPU) { g.Modes.MIG = probe.Known(true) }))
	e := &fakeDCGM{gpus: fromLast()}
	env.Host.SetDCGM(e, nil)
	(&dcgmDiag{Level: 2, Exclude: "pcie, nvbandwidth"}).Run(t.Context(), env)
	want := probe.DCGMDiagRequest{Level: 2, GPUs: []int{7, 6, 5, 3, 2, 1, 0}, Exclude: []string{"pcie", "nvbandwidth"}, Timeout: 15 * time.Minute}
	if diff := cmp.Diff(want, e.asked); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestDCGMDiagStopsForAJob(t *testing.T) {
	t.Parallel()
	env, root := trialEnv(t, nil)
	e := &fakeDCGM{gpus: fromLast(), wait: true}
	env.Host.SetDCGM(e, nil)
	time.AfterFunc(200*time.Millisecond, func() { putStepd(t, root, 4711, "99.extern") })
	wantBrief(t, (&dcgmDiag{Level: 3}).Run(t.Context(), env), "skip active.stopped: check_dcgm_diag:  stopped: a job has begun on the node: 99")
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
