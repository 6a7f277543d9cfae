package lbnl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// hwEDAC checks the memory errors that the kernel's EDAC driver counts for each memory module. It
// needs no daemon, and works on Intel, AMD and, through the firmware (ghes_edac), other processors.
//
// An uncorrected error fails until the node is booted. It also fails at the first
// run, since the counters begin at 0 when the driver is loaded, and after the driver was loaded
// again. If the module has one again after a reboot, within 31 days, the remedy is to replace it.
// To keep the node in service without a reboot, until there are more, run nhc-gpu accept.
//
// More than 9 corrected errors of a module in 24 hours warn, or more than WARN; more than FAIL fail.
// A longer time without a run counts with its average. On AMD a module is one rank of a DIMM. The
// check also warns if the kernel has taken memory out of use for an error (HardwareCorrupted in
// /proc/meminfo).
//
//	node* || check_hw_edac
//	node* || check_hw_edac -w 100 -f 10000
type hwEDAC struct {
	Warn int `opt:"w" toml:"warn" in:"0:1000000000 max"` // highest number of corrected errors per day without a warning; 0: 9
	Fail int `opt:"f" toml:"fail" in:"0:1000000000 max"` // highest number of corrected errors per day without a failure; 0: any number only warns
}

const hwEDACName = "check_hw_edac"

// usualCorrected is the highest number of corrected errors of a DIMM in 24 hours without a warning. mcelog counts
// against 10 / 24h (mcelog.conf, ce-error-threshold: "reasonable for server quality DDR3 DIMMs"), LBNL NHC against 9.
const usualCorrected = 9

// correctedWindow is the time of these limits.
const correctedWindow = 24 * time.Hour

// errorBits is the width of the counters.
const errorBits = 32

// uncorrectedKey and correctedKey are the counters in the history.
const uncorrectedKey, correctedKey = "ue", "ce"

func init() {
	checks.Register(checks.Info{
		Name:    hwEDACName,
		Usage:   "[-w WARN] [-f FAIL]",
		Summary: "the memory modules have no uncorrected and few corrected errors",
		Lane:    checks.Local,
		New:     func() checks.Check { return &hwEDAC{} },
		Do: func() map[string]string {
			return map[string]string{
				"hw.edac.none":        "Nothing in a virtual machine or without ECC memory. Otherwise load the EDAC driver of the processor: amd64_edac, skx_edac (Intel before Ice Lake), i10nm_edac (later ones), or ghes_edac, which reports what the firmware sees.",
				"hw.edac.uncorrected": "Memory returned data that could not be corrected: programs that used it crashed or computed wrong results. ghes_edac and amd64_edac also count errors that no program has met yet. Look for EDAC and Memory failure in dmesg, and at the BMC's event log, which names the slot. Reboot, so that the firmware tests and repairs the memory; if the fault returns, replace the module. To go on without a reboot: nhc-gpu accept hw.edac.uncorrected DEVICE --by NAME --why TEXT.",
				"hw.edac.corrected":   "No data is lost, but the module wears out: plan to replace it. The BMC's event log names its slot. Raise -w only if the manufacturer of the server recommends it.",
				"hw.edac.pages":       "Look for Memory failure in dmesg and at the other findings of this check: they name the module. The kernel, mcelog or rasdaemon has taken pages with errors out of use; a reboot gives them back.",
				"hw.edac.unread":      "Look at the file in the message, as root, and at dmesg. The check has judged everything else.",
			}
		},
	})
}

// edacRun is one run of the check.
type edacRun struct {
	*hwEDAC

	past      *checks.History
	shown     map[string]bool // the modules that the kernel shows, and the controllers
	corrected uint64          // errors of all modules
	findings  []checks.Finding
}

