package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/pcie"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/disk"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// kernelMessages checks the kernel's log for faults of network adapters that carry jobs' traffic,
// and of NVMe disks: a dead adapter, stopped firmware, a transceiver that is shorted, too hot or
// rejected, a disk that the driver removed. It warns of tasks and CPUs that hang in the kernel:
// hung tasks, lockups, RCU stalls. A fault fails until the driver restarts the device,
// the node boots, or an operator acknowledges it (nhc-gpu clear --ib DEVICE). A fault that the
// driver has recovered, and a fault that interrupts nothing, warns for HOURS (24). A fault of a
// transceiver fails only while its port is down, and after HOURS only if the port has been down
// since. "nhc-gpu explain MESSAGE" explains each message, and docs/reference/kernel-log.md lists
// them.
//
// Only lines of the kernel itself count. Messages about adapters without jobs' traffic, plugged
// cables, loaded drivers and resets by an administrator are not faults.
//
//	gpu* || check_kernel_log
type kernelMessages struct {
	Hours float64 `arg:"1" toml:"hours"` // duration of warnings, hours
}

// The name of the check, and of its state file.
const (
	KernelLogName = "check_kernel_log"
	kernelLogPast = "kernel-log"
)

// Limits of the state file.
const (
	messageEvents = 256
	messageTimes  = 32 // of one event
	messageRoles  = 128
	messageReset  = 5 * 60 // faults within this time after an administrator's reset belong to it, seconds
	messageNear   = 3 * 60 // messages of one device within this time are one incident, seconds
)

func init() {
	checks.Register(checks.Info{
		Name:    KernelLogName,
		Usage:   "[HOURS]",
		Summary: "the kernel's log reports no fault of an adapter or a disk, and no lockup",
		Lane:    checks.Local,
		New:     func() checks.Check { return &kernelMessages{Hours: 24} },
		Do: func() map[string]string {
			return map[string]string{
				"klog.none": "Nothing to repair: the node has no RDMA adapter and no NVMe disk, and the log names none.",
				"klog.past": "The history of messages cannot be stored, or was lost: check that root can read and write /var/lib/nhc-gpu. An invalid file is replaced and reported once.",
				"klog.lost": "See journalctl -k for that time. A larger log_buf_len, or a shorter interval of runs, avoids further losses.",
			}
		},
		DoOf: checks.DoMessage,
	})
}

func (c *kernelMessages) Validate() error {
	if !(c.Hours > 0 && c.Hours < 1e6) {
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(c.Hours), Want: "hours"}
	}
	return nil
}

// messageLog is the content of the state file: the messages of one boot.
type messageLog struct {
	Boot   string                 `json:"boot"`
	Cursor uint64                 `json:"cursor"` // first unread record
	Events []messageEvent         `json:"events,omitempty"`
	Resets map[string]int64       `json:"resets,omitempty"` // time of an administrator's reset, by card, Unix seconds
	Roles  map[string]messageRole `json:"roles,omitempty"`  // of adapters by PCI address and of disks by name, of any boot: a dead one has no device
}

// messageEvent is one message of one device.
type messageEvent struct {
	Driver    string  `json:"driver"`
	Code      string  `json:"code"`
	PCI       string  `json:"pci,omitempty"` // of an adapter; empty without a disk: of the kernel itself
	Disk      string  `json:"disk,omitempty"`
	Module    string  `json:"module,omitempty"`
	Number    int     `json:"number,omitempty"`
	Detail    string  `json:"detail,omitempty"`
	Text      string  `json:"text"`                // of the newest line
	Times     []int64 `json:"times"`               // of the newest lines, Unix seconds
	First     int64   `json:"first"`               // of the oldest line
	Lines     int     `json:"lines"`               // number of lines
	Recovered int64   `json:"recovered,omitempty"` // time of the line that ended it
	Worked    bool    `json:"worked,omitempty"`    // the link was up after the newest line
}

