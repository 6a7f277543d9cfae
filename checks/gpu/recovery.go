package gpu

import (
	"cmp"
	"context"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/gpustate"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuRecovery checks that no GPU needs a recovery: the driver does not ask for a reset or a reboot
// (NVML's recovery action with driver 565 and later, the reset status before that), and no GPU is
// lost, requires a reset, has no power cable, or sends no interrupts. The driver's answer is more
// reliable than the Xids in the kernel's log. A recovery of the IMEX domain only warns: its cause can be
// on another node of the rack. check_gpu_fabric judges this node's part. Drain P2P only warns, too: the
// driver also waits for the end of peer-to-peer traffic after routine changes of the NVLink fabric, and
// goes on without a reset.
//
//	gpu* || check_gpu_recovery
type gpuRecovery struct{}

func init() {
	checks.Register(checks.Info{
		Name:    "check_gpu_recovery",
		Summary: "no GPU is lost or needs a reset",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuRecovery{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.recovery.lost":       "The GPU has fallen off the bus (Xid 79 in dmesg). Reboot the node; if the GPU does not come back, power it off and on. If the fault returns, reseat or replace the GPU." + checks.ReseatLimits,
				"gpu.recovery.power":      "Attach the power cables of the GPU and reseat it, with the node off; if the fault returns, replace the cable or the GPU.",
				"gpu.recovery.interrupts": "Reboot the node, and look for NVRM and interrupt lines in dmesg; if the fault returns, update the BIOS and the driver, or replace the GPU.",
				"gpu.recovery.reset":      checks.ResetAdvice,
				"gpu.recovery.reboot":     "Reboot the node.",
				"gpu.recovery.p2p":        "Nothing while jobs run: the driver goes on as soon as no process uses the memory of another GPU. If the request stays without a job on the node, end the processes on the GPUs (fuser -v /dev/nvidia*), run nvidia-persistenced without --uvm-persistence-mode, and look again (nvidia-smi -q, GPU Recovery Action). It needs no reset.",
				"gpu.recovery.fabric":     "The driver requests a recovery of the IMEX domain, which spans the nodes of the rack. Look for DOWN or DEGRADED in nvidia-imex-ctl -N and see the rack's fabric manager. Restart nvidia-imex only when no job of the rack uses the domain.",
				"gpu.recovery.unknown":    "The driver is newer than nhc-gpu and requests an unknown action: check GPU Recovery Action in nvidia-smi -q and NVIDIA's manual; a reboot is the safe choice.",
			}
		},
	})
}

// recoveries are the recovery actions of nvml.h of driver 590. Drain P2P needs no reset: the driver ends it itself
// (open-gpu-kernel-modules 595.45.04, kernel_nvlink_gb100.c, knvlinkABMIdle_WORKITEM and
// knvlinkP2PIdleCheck_WORKITEM), and DCGM's health check warns (DcgmHealthWatch.cpp, MonitorGpuRecoveryAction).
var recoveries = map[int]struct {
	code, text string
	remedy     checks.Remedy
}{
	nvml.RecoveryReset:        {"reset", "a reset of the GPU", checks.ResetGPU},
	nvml.RecoveryReboot:       {"reboot", "a reboot of the node", checks.RebootNode},
	nvml.RecoveryDrainP2P:     {"p2p", "that traffic between GPUs be drained (Drain P2P)", checks.NoRemedy},
	nvml.RecoveryDrainReset:   {"reset", "an end of the jobs and a reset of the GPU", checks.ResetGPU},
	nvml.RecoveryIMEX:         {"fabric", "a recovery of the IMEX domain", checks.CheckFabric},
	nvml.RecoveryBusReset:     {"reset", "a reset of the GPU's bus", checks.ResetGPU},
	nvml.RecoverySystemReboot: {"reboot", "a reboot of the system", checks.RebootNode},
}

func (c *gpuRecovery) Run(_ context.Context, env *checks.Env) []checks.Finding {
	s, findings := AskNVML(env, gpustate.RecoveryCheck, nvml.GroupRecovery)
	if s == nil {
		return findings
	}
	env.Fact("the driver requests no action")
	s.Each(judgeRecovery)
	return s.Done()
}

// judgeRecovery judges the driver's recovery action; package gpustate reports lost GPUs.
func judgeRecovery(s *GPUs, g *nvml.GPU) {
	action, known := Value(s, g.Recovery.Action)
	if !known {
		reset, _ := Value(s, g.Recovery.Reset)
		drain, _ := Value(s, g.Recovery.DrainReset)
		if reset || drain {
			action = nvml.RecoveryReset
		}
	}
	s.Judged = s.Judged || g.Name.Known
	s.Err = cmp.Or(s.Err, g.Name.Err, g.UUID.Err)
	if action == nvml.RecoveryNone {
		return
	}
	recovery, ok := recoveries[action]
	if !ok { // of a newer driver: a reboot is the safe choice
		recovery.code, recovery.text, recovery.remedy = "unknown", fmt.Sprintf("an unknown action, %d", action), checks.RebootNode
	}
	f := checks.Finding{Code: "gpu.recovery." + recovery.code, Severity: checks.Fail, Remedy: recovery.remedy}
	if action == nvml.RecoveryIMEX || action == nvml.RecoveryDrainP2P { // the GPU is healthy: another node of the rack has the fault, or the driver waits
		f.Severity = checks.Warn
	}
	s.Report(g, f, "the driver requests %s", recovery.text)
}
