package checktest

import (
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// UseProc is a process on a node with an uptime of 10000 seconds.
type UseProc struct {
	PID, Parent, UID int
	Args             string // a name in brackets is a kernel thread
	Ticks            int    // hundredths of a second of CPU time; 10000 are 1.0% of a processor
	RSS, VSZ         int    // kB
}

// UseNode returns a node with those processes, 100 GiB of RAM and a shell for actions.
func UseNode(procs ...UseProc) map[string]string {
	files := map[string]string{
		"etc/passwd":     "root:x:0:0::/root:/bin/sh\nntpsec:x:120:120::/:/bin/false\nalice:x:5001:100::/:/bin/sh\nbob:x:5002:100::/:/bin/sh\n",
		"etc/login.defs": "UID_MIN 1000\n",
		"proc/uptime":    "10000.00 1.00\n",
		"proc/meminfo":   "MemTotal: 104857600 kB\n",
	}
	for _, p := range procs {
		dir := fmt.Sprintf("proc/%d/", p.PID)
		name, kernel := strings.CutPrefix(strings.TrimSuffix(p.Args, "]"), "[")
		memory := fmt.Sprintf("VmSize:\t%d kB\nVmRSS:\t%d kB\n", p.VSZ, p.RSS)
		if kernel {
			memory = ""
		} else {
			files[dir+"cmdline"] = strings.ReplaceAll(p.Args, " ", "\x00") + "\x00"
			if name = "a.out) R 1 (1"; strings.HasPrefix(p.Args, "slurmstepd: [") {
				name = "slurmstepd"
			}
		}
		files[dir+"status"] = fmt.Sprintf("Name:\t%s\nState:\tS (sleeping)\nUid:\t%[2]d\t%[2]d\t%[2]d\t%[2]d\n%s", name, p.UID, memory)
		files[dir+"stat"] = fmt.Sprintf("%d (%s) S %d 1 1 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 0 %d 0 0 0\n",
			p.PID, name, p.Parent, p.Ticks, p.VSZ*1024)
	}
	return files
}

// Unknown returns a finding of a value that cannot be determined.
func Unknown(message string) checks.Finding {
	return checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: message}
}

// ValueFinding returns the failure of a check for an argument that is not a number.
func ValueFinding(check, what, word, want string) checks.Finding {
	return checks.Finding{Code: "config.value", Severity: checks.Fail, Want: want, Got: word, Remedy: checks.FixConfig,
		Message: fmt.Sprintf("%s:  Invalid %s \"%s\"; want %s.", check, what, word, want)}
}
