package flight

import (
	"math"
	"slices"
	"strconv"
)

// Name names a series of samples.
type Name string

// The series of a GPU.
const (
	Busy    Name = "busy"    // share of the second in which a kernel ran, %
	Memory  Name = "memory"  // share in which its memory was read or written, %
	Power   Name = "power"   // W
	Clock   Name = "clock"   // of the multiprocessors, MHz
	Margin  Name = "margin"  // degrees below the limit at which it slows down
	Used    Name = "used"    // memory in use, MiB
	NVLink  Name = "nvlink"  // both directions, MB/s
	PCIe    Name = "pcie"    // both directions, MB/s
	Slow    Name = "slow"    // share of the second in which heat or the power supply lowered the clocks, %
	Capped  Name = "capped"  // share in which the power limit lowered them, %
	Errors  Name = "errors"  // corrected and uncorrected errors of the memory since the driver was loaded
	Rows    Name = "rows"    // remapped rows
	Reached Name = "reached" // 1 if NVML returned values, 0 if it says that the GPU is lost or needs a repair

	// Hopper and newer, %.
	SM     Name = "sm"     // share of the time in which a multiprocessor worked, mean of all
	Tensor Name = "tensor" // share in which tensor cores worked
	DRAM   Name = "dram"   // share of the bandwidth of the memory
)

// The series of an RDMA port.
const (
	Data   Name = "data"   // both directions, MB/s
	Wait   Name = "wait"   // ticks a second in which it had data and could not send
	Faults Name = "faults" // errors a second, of all counters of errors
	Up     Name = "up"     // 1 if its state is ACTIVE
)

// The series of a job. The first MaxJobs on the node have some, each in its [Slot].
const (
	ID       Name = "id"       // of the job, see Number
	Blocked  Name = "blocked"  // processes in uninterruptible sleep (D)
	Resident Name = "resident" // memory, MiB
	StallCPU Name = "cpu"      // share of the second in which a task waited for a CPU, %
	StallMem Name = "mem"      // for memory
	StallIO  Name = "io"       // for a disk or file system
	Killed   Name = "killed"   // processes that the kernel has ended for want of memory
	Stopped  Name = "stopped"  // processes that are stopped or frozen

	Processes Name = "processes" // without those of Slurm
)

// The series of each kind of device.
var (
	OfGPU  = []Name{Busy, Memory, Power, Clock, Margin, Used, NVLink, PCIe, Slow, Capped, Errors, Rows, Reached, SM, Tensor, DRAM}
	OfPort = []Name{Data, Wait, Faults, Up}
	OfJob  = []Name{ID, Blocked, Resident, StallCPU, StallMem, StallIO, Killed, Stopped, Processes}
)

// MaxJobs is the number of jobs on a node that have series.
const MaxJobs = 16

// Slot returns the device of a job's series.
func Slot(i int) string { return "slot" + strconv.Itoa(i) }

// Columns returns the columns of devices with the same series.
func Columns(names []Name, devices ...string) (list []Column) {
	for _, d := range devices {
		for _, n := range names {
			list = append(list, Column{d, n})
		}
	}
	return list
}

// Unknown is a value that could not be read.
var Unknown = float32(math.NaN())

func known(v float32) bool { return v == v } //nolint:gocritic // NaN

// Number returns the number of a job as a value of the series ID: its bits, because a float32 has
// exact numbers up to 16 million only. It is Unknown for none, and for a number whose bits are a NaN: those above
// 58 million of the clusters 31 and 63 of a federation.
func Number(job string) float32 {
	n, err := strconv.ParseUint(job, 10, 32)
	if err != nil {
		return Unknown
	}
	return math.Float32frombits(uint32(n))
}

// JobOf returns the job of a value of the series ID, "" for none.
func JobOf(v float32) string {
	if !known(v) {
		return ""
	}
	return strconv.FormatUint(uint64(math.Float32bits(v)), 10)
}

// SlotOf returns the device with the series of a job, "" if the job was not on the node when jobs were last sampled:
// a job that has ended has its slot and its GPUs no more.
func (w *Window) SlotOf(job string) string {
	at := w.lastSampled()
	for i := range MaxJobs {
		if values := w.Of(Slot(i), ID); at >= 0 && values != nil && job != "" && JobOf(values[at]) == job {
			return Slot(i)
		}
	}
	return ""
}

// lastSampled returns the position of the last sample of jobs, -1 for none.
func (w *Window) lastSampled() int {
	last := -1
	for i := range MaxJobs {
		values := w.Of(Slot(i), ID)
		for at := len(values) - 1; at > last; at-- {
			if known(values[at]) {
				last = at
			}
		}
	}
	return last
}

