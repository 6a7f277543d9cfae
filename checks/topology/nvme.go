package topology

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/disk"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// nvmeHealth checks NVMe disks, all on the PCI bus or each DEVICE: their controller must be live and
// show namespaces, their temperature and their own health log (SMART) must be good. It needs no
// vendor tool.
//
// It fails if data is at risk: on a dead controller or one that does not return from a reset, a disk
// on the PCI bus that has disappeared since boot, a namespace that has become read-only or is lost,
// read-only media, degraded reliability, and a failed backup of volatile memory. It warns of a disk
// that never had a namespace, of one that was read-only from the start, of spare blocks below the
// vendor's limit, a used-up lifetime, new media errors, and heat; below SPARE, above USED and above
// TEMP it fails. The health log is skipped if the disk has none, as in virtual machines, or if the
// user is not root.
//
//	gpu* || check_nvme
//	gpu* || check_nvme -s 20 -u 95 -t 75 nvme0 'nvme[2-5]'
type nvmeHealth struct {
	Spare int      `opt:"s" toml:"spare" in:"0:100 min"`        // lowest share of spare blocks, percent; 0: warn at the vendor's limit
	Used  int      `opt:"u" toml:"used" in:"0:255 max"`         // highest used share of the lifetime, percent; 0: warn at 100
	Temp  float64  `opt:"t" toml:"temperature" in:"20:150 max"` // highest temperature, degrees Celsius; 0: warn at the disk's limit
	Names []string `arg:"*" toml:"devices"`                     // controllers (nvme0) or globs; none: all on the PCI bus
}

const nvmeName = "check_nvme"

// nvmePassing are states that a controller leaves within the seconds of a reset or a removal; other
// states are permanent (drivers/nvme/host, enum nvme_ctrl_state).
var nvmePassing = []string{"new", "resetting", "connecting", "deleting", "deleting (no IO)"}

// resetTime is longer than a controller needs to be ready: CAP.TO of the NVM Express base
// specification allows up to 127.5 s.
const resetTime = 3 * time.Minute

// mediaWindow is how long new media errors are reported: an administrator who looks once a day sees them.
const mediaWindow = 24 * time.Hour

func init() {
	const replace = "Save its data and replace the disk; its serial number is in the finding. "
	checks.Register(checks.Info{
		Name:    nvmeName,
		Usage:   "[-s SPARE] [-u USED] [-t TEMP] [DEVICE...]",
		Summary: "NVMe disks are live and healthy",
		Lane:    checks.Local,
		New:     func() checks.Check { return &nvmeHealth{} },
		Do: func() map[string]string {
			return map[string]string{
				"nvme.none":     "Nothing, if the node has no NVMe disk. If it should have some, set their number: check_nvme_count N; look at lspci -d ::0108.",
				"nvme.missing":  "Look at ls /sys/class/nvme, lspci -d ::0108 and dmesg: the disk is dead or loose, or has another number since a reboot. If the node has no NVMe disk, correct the line.",
				"nvme.state":    "The driver has given up the controller, or is resetting or removing it: look at dmesg. Power the node off for a minute and boot it; if the fault returns, reseat the disk, then replace it.",
				"nvme.space":    "The controller is live but shows no disk: look at dmesg and nvme list-ns. A new or spare disk may have no namespace; a disk that had one is faulty, unless a person has deleted it: then delete nvme.json in " + checks.PastDir + ".",
				"nvme.degraded": replace + "The disk reports that it is no longer reliable.",
				"nvme.readonly": replace + "The disk no longer accepts writes.",
				"nvme.ro":       "The kernel refuses writes to the disk, nearly always because a person, a script or the disk's write protection has ordered it: undo that (blockdev --setrw /dev/NAME, nvme get-feature -f 0x84), or delete nvme.json in " + checks.PastDir + " to accept it. Otherwise look for errors of this disk in dmesg.",
				"nvme.gone":     "The disk was present earlier in this boot: look at dmesg and lspci -d ::0108. Power the node off for a minute and boot it; if the disk does not return, reseat it, then replace it. If it was removed on purpose, delete nvme.json in " + checks.PastDir + ".",
				"nvme.backup":   replace + "Data that it has not written yet is lost at a power failure.",
				"nvme.pmr":      "Stop the programs that use the disk's persistent memory region: it is read-only or unreliable. The disk itself works.",
				"nvme.spare":    "The disk wears out: plan its replacement.",
				"nvme.used":     "The disk has reached the end of its rated lifetime: plan its replacement.",
				"nvme.media":    "Data could not be read or written: look for errors of the file system in dmesg. If more errors follow, replace the disk.",
				"nvme.temp":     "Check the fans, the airflow and the heat sink of the disk: hot disks get slow and then switch off.",
				"nvme.smart":    "Nothing, if the disk has no health log, as in virtual machines, or the user was not root. If the log could not be read, try nvme smart-log and look at dmesg.",
				"nvme.error":    "One disk could not be read: look at the file in the message, as root, and at dmesg. The check has judged the other disks.",
			}
		},
	})
}

