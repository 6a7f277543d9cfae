package checks

import (
	"context"
	"errors"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// gpuTemp checks temperatures by the limits that NVML gives for each GPU: it
// fails where the hardware slows the GPU down, and warns where the driver does, or
// where the memory is too hot. MAX and HBM are limits of the site's own in degrees
// Celsius, above which it fails.
//
//	gpu* || check_gpu_temp 85 95
type gpuTemp struct {
	Max int `arg:"1" toml:"max"` // highest temperature of a GPU, degrees Celsius
	HBM int `arg:"2" toml:"hbm"` // highest temperature of its memory
}

const gpuTempName = "check_gpu_temp"

func init() {
	Register(Info{
		Name:    gpuTempName,
		Usage:   "[MAX [HBM]]",
		Summary: "no GPU is too hot",
		Lane:    NVML,
		New:     func() Check { return &gpuTemp{} },
		Do: map[string]string{
			"gpu.temp.slowdown": "Look at fans, filters, coolant and the room; compare with the other GPUs (nvidia-smi -q -d TEMPERATURE). One hot GPU alone has a bad heat sink.",
			"gpu.temp.warm":     "Look at the cooling before the hardware slows the GPU down: fans, filters, coolant, the room.",
			"gpu.temp.limit":    "Look at the cooling, or raise the limit in nhc.conf.",
		},
	})
}

func (c *gpuTemp) Run(_ context.Context, env *Env) []Finding {
	return env.eachGPU(gpuTempName, probe.GroupTemperature, c.judge)
}

// celsius is a temperature that can be one.
func celsius(s *gpus, what string, r probe.Reading[int]) (int, bool) {
	n, known := value(s, r)
	if known && (n < -100 || n > 200) {
		s.err = errors.Join(s.err, fmt.Errorf("%s of %d C", what, n))
		return 0, false
	}
	return n, known
}

func (c *gpuTemp) judge(s *gpus, g *probe.GPU) {
	t := g.Temperature
	core, known := celsius(s, "temperature", t.GPU)
	hbm, hbmKnown := celsius(s, "memory temperature", t.HBM)
	margin, hasMargin := celsius(s, "margin", t.Margin)
	if known && c.Max > 0 && core > c.Max {
		s.report(g, limited(core, c.Max), "temperature")
	}
	if hbmKnown && c.HBM > 0 && hbm > c.HBM {
		s.report(g, limited(hbm, c.HBM), "temperature of the memory")
	}
	mostHBM, _ := value(s, t.MaxHBM)
	if hbmKnown && mostHBM > 0 && hbm >= mostHBM {
		s.report(g, hot(Warn, "gpu.temp.warm", hbm, mostHBM), "temperature of the memory, at which the driver slows it down")
	}
	if hasMargin {
		judgeMargin(s, g, margin)
		return
	}
	slowdown, _ := value(s, t.Slowdown)
	most, _ := value(s, t.MaxGPU)
	switch {
	case known && slowdown > 0 && core >= slowdown:
		s.report(g, hot(Fail, "gpu.temp.slowdown", core, slowdown), "temperature, at which the hardware slows it down")
	case known && most > 0 && core >= most:
		s.report(g, hot(Warn, "gpu.temp.warm", core, most), "temperature, at which the driver slows it down")
	}
}

// judgeMargin compares the degrees that are left with those at which the GPU is
// slowed down: a limit that the driver does not tell is 0.
func judgeMargin(s *gpus, g *probe.GPU, margin int) {
	slowdown, hard := value(s, g.Temperature.MarginSlowdown)
	most, _ := value(s, g.Temperature.MarginMax)
	f := Finding{Got: fmt.Sprintf("%d C", margin)}
	switch {
	case hard && margin <= slowdown:
		f.Severity, f.Code, f.Want = Fail, "gpu.temp.slowdown", fmt.Sprintf("above %d C", slowdown)
		s.report(g, f, "margin, at which the hardware slows it down")
	case margin <= most:
		f.Severity, f.Code, f.Want = Warn, "gpu.temp.warm", fmt.Sprintf("above %d C", most)
		s.report(g, f, "margin, at which the driver slows it down")
	}
}

func hot(severity Severity, code string, got, limit int) Finding {
	return Finding{Code: code, Severity: severity, Want: fmt.Sprintf("below %d C", limit), Got: fmt.Sprintf("%d C", got)}
}

func limited(got, limit int) Finding {
	return Finding{Code: "gpu.temp.limit", Severity: Fail, Want: fmt.Sprintf("at most %d C", limit), Got: fmt.Sprintf("%d C", got)}
}
