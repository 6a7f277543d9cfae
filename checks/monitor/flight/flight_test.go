package flight

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// A ring keeps the last 10 minutes by second and the last day by minute, and has a fixed size.
func TestRing(t *testing.T) {
	t.Parallel()
	h := &Header{Boot: "b", More: 4, Columns: Columns([]Name{Power, ID}, "gpu0", "gpu1"), Devices: []Device{{Name: "gpu0", Limit: 700}}}
	path := filepath.Join(t.TempDir(), "ring")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := h.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	r := Record(f, h)
	const days = 2
	const end = 1000 + days*24*3600
	for at := uint32(1000); at <= end; at++ {
		value := float32(at % 60)
		if at%7 == 0 {
			value = Unknown
		}
		if err := r.Add(at, []float32{value, Number("67108863"), 1, Unknown}); err != nil {
			t.Fatal(err)
		}
	}
	if st, _ := f.Stat(); st.Size() > h.Size() {
		t.Errorf("%d bytes, want at most %d", st.Size(), h.Size())
	}
	w := NewWindow(end-Seconds+1, end)
	if err := w.Load(f, "b"); err != nil {
		t.Fatal(err)
	}
	for i, v := range w.Of("gpu0", Power) {
		at := w.From + uint32(i)
		if want := float32(at % 60); at%7 == 0 && known(v) || at%7 != 0 && v != want {
			t.Fatalf("second %d: %v, want %v", at, v, want)
		}
	}
	if id := JobOf(w.Last("gpu0", ID)); id != "67108863" || w.Devices["gpu0"].Limit != 700 || w.Tail(9).More != 4 {
		t.Errorf("job %q, devices %+v, %d more", id, w.Devices, w.More)
	}
	m := NewMinutes(end-23*3600, end-60)
	if err := m.Load(f, "b"); err != nil {
		t.Fatal(err)
	}
	if got := m.Of("gpu0", Power); slices.ContainsFunc(got, func(v float32) bool { return !(v > 25 && v < 35) }) || len(got) < 22*60 {
		t.Errorf("%d minutes: %v", len(got), got[:5])
	}
	if id := JobOf(m.Last("gpu0", ID)); id != "67108863" {
		t.Errorf("job of a minute: %q", id)
	}
	old := NewWindow(end-Seconds-100, end-Seconds) // overwritten
	if err := old.Load(f, "b"); err != nil || slices.ContainsFunc(old.Of("gpu0", Power), known) {
		t.Errorf("overwritten seconds: %v, %v", old.Of("gpu0", Power), err)
	}
	other := NewWindow(end-5, end)
	if err := other.Load(f, "c"); err != nil || other.Of("gpu0", Power) != nil {
		t.Errorf("another boot: %v, %v", other.Of("gpu0", Power), err)
	}
	if err := r.Add(end+1, nil); err == nil {
		t.Error("no error for a record without values")
	}
}

// A job's part of a window has the seconds in which it was on the node, in whichever slot.
func TestDuring(t *testing.T) {
	t.Parallel()
	w := NewWindow(100, 199)
	for at := uint32(110); at < 150; at++ {
		slot := Slot(0)
		if at >= 130 { // its worker has started again
			slot = Slot(1)
		}
		w.Set(slot, ID, at, Number("7"))
		w.Set("gpu0", Power, at, float32(at))
	}
	for at := uint32(150); at < 200; at++ {
		w.Set(Slot(0), ID, at, Number("8"))
	}
	for job, want := range map[string][2]uint32{"7": {110, 149}, "8": {150, 199}} {
		if p := w.During(job); p == nil || p.From != want[0] || p.To != want[1] || p.Len() != int(want[1]-want[0])+1 {
			t.Errorf("job %s: %+v, want %v", job, p, want)
		}
	}
	if w.During("9") != nil || w.During("") != nil {
		t.Error("a job that was not there has a part")
	}
}

