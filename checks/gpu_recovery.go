package checks

import (
	"context"
	"errors"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// gpuRecovery checks that the driver wants nothing to be done to a GPU: no reset,
// no reboot (NVML's recovery action, driver 565 and later; the reset status
// before that), and that no GPU is lost or requires a reset. What the driver says
// here weighs more than any Xid in the kernel's log.
//
//	gpu* || check_gpu_recovery
type gpuRecovery struct{}

func init() {
	Register(Info{
		Name:    "check_gpu_recovery",
		Summary: "the driver wants no GPU to be reset",
		Lane:    NVML,
		New:     func() Check { return &gpuRecovery{} },
		Do: map[string]string{
			"gpu.recovery.lost":    "The GPU is off the bus (Xid 79 in dmesg). Reboot, with the power off for a moment; if it comes back reseat or replace the GPU.",
			"gpu.recovery.reset":   "End what runs on the GPU, then nvidia-smi --gpu-reset -i with its PCI address; if that fails reboot.",
			"gpu.recovery.reboot":  "Reboot the node.",
			"gpu.recovery.p2p":     "End the jobs that use NVLink between GPUs, then reset the GPU, or reboot.",
			"gpu.recovery.fabric":  "The IMEX domain, which spans the nodes of the rack, is to be recovered: see nvidia-imex-ctl -N and the fabric manager; restart nvidia-imex.",
			"gpu.recovery.unknown": "A newer driver's word: see nvidia-smi -q, GPU Recovery Action, and NVIDIA's manual; a reboot is the safe choice.",
		},
	})
}

// recoveries are the actions of nvml.h, as of driver 590.
var recoveries = map[int]struct {
	code, text string
	remedy     Remedy
}{
	probe.RecoveryReset:        {"reset", "a reset of the GPU", ResetGPU},
	probe.RecoveryReboot:       {"reboot", "a reboot of the node", RebootNode},
	probe.RecoveryDrainP2P:     {"p2p", "traffic between GPUs to end", ResetGPU},
	probe.RecoveryDrainReset:   {"reset", "jobs to end, and a reset of the GPU", ResetGPU},
	probe.RecoveryIMEX:         {"fabric", "the IMEX domain to be recovered", CheckFabric},
	probe.RecoveryBusReset:     {"reset", "a reset of the GPU's bus", ResetGPU},
	probe.RecoverySystemReboot: {"reboot", "a reboot of the system", RebootNode},
}

const gpuRecoveryName = "check_gpu_recovery"

func (c *gpuRecovery) Run(_ context.Context, env *Env) []Finding {
	s, findings := env.askNVML(gpuRecoveryName, probe.GroupRecovery)
	if s == nil {
		if _, err := env.Host.NVML(0, env.Doing); err != nil { // kept from before
			if f, ok := inRecovery(err); ok {
				f.Message = fmt.Sprintf("%s:  %v", gpuRecoveryName, err)
				return []Finding{f}
			}
		}
		return findings
	}
	for i := range s.nvml.GPUs {
		judgeRecovery(s, &s.nvml.GPUs[i])
	}
	return s.done()
}

func judgeRecovery(s *gpus, g *probe.GPU) {
	r := g.Recovery
	err := firstError(g.Err, r.Action.Err, r.Reset.Err, g.Name.Err, g.UUID.Err, g.Serial.Err, g.Minor.Err, g.VBIOS.Err, g.Inforom.Err)
	s.judged = s.judged || err != nil || g.Name.Known
	if f, ok := inRecovery(err); ok {
		s.report(g, f, "%v", err)
		return
	}
	if err != nil {
		s.report(g, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: %v", err)
		return
	}
	action := r.Action.Value
	if !r.Action.Known && (r.Reset.Value || r.DrainReset.Value) {
		action = probe.RecoveryReset
	}
	if action == probe.RecoveryNone {
		return
	}
	what, ok := recoveries[action]
	if !ok { // the safe choice for what a newer driver may say
		what.code, what.text, what.remedy = "unknown", fmt.Sprintf("recovery action %d, which is not known here", action), RebootNode
	}
	s.report(g, Finding{Code: "gpu.recovery." + what.code, Severity: Fail, Remedy: what.remedy}, "the driver wants %s", what.text)
}

// inRecovery is the finding of an error that says what is to be done.
func inRecovery(err error) (f Finding, ok bool) {
	switch {
	case errors.Is(err, probe.ErrGPULost):
		return Finding{Code: "gpu.recovery.lost", Severity: Fail, Remedy: RebootNode}, true
	case errors.Is(err, probe.ErrResetRequired):
		return Finding{Code: "gpu.recovery.reset", Severity: Fail, Remedy: ResetGPU}, true
	}
	return f, false
}

// firstError is the first error that tells most: a lost GPU before a reset
// before any other.
func firstError(errs ...error) (first error) {
	for _, target := range []error{probe.ErrGPULost, probe.ErrResetRequired} {
		for _, err := range errs {
			if errors.Is(err, target) {
				return err
			}
		}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
