package worker

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// While jobs run, the sources of GPUs, ports and jobs write a sample a second to rings in the state
// directory, each its own.

// ring is an open ring of samples.
type ring struct {
	*flight.Recorder

	file *os.File
	last uint32 // second of the last sample
}

// openRing opens a ring to go on with it if it has the same devices, else to write a new one. Without a
// state directory it returns nil.
func openRing(w *worker, source string, h *flight.Header) (*ring, error) {
	if w.vars.State == "" {
		return nil, nil
	}
	boot, err := probe.BootID(w.host.Apart()) // or an error would stay as long as the worker
	if err != nil {
		return nil, err
	}
	h.Boot = boot
	dir, err := openStateDir(w.vars.State)
	if err != nil {
		return nil, err
	}
	f, err := dir.open(flight.File(source), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, fmt.Errorf("open samples: %w", err)
	}
	old, err := flight.ReadHeader(f)
	if err == nil && old.Same(h) {
		return &ring{Recorder: flight.Record(f, h), file: f}, nil
	}
	if errors.Is(err, flight.ErrFormat) { // it stays beside, for the version that has written it
		f.Close()
		if err = os.Rename(f.Name(), f.Name()+".other"); err == nil {
			f, err = dir.open(flight.File(source), os.O_RDWR|os.O_CREATE)
		}
		if err != nil {
			return nil, fmt.Errorf("keep the samples of another version: %w", err)
		}
		old = nil
	}
	r, err := newRing(f, h, old)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("write samples: %w", err)
	}
	return r, nil
}

// newRing writes an empty ring into a file, and adopts what the file has had: old is its header, nil for none.
func newRing(f *os.File, h, old *flight.Header) (*ring, error) {
	head, err := h.Encode()
	if err != nil {
		return nil, err
	}
	var before []byte
	if old != nil && old.Boot == h.Boot {
		before, _ = io.ReadAll(io.NewSectionReader(f, 0, old.Size()))
	}
	if err := f.Truncate(0); err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(head, 0); err != nil {
		return nil, err
	}
	if err := f.Truncate(h.Size()); err != nil {
		return nil, err
	}
	r := &ring{Recorder: flight.Record(f, h), file: f}
	if int64(len(before)) == 0 || int64(len(before)) < old.Size() {
		return r, nil
	}
	err = r.Adopt(bytes.NewReader(before), old)
	debug.FreeOSMemory() // it lives long
	return r, err
}

// add writes a sample; a ring that is nil takes none.
func (r *ring) add(t uint32, values []float32) error {
	if r == nil || t == r.last {
		return nil
	}
	r.last = t
	return r.Add(t, values)
}

// Close writes the minute that has begun.
func (r *ring) Close() error {
	if r == nil {
		return nil
	}
	return errors.Join(r.Recorder.Close(), r.file.Close())
}

// recording writes the samples of a source. An error costs only the samples: the ring is opened again after a pause.
type recording struct {
	w      *worker
	source string
	head   *flight.Header
	ring   *ring         // nil: not open
	again  time.Duration // when it is opened again, after an error
	failed bool          // the last sample could not be written
}

// add writes a sample.
func (r *recording) add(now time.Duration, values []float32) {
	if now < r.again {
		return
	}
	err := error(nil)
	if r.ring == nil {
		r.ring, err = openRing(r.w, r.source, r.head)
	}
	if err == nil {
		err = r.ring.add(uint32(now/time.Second), values)
	}
	if err != nil {
		r.Close()
		r.again = now + reopenPause
		r.w.note("no samples of %s: %v", r.source, err)
	} else if r.failed {
		r.w.note("the samples of %s are written again", r.source)
	}
	r.failed = err != nil
}

// Close closes the ring.
func (r *recording) Close() {
	_ = r.ring.Close()
	r.ring = nil
}

// tick returns the whole second since the boot that is nearest to a time. All sources sample at whole seconds: a CPU
// wakes up once for all of them.
func tick(t time.Duration) time.Duration { return t.Round(time.Second) }

// rate returns the growth of a counter per second, Unknown if it has shrunk or is not known.
func rate(was, now, seconds float64) float32 {
	if !(seconds > 0) || !(now >= was) {
		return flight.Unknown
	}
	return float32((now - was) / seconds)
}

// gpuWatch samples the GPUs and listens to NVML's events. It needs a job on the node: a process that has
// NVML open would keep a person, or a remedy, from the reset of a GPU.
type gpuWatch struct {
	nvml    *nvml.Watch // nil: the node has no GPU of NVIDIA, or no driver for it
	samples recording
	gpus    []gpuBefore
	at      time.Duration // of the last sample, since the boot
	took    time.Duration // by the last sample, without slow GPUs
	news    []string      // events of the start

	again time.Duration // when a new process must open NVML, since something was missing at the start; 0: never
}

