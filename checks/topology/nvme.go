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

// nvmeHealth checks the NVMe disks, all on the PCI bus or each DEVICE that is named:
// their controller is live and shows name spaces, they are not too hot, and, asked
// by the kernel without a tool of their vendor, what they say of their own health.
//
// It fails on a controller that is dead, or that comes back from a reset no more; on a disk
// of the PCI bus that was there earlier in this boot and is gone; on a name space that the
// kernel has set read-only, on media that is read-only, on reliability that is degraded, on a backup of volatile
// memory that failed: data is at risk. It warns of what is about to be: spare blocks
// below the vendor's limit, life that is used up, new media errors, heat. SPARE, USED
// and TEMP fail in place of that. A virtual machine's disk may tell none of it, and
// anybody but root is not told: then there is a word, and no failure.
//
//	gpu* || check_nvme
//	gpu* || check_nvme -s 20 -u 95 -t 75 nvme0 'nvme[2-5]'
type nvmeHealth struct {
	Spare int      `opt:"s" toml:"spare"`       // percent of the spare blocks that must be left
	Used  int      `opt:"u" toml:"used"`        // percent of its life that a disk may have used
	Temp  float64  `opt:"t" toml:"temperature"` // highest temperature, degrees Celsius
	Names []string `arg:"*" toml:"devices"`     // controllers, nvme0, or globs; none: all on the PCI bus
}

const nvmeName = "check_nvme"

// nvmePassing are states that a controller leaves by itself, within the seconds that
// a reset takes; the others are for good (drivers/nvme/host, enum nvme_ctrl_state).
var nvmePassing = []string{"new", "resetting", "connecting"}

// resetTime is far more than a controller may take to be ready: CAP.TO of the NVM
// Express base specification has up to 127.5 s.
const resetTime = 3 * time.Minute

// mediaWindow is how long new media errors are told of: whoever looks once a day sees them.
const mediaWindow = 24 * time.Hour

func init() {
	const replace = "Take its data to safety and replace the disk; its serial number is in the finding. "
	checks.Register(checks.Info{
		Name:    nvmeName,
		Usage:   "[-s SPARE] [-u USED] [-t TEMP] [DEVICE...]",
		Summary: "NVMe disks are live and healthy",
		Lane:    checks.Local,
		New:     func() checks.Check { return &nvmeHealth{} },
		Do: func() map[string]string {
			return map[string]string{
				"nvme.none":     "Nothing: the node has no NVMe disk. If it should have some say so: check_nvme_count N; see lspci -d ::0108.",
				"nvme.missing":  "See ls /sys/class/nvme, lspci -d ::0108 and dmesg: the disk is dead or loose, or has another number since a reboot.",
				"nvme.state":    "The driver has given the controller up, or is resetting it: see dmesg. Reboot with the power off for a minute; if it comes back reseat it, then replace it.",
				"nvme.space":    "The controller lives, but shows no disk: see dmesg and nvme list-ns. A new disk may have none; one that had one is broken.",
				"nvme.degraded": replace + "It says itself that it is not to be relied on.",
				"nvme.readonly": replace + "It takes no more writes.",
				"nvme.ro":       "The kernel refuses to write to it: see dmesg for errors of this disk. If someone has set it: blockdev --setrw /dev/NAME.",
				"nvme.gone":     "The disk was there earlier in this boot: see dmesg and lspci -d ::0108. Reboot with the power off for a minute; reseat it, then replace it. If it was taken out on purpose remove nvme.json in /var/lib/nhc-gpu/NODE.",
				"nvme.backup":   replace + "What it has not written yet is lost when the power fails.",
				"nvme.pmr":      "Its persistent memory region is read-only or unreliable: whoever uses that must stop. Disks without users of it work on.",
				"nvme.spare":    "It wears out: plan its replacement.",
				"nvme.used":     "It has outlived the writes it was built for: plan its replacement.",
				"nvme.media":    "Data could not be read or written: see dmesg for the file system's word on it. If there are more replace the disk.",
				"nvme.temp":     "See fans and airflow, and whether its heat sink is on: hot disks are slow, and then go off.",
				"nvme.smart":    "Nothing was judged by the disk's own log: it has none, as in virtual machines, or the run was not root's. Unknown: try nvme smart-log, see dmesg.",
				"nvme.error":    "One disk could not be read: see the file that is named, as root, and dmesg. The others were judged.",
			}
		},
	})
}

// nvmeRun is one run of the check.
type nvmeRun struct {
	*nvmeHealth

	env      *checks.Env
	past     *checks.History
	findings []checks.Finding
	silent   []string // disks that tell nothing of their health, and why
	why      error
}

