package checks

import (
	"fmt"
	"strings"
)

// useProc is a process of a node whose machine has been up for 10000 seconds.
type useProc struct {
	pid, parent, uid int
	args             string // a kernel thread of the name in brackets
	ticks            int    // hundredths of a second of CPU time; 10000 are 1.0% of a processor
	rss, vsz         int    // kB
}

// useNode is a node with those processes, 100 GiB of RAM and a shell for actions.
func useNode(procs ...useProc) map[string]string {
	files := map[string]string{
		"etc/passwd":     "root:x:0:0::/root:/bin/sh\nntpsec:x:120:120::/:/bin/false\nalice:x:5001:100::/:/bin/sh\nbob:x:5002:100::/:/bin/sh\n",
		"etc/login.defs": "UID_MIN 1000\n",
		"proc/uptime":    "10000.00 1.00\n",
		"proc/meminfo":   "MemTotal: 104857600 kB\n",
	}
	for _, p := range procs {
		dir := fmt.Sprintf("proc/%d/", p.pid)
		name, kernel := strings.CutPrefix(strings.TrimSuffix(p.args, "]"), "[")
		memory := fmt.Sprintf("VmSize:\t%d kB\nVmRSS:\t%d kB\n", p.vsz, p.rss)
		if kernel {
			memory = ""
		} else {
			files[dir+"cmdline"] = strings.ReplaceAll(p.args, " ", "\x00") + "\x00"
			name = "a.out) R 1 (1"
		}
		files[dir+"status"] = fmt.Sprintf("Name:\t%s\nState:\tS (sleeping)\nUid:\t%[2]d\t%[2]d\t%[2]d\t%[2]d\n%s", name, p.uid, memory)
		files[dir+"stat"] = fmt.Sprintf("%d (%s) S %d 1 1 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 0 %d 0 0 0\n",
			p.pid, name, p.parent, p.ticks, p.vsz*1024)
	}
	return files
}

// unknown is a finding of what could not be told.
func unknown(message string) Finding {
	return Finding{Code: "probe.unreadable", Severity: Unknown, Message: message}
}

// valueFinding is the failure of a check that was given a word which is no number.
func valueFinding(check, what, word, want string) Finding {
	return Finding{Code: "config.value", Severity: Fail, Want: want, Got: word, Remedy: FixConfig,
		Message: fmt.Sprintf("%s:  Invalid %s \"%s\"; want %s.", check, what, word, want)}
}
