package active

import (
	"cmp"
	"context"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// gpuMembw measures the bandwidth of each GPU's own memory with three kernels over arrays of 512
// MiB (-b SIZE): copy, DAXPY (y = a*x + y) and triad (a = b + s*c). It counts every byte read or
// written, in GB/s (10^9 bytes). It fails if a GPU does less than LEAST GB/s in any of them, less
// than the platform's floor, or is far from its peers, and if a result or a word of the memory is
// wrong. -t SECONDS (40) is the time limit.
//
// Compare triad with the memory_bandwidth of dcgmi diag, which uses the same kernel of STREAM (in
// MB/s), DAXPY with Autopilot's gpumem, and copy with twice nvbandwidth's rate of a copy within a
// GPU.
//
//	gpu* || check_gpu_membw 2500
type gpuMembw struct {
	active
	Least float64       `arg:"1" toml:"least"` // GB/s; 0: no limit
	Size  checks.Size   `opt:"b" toml:"size"`  // size of one array
	Time  time.Duration `opt:"t" toml:"time"`  // time limit
}

const (
	gpuMembwName = "check_gpu_membw"
	membwSize    = 512 << 20
	membwSample  = 40 * time.Millisecond
	triad        = "triad"
)

func init() {
	checks.Register(checks.Info{
		Name: gpuMembwName, Usage: "[LEAST] [-b SIZE] [-t TIME] [--max-age AGE]", Summary: "memory bandwidth of the GPUs is as high as it should be",
		Lane: checks.CUDA, Active: true, DoOf: cudaDo,
		New: func() checks.Check { return &gpuMembw{Size: membwSize, Time: timeOf(timeOfOthers).Bound} },
		Do: func() map[string]string {
			return activeDo("gpu.membw", "See check_gpu_clocks and check_gpu_throttle for the memory's clock, check_gpu_remap and check_gpu_ecc for its state. Reset the GPU, and replace it if it stays slow.", map[string]string{
				"gpu.membw.wrong":  "The GPU computed or stored a wrong number, and no ECC reported it: keep the node out of service, run check_gpu_memtest and reset the GPU. If the fault returns, replace the GPU.",
				"gpu.membw.memory": "The test needs three arrays of the size (-b): see nvidia-smi for the processes that use the GPU's memory, or set a smaller size.",
			})
		},
	})
}

func (c *gpuMembw) Bound() time.Duration { return c.Time }

func (c *gpuMembw) Validate() error {
	return cmp.Or(validateBytes(c.Size), validateTime(c.Time))
}

func (c *gpuMembw) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	r, findings := c.beginGPUs(ctx, env, activeTest{Check: gpuMembwName, Code: "gpu.membw", Bound: c.Bound(), Of: c})
	if r == nil {
		return findings
	}
	gpus, done := openGPUs(r)
	watch := watchLoad(r, 0)
	var all []measure
	for _, l := range gpus {
		if r.ctx.Err() != nil {
			break
		}
		measures, err := c.measure(r, l)
		if err != nil {
			r.reportFailure(l.gpu, "bandwidth of its memory", err)
		}
		all = append(all, measures...)
		if err == nil && len(measures) > 0 {
			markDone(r, l.gpu)
		}
	}
	done()
	c.judge(r, all, watch.end())
	return r.done()
}

// judge reports a GPU that is slow in triad once: its other rates, low for the same cause, are
// recorded and not judged.
func (c *gpuMembw) judge(r *activeRun, all []measure, seen map[int]*gpuLoad) {
	limited := map[checks.Device]string{}
	for _, g := range r.gpus {
		limited[checks.GPUDevice(g)] = seen[g.Index].describeLimit()
	}
	triads := map[string][]float64{} // by model
	for _, m := range all {
		if m.Algorithm == triad {
			triads[m.Model] = append(triads[m.Model], m.Value)
		}
	}
	slow := map[string]bool{}
	for _, m := range all {
		if m.Algorithm == triad {
			slow[m.Device.Name] = m.worse(max(c.Least, m.off(median(triads[m.Model]), toleranceOf(m.Test).Peers)))
		}
	}
	for _, m := range all {
		if m.Algorithm != triad && slow[m.Device.Name] {
			m.Peers, m.Least = "slow in triad", 0
		}
		m.Limited = limited[m.Device]
		r.record(m)
	}
}

