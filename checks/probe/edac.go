package probe

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// MemoryController is a memory controller as its EDAC driver shows it: a directory of
// /sys/devices/system/edac/mc. Counters begin at 0 when the driver is loaded.
type MemoryController struct {
	Name        string         // mc0
	Driver      string         // its name in the driver: "Skylake Socket#0 IMC#1"
	Uncorrected ErrorCount     // of all its modules, and of unknown ones
	Corrected   ErrorCount     //
	Modules     []MemoryModule // none if the driver shows none
	Err         error          // of the list of modules, and of the name
}

// MemoryModule is a part of the memory with counters of its own: a DIMM, on AMD a rank of one. Where the kernel counts
// for none of them, as before Linux 4.10, it is a row of chips and each channel of a row.
type MemoryModule struct {
	Name        string // dimm3, rank3, csrow0, csrow0/ch1
	Label       string // of the slot, where the driver or the site has set one; like Location only read if it has errors
	Location    string // "channel 1 slot 0"
	Uncorrected ErrorCount
	Corrected   ErrorCount
}

// ErrorCount is a counter of 32 bits. Without an error it is unknown if the kernel has no such counter.
type ErrorCount struct {
	N     uint64
	Known bool
	Err   error
}

// EDACDir has a directory for each memory controller with a driver.
const EDACDir = "/sys/devices/system/edac/mc"

// ReadMemoryControllers reads the memory controllers by number, none without an EDAC driver.
func ReadMemoryControllers(h *Host) (list []MemoryController, err error) {
	names, err := h.Names(EDACDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, name := range numbered(names, "mc") {
		list = append(list, readMemoryController(h, name))
	}
	return list, err
}

func readMemoryController(h *Host, name string) MemoryController {
	dir := EDACDir + "/" + name
	m := MemoryController{Name: name}
	m.Driver = OneLine(h.Word(dir, "mc_name", &m.Err))
	// Before those of the modules: an error that is counted meanwhile must not look like one of no module.
	m.Uncorrected, m.Corrected = readErrorCount(h, dir, "ue_count"), readErrorCount(h, dir, "ce_count")
	for _, c := range []struct {
		count *ErrorCount
		file  string
	}{{&m.Uncorrected, "/ue_count"}, {&m.Corrected, "/ce_count"}} {
		if !c.count.Known && c.count.Err == nil { // every driver has it
			c.count.Err = &fs.PathError{Op: "read", Path: dir + c.file, Err: fs.ErrNotExist}
		}
	}
	parts, err := h.Names(dir)
	m.Err = errors.Join(m.Err, err)
	for _, part := range append(numbered(parts, "dimm"), numbered(parts, "rank")...) {
		p := MemoryModule{Name: part, Uncorrected: readErrorCount(h, dir+"/"+part, "dimm_ue_count"), Corrected: readErrorCount(h, dir+"/"+part, "dimm_ce_count")}
		if p.hasCounter() {
			describeModule(h, &p, dir+"/"+part, "dimm_label", "dimm_location", &m.Err)
			m.Modules = append(m.Modules, p)
		}
	}
	if len(m.Modules) > 0 {
		return m
	}
	for _, row := range numbered(parts, "csrow") {
		m.Modules = append(m.Modules, readRow(h, dir+"/"+row, row, &m.Err)...)
	}
	return m
}

// readRow reads a row of chips: uncorrected errors are counted for the row, corrected ones for each channel.
func readRow(h *Host, dir, row string, errs *error) (list []MemoryModule) {
	if p := (MemoryModule{Name: row, Uncorrected: readErrorCount(h, dir, "ue_count")}); p.hasCounter() {
		list = append(list, p)
	}
	files, err := h.Names(dir)
	*errs = errors.Join(*errs, err)
	for _, file := range files {
		channel, ok := strings.CutSuffix(file, "_ce_count")
		if !ok || len(numbered([]string{channel}, "ch")) == 0 {
			continue
		}
		p := MemoryModule{Name: row + "/" + channel, Corrected: readErrorCount(h, dir, file)}
		describeModule(h, &p, dir, channel+"_dimm_label", "", errs)
		list = append(list, p)
	}
	return list
}

// describeModule reads where a module with errors is.
func describeModule(h *Host, p *MemoryModule, dir, label, location string, errs *error) {
	if p.Uncorrected.N+p.Corrected.N == 0 {
		return
	}
	p.Label = OneLine(h.Word(dir, label, errs))
	if location != "" {
		p.Location = OneLine(h.Word(dir, location, errs))
	}
}

func (p *MemoryModule) hasCounter() bool {
	return p.Uncorrected.Known || p.Uncorrected.Err != nil || p.Corrected.Known || p.Corrected.Err != nil
}

// numbered returns the names that are a word and a number, by number.
func numbered(names []string, word string) (list []string) {
	for _, name := range names {
		if number, ok := strings.CutPrefix(name, word); ok && !NotNumber(number) {
			list = append(list, name)
		}
	}
	slices.SortFunc(list, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
	return list
}

// readErrorCount reads a counter. Old kernels print one above 2^31 as a negative number.
func readErrorCount(h *Host, dir, file string) ErrorCount {
	text, err := h.ReadValue(dir + "/" + file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ErrorCount{}
	case err != nil:
		return ErrorCount{Err: err}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n != int64(uint32(n)) && n != int64(int32(n)) {
		return ErrorCount{Err: &fs.PathError{Op: "parse", Path: dir + "/" + file, Err: fs.ErrInvalid}}
	}
	return ErrorCount{N: uint64(uint32(n)), Known: true}
}