// nvmeRun is one run of the check.
type nvmeRun struct {
	*nvmeHealth

	env      *checks.Env
	list     []disk.NVMe // all controllers
	past     *checks.History
	findings []checks.Finding
	silent   []string // disks without a health log
	why      error    // why they have none
}

func (c *nvmeHealth) Run(_ context.Context, env *checks.Env) []checks.Finding {
	env.At("read /sys/class/nvme")
	list, err := disk.NVMes(env.Host, env.Doing)
	if err != nil {
		return checks.Unreadable(err)
	}
	r := &nvmeRun{nvmeHealth: c, env: env, list: list}
	disks := r.chooseDisks()
	r.past = env.RecallHistory(nvmeName, "nvme")
	r.judgeGone()
	if len(disks)+len(r.findings) == 0 {
		return []checks.Finding{checks.Finding{Code: "nvme.none", Severity: checks.Skip}.Describe(nvmeName, "no NVMe disk on this node")}
	}
	env.Fact("%s", checks.Plural(len(disks), "disk"))
	for _, d := range disks {
		r.judge(d)
	}
	if len(r.silent) > 0 {
		r.findings = append(r.findings, checks.Finding{Code: "nvme.smart", Severity: checks.Skip}.
			Describe(nvmeName, "%s: health log not judged: %v", strings.Join(r.silent, " "), r.why))
	}
	return append(r.findings, r.past.Store(env)...)
}

// chooseDisks returns the disks of the line and reports missing ones.
func (r *nvmeRun) chooseDisks() (disks []*disk.NVMe) {
	remedy := checks.ReseatOrRMA
	if len(r.Names) > 1 && len(r.list)+len(pci.OfClass(r.env.Host, "0108")) == 0 { // none of several exists
		remedy = checks.FixConfig
	}
	names := r.Names
	if len(names) == 0 {
		names = []string{"*"}
	}
	for _, name := range names {
		found := false
		for i := range r.list {
			d := &r.list[i]
			if d.Name != name && !match.Glob(d.Name, name) || name == "*" && d.Transport != "" && d.Transport != "pcie" {
				continue
			}
			found = true
			if !slices.Contains(disks, d) {
				disks = append(disks, d)
			}
		}
		if !found && name != "*" {
			r.findings = append(r.findings, checks.Finding{Code: "nvme.missing", Severity: checks.Fail, Remedy: remedy, Device: checks.Device{Kind: "nvme", Name: name}, Want: name, Got: "none"}.
				Describe(nvmeName, "no such controller"))
		}
	}
	return disks
}

func (r *nvmeRun) report(d *disk.NVMe, f checks.Finding, format string, args ...any) {
	r.findings = append(r.findings, f.Report(nvmeName, checks.NVMeDevice(d), format, args...))
}

func (r *nvmeRun) judge(d *disk.NVMe) {
	key := d.Name + " " + d.Serial
	if d.Err != nil {
		r.report(d, checks.Finding{Code: "nvme.error", Severity: checks.Unknown}, "cannot be read: %v", d.Err)
		if errors.Is(d.Err, fs.ErrNotExist) || d.State == "" {
			return
		}
	}
	values := map[string]uint64{}
	if at, ok := parseAddress(d.PCI); ok && d.Serial != "" && d.Model != "" && !disk.IsNetwork(d.Model) {
		values[nvmeAt] = at
	}
	unread := d.Err != nil || d.State != checks.NVMeLive
	defer func() {
		if unread {
			r.past.AddPart(key, values)
		} else {
			r.past.Add(key, values)
		}
	}()
	if d.State != checks.NVMeLive {
		values["passing"] = 1
		f := checks.Finding{Code: "nvme.state", Severity: checks.Fail, Remedy: checks.PowerCycle, Want: checks.NVMeLive, Got: d.State}
		if slices.Contains(nvmePassing, d.State) && r.past.Since(key, "passing", 1) < resetTime {
			f.Severity, f.Remedy = checks.Warn, checks.NoRemedy
		}
		r.report(d, f, "controller")
		return // it does not answer
	}
	values["passing"] = 0
	r.judgeNamespaces(d, key, values)
	hot := r.judgeHeat(d)
	r.env.At("ask /dev/%s for its health", d.Name)
	s, err := disk.NVMeSMART(r.env.Host, d.Name)
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist), errors.Is(err, disk.ErrNoSMART):
		r.silent, r.why = append(r.silent, d.Name), err
	case err != nil:
		unread = true
		r.report(d, checks.Finding{Code: "nvme.smart", Severity: checks.Unknown}, "cannot be read: %v", err)
	default:
		values["media"] = s.MediaErrors
		r.judgeSMART(d, s, hot)
		if g := r.past.Grown(key, "media", s.MediaErrors, 64, mediaWindow); g.Known && g.N > 0 {
			r.report(d, checks.Finding{Code: "nvme.media", Severity: checks.Warn, Remedy: checks.ReseatOrRMA, Want: "0", Got: fmt.Sprint(g.N)}, "media errors in the last 24 hours")
		}
	}
}

