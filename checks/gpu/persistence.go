package gpu

import (
	"context"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuPersistence checks that persistence mode is on: without it the driver gives
// a GPU up when no program uses it, forgets its error counters, and takes seconds
// to start it again. It warns where it is off; -f fails, -s turns it on, and
// fails where it cannot. Nothing is set while a process has the GPU.
//
//	gpu* || check_gpu_persistence -s
type gpuPersistence struct {
	Fail bool `opt:"f" toml:"fail"` // fail, in place of a warning
	Set  bool `opt:"s" toml:"set"`  // turn it on
}

const gpuPersistenceName = "check_gpu_persistence"

func init() {
	checks.Register(checks.Info{
		Name:    gpuPersistenceName,
		Usage:   "[-f] [-s]",
		Summary: "persistence mode is on",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuPersistence{} },
		Acts:    func(c checks.Check) bool { return c.(*gpuPersistence).Set },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.persistence": "systemctl enable --now nvidia-persistenced, or for now nvidia-smi -pm 1.",
				"gpu.mended":      "Nothing now: it was turned on. Enable nvidia-persistenced, so that it is on after a reboot.",
			}
		},
	})
}

func (c *gpuPersistence) Run(_ context.Context, env *checks.Env) []checks.Finding {
	groups := nvml.GroupModes
	if c.Set {
		groups |= nvml.GroupProcesses
	}
	return judgeEachGPU(env, gpuPersistenceName, groups, func(s *GPUs, g *nvml.GPU) {
		on, known := Value(s, g.Modes.Persistence)
		if on || !known {
			return
		}
		f := checks.Finding{Code: "gpu.persistence", Severity: checks.Warn, Want: "on", Got: "off", Remedy: checks.FixConfig}
		if c.Fail {
			f.Severity = checks.Fail
		}
		if !c.Set {
			s.Report(g, f, "persistence mode")
			return
		}
		if n := len(g.Processes.Value); n > 0 {
			f.Severity = checks.Warn
			s.Report(g, f, "persistence mode is not turned on while it is in use (%s)", checks.Plural(n, "user"))
			return
		}
		if !env.Acts("turn on persistence mode of %s", checks.GPUDevice(g)) {
			s.Report(g, f, "persistence mode")
			return
		}
		if err := nvml.SetPersistence(env.Host, g.Index, env.Doing); err != nil {
			f.Severity = checks.Fail
			s.Report(g, f, "persistence mode cannot be turned on: %s", fmt.Sprint(err))
			return
		}
		s.Report(g, checks.Finding{Code: "gpu.mended", Severity: checks.Warn}, "persistence mode was off, and was turned on")
	})
}
