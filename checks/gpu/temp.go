package gpu

import (
	"context"
	"errors"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuTemp checks temperatures against the limits that NVML reports for each GPU: it fails at the
// temperature at which the hardware slows the GPU down, and warns where the driver does, or where
// the memory is too hot. It fails above the site's own limits MAX and HBM. Without a limit from
// NVML a GPU fails above 110 degrees Celsius.
//
// It warns of a faulty sensor: one that shows more than 200 degrees, or 0 while most other GPUs are
// above 10. If a GPU has neither a limit nor a margin its temperature is not judged.
//
//	gpu* || check_gpu_temp 85 95
type gpuTemp struct {
	Max int `arg:"1" toml:"max" in:"30:120 max"` // highest temperature of a GPU, degrees Celsius; 0: NVML's limits
	HBM int `arg:"2" toml:"hbm" in:"30:120 max"` // highest temperature of its memory, degrees Celsius; 0: NVML's limit
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
				"gpu.temp.slowdown": "Check fans, filters, coolant and the room temperature; compare with the other GPUs (nvidia-smi -q -d TEMPERATURE). If only one GPU is hot, its heat sink is faulty.",
				"gpu.temp.warm":     "Check the cooling before the hardware slows the GPU down: fans, filters, coolant, room temperature.",
				"gpu.temp.sensor":   "The temperature sensor is faulty: compare with the other GPUs (nvidia-smi -q -d TEMPERATURE), then reboot. If that does not help, have the GPU replaced.",
				"gpu.temp.limit":    "Check the cooling, or raise the limit in nhc.conf.",
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
	reportMissing(s, "temperature", core)
	return s.Done()
}

// Temperatures in degrees Celsius.
const (
	hottest  = 110 // a GPU without a limit fails above; NVML reports limits from 87 (V100) to about 105
	highest  = 200 // a healthy sensor never shows more
	lukewarm = 10  // if most GPUs are warmer, a sensor that shows 0 is faulty
)

// readLimit returns a margin or a limit; a value that is impossible is an error of the GPU.
func readLimit(s *GPUs, name string, r nvml.Reading[int]) (int, bool) {
	n, known := Value(s, r)
	if known && (n < -100 || n > highest) {
		s.Err = errors.Join(s.Err, fmt.Errorf("impossible %s, %d C", name, n))
		return 0, false
	}
	return n, known
}

// readSensor returns a temperature. It warns of a sensor that shows an impossible value.
func readSensor(s *GPUs, g *nvml.GPU, name string, r nvml.Reading[int]) (int, bool) {
	n, known := Value(s, r)
	if known && (n < -100 || n > highest) {
		s.Report(g, checks.Finding{Code: "gpu.temp.sensor", Severity: checks.Warn, Want: fmt.Sprintf("at most %d C", highest), Got: fmt.Sprintf("%d C", n)}, "impossible %s", name)
		return 0, false
	}
	return n, known
}

func (c *gpuTemp) judge(s *GPUs, g *nvml.GPU) {
	judged := s.Judged
	compared := c.compare(s, g)
	s.Judged = judged || compared
}

// compare compares the temperatures with their limits and reports whether there was a limit.
func (c *gpuTemp) compare(s *GPUs, g *nvml.GPU) bool {
	t := g.Temperature
	core, known := readSensor(s, g, "temperature", t.GPU)
	hbm, hbmKnown := readSensor(s, g, "temperature of the memory", t.HBM)
	margin, hasMargin := readLimit(s, "margin", t.Margin)
	if known && core == 0 && othersWarm(s, g) {
		s.Report(g, checks.Finding{Code: "gpu.temp.sensor", Severity: checks.Warn, Want: fmt.Sprintf("above %d C", lukewarm), Got: "0 C"}, "temperature, while most other GPUs are above")
	}
	if known && c.Max > 0 && core > c.Max {
		s.Report(g, newLimitFinding(core, c.Max), "temperature")
	}
	if hbmKnown && c.HBM > 0 && hbm > c.HBM {
		s.Report(g, newLimitFinding(hbm, c.HBM), "temperature of the memory")
	}
	mostHBM, _ := readLimit(s, "limit of the memory", t.MaxHBM)
	if hbmKnown && mostHBM > 0 && hbm >= mostHBM {
		s.Report(g, newHotFinding(checks.Warn, "gpu.temp.warm", hbm, mostHBM), "slowed down by the driver because of the temperature of the memory")
	}
	compared := known && c.Max > 0 || hbmKnown && (c.HBM > 0 || mostHBM > 0) || hasMargin
	has := ""
	if known {
		has = fmt.Sprintf(" (the GPU has %d C)", core)
	}
	slowdown, _ := readLimit(s, "limit of the hardware", t.Slowdown)
	most, _ := readLimit(s, "limit of the driver", t.MaxGPU)
	switch {
	case hasMargin && judgeMargin(s, g, margin, has): // one finding is enough: the margin is to the nearest of several limits
	case known && slowdown > 0 && core >= slowdown:
		s.Report(g, newHotFinding(checks.Fail, "gpu.temp.slowdown", core, slowdown), "slowed down by the hardware because of the temperature")
	case known && slowdown <= 0 && core > hottest:
		s.Report(g, checks.Finding{Code: "gpu.temp.slowdown", Severity: checks.Fail, Want: fmt.Sprintf("at most %d C", hottest), Got: fmt.Sprintf("%d C", core)}, "temperature, too hot for any GPU")
	case known && most > 0 && core >= most:
		s.Report(g, newHotFinding(checks.Warn, "gpu.temp.warm", core, most), "slowed down by the driver because of the temperature")
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

// judgeMargin compares the margin, in degrees, with the margins at which the GPU is slowed down
// (0 if the driver does not report one). It returns whether the margin is too small; has is the temperature in words.
func judgeMargin(s *GPUs, g *nvml.GPU, margin int, has string) bool {
	slowdown, hard := readLimit(s, "margin of the hardware", g.Temperature.MarginSlowdown)
	most, _ := readLimit(s, "margin of the driver", g.Temperature.MarginMax)
	f := checks.Finding{Got: fmt.Sprintf("%d C", margin)}
	switch {
	case hard && margin <= slowdown:
		f.Severity, f.Code, f.Want = checks.Fail, "gpu.temp.slowdown", fmt.Sprintf("above %d C", slowdown)
		s.Report(g, f, "slowed down by the hardware: margin to its temperature limit%s", has)
	case margin <= most:
		f.Severity, f.Code, f.Want = checks.Warn, "gpu.temp.warm", fmt.Sprintf("above %d C", most)
		s.Report(g, f, "slowed down by the driver: margin to its temperature limit%s", has)
	default:
		return false
	}
	return true
}

func newHotFinding(severity checks.Severity, code string, got, limit int) checks.Finding {
	return checks.Finding{Code: code, Severity: severity, Want: fmt.Sprintf("below %d C", limit), Got: fmt.Sprintf("%d C", got)}
}

func newLimitFinding(got, limit int) checks.Finding {
	return checks.Finding{Code: "gpu.temp.limit", Severity: checks.Fail, Want: fmt.Sprintf("at most %d C", limit), Got: fmt.Sprintf("%d C", got)}
}