// reopenPause is the time before a source that lacks something is opened again: the monitor's longest pause after a
// failure.
const reopenPause = 5 * time.Minute

// gpuBefore has the earlier samples of a GPU. Times are since the boot.
type gpuBefore struct {
	sample nvml.Sample
	at     time.Duration
	next   time.Duration // before that, a slow GPU is not asked
	silent bool          // its calls take too long for a sample, which was reported
}

func openGPUWatch(w *worker, doing func(string)) (watcher, error) {
	n, err := nvml.WatchGPUs(w.host, doing)
	for _, absent := range []error{probe.ErrNoLibrary, nvml.ErrDriverNotThere, nvml.ErrNoGPU} {
		if errors.Is(err, absent) {
			return &gpuWatch{again: probe.SinceBoot() + reopenPause}, nil
		}
	}
	if err != nil {
		return nil, err
	}
	g := &gpuWatch{nvml: n, samples: recording{w: w, source: monitor.GPUs}, gpus: make([]gpuBefore, len(n.GPUs()))}
	g.samples.head = gpuHeader(n.GPUs(), n.Limits(doing))
	if g.samples.head.More > 0 {
		w.note("samples of %d of %d GPUs: there is no place for more", len(g.samples.head.Devices), len(n.GPUs()))
	}
	for _, i := range n.Unasked() {
		g.news = append(g.news, fmt.Sprintf("gpu%d: it gives no answer", i))
		if !nvml.IsGPUState(n.GPUs()[i].Err) { // a lost GPU needs a reset, for which the jobs must end
			g.again = probe.SinceBoot() + reopenPause
		}
	}
	return g, nil
}

// gpuHeader describes the samples of GPUs, of as many as have columns in a ring. All have events.
func gpuHeader(gpus []nvml.GPU, limits []float64) *flight.Header {
	count := min(len(gpus), flight.MaxColumns/len(flight.OfGPU))
	h := &flight.Header{More: len(gpus) - count}
	for i := range gpus[:count] {
		g := &gpus[i]
		d := flight.Device{Name: fmt.Sprintf("gpu%d", g.Index), PCI: g.PCI, UUID: g.UUID.Value, Minor: -1, Limit: limits[i]}
		if g.Minor.Known {
			d.Minor = g.Minor.Value
		}
		h.Devices = append(h.Devices, d)
		h.Columns = append(h.Columns, flight.Columns(flight.OfGPU, d.Name)...)
	}
	return h
}

// Close closes the ring.
func (g *gpuWatch) Close() { g.samples.Close() }

// samplePace is the time between two samples; a GPU that answers slowly gets samplePart of it.
const (
	samplePace = time.Second
	samplePart = 20
	// slowGPU is the time for the values of a GPU above which it is asked less often than the others.
	slowGPU = 250 * time.Millisecond
	// leastPace is the least time between two: a shorter one gives no rate.
	leastPace = samplePace / 2
)

func (g *gpuWatch) wait(l listen) (*wire.Heard, error) {
	heard := &wire.Heard{}
	if g.nvml == nil {
		time.Sleep(l.limit)
		return heard, nil
	}
	for _, text := range g.news {
		add(heard, monitor.GPU, text)
	}
	g.news = nil
	for end := time.Now().Add(l.limit); ; {
		if pause := tick(g.at+max(samplePace, samplePart*g.took)) - probe.SinceBoot(); pause > 0 {
			event, err := g.nvml.Wait(min(pause, max(0, time.Until(end))), l.doing)
			if err != nil {
				event = fmt.Sprintf("NVML reports no more events: %v", err)
			}
			if event != "" {
				add(heard, monitor.GPU, event)
			}
		} else {
			g.sample(l, heard)
		}
		if len(heard.Events) > 0 || time.Until(end) <= 0 {
			return heard, nil
		}
	}
}