// A job that has come back has the time since then, of a node by minute only the minutes in which it alone had a slot.
func TestDuringAgain(t *testing.T) {
	t.Parallel()
	w, day := NewWindow(6000, 6599), NewMinutes(0, 6599)
	for at := uint32(6000); at < 6600; at++ {
		job := "7"
		if at >= 6100 && at < 6200 {
			job = "8" // while the first waits in the queue
		}
		if at < 6400 || at > 6450 { // the worker has started again
			w.Set(Slot(0), ID, at, Number(job))
			w.Set(Slot(0), Resident, at, 100)
		}
	}
	for at := uint32(0); at < 6600; at += 60 {
		day.Set(Slot(0), ID, at, Number(map[bool]string{true: "7", false: "8"}[at < 3000 || at >= 4200]))
	}
	for name, test := range map[string]struct {
		w        *Window
		job      string
		from, to uint32
	}{"seconds": {w, "7", 6200, 6599}, "seconds of the other": {w, "8", 6100, 6199}, "minutes": {day, "7", 4260, 6540}, "minutes of the other": {day, "8", 3060, 4080}} {
		if p := test.w.During(test.job); p == nil || p.From != test.from || p.To != test.to {
			t.Errorf("%s: %+v, want %d to %d", name, p, test.from, test.to)
		}
	}
	if own := w.During("7").Of(jobSlot, Resident); own[0] != 100 || known(own[220]) || w.SlotOf("8") != "" || w.SlotOf("7") != Slot(0) {
		t.Errorf("series of the job: %v, slots %q and %q", own, w.SlotOf("8"), w.SlotOf("7"))
	}
}

