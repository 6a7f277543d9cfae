package main

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// presetHardware sets the variables that LBNL NHC's check_hw_* leave behind for
// the lines below them, where a line speaks of one: the sample configuration has
// check_ps_loadavg $((2*HW_CORES)).
func (r *oneRun) presetHardware(conf []byte) {
	if !bytes.Contains(conf, []byte("HW_")) {
		return
	}
	host := probe.NewHost(r.set.get("HOSTROOT"))
	cpus, _ := host.CPUs() // what cannot be read is 0, as in LBNL NHC
	memory, _ := host.Memory()
	var text strings.Builder
	for name, value := range map[string]uint64{
		"HW_SOCKETS": uint64(cpus.Sockets), "HW_CORES": uint64(cpus.Cores), "HW_THREADS": uint64(cpus.Threads),
		"HW_RAM_TOTAL": memory.Total, "HW_RAM_FREE": memory.Free,
		"HW_SWAP_TOTAL": memory.SwapTotal, "HW_SWAP_FREE": memory.SwapFree,
	} {
		old := r.set.get(name) // 0 where bash has read the library of scripts
		if old != "" && old != "0" || !bytes.Contains(conf, []byte(name)) {
			continue
		}
		number := strconv.FormatUint(value, 10)
		r.set.put(name, number, false)
		text.WriteString(name + "=" + number + "\n")
	}
	if r.shell != nil && r.dressed { // it has been told the settings before
		if err := r.shell.Set(text.String(), r.end); err != nil {
			r.warn(err)
		}
	}
}