func (c *hwEDAC) Run(_ context.Context, env *checks.Env) []checks.Finding {
	env.At("read %s", probe.EDACDir)
	list, err := probe.ReadMemoryControllers(env.Host)
	r := &edacRun{hwEDAC: c, past: env.RecallHistory(hwEDACName, "hw-edac"), shown: map[string]bool{}}
	r.noteUnread("", err)
	for i := range list {
		r.judgeController(&list[i])
	}
	r.judgeGone()
	if len(list) > 0 {
		env.Fact("%s", checks.Plural(len(list), "memory controller"))
		env.Fact("%s", checks.Plural(int(r.corrected), "corrected error"))
	} else if r.findings == nil {
		r.findings = append(r.findings, checks.Finding{Code: "hw.edac.none", Severity: checks.Skip}.
			Describe(hwEDACName, "no EDAC driver has found a memory controller (amd64_edac, skx_edac, i10nm_edac, ghes_edac)"))
	}
	r.judgePages(env)
	return append(r.findings, r.past.Store(env)...)
}

func (r *edacRun) report(name string, f checks.Finding, format string, args ...any) {
	d := checks.Device{Kind: "dimm", Name: name}
	if name == "" {
		d.Kind = ""
	}
	r.findings = append(r.findings, f.Report(hwEDACName, d, format, args...))
}

// noteUnread reports a file that cannot be read, and whether there is one.
func (r *edacRun) noteUnread(name string, err error) bool {
	if err != nil {
		r.report(name, checks.Finding{Code: "hw.edac.unread", Severity: checks.Unknown}, "cannot be read: %v", err)
	}
	return err != nil
}

// judgeController judges the modules of a controller, and its errors of no known module: those of all that no module has.
func (r *edacRun) judgeController(m *probe.MemoryController) {
	r.noteUnread(m.Name, m.Err)
	rest := probe.MemoryModule{Name: m.Name, Uncorrected: m.Uncorrected, Corrected: m.Corrected}
	for _, p := range m.Modules {
		name := m.Name + "/" + p.Name
		place := strings.Join(slices.DeleteFunc([]string{p.Label, p.Location, m.Driver}, func(s string) bool { return s == "" }), ", ")
		rest.Uncorrected = r.without(rest.Uncorrected, name, uncorrectedKey, p.Uncorrected)
		rest.Corrected = r.without(rest.Corrected, name, correctedKey, p.Corrected)
		r.judge(name, checks.Before(" (", place, ")"), &p, false)
	}
	rest.Uncorrected = r.atLeastLast(rest.Uncorrected, m.Uncorrected, m.Name, uncorrectedKey)
	rest.Corrected = r.atLeastLast(rest.Corrected, m.Corrected, m.Name, correctedKey)
	unread := func(p probe.MemoryModule) bool { return p.Uncorrected.Err != nil || p.Corrected.Err != nil }
	r.judge(m.Name, " of an unknown module"+checks.Before(" (", m.Driver, ")"), &rest, slices.ContainsFunc(m.Modules, unread))
}

// without returns the errors of a controller without those of a module. A module that cannot be read has those that it
// had: they are its own.
func (r *edacRun) without(all probe.ErrorCount, name, key string, of probe.ErrorCount) probe.ErrorCount {
	n := of.N
	if of.Err != nil {
		n, _ = r.past.Last(name, key)
	}
	all.N -= min(all.N, n)
	return all
}

// atLeastLast returns the errors of no known module. If they are fewer than in the last run although the controller,
// all, was not reset, a module has counted one more since the controller was read.
func (r *edacRun) atLeastLast(rest, all probe.ErrorCount, name, key string) probe.ErrorCount {
	if last, ok := r.past.Last(name, key); ok && rest.N < last && all.N >= last {
		rest.N = last
	}
	return rest
}