// The initial numbers of the arrays. All results are exact in a double, however often the kernels
// run.
const (
	membwX, membwY, membwZ = 1.0, 2.0, 4.0
	membwFactor            = 0.5
)

// measure runs the three kernels on a GPU, and verifies the result.
func (c *gpuMembw) measure(r *activeRun, l *loadedGPU) (all []measure, err error) {
	size, err := l.fitSize(c.Size, 3)
	if err != nil {
		r.failures = true
		r.report(checks.GPUDevice(l.gpu), checks.Finding{Code: "gpu.membw.memory", Severity: checks.Unknown}, "too little free memory: %v", err)
		return nil, nil
	}
	r.at("gpu%d: bandwidth of its memory", l.gpu.Index)
	arrays, err := l.allocateBuffers(size, 3)
	if err != nil {
		return nil, err
	}
	k, err := l.loadKernels("fill_doubles", "copy16", "daxpy", "triad")
	if err != nil {
		return nil, err
	}
	x, y, z, n := arrays[0], arrays[1], arrays[2], size/16
	grid, block := l.chooseGrid()
	launch := func(k *cuda.Kernel, args ...any) error { return l.c.Launch(k, grid, block, l.stream, args...) }
	if err := cmp.Or(launch(k[0], x, membwX, n), launch(k[0], y, membwY, n), launch(k[0], z, membwZ, n)); err != nil {
		return nil, err
	}
	m := measure{Test: "memory_bandwidth", Size: int64(size), Ranks: 1, Device: checks.GPUDevice(l.gpu), Model: l.gpu.Name.Value, Unit: "GB/s", Least: c.Least}
	for _, t := range []struct {
		algorithm string
		moved     uint64
		run       func() error
	}{
		{"copy", 2 * size, func() error { return launch(k[1], y, x, n) }},
		{"daxpy", 3 * size, func() error { return launch(k[2], y, x, membwFactor, n) }},
		{triad, 3 * size, func() error { return launch(k[3], y, x, z, membwFactor, n) }},
	} {
		if m.Value, err = l.rate(r.ctx, t.moved, membwSample, t.run); err != nil {
			return nil, err
		}
		m.Algorithm, m.What = t.algorithm, "bandwidth of its memory by "+t.algorithm
		all = append(all, m)
	}
	return all, cmp.Or(c.verify(r, l, y, x, n, launch), l.freeBuffers(arrays))
}

// verify compares the result of triad in y with the expected value; it overwrites x.
func (c *gpuMembw) verify(r *activeRun, l *loadedGPU, y, x cuda.Memory, n uint64, launch func(*cuda.Kernel, ...any) error) error {
	k, err := l.loadKernels("fill_doubles", "compare")
	if err != nil {
		return err
	}
	p, err := newPatterns(l)
	if err != nil {
		return err
	}
	if err := cmp.Or(launch(k[0], x, membwX+membwFactor*membwZ, n), launch(k[1], x, y, n, p.report)); err != nil {
		return err
	}
	wrong, err := p.wrong(r.ctx)
	if err != nil || wrong.count == 0 {
		return cmp.Or(err, p.close())
	}
	r.wrongData = "gpu.membw.wrong"
	r.report(checks.GPUDevice(l.gpu), checks.Finding{Code: r.wrongData, Severity: checks.Fail, Remedy: checks.ResetGPU, Want: "none", Got: wrong.String()}, "wrong words in the result of triad")
	return p.close()
}
