package jobs

import (
	"fmt"
	"maps"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
)

// bytesFile is a file in memory.
type bytesFile []byte

func (m *bytesFile) WriteAt(p []byte, at int64) (int, error) {
	if need := int(at) + len(p); need > len(*m) {
		*m = append(*m, make([]byte, need-len(*m))...)
	}
	return copy((*m)[at:], p), nil
}

// sampledUntil is the uptime of the node.
const sampledUntil = 5000

// sampled returns a node that has run a job for 10 minutes, in a healthy way: change sets the values of a second,
// by device and series.
func sampled(name string, change func(t uint32, set func(device string, series flight.Name, v float32)), want ...checks.Finding) checktest.Scenario {
	rings := map[string]*flight.Header{monitor.GPUs: {}, monitor.Ports: {}, monitor.Jobs: {}}
	for i := range 8 {
		gpu := flight.Device{Name: fmt.Sprintf("gpu%d", i), PCI: fmt.Sprintf("0000:1%d:00.0", i), UUID: fmt.Sprintf("GPU-%d", i), Minor: i, Limit: 700}
		port := flight.Device{Name: fmt.Sprintf("mlx5_%d:1", i), PCI: fmt.Sprintf("0000:2%d:00.0", i), Minor: -1}
		rings[monitor.GPUs].Devices = append(rings[monitor.GPUs].Devices, gpu)
		rings[monitor.Ports].Devices = append(rings[monitor.Ports].Devices, port)
		rings[monitor.GPUs].Columns = append(rings[monitor.GPUs].Columns, flight.Columns(flight.OfGPU, gpu.Name)...)
		rings[monitor.Ports].Columns = append(rings[monitor.Ports].Columns, flight.Columns(flight.OfPort, port.Name)...)
		rings[monitor.Jobs].Columns = append(rings[monitor.Jobs].Columns, flight.Columns(flight.OfJob, flight.Slot(i))...)
	}
	s := checktest.Scenario{Name: name, Want: want, UnitOnly: true, Past: "/past", Files: map[string]string{
		"proc/uptime": fmt.Sprintf("%d.37 100.00\n", sampledUntil), "proc/sys/kernel/random/boot_id": "boot-1\n", "past/x": "",
	}}
	healthy := map[flight.Name]float32{
		flight.Busy: 97, flight.Memory: 40, flight.Power: 600, flight.Clock: 1600, flight.Margin: 20, flight.Used: 70_000, flight.NVLink: 100_000, flight.PCIe: 5000,
		flight.Slow: 0, flight.Capped: 0, flight.Errors: 0, flight.Rows: 0, flight.Reached: 1, flight.Data: 20_000, flight.Wait: 0, flight.Faults: 0, flight.Up: 1,
		flight.Blocked: 0, flight.StallIO: 5, flight.StallMem: 0,
	}
	for source, h := range rings {
		h.Boot = "boot-1"
		head, err := h.Encode()
		if err != nil {
			panic(err)
		}
		file := bytesFile(head)
		r := flight.Record(&file, h)
		for at := uint32(sampledUntil - 599); at <= sampledUntil; at++ {
			values := make([]float32, len(h.Columns))
			for i, c := range h.Columns {
				v, ok := healthy[c.Name]
				if values[i] = v; !ok || c.Device[:4] == "slot" && c.Device != "slot0" {
					values[i] = flight.Unknown
				}
				if c == (flight.Column{Device: "slot0", Name: flight.ID}) {
					values[i] = flight.Number("7")
				}
			}
			if change != nil {
				change(at, func(device string, series flight.Name, v float32) {
					for i, c := range h.Columns {
						if c.Device == device && c.Name == series {
							values[i] = v
						}
					}
				})
			}
			if err := r.Add(at, values); err != nil {
				panic(err)
			}
		}
		s.Files["state/"+flight.File(source)] = string(file[:min(len(file), int(flight.HeaderSize+flight.Seconds*(8+4*len(h.Columns))))])
	}
	return s
}

// oneNode is the record of a job that has one node, all of it.
const oneNode = `{"version":1,"job":"7","node":"gpu01","whole":true,"one_node":true,"first_node":"gpu01"}`

func TestJobHealth(t *testing.T) { checktest.Run(t, "check_job_health") }

