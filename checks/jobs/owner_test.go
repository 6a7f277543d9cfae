package jobs

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// secret is the value of each sample of another job.
const secret = 777_000

// sharedNode returns a node with two GPUs and a port, whose samples of 80 minutes end at sampledUntil: jobs are the
// jobs in the slots at a time, and all values are secret unless own is set.
func sharedNode(t *testing.T, jobs func(at uint32) []string, own func(at uint32, device string) bool, records map[string]string) *probe.Host {
	t.Helper()
	rings := map[string]*flight.Header{monitor.GPUs: {}, monitor.Ports: {}, monitor.Jobs: {}}
	for i := range 2 {
		d := flight.Device{Name: fmt.Sprintf("gpu%d", i), PCI: fmt.Sprintf("0000:1%d:00.0", i)}
		rings[monitor.GPUs].Devices = append(rings[monitor.GPUs].Devices, d)
		rings[monitor.GPUs].Columns = append(rings[monitor.GPUs].Columns, flight.Columns(flight.OfGPU, d.Name)...)
	}
	rings[monitor.Ports].Devices = []flight.Device{{Name: "mlx5_0:1"}}
	rings[monitor.Ports].Columns = flight.Columns(flight.OfPort, "mlx5_0:1")
	for i := range flight.MaxJobs {
		rings[monitor.Jobs].Columns = append(rings[monitor.Jobs].Columns, flight.Columns(flight.OfJob, flight.Slot(i))...)
	}
	files := map[string]string{"proc/uptime": fmt.Sprintf("%d.37 100.00\n", sampledUntil), "proc/sys/kernel/random/boot_id": "boot-1\n", "past/x": ""}
	for id, text := range records {
		files["past/job-"+id+".json"] = text
	}
	for source, h := range rings {
		h.Boot = "boot-1"
		head, err := h.Encode()
		if err != nil {
			t.Fatal(err)
		}
		file := bytesFile(head)
		_, _ = file.WriteAt(make([]byte, h.Size()-flight.HeaderSize), flight.HeaderSize)
		r := flight.Record(&file, h)
		for at := uint32(sampledUntil - 80*60); at <= sampledUntil; at++ {
			values := make([]float32, len(h.Columns))
			on := jobs(at)
			for i, c := range h.Columns {
				values[i] = secret
				if own(at, c.Device) {
					values[i] = 5
				}
				if c.Name == flight.ID {
					values[i] = flight.Unknown
				}
				for n, id := range on {
					if c == (flight.Column{Device: flight.Slot(n), Name: flight.ID}) {
						values[i] = flight.Number(id)
					}
				}
			}
			if err := r.Add(at, values); err != nil {
				t.Fatal(err)
			}
		}
		files["state/"+flight.File(source)] = string(file)
	}
	root := probetest.Tree(t, files)
	h := probe.NewHost(root)
	h.SetPast("/past")
	h.SetState(root + "/state")
	return h
}

