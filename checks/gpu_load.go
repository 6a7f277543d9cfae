package checks

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// What NVML says of GPUs while they work: clocks, temperature, power, and what holds
// the clocks down. It tells a GPU that is broken from one that is not cooled.

// gpuLoad is what was seen of one GPU.
type gpuLoad struct {
	most        uint32 // MHz: the highest clock that it can have
	least       uint32 // MHz: the lowest that was seen under load; 0: none was
	temperature int    // Celsius: the highest
	power       uint32 // milliwatts: the highest
	reasons     uint64 // all that have held the clocks down
}

// loadLook is how often NVML is asked, loadEnd how long the end of the test waits for
// the last answer.
const (
	loadLook = 200 * time.Millisecond
	loadEnd  = time.Second
)

const loadGroups = probe.GroupTemperature | probe.GroupPower | probe.GroupThrottle | probe.GroupClocks

// loadWatch asks NVML again and again while a test is under way.
type loadWatch struct {
	r          *activeRun
	stop, done chan struct{}
	mu         sync.Mutex
	seen       map[int]*gpuLoad // by NVML's index
}

// watchLoad begins to look at the GPUs, which are at work from now on.
func (r *activeRun) watchLoad() *loadWatch {
	w := &loadWatch{r: r, stop: make(chan struct{}), done: make(chan struct{}), seen: map[int]*gpuLoad{}}
	go func() {
		defer close(w.done)
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

func (w *loadWatch) look() {
	n, err := w.r.again(loadGroups)
	if err != nil {
		return
	}
	clocks := w.r.smClocks()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range n.GPUs {
		g := &n.GPUs[i]
		l := w.seen[g.Index]
		if l == nil {
			l = &gpuLoad{most: g.Clocks.MaxGraphics.Value}
			w.seen[g.Index] = l
		}
		now := g.Throttle.Now.Value
		if i < len(clocks) && clocks[i].Known && now&probe.ThrottleIdle == 0 && (l.least == 0 || clocks[i].Value < l.least) {
			l.least = clocks[i].Value
		}
		l.temperature = max(l.temperature, g.Temperature.GPU.Value)
		l.power = max(l.power, g.Power.Draw.Value)
		l.reasons |= now
	}
}

func (r *activeRun) smClocks() []probe.Reading[uint32] {
	r.nvml.Lock()
	defer r.nvml.Unlock()
	return r.env.Host.SMClocks()
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
	words := throttleWords(reasons)
	if reasons&probe.ThrottleThermal != 0 {
		words = before("", words, " and ") + "thermal slowdown by the driver"
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
		words = append(words, watts(l.power))
	}
	if t := throttledBy(l.reasons); t != "" {
		words = append(words, t)
	}
	return strings.Join(words, ", ")
}

// tellThrottled warns of GPUs that the hardware has slowed down during the test.
func (r *activeRun) tellThrottled(seen map[int]*gpuLoad) {
	const hardware = probe.ThrottleHardwareThermal | probe.ThrottlePowerBrake | probe.ThrottleHardware
	for _, g := range r.gpus {
		if l := seen[g.Index]; l != nil && l.reasons&hardware != 0 {
			r.report(gpuDevice(g), Finding{Code: r.Code + ".throttled", Severity: Warn}, "slowed down under load: %s", l)
		}
	}
}

// explain adds what was seen of a GPU to what is said of it being slow.
func (r *activeRun) explain(findings []Finding, seen map[int]*gpuLoad) []Finding {
	for _, g := range r.gpus {
		l := seen[g.Index]
		if l == nil || l.String() == "" {
			continue
		}
		for i := range findings {
			f := &findings[i]
			kind := strings.TrimPrefix(f.Code, r.Code)
			if f.Device.Name == gpuDevice(g).Name && slices.Contains([]string{".slow", ".floor", ".peers", ".baseline", ".fades"}, kind) {
				f.Message += " (" + l.String() + ")"
			}
		}
	}
	return findings
}
