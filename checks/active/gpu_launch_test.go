package active

import (
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestGPULaunch(t *testing.T) { checktest.Run(t, "check_gpu_launch") }

var _ = checktest.Table("check_gpu_launch", func(name string) []checktest.Scenario {
	words := checktest.Of("-c", "100")
	found := func(code, want, got, text string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.launch." + code, Severity: checks.Fail, Want: want, Got: got}, text)
	}
	one := found("peers", "at most 7.50 us", "40.0 us", "launch of an empty kernel: far from its peers (median 5.00 us)")
	many := found("peers", "at most 7.50 us", "40.0 us", "empty kernels in a batch: far from its peers (median 5.00 us)")
	least := found("slow", "at most 20.0 us", "40.0 us", "launch of an empty kernel")
	lost := onGEMM("a launch fails", false, words, nil, []string{"3 cuLaunchKernel empty after 30 error 719", "3 cuDevicePrimaryCtxReset hang"},
		checktest.GPUFinding(name, 3, checks.Finding{Code: "cuda.error.719", Severity: checks.Fail, Remedy: checks.ResetGPU}, "launch kernels: launch empty: cuLaunchKernel(3): CUDA_ERROR_LAUNCH_FAILED (CUDA error 719)"))
	floor := onGEMM("one is above the floor", false, words, nil, []string{"3 launch = 6"},
		checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.launch.floor", Severity: checks.Warn, Want: "at most 5.50 us", Got: "6.00 us"}, "launch of an empty kernel (figure launch of the platform test)"))
	floor.Platform = &checks.Platform{Name: "test", Floors: []checks.Floor{{Test: "launch", Algorithm: "empty", Ranks: 1, Value: 5.5, Unit: "us"}}}
	return append(cudaCommon(name, words), lost, floor,
		onGEMM("healthy", false, words, nil, nil),
		onGEMM("outliers do not count", false, words, nil, []string{"3 launch = 5 5 5 5 5 5 5 5 5 9"}),
		onGEMM("one is slow", false, words, nil, []string{"3 launch = 40"}, one, many),
		onGEMM("one is slower than the line wants", false, checktest.Of("-c", "100", "-m", "20"), nil, []string{"3 launch = 40"}, least, many),
	)
})

// The round trip is real CPU time: a test can only show that it is more than nothing, and less
// than ten seconds.
func TestLaunchRoundTrip(t *testing.T) {
	t.Parallel()
	for most, want := range map[float64]int{0: 0, 1e7: 0, 0.001: 8} {
		s := onGEMM("", false, nil, nil, nil)
		env, _ := trialEnv(t, nil)
		probe.SetLibraries(env.Host, s.Libraries(t, t.TempDir()))
		c := &gpuLaunch{Count: 100, RoundTrip: most}
		slow := 0
		for _, f := range c.Run(t.Context(), env) {
			if f.Code == "gpu.launch.slow" && strings.Contains(f.Message, "round trip of a launch by the CPU's clock, want at most ") {
				slow++
			}
		}
		if slow != want {
			t.Errorf("at most %v us: %d GPUs are slow, want %d", most, slow, want)
		}
	}
}

func TestPartOfTimes(t *testing.T) {
	t.Parallel()
	var sorted []time.Duration
	for i := range 200 {
		sorted = append(sorted, time.Duration(i+1)*time.Microsecond)
	}
	if got := spread(sorted); got != "101.0, 199.0, 200.0 us" {
		t.Error(got)
	}
}
