package lbnl

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

func TestNVSMIHealthMon(t *testing.T) { checktest.Run(t, "check_nvsmi_healthmon") }

var _ = checktest.Table("check_nvsmi_healthmon", func(name string) []checktest.Scenario {
	const tool = "nvidia-smi"
	exits := func(status, code, text string, remedy checks.Remedy) checktest.Scenario {
		return onTool("status "+status, tool, "echo GPU text; exit "+status,
			byStatus("gpu.smi."+code, tool, status, name+":  nvidia-smi:  "+text, remedy))
	}
	failed := func(code, status, got, output string) []checks.Finding {
		return []checks.Finding{
			{Code: "gpu.smi.output", Severity: checks.Warn, Message: name + `:  nvidia-smi:  "` + output + `"`},
			byStatus("gpu.smi."+code, tool, got, name+":  nvidia-smi:  Returned failure code "+status, checks.NoRemedy)}
	}
	return []checktest.Scenario{
		onTool("well", tool, `[ "$#" = 0 ]`).OrTable(map[string]any{}),
		onTool("arguments", tool, `[ "$*" = "-q -i 0" ]`).UnderVars(map[string]string{"NVIDIA_SMI_HEALTHMON_ARGS": "-q  -i 0"}),
		onTool("other program", "smi", `[ "$*" = "-x" ]`).UnderVars(map[string]string{"NVIDIA_SMI_HEALTHMON": "/bin/smi -x"}),
		onTool("no program", tool, "exit 9").UnderVars(map[string]string{"NVIDIA_SMI_HEALTHMON": ""}),

		exits("2", "argument", "Invalid argument or flag", checks.FixConfig),
		exits("4", "permission", "Permission denied", checks.NoRemedy),
		exits("8", "power", "Power cables not attached", checks.ReseatOrRMA),
		exits("9", "driver", "NVIDIA driver not loaded", checks.NoRemedy),
		exits("10", "interrupt", "Interrupt issue with a GPU", checks.RebootNode),
		exits("12", "library", "NVML shared library could not be found", checks.NoRemedy),
		exits("14", "inforom", "InfoROM is corrupted", checks.ReseatOrRMA),
		exits("15", "lost", "The GPU has fallen off the bus or has otherwise become inaccessible", checks.RebootNode),
		exits("128", "signal", "Caught fatal signal 0", checks.NoRemedy),
		exits("255", "signal", "Caught fatal signal 127", checks.NoRemedy),
		onTool("killed", tool, "kill -SEGV $$",
			byStatus("gpu.smi.signal", tool, "139", name+":  nvidia-smi:  Caught fatal signal 11", checks.NoRemedy)),
		onTool("one of eight GPUs fails", tool, `for i in 0 1 2 3 4 5 6 7; do echo "GPU $i"; done; echo "GPU 5: bad"; exit 6`,
			failed("failed", "6", "6", "GPU 0\nGPU 1\nGPU 2\nGPU 3\nGPU 4\nGPU 5\nGPU 6\nGPU 7\nGPU 5: bad")...),
		onTool("not executable inside", tool, "exit 126", failed("failed", "126", "126", "")...),
		onTool("other name in the texts", "smi", "exit 14",
			byStatus("gpu.smi.inforom", "smi -q", "14", name+":  smi -q:  InfoROM is corrupted", checks.ReseatOrRMA)).
			UnderVars(map[string]string{"NVIDIA_SMI_HEALTHMON": "smi -q"}),

		{Name: "missing", Want: failed("missing", "127", "127: run nvidia-smi: file does not exist", "")},
		onTool("garbage", tool, `printf 'a\0\377b\n\n'; exit 1`, failed("failed", "1", "1", "a\xffb")...).OnBroken(),
	}
})
