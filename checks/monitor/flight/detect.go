package flight

import (
	_ "embed" // thresholds.toml
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/BurntSushi/toml"
)

//go:embed thresholds.toml
var thresholds string

// Threshold is a row of thresholds.toml.
type Threshold struct {
	Name   string
	Value  float64
	Unit   string
	Source string
}

// Thresholds returns the rows of thresholds.toml.
var Thresholds = sync.OnceValue(func() []Threshold {
	var file struct{ Threshold []Threshold }
	if _, err := toml.Decode(thresholds, &file); err != nil {
		panic(fmt.Sprintf("flight: read thresholds.toml: %v", err)) // TestThresholds
	}
	return file.Threshold
})

// limit returns a threshold.
func limit(name string) float32 {
	rows := Thresholds()
	at := slices.IndexFunc(rows, func(row Threshold) bool { return row.Name == name })
	if at < 0 {
		panic("flight: no threshold " + name) // TestThresholds
	}
	return float32(rows[at].Value)
}

// Longest is how many seconds before its end a window must begin for all detectors.
const Longest = 300

// Job is a job on the node.
type Job struct {
	ID      string
	GPUs    []string // its devices; nil if unknown
	All     bool     // it has all GPUs of the node
	Guess   bool     // there is no record of its GPUs: it is alone on the node, so it may have all of them
	Partial bool     // some of its GPUs have no samples: there was no place for them
	OneNode bool     // it is known to have no other node
	First   string   // the name of its first node, "": unknown
	IsFirst bool     // this node is it
	Since   uint32   // its prolog, seconds since the boot; 0: unknown
}

// Verdict is what a detector has found.
type Verdict struct {
	Code      string
	Job       string
	Devices   []string // that are the cause, or affected
	Since     uint32   // seconds since the boot
	Message   string
	Want, Got string
}

// AllWait reports whether a job hangs because all of its GPUs wait, and not for one of them.
func (v Verdict) AllWait() bool { return v.Code == "job.hang" && len(v.Devices) > 1 }

// Detect returns what the detectors find at the end of a window. jobs are those on the node at that
// time. Each is judged by the time in which it was there: before, others had its GPUs, or none had.
func Detect(w *Window, jobs []Job) (list []Verdict) {
	for _, j := range jobs {
		own := w.of(j)
		if own == nil {
			continue
		}
		for _, detect := range []func(*Window, Job) []Verdict{lost, hang, straggler, throttle, silentPort, stall} {
			for _, v := range detect(own, j) {
				v.Job = j.ID
				list = append(list, v)
			}
		}
	}
	return append(list, left(w, jobs)...)
}

// tail returns the time of a detector at the end of a window, nil if the window is shorter.
func tail(w *Window, seconds string) *Window {
	n := uint32(limit(seconds))
	if uint32(w.Len()) < n {
		return nil
	}
	t := w.Tail(n)
	t.before = w.Tail(n + gap)
	return t
}

// gap is the longest time without a sample in which a state is taken to last: a GPU whose driver answers slowly is
// asked every 10 s only.
const gap = 12

// enough is the share of seconds that must have samples for a mean.
const enough = 0.25

// always reports whether all samples of a series match, from the last one before the window on, and none is missing
// for longer than gap. So a state that is seen seldom has lasted as long as the window, and did not fit between two
// samples of something else.
func (w *Window) always(device string, name Name, match func(float32) bool) bool {
	values, first := w.Of(device, name), 0
	missing := -1 // in a window without a time before it, all known samples count
	if w.before != nil {
		values, missing = w.before.Of(device, name), 0
		last := len(values) - 1
		for last >= 0 && !known(values[last]) {
			last--
		}
		if len(values)-1-last > gap {
			return false
		}
		for first = last - w.Len() + 1; first >= 0 && !known(values[first]); {
			first--
		}
		if first < 0 {
			return false
		}
		values = values[:last+1]
	}
	seen := false
	for _, v := range values[min(first, len(values)):] {
		switch {
		case known(v) && !match(v):
			return false
		case known(v):
			seen, missing = true, min(missing, 0)
		case missing >= 0:
			if missing++; missing > gap {
				return false
			}
		}
	}
	return seen
}

