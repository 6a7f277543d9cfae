package gpu

import (
	"context"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuRemap checks the repair of a GPU's memory. Ampere and later GPUs replace faulty rows by spare
// rows, and newer ones whole banks: it fails if a remapping needs a reset or has failed, or if MAX or
// more rows were remapped for uncorrected errors (a platform can have its own limit). It warns if a
// bank has no spare rows left. Older GPUs retire pages: it fails if a page needs a reset to be
// retired, or if the table of retired pages is full.
//
//	gpu* || check_gpu_remap
type gpuRemap struct {
	Max int `arg:"1" toml:"max"` // number of rows remapped for uncorrected errors at which the check fails
}

// The limits of other tools: AzureHPC, DCGM and NVIDIA's own guide replace a GPU at 512 rows. The
// table of retired pages has 64 entries; DCGM calls 63 full, and more than 15 many.
const (
	maxRemapped  = 512
	fullRetired  = 63
	manyRetired  = 15
	gpuRemapName = "check_gpu_remap"
)

func init() {
	checks.Register(checks.Info{
		Name:    gpuRemapName,
		Usage:   "[MAX]",
		Summary: "no GPU memory needs repair or cannot be repaired",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuRemap{Max: maxRemapped} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.remap.pending": checks.ResetAdvice + " That disables the faulty memory.",
				"gpu.remap.failed":  "There was no spare memory for a faulty row: run the vendor's field diagnostic and have the GPU replaced.",
				"gpu.remap.many":    "The GPU's memory wears out: run the vendor's field diagnostic and have the GPU replaced.",
				"gpu.remap.mig":     "Nothing: look at nvidia-smi -q -d ROW_REMAPPER when no MIG device exists. check_gpu_xid reports the Xids of faulty memory (48, 63, 64, 94, 95).",
				"gpu.remap.spare":   "Nothing now. The next faulty row of that bank, or the next faulty bank of that group, cannot be remapped; then the GPU must be replaced.",
			}
		},
	})
}

func (c *gpuRemap) Run(_ context.Context, env *checks.Env) []checks.Finding {
	s, findings := AskNVML(env, gpuRemapName, nvml.GroupRows)
	if s == nil {
		return findings
	}
	s.Each(c.judge)
	s.total("remapped rows", func(g *nvml.GPU) (uint64, bool) {
		r := g.Rows.Remapped
		return uint64(r.Value.Corrected + r.Value.Uncorrected), r.Known
	})
	reportMissing(s, "remapped rows", func(g *nvml.GPU) nvml.Reading[nvml.RemappedRows] { return g.Rows.Remapped })
	return s.Done()
}

func (c *gpuRemap) judge(s *GPUs, g *nvml.GPU) {
	rows, known := Value(s, g.Rows.Remapped)
	if !known && s.Err == nil {
		s.Err = unreadMIG(g)
	}
	if !known && g.Rows.Remapped.Err == nil && g.Modes.MIG.Value {
		s.Report(g, checks.Finding{Code: "gpu.remap.mig", Severity: checks.Skip}, "NVML does not report remapped rows of a GPU with MIG devices")
	}
	if rows.Pending {
		s.Report(g, checks.Finding{Code: "gpu.remap.pending", Severity: checks.Fail, Remedy: checks.ResetGPU}, "memory rows need a reset to be remapped")
	}
	if rows.Failed {
		s.Report(g, checks.Finding{Code: "gpu.remap.failed", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}, "a memory row could not be remapped")
	}
	limit := c.Max
	if p := s.findPlatform(g); limit == maxRemapped && p.RemappedRows > 0 {
		limit = p.RemappedRows
	}
	if limit > 0 && rows.Uncorrected >= limit {
		s.Report(g, checks.Finding{Code: "gpu.remap.many", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: fmt.Sprintf("fewer than %d", limit), Got: fmt.Sprint(rows.Uncorrected)},
			"rows remapped for uncorrected errors")
	}
	if banks, _ := Value(s, g.Rows.Histogram); banks.None > 0 {
		s.Report(g, checks.Finding{Code: "gpu.remap.spare", Severity: checks.Warn}, "%s without spare rows", checks.Plural(banks.None, "bank"))
	}
	judgeBanks(s, g)
	judgeRetired(s, g)
}

// judgeBanks judges the bank remapper. A GPU that has remapped no bank and reports no spare ones is made without them.
func judgeBanks(s *GPUs, g *nvml.GPU) {
	banks, _ := Value(s, g.Rows.Banks)
	if banks.Pending {
		s.Report(g, checks.Finding{Code: "gpu.remap.pending", Severity: checks.Fail, Remedy: checks.ResetGPU}, "a memory bank needs a reset to be remapped")
	}
	if banks.NoSpare > 0 && banks.Active+banks.Inactive > 0 {
		s.Report(g, checks.Finding{Code: "gpu.remap.spare", Severity: checks.Warn}, "%s of banks without a spare bank", checks.Plural(banks.NoSpare, "group"))
	}
}

func judgeRetired(s *GPUs, g *nvml.GPU) {
	if pending, _ := Value(s, g.Rows.RetiredPending); pending {
		s.Report(g, checks.Finding{Code: "gpu.remap.pending", Severity: checks.Fail, Remedy: checks.ResetGPU}, "memory pages need a reset to be retired")
	}
	single, _ := Value(s, g.Rows.RetiredSBE)
	double, _ := Value(s, g.Rows.RetiredDBE)
	f := checks.Finding{Code: "gpu.remap.many", Got: fmt.Sprint(single + double)}
	switch {
	case single+double >= fullRetired:
		f.Severity, f.Remedy, f.Want = checks.Fail, checks.ReseatOrRMA, fmt.Sprintf("fewer than %d", fullRetired)
	case single+double > manyRetired:
		f.Severity, f.Want = checks.Warn, fmt.Sprintf("at most %d", manyRetired)
	default:
		return
	}
	s.Report(g, f, "retired pages")
}
