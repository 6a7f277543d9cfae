package checks

import "testing"

func TestNVHealthMon(t *testing.T) { testCheck(t, "check_nv_healthmon") }

var _ = table("check_nv_healthmon", func(name string) []scenario {
	const tool = "nvidia-healthmon"
	missing := func(tool, got string) Finding {
		return byStatus("gpu.healthmon.missing", tool, got, name+":  "+tool+" not found or not runnable.", NoRemedy)
	}
	signal := func(status, n string) Finding {
		return byStatus("gpu.healthmon.signal", tool, status, name+":  nvidia-healthmon caught fatal signal "+n, NoRemedy)
	}
	failed := func(status, output string) []Finding {
		return []Finding{
			{Code: "gpu.healthmon.output", Severity: Warn, Message: output},
			byStatus("gpu.healthmon.failed", tool, status, name+":  nvidia-healthmon returned failure code "+status, NoRemedy)}
	}
	return []scenario{
		onTool("well", tool, `[ "$*" = "-e -v" ]`).orTable(map[string]any{}),
		onTool("other arguments", tool, `[ "$#" = 0 ]`).underVars(map[string]string{"NVIDIA_HEALTHMON_ARGS": ""}),
		onTool("other program with arguments", "hm", `[ "$*" = "-q -x" ]`).
			underVars(map[string]string{"NVIDIA_HEALTHMON": "/bin/hm -q", "NVIDIA_HEALTHMON_ARGS": "-x"}),
		onTool("no program", tool, "exit 3").underVars(map[string]string{"NVIDIA_HEALTHMON": "", "NVIDIA_HEALTHMON_ARGS": ""}),

		onTool("one of eight GPUs fails", tool, `for i in 0 1 2 3 4 5 6 7; do echo "GPU $i"; done; echo "GPU 5: bad" 1>&2; echo; exit 3`,
			failed("3", "GPU 0\nGPU 1\nGPU 2\nGPU 3\nGPU 4\nGPU 5\nGPU 6\nGPU 7")...),
		onTool("fails without a word", tool, "exit 126", failed("126", "")...),
		onTool("says that it was not found", tool, "exit 127", missing(tool, "127")),
		onTool("signal in the status", tool, "exit 129", signal("129", "1")),
		onTool("killed", tool, "kill -SEGV $$", signal("139", "11")),
		onTool("status 255", tool, "exit 255", signal("255", "127")),

		{name: "missing", want: []Finding{missing(tool, "127: run nvidia-healthmon: file does not exist")}},
		onTool("garbage", tool, `printf 'a\0\377b\n\n'; exit 1`, failed("1", "a\xffb")...).onBroken(),
	}
})