// lost reports a GPU without values from NVML, which calls the GPU lost, or in need of a repair.
func lost(w *Window, j Job) (list []Verdict) {
	for _, gpu := range j.GPUs {
		if w.Last(gpu, Reached) == 0 {
			list = append(list, Verdict{
				Code: "job.gpu.lost", Devices: []string{gpu}, Since: since(w, gpu, Reached, func(v float32) bool { return v == 0 }),
				Message: "NVML gives no values of the GPU: it is lost, or needs a reset, a power cable or interrupts", Want: "values", Got: "none",
			})
		}
	}
	return list
}

// since returns the beginning of the last run of values that match. Unknown ones between them do not end it.
func since(w *Window, device string, name Name, match func(float32) bool) uint32 {
	values, at := w.Of(device, name), w.To
	for i := len(values) - 1; i >= 0 && (!known(values[i]) || match(values[i])); i-- {
		if known(values[i]) {
			at = w.From + uint32(i)*w.Step
		}
	}
	return at
}

// hang reports a job whose GPUs all run kernels that do nothing: near to idle in power, and without
// traffic. If a GPU of the job does not wait like the others, it is the one they wait for: that takes longer to be
// a hang, because a rank that writes a checkpoint keeps the others waiting, too. So does one on another node.
func hang(w *Window, j Job) []Verdict {
	t := tail(w, "hang.seconds")
	if t == nil || j.Partial || len(j.GPUs) < int(limit("hang.gpus")) {
		return nil
	}
	long := tail(w, "hang.long.seconds")
	var spinning, other []string
	for _, gpu := range j.GPUs {
		if spins(t, gpu) {
			spinning = append(spinning, gpu)
		} else {
			other = append(other, gpu)
		}
	}
	first := func(devices []string) (from uint32) {
		for _, gpu := range devices {
			from = max(from, since(w, gpu, Busy, func(v float32) bool { return v >= limit("hang.busy") }),
				since(w, gpu, Power, func(v float32) bool { return v < spinPower(w, gpu) }))
		}
		return from
	}
	v := Verdict{
		Code: "job.hang", Devices: spinning, Want: "power and traffic of a working GPU",
		Got: fmt.Sprintf("busy %.0f %%, %.0f W, no traffic", typical(t.Of(j.GPUs[0], Busy)), typical(t.Of(j.GPUs[0], Power))),
	}
	switch {
	case len(other) == 0 && (j.OneNode && !stopped(t) || allSpin(long, spinning)):
		v.Since = first(spinning)
		v.Message = fmt.Sprintf("all %d GPUs have waited for %d s: their kernels neither compute nor send data", len(spinning), t.To-v.Since)
	case len(other) == 1 && len(spinning) >= int(limit("straggler.gpus"))-1 && allSpin(long, spinning) &&
		long.always(other[0], Busy, func(v float32) bool { return v < limit("stall.busy") }):
		v.Since, v.Devices = first(spinning), other
		v.Want, v.Got = "a kernel", "none"
		v.Message = fmt.Sprintf("%d GPUs have waited for %d s, and this one runs no kernel: they wait for it, or all for a request", len(spinning), t.To-v.Since)
	default:
		return nil
	}
	return []Verdict{v}
}

// allSpin reports whether GPUs have only waited in a window, nil for one that is too short, while the job was not
// stopped.
func allSpin(w *Window, gpus []string) bool {
	return w != nil && !stopped(w) && !slices.ContainsFunc(gpus, func(gpu string) bool { return !spins(w, gpu) })
}

// stopped reports whether half of the processes of a job, or more, were stopped: the job was suspended, or is debugged,
// and waits for that.
func stopped(w *Window) bool {
	of := w.Of(jobSlot, Processes)
	for i, v := range w.Of(jobSlot, Stopped) {
		if v >= 1 && 2*v >= of[i] {
			return true
		}
	}
	return false
}

// Unjudged says why a job is not judged for a hang and a stall at the end of a window, "" if it is.
func Unjudged(w *Window, j Job) string {
	switch own := w.of(j); {
	case j.Partial:
		return "some of its GPUs have no samples"
	case own != nil && stopped(own.Tail(uint32(limit("hang.seconds")))):
		return "most of its processes are stopped"
	}
	return ""
}