// nvmeAt is the key of a disk's PCI address, as a number, in the history.
const nvmeAt = "pci"

// parseAddress returns a PCI address as a number. formatAddress is its inverse.
func parseAddress(address string) (n uint64, ok bool) {
	var domain, bus, device, function uint64
	_, err := fmt.Sscanf(address, "%x:%x:%x.%x", &domain, &bus, &device, &function)
	return domain<<16 | bus<<8 | device<<3 | function, err == nil
}

func formatAddress(n uint64) string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", n>>16, n>>8&0xff, n>>3&0x1f, n&7)
}

// judgeGone fails on disks of the PCI bus that have disappeared since boot, but not on volumes of a
// cloud, which a person or a service detaches. The serial number identifies a disk that has another
// name now. It forgets a disk that was replaced, or passed to a virtual machine.
func (r *nvmeRun) judgeGone() {
	for _, key := range slices.Sorted(maps.Keys(r.past.File.Devices)) {
		name, serial, _ := strings.Cut(key, " ")
		at, known := r.past.Last(key, nvmeAt)
		chosen := len(r.Names) == 0 || slices.ContainsFunc(r.Names, func(n string) bool { return n != name && match.Glob(name, n) })
		d := checks.Device{Kind: "nvme", Name: name, PCI: formatAddress(at), Serial: serial}
		there := func(o disk.NVMe) bool { return o.Serial == serial || o.Serial == "" && o.Name == name }
		if !known || !chosen || slices.ContainsFunc(r.list, there) {
			continue
		}
		r.env.At("read /sys/bus/pci/devices/%s", d.PCI)
		bus := pci.ReadFunction(r.env.Host, d.PCI)
		replaced := func(o disk.NVMe) bool { return o.PCI == d.PCI && o.State != "" }
		if slices.Contains(fabric.GivenAway, bus.Driver) || slices.ContainsFunc(r.list, replaced) {
			delete(r.past.File.Devices, key)
			continue
		}
		where := "not on the PCI bus"
		if bus.Class != "" {
			where = "still on the PCI bus"
		}
		f := checks.Finding{Code: "nvme.gone", Severity: checks.Fail, Remedy: checks.PowerCycle}
		r.findings = append(r.findings, f.Report(nvmeName, d, "the disk has disappeared since boot, serial %s, %s", serial, where))
	}
}

// judgeNamespaces judges the namespaces of a controller. A person often makes one read-only: it only
// fails if it was writable earlier in this boot. A controller without any only fails if the disk had
// one earlier and has none on another controller: a new disk, a spare one and a secondary controller
// have none. Volumes of a cloud only warn.
func (r *nvmeRun) judgeNamespaces(d *disk.NVMe, key string, values map[string]uint64) {
	local := !disk.IsNetwork(d.Model)
	for _, s := range d.NameSpaces {
		if s.Sectors == 0 {
			r.report(d, checks.Finding{Code: "nvme.space", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}, "namespace %s has no size", s.Name)
		}
		counter := readOnly + s.Name
		switch {
		case s.RO && local && r.hadValue(key, counter, 0):
			r.report(d, checks.Finding{Code: "nvme.ro", Severity: checks.Fail}, "namespace %s has become read-only, by a fault or by an order", s.Name)
		case s.RO:
			r.report(d, checks.Finding{Code: "nvme.ro", Severity: checks.Warn}, "namespace %s is read-only", s.Name)
		}
		if d.Err == nil { // else it may be an unread value
			values[counter] = map[bool]uint64{true: 1}[s.RO]
		}
	}
	had := r.hadNamespace(d)
	marked := r.past.File.Devices[key] != nil && r.past.File.Devices[key].Marks[hadSpace] != nil
	if (had || hasNamespace(d)) && !marked && local && d.Serial != "" { // the history of another name expires
		r.past.Mark(key, hadSpace, r.past.Now)
	}
	switch {
	case len(d.NameSpaces) > 0 || d.Err != nil:
	case had && !slices.ContainsFunc(r.list, func(o disk.NVMe) bool { return o.Serial == d.Serial && hasNamespace(&o) }):
		r.report(d, checks.Finding{Code: "nvme.space", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}, "no namespace, but this disk had one")
	default:
		r.report(d, checks.Finding{Code: "nvme.space", Severity: checks.Warn}, "no namespace")
	}
}

