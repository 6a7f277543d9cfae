package main

import (
	"context"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// sleeper is an active test that only sleeps.
type sleeper struct {
	Tenths int    `arg:"1"` // of a second
	End    string `arg:"2"` // "fail", "skip", "stop", or nothing
}

func init() {
	checks.Register(checks.Info{
		Name: "check_sleeper", Usage: "TENTHS [END]", Summary: "takes its time", Lane: checks.CUDA, Active: true,
		New: func() checks.Check { return new(sleeper) },
	})
}

func (s *sleeper) Bound() time.Duration { return 20 * time.Second }

func (s *sleeper) Freshness() time.Duration { return 0 }

func (s *sleeper) Run(_ context.Context, env *checks.Env) []checks.Finding {
	for range s.Tenths {
		env.At("gpu%d: BF16", 3)
		time.Sleep(100 * time.Millisecond)
	}
	switch {
	case s.End == "skip":
		return []checks.Finding{{Code: "active.busy", Severity: checks.Skip, Message: "check_sleeper:  a job runs on the node"}}
	case s.End == "stop":
		return []checks.Finding{
			{Code: "nccl.settings", Severity: checks.OK, Message: "check_sleeper:  set NCCL_DEBUG=WARN"},
			{Code: "active.stopped", Severity: checks.Skip, Message: "check_sleeper:  stopped: a process opened a GPU"},
		}
	case s.End == "fail":
		return []checks.Finding{{Code: "gpu.gemm.slow", Severity: checks.Fail, Message: "check_sleeper:  it slept"}}
	case env.Learn:
		return []checks.Finding{{Code: "sleeper.learns", Severity: checks.Warn, Message: "check_sleeper:  it learns"}}
	}
	return nil
}