// spinPower returns the power below which a busy GPU only waits, W.
func spinPower(w *Window, gpu string) float32 {
	return float32(w.Devices[gpu].Limit) * limit("hang.power") / 100
}

// spins reports whether a GPU runs kernels that only wait.
func spins(w *Window, gpu string) bool {
	power := spinPower(w, gpu)
	below := func(name Name, high float32) bool { // a series that the GPU does not have says nothing against
		return !slices.ContainsFunc(w.Of(gpu, name), known) || w.always(gpu, name, func(v float32) bool { return v < high })
	}
	return w.always(gpu, Busy, func(v float32) bool { return v >= limit("hang.busy") }) &&
		w.always(gpu, Power, func(v float32) bool { return v < power }) &&
		below(Memory, limit("hang.memory")) && below(Tensor, limit("hang.tensor")) && below(NVLink, limit("hang.traffic")) && below(PCIe, limit("hang.traffic"))
}

// loadSeconds is the time over which LastWork looks.
const loadSeconds = 10

// LastWork describes what a GPU did in the last seconds: "and its GPU waits, too".
func (w *Window) LastWork(gpu string) string {
	t := w.Tail(loadSeconds)
	switch busy := typical(t.Of(gpu, Busy)); {
	case w.Last(gpu, Reached) == 0:
		return "and its GPU is lost or needs a reset"
	case !known(busy):
		return "and its GPU has no samples"
	case spins(t, gpu):
		return "and its GPU waits, too"
	case busy < limit("stall.busy"):
		return "and its GPU runs no kernel"
	default:
		return fmt.Sprintf("and its GPU works (%.0f W)", typical(t.Of(gpu, Power)))
	}
}

// straggler reports the one GPU of a job that lags behind all others, with which it exchanges data. A GPU that has
// no part in the work of the others is none: it is idle, or for evaluation or inference.
func straggler(w *Window, j Job) []Verdict {
	t := tail(w, "straggler.seconds")
	if t == nil || len(j.GPUs) < int(limit("straggler.gpus")) {
		return nil
	}
	link := NVLink
	if !known(least(t, j.GPUs, NVLink)) {
		link = PCIe
	}
	for _, gpu := range j.GPUs {
		others := slices.DeleteFunc(slices.Clone(j.GPUs), func(g string) bool { return g == gpu })
		usual := least(t, others, link)
		if least(t, others, Busy) < limit("straggler.busy") || !(usual >= limit("straggler.traffic")) ||
			!(least(t, []string{gpu}, link) >= max(limit("straggler.traffic"), limit("straggler.part")*usual)) {
			continue
		}
		ratio := limit("straggler.ratio")
		power, clock := behind(t, gpu, others, Power, ratio), behind(t, gpu, others, Clock, ratio)
		busy, sent := behind(t, gpu, others, Busy, ratio), behind(t, gpu, others, NVLink, ratio)
		v := Verdict{Code: "job.straggler", Devices: []string{gpu}, Since: t.From}
		switch {
		case power && busy && sent:
			v.Message = "this GPU lags behind the other GPUs of the job in power, activity and traffic"
			v.Want = fmt.Sprintf("at least %.0f W, as the others", least(t, others, Power))
			v.Got = fmt.Sprintf("%.0f W, busy %.0f %%", mean(t.Of(gpu, Power)), mean(t.Of(gpu, Busy)))
		case clock && !(mean(t.Of(gpu, Busy)) < limit("straggler.busy")):
			v.Message = "the clock of this GPU is lower than that of the other GPUs of the job"
			v.Want = fmt.Sprintf("%.0f MHz, as the others", least(t, others, Clock))
			v.Got = fmt.Sprintf("%.0f MHz", mean(t.Of(gpu, Clock)))
		default:
			continue
		}
		return []Verdict{v}
	}
	return nil
}

// least returns the lowest mean of a series among devices; Unknown if one is.
func least(w *Window, devices []string, name Name) float32 {
	lowest := Unknown
	for i, d := range devices {
		v := mean(w.Of(d, name))
		if !known(v) {
			return Unknown
		}
		if i == 0 || v < lowest {
			lowest = v
		}
	}
	return lowest
}

