package lbnl

import (
	"context"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// nvsmiHealthmon runs nvidia-smi and goes by its exit status. It is run once,
// however many lines ask for it. The variables NVIDIA_SMI_HEALTHMON and
// NVIDIA_SMI_HEALTHMON_ARGS are another command and its arguments.
//
//	gpu* || check_nvsmi_healthmon
type nvsmiHealthmon struct {
	Surplus []string `arg:"*"` // LBNL NHC does not look at any
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_nvsmi_healthmon",
		Usage:   "",
		Summary: "nvidia-smi finds all GPUs well",
		Lane:    checks.Cmd,
		New:     func() checks.Check { return &nvsmiHealthmon{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.smi.argument":   "Correct NVIDIA_SMI_HEALTHMON_ARGS in nhc.conf: this nvidia-smi does not know an option in it.",
				"gpu.smi.permission": "Run nhc-gpu as root, and see the modes of /dev/nvidia*.",
				"gpu.smi.power":      "Plug in the power cables of the GPU: see dmesg for which one.",
				"gpu.smi.driver":     "See dmesg: the driver was not built for this kernel, was unloaded, or found no GPU. Try modprobe nvidia.",
				"gpu.smi.interrupt":  "See dmesg, and reboot. If it comes back a BIOS setting or the GPU is at fault.",
				"gpu.smi.library":    "Install the libraries of the driver's version: libnvidia-ml.so.1 is missing.",
				"gpu.smi.inforom":    "Reset the GPU or reboot; if nvidia-smi -q still says so have the GPU replaced.",
				"gpu.smi.lost":       "See dmesg for Xid 79 and which GPU it is. Reboot, with the power off for a moment; if it comes back reseat or replace the GPU.",
				"gpu.smi.signal":     "nvidia-smi crashed or was killed: run it by hand, and look in dmesg for Xid errors of the driver.",
				"gpu.smi.missing":    "Install the driver's tools, or correct NVIDIA_SMI_HEALTHMON in nhc.conf: the program was not found.",
				"gpu.smi.failed":     "The log has its output: run nvidia-smi by hand, and look in dmesg for Xid errors of the driver.",
				"gpu.smi.output":     "Nothing by itself: it is what nvidia-smi printed; the failure that follows tells what to do.",
			}
		},
		Vars: map[string]string{"NVIDIA_SMI_HEALTHMON": "nvidia-smi", "NVIDIA_SMI_HEALTHMON_ARGS": ""},
	})
}

// smiStatus is what an exit status of nvidia-smi means: section "RETURN VALUE" of
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
	case checks.NotFound:
		return "gpu.smi.missing", "", checks.NoRemedy
	}
	if status > checks.NotFound {
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