var _ = checktest.Table("check_job_health", func(name string) []checktest.Scenario {
	type set = func(device string, series flight.Name, v float32)
	const late, earlier = sampledUntil - 130, sampledUntil - 330
	gpu3 := checks.Device{Kind: "gpu", Name: "gpu3", PCI: "0000:13:00.0", UUID: "GPU-3"}
	port3 := checks.Device{Kind: "port", Name: "mlx5_3:1", PCI: "0000:23:00.0"}
	finding := func(code string, d checks.Device, want, got, text string) checks.Finding {
		f := checks.Finding{Code: code, Severity: checks.Fail, Want: want, Got: got, Device: d, Jobs: "7"}
		return f.Describe(name, "job 7: %s", text)
	}
	each := func(change func(i int, gpu string, set set)) func(uint32, set) {
		return func(t uint32, set set) {
			for i := range 8 {
				if t > late {
					change(i, fmt.Sprintf("gpu%d", i), set)
				}
			}
		}
	}
	waiting := func(since uint32, spin, idle func(gpu string, set set)) func(uint32, set) {
		return func(t uint32, set set) {
			for i := range 8 {
				if gpu := fmt.Sprintf("gpu%d", i); t > since && i == 3 {
					idle(gpu, set)
				} else if t > since {
					spin(gpu, set)
				}
			}
		}
	}
	spin := func(gpu string, set set) {
		set(gpu, flight.Busy, 100)
		set(gpu, flight.Power, 120)
		set(gpu, flight.Memory, 0)
		set(gpu, flight.NVLink, 0)
		set(gpu, flight.PCIe, 1)
	}
	idle := func(gpu string, set set) {
		set(gpu, flight.Busy, 0)
		set(gpu, flight.Power, 70)
		set(gpu, flight.NVLink, 0)
	}
	one := func(device string, values map[flight.Name]float32) func(uint32, set) {
		return func(t uint32, set set) {
			for series, v := range values {
				if t > late {
					set(device, series, v)
				}
			}
		}
	}
	with := func(s checktest.Scenario, files map[string]string) checktest.Scenario {
		maps.Copy(s.Files, files)
		return s
	}
	without := func(s checktest.Scenario, broken bool, files ...string) checktest.Scenario {
		s.Broken = broken
		return s.Lacking(files...)
	}
	noJobs := sampled("the job has ended", func(t uint32, set set) {
		if t > sampledUntil-40 {
			set("slot0", flight.ID, flight.Unknown)
		}
		spin("gpu3", set)
	})
	left := sampled("memory of no job", nil, func() checks.Finding {
		f := checks.Finding{Code: "job.memory.left", Severity: checks.Fail, Want: "less than 1024 MiB", Got: "70000 MiB", Device: gpu3}
		return f.Describe(name, "memory is in use, and no job has this GPU")
	}())
	var others []string
	for i := range 8 {
		if i != 3 {
			others = append(others, fmt.Sprintf(`{"index":%d,"minor":%d,"pci":"0000:1%d:00.0"}`, i, i, i))
		}
	}
	hangs := func(name string, change func(uint32, set), want ...checks.Finding) checktest.Scenario {
		return with(sampled(name, change, want...), map[string]string{"past/job-7.json": oneNode})
	}
	seven := fmt.Sprintf(`{"version":1,"job":"7","gpus":[%s]}`, join(others))
	return []checktest.Scenario{
		sampled("a healthy job", nil),
		sampled("a checkpoint, maybe on another node", each(func(_ int, gpu string, set set) { spin(gpu, set) })),
		hangs("a hang", each(func(_ int, gpu string, set set) { spin(gpu, set) }),
			finding("job.hang", checks.Device{}, "power and traffic of a working GPU", "busy 100 %, 120 W, no traffic", "all 8 GPUs have waited for 129 s: their kernels neither compute nor send data")),
		hangs("a suspended job", each(func(_ int, gpu string, set set) {
			spin(gpu, set)
			set("slot0", flight.Stopped, 9)
			set("slot0", flight.Processes, 10)
		})),
		sampled("all wait for one", waiting(earlier, spin, idle),
			finding("job.hang", gpu3, "a kernel", "none", "7 GPUs have waited for 329 s, and this one runs no kernel: they wait for it, or all for a request")),
		sampled("all wait for a checkpoint", waiting(late, spin, idle)),
		sampled("a pause of all", each(func(_ int, gpu string, set set) { idle(gpu, set) })),
		sampled("a straggler", one("gpu3", map[flight.Name]float32{flight.Power: 300, flight.Busy: 60, flight.NVLink: 50_000}),
			finding("job.straggler", gpu3, "at least 600 W, as the others", "300 W, busy 60 %", "this GPU lags behind the other GPUs of the job in power, activity and traffic")),
		sampled("a GPU without work of the job", one("gpu3", map[flight.Name]float32{flight.Power: 70, flight.Busy: 0, flight.NVLink: 0, flight.PCIe: 0})),
		sampled("heat", one("gpu3", map[flight.Name]float32{flight.Slow: 40}),
			finding("job.throttle", gpu3, "at most 2 % of the time", "40 %", "heat or the power supply slows this GPU down, and not the other GPUs of the job")),
		sampled("a silent port", one("mlx5_3:1", map[flight.Name]float32{flight.Data: 0}),
			finding("job.port.silent", port3, "20000 MB/s, as the others", "0 MB/s", "this port carries no data, unlike the other ports of the job")),
		sampled("a slow port", one("mlx5_3:1", map[flight.Name]float32{flight.Data: 5000}),
			finding("job.port.slow", port3, "20000 MB/s, as the others", "5000 MB/s", "this port carries less than the other ports of the job")),
		sampled("a dead file system", each(func(_ int, gpu string, set set) {
			idle(gpu, set)
			set("slot0", flight.StallIO, 99)
		}), finding("job.stall", checks.Device{}, "work for its GPUs", "I/O pressure 99 %", "the tasks of the job wait for a disk or a file system, and its GPUs have no work")),
		sampled("a lost GPU", one("gpu3", map[flight.Name]float32{flight.Reached: 0, flight.Busy: flight.Unknown, flight.Power: flight.Unknown, flight.Clock: flight.Unknown}),
			finding("job.gpu.lost", gpu3, "values", "none", "NVML gives no values of the GPU: it is lost, or needs a reset, a power cable or interrupts")),
		with(left, map[string]string{"past/job-7.json": seven}),
		with(sampled("a hang of a GPU that the job does not have", one("gpu3", map[flight.Name]float32{flight.Used: 400, flight.Busy: 100, flight.Power: 100})), map[string]string{"past/job-7.json": seven}),
		with(sampled("a record that is damaged", nil), map[string]string{"past/job-7.json": `{"job":`}),
		noJobs,
		without(sampled("no monitor", nil), false, "state/samples-gpus", "state/samples-ports", "state/samples-jobs"),
		without(sampled("no GPU", nil), false, "state/samples-gpus"),
		with(sampled("another boot", each(func(_ int, gpu string, set set) { spin(gpu, set) })), map[string]string{"proc/sys/kernel/random/boot_id": "boot-2\n"}),
		with(sampled("a damaged ring", nil), map[string]string{"state/samples-gpus": "garbage"}),
		func() checktest.Scenario {
			s := without(sampled("no uptime", nil, checktest.Unknown("read /proc/uptime: no such file or directory")), true, "proc/uptime")
			return s
		}(),
	}
})