// behind reports whether the mean of a device is lower than a share of that of each other, in the seconds in which
// both have samples: in others, all could have paused.
func behind(w *Window, device string, others []string, name Name, share float32) bool {
	own := w.Of(device, name)
	return !slices.ContainsFunc(others, func(other string) bool {
		a, b, count := 0.0, 0.0, 0
		for i, v := range w.Of(other, name) {
			if i < len(own) && known(v) && known(own[i]) {
				a, b, count = a+float64(own[i]), b+float64(v), count+1
			}
		}
		return float64(count) < enough*float64(len(own)) || !(a < float64(share)*b)
	})
}

// throttle reports a GPU that heat or its power supply slows down, while the others run freely.
func throttle(w *Window, j Job) (list []Verdict) {
	t := tail(w, "throttle.seconds")
	if t == nil || len(j.GPUs) < 3 {
		return nil
	}
	var shares []float32
	for _, gpu := range j.GPUs {
		shares = append(shares, mean(t.Of(gpu, Slow)))
	}
	if usual := median(shares); !(usual <= limit("throttle.others")) {
		return nil
	}
	for i, gpu := range j.GPUs {
		if shares[i] >= limit("throttle.share") {
			list = append(list, Verdict{
				Code: "job.throttle", Devices: []string{gpu}, Since: t.From,
				Message: "heat or the power supply slows this GPU down, and not the other GPUs of the job",
				Want:    fmt.Sprintf("at most %.0f %% of the time", limit("throttle.others")), Got: fmt.Sprintf("%.0f %%", shares[i]),
			})
		}
	}
	return list
}

// silentPort reports a port that carries less than all others of the job, and has carried as much as
// they did before.
func silentPort(w *Window, j Job) []Verdict {
	t := tail(w, "port.seconds")
	if t == nil || !j.All || uint32(w.Len()) < 2*uint32(t.Len()) {
		return nil
	}
	ports := rails(w, t)
	if len(ports) < 4 {
		return nil
	}
	for _, port := range ports {
		others := slices.DeleteFunc(slices.Clone(ports), func(p string) bool { return p == port })
		usual := least(t, others, Data)
		under := func(share float32) bool {
			return t.always(port, Data, func(v float32) bool { return v < share*usual }) && behind(t, port, others, Data, share)
		}
		if !(usual >= limit("port.others")) || !under(limit("port.slow")) {
			continue
		}
		since, n := t.From, uint32(t.Len())
		for since >= w.From+n && behind(w.Part(since-n, since-1), port, others, Data, limit("port.slow")) {
			since -= n
		}
		if since < w.From+n || behind(w.Part(w.From, since-1), port, others, Data, limit("port.slow")) { // it never was a port like the others
			continue
		}
		v := Verdict{
			Code: "job.port.slow", Devices: []string{port}, Since: since, Message: "this port carries less than the other ports of the job",
			Want: fmt.Sprintf("%.0f MB/s, as the others", usual), Got: fmt.Sprintf("%.0f MB/s", mean(t.Of(port, Data))),
		}
		if under(limit("port.silent")) {
			v.Code, v.Message = "job.port.silent", "this port carries no data, unlike the other ports of the job"
		}
		return []Verdict{v}
	}
	return nil
}