func (c *nvmeHealth) Run(_ context.Context, env *checks.Env) []checks.Finding {
	env.At("read /sys/class/nvme")
	list, err := disk.NVMes(env.Host, env.Doing)
	if err != nil {
		return checks.Unreadable(err)
	}
	r := &nvmeRun{nvmeHealth: c, env: env}
	disks := r.judged(list)
	r.past = env.RecallHistory(nvmeName, "nvme")
	r.judgeGone(list)
	if len(disks)+len(r.findings) == 0 {
		return []checks.Finding{checks.Finding{Code: "nvme.none", Severity: checks.Skip}.Describe(nvmeName, "no NVMe disk on this node")}
	}
	env.Fact("%s", checks.Plural(len(disks), "disk"))
	for _, d := range disks {
		r.judge(d, disks)
	}
	if len(r.silent) > 0 {
		r.findings = append(r.findings, checks.Finding{Code: "nvme.smart", Severity: checks.Skip}.
			Describe(nvmeName, "%s: not judged by its own log: %v", strings.Join(r.silent, " "), r.why))
	}
	return append(r.findings, r.past.Store(env)...)
}

// judged are the disks that the line is about.
func (r *nvmeRun) judged(list []disk.NVMe) (disks []*disk.NVMe) {
	names := r.Names
	if len(names) == 0 {
		names = []string{"*"}
	}
	for _, name := range names {
		found := false
		for i := range list {
			d := &list[i]
			if d.Name != name && !match.Glob(d.Name, name) || name == "*" && d.Transport != "" && d.Transport != "pcie" {
				continue
			}
			found = true
			if !slices.Contains(disks, d) {
				disks = append(disks, d)
			}
		}
		if !found && name != "*" {
			r.findings = append(r.findings, checks.Finding{Code: "nvme.missing", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Device: checks.Device{Kind: "nvme", Name: name}, Want: name, Got: "none"}.
				Describe(nvmeName, "no such controller"))
		}
	}
	return disks
}

func (r *nvmeRun) say(d *disk.NVMe, f checks.Finding, format string, args ...any) {
	r.findings = append(r.findings, f.Report(nvmeName, checks.NVMeDevice(d), format, args...))
}

func (r *nvmeRun) judge(d *disk.NVMe, all []*disk.NVMe) {
	key := d.Name + " " + d.Serial
	if d.Err != nil {
		r.say(d, checks.Finding{Code: "nvme.error", Severity: checks.Unknown}, "could not tell: %v", d.Err)
		if errors.Is(d.Err, fs.ErrNotExist) || d.State == "" {
			return
		}
	}
	values := map[string]uint64{}
	if at, ok := pciNumber(d.PCI); ok && d.Serial != "" {
		values[nvmeAt] = at
	}
	defer func() { r.past.Add(key, values) }()
	if d.State != checks.NVMeLive {
		values["passing"] = 1
		f := checks.Finding{Code: "nvme.state", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: checks.NVMeLive, Got: d.State}
		if slices.Contains(nvmePassing, d.State) && r.past.Since(key, "passing", 1) < resetTime {
			f.Severity, f.Remedy = checks.Warn, checks.NoRemedy
		}
		r.say(d, f, "controller")
		return // it would not answer
	}
	values["passing"] = 0
	r.judgeSpaces(d, all)
	hot := r.judgeHeat(d)
	r.env.At("ask /dev/%s for its health", d.Name)
	s, err := disk.NVMeSMART(r.env.Host, d.Name)
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist), errors.Is(err, disk.ErrNoSMART):
		r.silent, r.why = append(r.silent, d.Name), err
	case err != nil:
		r.say(d, checks.Finding{Code: "nvme.smart", Severity: checks.Unknown}, "could not tell: %v", err)
	default:
		values["media"] = s.MediaErrors
		r.judgeSMART(d, s, hot)
		if g := r.past.Grown(key, "media", s.MediaErrors, 64, mediaWindow); g.Known && g.N > 0 {
			r.say(d, checks.Finding{Code: "nvme.media", Severity: checks.Warn, Remedy: checks.ReseatOrRMA, Want: "0", Got: fmt.Sprint(g.N)}, "media errors in the last 24 hours")
		}
	}
}

// nvmeAt is what the history calls the address of a disk on the PCI bus, as a number.
const nvmeAt = "pci"

// pciNumber returns a PCI address as a number, and busAddress the address again.
func pciNumber(address string) (n uint64, ok bool) {
	var domain, bus, device, function uint64
	_, err := fmt.Sscanf(address, "%x:%x:%x.%x", &domain, &bus, &device, &function)
	return domain<<16 | bus<<8 | device<<3 | function, err == nil
}

func busAddress(n uint64) string {
	return fmt.Sprintf("%04x:%02x:%02x.%x", n>>16, n>>8&0xff, n>>3&0x1f, n&7)
}

