package active

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/dcgm"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/hostengine"
)

// dcgmDiag runs DCGM's diagnostic of a level on the idle GPUs. LEVEL 1 (default) takes about 30
// seconds, 2 two to ten minutes, 3 a quarter of an hour and more, 4 one to two hours. -t is the
// time limit: by default 2, 15, 40 and 150 minutes. --exclude skips tests by DCGM's names:
// --exclude nvbandwidth,pcie.
//
// The finding of a failed test names its GPU and DCGM's error codes; each code fails or warns as
// in check_dcgm_health. A failed test without any error code fails. A test that recorded an error
// is never reported as passed, whatever its status. GPUs split by MIG are skipped, since the
// diagnostic refuses them. The engine is found as in check_dcgm_health; with -f an engine that
// hangs fails.
//
//	gpu* || check_dcgm_diag 1
//	gpu* || check_dcgm_diag 3 --exclude nvbandwidth -t 40m --max-age 7d
type dcgmDiag struct {
	active

	Level   int           `arg:"1" toml:"level"`          // 1 to 4
	Exclude string        `long:"exclude" toml:"exclude"` // tests to skip, separated by commas
	Limit   time.Duration `opt:"t" toml:"timeout"`        // time limit; 0: by the level
	Hung    bool          `opt:"f" toml:"hung_fail"`      // an engine that hangs fails the node
}

const dcgmDiagName = "check_dcgm_diag"

// dcgmLevels are the default time limits of the levels. DCGM's manual gives seconds, 2 minutes,
// 15 minutes, 1 to 2 hours; AWS measured up to 10.5 minutes for level 2 and 2 hours 15 minutes
// for level 4.
var dcgmLevels = []time.Duration{0, 2 * time.Minute, 15 * time.Minute, 40 * time.Minute, 150 * time.Minute}

func init() {
	checks.Register(checks.Info{
		Name:    dcgmDiagName,
		Usage:   "[LEVEL] [--exclude TEST,...] [-t TIME] [-f] [--max-age TIME]",
		Summary: "DCGM's diagnostic finds all GPUs healthy",
		Lane:    checks.DCGM,
		Active:  true,
		New:     func() checks.Check { return &dcgmDiag{Level: 1} },
		Do: func() map[string]string {
			return map[string]string{
				"dcgm.running":     "Another process runs DCGM's diagnostic: wait for it, or find it with ps (nvvs, dcgmi).",
				"dcgm.diag.failed": "DCGM reports that the test failed without a reason for this GPU: see the other findings of the test and /var/log/nvidia-dcgm/nvvs.log, or run dcgmi diag -r with the name of the test.",
				"dcgm.diag.gpu":    "DCGM does not list a GPU that NVML lists, or has no result for it: see dcgmi discovery -l. After GPUs were added or reset run systemctl restart nvidia-dcgm.",
				"dcgm.diag.none":   "Nothing to repair: no test of this level applies to the GPU, or all were excluded.",
				"dcgm.diag.rates":  "Nothing: it lists the result of each test.",
			}
		},
		DoOf: dcgm.WhatToDo,
		Vars: dcgm.Vars,
	})
}

// Bind also accepts the level before the options.
func (c *dcgmDiag) Bind(args []string) error {
	if len(args) > 1 && !strings.HasPrefix(args[0], "-") {
		args = append(slices.Clone(args[1:]), args[0])
	}
	return checks.BindUsable(c, args)
}

func (c *dcgmDiag) Validate() error {
	if c.Level < 1 || c.Level >= len(dcgmLevels) {
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(c.Level), Want: "a level from 1 to 4"}
	}
	return nil
}

// Bound returns the time limit of the diagnostic.
func (c *dcgmDiag) Bound() time.Duration {
	if c.Limit > 0 {
		return c.Limit
	}
	return dcgmLevels[min(max(c.Level, 1), len(dcgmLevels)-1)]
}

func (c *dcgmDiag) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	r, findings := c.beginGPUs(ctx, env, activeTest{Check: dcgmDiagName, Code: "dcgm.diag", Bound: c.Bound(), Of: c, Daemon: true})
	if r == nil {
		return findings
	}
	s, findings := dcgm.Ask(r.ctx, env, dcgmDiagName, c.Hung)
	if s == nil {
		r.failures = true
		r.findings = append(r.findings, findings...)
		return r.done()
	}
	c.diagnose(r, s)
	s.Engine.Close()
	r.findings = append(r.findings, s.Findings...)
	return r.done()
}

// splitExcluded returns the names of the tests to skip.
func (c *dcgmDiag) splitExcluded() []string {
	return strings.FieldsFunc(c.Exclude, func(r rune) bool { return r == ',' || r == ' ' })
}

