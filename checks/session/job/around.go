package job

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Around holds the job of a prolog or an epilog.
type Around struct {
	records *Records

	Job   slurm.Job
	Blame session.Blame

	keep   bool          // the run keeps a record of the job
	node   []slurm.GPU   // all GPUs of the node
	asked  bool          // NVML, for the MIG devices of the job
	record *slurm.Record // the record of an epilog's job; nil if there is none
	counts counts        // the devices' counters at the end of the run

	faults          []slurm.Fault // the faults that began in the job
	looked, failing []string      // the checks that have run, and the codes that they reported
}

// NewAround returns the job that slurmd names.
func NewAround(r *Records) *Around { return &Around{records: r, Job: slurm.JobFrom(os.Getenv)} }

// AnyJob represents jobs without any known property.
func AnyJob(r *Records) *Around { return &Around{records: r, Job: slurm.Job{Share: slurm.AllGPUs}} }

// Find finds the GPUs of the job, and in an epilog the record of its prolog. line is true if the
// run has only one line (-e); such a run keeps no record.
func (a *Around) Find(line bool) {
	a.keep = a.Job.ID != "" && a.records.n.Set.Past != "" && !line
	if a.records.n.Role == slurm.Epilog {
		a.recall()
		a.Job.Recall(a.record)
	}
	if a.Job.Share == slurm.NoGPUs {
		a.Blame.Scope.Known = true
		return
	}
	o := a.records.n.Pool.Call(a.records.n.Ctx, checks.Local, &wire.Request{Op: wire.OpGPUs, Line: "read /proc/driver/nvidia"}, a.records.n.Budget.Reading(time.Now()))
	resp, err := o.Answer()
	if err != nil {
		a.records.n.Warn(fmt.Errorf("find the GPUs of %s: %w; each failure counts as the job's", a.name(), err))
		return
	}
	for i, g := range resp.GPUs {
		a.node = append(a.node, slurm.GPU{Index: i, Minor: g.Minor, PCI: g.Address, UUID: g.UUID})
	}
	if len(a.Job.MIG) == 0 {
		a.findScope()
	}
}

// FindMIG finds the GPUs with the MIG devices of the job, once. It queries NVML after the checks, or after
// the first failure: if NVML hangs, one of the checks must report it.
func (a *Around) FindMIG() {
	if len(a.Job.MIG) == 0 || a.asked {
		return
	}
	a.asked = true
	o := a.records.call(checks.NVML, &wire.Request{Op: wire.OpGPUs, Name: string(checks.NVML), Line: "find the MIG devices of the job"})
	resp, err := o.Answer()
	if err != nil {
		a.findScope(err.Error())
		return
	}
	for i := range a.node {
		a.node[i].MIG = resp.MIG[a.node[i].PCI]
	}
	a.findScope(resp.Doubts...)
}

// findScope finds the GPUs of the job among the GPUs of the node. doubts are the reasons why a MIG device may not be
// found.
func (a *Around) findScope(doubts ...string) {
	var numbering slurm.Numbering
	if g := a.records.n.Set.Slurm; g != nil {
		numbering = slurm.Numbering{Count: g.Count, Files: g.Files, Detect: g.Detect, Why: g.Why}
	}
	scope, why := slurm.ScopeOf(a.Job, numbering, a.node)
	a.Blame.Scope = scope
	if why != "" {
		why = strings.Join(append([]string{why}, doubts...), "; ")
		a.records.n.Warn(fmt.Errorf("find the GPUs of %s: %s; each failure counts as the job's", a.name(), why))
	}
}

// counts holds the present counters of the devices, in the order of the lanes.
type counts struct {
	counters []checks.Counters
	xids     []checks.XidSeen
	end      checks.LogMark
	doubts   []string
	lost     []checks.Finding // GPUs that this reading found to be lost
}

