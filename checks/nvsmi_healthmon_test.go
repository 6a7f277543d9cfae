package checks

import "testing"

func TestNVSMIHealthMon(t *testing.T) { testCheck(t, "check_nvsmi_healthmon") }

var _ = table("check_nvsmi_healthmon", func(name string) []scenario {
	const tool = "nvidia-smi"
	exits := func(status, code, text string, remedy Remedy) scenario {
		return onTool("status "+status, tool, "echo GPU text; exit "+status,
			byStatus("gpu.smi."+code, tool, status, name+":  nvidia-smi:  "+text, remedy))
	}
	failed := func(code, status, got, output string) []Finding {
		return []Finding{
			{Code: "gpu.smi.output", Severity: Warn, Message: name + `:  nvidia-smi:  "` + output + `"`},
			byStatus("gpu.smi."+code, tool, got, name+":  nvidia-smi:  Returned failure code "+status, NoRemedy)}
	}
	return []scenario{
		onTool("well", tool, `[ "$#" = 0 ]`).orTable(map[string]any{}),
		onTool("arguments", tool, `[ "$*" = "-q -i 0" ]`).underVars(map[string]string{"NVIDIA_SMI_HEALTHMON_ARGS": "-q  -i 0"}),
		onTool("other program", "smi", `[ "$*" = "-x" ]`).underVars(map[string]string{"NVIDIA_SMI_HEALTHMON": "/bin/smi -x"}),
		onTool("no program", tool, "exit 9").underVars(map[string]string{"NVIDIA_SMI_HEALTHMON": ""}),

		exits("2", "argument", "Invalid argument or flag", FixConfig),
		exits("4", "permission", "Permission denied", NoRemedy),
		exits("8", "power", "Power cables not attached", ReseatOrRMA),
		exits("9", "driver", "NVIDIA driver not loaded", NoRemedy),
		exits("10", "interrupt", "Interrupt issue with a GPU", RebootNode),
		exits("12", "library", "NVML shared library could not be found", NoRemedy),
		exits("14", "inforom", "InfoROM is corrupted", ReseatOrRMA),
		exits("15", "lost", "The GPU has fallen off the bus or has otherwise become inaccessible", RebootNode),
		exits("128", "signal", "Caught fatal signal 0", NoRemedy),
		exits("255", "signal", "Caught fatal signal 127", NoRemedy),
		onTool("killed", tool, "kill -SEGV $$",
			byStatus("gpu.smi.signal", tool, "139", name+":  nvidia-smi:  Caught fatal signal 11", NoRemedy)),
		onTool("one of eight GPUs fails", tool, `for i in 0 1 2 3 4 5 6 7; do echo "GPU $i"; done; echo "GPU 5: bad"; exit 6`,
			failed("failed", "6", "6", "GPU 0\nGPU 1\nGPU 2\nGPU 3\nGPU 4\nGPU 5\nGPU 6\nGPU 7\nGPU 5: bad")...),
		onTool("not executable inside", tool, "exit 126", failed("failed", "126", "126", "")...),
		onTool("other name in the texts", "smi", "exit 14",
			byStatus("gpu.smi.inforom", "smi -q", "14", name+":  smi -q:  InfoROM is corrupted", ReseatOrRMA)).
			underVars(map[string]string{"NVIDIA_SMI_HEALTHMON": "smi -q"}),

		{name: "missing", want: failed("missing", "127", "127: run nvidia-smi: file does not exist", "")},
		onTool("garbage", tool, `printf 'a\0\377b\n\n'; exit 1`, failed("failed", "1", "1", "a\xffb")...).onBroken(),
	}
})
