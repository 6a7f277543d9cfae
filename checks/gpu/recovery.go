package gpu

import (
	"context"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/gpustate"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuRecovery checks that the driver wants nothing to be done to a GPU: no reset,
// no reboot (NVML's recovery action, driver 565 and later; the reset status
// before that), and that no GPU is lost, requires a reset, lacks its power cable, or sends
// no interrupts. What the driver says
// here weighs more than any Xid in the kernel's log.
//
//	gpu* || check_gpu_recovery
type gpuRecovery struct{}

func init() {
	checks.Register(checks.Info{
		Name:    "check_gpu_recovery",
		Summary: "the driver wants no GPU to be reset",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuRecovery{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.recovery.lost":       "The GPU is off the bus (Xid 79 in dmesg). Reboot, with the power off for a moment; if it comes back reseat or replace the GPU.",
				"gpu.recovery.power":      "Power the node off, attach the power cables of the GPU and reseat it; if it comes back replace cable or GPU.",
				"gpu.recovery.interrupts": "Reboot the node, and see dmesg for NVRM and interrupt lines; if it comes back update BIOS and driver, or replace the GPU.",
				"gpu.recovery.reset":      "End what runs on the GPU, then nvidia-smi --gpu-reset -i with its PCI address; if that fails reboot.",
				"gpu.recovery.reboot":     "Reboot the node.",
				"gpu.recovery.p2p":        "End the jobs that use NVLink between GPUs, then reset the GPU, or reboot.",
				"gpu.recovery.fabric":     "The IMEX domain, which spans the nodes of the rack, is to be recovered: see nvidia-imex-ctl -N and the fabric manager; restart nvidia-imex.",
				"gpu.recovery.unknown":    "A newer driver's word: see nvidia-smi -q, GPU Recovery Action, and NVIDIA's manual; a reboot is the safe choice.",
			}
		},
	})
}

// recoveries are the actions of nvml.h, as of driver 590.
var recoveries = map[int]struct {
	code, text string
	remedy     checks.Remedy
}{
	nvml.RecoveryReset:        {"reset", "a reset of the GPU", checks.ResetGPU},
	nvml.RecoveryReboot:       {"reboot", "a reboot of the node", checks.RebootNode},
	nvml.RecoveryDrainP2P:     {"p2p", "traffic between GPUs to end", checks.ResetGPU},
	nvml.RecoveryDrainReset:   {"reset", "jobs to end, and a reset of the GPU", checks.ResetGPU},
	nvml.RecoveryIMEX:         {"fabric", "the IMEX domain to be recovered", checks.CheckFabric},
	nvml.RecoveryBusReset:     {"reset", "a reset of the GPU's bus", checks.ResetGPU},
	nvml.RecoverySystemReboot: {"reboot", "a reboot of the system", checks.RebootNode},
}

func (c *gpuRecovery) Run(_ context.Context, env *checks.Env) []checks.Finding {
	s, findings := AskNVML(env, gpustate.RecoveryCheck, nvml.GroupRecovery)
	if s == nil {
		return findings
	}
	env.Fact("the driver requests no action")
	for i := range s.NVML.GPUs {
		judgeRecovery(s, &s.NVML.GPUs[i])
	}
	return s.Done()
}

// judgeRecovery judges what the driver wants; a GPU that is lost is for [checks.Look].
func judgeRecovery(s *GPUs, g *nvml.GPU) {
	r := g.Recovery
	err := firstError(g.Err, r.Action.Err, r.Reset.Err, g.Name.Err, g.UUID.Err, g.Serial.Err, g.Minor.Err, g.VBIOS.Err, g.Inforom.Err)
	s.Judged = s.Judged || err != nil || g.Name.Known
	if err != nil {
		s.Report(g, checks.Finding{Code: "gpu.error", Severity: checks.Unknown, Whole: g.Err != nil}, "could not tell: %v", err)
		return
	}
	action := r.Action.Value
	if !r.Action.Known && (r.Reset.Value || r.DrainReset.Value) {
		action = nvml.RecoveryReset
	}
	if action == nvml.RecoveryNone {
		return
	}
	what, ok := recoveries[action]
	if !ok { // the safe choice for what a newer driver may say
		what.code, what.text, what.remedy = "unknown", fmt.Sprintf("recovery action %d, which is not known here", action), checks.RebootNode
	}
	s.Report(g, checks.Finding{Code: "gpu.recovery." + what.code, Severity: checks.Fail, Remedy: what.remedy}, "the driver wants %s", what.text)
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
