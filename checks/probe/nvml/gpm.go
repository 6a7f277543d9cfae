package nvml

import (
	"reflect"
	"runtime"
	"time"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/ebitengine/purego"
)

// gpm reads the activity of a GPU of Hopper or newer: the difference of two samples, the present one and the one
// before. It uses no counter that a profiler needs.
type gpm struct {
	samples [2]nvml.GpmSample
	present int       // the sample that is older, and written next
	at      time.Time // of the other one; zero: there is none
	compare uintptr   // nvmlGpmMetricsGet
	get     *gpmRequest
}

// gpmRequest is nvmlGpmMetricsGet_t, which all GPUs share. go-nvml would make two copies of 19 KiB for each call:
// these were a third of the cost of a sample, most of it for garbage collections.
type gpmRequest struct {
	version, count uint32
	samples        [2]uintptr
	metrics        [len(nvml.GpmMetricsGetType{}.Metrics)]nvml.GpmMetric
}

// gpmGap is the least time between two samples that NVML compares.
const gpmGap = 100 * time.Millisecond

// openGPM returns nil if the GPU, or its driver, has no such samples.
func openGPM(q query, get *gpmRequest) *gpm {
	if !q.s.offers("nvmlGpmSampleGet") || !q.s.offers("nvmlGpmMetricsGet") || !q.s.offers("nvmlGpmSampleAlloc") {
		return nil
	}
	support := ask(q.s, "nvmlGpmQueryDeviceSupport", q.who, q.d.GpmQueryDeviceSupport)
	if !support.Known || support.Value.IsSupportedDevice == 0 {
		return nil
	}
	compare, _, found := q.findFunction("nvmlGpmMetricsGet")
	if !found {
		return nil
	}
	g := &gpm{compare: compare, get: get}
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
	g.get.version, g.get.count = nvml.GPM_METRICS_GET_VERSION, uint32(len(metrics))
	g.get.samples = [2]uintptr{handleOf(before), handleOf(g.samples[1-g.present])}
	for i, m := range metrics {
		g.get.metrics[i] = nvml.GpmMetric{MetricId: uint32(m.id)}
	}
	q.s.call("nvmlGpmMetricsGet", q.who)
	ret, _, _ := purego.SyscallN(g.compare, uintptr(unsafe.Pointer(g.get)))
	runtime.KeepAlive(g.get)
	if nvml.Return(int32(ret)) != nvml.SUCCESS {
		g.stop(q)
		return
	}
	for i, m := range metrics {
		if v := g.get.metrics[i]; v.NvmlReturn == uint32(nvml.SUCCESS) && v.Value >= 0 && v.Value <= 100 {
			*m.into = Known(v.Value)
		}
	}
}

// handleOf returns the library's handle of a sample.
func handleOf(sample nvml.GpmSample) uintptr {
	return reflect.ValueOf(sample).FieldByName("Handle").Pointer()
}

// stop frees the samples.
func (g *gpm) stop(q query) {
	for _, sample := range g.samples {
		_ = q.s.lib.GpmSampleFree(sample)
	}
	*g = gpm{}
}
