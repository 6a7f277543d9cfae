package gpu

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

func TestGPUXGMI(t *testing.T)       { checktest.Run(t, "check_gpu_xgmi") }
func TestRCCLAllReduce(t *testing.T) { checktest.Run(t, "check_rccl_allreduce") }

var (
	_ = checktest.Table("check_gpu_xgmi", notForAMD)
	_ = checktest.Table("check_rccl_allreduce", notForAMD)
)

func notForAMD(name string) []checktest.Scenario {
	return []checktest.Scenario{{Name: "skipped", Words: checktest.Of("304", "1", "16G"), Want: notSupported(name)}}
}

// Checks of other vendors' GPUs are skipped, with the reason.
func TestUnsupported(t *testing.T) {
	t.Parallel()
	for _, line := range [][]string{checktest.Of("check_gpu_xgmi"), checktest.Of("check_rccl_allreduce", "304", "1", "16G"), checktest.Of("check_gpu_count", "16", "rocm")} {
		c := checktest.Bound(t, line)
		if u, ok := c.(interface{ Unsupported() string }); !ok || u.Unsupported() == "" {
			t.Errorf("%q: not unsupported", line)
		}
		if f := c.Run(t.Context(), &checks.Env{}); len(f) != 1 || f[0].Severity != checks.Skip || f[0].Code != "gpu.amd" {
			t.Errorf("%q: %v", line, f)
		}
	}
	if u, ok := checktest.Bound(t, checktest.Of("check_gpu_count", "8", "nvidia")).(interface{ Unsupported() string }); !ok || u.Unsupported() != "" {
		t.Error("check_gpu_count 8 nvidia: unsupported")
	}
}
