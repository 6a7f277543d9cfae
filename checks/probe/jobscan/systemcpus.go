package jobscan

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// SystemCPUs returns the CPUs that Slurm leaves to the system (CpuSpecList, CoreSpecCount): those on which slurmd
// itself runs, or with SlurmdOffSpec the others. known is false if Slurm leaves none, or it is unknown. The numbers
// in slurm.conf are not the machine's, so the kernel is asked.
func SystemCPUs(h *probe.Host, slurmds []int) (set unix.CPUSet, known bool) {
	for _, pid := range slurmds {
		var one unix.CPUSet
		if unix.SchedGetaffinity(pid, &one) != nil {
			return set, false
		}
		for cpu := range maxCPUs {
			if one.IsSet(cpu) {
				set.Set(cpu)
			}
		}
	}
	text, err := h.ReadValue("/sys/devices/system/cpu/online")
	online, ok := parseCPUs(text)
	if err != nil || !ok || len(slurmds) == 0 {
		return set, false
	}
	if offSpec(h) {
		var rest unix.CPUSet
		for _, cpu := range online {
			if !set.IsSet(cpu) {
				rest.Set(cpu)
			}
		}
		set = rest
	}
	return set, set.Count() > 0 && set.Count() < len(online)
}

// maxCPUs is the size of a unix.CPUSet.
const maxCPUs = 1024

// parseCPUs parses a list of the kernel: 0-3,8.
func parseCPUs(text string) (list []int, ok bool) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.Atoi(first)
		b, errB := strconv.Atoi(last)
		if errA != nil || errB != nil || a < 0 || b < a || b >= maxCPUs {
			return nil, false
		}
		for cpu := a; cpu <= b; cpu++ {
			list = append(list, cpu)
		}
	}
	return list, true
}

// offSpec reports whether slurm.conf keeps slurmd off the CPUs of the system.
func offSpec(h *probe.Host) (yes bool) {
	file, data, err := findSlurmConf(h, h.Getenv("SLURM_CONF"))
	if err != nil {
		return false
	}
	s := slurmFiles{host: h, dir: file[:strings.LastIndexByte(file, '/')+1], left: maxSlurmFiles, visit: func(_ string, line []slurmPair) {
		for _, p := range line {
			if p.key == "taskpluginparam" {
				yes = slices.ContainsFunc(strings.Split(strings.ToLower(p.value), ","), func(v string) bool { return v == "slurmdoffspec" })
			}
		}
	}}
	_ = s.parse(file, data)
	return yes
}

// Confine lets a process and its children run on some CPUs only: each thread that they have, and so each that these
// start. The process is first, so that a child that it starts meanwhile is found, or has its CPUs. Confine returns the
// first error about a process that still runs.
func Confine(pid int, set *unix.CPUSet) error {
	failed := confineThreads(pid, set)
	for _, child := range childrenOf(pid) {
		if err := confineThreads(child, set); failed == nil {
			failed = err
		}
	}
	return failed
}

func confineThreads(pid int, set *unix.CPUSet) (failed error) {
	done := map[string]bool{}
	for again := true; again; { // a thread that was started meanwhile may have the old CPUs
		again = false
		for _, tid := range listNames(fmt.Sprintf("/proc/%d/task", pid)) {
			n, err := strconv.Atoi(tid)
			if err != nil || done[tid] || len(done) > maxProcesses {
				continue
			}
			done[tid], again = true, true
			if err := unix.SchedSetaffinity(n, set); err != nil && err != unix.ESRCH && failed == nil {
				failed = fmt.Errorf("move process %d to the CPUs of the system: %w", pid, err)
			}
		}
	}
	return failed
}

// childrenOf lists the children of a process of this machine.
func childrenOf(pid int) (list []int) {
	for _, name := range listNames("/proc") {
		n, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		words := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])) // state, parent
		if len(words) > 1 && words[1] == strconv.Itoa(pid) {
			list = append(list, n)
		}
	}
	return list
}
