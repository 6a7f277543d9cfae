package active

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuLaunch measures how long a GPU takes to start an empty kernel: -c COUNT times (2000) alone,
// by the GPU's clock and by the CPU's, and COUNT times in batches. It fails if the median by the
// GPU's clock is above -m MICROSECONDS; without -m it compares the median with the platform and
// with the other GPUs. --round-trip MICROSECONDS limits the median from launch to answer by the
// CPU's clock: a sleeping or slow CPU, or a slow link, shows there. -v shows the distribution.
//
//	gpu* || check_gpu_launch -m 20
type gpuLaunch struct {
	active
	Most      float64 `opt:"m" toml:"most"`                 // limit of the median by the GPU's clock, microseconds; 0: none
	RoundTrip float64 `long:"round-trip" toml:"round_trip"` // limit of the median by the CPU's clock, microseconds; 0: none
	Count     int     `opt:"c" toml:"count"`                // number of launches
}

const gpuLaunchName = "check_gpu_launch"

func init() {
	checks.Register(checks.Info{
		Name:    gpuLaunchName,
		Usage:   "[-m MICROSECONDS] [--round-trip MICROSECONDS] [-c COUNT] [--max-age AGE]",
		Summary: "GPUs start kernels without delay",
		Lane:    checks.CUDA,
		Active:  true,
		New:     func() checks.Check { return &gpuLaunch{Count: 2000} },
		Do: func() map[string]string {
			return activeDo("gpu.launch", "See the CPU's governor and idle states (cpupower), the IOMMU, the GPU's persistence mode and PCIe link.", nil)
		},
	})
}

const (
	launchMost  = 1_000_000
	launchStart = 25 * time.Second       // to open the GPUs
	launchEach  = 200 * time.Microsecond // limit of one launch, on a very slow node
	launchBatch = 100
	launchGPUs  = 16
)

// Bound returns the time of all launches on a slow node, and to start.
func (c *gpuLaunch) Bound() time.Duration {
	return max(timeOf(timeOfOthers).Bound, launchStart+launchGPUs*launchEach*time.Duration(c.Count))
}

// launchTimes has the durations of one GPU, sorted.
type launchTimes struct {
	gpu         *nvml.GPU
	alone, trip []time.Duration
	behind      time.Duration // mean of one launch within a batch
}

func (c *gpuLaunch) Validate() error {
	if c.Count < launchBatch || c.Count > launchMost {
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(c.Count), Want: fmt.Sprintf("a number of launches (-c) from %d to %d", launchBatch, launchMost)}
	}
	return nil
}

func (c *gpuLaunch) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	r, findings := c.beginGPUs(ctx, env, activeTest{Check: gpuLaunchName, Code: "gpu.launch", Bound: c.Bound(), Of: c})
	if r == nil {
		return findings
	}
	cuda, ok := r.openCUDA()
	if !ok {
		return r.done()
	}
	team := newTeam(r, cuda)
	var all []*launchTimes
	team.runInTurn("launch kernels", func(w *gpuWorker) error {
		w.patience = patience(r)
		l := &launchTimes{gpu: w.gpu}
		if err := l.take(r.ctx, w, c.Count); err != nil {
			return err
		}
		all = append(all, l)
		markDone(r, w.gpu)
		return nil
	})
	team.close()
	for _, l := range all {
		c.report(r, l)
	}
	return r.done()
}

// take launches kernels one at a time, and then in batches.
func (l *launchTimes) take(ctx context.Context, w *gpuWorker, count int) error {
	m, err := w.c.Module("memory")
	if err != nil {
		return err
	}
	empty, err := m.Kernel("empty")
	if err != nil {
		return err
	}
	one := func() error { return w.c.Launch(empty, cuda.Dim{}, cuda.Dim{}, w.stream) }
	for i := -launchBatch; i < count; i++ { // the first are slow
		began := time.Now()
		took, err := w.timed(ctx, 1, one)
		if err != nil {
			return err
		}
		trip := time.Since(began)
		if i >= 0 {
			l.alone, l.trip = append(l.alone, took), append(l.trip, trip)
		}
	}
	var sum time.Duration
	for range count / launchBatch {
		took, err := w.timed(ctx, launchBatch, one)
		if err != nil {
			return err
		}
		sum += took
	}
	l.behind = sum / time.Duration(count/launchBatch*launchBatch)
	slices.Sort(l.alone)
	slices.Sort(l.trip)
	return nil
}

// report records the medians, and reports the distribution of the others.
func (c *gpuLaunch) report(r *activeRun, l *launchTimes) {
	d := checks.GPUDevice(l.gpu)
	m := measure{Test: "launch", Algorithm: "empty", Ranks: 1, Device: d, Model: l.gpu.Name.Value, What: "launch of an empty kernel",
		Value: micros(part(l.alone, 50)), Unit: "us", Least: c.Most, Lower: true}
	r.record(m)
	m.Algorithm, m.What, m.Value = "behind", "empty kernels in a batch", micros(l.behind)
	m.Least = 0
	r.record(m)
	if trip := part(l.trip, 50); c.RoundTrip > 0 && micros(trip) > c.RoundTrip {
		r.report(d, checks.Finding{Code: "gpu.launch.slow", Severity: checks.Fail, Want: "at most " + rate(c.RoundTrip, "us"), Got: rate(micros(trip), "us")}, "round trip of a launch by the CPU's clock")
	}
	text := fmt.Sprintf("%s: launch of an empty kernel, median, 99 %%, max: %s; by the CPU's clock: %s", d.Name, spread(l.alone), spread(l.trip))
	r.findings = append(r.findings, checks.Finding{Code: "gpu.launch.rates", Severity: checks.OK, Device: d, Got: text}.Phrase(gpuLaunchName, "%s", text))
}

// part returns the duration that this percentage does not exceed.
func part(sorted []time.Duration, percent int) time.Duration {
	return sorted[min(len(sorted)*percent/100, len(sorted)-1)]
}

func spread(sorted []time.Duration) string {
	return fmt.Sprintf("%.1f, %.1f, %.1f us", micros(part(sorted, 50)), micros(part(sorted, 99)), micros(part(sorted, 100)))
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