// Count reads the counters for the record, before the verdict, and returns the GPUs that are lost
// at that time: no check may have looked at them.
func (a *Around) Count() (lost []checks.Finding) {
	if !a.keep {
		return nil
	}
	since := checks.LogMark{}
	if a.records.n.Role == slurm.Epilog && a.record != nil {
		since = a.record.Log
	}
	a.counts = a.readCounts(since)
	return a.counts.lost
}

// readCounts queries NVML, if there are GPUs to query, and the kernel in parallel.
func (a *Around) readCounts(since checks.LogMark) (c counts) {
	lanes := []checks.Lane{checks.Local}
	if a.Job.Share != slurm.NoGPUs {
		lanes = append(lanes, checks.NVML)
	}
	out := make([]run.Outcome, len(lanes))
	var wg sync.WaitGroup
	for i, lane := range lanes {
		wg.Go(func() {
			out[i] = a.records.call(lane, &wire.Request{Op: wire.OpCount, Name: string(lane), Mark: &since, Line: "count for the record of the job"})
		})
	}
	wg.Wait()
	for i, o := range out {
		resp, err := o.Answer()
		c.add(lanes[i], resp, err)
	}
	return c
}

// add adds the answer of a lane.
func (c *counts) add(lane checks.Lane, resp *wire.Response, err error) {
	if err != nil {
		c.doubts = append(c.doubts, fmt.Sprintf("counters of %s: %v", lane, err))
		return
	}
	c.counters = append(c.counters, resp.Counters...)
	c.doubts = append(c.doubts, resp.Doubts...)
	c.lost = append(c.lost, resp.Findings...)
	if lane == checks.Local {
		c.xids = resp.Xids
		if resp.Mark != nil {
			c.end = *resp.Mark
		}
	}
}

// Open records the state of the node when the job begins; refused means that it does not begin.
func (a *Around) Open(refused bool) {
	if !a.keep {
		return
	}
	rec := slurm.NewRecord(a.Job, a.Blame.Scope, a.records.n.Name, node.ReadMoment())
	a.records.tidy(rec)
	c := a.counts
	rec.Counted, rec.Log, rec.Doubts = rec.OwnCounters(c.counters), c.end, c.doubts
	rec.Failing, rec.Looked = a.failing, a.looked
	if refused {
		rec.Outcome = slurm.ClosedRefused
	}
	data, err := json.Marshal(rec)
	if err == nil {
		err = a.records.call(checks.Local, &wire.Request{Op: wire.OpKeep, Name: rec.Name(), Data: data, Line: "write the record of the job"}).Failure()
	}
	if err != nil {
		a.records.n.Warn(fmt.Errorf("keep the record of job %s: %w", rec.Job, err))
	}
}

// recall finds the record that the job's prolog opened. The checks of the epilog need
// it.
func (a *Around) recall() {
	if !a.keep {
		return
	}
	list, _ := a.records.read(checks.Local, slurm.RecordPrefix+a.Job.ID)
	for _, rec := range list {
		if rec.Job == a.Job.ID {
			a.record = rec
		}
	}
}

// Close returns a line with the changes since the job began, "" for none. keep writes the record
// to the journal.
func (a *Around) Close() (line string, keep func()) {
	if !a.keep {
		return "", nil
	}
	rec := a.record
	if rec == nil && a.wasClosed() {
		return "", nil
	}
	if rec == nil {
		rec = slurm.NewRecord(a.Job, a.Blame.Scope, a.records.n.Name, slurm.Moment{})
		rec.Outcome = slurm.ClosedNoProlog
	}
	c := a.counts
	rec.Doubts = append(rec.Doubts, c.doubts...)
	rec.Faults = a.faults
	if code := os.Getenv("SLURM_JOB_EXIT_CODE2"); exitCode().MatchString(code) {
		rec.Exit = code
	}
	rec.Close(node.ReadMoment(), c.counters, c.xids)
	return "nhc-gpu: " + rec.Line(), func() {
		if failed(rec.Exit, os.Getenv("SLURM_JOB_DERIVED_EC")) {
			a.records.keepSamples(rec)
		}
		a.records.addToJournal(rec)
	}
}

