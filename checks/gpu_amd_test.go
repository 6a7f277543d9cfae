package checks

import (
	"testing"
)

func TestGPUXGMI(t *testing.T)       { testCheck(t, "check_gpu_xgmi") }
func TestRCCLAllReduce(t *testing.T) { testCheck(t, "check_rccl_allreduce") }

var (
	_ = table("check_gpu_xgmi", notForAMD)
	_ = table("check_rccl_allreduce", notForAMD)
)

func notForAMD(name string) []scenario {
	return []scenario{{name: "skipped", words: of("304", "1", "16G"), want: notSupported(name)}}
}

// What is for other GPUs says so, and is skipped.
func TestUnsupported(t *testing.T) {
	t.Parallel()
	for _, line := range [][]string{of("check_gpu_xgmi"), of("check_rccl_allreduce", "304", "1", "16G"), of("check_gpu_count", "16", "rocm")} {
		c := bound(t, line)
		if u, ok := c.(interface{ Unsupported() string }); !ok || u.Unsupported() == "" {
			t.Errorf("%q: not unsupported", line)
		}
		if f := c.Run(t.Context(), &Env{}); len(f) != 1 || f[0].Severity != Skip || f[0].Code != "gpu.amd" {
			t.Errorf("%q: %v", line, f)
		}
	}
	if u, ok := bound(t, of("check_gpu_count", "8", "nvidia")).(interface{ Unsupported() string }); !ok || u.Unsupported() != "" {
		t.Error("check_gpu_count 8 nvidia: unsupported")
	}
}