func (e *messageEvent) last() int64 { return e.Times[len(e.Times)-1] }

func (e *messageEvent) same(o *messageEvent) bool {
	return e.Driver == o.Driver && e.Code == o.Code && e.PCI == o.PCI && e.Disk == o.Disk && e.Module == o.Module
}

// messageRole describes an adapter or a disk that may have lost its device.
type messageRole struct {
	Name string `json:"name"` // of the port or the disk
	GUID string `json:"guid,omitempty"`
	Jobs bool   `json:"jobs"` // carries jobs' traffic; for a disk: is local
}

func (c *kernelMessages) Run(_ context.Context, env *checks.Env) []checks.Finding {
	if err := c.Validate(); err != nil { // from TOML, which Bind does not see
		return []checks.Finding{checks.Finding{Code: "config.value", Severity: checks.Unknown, Remedy: checks.FixConfig}.Describe(KernelLogName, "%v", err)}
	}
	j := &messageJudge{check: c, env: env, now: probe.Now(env.Host).Unix()}
	j.askDevices()
	j.recall()
	err := j.read()
	if len(j.adapters)+len(j.disks)+len(j.log.Events) == 0 {
		return append(j.notes, checks.Finding{Code: "klog.none", Severity: checks.Skip}.Describe(KernelLogName, "no RDMA adapter and no NVMe disk on this node"))
	}
	if err != nil {
		return append(j.notes, checks.UnreadableLog(env, KernelLogName, err)...)
	}
	env.Fact("%s of %s and %s", checks.Plural(len(j.log.Events), "message"), checks.Plural(len(j.adapters), "adapter"), checks.Plural(len(j.disks), "NVMe disk"))
	j.applyClears()
	found := j.findings()
	j.keep()
	return append(j.notes, found...)
}

// messageJudge judges the messages of one run.
type messageJudge struct {
	check    *kernelMessages
	env      *checks.Env
	now      int64
	epoch    int64 // Unix time of the log's time 0
	log      messageLog
	kept     bool // the state file is usable
	adapters map[string]*messageAdapter
	fabric   *Fabric // nil: unreadable
	disks    []disk.NVMe
	notes    []checks.Finding
}

// messageAdapter is an RDMA adapter of the node, by its PCI address.
type messageAdapter struct {
	ports []*Port
	jobs  bool // a port carries jobs' traffic
}

// askDevices reads the adapters and disks of the node. Other checks report errors.
func (j *messageJudge) askDevices() {
	j.adapters = map[string]*messageAdapter{}
	f, _ := Ask(j.env, KernelLogName)
	if j.fabric = f; f != nil {
		for i := range f.Ports {
			p := &f.Ports[i]
			if p.PCI == "" {
				continue
			}
			a := j.adapters[p.PCI]
			if a == nil {
				a = &messageAdapter{}
				j.adapters[p.PCI] = a
			}
			a.ports, a.jobs = append(a.ports, p), a.jobs || p.Left == ""
		}
	}
	j.env.At("read /sys/class/nvme")
	j.disks, _ = disk.NVMes(j.env.Host, j.env.Doing)
}

// recall reads the state file.
func (j *messageJudge) recall() {
	boot, err := probe.BootID(j.env.Host)
	j.env.At("read the state file")
	past := j.env.Recall(kernelLogPast, &j.log)
	j.kept = err == nil && boot != "" && !errors.Is(past, probe.ErrNoMemory)
	if past == nil && !j.log.sound() {
		past = errors.New(kernelLogPast + ".json: invalid content")
	}
	if past != nil {
		j.log = messageLog{}
		if !errors.Is(past, fs.ErrNotExist) && !errors.Is(past, probe.ErrNoMemory) {
			j.notes = append(j.notes, checks.Finding{Code: "klog.past", Severity: checks.Warn}.Describe(KernelLogName, "%v; a new record begins", past))
		}
	}
	if j.log.Boot != boot {
		j.log = messageLog{Boot: boot, Roles: j.log.Roles}
	}
}

