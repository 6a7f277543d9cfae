package gpu

import (
	"context"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuPersistence checks that persistence mode is on: without it the driver releases a GPU that no
// program uses, loses its error counters, and needs seconds to start it again. If it is off the
// check warns, and fails with -f. With -s it turns persistence mode on, unless a process uses the
// GPU, and fails if it cannot.
//
//	gpu* || check_gpu_persistence -s
type gpuPersistence struct {
	Fail bool `opt:"f" toml:"fail"` // fail instead of warn
	Set  bool `opt:"s" toml:"set"`  // turn persistence mode on
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
				"gpu.persistence": "Run systemctl enable --now nvidia-persistenced; until the next reboot nvidia-smi -pm 1 is enough.",
				"gpu.mended":      "Nothing now: the check has turned persistence mode on. Enable nvidia-persistenced, so that it is on after a reboot.",
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
		if n := len(g.Processes.Value); n == 0 && !g.Processes.Known {
			f.Severity = checks.Warn
			s.Report(g, f, "persistence mode is not turned on, since it is unknown whether a process uses the GPU")
			return
		} else if n > 0 {
			f.Severity = checks.Warn
			s.Report(g, f, "persistence mode is not turned on while the GPU is in use (processes: %d)", n)
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
		s.Report(g, checks.Finding{Code: "gpu.mended", Severity: checks.Warn}, "persistence mode was off and is on now")
	})
}
