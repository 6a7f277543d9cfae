package lbnl

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
)

// hwCPUInfo checks the numbers of CPU sockets, cores and threads of the node. A
// number that is missing or empty is not checked.
//
//	node* || check_hw_cpuinfo 2 64 128
type hwCPUInfo struct {
	Sockets string   `arg:"1" toml:"sockets"` // number of CPU sockets
	Cores   string   `arg:"2" toml:"cores"`   // number of cores of the node
	Threads string   `arg:"3" toml:"threads"` // number of hardware threads of the node
	Surplus []string `arg:"*"`                // ignored, as in LBNL NHC
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_hw_cpuinfo",
		Usage:   "[SOCKETS [CORES [THREADS]]]",
		Summary: "the numbers of CPU sockets, cores and threads are as expected",
		Lane:    checks.Local,
		New:     func() checks.Check { return &hwCPUInfo{} },
		Do: func() map[string]string {
			return map[string]string{
				"hw.cpu.sockets": "The kernel sees fewer or more processors than expected: run lscpu and read the BMC's event log.",
				"hw.cpu.cores":   "Find out whether the BIOS, the kernel's command line or a fault disabled cores: run lscpu and dmesg.",
				"hw.cpu.threads": "Find out whether Hyper-Threading was enabled or disabled: run lscpu, check the BIOS and the kernel's command line.",
			}
		},
	})
}

// Contradiction implements [checks.Contradicting].
func (c *hwCPUInfo) Contradiction() (word, why string) {
	var last int64
	for i, word := range []string{c.Sockets, c.Cores, c.Threads} {
		n, ok := checks.ParseInteger(word)
		if !ok || word == "" {
			continue
		}
		if n < last {
			return word, fmt.Sprintf("%s are counted over all sockets, so %s cannot be fewer than %d", []string{"sockets", "cores", "threads"}[i], word, last)
		}
		last = n
	}
	return "", ""
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