// sound rejects content that no run has written.
func (l *messageLog) sound() bool {
	if len(l.Events) > messageEvents || len(l.Roles) > messageRoles || len(l.Resets) > messageRoles {
		return false
	}
	return !slices.ContainsFunc(l.Events, func(e messageEvent) bool {
		text := e.Text + e.Detail + e.PCI + e.Disk + e.Module
		return checks.MessageTable().Row(e.Driver, e.Code) == nil || len(e.Times) == 0 || len(e.Times) > messageTimes || len(text) > 3*checks.MaxXidText ||
			strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
	})
}

// read reads the lines since the last run.
func (j *messageJudge) read() (err error) {
	if j.epoch, err = probe.LogEpoch(j.env.Host); err != nil {
		return err
	}
	from := j.log.Cursor
	end, err := checks.ReadKernelLog(j.env, from, checks.AboutDevice, j.take)
	if err != nil {
		return err
	}
	if end.Next > 0 && end.Next < from { // another log than that of the cursor
		j.log.Events, j.log.Resets, from = nil, nil, 0
		if end, err = checks.ReadKernelLog(j.env, 0, checks.AboutDevice, j.take); err != nil {
			return err
		}
	}
	if end.Next > 0 {
		j.log.Cursor = end.Next
	}
	if from > 0 && end.First > from || end.Overrun {
		j.notes = append(j.notes, checks.Finding{Code: "klog.lost", Severity: checks.Warn}.
			Describe(KernelLogName, "kernel log lines were overwritten before they were read: they may have reported a fault"))
	}
	return nil
}

// take records one genuine line.
func (j *messageJudge) take(r probe.KernelRecord, line checks.KernelLine) {
	at, row := j.epoch+int64(r.At.Seconds()), line.Row
	e := messageEvent{
		Driver: row.Driver, Code: row.Code, PCI: line.PCI, Module: line.Module, Detail: checks.XidText(line.Detail),
		Text: checks.XidText(line.Text), Times: []int64{at}, First: at, Lines: 1,
	}
	if row.Driver == "nvme" {
		e.Disk = line.Dev
	}
	if len(row.Numbers) > 0 {
		e.Number, _ = checks.ParseCode(line.Number)
	}
	switch {
	case row.Begins:
		j.end(&e, "")
	case row.Expects:
		if j.log.Resets == nil {
			j.log.Resets = map[string]int64{}
		}
		if len(j.log.Resets) < messageRoles {
			j.log.Resets[pcie.CardOf(e.PCI)] = at
		}
	case len(row.Clears) > 0:
		for _, code := range row.Clears {
			j.end(&e, code)
		}
	case row.Class != checks.XidIgnore:
		if reset, ok := j.log.Resets[pcie.CardOf(e.PCI)]; ok && !row.Final && e.PCI != "" && at >= reset && at-reset <= messageReset {
			return
		}
		j.note(e)
	}
}

// note adds a message to its event.
func (j *messageJudge) note(e messageEvent) {
	i := slices.IndexFunc(j.log.Events, func(o messageEvent) bool { return o.same(&e) })
	if i < 0 {
		if len(j.log.Events) < messageEvents {
			j.log.Events = append(j.log.Events, e)
		}
		return
	}
	old := &j.log.Events[i]
	e.Times = append(slices.Clone(old.Times), e.Times...)
	e.Times = e.Times[max(0, len(e.Times)-messageTimes):]
	e.First, e.Lines = old.First, old.Lines+1
	if old.Recovered > 0 { // a new fault
		e.First = e.last()
	}
	*old = e
}

// end ends the faults of a device: all of them, or those of a code and a module.
func (j *messageJudge) end(by *messageEvent, code string) {
	for i := range j.log.Events {
		e := &j.log.Events[i]
		if e.PCI != by.PCI || e.Disk != by.Disk || !strings.HasPrefix(e.Code, code) || by.Module != "" && e.Module != by.Module {
			continue
		}
		if checks.MessageTable().Row(e.Driver, e.Code).Until == "" && e.Recovered == 0 {
			e.Recovered = by.last()
		}
	}
}