// absent is the time without samples of a job, seconds, after which the job counts as gone. If its number comes
// back, it was requeued and may have other GPUs. By default Slurm keeps a requeued job from starting for 120 s
// (slurm.conf: requeue_delay, or else cred_expire); for a shorter delay the record of the prolog says since when.
const absent = 60

// During returns the part of a window since a job came to the node, as long as it was there; nil if it was not.
// Its device jobSlot has the job's own series, whichever slots the job had. A minute in which the job came or left
// is not in it: its mean is that of other jobs, too.
func (w *Window) During(job string) *Window {
	slots := make([]string, w.Len()) // of the job, by time
	number := Number(job)
	for i := range MaxJobs {
		slot := Slot(i)
		for at, v := range w.Of(slot, ID) {
			if known(v) && math.Float32bits(v) == math.Float32bits(number) {
				slots[at] = slot
			}
		}
	}
	last := len(slots) - 1
	for last >= 0 && slots[last] == "" {
		last--
	}
	first := last
	for at := last; at >= 0 && uint32(first-at)*w.Step <= absent; at-- {
		if slots[at] != "" {
			first = at
		}
	}
	if w.Step > 1 {
		first++
		if last < w.lastSampled() {
			last--
		}
	}
	if last < 0 || first > last {
		return nil
	}
	p := w.Part(w.From+uint32(first)*w.Step, w.From+uint32(last)*w.Step)
	for _, name := range OfJob {
		values := p.track(Column{jobSlot, name})
		of, now := []float32(nil), ""
		for i, slot := range slots[first : last+1] {
			if slot != now {
				of, now = w.Of(slot, name), slot
			}
			if of != nil {
				values[i] = of[first+i]
			}
		}
	}
	return p
}

// of returns the part of a window in which a job had its GPUs, nil for none: since its last prolog. A job whose GPUs
// are a guess has had them since the last other job was seen.
func (w *Window) of(job Job) *Window {
	p := w.During(job.ID)
	if p != nil {
		p = p.after(job.Since)
	}
	if p == nil || !job.Guess {
		return p
	}
	first := 0
	for i := range MaxJobs {
		for at, v := range p.Of(Slot(i), ID) {
			if known(v) && JobOf(v) != job.ID {
				first = max(first, at+1)
			}
		}
	}
	return p.after(p.From + uint32(first)*p.Step)
}

// after returns the part of a window that begins at a time or later, nil if there is none.
func (w *Window) after(begin uint32) *Window {
	begin = max(w.From, (begin+w.Step-1)/w.Step*w.Step)
	if begin > w.To {
		return nil
	}
	return w.Part(begin, w.To)
}

// JobIDs lists the jobs in a window, in the order of their slots.
func (w *Window) JobIDs() (list []string) {
	for i := range MaxJobs {
		for _, v := range w.Of(Slot(i), ID) {
			if id := JobOf(v); id != "" && !slices.Contains(list, id) {
				list = append(list, id)
			}
		}
	}
	return list
}

// stays lists which jobs had the slots, and when.
func (w *Window) stays() (list []Stay) {
	for i := range MaxJobs {
		last := ""
		for at, v := range w.Of(Slot(i), ID) {
			now := w.From + uint32(at)*w.Step
			if id := JobOf(v); id == "" {
				last = ""
			} else if id != last {
				list, last = append(list, Stay{id, Slot(i), now, now}), id
			} else {
				list[len(list)-1].To = now
			}
		}
	}
	return list
}

// mean returns the mean of the known values, Unknown if too few are known.
func mean(values []float32) float32 {
	v, count := average(values)
	if float64(count) < enough*float64(len(values)) {
		return Unknown
	}
	return v
}

// typical returns the mean of the known values, however few they are.
func typical(values []float32) float32 {
	v, _ := average(values)
	return v
}

// average returns the mean of the known values, Unknown for none, and their number.
func average(values []float32) (v float32, count int) {
	total := 0.0
	for _, v := range values {
		if known(v) {
			total, count = total+float64(v), count+1
		}
	}
	if count == 0 {
		return Unknown, 0
	}
	return float32(total / float64(count)), count
}

// median returns the median of known values, Unknown for none.
func median(values []float32) float32 {
	list := slices.DeleteFunc(slices.Clone(values), func(v float32) bool { return !known(v) })
	if len(list) == 0 {
		return Unknown
	}
	slices.Sort(list)
	return list[len(list)/2]
}