// rails returns the ports that the job has used like most of the others before a time at the end of a window, nil if
// none of them carries less than the others in that time. So an adapter for storage, which carries data while the
// rails are idle and is idle while they carry data, is none.
func rails(w, end *Window) (list []string) {
	before := w.Part(w.From, end.From-1)
	var ports []string
	low, high := float32(math.Inf(1)), float32(0)
	for _, p := range w.Names(Data) {
		if mean(before.Of(p, Data)) >= limit("port.others") {
			ports = append(ports, p)
			if v := mean(end.Of(p, Data)); known(v) {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	if low >= limit("port.slow")*high {
		return nil
	}
	n := uint32(end.Len())
	for i, p := range ports {
		others := slices.Delete(slices.Clone(ports), i, i+1)
		for from := before.From; from+n-1 <= before.To; from += n {
			if alike(before.Part(from, from+n-1), p, others) {
				list = append(list, p)
				break
			}
		}
	}
	return list
}

// alike reports whether a port carried about as much as others in most of the seconds in which those carried data.
// Means would not do: those of a window in which the load moves from one port to others are alike.
func alike(w *Window, port string, others []string) bool {
	count, same := 0, 0
	values := make([]float32, len(others))
	for i, v := range w.Of(port, Data) {
		for k, other := range others {
			values[k] = w.Of(other, Data)[i]
		}
		usual := median(values)
		if !known(v) || !(usual >= limit("port.others")) {
			continue
		}
		if count++; v >= limit("port.alike")*usual && v*limit("port.alike") <= usual {
			same++
		}
	}
	return float32(count)/float32(w.Len()) >= limit("port.alike.time") && 2*same > count
}

// stall reports a job that the host keeps from working: its GPUs have no work while its tasks wait for
// memory or a disk. A job that holds no memory of its GPUs does not use them at this time: it copies data before its
// work or after it, or has them only because it has the whole node.
func stall(w *Window, j Job) []Verdict {
	t := tail(w, "stall.seconds")
	if t == nil || j.Partial || stopped(t) {
		return nil
	}
	worked := func(gpu string) bool {
		return slices.ContainsFunc(w.Of(gpu, Busy), func(v float32) bool { return v >= limit("stall.busy") })
	}
	uses := func(gpu string) bool {
		return t.always(gpu, Used, func(v float32) bool { return v >= limit("left.memory") }) || !known(t.Last(gpu, Used)) && worked(gpu)
	}
	if !slices.ContainsFunc(j.GPUs, uses) || j.Guess && !slices.ContainsFunc(j.GPUs, worked) { // the memory may be another's
		return nil
	}
	for _, gpu := range j.GPUs {
		if !t.always(gpu, Busy, func(v float32) bool { return v < limit("stall.busy") }) {
			return nil
		}
	}
	v := Verdict{Code: "job.stall", Since: t.From, Want: "work for its GPUs"}
	high := func(v float32) bool { return v >= limit("stall.pressure") }
	switch {
	case t.always(jobSlot, StallIO, high):
		v.Message, v.Got = "the tasks of the job wait for a disk or a file system, and its GPUs have no work", fmt.Sprintf("I/O pressure %.0f %%", typical(t.Of(jobSlot, StallIO)))
	case t.always(jobSlot, StallMem, high):
		v.Message, v.Got = "the tasks of the job wait for memory, and its GPUs have no work", fmt.Sprintf("memory pressure %.0f %%", typical(t.Of(jobSlot, StallMem)))
	case t.always(jobSlot, Blocked, func(v float32) bool { return v >= 1 }):
		v.Message, v.Got = "the processes of the job are blocked in the kernel (state D), and its GPUs have no work", fmt.Sprintf("%.0f blocked processes", typical(t.Of(jobSlot, Blocked)))
	default:
		return nil
	}
	return []Verdict{v}
}

// left reports memory in use on GPUs that no job has, while jobs run beside. It waits for its time after the end of a
// job, whose GPUs are unknown by then. With MaxJobs jobs there may be more, which have no slot.
func left(w *Window, jobs []Job) (list []Verdict) {
	t := tail(w, "left.seconds")
	if t == nil || len(jobs) == 0 || len(jobs) >= MaxJobs || slices.ContainsFunc(jobs, func(j Job) bool { return j.GPUs == nil || j.All }) {
		return nil
	}
	if slices.ContainsFunc(t.before.JobIDs(), func(id string) bool { return !slices.ContainsFunc(jobs, func(j Job) bool { return j.ID == id }) }) {
		return nil
	}
	for _, gpu := range w.Names(Used) {
		if slices.ContainsFunc(jobs, func(j Job) bool { return slices.Contains(j.GPUs, gpu) }) {
			continue
		}
		if t.always(gpu, Used, func(v float32) bool { return v >= limit("left.memory") }) {
			list = append(list, Verdict{
				Code: "job.memory.left", Devices: []string{gpu}, Since: t.From, Message: "memory is in use, and no job has this GPU",
				Want: fmt.Sprintf("less than %.0f MiB", limit("left.memory")), Got: fmt.Sprintf("%.0f MiB", typical(t.Of(gpu, Used))),
			})
		}
	}
	return list
}
