package gpu

import (
	"context"
	"errors"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuTemp checks temperatures by the limits that NVML gives for each GPU: it
// fails where the hardware slows the GPU down, and warns where the driver does, or
// where the memory is too hot. MAX and HBM are limits of the site's own in degrees
// Celsius, above which it fails. A GPU above 110 degrees fails also where NVML gives no
// limit. The check warns of a sensor that is out of order: it shows more than 200
// degrees, or 0 while most other GPUs are above 10. Without any limit there is nothing
// to compare a temperature with, and the check is skipped.
//
//	gpu* || check_gpu_temp 85 95
type gpuTemp struct {
	Max int `arg:"1" toml:"max"` // highest temperature of a GPU, degrees Celsius
	HBM int `arg:"2" toml:"hbm"` // highest temperature of its memory
}

const gpuTempName = "check_gpu_temp"

func init() {
	checks.Register(checks.Info{
		Name:    gpuTempName,
		Usage:   "[MAX [HBM]]",
		Summary: "no GPU is too hot",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuTemp{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.temp.slowdown": "Look at fans, filters, coolant and the room; compare with the other GPUs (nvidia-smi -q -d TEMPERATURE). One hot GPU alone has a bad heat sink.",
				"gpu.temp.warm":     "Look at the cooling before the hardware slows the GPU down: fans, filters, coolant, the room.",
				"gpu.temp.sensor":   "The GPU does not know how hot it is: compare with the other GPUs (nvidia-smi -q -d TEMPERATURE), reboot. If it stays have the GPU replaced.",
				"gpu.temp.limit":    "Look at the cooling, or raise the limit in nhc.conf.",
			}
		},
	})
}

func (c *gpuTemp) Run(_ context.Context, env *checks.Env) []checks.Finding {
	s, findings := AskNVML(env, gpuTempName, nvml.GroupTemperature)
	if s == nil {
		return findings
	}
	s.Each(c.judge)
	core := func(g *nvml.GPU) nvml.Reading[int] { return g.Temperature.GPU }
	if _, most, known := s.span(core); known {
		env.Fact("hottest %d C", most)
	}
	reportLacking(s, "temperature", core)
	return s.Done()
}

// Temperatures in degrees Celsius.
const (
	hottest  = 110 // a GPU without a limit fails above; the limits that NVML gives reach from 87 (V100) to about 105
	highest  = 200 // no sensor that works shows more
	lukewarm = 10  // if most GPUs are warmer, 0 is none's temperature
)

// celsius is a margin or a limit that can be one.
func celsius(s *GPUs, what string, r nvml.Reading[int]) (int, bool) {
	n, known := Value(s, r)
	if known && (n < -100 || n > highest) {
		s.Err = errors.Join(s.Err, fmt.Errorf("%s of %d C", what, n))
		return 0, false
	}
	return n, known
}

// sensed is a temperature that can be one. It warns of a sensor that shows another.
func sensed(s *GPUs, g *nvml.GPU, what string, r nvml.Reading[int]) (int, bool) {
	n, known := Value(s, r)
	if known && (n < -100 || n > highest) {
		s.Report(g, checks.Finding{Code: "gpu.temp.sensor", Severity: checks.Warn, Want: fmt.Sprintf("at most %d C", highest), Got: fmt.Sprintf("%d C", n)}, "%s that cannot be one", what)
		return 0, false
	}
	return n, known
}

func (c *gpuTemp) judge(s *GPUs, g *nvml.GPU) {
	judged := s.Judged
	compared := c.compare(s, g)
	s.Judged = judged || compared
}