// judge judges a module, and stores its counters. If they are doubtful, since they can be those of another module, it
// judges only uncorrected errors.
func (r *edacRun) judge(name, place string, p *probe.MemoryModule, doubtful bool) {
	r.shown[name] = true
	unread := r.noteUnread(name, p.Uncorrected.Err)
	unread = r.noteUnread(name, p.Corrected.Err) || unread || doubtful
	values := map[string]uint64{}
	if p.Uncorrected.Known && !doubtful {
		values[uncorrectedKey] = p.Uncorrected.N
	}
	r.judgeUncorrected(name, place, p.Uncorrected)
	if p.Corrected.Known && !doubtful {
		values[correctedKey] = p.Corrected.N
		r.corrected += p.Corrected.N
		r.judgeCorrected(name, place, p.Corrected.N)
	}
	if unread {
		r.past.AddPart(name, values)
	} else {
		r.past.Add(name, values)
	}
}

// judgeUncorrected fails for every error since the boot.
func (r *edacRun) judgeUncorrected(name, place string, now probe.ErrorCount) {
	n := now.N
	if !now.Known {
		n, _ = r.past.Last(name, uncorrectedKey)
	}
	if n = r.past.SinceBoot(name, uncorrectedKey, n, errorBits); n == 0 {
		return
	}
	f := checks.Finding{Code: "hw.edac.uncorrected", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "0", Got: fmt.Sprint(n)}
	again := ""
	if r.returned(name) {
		f.Remedy, f.Do, again = checks.ReseatOrRMA, "A reboot did not help: replace the module. The BMC's event log names its slot.", ", again after a reboot"
	}
	r.report(name, f, "uncorrected memory errors since boot%s%s", place, again)
}

// returned records that a module has uncorrected errors in this boot, and reports whether it had some in another one.
// The kind of a mark is the boot, since the clock can be wrong at a boot.
func (r *edacRun) returned(name string) bool {
	boot := r.past.File.Boot
	if d := r.past.File.Devices[name]; d != nil {
		maps.DeleteFunc(d.Marks, func(kind string, _ []int64) bool { return r.past.Marks(name, kind, checks.HistoryAge) == nil })
	}
	if r.past.Marks(name, boot, checks.HistoryAge) == nil {
		r.past.Mark(name, boot, r.past.Now)
	}
	return len(r.past.File.Devices[name].Marks) > 1
}

// judgeCorrected judges the errors of the last 24 hours, or the average of a longer time without a run. That time is
// judged once: its errors would else count as new ones for another day.
func (r *edacRun) judgeCorrected(name, place string, now uint64) {
	g := r.past.Grown(name, correctedKey, now, errorBits, correctedWindow)
	if !g.Known {
		return
	}
	n := g.N
	if g.Over > correctedWindow {
		n = uint64(g.Per(correctedWindow))
		delete(r.past.File.Devices[name].Series, correctedKey)
	}
	warn := r.Warn
	if warn <= 0 {
		warn = usualCorrected
	}
	f := checks.Finding{Code: "hw.edac.corrected", Severity: checks.Warn, Remedy: checks.ReseatOrRMA, Got: fmt.Sprint(n)}
	limit := warn
	switch {
	case r.Fail > 0 && n > uint64(r.Fail):
		f.Severity, limit = checks.Fail, r.Fail
	case n <= uint64(warn):
		return
	}
	f.Want = fmt.Sprintf("at most %d in 24 hours", limit)
	r.report(name, f, "corrected memory errors%s", place)
}

// judgeGone fails for modules with uncorrected errors in this boot whose driver was unloaded since.
func (r *edacRun) judgeGone() {
	for _, name := range slices.Sorted(maps.Keys(r.past.File.Devices)) {
		if !r.shown[name] {
			r.judgeUncorrected(name, ", and its driver does not show it now", probe.ErrorCount{})
		}
	}
}

// judgePages warns of memory that the kernel no longer uses.
func (r *edacRun) judgePages(env *checks.Env) {
	env.At("read /proc/meminfo")
	m, err := probe.ReadMemory(env.Host)
	if r.noteUnread("", err); m.Corrupted > 0 {
		r.findings = append(r.findings, checks.Finding{Code: "hw.edac.pages", Severity: checks.Warn, Want: "0 kB", Got: fmt.Sprintf("%d kB", m.Corrupted)}.
			Describe(hwEDACName, "memory out of use for errors of the hardware"))
	}
}