// readOnly, before the name of a namespace, is a value of the history: 1 if the namespace is read-only.
// hadSpace is a mark in the history, which outlives a boot: the disk had a namespace.
const readOnly, hadSpace = "ro ", "namespace"

// hadValue reports whether a value of this boot's history has been n.
func (r *nvmeRun) hadValue(key, counter string, n uint64) bool {
	d := r.past.File.Devices[key]
	return d != nil && slices.ContainsFunc(d.Series[counter], func(p checks.Point) bool { return p.Value == n })
}

// hadNamespace reports whether a disk had a namespace in an earlier run, perhaps with another name.
func (r *nvmeRun) hadNamespace(d *disk.NVMe) bool {
	for key, past := range r.past.File.Devices {
		if _, serial, _ := strings.Cut(key, " "); serial == d.Serial && len(past.Marks[hadSpace]) > 0 {
			return true
		}
	}
	return false
}

// judgeHeat judges the temperature that the kernel reports, and returns whether it is too high.
func (r *nvmeRun) judgeHeat(d *disk.NVMe) (hot bool) {
	r.env.At("ask /dev/%s for its temperature", d.Name)
	heat, err := disk.NVMeHeat(r.env.Host, d.Name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.report(d, checks.Finding{Code: "nvme.error", Severity: checks.Unknown}, "cannot be read: %v", err)
	}
	if heat == nil {
		return false
	}
	return r.reportHot(d, heat.Celsius, heat.Critical)
}

// reportHot fails above TEMP, and warns at the disk's critical temperature.
func (r *nvmeRun) reportHot(d *disk.NVMe, now, critical float64) bool {
	f := checks.Finding{Code: "nvme.temp", Severity: checks.Warn, Got: fmt.Sprintf("%.0f C", now)}
	switch {
	case r.Temp > 0 && now > r.Temp:
		f.Severity, f.Want = checks.Fail, fmt.Sprintf("at most %g C", r.Temp)
	case critical > 0 && now >= critical:
		f.Want = fmt.Sprintf("below %.0f C", critical)
	default:
		return false
	}
	r.report(d, f, "temperature")
	return true
}

// judgeSMART judges the disk's health log.
func (r *nvmeRun) judgeSMART(d *disk.NVMe, s disk.SMART, hot bool) {
	for _, w := range []struct {
		bit      byte
		code     string
		severity checks.Severity
		text     string
	}{
		{disk.WarnDegraded, "nvme.degraded", checks.Fail, "reliability is degraded"},
		{disk.WarnReadOnly, "nvme.readonly", checks.Fail, "media is read-only"},
		{disk.WarnBackup, "nvme.backup", checks.Fail, "the backup of volatile memory has failed"},
		{disk.WarnPMR, "nvme.pmr", checks.Warn, "the persistent memory region is read-only or unreliable"},
	} {
		if s.Warning&w.bit != 0 {
			r.report(d, checks.Finding{Code: w.code, Severity: w.severity, Remedy: checks.ReseatOrRMA}, "%s", w.text)
		}
	}
	spare := checks.Finding{Code: "nvme.spare", Severity: checks.Warn, Remedy: checks.ReseatOrRMA, Want: fmt.Sprintf("at least %d %%", s.SpareLimit), Got: fmt.Sprintf("%d %%", s.Spare)}
	if r.Spare > 0 && s.Spare < r.Spare {
		spare.Severity, spare.Want = checks.Fail, fmt.Sprintf("at least %d %%", r.Spare)
	}
	if spare.Severity == checks.Fail || s.Spare < s.SpareLimit || s.Warning&disk.WarnSpare != 0 {
		r.report(d, spare, "spare blocks")
	}
	used := checks.Finding{Code: "nvme.used", Severity: checks.Warn, Want: "less than 100 %", Got: fmt.Sprintf("%d %%", s.Used)}
	if r.Used > 0 && s.Used > r.Used {
		used.Severity, used.Want = checks.Fail, fmt.Sprintf("at most %d %%", r.Used)
	}
	if used.Severity == checks.Fail || s.Used >= 100 {
		r.report(d, used, "lifetime used")
	}
	if hot {
		return
	}
	if math.IsNaN(s.Celsius) || !r.reportHot(d, s.Celsius, 0) {
		if s.Warning&disk.WarnTemperature != 0 {
			r.report(d, checks.Finding{Code: "nvme.temp", Severity: checks.Warn}, "the disk reports a temperature beyond its limit")
		}
	}
}

// hasNamespace reports whether a disk has a namespace that is not empty.
func hasNamespace(d *disk.NVMe) bool {
	for _, s := range d.NameSpaces {
		if s.Sectors > 0 {
			return true
		}
	}
	return false
}
