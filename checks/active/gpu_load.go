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

// What NVML says of GPUs while they work: clocks, temperature, power, and what holds
// the clocks down. It tells a GPU that is broken from one that is not cooled.

// gpuLoad is what was seen of one GPU.
type gpuLoad struct {
	most        uint32 // MHz: the highest clock that it can have
	least       uint32 // MHz: the lowest that was seen under load; 0: none was
	temperature int    // Celsius: the highest
	power       uint32 // milliwatts: the highest mean of a second under load; 0: none is known
	enforced    uint32 // milliwatts: the power limit in force; 0: not known
	usual       uint32 // milliwatts: the limit of the board where no one has set another; 0: not known
	reasons     uint64 // all that have held the clocks down
}

// loadLook is how often NVML is asked: 16 calls a second for each GPU, so that the driver
// has time for the test. loadEnd is how long the end of the test waits for the last
// answer. powerLag is from when on the power of a sample is that of the load: NVML
// gives the mean of the last second.
const (
	loadLook = 250 * time.Millisecond
	loadEnd  = time.Second
	powerLag = time.Second

	// powerLeast is the least time of a load for which its power is worth a word.
	powerLeast = 2 * time.Second
)

// loadWatch asks NVML again and again while a test is under way.
type loadWatch struct {
	r          *activeRun
	began      time.Time
	power      bool // the load lasts for long enough
	stop, done chan struct{}
	mu         sync.Mutex
	seen       map[int]*gpuLoad // by NVML's index
}

// watchLoad begins to look at the GPUs, which are at work from now on, for so long each
// with one kind of work.
func watchLoad(r *activeRun, each time.Duration) *loadWatch {
	w := &loadWatch{r: r, began: time.Now(), power: each >= powerLeast, stop: make(chan struct{}), done: make(chan struct{}), seen: map[int]*gpuLoad{}}
	go func() {
		defer close(w.done)
		w.limits()
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

// limits asks once for what does not change under load.
func (w *loadWatch) limits() {
	n, err := w.r.again(nvml.GroupPower | nvml.GroupClocks)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
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

// end stops looking, and gives what was seen. NVML may hang: then it is what was seen
// until then.
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
	return seen
}

// throttledBy are the reasons in words, "" if there are none that point to a fault.
func throttledBy(reasons uint64) string {
	words := gpu.ThrottleWords(reasons)
	if reasons&nvml.ThrottleThermal != 0 {
		words = checks.Before("", words, " and ") + "thermal slowdown by the driver"
	}
	return words
}

// String is what was seen, in words: "1200 of 1980 MHz, 84 C, 691 W, power brake".
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
	if t := throttledBy(l.reasons); t != "" {
		words = append(words, t)
	}
	return strings.Join(words, ", ")
}

// limited says which limit of the GPU an administrator has lowered, "" for none.
func (l *gpuLoad) limited() string {
	switch {
	case l == nil:
		return ""
	case l.enforced > 0 && l.enforced < l.usual:
		return fmt.Sprintf("its power limit is %s of %s", gpu.Watts(l.enforced), gpu.Watts(l.usual))
	case l.reasons&nvml.ThrottleSetting != 0:
		return "its clocks were lowered by a setting"
	}
	return ""
}

// idle says that the load of a test was too small for the GPU: it has drawn less than a
// part of its power limit, though nothing slowed it down.
func (l *gpuLoad) idle(part float64) bool {
	const slowed = gpu.HardwareReasons | nvml.ThrottleThermal | nvml.ThrottleSetting
	return l != nil && l.power > 0 && l.enforced > 0 && l.reasons&slowed == 0 && float64(l.power) < part*float64(l.enforced)
}

// tellThrottled warns of GPUs that the hardware has slowed down during the test.
func tellThrottled(r *activeRun, seen map[int]*gpuLoad) {
	for _, g := range r.gpus {
		if l := seen[g.Index]; l != nil && l.reasons&gpu.HardwareReasons != 0 {
			r.report(checks.GPUDevice(g), checks.Finding{Code: r.Code + ".throttled", Severity: checks.Warn}, "slowed down under load: %s", l)
		}
	}
}

// explainRate adds what was seen of a GPU to what is said of it being slow.
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
