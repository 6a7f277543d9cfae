package slurm

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Record is what is known of a job on this node. The prolog opens it, the epilog
// closes it.
type Record struct {
	Version int    `json:"version"`
	Job     string `json:"job"`
	Restart int    `json:"restart,omitempty"` // how often the job was requeued
	UID     int    `json:"uid"`               // -1: not known
	User    string `json:"user,omitempty"`
	Node    string `json:"node"`

	Whole  bool  `json:"whole,omitempty"`  // it has the node for itself
	Unsure bool  `json:"unsure,omitempty"` // nobody knows which GPUs it has: it may be any
	Shared bool  `json:"shared,omitempty"` // other jobs may have parts of its GPUs
	GPUs   []GPU `json:"gpus,omitempty"`   // its GPUs

	Begin Moment `json:"begin,omitzero"`
	End   Moment `json:"end,omitzero"`

	// Until it is closed: what was counted, and what was wrong, when it began.
	Counted []checks.Counters `json:"counted,omitempty"`
	Log     checks.LogMark    `json:"log,omitzero"`
	Failing []string          `json:"failing,omitempty"` // see FailingKey
	Looked  []string          `json:"looked,omitempty"`  // the checks that have answered then

	Outcome string           `json:"outcome,omitempty"` // how it was closed, see Closed...
	Exit    string           `json:"exit,omitempty"`    // of the job, "1:0"
	Changes []Change         `json:"changes,omitempty"`
	Xids    []checks.XidSeen `json:"xids,omitempty"`
	Faults  []Fault          `json:"faults,omitempty"` // that began in the job
	Doubts  []string         `json:"doubts,omitempty"` // what is not known, and why
}

// recordVersion is that of the form of records. Another one is not read.
const recordVersion = 1

// How records are closed.
const (
	ClosedWhole    = "complete"
	ClosedNoProlog = "no prolog" // nobody has looked when it began
	ClosedNoEpilog = "no epilog" // nobody has looked when it ended
	ClosedReboot   = "rebooted"  // the node was booted while it ran
	ClosedRefused  = "refused"   // the prolog has sent it away
	ClosedBetween  = "rebooted, then epilog"
)

// Moment is a point in time. The clock may be set in between, so that how much
// time has passed in one boot is told by the time since it.
type Moment struct {
	Time   time.Time `json:"time"`           // UTC
	Boot   string    `json:"boot,omitempty"` // boot id
	Uptime float64   `json:"uptime"`         // seconds since the boot
}

// Since is the time from an earlier moment, known within one boot.
func (m Moment) Since(begin Moment) (d time.Duration, known bool) {
	if begin.Boot == "" || begin.Boot != m.Boot || m.Uptime < begin.Uptime {
		return 0, false
	}
	return time.Duration((m.Uptime - begin.Uptime) * float64(time.Second)).Round(time.Second), true
}

// Change is how far a counter has gone on while a job ran.
type Change struct {
	Device checks.Device `json:"device"`
	Name   string        `json:"name"`
	By     uint64        `json:"by"`
	Reset  bool          `json:"reset,omitempty"` // it has begun anew in between: By is what it has now
	Gone   bool          `json:"gone,omitempty"`  // the device counts nothing any more
}

// Fault is a failure that began while a job ran.
type Fault struct {
	Code    string        `json:"code"`
	Device  checks.Device `json:"device,omitzero"`
	Message string        `json:"message"`
}

// NewRecord opens the record of a job.
func NewRecord(j Job, s Scope, node string, now Moment) *Record {
	return &Record{
		Version: recordVersion, Job: j.ID, Restart: j.Restart, UID: j.UID, User: j.User, Node: node,
		Whole: j.Alone, Unsure: !j.Alone && !s.Known, Shared: j.Shared, GPUs: s.Own, Begin: now,
	}
}

// ParseRecord reads what a run has left.
func ParseRecord(data []byte) (*Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, fmt.Errorf("read the record of a job: %w", err)
	}
	if r.Version != recordVersion || digits(r.Job) == "" {
		return nil, fmt.Errorf("read the record of a job: job %.20q, version %d, want version %d", r.Job, r.Version, recordVersion)
	}
	return &r, nil
}

// RecordPrefix is what the names of open records begin with.
const RecordPrefix = "job-"

// Name is the name of the open record.
func (r *Record) Name() string { return RecordPrefix + r.Job }

// FailingKey tells one failure from another, for the question whether it was there
// before.
func FailingKey(f checks.Finding) string {
	return f.Code + " " + cmp.Or(f.Device.PCI, f.Device.UUID, f.Device.Name)
}

// Has says whether a device may be the job's: it is one of its GPUs, or anything if
// it has the whole node.
func (r *Record) Has(d checks.Device) bool {
	if r.Whole || r.Unsure {
		return true
	}
	return d.Kind == "gpu" && slices.ContainsFunc(r.GPUs, func(g GPU) bool {
		return d.PCI != "" && d.PCI == g.PCI || d.UUID != "" && d.UUID == g.UUID
	})
}

