package lbnl

import (
	"context"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// nvsmiHealthmon runs nvidia-smi and evaluates its exit status. A run starts it only once,
// even for several lines. The variables NVIDIA_SMI_HEALTHMON and
// NVIDIA_SMI_HEALTHMON_ARGS replace the command and its arguments.
//
//	gpu* || check_nvsmi_healthmon
type nvsmiHealthmon struct {
	Surplus []string `arg:"*"` // ignored, as in LBNL NHC
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_nvsmi_healthmon",
		Usage:   "",
		Summary: "nvidia-smi finds all GPUs healthy",
		Lane:    checks.Cmd,
		New:     func() checks.Check { return &nvsmiHealthmon{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.smi.argument":   "Correct NVIDIA_SMI_HEALTHMON_ARGS in nhc.conf: this nvidia-smi does not know an option in it.",
				"gpu.smi.permission": "Run nhc-gpu as root, and check the modes of /dev/nvidia*.",
				"gpu.smi.power":      "Connect the power cables of the GPU; dmesg names the GPU.",
				"gpu.smi.driver":     "Run modprobe nvidia and read dmesg: the driver was not built for this kernel, was unloaded, or found no GPU.",
				"gpu.smi.interrupt":  "Read dmesg, and reboot. If the error returns, check the BIOS settings, then replace the GPU.",
				"gpu.smi.library":    "Install the driver's libraries in the version of the driver: libnvidia-ml.so.1 is missing.",
				"gpu.smi.inforom":    "Reset the GPU or reboot. If nvidia-smi -q still reports it, replace the GPU.",
				"gpu.smi.lost":       "Look for Xid 79 in dmesg, which names the GPU. Power the node off and on. If the error returns, reseat or replace the GPU.",
				"gpu.smi.signal":     "Run nvidia-smi by hand: it crashed or was killed. Look for Xid errors in dmesg.",
				"gpu.smi.missing":    "Install the driver's tools, or correct NVIDIA_SMI_HEALTHMON in nhc.conf: the program was not found.",
				"gpu.smi.failed":     "Read the output of nvidia-smi in the log, run it by hand, and look for Xid errors in dmesg.",
				"gpu.smi.output":     "No action: this is the output of nvidia-smi. See the failure that follows.",
			}
		},
		Vars: map[string]string{"NVIDIA_SMI_HEALTHMON": "nvidia-smi", "NVIDIA_SMI_HEALTHMON_ARGS": ""},
	})
}

// smiStatus returns the meaning of an exit status of nvidia-smi: section "RETURN VALUE" of
// nvidia-smi(1).
func smiStatus(status int) (code, text string, remedy checks.Remedy) {
	switch status {
	case 2:
		return "gpu.smi.argument", "Invalid argument or flag", checks.FixConfig
	case 4:
		return "gpu.smi.permission", "Permission denied", checks.NoRemedy
	case 8:
		return "gpu.smi.power", "Power cables not attached", checks.ReseatOrRMA
	case 9:
		return "gpu.smi.driver", "NVIDIA driver not loaded", checks.NoRemedy
	case 10:
		return "gpu.smi.interrupt", "Interrupt issue with a GPU", checks.RebootNode
	case 12:
		return "gpu.smi.library", "NVML shared library could not be found", checks.NoRemedy
	case 14:
		return "gpu.smi.inforom", "InfoROM is corrupted", checks.ReseatOrRMA
	case 15:
		return "gpu.smi.lost", "The GPU has fallen off the bus or has otherwise become inaccessible", checks.RebootNode
	case probe.NotFound:
		return "gpu.smi.missing", "", checks.NoRemedy
	}
	if status > probe.NotFound {
		return "gpu.smi.signal", fmt.Sprintf("Caught fatal signal %d", status&0x7f), checks.NoRemedy
	}
	return "gpu.smi.failed", "", checks.NoRemedy
}

func (c *nvsmiHealthmon) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	tool := env.Setting("NVIDIA_SMI_HEALTHMON", "nvidia-smi")
	cmd := env.Command(env.Words("NVIDIA_SMI_HEALTHMON", "nvidia-smi", "NVIDIA_SMI_HEALTHMON_ARGS", "")...)
	cmd.Output = checks.MaxReport
	x := env.RunTool(ctx, "nvsmi_healthmon", cmd)
	if x.Status == 0 {
		return nil
	}
	f := toolFailure(tool, x)
	begin := "check_nvsmi_healthmon:  " + tool + ":  "
	var text string
	f.Code, text, f.Remedy = smiStatus(x.Status)
	if text != "" {
		f.Message = begin + text
		return []checks.Finding{f}
	}
	f.Message = fmt.Sprintf("%sReturned failure code %d", begin, x.Status)
	return []checks.Finding{{Code: "gpu.smi.output", Severity: checks.Warn, Message: begin + `"` + checks.OutputText(x.Output) + `"`}, f}
}