// A file of another kind, or a damaged ring, is an error and no panic.
func TestRingGarbage(t *testing.T) {
	t.Parallel()
	good, err := (&Header{Boot: "b", Columns: Columns(OfPort, "p")}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	long := slices.Clone(good)
	for i := range 4 {
		long[len(magic)+i] = 0xff
	}
	for name, data := range map[string][]byte{"empty": nil, "short": good[:100], "zeros": make([]byte, HeaderSize), "a length beyond the end": long} {
		path := filepath.Join(t.TempDir(), "ring")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := NewWindow(1, 2).Load(f, "b"); err == nil {
			t.Errorf("%s: no error", name)
		}
		f.Close()
	}
	if _, err := (&Header{Columns: make([]Column, MaxColumns+1)}).Encode(); err == nil {
		t.Error("no error for too many columns")
	}
}

// Three rings of a node with 8 GPUs and 10 ports have at most 8 MiB.
func TestSize(t *testing.T) {
	t.Parallel()
	total := int64(0)
	for names, n := range map[*[]Name]int{&OfGPU: 8, &OfPort: 10, &OfJob: MaxJobs} {
		h := Header{}
		for i := range n {
			h.Columns = append(h.Columns, Columns(*names, fmt.Sprint(i))...)
		}
		total += h.Size()
		if _, err := h.Encode(); err != nil {
			t.Error(err)
		}
	}
	if total > 8<<20 {
		t.Errorf("%d bytes", total)
	}
	t.Logf("%.1f MiB", float64(total)/(1<<20))
}

// Each threshold has a number and says where it comes from, and no detector needs more than Longest.
func TestThresholds(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, row := range Thresholds() {
		if seen[row.Name] {
			t.Errorf("%s has two rows", row.Name)
		}
		seen[row.Name] = true
		if row.Name == "" || row.Value <= 0 || row.Unit == "" || row.Source == "" {
			t.Errorf("%+v: want a name, a value, a unit and a source", row)
		}
		if row.Unit == "s" && row.Value > Longest {
			t.Errorf("%s: %v s, want at most %d", row.Name, row.Value, Longest)
		}
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	// Of a federation, the six upper bits of a number are the cluster's: 1, 16, 33, 63.
	for _, job := range []string{"1", "16777217", "67108863", "67108865", "1073741825", "2214592513", "4227858433"} {
		if got := JobOf(Number(job)); got != job {
			t.Errorf("%s: %s", job, got)
		}
	}
	if known(Number("x")) || known(Number("99999999999")) || JobOf(Unknown) != "" {
		t.Error("no job is a number")
	}
}

// node is a synthetic node with 8 GPUs of 700 W and 8 ports.
type node struct {
	*Window

	rand *rand.Rand
	gpus []string
}

func newNode(from, to uint32, seed uint64) *node {
	n := &node{Window: NewWindow(from, to), rand: rand.New(rand.NewPCG(seed, 1))}
	for i := range 8 {
		n.gpus = append(n.gpus, fmt.Sprintf("gpu%d", i))
		n.Add(Device{Name: n.gpus[i], Limit: 700})
	}
	for i := range 8 {
		n.Add(Device{Name: port(i)})
	}
	return n
}

func port(i int) string { return fmt.Sprintf("mlx5_%d:1", i) }

// load is what a GPU does in a second, as shares of the most.
type load struct{ busy, power, traffic float64 }

var (
	work = load{0.97, 0.92, 0.6}
	idle = load{0, 0.1, 0}
	spin = load{1, 0.2, 0}
)

// add adds a second: noise of 3 %.
func (n *node) add(t uint32, slot string, job string, of func(gpu int) load, slow, io float64) {
	noise := func(v float64) float32 { return float32(max(0, v*(1+0.03*n.rand.NormFloat64()))) }
	sent := 0.0
	for i, gpu := range n.gpus {
		l := of(i)
		n.Set(gpu, Busy, t, min(100, noise(100*l.busy)))
		if l.busy == 1 {
			n.Set(gpu, Busy, t, 100)
		}
		n.Set(gpu, Memory, t, noise(60*l.traffic))
		n.Set(gpu, Power, t, noise(700*l.power))
		n.Set(gpu, Clock, t, noise(1900-400*l.power))
		n.Set(gpu, NVLink, t, noise(200_000*l.traffic))
		n.Set(gpu, PCIe, t, noise(10_000*l.traffic))
		n.Set(gpu, Slow, t, noise(slow))
		n.Set(gpu, Used, t, 70_000)
		n.Set(gpu, Reached, t, 1)
		sent += l.traffic / 8
	}
	for i := range 8 {
		n.Set(port(i), Data, t, noise(20_000*sent))
		n.Set(port(i), Up, t, 1)
	}
	n.Set(slot, ID, t, Number(job))
	n.Set(slot, StallIO, t, noise(io))
	n.Set(slot, StallMem, t, 0)
	n.Set(slot, Blocked, t, 0)
}

// busyDisk sets the memory in use on all GPUs, while the tasks of the job wait for a disk.
func (n *node) busyDisk(t uint32, used float32) {
	for _, gpu := range n.gpus {
		n.Set(gpu, Used, t, used)
	}
	n.Set(Slot(0), StallIO, t, 98)
	n.Set(Slot(0), Blocked, t, 2)
}

// special are further workloads that no detector may speak of, with values of other devices.
var special = map[string]func(n *node, at uint32){
	"storage adapter": (*node).withStorage,
	"data are copied before and after the work": func(n *node, at uint32) {
		copies := at%1800 < 600
		n.add(at, Slot(0), "7", func(int) load { return map[bool]load{true: idle, false: work}[copies] }, 0.5, 20)
		if copies {
			n.busyDisk(at, 5)
		}
	},
	"a whole node without work for its GPUs": func(n *node, at uint32) {
		n.add(at, Slot(0), "7", func(int) load { return idle }, 0.5, 20)
		n.busyDisk(at, 500) // of a daemon
	},
}

// healthy are workloads that no detector may speak of: the load of a GPU at a second.
var healthy = map[string]func(n *node, t uint32, gpu int) load{
	"steady training": func(*node, uint32, int) load { return work },
	"pipeline parallel with bubbles": func(_ *node, t uint32, gpu int) load { // each stage has its bubble, the last one more work
		if (t+uint32(gpu))%6 == 0 {
			return load{0.4, 0.35, 0.1}
		}
		return load{0.93, 0.7 + 0.02*float64(gpu), 0.4}
	},
	"inference with bursts": func(_ *node, t uint32, gpu int) load { // each GPU a copy of its own
		if int(t/97+uint32(gpu)*3)%5 < 2 {
			return load{0.9, 0.6, 0.002}
		}
		return load{0.02, 0.12, 0}
	},
	"data loading stalls": func(_ *node, t uint32, _ int) load { // 100 s in each 10 minutes
		if t%600 < 100 {
			return idle
		}
		return work
	},
	"checkpoint pauses": func(_ *node, t uint32, gpu int) load { // rank 0 writes while the others wait in a barrier
		if at := t % 1800; at < 55 {
			if gpu == 0 {
				return load{0.05, 0.14, 0.001}
			}
			return spin
		}
		return work
	},
	"long checkpoint pauses": func(_ *node, t uint32, gpu int) load { // the same from one to four minutes, and rank 0 runs no kernel
		if at := t % 900; at < []uint32{60, 240, 75, 90, 120, 180}[t/900%6] {
			if gpu == 0 {
				return idle
			}
			return spin
		}
		return work
	},
	"long checkpoint pauses of another node": func(_ *node, t uint32, _ int) load { // its rank writes, and all GPUs of this node wait
		if at := t % 900; at < []uint32{60, 240, 75, 90, 120, 180}[t/900%6] {
			return spin
		}
		return work
	},
	"suspended": func(n *node, t uint32, _ int) load { // the kernels of the processes that are stopped go on
		if at := t % 900; at < 400 {
			n.Set(Slot(0), Stopped, t, 8)
			n.Set(Slot(0), Processes, t, 10)
			return spin
		}
		n.Set(Slot(0), Stopped, t, 0)
		return work
	},
	"evaluation on one GPU": func(_ *node, t uint32, gpu int) load {
		if at := t % 3600; at < 110 && gpu != 0 {
			return load{0.1, 0.15, 0}
		}
		return work
	},
	"seven of eight GPUs": func(_ *node, _ uint32, gpu int) load { // the eighth is free
		if gpu == 7 {
			return idle
		}
		return work
	},
	"inference on the eighth GPU": func(_ *node, t uint32, gpu int) load { // it fetches new weights from the others every 100 s
		switch {
		case gpu != 7:
			return work
		case t%100 < 5:
			return load{0.3, 0.2, 0.4}
		case t%600 < 200:
			return load{0.7, 0.9, 0}
		}
		return load{0.4, 0.3, 0}
	},
	"power limit": func(_ *node, _ uint32, gpu int) load { return load{0.99, 1 - 0.02*float64(gpu%3), 0.7} },
}

// day judges a workload every 10 s of some hours and returns the codes of all verdicts.
func day(t *testing.T, hours int, jobs []Job, fill func(n *node, t uint32)) map[string]int {
	t.Helper()
	seen := map[string]int{}
	const part = 3600
	for h := range hours {
		from := uint32(1000 + h*part)
		n := newNode(from, from+part+Seconds, uint64(h))
		for at := n.From; at <= n.To; at++ {
			fill(n, at)
		}
		for end := from + Seconds; end < from+Seconds+part; end += 10 {
			for _, v := range Detect(n.Part(end-Seconds+1, end), jobs) {
				if seen[v.Code]++; seen[v.Code] < 4 {
					t.Logf("%d: %+v", end, v)
				}
			}
		}
	}
	return seen
}

// In each healthy workload no detector speaks, and none with several jobs on a node.
func TestHealthy(t *testing.T) {
	t.Parallel()
	testHealthy(t, 2)
}

// The same for 24 hours.
func TestHealthyDay(t *testing.T) {
	tier.All(t)
	t.Parallel()
	testHealthy(t, 24)
}

// A port that has been silent for longer than it was seen to work is still found: since when, and not before.
func TestSilentForLong(t *testing.T) {
	t.Parallel()
	const begin, silent = 2000, 2090
	n := newNode(begin, begin+Seconds-1, 1)
	for at := n.From; at <= n.To; at++ {
		n.add(at, Slot(0), "7", func(int) load { return work }, 0.5, 20)
		if at >= silent {
			n.Set(port(4), Data, at, 0.1)
		}
	}
	for _, passed := range []uint32{70, 200, Seconds - 91} {
		list := Detect(n.Part(begin, silent+passed), []Job{{ID: "7", GPUs: n.gpus, All: true}})
		if len(list) != 1 || list[0].Code != "job.port.silent" || list[0].Since+60 < silent || list[0].Since > silent+60 {
			t.Errorf("after %d s: %+v", passed, list)
		}
	}
}

const storage = "mlx5_8:1"

// withStorage adds a second of a job that loads data through an adapter of its own for three minutes, and then trains.
func (n *node) withStorage(at uint32) {
	if n.Of(storage, Data) == nil {
		n.Add(Device{Name: storage})
	}
	of, loaded := work, float32(1)
	if at%1500 < 180 {
		of, loaded = load{0.1, 0.15, 0}, float32(9000+200*n.rand.NormFloat64())
	}
	n.add(at, Slot(0), "7", func(int) load { return of }, 0.5, 20)
	n.Set(storage, Data, at, loaded)
}

// A rail that fails beside an adapter for storage is found.
func TestSilentBesideStorage(t *testing.T) {
	t.Parallel()
	const begin, silent = 1500, 2000 // it loads data until 1680
	n := newNode(begin, silent+70, 1)
	for at := n.From; at <= n.To; at++ {
		if n.withStorage(at); at >= silent {
			n.Set(port(4), Data, at, 0.1)
		}
	}
	list := Detect(n.Window, []Job{{ID: "7", GPUs: n.gpus, All: true}})
	if len(list) != 1 || list[0].Code != "job.port.silent" || !slices.Equal(list[0].Devices, []string{port(4)}) {
		t.Errorf("%+v", list)
	}
}

// A job that has just begun is judged by its own time alone, and not by that of the jobs before it.
func TestBegin(t *testing.T) {
	t.Parallel()
	const begin = 2000
	working := func(int) load { return work }
	for name, test := range map[string]struct {
		gpus          int // of the job
		before, after func(gpu int) load
		change        func(n *node, at uint32)
		until         uint32 // seconds after the begin
	}{
		"a GPU was free": {4, func(gpu int) load {
			if gpu == 0 {
				return idle
			}
			return work
		}, working, nil, 200},
		"a GPU was slow": {4, working, working, func(n *node, at uint32) {
			if at < begin {
				n.Set("gpu0", Slow, at, 45)
				n.Set("gpu1", Clock, at, 900)
			}
		}, 200},
		"all GPUs waited": {8, func(int) load { return spin }, func(int) load { return spin }, nil, 59},
		"one GPU was idle, the others waited": {8, func(gpu int) load {
			if gpu == 0 {
				return idle
			}
			return spin
		}, func(gpu int) load {
			if gpu == 0 {
				return idle
			}
			return spin
		}, nil, 200},
		"tasks waited for a disk": {8, func(int) load { return idle }, func(int) load { return idle }, func(n *node, at uint32) { n.Set(Slot(0), StallIO, at, 99) }, 119},
		"all ports carried data": {8, working, working, func(n *node, at uint32) {
			n.Set(port(4), Data, at, map[bool]float32{true: 20_000, false: 0}[at < begin])
		}, 200},
	} {
		n := newNode(begin-Seconds, begin+200, 1)
		jobs := []Job{{ID: "8", GPUs: n.gpus[:test.gpus], All: test.gpus == 8, OneNode: true}}
		for at := n.From; at <= n.To; at++ {
			of, id := test.before, "7"
			if at >= begin {
				of, id = test.after, "8"
			}
			n.add(at, Slot(0), id, of, 0.5, 20)
			n.Set("gpu7", Used, at, 0)
			n.Set("gpu6", Used, at, 0)
			n.Set("gpu5", Used, at, 0)
			n.Set("gpu4", Used, at, 0)
			if test.change != nil {
				test.change(n, at)
			}
		}
		for end := uint32(begin); end < begin+test.until; end++ {
			if list := Detect(n.Part(end-Seconds+1, end), jobs); len(list) > 0 {
				t.Errorf("%s: after %d s: %+v", name, end-begin, list)
				break
			}
		}
	}
}

// The memory of a job that has just ended is not left over before it had a minute to be freed.
func TestLeftAfterJob(t *testing.T) {
	t.Parallel()
	const ended = 2000
	n := newNode(ended-Seconds, ended+100, 1)
	jobs := []Job{{ID: "8", GPUs: n.gpus[:4]}}
	for at := n.From; at <= n.To; at++ {
		n.add(at, Slot(0), "8", func(int) load { return work }, 0.5, 20)
		if at < ended {
			n.Set(Slot(1), ID, at, Number("7"))
		}
	}
	for passed, want := range map[uint32]int{5: 0, 50: 0, 80: 4} {
		if list := Detect(n.Part(ended+passed-Seconds+1, ended+passed), jobs); len(list) != want {
			t.Errorf("%d s after the end of the job: %+v, want %d findings", passed, list, want)
		}
	}
}

// With as many jobs as slots there may be one more, whose GPUs are unknown.
func TestLeftManyJobs(t *testing.T) {
	t.Parallel()
	for count, want := range map[int]int{MaxJobs: 0, MaxJobs - 1: 1} {
		n := newNode(1000, 1000+Seconds-1, 1)
		var jobs []Job
		for i := range count {
			jobs = append(jobs, Job{ID: fmt.Sprint(100 + i), GPUs: []string{}})
		}
		jobs[0].GPUs = n.gpus[:7]
		for at := n.From; at <= n.To; at++ {
			n.add(at, Slot(0), "100", func(int) load { return work }, 0.5, 20)
			for i := range count {
				n.Set(Slot(i), ID, at, Number(jobs[i].ID))
			}
		}
		if list := Detect(n.Window, jobs); len(list) != want {
			t.Errorf("%d jobs: %+v, want %d findings", count, list, want)
		}
	}
}

func testHealthy(t *testing.T, hours int) {
	t.Helper()
	all := []Job{{ID: "7", GPUs: newNode(1, 1, 0).gpus, All: true, OneNode: true}}
	for name, of := range healthy {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := slices.Clone(all)
			all[0].OneNode = !strings.Contains(name, "another node")
			if seen := day(t, hours, all, func(n *node, at uint32) {
				n.add(at, Slot(0), "7", func(gpu int) load { return of(n, at, gpu) }, 0.5, 20)
			}); len(seen) > 0 {
				t.Errorf("%v", seen)
			}
		})
	}
	for name, fill := range special {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if seen := day(t, hours, all, fill); len(seen) > 0 {
				t.Errorf("%v", seen)
			}
		})
	}
	t.Run("several jobs on a node", func(t *testing.T) {
		t.Parallel()
		gpus := all[0].GPUs
		jobs := []Job{{ID: "7", GPUs: gpus[:4]}, {ID: "8", GPUs: gpus[4:6]}, {ID: "9", GPUs: gpus[6:]}}
		if seen := day(t, hours, jobs, func(n *node, at uint32) {
			n.add(at, Slot(0), "7", func(gpu int) load {
				switch {
				case gpu < 4:
					return work
				case gpu < 6:
					return healthy["inference with bursts"](n, at, gpu)
				}
				return load{0.3, 0.3, 0.01}
			}, 0.5, 20)
			n.Set(Slot(1), ID, at, Number("8"))
			n.Set(Slot(2), ID, at, Number("9"))
		}); len(seen) > 0 {
			t.Errorf("%v", seen)
		}
	})
}