// sample takes a sample of all GPUs.
func (g *gpuWatch) sample(l listen, heard *wire.Heard) {
	now := probe.SinceBoot()
	samples, changed := g.nvml.Sample(l.doing, func(gpu int) bool { return now < g.gpus[gpu].next })
	g.took = 0
	var values []float32
	for i := range samples {
		s, gpu := &samples[i], &g.gpus[i]
		if s.Skipped {
			values = append(values, slices.Repeat([]float32{flight.Unknown}, len(flight.OfGPU))...)
			continue
		}
		values = append(values, valuesOf(&gpu.sample, s, (now-gpu.at).Seconds())...)
		gpu.sample, gpu.at = *s, now
		if s.Took > slowGPU {
			gpu.next = now + samplePart*s.Took
		} else {
			g.took += s.Took
		}
		if silent := s.Took >= nvml.Enough; silent != gpu.silent {
			if gpu.silent = silent; silent {
				changed = append(changed, fmt.Sprintf("gpu%d: NVML has taken %s for its values", i, s.Took.Round(100*time.Millisecond)))
			}
		}
	}
	for _, text := range changed {
		add(heard, monitor.GPU, text)
	}
	g.at = now
	g.samples.add(now, values[:len(g.samples.head.Columns)])
}

// valuesOf returns the values of a GPU in the order of flight.OfGPU, some from the growth of counters.
func valuesOf(was, now *nvml.Sample, seconds float64) []float32 {
	nvlink := rate(counter(was.NVLink), counter(now.NVLink), seconds)
	pcie := rate(counter(was.PCIe), counter(now.PCIe), seconds)
	slow := flight.Unknown
	for i := range now.Slow {
		if v := rate(counter(was.Slow[i]), counter(now.Slow[i]), seconds); !math.IsNaN(float64(v)) {
			slow = max(v, orZero(slow))
		}
	}
	const perShare = 1e7 // ns a second for one percent of the time
	reached := float32(1)
	if now.State != nil {
		reached = 0
	}
	return []float32{
		value(now.Busy, 1), value(now.Memory, 1), value(now.Power, 1e-3), value(now.Clock, 1), value(now.Margin, 1), value(now.Used, 1.0/(1<<20)),
		nvlink / 1e6, pcie / 1e6, min(100, slow/perShare), min(100, rate(counter(was.Capped), counter(now.Capped), seconds)/perShare),
		value(now.Errors, 1), float32(counter(now.Rows[0]) + counter(now.Rows[1])), reached,
		value(now.SM, 1), value(now.Tensor, 1), value(now.DRAM, 1),
	}
}

func orZero(v float32) float32 {
	if math.IsNaN(float64(v)) {
		return 0
	}
	return v
}

// value returns a reading in another unit, Unknown if it is not known.
func value[T int | uint32 | int64 | uint64 | float64](r nvml.Reading[T], unit float64) float32 {
	if !r.Known {
		return flight.Unknown
	}
	return float32(float64(r.Value) * unit)
}

func counter[T int64 | uint64](r nvml.Reading[T]) float64 {
	if !r.Known {
		return math.NaN()
	}
	return float64(r.Value)
}

// jobWatch lists the jobs on the node, and samples them.
type jobWatch struct {
	w       *worker
	samples recording

	jobs   []jobscan.JobLoad
	known  bool          // the monitor knows the jobs
	listed time.Duration // since the boot
	before map[string]jobscan.JobLoad
	slots  [flight.MaxJobs]string // the job of each
	at     time.Duration
	looked time.Duration // at the states of processes
	states map[string]jobscan.States
}

// These are the times between two looks: at the cgroups of jobs, at all processes of a node without
// such cgroups, and at the states of the processes of a job.
const (
	jobPace     = 5 * time.Second
	processPace = 30 * time.Second
)

func openJobWatch(w *worker) *jobWatch {
	h := &flight.Header{}
	for i := range flight.MaxJobs {
		h.Columns = append(h.Columns, flight.Columns(flight.OfJob, flight.Slot(i))...)
	}
	if !w.serves {
		if err := serveOwners(w); err != nil { // the samples are worth more
			w.note("%v", err)
		} else {
			w.serves = true
		}
	}
	return &jobWatch{w: w, samples: recording{w: w, source: monitor.Jobs, head: h}, before: map[string]jobscan.JobLoad{}, states: map[string]jobscan.States{}}
}

// Close closes the ring.
func (j *jobWatch) Close() { j.samples.Close() }

func (j *jobWatch) wait(l listen) (*wire.Heard, error) {
	for end := time.Now().Add(l.limit); ; {
		now := probe.SinceBoot()
		changed, err := j.list(now)
		if err != nil {
			return nil, err
		}
		if len(j.jobs) > 0 && now-j.at >= leastPace {
			j.sample(now)
		}
		left := time.Until(end)
		if changed || !j.known || left <= 0 {
			j.known = true
			heard := &wire.Heard{Jobs: []string{}}
			for i := range j.jobs {
				heard.Jobs = append(heard.Jobs, j.jobs[i].ID)
			}
			return heard, nil
		}
		pause := jobPace
		if len(j.jobs) > 0 {
			pause = samplePace
		}
		time.Sleep(min(tick(now+pause)-probe.SinceBoot(), left))
	}
}

