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

// dcgmDiag runs DCGM's diagnostic of a level on the GPUs that nobody uses: 1 takes
// some 30 seconds, 2 two to ten minutes, 3 a quarter of an hour and more, 4 one to two
// hours; -t is the most that it may take. A test that fails is told with its GPU and
// DCGM's codes, each of which fails or warns as check_dcgm_health has it; one that tells
// no error of anything fails. A test that has recorded an error is never told as passed,
// whatever DCGM calls it. --exclude leaves tests out, by DCGM's names: --exclude
// nvbandwidth,pcie. GPUs that are split up by MIG, which the diagnostic refuses, are
// left out. What asks, and how, is that of check_dcgm_health.
//
//	gpu* || check_dcgm_diag 1
//	gpu* || check_dcgm_diag 3 --exclude nvbandwidth -t 40m --max-age 7d
type dcgmDiag struct {
	active

	Level   int           `arg:"1" toml:"level"`          // 1 to 4
	Exclude string        `long:"exclude" toml:"exclude"` // tests, with commas between them
	Limit   time.Duration `opt:"t" toml:"timeout"`        // 0: by the level
	Hung    bool          `opt:"f" toml:"hung_fail"`      // an engine that hangs fails the node
}

const dcgmDiagName = "check_dcgm_diag"

// dcgmLevels are how long a level may take unless -t says otherwise. DCGM's manual has
// seconds, 2 minutes, 15 minutes, 1 to 2 hours; AWS has measured up to 10.5 minutes
// for 2 and 2 hours 15 minutes for 4.
var dcgmLevels = []time.Duration{0, 2 * time.Minute, 15 * time.Minute, 40 * time.Minute, 150 * time.Minute}

func init() {
	checks.Register(checks.Info{
		Name:    dcgmDiagName,
		Usage:   "LEVEL [--exclude TEST,...] [-t TIME] [-f] [--max-age TIME]",
		Summary: "DCGM's diagnostic finds all GPUs well",
		Lane:    checks.DCGM,
		Active:  true,
		New:     func() checks.Check { return &dcgmDiag{Level: 1} },
		Do: func() map[string]string {
			return map[string]string{
				"dcgm.running":     "Somebody else runs DCGM's diagnostic: wait for it, or see ps for nvvs and dcgmi.",
				"dcgm.diag.failed": "DCGM says that the test has failed, and not why on this GPU: see what else is said of the test, and /var/log/nvidia-dcgm/nvvs.log; run dcgmi diag -r with the name of the test by hand.",
				"dcgm.diag.gpu":    "DCGM does not show a GPU that NVML has, or said nothing of it: see dcgmi discovery -l; systemctl restart nvidia-dcgm after GPUs were added or reset.",
				"dcgm.diag.none":   "Nothing: none of the tests of this level applies to the GPU, or all were left out.",
				"dcgm.diag.rates":  "Nothing: it is what each test has come to.",
			}
		},
		DoOf: dcgm.WhatToDo,
		Vars: dcgm.Vars,
	})
}

// Bind takes the level before the options, too.
func (c *dcgmDiag) Bind(args []string) error {
	if len(args) > 1 && !strings.HasPrefix(args[0], "-") {
		args = append(slices.Clone(args[1:]), args[0])
	}
	return checks.BindUsable(c, args)
}

// Validate refuses levels that DCGM has not.
func (c *dcgmDiag) Validate() error {
	if c.Level < 1 || c.Level >= len(dcgmLevels) {
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(c.Level), Want: "a level from 1 to 4"}
	}
	return nil
}

// Bound is the most that the diagnostic takes.
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

// excluded are the tests that are left out.
func (c *dcgmDiag) excluded() []string {
	return strings.FieldsFunc(c.Exclude, func(r rune) bool { return r == ',' || r == ' ' })
}

