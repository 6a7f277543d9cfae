package gpu

import (
	"context"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// amdOnly is always skipped: it is AzureHPC's check of AMD GPUs, which nhc-gpu does not support. A
// function of this name in a script of the site is used instead.
//
//	nd96isr_mi300x* || check_rccl_allreduce 304 1 16G
type amdOnly struct {
	Words []string `arg:"*"` // AzureHPC's arguments, ignored
	name  string
}

const (
	noAMD = "AMD GPUs are not supported"
	amdDo = "Nothing is wrong with the node: nhc-gpu does not check AMD GPUs. Remove the line, or put AzureHPC's script of that check into /etc/nhc/scripts: nhc-gpu then uses its function."
)

func init() {
	for _, name := range []string{"check_gpu_xgmi", "check_rccl_allreduce"} {
		checks.Register(checks.Info{
			Name: name, Usage: "[WORD]...", Summary: "skipped: " + noAMD,
			Lane: checks.Local,
			New:  func() checks.Check { return &amdOnly{name: name} },
			Do:   func() map[string]string { return map[string]string{"gpu.amd": amdDo} },
		})
	}
}

// Unsupported returns why the line can never run.
func (c *amdOnly) Unsupported() string { return noAMD }

func (c *amdOnly) Run(context.Context, *checks.Env) []checks.Finding { return notSupported(c.name) }

func notSupported(check string) []checks.Finding {
	return []checks.Finding{checks.Finding{Code: "gpu.amd", Severity: checks.Skip}.Describe(check, "not run: %s", noAMD)}
}