// A job is known to have all GPUs, and all of its GPUs have samples, only if the ring has a place for each.
func TestJobOfManyGPUs(t *testing.T) {
	t.Parallel()
	w := flight.NewWindow(1, 2)
	var all []checks.JobGPU
	for i := range 4 {
		g := checks.JobGPU{PCI: fmt.Sprintf("0000:1%d:00.0", i)}
		if all = append(all, g); i < 3 {
			d := flight.Device{Name: fmt.Sprintf("gpu%d", i), PCI: g.PCI}
			w.Add(d)
			w.Set(d.Name, flight.Busy, 1, 0)
		}
	}
	for _, test := range []struct {
		r            record
		more         int
		all, partial bool
	}{
		{record{GPUs: all[:3]}, 0, true, false},
		{record{GPUs: all[:3]}, 1, false, false},
		{record{GPUs: all[1:]}, 1, false, true},
		{record{Whole: true}, 0, true, false},
		{record{Whole: true}, 1, true, true},
	} {
		w.More = test.more
		if job := test.r.job(w, "x"); job.All != test.all || job.Partial != test.partial {
			t.Errorf("%+v, %d more: %+v", test.r, test.more, job)
		}
	}
}

func join(list []string) (text string) {
	for i, s := range list {
		if i > 0 {
			text += ","
		}
		text += s
	}
	return text
}
