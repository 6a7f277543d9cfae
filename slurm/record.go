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

// Record holds the data of a job on this node. The prolog opens it, the epilog closes
// it.
type Record struct {
	Version int    `json:"version"`
	Job     string `json:"job"`
	Restart int    `json:"restart,omitempty"` // number of requeues
	UID     int    `json:"uid"`               // -1: unknown
	User    string `json:"user,omitempty"`
	Node    string `json:"node"`

	Whole  bool  `json:"whole,omitempty"`  // the job has the whole node
	Unsure bool  `json:"unsure,omitempty"` // its GPUs are unknown: they may be any
	Shared bool  `json:"shared,omitempty"` // other jobs can have parts of its GPUs
	GPUs   []GPU `json:"gpus,omitempty"`   // its GPUs

	OneNode bool   `json:"one_node,omitempty"`   // the job has no other node
	First   string `json:"first_node,omitempty"` // the name of its first node, "" if unknown

	Begin Moment `json:"begin,omitzero"`
	End   Moment `json:"end,omitzero"`

	// Only in an open record: the counters and the failures at the beginning of the job.
	Counted []checks.Counters `json:"counted,omitempty"`
	Log     checks.LogMark    `json:"log,omitzero"`
	Failing []string          `json:"failing,omitempty"` // see FailingKey
	Looked  []string          `json:"looked,omitempty"`  // the checks that ran at that time

	Outcome string           `json:"outcome,omitempty"` // how it was closed, see Closed...
	Exit    string           `json:"exit,omitempty"`    // exit status of the job, "1:0"
	Changes []Change         `json:"changes,omitempty"`
	Xids    []checks.XidSeen `json:"xids,omitempty"`
	Faults  []Fault          `json:"faults,omitempty"`  // the faults that began in the job
	Samples string           `json:"samples,omitempty"` // the archive with its samples, if it has failed
	Doubts  []string         `json:"doubts,omitempty"`  // data that is unknown, and why
}

// recordVersion is the version of the format. Other versions are not read.
const recordVersion = 1

// The reasons for closing a record.
const (
	ClosedWhole    = "complete"
	ClosedNoProlog = "no prolog" // no check ran when it began
	ClosedNoEpilog = "no epilog" // no check ran when it ended
	ClosedReboot   = "rebooted"  // the node was rebooted while it ran
	ClosedRefused  = "refused"   // the prolog refused it
	ClosedBetween  = "rebooted, then epilog"
)

// Moment is a point in time. The clock can be set, so the time that has passed within one boot is
// computed from Uptime.
type Moment struct {
	Time   time.Time `json:"time"`           // UTC
	Boot   string    `json:"boot,omitempty"` // boot ID
	Uptime float64   `json:"uptime"`         // seconds since the boot
}

// Since returns the time from an earlier moment; it is known only within one boot.
func (m Moment) Since(begin Moment) (d time.Duration, known bool) {
	if begin.Boot == "" || begin.Boot != m.Boot || m.Uptime < begin.Uptime {
		return 0, false
	}
	return time.Duration((m.Uptime - begin.Uptime) * float64(time.Second)).Round(time.Second), true
}

// Change is the growth of a counter while a job ran.
type Change struct {
	Device checks.Device `json:"device"`
	Name   string        `json:"name"`
	By     uint64        `json:"by"`
	Reset  bool          `json:"reset,omitempty"` // it was reset in between: By is its present value
	Gone   bool          `json:"gone,omitempty"`  // the device no longer has this counter
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
		Whole: j.Alone, Unsure: !j.Alone && !s.Known, Shared: j.Shared, GPUs: s.Own, OneNode: j.OneNode, First: j.First, Begin: now,
	}
}

// ParseRecord parses a stored record.
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

// RecordPrefix begins the names of open records.
const RecordPrefix = "job-"

// Name returns the name of the open record.
func (r *Record) Name() string { return RecordPrefix + r.Job }

// FailingKey identifies a failure, to determine whether it existed
// before.
func FailingKey(f checks.Finding) string {
	return f.Code + " " + cmp.Or(f.Device.PCI, f.Device.UUID, f.Device.Name)
}

// Has reports whether a device may belong to the job: it is one of its GPUs, or the job has the
// whole node.
func (r *Record) Has(d checks.Device) bool {
	if r.Whole || r.Unsure {
		return true
	}
	return d.Kind == "gpu" && slices.ContainsFunc(r.GPUs, func(g GPU) bool {
		return d.PCI != "" && d.PCI == g.PCI || d.UUID != "" && d.UUID == g.UUID
	})
}

// Began reports whether a failure began in the job: it is about a device of the job, the check ran
// before and did not report it, and a failure from the kernel log has its first line after the
// record was opened. xids are the Xids since then.
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

// EndedBefore returns how the job of an open record ended when another job, or the same job again,
// begins; "" if it can still run. running reports whether a job has a process here. parts means
// that jobs can have parts of a GPU: the environment of a prolog does not distinguish a part
// (gres/shard) from a whole GPU, so a GPU in both jobs proves nothing.
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
		return ClosedNoEpilog // the job had the whole node
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

// Close completes the record after the end of the job. now is the present time, counted the present
// counters, xids the Xids since the record was opened.
func (r *Record) Close(now Moment, counted []checks.Counters, xids []checks.XidSeen) {
	r.End = now
	slices.Sort(r.Doubts)
	r.Doubts = slices.Compact(r.Doubts)
	switch {
	case r.Outcome == ClosedNoProlog:
		return // the earlier counters are unknown
	case r.Outcome == "" && r.Begin.Boot != now.Boot:
		r.Outcome = ClosedBetween
	case r.Outcome == "":
		r.Outcome = ClosedWhole
	}
	r.Changes = compareCounters(r.OwnCounters(r.Counted), r.OwnCounters(counted))
	r.addXids(xids)
	r.seal()
}

// OwnCounters returns the counters that belong in the record: the counters of other GPUs are in the
// records of other jobs.
func (r *Record) OwnCounters(list []checks.Counters) []checks.Counters {
	return slices.DeleteFunc(slices.Clone(list), func(c checks.Counters) bool { return c.Device.Kind == "gpu" && !r.Has(c.Device) })
}

// addXids adds the Xids that concern the job.
func (r *Record) addXids(xids []checks.XidSeen) {
	for _, x := range xids {
		if x.Switch || r.Has(checks.Device{Kind: "gpu", PCI: x.PCI}) {
			r.Xids = append(r.Xids, x)
		}
	}
}

// seal removes the data that only an open record needs.
func (r *Record) seal() { r.Counted, r.Log, r.Failing, r.Looked = nil, checks.LogMark{}, nil, nil }

// Abandon closes the record of a job whose epilog did not run. xids are the Xids since it was
// opened that can only be its own.
func (r *Record) Abandon(outcome string, now Moment, xids []checks.XidSeen) {
	if r.Outcome == "" {
		r.Outcome = outcome
	}
	r.End = now
	r.addXids(xids)
	r.seal()
}

// compareCounters returns the changes of the devices' counters.
func compareCounters(then, now []checks.Counters) (list []Change) {
	old := byDevice(then)
	for key, c := range byDevice(now) {
		before, known := old[key]
		if !known {
			continue // there was no value when the job began
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

// byDevice merges the counters of one device from several sources.
func byDevice(list []checks.Counters) map[string]checks.Counters {
	all := map[string]checks.Counters{}
	for _, c := range list {
		key := c.Device.Kind + " " + cmp.Or(c.Device.PCI, c.Device.UUID)
		if c.Device.Kind != "gpu" {
			key += " " + c.Device.Name // several ports can share an address
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