// A user sees the samples of the own job alone: not those of the jobs that had its GPUs and its slot before, and not
// those of the GPUs and the ports that others have now.
func TestOwnSamples(t *testing.T) {
	t.Parallel()
	const begin = sampledUntil - 20
	const recordB = `{"job":"8","uid":1001,"gpus":[{"index":0,"pci":"0000:10:00.0"}]}`
	for name, test := range map[string]struct {
		jobs    func(at uint32) []string
		own     func(at uint32, device string) bool
		records map[string]string
		seen    int // seconds
		minutes int
	}{
		"a GPU that another job had until 20 s ago": {
			func(at uint32) []string { return map[bool][]string{true: {"7"}, false: {"8"}}[at < begin] },
			func(at uint32, device string) bool {
				return at > begin && device == "gpu0" || at >= begin && device == "slot0"
			},
			map[string]string{"8": recordB}, 21, 0,
		},
		"for an hour": {
			func(at uint32) []string { return map[bool][]string{true: {"7"}, false: {"8"}}[at < sampledUntil-3630] },
			func(at uint32, device string) bool {
				return at >= sampledUntil-3630 && (device == "gpu0" || device == "slot0")
			},
			map[string]string{"8": recordB}, 600, 59,
		},
		"a requeued job, and the GPU was another job's meanwhile": {
			func(at uint32) []string {
				return map[bool][]string{true: {"7"}, false: {"8"}}[at < begin && at > begin-300]
			},
			func(at uint32, device string) bool {
				return at > begin && device == "gpu0" || at >= begin && device == "slot0"
			},
			map[string]string{"8": recordB}, 21, 0,
		},
		"requeued at once, and the GPU was another job's before": {
			func(at uint32) []string {
				return map[bool][]string{true: {"7"}, false: {"8"}}[at < begin && at > begin-10]
			},
			func(at uint32, device string) bool {
				return at > begin && device == "gpu0" || at >= begin && device == "slot0"
			},
			map[string]string{"8": fmt.Sprintf(`{"begin":{"boot":"boot-1","uptime":%d.5},%s`, begin-1, recordB[1:])}, 21, 0,
		},
		"a record of an earlier boot": {
			func(uint32) []string { return []string{"8"} },
			func(_ uint32, device string) bool { return device == "gpu0" || device == "slot0" },
			map[string]string{"8": `{"begin":{"boot":"boot-0","uptime":9999999},` + recordB[1:]}, 600, 79,
		},
		"without a record, alone for 40 s": {
			func(at uint32) []string {
				return map[bool][]string{true: {"8", "7"}, false: {"8"}}[at < sampledUntil-40]
			},
			func(at uint32, device string) bool { return at > sampledUntil-40 || device == "slot0" },
			nil, 41, 0,
		},
		"a part of a GPU": {
			func(uint32) []string { return []string{"8"} },
			func(_ uint32, device string) bool { return device == "slot0" },
			map[string]string{"8": `{"job":"8","uid":1001,"shared":true,"gpus":[{"index":0,"pci":"0000:10:00.0"}]}`}, 600, 79,
		},
	} {
		h := sharedNode(t, test.jobs, test.own, test.records)
		for _, user := range []uint32{0, 1001} {
			e, err := ExtractSamples(&checks.Env{Host: h}, "8", user, true)
			if user != 0 && test.records == nil { // no process of the job shows its user
				continue
			}
			if err != nil || e == nil || e.Seconds == nil {
				t.Errorf("%s: user %d sees %+v, %v", name, user, e, err)
				continue
			}
			data, _ := json.Marshal(e)
			minutes := 0
			if e.Minutes != nil {
				minutes = e.Minutes.Len
			}
			if strings.Contains(string(data), "e+05") || strings.Contains(string(data), fmt.Sprint(secret)) || e.Seconds.Len != test.seen || minutes < test.minutes || minutes > test.minutes+1 {
				t.Errorf("%s: user %d sees %d seconds and %d minutes, want %d and %d: %.300s", name, user, e.Seconds.Len, minutes, test.seen, test.minutes, data)
			}
		}
		if e, err := ExtractSamples(&checks.Env{Host: h}, "7", 0, true); e != nil || err != nil {
			t.Errorf("%s: a job that has ended: %+v, %v", name, e, err)
		}
	}
}

// A job with a part of the node does not see the ports if there are no samples of GPUs, and a job with all of it does.
func TestPortsWithoutGPUs(t *testing.T) {
	t.Parallel()
	one := func(uint32) []string { return []string{"8"} }
	for record, all := range map[string]bool{
		`{"job":"8","uid":1001,"gpus":[{"index":0,"pci":"0000:10:00.0"}]}`: false,
		`{"job":"8","uid":1001}`:              false,
		`{"job":"8","uid":1001,"whole":true}`: true,
	} {
		h := sharedNode(t, one, func(uint32, string) bool { return false }, map[string]string{"8": record})
		if err := os.Remove(h.State() + "/" + flight.File(monitor.GPUs)); err != nil {
			t.Fatal(err)
		}
		e, err := ExtractSamples(&checks.Env{Host: h}, "8", 1001, true)
		if err != nil || e == nil || e.All != all {
			t.Errorf("%s: %+v, %v, want all %v", record, e, err, all)
			continue
		}
		if data, _ := json.Marshal(e); strings.Contains(string(data), "mlx5") != all {
			t.Errorf("%s: %.300s", record, data)
		}
	}
}