// compare reports whether there was a limit to compare a temperature with.
func (c *gpuTemp) compare(s *GPUs, g *nvml.GPU) bool {
	t := g.Temperature
	core, known := sensed(s, g, "temperature", t.GPU)
	hbm, hbmKnown := sensed(s, g, "temperature of the memory", t.HBM)
	margin, hasMargin := celsius(s, "margin", t.Margin)
	if known && core == 0 && othersWarm(s, g) {
		s.Report(g, checks.Finding{Code: "gpu.temp.sensor", Severity: checks.Warn, Want: fmt.Sprintf("above %d C", lukewarm), Got: "0 C"}, "temperature, while most others are above")
	}
	if known && c.Max > 0 && core > c.Max {
		s.Report(g, limited(core, c.Max), "temperature")
	}
	if hbmKnown && c.HBM > 0 && hbm > c.HBM {
		s.Report(g, limited(hbm, c.HBM), "temperature of the memory")
	}
	mostHBM, _ := celsius(s, "limit of the memory", t.MaxHBM)
	if hbmKnown && mostHBM > 0 && hbm >= mostHBM {
		s.Report(g, hot(checks.Warn, "gpu.temp.warm", hbm, mostHBM), "temperature of the memory, at which the driver slows it down")
	}
	compared := known && c.Max > 0 || hbmKnown && (c.HBM > 0 || mostHBM > 0) || hasMargin
	slowdown, _ := celsius(s, "limit of the hardware", t.Slowdown)
	most, _ := celsius(s, "limit of the driver", t.MaxGPU)
	switch {
	case hasMargin && judgeMargin(s, g, margin): // the margin is to the nearest of several limits: one finding is enough
	case known && slowdown > 0 && core >= slowdown:
		s.Report(g, hot(checks.Fail, "gpu.temp.slowdown", core, slowdown), "temperature, at which the hardware slows it down")
	case known && slowdown <= 0 && core > hottest:
		s.Report(g, checks.Finding{Code: "gpu.temp.slowdown", Severity: checks.Fail, Want: fmt.Sprintf("at most %d C", hottest), Got: fmt.Sprintf("%d C", core)}, "temperature, at which no GPU works")
	case known && most > 0 && core >= most:
		s.Report(g, hot(checks.Warn, "gpu.temp.warm", core, most), "temperature, at which the driver slows it down")
	}
	return compared || known && (slowdown > 0 || most > 0)
}

// othersWarm reports whether most other GPUs are warm.
func othersWarm(s *GPUs, g *nvml.GPU) bool {
	others, warm := 0, 0
	for i := range s.NVML.GPUs {
		if o := &s.NVML.GPUs[i]; o != g && o.Err == nil && o.Temperature.GPU.Known {
			others++
			if o.Temperature.GPU.Value > lukewarm {
				warm++
			}
		}
	}
	return 2*warm > others
}

// judgeMargin compares the degrees that are left with those at which the GPU is
// slowed down: a limit that the driver does not tell is 0. It returns whether there are
// too few.
func judgeMargin(s *GPUs, g *nvml.GPU, margin int) bool {
	slowdown, hard := celsius(s, "margin of the hardware", g.Temperature.MarginSlowdown)
	most, _ := celsius(s, "margin of the driver", g.Temperature.MarginMax)
	f := checks.Finding{Got: fmt.Sprintf("%d C", margin)}
	switch {
	case hard && margin <= slowdown:
		f.Severity, f.Code, f.Want = checks.Fail, "gpu.temp.slowdown", fmt.Sprintf("above %d C", slowdown)
		s.Report(g, f, "margin, at which the hardware slows it down")
	case margin <= most:
		f.Severity, f.Code, f.Want = checks.Warn, "gpu.temp.warm", fmt.Sprintf("above %d C", most)
		s.Report(g, f, "margin, at which the driver slows it down")
	default:
		return false
	}
	return true
}

func hot(severity checks.Severity, code string, got, limit int) checks.Finding {
	return checks.Finding{Code: code, Severity: severity, Want: fmt.Sprintf("below %d C", limit), Got: fmt.Sprintf("%d C", got)}
}

func limited(got, limit int) checks.Finding {
	return checks.Finding{Code: "gpu.temp.limit", Severity: checks.Fail, Want: fmt.Sprintf("at most %d C", limit), Got: fmt.Sprintf("%d C", got)}
}