// applyClears removes acknowledged events.
func (j *messageJudge) applyClears() {
	clears, err := readIBClears(j.env)
	if err != nil {
		j.notes = append(j.notes, checks.Finding{Code: "ib.clear", Severity: checks.Warn}.Describe(KernelLogName, "acknowledgements of port errors are lost, repeat nhc-gpu clear --ib: %v", err))
	}
	j.log.Events = slices.DeleteFunc(j.log.Events, func(e messageEvent) bool {
		d, _ := j.device(&e)
		return slices.ContainsFunc(clears, func(c ibClear) bool { return c.At <= j.now && e.last() <= c.At && c.covers(nameToClear(d)) })
	})
}

// nameToClear returns the name of a device in nhc-gpu clear --ib: "kernel" for messages of the kernel itself.
func nameToClear(d checks.Device) string {
	if d == (checks.Device{}) {
		return "kernel"
	}
	return d.Name
}

// device returns the device of a message. It is judged if it carries jobs' traffic; one without
// an RDMA device is judged by its former role. A message of the kernel itself has none.
func (j *messageJudge) device(e *messageEvent) (d checks.Device, judged bool) {
	if e.PCI == "" && e.Disk == "" {
		return d, true
	}
	if e.Disk != "" {
		for i := range j.disks {
			if d := &j.disks[i]; d.Name == e.Disk {
				return checks.NVMeDevice(d), local(d)
			}
		}
		r, known := j.log.Roles[e.Disk]
		return checks.Device{Kind: "nvme", Name: e.Disk}, !known || r.Jobs
	}
	for _, pci := range j.listFunctions(e.PCI) {
		a := j.adapters[pci]
		if a == nil {
			continue
		}
		d = a.ports[0].Subject()
		if len(a.ports) > 1 {
			d = HCADevice(a.ports[0].HCA)
		}
		return d, a.jobs
	}
	if r, known := j.log.Roles[e.PCI]; known {
		return checks.Device{Kind: "port", Name: r.Name, PCI: e.PCI, UUID: r.GUID}, r.Jobs
	}
	return checks.Device{Kind: "hca", PCI: e.PCI}, false
}

// local reports whether a disk belongs to this node, and is no disk of a network or volume of a cloud.
func local(d *disk.NVMe) bool {
	return (d.Transport == "" || d.Transport == "pcie") && !disk.IsNetwork(d.Model)
}

// listFunctions returns the addresses of an adapter: its own, and that of another function of its
// card, as for the ports of a bond.
func (j *messageJudge) listFunctions(pci string) []string {
	list := []string{pci}
	for other := range j.adapters {
		if other != pci && pcie.CardOf(other) == pcie.CardOf(pci) && j.adapters[other].ports[0].HCA.PCI == other && strings.Contains(j.adapters[other].ports[0].Device, "bond") {
			list = append(list, other)
		}
	}
	return list
}

// listMessageDevices returns the devices with messages.
func listMessageDevices(env *checks.Env) (names []string) {
	j := &messageJudge{env: env, now: probe.Now(env.Host).Unix()}
	j.askDevices()
	j.recall()
	j.applyClears()
	for i := range j.log.Events {
		if d, judged := j.device(&j.log.Events[i]); judged && !slices.Contains(names, nameToClear(d)) {
			names = append(names, nameToClear(d))
		}
	}
	return names
}