func (c *dcgmDiag) diagnose(r *activeRun, s *dcgm.Run) {
	ids, err := c.choose(r, s)
	if err != nil {
		c.stopped(r, s, "ask "+s.Engine.Via()+" for its GPUs", err)
		return
	}
	if len(ids) == 0 {
		r.failures = true
		return
	}
	r.at("run DCGM's diagnostic, level %d", c.Level)
	results, err := s.Engine.Diag(r.ctx, hostengine.DiagRequest{Level: c.Level, GPUs: ids, Exclude: c.excluded(), Timeout: c.Bound()})
	results = slices.DeleteFunc(results, func(x hostengine.Result) bool { return slices.Contains(c.excluded(), x.Test) })
	told := map[string]bool{} // the tests that tell why they have failed, of whatever
	for _, x := range results {
		told[x.Test] = told[x.Test] || x.Status == hostengine.DCGMFail && len(x.Notes) > 0
	}
	for i := range results {
		judgeDCGM(r.ctx, s, &results[i], told[results[i].Test])
	}
	if err != nil {
		c.stopped(r, s, "run the diagnostic by "+s.Engine.Via(), err)
		return
	}
	tellDCGM(r, s, ids, results)
}

// choose finds DCGM's numbers of the GPUs that may be loaded.
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
			r.report(checks.GPUDevice(g), checks.Finding{Code: "dcgm.diag.gpu", Severity: checks.Unknown}, "%s does not show it", s.Engine.Via())
			continue
		}
		ids = append(ids, known[i].ID)
		s.GPUs[known[i].ID] = checks.GPUDevice(g)
	}
	return ids, nil
}

// stopped makes a finding of an error; where the test itself was to end the frame has
// a word for it.
func (c *dcgmDiag) stopped(r *activeRun, s *dcgm.Run, doing string, err error) {
	if r.failures = true; context.Cause(r.ctx) == nil {
		s.Failed(doing, err)
	}
}

// judgeDCGM reports what a test has found on one thing. told: the test tells an error,
// of this or something else. Most tests of DCGM's fail on all GPUs then, whosever the
// error is: PluginTest::SetResult of nvvs.
func judgeDCGM(ctx context.Context, s *dcgm.Run, x *hostengine.Result, told bool) {
	worst, failed := checks.OK, x.Status == hostengine.DCGMFail
	what := checks.Before(", test ", x.Test, "")
	if x.Status == hostengine.DCGMPass {
		what += ", which DCGM says has passed"
	}
	for _, n := range x.Notes {
		worst = max(worst, s.Report(ctx, x.Entity, failed, n.Code, what, n.Message))
	}
	f := checks.Finding{Code: "dcgm.diag.failed", Severity: checks.Warn, Want: hostengine.DCGMPass, Got: x.Status}
	text := "test " + x.Test
	switch {
	case worst >= checks.Warn, slices.Contains([]string{hostengine.DCGMPass, hostengine.DCGMSkip, hostengine.DCGMNotRun}, x.Status):
		return
	case failed && told && len(x.Notes) == 0:
		text += ", without an error of its own"
	case failed && !told && x.Entity.Kind == "gpu": // no threshold that could be disputed
		f.Severity = checks.Fail
	case !failed && x.Status != hostengine.DCGMWarn:
		f.Severity = checks.Unknown
	}
	s.Tell(ctx, x.Entity, f, text)
}

// tellDCGM says what each test has come to on each GPU, and of which GPU nothing is
// known.
func tellDCGM(r *activeRun, s *dcgm.Run, ids []int, results []hostengine.Result) {
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
			s.Tell(r.ctx, of, checks.Finding{Code: "dcgm.diag.rates", Severity: checks.OK}, strings.Join(said[id], ", "))
		case ofNode && len(said[id]) == 0: // level 1 of DCGM 3 is about the node
		case len(said[id]) > 0:
			r.failures = true
			s.Tell(r.ctx, of, checks.Finding{Code: "dcgm.diag.none", Severity: checks.Skip}, "no test was run: "+strings.Join(said[id], ", "))
		default:
			r.failures = true
			s.Tell(r.ctx, of, checks.Finding{Code: "dcgm.diag.gpu", Severity: checks.Unknown}, "DCGM says nothing of it")
		}
	}
}