// list lists the jobs again if it is time.
func (j *jobWatch) list(now time.Duration) (changed bool, err error) {
	if j.listed > 0 && now-j.listed < jobPace-leastPace {
		return false, nil
	}
	all := j.listed == 0 || now/processPace != j.listed/processPace
	jobs, err := jobscan.Jobs(j.w.host, all)
	if err != nil {
		return false, fmt.Errorf("list jobs: %w", err)
	}
	j.listed = now
	if len(jobs) == 0 && !all && len(j.jobs) > 0 && !j.jobs[0].Grouped() { // known by their processes alone
		return false, nil
	}
	same := slices.EqualFunc(jobs, j.jobs, func(a, b jobscan.JobLoad) bool { return a.ID == b.ID })
	j.jobs = jobs
	has := func(id string) bool {
		return slices.ContainsFunc(jobs, func(job jobscan.JobLoad) bool { return job.ID == id })
	}
	for i, id := range j.slots {
		if id != "" && !has(id) {
			j.slots[i] = ""
			delete(j.before, id)
			delete(j.states, id)
		}
	}
	for i := range jobs {
		if !slices.Contains(j.slots[:], jobs[i].ID) {
			if free := slices.Index(j.slots[:], ""); free >= 0 {
				j.slots[free] = jobs[i].ID
			}
		}
	}
	return !same, nil
}

// sample takes a sample of all jobs.
func (j *jobWatch) sample(now time.Duration) {
	look := now-j.looked >= jobPace-leastPace
	if look {
		j.looked = now
	}
	seconds := (now - j.at).Seconds()
	var values []float32
	for _, id := range j.slots {
		at := slices.IndexFunc(j.jobs, func(job jobscan.JobLoad) bool { return job.ID == id })
		if id == "" || at < 0 {
			values = append(values, slices.Repeat([]float32{flight.Unknown}, len(flight.OfJob))...)
			continue
		}
		job := &j.jobs[at]
		job.Read(j.w.host)
		if look {
			j.states[id] = job.States(j.w.host)
		}
		states := j.states[id]
		was, known := j.before[id]
		share := func(was, now float64) float32 { // microseconds a second, in percent
			if !known {
				return flight.Unknown
			}
			return min(100, rate(was, now, seconds)/1e4)
		}
		values = append(values, flight.Number(id), float32(states.Blocked), float32(job.Resident/(1<<20)),
			share(was.CPU, job.CPU), share(was.Memory, job.Memory), share(was.IO, job.IO), float32(job.Killed), float32(states.Stopped), float32(states.Processes))
		j.before[id] = *job
	}
	j.at = now
	j.samples.add(now, values)
}

// portSamples samples RDMA ports.
type portSamples struct {
	recording

	names  []string
	before map[string]rdma.PortLoad
	at     time.Duration
}

// sampledPorts returns the ports that have columns in a ring, sorted. If a node has more, shorter names are first:
// mlx5_2 before mlx5_10, and an adapter before its virtual functions, as rocep1s0 before rocep1s0v3.
func sampledPorts(names []string) []string {
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	names = names[:min(len(names), flight.MaxColumns/len(flight.OfPort))]
	slices.Sort(names)
	return names
}

// sample takes a sample of ports. Other ports than before begin a new ring.
func (p *portSamples) sample(names []string, loads map[string]rdma.PortLoad) {
	if !slices.Equal(names, p.names) {
		p.Close()
		p.names, p.head, p.before, p.at = names, &flight.Header{}, nil, 0
		for _, name := range names {
			p.head.Devices = append(p.head.Devices, flight.Device{Name: name, PCI: loads[name].PCI, Minor: -1})
			p.head.Columns = append(p.head.Columns, flight.Columns(flight.OfPort, name)...)
		}
	}
	now := probe.SinceBoot()
	if now-p.at < leastPace {
		return
	}
	seconds := (now - p.at).Seconds()
	var values []float32
	for _, name := range p.names {
		load, here := loads[name]
		was, known := p.before[name]
		if !here || !known {
			values = append(values, flight.Unknown, flight.Unknown, flight.Unknown, flight.Unknown)
			continue
		}
		up := float32(0)
		if load.Active {
			up = 1
		}
		values = append(values, rate(was.Data, load.Data, seconds)/1e6, rate(was.Wait, load.Wait, seconds), rate(was.Faults, load.Faults, seconds), up)
	}
	p.before, p.at = loads, now
	p.add(now, values)
}