// failed reports whether a job has failed: by the status of its script, or the highest of its steps.
func failed(exit, derived string) bool {
	n, err := strconv.Atoi(derived)
	return exit != "" && exit != "0:0" || err == nil && n > 0
}

// wasClosed reports whether the record of the job was closed in this boot. slurmd can run two
// epilogs for one job, after a prolog that failed or a restart of slurmctld (versions 22.05 and
// 24.11 were run).
func (a *Around) wasClosed() bool {
	resp, err := a.records.call(checks.Local, &wire.Request{Op: wire.OpNotes, Name: jobJournal, Most: journalMost, Line: "read the journal of jobs"}).Answer()
	return err == nil && closedIn(slurm.BootID(), a.Job.ID, resp.Lines)
}

// closedIn reports whether the last record of a job in the journal was closed in this boot.
func closedIn(boot, job string, journal [][]byte) bool {
	for _, line := range slices.Backward(journal) {
		if rec, err := slurm.ParseRecord(line); err == nil && rec.Job == job {
			return rec.End.Boot == boot
		}
	}
	return false
}

var exitCode = checks.Lazily(`^[0-9]{1,3}:[0-9]{1,3}$`)

// listOwn returns the record of an epilog's job, if it began in this boot.
func (a *Around) listOwn() []*slurm.Record {
	if rec := a.record; rec != nil && session.Runs(rec, slurm.BootID()) {
		return []*slurm.Record{rec}
	}
	return nil
}

// Attribute adds to each failure the job that it happened in: in an epilog, the epilog's job.
func (a *Around) Attribute(check string, list []checks.Finding) []checks.Finding {
	list, began := session.Attribute(check, list, a.listOwn, a.records.readXids)
	a.faults = append(a.faults, began...)
	return list
}

// Look records that a check has run, and its findings before the site's policy is
// applied.
func (a *Around) Look(check string, list []checks.Finding) {
	for _, f := range list {
		if f.Severity == checks.Fail {
			a.failing = append(a.failing, slurm.FailingKey(f))
		}
	}
	if !slices.ContainsFunc(list, func(f checks.Finding) bool { return f.Severity == checks.Unknown }) {
		a.looked = append(a.looked, check)
	}
}

// ForChecks returns the job as checks need it, with the site's settings for the role.
func (a *Around) ForChecks(role conf.Role) *checks.Job {
	j := &checks.Job{
		ID: a.Job.ID, UID: a.Job.UID, User: a.Job.User, Node: a.records.n.Set.Get("SLURMD_NODENAME"), Shared: a.Job.Shared,
		Whole: a.Job.Alone, Part: a.Job.Part, SLUID: a.Job.SLUID, Het: a.Job.Het, Restart: a.Job.Restart,
		Ended: a.records.n.Role == slurm.Epilog, End: role.End, Grace: role.Grace,
	}
	if j.Ended && j.ID != "" {
		var known bool
		if j.Beside, known = a.findBeside(); known {
			j.Began = session.BeganAt(a.Job, a.record, node.ReadMoment())
		}
		j.Again = a.record != nil && a.record.Restart > a.Job.Restart
	}
	if a.Blame.Scope.Known || a.Job.Share == slurm.AllGPUs && a.Job.Strange == "" {
		for _, g := range a.Blame.Scope.Own {
			j.GPUs = append(j.GPUs, checks.JobGPU{Minor: g.Minor, PCI: g.PCI, UUID: g.UUID})
		}
	}
	return j
}

// findBeside returns the users of the other jobs that run here. known is false if that is
// unknown.
func (a *Around) findBeside() (uids []int, known bool) {
	if !a.keep {
		return nil, true
	}
	open, _ := a.records.read(checks.Local, slurm.RecordPrefix)
	return session.Beside(a.Job.ID, a.record, open, slurm.BootID())
}

// name returns the job as a warning names it.
func (a *Around) name() string {
	if a.Job.ID == "" {
		return "the job (SLURM_JOB_ID is not set)"
	}
	return "job " + a.Job.ID
}