// Each fault is found, with the device that is the cause, and nothing else is.
func TestFaults(t *testing.T) {
	t.Parallel()
	gpus := newNode(1, 1, 0).gpus
	all := []Job{{ID: "7", GPUs: gpus, All: true, OneNode: true}}
	many := []Job{{ID: "7", GPUs: gpus, All: true}}
	const begin = 2000 // of the fault
	for name, test := range map[string]struct {
		code   string
		device []string
		within uint32
		of     func(gpu int) load
		change func(n *node, at uint32)
	}{
		"hang":                  {"job.hang", gpus, 60, func(int) load { return spin }, nil},
		"hang on several nodes": {"job.hang", gpus, 300, func(int) load { return spin }, nil},
		"hang of all but one, whose process died": {"job.hang", gpus[3:4], 300, func(gpu int) load {
			if gpu == 3 {
				return idle
			}
			return spin
		}, nil},
		"straggler": {"job.straggler", gpus[5:6], 120, func(gpu int) load {
			if gpu == 5 {
				return load{0.6, 0.5, 0.3}
			}
			return work
		}, nil},
		"low clock":   {"job.straggler", gpus[2:3], 120, nil, func(n *node, at uint32) { n.Set("gpu2", Clock, at, 900) }},
		"throttled":   {"job.throttle", gpus[6:7], 60, nil, func(n *node, at uint32) { n.Set("gpu6", Slow, at, 45) }},
		"silent port": {"job.port.silent", []string{port(4)}, 60, nil, func(n *node, at uint32) { n.Set(port(4), Data, at, 0.1) }},
		"slow port":   {"job.port.slow", []string{port(1)}, 60, nil, func(n *node, at uint32) { n.Set(port(1), Data, at, 4000) }},
		"file system": {"job.stall", nil, 120, func(int) load { return idle }, func(n *node, at uint32) { n.Set(Slot(0), StallIO, at, 98) }},
		"memory":      {"job.stall", nil, 120, func(int) load { return idle }, func(n *node, at uint32) { n.Set(Slot(0), StallMem, at, 90) }},
		"blocked":     {"job.stall", nil, 120, func(int) load { return idle }, func(n *node, at uint32) { n.Set(Slot(0), Blocked, at, 3) }},
		"lost GPU": {"job.gpu.lost", gpus[7:8], 1, nil, func(n *node, at uint32) {
			for _, name := range OfGPU {
				n.Set("gpu7", name, at, Unknown)
			}
			n.Set("gpu7", Reached, at, 0)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(begin-Seconds, begin+Longest+10, 1)
			for at := n.From; at <= n.To; at++ {
				of := test.of
				if at < begin || of == nil {
					of = func(int) load { return work }
				}
				n.add(at, Slot(0), "7", of, 0.5, 20)
				if at >= begin && test.change != nil {
					test.change(n, at)
				}
			}
			found := uint32(0)
			for end := uint32(begin - 1); end <= begin+Longest+10; end++ {
				list := Detect(n.Part(end-Seconds+1, end), map[bool][]Job{true: many, false: all}[strings.Contains(name, "several nodes")])
				for _, v := range list {
					if v.Code != test.code || test.device != nil && !slices.Equal(v.Devices, test.device) || v.Job != "7" || v.Message == "" || v.Want == "" || v.Got == "" {
						t.Fatalf("after %d s: %+v, want %s of %v", end-begin, v, test.code, test.device)
					}
				}
				if len(list) > 0 && found == 0 {
					found = end
				}
			}
			if took := found - begin; found == 0 || took > test.within+5 {
				t.Errorf("found after %d s, want %d", int32(took), test.within)
			} else {
				t.Logf("found after %d s", took)
			}
		})
	}
	n := newNode(begin-Seconds, begin, 1)
	for at := n.From; at <= n.To; at++ {
		n.add(at, Slot(0), "7", func(int) load { return work }, 0.5, 20)
	}
	list := Detect(n.Window, []Job{{ID: "7", GPUs: gpus[:7]}})
	if len(list) != 1 || list[0].Code != "job.memory.left" || !slices.Equal(list[0].Devices, gpus[7:]) {
		t.Errorf("memory of no job: %+v", list)
	}
	for at := n.From; at <= n.To; at++ {
		n.add(at, Slot(0), "7", func(int) load { return spin }, 0.5, 20)
		n.Set(Slot(1), ID, at, Number("8"))
		n.Set(Slot(2), ID, at, Number("9"))
	}
	if list := Detect(n.Window, []Job{{ID: "7", GPUs: gpus[:1]}, {ID: "8", GPUs: gpus[1:2]}, {ID: "9", GPUs: gpus[2:], OneNode: true}}); len(list) != 1 || list[0].Job != "9" {
		t.Errorf("single GPUs with small kernels: %+v", list)
	}
	if list := Detect(n.Window, []Job{{ID: "7"}}); len(list) != 0 {
		t.Errorf("a job whose GPUs are unknown: %+v", list)
	}
}