// judgeGone fails the disks of the PCI bus that were there earlier in this boot. A serial
// number tells a disk that has another name now. One that was replaced, or given to a virtual
// machine, is forgotten.
func (r *nvmeRun) judgeGone(list []disk.NVMe) {
	for _, key := range slices.Sorted(maps.Keys(r.past.File.Devices)) {
		name, serial, _ := strings.Cut(key, " ")
		at, known := r.past.Last(key, nvmeAt)
		meant := len(r.Names) == 0 || slices.ContainsFunc(r.Names, func(n string) bool { return n != name && match.Glob(name, n) })
		d := checks.Device{Kind: "nvme", Name: name, PCI: busAddress(at), Serial: serial}
		there := func(o disk.NVMe) bool { return o.Serial == serial || o.Serial == "" && o.Name == name }
		if !known || !meant || slices.ContainsFunc(list, there) {
			continue
		}
		r.env.At("read /sys/bus/pci/devices/%s", d.PCI)
		bus := pci.ReadFunction(r.env.Host, d.PCI)
		replaced := func(o disk.NVMe) bool { return o.PCI == d.PCI && o.State != "" }
		if slices.Contains(fabric.GivenAway, bus.Driver) || slices.ContainsFunc(list, replaced) {
			delete(r.past.File.Devices, key)
			continue
		}
		where := "nor on the PCI bus"
		if bus.Class != "" {
			where = "it is on the PCI bus"
		}
		f := checks.Finding{Code: "nvme.gone", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}
		r.findings = append(r.findings, f.Report(nvmeName, d, "no NVMe disk any more, as it was earlier in this boot, serial %s; %s", serial, where))
	}
}

// judgeSpaces looks at what the controller shows as disks. None at all is only wrong
// where others of the same model have some: a new disk has none.
func (r *nvmeRun) judgeSpaces(d *disk.NVMe, all []*disk.NVMe) {
	for _, s := range d.NameSpaces {
		if s.Sectors == 0 {
			r.say(d, checks.Finding{Code: "nvme.space", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}, "name space %s has no size", s.Name)
		}
		if s.RO {
			r.say(d, checks.Finding{Code: "nvme.ro", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}, "name space %s is read-only", s.Name)
		}
	}
	if len(d.NameSpaces) > 0 || d.Err != nil {
		return
	}
	f := checks.Finding{Code: "nvme.space", Severity: checks.Warn, Remedy: checks.ReseatOrRMA}
	if slices.ContainsFunc(all, func(o *disk.NVMe) bool { return o.Model == d.Model && hasSpace(o) }) {
		f.Severity = checks.Fail
	}
	r.say(d, f, "no name space")
}

// judgeHeat asks the kernel for the temperature, and says whether it was too high.
func (r *nvmeRun) judgeHeat(d *disk.NVMe) (hot bool) {
	r.env.At("ask %s for its temperature", d.Name)
	heat, err := disk.NVMeHeat(r.env.Host, d.Name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.say(d, checks.Finding{Code: "nvme.error", Severity: checks.Unknown}, "could not tell: %v", err)
	}
	if heat == nil {
		return false
	}
	return r.tooHot(d, heat.Celsius, heat.Critical)
}

// tooHot fails above what the line allows, and warns at what the disk calls critical.
func (r *nvmeRun) tooHot(d *disk.NVMe, now, critical float64) bool {
	f := checks.Finding{Code: "nvme.temp", Severity: checks.Warn, Got: fmt.Sprintf("%.0f C", now)}
	switch {
	case r.Temp > 0 && now > r.Temp:
		f.Severity, f.Want = checks.Fail, fmt.Sprintf("at most %g C", r.Temp)
	case critical > 0 && now >= critical:
		f.Want = fmt.Sprintf("below %.0f C", critical)
	default:
		return false
	}
	r.say(d, f, "temperature")
	return true
}

// judgeSMART judges what the disk says of itself.
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
			r.say(d, checks.Finding{Code: w.code, Severity: w.severity, Remedy: checks.ReseatOrRMA}, "%s", w.text)
		}
	}
	spare := checks.Finding{Code: "nvme.spare", Severity: checks.Warn, Remedy: checks.ReseatOrRMA, Want: fmt.Sprintf("at least %d %%", s.SpareLimit), Got: fmt.Sprintf("%d %%", s.Spare)}
	if r.Spare > 0 && s.Spare < r.Spare {
		spare.Severity, spare.Want = checks.Fail, fmt.Sprintf("at least %d %%", r.Spare)
	}
	if spare.Severity == checks.Fail || s.Spare < s.SpareLimit || s.Warning&disk.WarnSpare != 0 {
		r.say(d, spare, "spare blocks")
	}
	used := checks.Finding{Code: "nvme.used", Severity: checks.Warn, Want: "less than 100 %", Got: fmt.Sprintf("%d %%", s.Used)}
	if r.Used > 0 && s.Used > r.Used {
		used.Severity, used.Want = checks.Fail, fmt.Sprintf("at most %d %%", r.Used)
	}
	if used.Severity == checks.Fail || s.Used >= 100 {
		r.say(d, used, "life used")
	}
	if hot {
		return
	}
	if math.IsNaN(s.Celsius) || !r.tooHot(d, s.Celsius, 0) {
		if s.Warning&disk.WarnTemperature != 0 {
			r.say(d, checks.Finding{Code: "nvme.temp", Severity: checks.Warn}, "the disk says that its temperature is beyond a limit")
		}
	}
}

// hasSpace says whether a disk has a name space of any size.
func hasSpace(d *disk.NVMe) bool {
	for _, s := range d.NameSpaces {
		if s.Sectors > 0 {
			return true
		}
	}
	return false
}
