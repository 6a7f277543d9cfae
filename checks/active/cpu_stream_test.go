package active

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// streamNode has four NUMA nodes of two cores each, with the given memory rates.
func streamNode(rates ...float64) map[string]string {
	files := map[string]string{
		"proc/meminfo": "MemTotal: 400000000 kB\nMemAvailable: 390000000 kB\n", "sys/devices/system/cpu/online": "0-7\n", "sys/devices/system/node/has_cpu": "0-3\n",
		"proc/sys/kernel/random/boot_id": "658f832e-2c36-42e1-a29c-a17c2e3298d2\n",
	}
	var total float64
	var text strings.Builder
	for i := range 4 {
		dir := fmt.Sprintf("sys/devices/system/node/node%d", i)
		files[dir+"/cpulist"] = fmt.Sprintf("%d-%d\n", 2*i, 2*i+1)
		files[dir+"/meminfo"] = fmt.Sprintf("Node %d MemTotal:       %d kB\nNode %d MemFree: 1 kB\n", i, 98304000+1000*i, i)
		if i < len(rates) {
			total += rates[i]
			fmt.Fprintf(&text, "%d %.1f\n", i, rates[i])
		}
	}
	files["stream"] = fmt.Sprintf("%stotal %.1f\n", text.String(), total)
	return files
}

func TestCPUStream(t *testing.T) { checktest.Run(t, "check_cpu_stream") }

