package active

import (
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// An acknowledgement discards the result of a test: only a new run replaces it.
func TestClearActive(t *testing.T) {
	t.Parallel()
	const launch, gemm = gpuLaunchName, gpuGemmName
	env, _ := trialEnv(t, nil)
	if OfThisNode(env) {
		t.Error("nothing was found yet")
	}
	for _, name := range []string{launch, gemm} {
		now, err := describeNode(env)
		if err != nil {
			t.Fatal(err)
		}
		now.Findings = []checks.Finding{{Code: "gpu.wrong", Severity: checks.Fail, Message: name + ":  wrong"}}
		file, _ := readStamps(env, name)
		file.Stamps["x"], file.Stamps["y"] = &now, &now
		if err := env.Host.Keep(stampName(name), file); err != nil {
			t.Fatal(err)
		}
	}
	if !OfThisNode(env) {
		t.Error("the result belongs to this node")
	}
	for _, c := range []struct{ words, want, wrong string }{
		{words: "check_file_test", wrong: "clear --active check_file_test: unknown active test, want one of check_comp_comm_overlap, "},
		{words: "gpu_gemm gpu_launch", wrong: "want one test"},
		{words: "gpu_gemm", want: gemm},
		{words: gemm},
		{want: launch},
		{},
	} {
		cleared, err := ClearActive(env, strings.Fields(c.words), "root")
		if !slices.Equal(cleared, strings.Fields(c.want)) || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%q: %q, %v, want %q, %q", c.words, cleared, err, c.want, c.wrong)
		}
	}
	if OfThisNode(env) {
		t.Error("all was cleared")
	}
}
