package lbnl

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

func TestNVHealthMon(t *testing.T) { checktest.Run(t, "check_nv_healthmon") }

var _ = checktest.Table("check_nv_healthmon", func(name string) []checktest.Scenario {
	const tool = "nvidia-healthmon"
	missing := func(tool, got string) checks.Finding {
		return byStatus("gpu.healthmon.missing", tool, got, name+":  "+tool+" not found or not runnable.", checks.NoRemedy)
	}
	signal := func(status, n string) checks.Finding {
		return byStatus("gpu.healthmon.signal", tool, status, name+":  nvidia-healthmon caught fatal signal "+n, checks.NoRemedy)
	}
	failed := func(status, output string) []checks.Finding {
		return []checks.Finding{
			{Code: "gpu.healthmon.output", Severity: checks.Warn, Message: output},
			byStatus("gpu.healthmon.failed", tool, status, name+":  nvidia-healthmon returned failure code "+status, checks.NoRemedy)}
	}
	return []checktest.Scenario{
		onTool("well", tool, `[ "$*" = "-e -v" ]`).OrTable(map[string]any{}),
		onTool("other arguments", tool, `[ "$#" = 0 ]`).UnderVars(map[string]string{"NVIDIA_HEALTHMON_ARGS": ""}),
		onTool("other program with arguments", "hm", `[ "$*" = "-q -x" ]`).
			UnderVars(map[string]string{"NVIDIA_HEALTHMON": "/bin/hm -q", "NVIDIA_HEALTHMON_ARGS": "-x"}),
		onTool("no program", tool, "exit 3").UnderVars(map[string]string{"NVIDIA_HEALTHMON": "", "NVIDIA_HEALTHMON_ARGS": ""}),

		onTool("one of eight GPUs fails", tool, `for i in 0 1 2 3 4 5 6 7; do echo "GPU $i"; done; echo "GPU 5: bad" 1>&2; echo; exit 3`,
			failed("3", "GPU 0\nGPU 1\nGPU 2\nGPU 3\nGPU 4\nGPU 5\nGPU 6\nGPU 7")...),
		onTool("fails without a word", tool, "exit 126", failed("126", "")...),
		onTool("says that it was not found", tool, "exit 127", missing(tool, "127")),
		onTool("signal in the status", tool, "exit 129", signal("129", "1")),
		onTool("killed", tool, "kill -SEGV $$", signal("139", "11")),
		onTool("status 255", tool, "exit 255", signal("255", "127")),

		{Name: "missing", Want: []checks.Finding{missing(tool, "127: run nvidia-healthmon: file does not exist")}},
		onTool("garbage", tool, `printf 'a\0\377b\n\n'; exit 1`, failed("1", "a\xffb")...).OnBroken(),
	}
})
