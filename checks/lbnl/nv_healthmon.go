package lbnl

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// nvHealthmon runs NVIDIA's Tesla health monitor, "nvidia-healthmon -e -v", and
// evaluates its exit status. A run starts it only once, even for several lines. The
// variables NVIDIA_HEALTHMON and NVIDIA_HEALTHMON_ARGS replace the command.
//
//	gpu* || check_nv_healthmon
type nvHealthmon struct {
	Surplus []string `arg:"*"` // ignored, as in LBNL NHC
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_nv_healthmon",
		Usage:   "",
		Summary: "nvidia-healthmon finds all GPUs healthy",
		Lane:    checks.Cmd,
		New:     func() checks.Check { return &nvHealthmon{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.healthmon.missing": "Install nvidia-healthmon, or replace the line by check_nvsmi_healthmon: newer drivers do not include nvidia-healthmon.",
				"gpu.healthmon.signal":  "Run nvidia-healthmon by hand: it crashed or was killed. Look for Xid errors in dmesg.",
				"gpu.healthmon.failed":  "Read the output of nvidia-healthmon in the log: it names the GPU and the test that failed. Look for Xid errors in dmesg.",
				"gpu.healthmon.output":  "No action: this is the output of nvidia-healthmon. See the failure that follows.",
			}
		},
		Vars: map[string]string{"NVIDIA_HEALTHMON": "nvidia-healthmon", "NVIDIA_HEALTHMON_ARGS": "-e -v"},
	})
}

func (c *nvHealthmon) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	tool := env.Setting("NVIDIA_HEALTHMON", "nvidia-healthmon")
	cmd := env.Command(env.Words("NVIDIA_HEALTHMON", "nvidia-healthmon", "NVIDIA_HEALTHMON_ARGS", "-e -v")...)
	cmd.Output = checks.MaxReport
	x := env.RunTool(ctx, "nv_healthmon", cmd)
	f := toolFailure(tool, x)
	f.Message = "check_nv_healthmon:  " + tool
	switch {
	case x.Status == 0:
		return nil
	case x.Status == probe.NotFound:
		f.Code = "gpu.healthmon.missing"
		f.Message += " not found or not runnable."
	case x.Status > probe.NotFound:
		f.Code = "gpu.healthmon.signal"
		f.Message += fmt.Sprintf(" caught fatal signal %d", x.Status-probe.Signalled)
	default:
		f.Code = "gpu.healthmon.failed"
		f.Message += fmt.Sprintf(" returned failure code %d", x.Status)
		return []checks.Finding{{Code: "gpu.healthmon.output", Severity: checks.Warn, Message: checks.OutputText(x.Output)}, f}
	}
	return []checks.Finding{f}
}

// toolFailure returns the failure of a tool by its exit status, without code and message.
func toolFailure(tool string, x probe.Exit) checks.Finding {
	f := checks.Finding{
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "command", Name: tool},
		Want:     "0",
		Got:      strconv.Itoa(x.Status),
	}
	if x.Err != nil {
		f.Got += ": " + x.Err.Error()
	}
	return f
}
