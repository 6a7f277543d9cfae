package lbnl

import (
	"context"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
)

// hwCPUInfo checks how many CPU sockets, cores and threads the node has. A
// count that is not given, or empty, is not tested.
//
//	node* || check_hw_cpuinfo 2 64 128
type hwCPUInfo struct {
	Sockets string   `arg:"1" toml:"sockets"` // how many processors
	Cores   string   `arg:"2" toml:"cores"`   // how many cores in all
	Threads string   `arg:"3" toml:"threads"` // how many hardware threads in all
	Surplus []string `arg:"*"`                // LBNL NHC does not look at more
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_hw_cpuinfo",
		Usage:   "[SOCKETS [CORES [THREADS]]]",
		Summary: "the numbers of CPU sockets, cores and threads are right",
		Lane:    checks.Local,
		New:     func() checks.Check { return &hwCPUInfo{} },
		Do: func() map[string]string {
			return map[string]string{
				"hw.cpu.sockets": "A processor is gone or was never counted: see lscpu and the BMC's log.",
				"hw.cpu.cores":   "Cores are switched off, by the BIOS, the kernel's command line or a fault: see lscpu and dmesg.",
				"hw.cpu.threads": "Hyper-threading was switched on or off: see lscpu, the BIOS and the kernel's command line.",
			}
		},
	})
}

func (c *hwCPUInfo) Run(_ context.Context, env *checks.Env) []checks.Finding {
	const name = "check_hw_cpuinfo"
	counts := []struct {
		what, code, word string
		want             int64
	}{
		{what: "socket", code: "hw.cpu.sockets", word: c.Sockets},
		{what: "core", code: "hw.cpu.cores", word: c.Cores},
		{what: "thread", code: "hw.cpu.threads", word: c.Threads},
	}
	for i := range counts {
		n, ok := checks.ParseInteger(counts[i].word)
		if !ok {
			return []checks.Finding{checks.WrongValue(name, counts[i].what+" count", counts[i].word, "a whole number")}
		}
		counts[i].want = n
	}
	cpus, err := cpu.CountCPUs(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	env.Fact("%s, %s, %s", checks.Plural(cpus.Sockets, "socket"), checks.Plural(cpus.Cores, "core"), checks.Plural(cpus.Threads, "thread"))
	got := []int{cpus.Sockets, cpus.Cores, cpus.Threads}
	for i, n := range counts {
		if n.word == "" || n.want == int64(got[i]) {
			continue
		}
		return []checks.Finding{checks.Finding{
			Code:     n.code,
			Severity: checks.Fail,
			Want:     n.word,
			Got:      strconv.Itoa(got[i]),
		}.Phrase(name, "Actual CPU %s count (%d) does not match expected (%s).", n.what, got[i], n.word)}
	}
	return nil
}