var _ = checktest.Table("check_cpu_stream", func(string) []checktest.Scenario {
	on := func(name string, words []string, files map[string]string, change map[string]string, want ...checks.Finding) checktest.Scenario {
		files = maps.Clone(files)
		for file, text := range change {
			if files[file] = text; text == "-" {
				delete(files, file)
			}
		}
		return checktest.Scenario{Name: name, Words: words, Files: files, Past: "/past", Want: want}
	}
	broken := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	says := func(severity checks.Severity, device, code, want, got, text string) checks.Finding {
		f := checks.Finding{Code: "cpu.stream." + code, Severity: severity, Want: want, Got: got}
		if device != "" {
			f.Device = checks.Device{Kind: "numa", Name: device}
			device += ": "
		}
		f.Message = cpuStreamName + ":  " + device + text + checktest.WantGot(f)
		return f
	}
	unread := func(got string) checks.Finding { return says(checks.Unknown, "", "error", "", got, "not measured") }
	healthy := streamNode(170000, 171000, 169500, 170500)
	slow := streamNode(170000, 171000, 85000, 170500)
	on2 := func(far string) map[string]string {
		return map[string]string{"stream": slow["stream"] + "far " + far + "\n"}
	}
	const far = " (1200 MiB of the arrays of numa2 lie on numa1 for lack of memory)"
	other := maps.Clone(slow)
	other["sys/devices/system/node/node2/meminfo"] = "Node 2 MemTotal: 49152000 kB\n"
	floor := on("below the floor", nil, healthy, nil, says(checks.Warn, "", "floor", "at least 700000 MB/s", "681000 MB/s", "memory bandwidth (STREAM triad) on 8 cores (figure cpu_stream of the platform HGX H100)"))
	n := checktest.FabricNode(fakesys.DGXH100())
	maps.Copy(n.Files, healthy)
	floor.Files, floor.Links, floor.NVML, floor.UnitOnly = n.Files, n.Links, n.NVML, true
	floor.Platform = &checks.Platform{Name: "HGX H100", Floors: []checks.Floor{{Test: "cpu_stream", Algorithm: cpu.StreamAlgorithm(), Value: 700000, Unit: "MB/s"}}}
	return []checktest.Scenario{
		on("healthy", nil, healthy, nil),
		on("as wanted", checktest.Of("-w", "665500", "-t", "10"), healthy, nil).OrTable(map[string]any{"rate": 665500.0, "time": int64(10)}),
		on("below the words", checktest.Of("700000"), healthy, nil, says(checks.Fail, "", "slow", "at least 700000 MB/s", "681000 MB/s", "memory bandwidth (STREAM triad) on 8 cores")),
		floor,
		on("one NUMA node is slow", nil, slow, nil, says(checks.Fail, "numa2", "peers", "at least 144712 MB/s", "85000 MB/s", "bandwidth of its own memory (STREAM triad): far from its peers (median 170250 MB/s)")),
		on("its arrays lie elsewhere", nil, slow, on2("2 1 1200"), says(checks.Warn, "numa2", "peers", "at least 144712 MB/s", "85000 MB/s", "bandwidth of its own memory (STREAM triad): far from its peers (median 170250 MB/s)"+far)),
		on("it has those of another one", nil, slow, on2("3 2 9"), says(checks.Warn, "numa2", "peers", "at least 144712 MB/s", "85000 MB/s", "bandwidth of its own memory (STREAM triad): far from its peers (median 170250 MB/s) (9 MiB of the arrays of numa3 lie on numa2 for lack of memory)")),
		on("those of others lie elsewhere", nil, slow, on2("3 1 9"), says(checks.Fail, "numa2", "peers", "at least 144712 MB/s", "85000 MB/s", "bandwidth of its own memory (STREAM triad): far from its peers (median 170250 MB/s)")),
		on("its arrays may lie elsewhere", nil, slow, on2("2 -1 1200"), says(checks.Warn, "numa2", "peers", "at least 144712 MB/s", "85000 MB/s", "bandwidth of its own memory (STREAM triad): far from its peers (median 170250 MB/s) (1200 MiB of the arrays of numa2 may lie on another NUMA node: too little of its memory was free)")),
		on("arrays of the node lie elsewhere", checktest.Of("700000"), healthy, map[string]string{"stream": healthy["stream"] + "far 2 1 1200\n"}, says(checks.Warn, "", "slow", "at least 700000 MB/s", "681000 MB/s", "memory bandwidth (STREAM triad) on 8 cores"+far)),
		on("healthy, and arrays lie elsewhere", nil, healthy, map[string]string{"stream": healthy["stream"] + "far 2 1 1200\n"}),
		on("one has less memory", nil, other, nil),
		on("one NUMA node", nil, streamNode(60000), nil),
		broken(on("little memory is left", nil, healthy, map[string]string{"proc/meminfo": "MemTotal: 400000000 kB\nMemAvailable: 300000 kB\n"},
			says(checks.Unknown, "", "memory", "", "not enough memory: three arrays of 64 MiB in all, 4 times the caches, are 192 MiB, more than half of the 292 MiB that are available", "not measured"))),
		broken(on("no memory is told", nil, healthy, map[string]string{"proc/meminfo": "-"}, unread("read /proc/meminfo: no such file or directory"))),
		broken(on("no CPUs are told", nil, healthy, map[string]string{"sys/devices/system/cpu/online": "many\n"}, unread("parse /sys/devices/system/cpu/online: invalid argument"))),
		broken(on("the kernel refuses", nil, healthy, map[string]string{"stream": "error run on CPU 3: invalid argument\n"}, unread("run on CPU 3: invalid argument"))),
	}
})

// On this machine, isolated from jobs of other tests' Slurm, the test measures and stores its
// result. On a busy machine a round can take a second.
func TestCPUStreamHere(t *testing.T) {
	tier.All(t)
	if !checktest.Alone(t) {
		return
	}
	c := &cpuStream{Time: 10 * time.Minute}
	got := c.Run(t.Context(), &checks.Env{Host: probe.NewHost("/")})
	if len(got) == 0 || got[0].Code == "active.busy" || got[0].Code == "active.stopped" || got[0].Code == "cpu.stream.memory" {
		t.Skipf("not here: %v", got)
	}
	if checks.Worst(got) >= checks.Unknown || got[len(got)-1].Code != "cpu.stream.rates" {
		t.Errorf("%v", got)
	}
	t.Log(got[len(got)-1].Message)
}
