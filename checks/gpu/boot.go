package gpu

import (
	"context"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// bootPause is the interval of looks at something that starts.
const bootPause = 500 * time.Millisecond

// await waits, before a job, while something starts, as long as the run allows: the job would fail
// without it. It reads the groups again.
func await(ctx context.Context, s *GPUs, groups nvml.Group, what string, starting func() bool) error {
	if _, ends := ctx.Deadline(); !s.Env.BeforeJob() || !ends {
		return nil
	}
	for until := time.Now().Add(checks.Room(ctx)); starting() && time.Now().Before(until); {
		s.Env.At("wait for %s", what)
		time.Sleep(bootPause)
		n, err := nvml.AskAgain(s.Env.Host, groups, s.Env.Doing)
		if err != nil {
			return err
		}
		s.NVML = n
	}
	return nil
}
