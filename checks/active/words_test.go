package active

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Arguments that no test can use are rejected when they are bound, and so are such tables.
func TestActiveWordsAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ words, table, want string }{
		{"check_gpu_gemm 600", `{"tflops": 600}`, `bad value "600.0 TFLOP/s", want one type with it, as --types bf16`},
		{"check_gpu_gemm -n 100", `{"n": 100}`, `bad value "100", want a size (-n) that is a multiple of 128 up to 32768`},
		{"check_gpu_gemm -n -128", `{"n": -128}`, "a multiple of 128"},
		{"check_gpu_gemm --types bf16,int3", `{"types": "bf16,int3"}`, `bad value "int3", want some of the types fp64,fp32,tf32,bf16,fp16,fp8`},
		{"check_gpu_soak --type bf16,fp8 60", `{"time": "60", "type": "bf16,fp8"}`, `bad value "bf16,fp8", want one of the types fp64, `},
		{"check_gpu_soak -n 100 60", `{"time": "60", "n": 100}`, "a multiple of 128"},
		{"check_gpu_soak 0", `{"time": "0"}`, `bad value "0s", want a time above 0`},
		{"check_gpu_launch -c 1", `{"count": 1}`, `bad value "1", want a number of launches (-c) from 100 to 1000000`},
		{"check_gpu_launch -c 2000000", `{"count": 2000000}`, "from 100 to 1000000"},
		{"check_dcgm_diag 9", `{"level": 9}`, `bad value "9", want a level from 1 to 4`},
		{"check_dcgm_diag 0 --max-age 7d", `{"level": 0, "max_age": "7d"}`, "a level from 1 to 4"},
		{"check_gpu_bandwidth -b 0", `{"size": "0"}`, `want a size above 0`},
		{"check_gpu_bandwidth -t 0", `{"time": "0"}`, "a time above 0"},
		{"check_cuda_bw -b 0 20", `{"size": "0"}`, "a size above 0"},
		{"check_gpu_membw -b 0", `{"size": "0"}`, "a size above 0"},
		{"check_gpu_membw -t 0", `{"time": "0"}`, "a time above 0"},
		{"check_gpu_memtest -n 0", `{"rounds": 0}`, `bad value "0", want one round (-n) or more`},
		{"check_gpu_memtest -t 0", `{"time": "0"}`, "a time above 0"},
		{"check_cpu_stream -t 0", `{"time": "0"}`, "a time above 0"},
		{"check_disk_write -t 0 /tmp", `{"dir": "/tmp", "time": "0"}`, "a time above 0"},
		{"check_ib_bw -t 0", `{"time": "0"}`, "a time above 0"},
		{"check_nccl nothing", `{"op": "nothing"}`, "want one of "},
		{"check_comp_comm_overlap -n 100", `{"matrix": 100}`, "a multiple of 128"},
	} {
		words := strings.Fields(c.words)
		info, ok := checks.Lookup(words[0])
		if !ok || !info.Active {
			t.Fatalf("%s is not an active test", words[0])
		}
		if err := checks.Bind(info.New(), words[1:]); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.words, err, c.want)
		}
		var table map[string]any
		if err := json.Unmarshal([]byte(c.table), &table); err != nil {
			t.Fatal(err)
		}
		if err := checks.BindTable(info.New(), table); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %s", words[0], c.table, err, c.want)
		}
	}
}
