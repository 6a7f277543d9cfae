package lbnl

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// nvHealthmon runs NVIDIA's Tesla health monitor, "nvidia-healthmon -e -v", and
// goes by its exit status. It is run once, however many lines ask for it. The
// variables NVIDIA_HEALTHMON and NVIDIA_HEALTHMON_ARGS are another command.
//
//	gpu* || check_nv_healthmon
type nvHealthmon struct {
	Surplus []string `arg:"*"` // LBNL NHC does not look at any
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_nv_healthmon",
		Usage:   "",
		Summary: "nvidia-healthmon finds all GPUs well",
		Lane:    checks.Cmd,
		New:     func() checks.Check { return &nvHealthmon{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.healthmon.missing": "Install nvidia-healthmon, or drop the check: newer drivers come without it, and check_nvsmi_healthmon does its work.",
				"gpu.healthmon.signal":  "nvidia-healthmon crashed or was killed: run it by hand, and look in dmesg for Xid errors of the driver.",
				"gpu.healthmon.failed":  "The log has its output: it names the GPU and the test that failed. Look in dmesg for Xid errors.",
				"gpu.healthmon.output":  "Nothing by itself: it is what nvidia-healthmon printed; the failure that follows tells what to do.",
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
	case x.Status == checks.NotFound:
		f.Code = "gpu.healthmon.missing"
		f.Message += " not found or not runnable."
	case x.Status > checks.NotFound:
		f.Code = "gpu.healthmon.signal"
		f.Message += fmt.Sprintf(" caught fatal signal %d", x.Status-checks.KilledBy)
	default:
		f.Code = "gpu.healthmon.failed"
		f.Message += fmt.Sprintf(" returned failure code %d", x.Status)
		return []checks.Finding{{Code: "gpu.healthmon.output", Severity: checks.Warn, Message: checks.OutputText(x.Output)}, f}
	}
	return []checks.Finding{f}
}

// toolFailure is a failure by the exit status of a tool, without code and message.
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