// Began says whether a failure that a check has found has begun in the job: it is
// about what the job has, the check had looked before and not found it, and if it is
// one of the kernel's log the log has its first line since. xids are those since the
// record was opened.
func (r *Record) Began(check string, f checks.Finding, xids []checks.XidSeen) bool {
	if f.Code == "" || r.Unsure || !r.Has(f.Device) || slices.Contains(r.Failing, FailingKey(f)) {
		return false
	}
	if !strings.HasPrefix(f.Code, "gpu.xid.") && !strings.HasPrefix(f.Code, "gpu.sxid.") {
		return slices.Contains(r.Looked, check)
	}
	return slices.ContainsFunc(xids, func(x checks.XidSeen) bool {
		return x.Finding() == f.Code && x.PCI == f.Device.PCI && !x.Before
	})
}

// EndedBefore says how the job ended whose record is still open when another, or
// the same job again, begins; "" if it may still run. running says whether a job
// has a process here. parts says that jobs may have parts of a GPU: nothing in a
// prolog's environment distinguishes one with a part (gres/shard) from one that has
// all of it, so that a GPU that both have proves nothing.
func (r *Record) EndedBefore(now *Record, parts bool, running func(job string) bool) (outcome string) {
	if outcome = r.endedBefore(now, parts); outcome == ClosedNoEpilog && r.Job != now.Job && running(r.Job) {
		return ""
	}
	return outcome
}

func (r *Record) endedBefore(now *Record, parts bool) (outcome string) {
	switch {
	case r.Begin.Boot != now.Begin.Boot:
		return ClosedReboot
	case r.Job == now.Job:
		return ClosedNoEpilog
	case r.Whole || now.Whole:
		return ClosedNoEpilog // the node had no other job
	case parts || r.Shared || now.Shared || r.Unsure || now.Unsure:
		return ""
	}
	for _, g := range r.GPUs {
		if now.Has(checks.Device{Kind: "gpu", PCI: g.PCI, UUID: g.UUID}) {
			return ClosedNoEpilog // a GPU has one job at a time
		}
	}
	return ""
}

// Close completes the record when the job has ended: now counts what counted says,
// xids are those since it was opened.
func (r *Record) Close(now Moment, counted []checks.Counters, xids []checks.XidSeen) {
	r.End = now
	slices.Sort(r.Doubts)
	r.Doubts = slices.Compact(r.Doubts)
	switch {
	case r.Outcome == ClosedNoProlog:
		return // nobody knows what was there before
	case r.Outcome == "" && r.Begin.Boot != now.Boot:
		r.Outcome = ClosedBetween
	case r.Outcome == "":
		r.Outcome = ClosedWhole
	}
	r.Changes = changes(r.OwnCounters(r.Counted), r.OwnCounters(counted))
	r.take(xids)
	r.seal()
}

// OwnCounters are those of a list that are to be in the record: of other GPUs
// another job's prolog and epilog keep them.
func (r *Record) OwnCounters(list []checks.Counters) []checks.Counters {
	return slices.DeleteFunc(slices.Clone(list), func(c checks.Counters) bool { return c.Device.Kind == "gpu" && !r.Has(c.Device) })
}

// take keeps the Xids that concern the job.
func (r *Record) take(xids []checks.XidSeen) {
	for _, x := range xids {
		if x.Switch || r.Has(checks.Device{Kind: "gpu", PCI: x.PCI}) {
			r.Xids = append(r.Xids, x)
		}
	}
}

// seal drops what only an open record needs.
func (r *Record) seal() { r.Counted, r.Log, r.Failing, r.Looked = nil, checks.LogMark{}, nil, nil }

// Abandon closes the record of a job whose epilog has not run. xids are those since
// it was opened, as far as they can only be its own.
func (r *Record) Abandon(outcome string, now Moment, xids []checks.XidSeen) {
	if r.Outcome == "" {
		r.Outcome = outcome
	}
	r.End = now
	r.take(xids)
	r.seal()
}

// changes compares what devices have counted.
func changes(then, now []checks.Counters) (list []Change) {
	old := byDevice(then)
	for key, c := range byDevice(now) {
		before, known := old[key]
		if !known {
			continue // it was not counted when the job began
		}
		for name, n := range c.Values {
			switch was, counted := before.Values[name]; {
			case !counted || n == was:
			case n > was:
				list = append(list, Change{Device: c.Device, Name: name, By: n - was})
			default:
				list = append(list, Change{Device: c.Device, Name: name, By: n, Reset: true})
			}
		}
		delete(old, key)
	}
	for _, c := range old {
		list = append(list, Change{Device: c.Device, Name: "device", Gone: true})
	}
	slices.SortFunc(list, func(a, b Change) int {
		return cmp.Or(strings.Compare(a.Device.Name+a.Device.PCI, b.Device.Name+b.Device.PCI), strings.Compare(a.Name, b.Name))
	})
	return list
}

// byDevice brings together what several sources have counted of one device.
func byDevice(list []checks.Counters) map[string]checks.Counters {
	all := map[string]checks.Counters{}
	for _, c := range list {
		key := c.Device.Kind + " " + cmp.Or(c.Device.PCI, c.Device.UUID)
		if c.Device.Kind != "gpu" {
			key += " " + c.Device.Name // several ports may share an address
		}
		have, ok := all[key]
		if !ok {
			all[key] = checks.Counters{Device: c.Device, Values: maps.Clone(c.Values)}
			continue
		}
		maps.Copy(have.Values, c.Values)
		if have.Device.Name == "" {
			have.Device = c.Device
		}
		all[key] = have
	}
	return all
}