// A job without a record may have no GPU: it is no stall unless one of them was busy in its time. Nor is one whose
// processes are frozen, which the kernel shows as blocked.
func TestNoStall(t *testing.T) {
	t.Parallel()
	const begin = 2000
	for name, test := range map[string]struct {
		guess   bool
		before  load
		stopped float32 // of 8 processes
		want    int
	}{
		"a job with GPUs":              {false, idle, 0, 1},
		"a guess, and they were busy":  {true, work, 0, 1},
		"a guess, and they never were": {true, idle, 0, 0},
		"frozen":                       {false, work, 8, 0},
		"one process is stopped":       {false, work, 1, 1},
	} {
		n := newNode(begin-200, begin+200, 1)
		for at := n.From; at <= n.To; at++ {
			of := test.before
			if at >= begin {
				of = idle
			}
			n.add(at, Slot(0), "7", func(int) load { return of }, 0, 95)
			n.Set(Slot(0), Blocked, at, 3)
			n.Set(Slot(0), Stopped, at, test.stopped)
			n.Set(Slot(0), Processes, at, 8)
		}
		if list := Detect(n.Window, []Job{{ID: "7", GPUs: n.gpus, All: true, Guess: test.guess}}); len(list) != test.want {
			t.Errorf("%s: %+v, want %d findings", name, list, test.want)
		}
	}
}