func (c *dcgmDiag) diagnose(r *activeRun, s *dcgm.Run) {
	ids, err := c.choose(r, s)
	if err != nil {
		c.reportStop(r, s, "ask "+s.Engine.Via()+" for its GPUs", err)
		return
	}
	if len(ids) == 0 {
		r.failures = true
		return
	}
	r.at("run DCGM's diagnostic, level %d", c.Level)
	results, err := s.Engine.Diag(r.ctx, hostengine.DiagRequest{Level: c.Level, GPUs: ids, Exclude: c.splitExcluded(), Timeout: c.Bound()})
	results = slices.DeleteFunc(results, func(x hostengine.Result) bool { return slices.Contains(c.splitExcluded(), x.Test) })
	explained := map[string]bool{} // tests with an error that has a reason, on any device
	for _, x := range results {
		explained[x.Test] = explained[x.Test] || x.Status == hostengine.DCGMFail && len(x.Notes) > 0
	}
	for i := range results {
		judgeDCGM(r.ctx, s, &results[i], explained[results[i].Test])
	}
	if err != nil {
		c.reportStop(r, s, "run the diagnostic by "+s.Engine.Via(), err)
		return
	}
	reportDCGM(r, s, ids, results)
}

// choose returns DCGM's IDs of the GPUs that the test may load.
func (c *dcgmDiag) choose(r *activeRun, s *dcgm.Run) (ids []int, err error) {
	known, err := s.Engine.GPUs(r.ctx)
	if err != nil {
		return nil, err
	}
	s.GPUs = map[int]checks.Device{}
	for _, g := range r.gpus {
		i := slices.IndexFunc(known, func(k hostengine.GPU) bool {
			return k.PCI != "" && k.PCI == g.PCI || k.UUID != "" && k.UUID == g.UUID.Value
		})
		if i < 0 {
			r.failures = true
			r.report(checks.GPUDevice(g), checks.Finding{Code: "dcgm.diag.gpu", Severity: checks.Unknown}, "%s does not list it", s.Engine.Via())
			continue
		}
		ids = append(ids, known[i].ID)
		s.GPUs[known[i].ID] = checks.GPUDevice(g)
	}
	return ids, nil
}

// reportStop reports an error; if the test itself was stopped the frame reports that.
func (c *dcgmDiag) reportStop(r *activeRun, s *dcgm.Run, doing string, err error) {
	if r.failures = true; context.Cause(r.ctx) == nil {
		s.Failed(doing, err)
	}
}

// judgeDCGM reports the result of a test on one device. explained: the test has an error with a
// reason, on any device. Most of DCGM's tests then fail on all GPUs: see PluginTest::SetResult of
// nvvs.
func judgeDCGM(ctx context.Context, s *dcgm.Run, x *hostengine.Result, explained bool) {
	worst, failed := checks.OK, x.Status == hostengine.DCGMFail
	what := checks.Before(", test ", x.Test, "")
	if x.Status == hostengine.DCGMPass {
		what += ", reported as passed by DCGM"
	}
	for _, n := range x.Notes {
		worst = max(worst, s.Report(ctx, x.Entity, failed, n.Code, what, n.Message))
	}
	f := checks.Finding{Code: "dcgm.diag.failed", Severity: checks.Warn, Want: hostengine.DCGMPass, Got: x.Status}
	text := "test " + x.Test
	switch {
	case worst >= checks.Warn, slices.Contains([]string{hostengine.DCGMPass, hostengine.DCGMSkip, hostengine.DCGMNotRun}, x.Status):
		return
	case failed && explained && len(x.Notes) == 0:
		text += ", without an error of its own"
	case failed && !explained && x.Entity.Kind == "gpu": // no threshold that could be disputed
		f.Severity = checks.Fail
	case !failed && x.Status != hostengine.DCGMWarn:
		f.Severity = checks.Unknown
	}
	s.AddFinding(ctx, x.Entity, f, text)
}

// reportDCGM lists the results of each GPU, and reports the GPUs without a result.
func reportDCGM(r *activeRun, s *dcgm.Run, ids []int, results []hostengine.Result) {
	said, ran, ofNode := map[int][]string{}, map[int]bool{}, false
	for _, x := range results {
		did := x.Status != hostengine.DCGMSkip && x.Status != hostengine.DCGMNotRun
		switch x.Entity.Kind {
		case "gpu":
			status := x.Status
			if status == hostengine.DCGMPass && len(x.Notes) > 0 {
				status = "passed with errors"
			}
			said[x.Entity.ID] = append(said[x.Entity.ID], x.Test+" "+status)
			ran[x.Entity.ID] = ran[x.Entity.ID] || did
		case "":
			ofNode = ofNode || did
		}
	}
	for _, id := range ids {
		of := hostengine.Entity{Kind: "gpu", ID: id}
		switch {
		case ran[id]:
			s.AddFinding(r.ctx, of, checks.Finding{Code: "dcgm.diag.rates", Severity: checks.OK}, strings.Join(said[id], ", "))
		case ofNode && len(said[id]) == 0: // level 1 of DCGM 3 tests only the node
		case len(said[id]) > 0:
			r.failures = true
			s.AddFinding(r.ctx, of, checks.Finding{Code: "dcgm.diag.none", Severity: checks.Skip}, "no test was run: "+strings.Join(said[id], ", "))
		default:
			r.failures = true
			s.AddFinding(r.ctx, of, checks.Finding{Code: "dcgm.diag.gpu", Severity: checks.Unknown}, "DCGM has no result for it")
		}
	}
}