// keep stores the messages, and the roles of the adapters.
func (j *messageJudge) keep() {
	if j.log.Roles == nil {
		j.log.Roles = map[string]messageRole{}
	}
	for pci, a := range j.adapters {
		if _, known := j.log.Roles[pci]; known || len(j.log.Roles) < messageRoles {
			j.log.Roles[pci] = messageRole{Name: a.ports[0].Name(), GUID: a.ports[0].HCA.GUID, Jobs: a.jobs}
		}
	}
	for i := range j.disks {
		d := &j.disks[i]
		if _, known := j.log.Roles[d.Name]; known || len(j.log.Roles) < messageRoles {
			j.log.Roles[d.Name] = messageRole{Name: d.Name, Jobs: local(d)}
		}
	}
	if !j.kept {
		return
	}
	j.env.At("write the state file")
	if err := j.env.Remember(kernelLogPast, &j.log); err != nil && !errors.Is(err, probe.ErrNoMemory) {
		j.notes = append(j.notes, checks.Finding{Code: "klog.past", Severity: checks.Warn}.Describe(KernelLogName, "%v", err))
	}
}

// messageCase is a fault that still counts.
type messageCase struct {
	*messageEvent

	row    *checks.MessageRow
	device checks.Device
	fails  bool
	works  bool // the fault is over
	notes  []string
	until  string
}

// findings returns the findings of all faults that still count, failures last.
func (j *messageJudge) findings() (list []checks.Finding) {
	var cases []*messageCase
	for i := range j.log.Events {
		if c := j.judge(&j.log.Events[i]); c != nil {
			cases = append(cases, c)
		}
	}
	slices.SortStableFunc(cases, func(a, b *messageCase) int {
		return cmp.Or(strings.Compare(a.device.PCI+a.device.Name, b.device.PCI+b.device.Name), cmp.Compare(a.First, b.First))
	})
	for _, fails := range []bool{false, true} {
		for _, c := range combineCases(cases) {
			if c.fails == fails {
				list = append(list, j.finding(c))
			}
		}
	}
	return list
}

// combineCases keeps one failure for each device, the first, and adds the other messages to it.
func combineCases(cases []*messageCase) (list []*messageCase) {
	first := map[string]*messageCase{}
	for _, c := range cases {
		if key := c.device.PCI + c.device.Name; c.fails && first[key] == nil {
			first[key] = c
		}
	}
	for _, c := range cases {
		main := first[c.device.PCI+c.device.Name]
		near := main != nil && max(c.First-main.last(), main.First-c.last()) <= messageNear
		if main == nil || main == c || !c.fails && !near {
			list = append(list, c)
			continue
		}
		main.also(c.row.Means)
		if c.row.Until != "" || c.fails && c.row.Remedy.Rank() > main.row.Remedy.Rank() { // that one requires more
			main.until, main.row = c.until, &checks.MessageRow{Code: main.row.Code, Means: main.row.Means, Numbers: main.row.Numbers, Remedy: c.row.Remedy, Do: c.row.Do}
		}
	}
	return list
}

func (c *messageCase) also(note string) {
	if note != "" && !slices.Contains(c.notes, note) {
		c.notes = append(c.notes, note)
	}
}