// A job is not judged for a hang while most of its processes are stopped, or some of its GPUs have no samples. A few
// processes that are stopped change nothing.
func TestUnjudged(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stopped, processes float32
		partial            bool
		want               string
	}{
		"a shell is stopped": {1, 20, false, ""},
		"suspended":          {12, 20, false, "most of its processes are stopped"},
		"many GPUs":          {0, 20, true, "some of its GPUs have no samples"},
	} {
		n := newNode(1000, 1000+Seconds-1, 1)
		for at := n.From; at <= n.To; at++ {
			n.add(at, Slot(0), "7", func(int) load { return spin }, 0, 0)
			n.Set(Slot(0), Stopped, at, test.stopped)
			n.Set(Slot(0), Processes, at, test.processes)
		}
		job := Job{ID: "7", GPUs: n.gpus, All: true, OneNode: true, Partial: test.partial}
		if why := Unjudged(n.Window, job); why != test.want {
			t.Errorf("%s: %q, want %q", name, why, test.want)
		}
		if list := Detect(n.Window, []Job{job}); (len(list) == 0) != (test.want != "") {
			t.Errorf("%s: %+v", name, list)
		}
	}
}

// Without samples, or with few, no detector speaks.
func TestUnknown(t *testing.T) {
	t.Parallel()
	gpus := newNode(1, 1, 0).gpus
	jobs := []Job{{ID: "7", GPUs: gpus, All: true}, {ID: "8", GPUs: []string{}}, {ID: ""}}
	if list := Detect(newNode(1, Seconds, 0).Window, jobs); len(list) != 0 {
		t.Errorf("no samples: %+v", list)
	}
	n := newNode(1, Seconds, 0)
	for at := n.From; at <= n.To; at += 20 {
		n.add(at, Slot(0), "7", func(int) load { return spin }, 50, 99)
	}
	if list := Detect(n.Window, jobs); len(list) != 0 {
		t.Errorf("a sample every 20 s: %+v", list)
	}
	short := newNode(1, 30, 0)
	for at := short.From; at <= short.To; at++ {
		short.add(at, Slot(0), "7", func(int) load { return spin }, 50, 99)
	}
	if list := Detect(short.Window, jobs); len(list) != 0 {
		t.Errorf("30 s: %+v", list)
	}
	if v := mean([]float32{Unknown, float32(math.Inf(1))}); !math.IsInf(float64(v), 1) {
		t.Errorf("mean %v", v)
	}
}

