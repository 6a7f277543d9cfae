package nvml

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpm reads the activity of a GPU of Hopper or newer: the difference of two samples, the present one and the one
// before. It uses no counter that a profiler needs.
type gpm struct {
	samples [2]nvml.GpmSample
	present int       // the sample that is older, and written next
	at      time.Time // of the other one; zero: there is none
	get     nvml.GpmMetricsGetType
}

// gpmGap is the least time between two samples that NVML compares.
const gpmGap = 100 * time.Millisecond

// openGPM returns nil if the GPU, or its driver, has no such samples.
func openGPM(q query) *gpm {
	if !q.s.offers("nvmlGpmSampleGet") || !q.s.offers("nvmlGpmMetricsGet") || !q.s.offers("nvmlGpmSampleAlloc") {
		return nil
	}
	support := ask(q.s, "nvmlGpmQueryDeviceSupport", q.who, q.d.GpmQueryDeviceSupport)
	if !support.Known || support.Value.IsSupportedDevice == 0 {
		return nil
	}
	g := &gpm{}
	for i := range g.samples {
		sample, ret := q.s.lib.GpmSampleAlloc()
		if ret != nvml.SUCCESS {
			return nil
		}
		g.samples[i] = sample
	}
	return g
}

// read takes a sample, and sets the values since the one before. A call that fails, as on GPUs of virtual machines
// and with MIG, is not made again.
func (g *gpm) read(q query, out *Sample) {
	if g == nil || g.samples[0] == nil {
		return
	}
	now := time.Now()
	if !g.at.IsZero() && now.Sub(g.at) < gpmGap {
		return
	}
	q.s.call("nvmlGpmSampleGet", q.who)
	if ret := q.d.GpmSampleGet(g.samples[g.present]); ret != nvml.SUCCESS {
		g.stop(q)
		return
	}
	before, first := g.samples[1-g.present], g.at.IsZero()
	g.at, g.present = now, 1-g.present
	if first {
		return
	}
	metrics := []struct {
		id   nvml.GpmMetricId
		into *Reading[float64]
	}{{nvml.GPM_METRIC_SM_UTIL, &out.SM}, {nvml.GPM_METRIC_ANY_TENSOR_UTIL, &out.Tensor}, {nvml.GPM_METRIC_DRAM_BW_UTIL, &out.DRAM}}
	g.get.Sample1, g.get.Sample2, g.get.NumMetrics = before, g.samples[1-g.present], uint32(len(metrics))
	for i, m := range metrics {
		g.get.Metrics[i] = nvml.GpmMetric{MetricId: uint32(m.id)}
	}
	q.s.call("nvmlGpmMetricsGet", q.who)
	if ret := q.s.lib.GpmMetricsGet(&g.get); ret != nvml.SUCCESS {
		g.stop(q)
		return
	}
	for i, m := range metrics {
		if v := g.get.Metrics[i]; v.NvmlReturn == uint32(nvml.SUCCESS) && v.Value >= 0 && v.Value <= 100 {
			*m.into = Known(v.Value)
		}
	}
}

// stop frees the samples.
func (g *gpm) stop(q query) {
	for _, sample := range g.samples {
		_ = q.s.lib.GpmSampleFree(sample)
	}
	*g = gpm{}
}
