package plan

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// The NCCL settings of nhc.toml reach the tests of NCCL, and a wrong one is an error with its
// line.
func TestNCCLEnv(t *testing.T) {
	t.Parallel()
	const text = "[active]\nnccl_env = [\"NCCL_IB_HCA=mlx5\", \"LD_PRELOAD=/tmp/x.so\", \"NCCL_IB_TC=106\"]\n[[check]]\nname = \"nccl\"\nop = \"all_reduce\"\n[[check]]\nname = \"gpu_count\"\n"
	c, err := conf.ParseTOML("nhc.toml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	const want = "nhc.toml:2: active.nccl_env: "
	if err := UnknownPolicy(c); err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "LD_PRELOAD") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, want %s...", err, want)
	}
	p := BuildTables(c.Checks, Options{Policies: c})
	if p.Problems != nil || len(p.Steps) != 2 {
		t.Fatalf("%d steps, %v", len(p.Steps), p.Problems)
	}
	if v := p.Steps[0].Vars; len(v) != 1 || v[0].Name != checks.NCCLEnvSetting || !strings.HasPrefix(v[0].Value, "NCCL_IB_HCA=mlx5\n") {
		t.Errorf("check_nccl has %v", v)
	}
	if v := p.Steps[1].Vars; len(v) != 0 {
		t.Errorf("check_gpu_count has %v", v)
	}
}