// A table has a line for each device, and no column for a series without samples.
func TestTable(t *testing.T) {
	t.Parallel()
	n := newNode(1, 60, 1)
	for at := n.From; at <= n.To; at++ {
		n.add(at, Slot(0), "7", func(int) load { return work }, 0, 20)
		n.Set("gpu2", Power, at, Unknown)
	}
	text := n.Table(Job{ID: "7", GPUs: n.gpus})
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if len(lines) != 9+9+2 || strings.Contains(text, string(Margin)) || !strings.HasPrefix(lines[1], "gpu0 ") || !strings.Contains(lines[3], " - ") || !strings.HasPrefix(lines[19], "7 ") {
		t.Errorf("%d lines:\n%s", len(lines), text)
	}
	if text := NewWindow(1, 60).Table(Job{ID: "8"}); text != "" {
		t.Errorf("no samples: %q", text)
	}
}

// A part of a part has the values of the window, and the series of one job are not those of another.
func TestPart(t *testing.T) {
	t.Parallel()
	w := NewWindow(100, 399)
	for at := w.From; at <= w.To; at++ {
		for i, job := range []string{"7", "8"} {
			w.Set(Slot(i), ID, at, Number(job))
			w.Set(Slot(i), Blocked, at, float32(at)+1000*float32(i))
		}
	}
	for i, job := range []string{"7", "8"} {
		p := w.During(job).Part(150, 300).Part(200, 210)
		for series, values := range map[string][]float32{"its own": p.Of(jobSlot, Blocked), "its slot's": p.Of(Slot(i), Blocked)} {
			if len(values) != 11 || values[0] != 200+1000*float32(i) || values[10] != 210+1000*float32(i) {
				t.Errorf("job %s, %s: %v", job, series, values)
			}
		}
	}
	if w.Of(jobSlot, Blocked) != nil || w.Part(200, 210).Of("gpu9", Power) != nil {
		t.Error("a series without samples")
	}
	for _, at := range []uint32{w.From, 200} { // a part without a second, before a time
		if values := w.Part(w.From, at-1).Of(Slot(0), Blocked); len(values) != int(at-w.From) {
			t.Errorf("before %d: %d values", at, len(values))
		}
	}
	part := w.Part(200, 399)
	for at := uint32(390); at <= w.To; at++ {
		for i := range 2 {
			w.Set(Slot(i), ID, at, Unknown)
			w.Set(Slot(i), Blocked, at, Unknown)
		}
	}
	if known := part.Known(60); known.From != 200 || known.To != 389 {
		t.Errorf("known from %d to %d, want from 200 to 389", known.From, known.To)
	}
}
