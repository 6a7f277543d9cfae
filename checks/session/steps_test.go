package session

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
)

func TestSteps(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		step plan.Step
		name string
		own  bool
		text string
	}{
		{plan.Step{Name: "check_gpu_count"}, "check_gpu_count", true, ""},
		{plan.Step{Name: "gpu_count", Table: map[string]any{"want": 8, "all": true}}, "check_gpu_count", true, "all=true want=8"},
		{plan.Step{Name: "check_hw_eth"}, "check_hw_eth", false, ""},
		{plan.Step{Kind: plan.ShellLine, Name: "check_gpu_count"}, "check_gpu_count", false, ""},
	} {
		if name, own, text := checks.FullName(tt.step.Name), OwnCheck(tt.step), TableText(&tt.step); name != tt.name || own != tt.own || text != tt.text {
			t.Errorf("%s: %q, own %v, %q; want %q, %v, %q", tt.step.Name, name, own, text, tt.name, tt.own, tt.text)
		}
	}
}
