package active

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/gpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// NVML's readings of GPUs under load: clocks, temperature, power, and throttle reasons. They
// distinguish a faulty GPU from one with poor cooling.

// gpuLoad has the readings of one GPU.
type gpuLoad struct {
	most        uint32 // MHz: its highest possible clock
	least       uint32 // MHz: the lowest clock under load; 0: unknown
	temperature int    // Celsius: the highest
	power       uint32 // milliwatts: the highest mean of a second under load; 0: unknown
	enforced    uint32 // milliwatts: the power limit in force; 0: unknown
	usual       uint32 // milliwatts: the default limit of the board; 0: unknown
	lowered     uint32 // milliwatts: the limit that an administrator has lowered; 0: none
	reasons     uint64 // all throttle reasons
}

// loadLook is the interval of queries to NVML: few enough calls that the driver has time for the
// test. loadEnd is how long the end of the test waits for the last answer. powerLag is the time
// after which the power of a sample is that of the load: NVML returns the mean of the last
// second.
const (
	loadLook = 250 * time.Millisecond
	loadEnd  = time.Second
	powerLag = time.Second

	// powerLeast is the least duration of a load after which its power is recorded.
	powerLeast = 2 * time.Second
)

// loadWatch queries NVML repeatedly while a test runs.
type loadWatch struct {
	r          *activeRun
	began      time.Time
	power      bool // the load lasts long enough
	stop, done chan struct{}
	mu         sync.Mutex
	limits     *nvml.Snapshot   // the answer of readLimits
	seen       map[int]*gpuLoad // by NVML's index
}

// watchLoad starts to watch the GPUs. They start to work now, each for the given time with one
// kind of work.
func watchLoad(r *activeRun, each time.Duration) *loadWatch {
	w := &loadWatch{r: r, began: time.Now(), power: each >= powerLeast, stop: make(chan struct{}), done: make(chan struct{}), seen: map[int]*gpuLoad{}}
	go func() {
		defer close(w.done)
		w.readLimits()
		tick := time.NewTicker(loadLook)
		defer tick.Stop()
		for {
			w.look()
			select {
			case <-w.stop:
				return
			case <-tick.C:
			}
		}
	}()
	return w
}

// readLimits reads the values that do not change under load.
func (w *loadWatch) readLimits() {
	n, err := w.r.again(nvml.GroupPower | nvml.GroupClocks)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.limits = n
	for i := range n.GPUs {
		g := &n.GPUs[i]
		w.seen[g.Index] = &gpuLoad{most: g.Clocks.MaxGraphics.Value, enforced: g.Power.Enforced.Value, usual: g.Power.Default.Value}
	}
}

func (w *loadWatch) look() {
	loads := loadsOf(w.r)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, now := range loads {
		l := w.seen[i]
		if l == nil {
			l = &gpuLoad{}
			w.seen[i] = l
		}
		if now.Clock.Known && now.Throttle.Value&nvml.ThrottleIdle == 0 && (l.least == 0 || now.Clock.Value < l.least) {
			l.least = now.Clock.Value
		}
		l.temperature = max(l.temperature, now.Temperature.Value)
		if w.power && time.Since(w.began) > powerLag {
			l.power = max(l.power, now.Power.Value)
		}
		l.reasons |= now.Throttle.Value
	}
}

func loadsOf(r *activeRun) []nvml.GPULoad {
	r.nvml.Lock()
	defer r.nvml.Unlock()
	return nvml.GPULoads(r.env.Host)
}

// end stops the watching, and returns the readings. If NVML hangs it returns those until then.
func (w *loadWatch) end() map[int]*gpuLoad {
	close(w.stop)
	select {
	case <-w.done:
	case <-time.After(loadEnd):
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[int]*gpuLoad{}
	for i, l := range w.seen {
		seen[i] = new(*l)
	}
	if w.limits != nil {
		s := &gpu.GPUs{Env: w.r.env, NVML: w.limits}
		for i := range w.limits.GPUs {
			g := &w.limits.GPUs[i]
			seen[g.Index].lowered = gpu.LoweredLimit(s, g)
		}
	}
	return seen
}

// describeThrottling describes the throttle reasons that point to a fault, "" if there are none.
func describeThrottling(reasons uint64) string {
	words := gpu.ThrottleWords(reasons)
	if reasons&nvml.ThrottleThermal != 0 {
		words = checks.Before("", words, " and ") + "thermal slowdown by the driver"
	}
	return words
}

// String describes the readings: "1200 of 1980 MHz, 84 C, 691 W, power brake".
func (l *gpuLoad) String() string {
	var words []string
	if l.least > 0 {
		words = append(words, fmt.Sprintf("%d of %d MHz", l.least, l.most))
	}
	if l.temperature > 0 {
		words = append(words, fmt.Sprintf("%d C", l.temperature))
	}
	if l.power > 0 {
		words = append(words, gpu.Watts(l.power))
	}
	if t := describeThrottling(l.reasons); t != "" {
		words = append(words, t)
	}
	return strings.Join(words, ", ")
}

// describeLimit describes the limit of the GPU that an administrator has lowered, "" for none.
func (l *gpuLoad) describeLimit() string {
	switch {
	case l == nil:
		return ""
	case l.lowered > 0:
		return fmt.Sprintf("its power limit is %s of %s", gpu.Watts(l.lowered), gpu.Watts(l.usual))
	case l.reasons&nvml.ThrottleSetting != 0:
		return "a setting lowers its clocks"
	}
	return ""
}

// isUnderloaded reports whether the load was too small for the GPU: it drew less than a part of its power
// limit, although nothing slowed it down.
func (l *gpuLoad) isUnderloaded(part float64) bool {
	const slowed = gpu.HardwareReasons | nvml.ThrottleThermal | nvml.ThrottleSetting
	return l != nil && l.power > 0 && l.enforced > 0 && l.reasons&slowed == 0 && float64(l.power) < part*float64(l.enforced)
}

// reportThrottled warns of GPUs that the hardware slowed down during the test.
func reportThrottled(r *activeRun, seen map[int]*gpuLoad) {
	for _, g := range r.gpus {
		if l := seen[g.Index]; l != nil && l.reasons&gpu.HardwareReasons != 0 {
			r.report(checks.GPUDevice(g), checks.Finding{Code: r.Code + ".throttled", Severity: checks.Warn}, "slowed down under load: %s", l)
		}
	}
}

// explainRate adds the readings of a GPU to the findings that it is slow.
func explainRate(r *activeRun, findings []checks.Finding, seen map[int]*gpuLoad) []checks.Finding {
	for _, g := range r.gpus {
		l := seen[g.Index]
		if l == nil || l.String() == "" {
			continue
		}
		for i := range findings {
			f := &findings[i]
			kind := strings.TrimPrefix(f.Code, r.Code)
			if f.Device.Name == checks.GPUDevice(g).Name && slices.Contains([]string{".slow", ".floor", ".peers", ".baseline", ".fades"}, kind) {
				f.Message += " (" + l.String() + ")"
			}
		}
	}
	return findings
}