// judge returns the case of a message, nil if it does not count.
func (j *messageJudge) judge(e *messageEvent) *messageCase {
	c := &messageCase{messageEvent: e, row: checks.MessageTable().Row(e.Driver, e.Code), until: "watch it"}
	var judged bool
	c.device, judged = j.device(e)
	old := e.last() < j.now-int64(j.check.Hours*60*60)
	c.fails = c.row.Class == checks.XidReboot
	if !judged {
		if !c.fails || e.Recovered > 0 || c.device.Name != "" || errors.Is(pci.ReadFunction(j.env.Host, e.PCI).Err, fs.ErrNotExist) {
			return nil // it carries no jobs' traffic, or is gone
		}
		c.fails = false
		c.also("which has no RDMA device")
	}
	c.also(e.Detail)
	switch {
	case e.Recovered > 0 && strings.HasPrefix(e.Code, "nic.module."):
		return nil
	case c.row.Peers && j.everywhere(e):
		return nil
	case c.row.State == "link":
		down, up := j.link(c)
		e.Worked = e.Worked || up
		if down && (!old || !e.Worked) {
			c.fails = true
			c.also("the link is down")
		}
	case c.row.State == "live" && j.isLive(e.Disk):
		c.fails, c.works = false, true
		c.also("the disk works again")
	case e.Recovered > 0 && c.fails:
		c.fails, c.works, c.until = false, true, "the driver recovered it: watch it"
	}
	if c.fails {
		c.until = "a reboot clears it"
		switch {
		case c.row.State == "link":
			c.until = "check the transceiver and the cable"
		case c.row.Until == "boot", c.row.Remedy == checks.PowerCycle:
			c.until = "power the node off and on"
		}
		return c
	}
	if rule := c.row.Repeat; rule != nil && judged {
		n, before := 0, int64(0)
		for _, at := range e.Times { // several lines within one minute are one incident
			if at >= j.now-int64(rule.Hours)*60*60 && at-before >= 60 {
				n, before = n+1, at
			}
		}
		if n >= rule.Events {
			c.fails = true
			c.also(strings.Replace(fmt.Sprintf("%d times within %d hours", n, rule.Hours), " 1 hours", " an hour", 1))
			c.until = "update its firmware, then replace it"
		}
	}
	if old && !c.fails {
		return nil
	}
	return c
}

// everywhere reports whether every device of a driver has the message: then it is a property of
// the platform.
func (j *messageJudge) everywhere(e *messageEvent) bool {
	driver, devices := pci.ReadFunction(j.env.Host, e.PCI).Driver, 0
	for bdf := range j.adapters {
		if d := pci.ReadFunction(j.env.Host, bdf); d.VF || d.Driver != driver {
			continue
		}
		devices++
		other := *e
		other.PCI = bdf
		if !slices.ContainsFunc(j.log.Events, func(o messageEvent) bool { return o.same(&other) }) {
			return false
		}
	}
	return devices > 1
}

// link reports whether a port of the device has no link now, or each has one. A port that waits for the subnet
// manager has a link, and links that train after a boot are not a fault yet.
func (j *messageJudge) link(c *messageCase) (down, up bool) {
	a := j.adapters[c.PCI]
	if a == nil {
		return false, false
	}
	up = true
	for _, p := range a.ports {
		if p.Left == "" && !checks.PortActive(p.IBPort) {
			up = false
			unlinked := p.Phys != checks.IBLinkUp && (p.Phys != "" || p.State == checks.IBDown)
			down = down || unlinked && !isGarbled(p.IBPort) && !j.fabric.isStarting(p)
		}
	}
	return down, up
}

// isLive reports whether a disk's controller works.
func (j *messageJudge) isLive(name string) bool {
	return slices.ContainsFunc(j.disks, func(d disk.NVMe) bool { return d.Name == name && d.State == checks.NVMeLive })
}

func (j *messageJudge) finding(c *messageCase) checks.Finding {
	f := checks.Finding{
		Code: c.Code, Severity: checks.Warn, Device: c.device, Remedy: c.row.Remedy, Want: "no such message",
		Got: fmt.Sprintf("%d lines, last at %s: %s", c.Lines, checks.Clock(c.last()), c.Text),
	}
	if c.row.Do != checks.DoMessage(c.Code) { // drivers share codes
		f.Do = c.row.Do
	}
	if c.works && !c.fails {
		f.Remedy, f.Do = checks.NoRemedy, "Nothing now: the device works again. If the message returns, have it replaced."
	}
	if c.fails {
		f.Severity = checks.Fail
	}
	notes := c.notes
	if a := j.adapters[c.PCI]; a != nil && len(a.ports[0].NetDevs) > 0 {
		notes = append(notes, "interface "+strings.Join(a.ports[0].NetDevs, " "))
	}
	text := strings.Join(append([]string{c.row.Meaning(c.Number)}, notes...), ", ")
	if c.device != (checks.Device{}) {
		text = c.device.String() + ": " + text
	}
	return f.Phrase(KernelLogName, "%s, since %s: %s", text, checks.Clock(c.First), c.until)
}
