package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
)

// leftObject is an object that outlives the processes of its user: System V IPC, or a file in
// /dev/shm.
type leftObject struct {
	kind   string // "message queue"
	code   string
	name   string
	bytes  uint64
	made   time.Time
	public bool  // other users can access it
	pids   []int // its creator and last user, if known
	remove func() error
}

// ipcWords are the names of the kinds of System V IPC.
var ipcWords = map[jobscan.IPCKind]string{jobscan.SharedMemory: "shared memory segment", jobscan.MessageQueue: "message queue", jobscan.SemaphoreSets: "semaphore set"}

// reportObjects reports the IPC and the files of the job's user that no process uses: those that
// earlier epilogs had no time for, and the job's own. It removes them if nhc.toml requests that
// and no other claim exists.
func (r *leftRun) reportObjects(ctx context.Context) (findings []checks.Finding) {
	if int64(r.job.UID) <= r.system {
		return nil
	}
	if r.end {
		findings = r.earlier(ctx)
	}
	findings = append(findings, r.repeatPasses(ctx)...)
	if !r.more {
		return findings
	}
	f := checks.Finding{Code: "job.left.file", Severity: checks.Warn}.
		Describe(jobLeftoversName, "%s has more files in /dev/shm than this epilog had time for; the rest stays", r.userOf(r.job.UID))
	if r.end {
		f.Message += " until the next epilog"
		findings = append(findings, checks.KeepForLater(r.env, jobLeftoversName, shmRecords+r.job.ID, shmRecord{r.job.ID, r.job.UID, r.job.User, r.job.Began, time.Now()})...)
	}
	return append(findings, f)
}

// shmRecord is a job with files in /dev/shm that its epilog had no time for.
type shmRecord struct {
	Job   string    `json:"job"`
	UID   int       `json:"uid"`
	User  string    `json:"user"`
	Began time.Time `json:"began"`
	Until time.Time `json:"until"` // time of its epilog
}

const shmRecords = "shm-"

// earlier continues with files that earlier epilogs had no time for. Files that cannot be removed
// now wait for the next epilog.
func (r *leftRun) earlier(ctx context.Context) (findings []checks.Finding) {
	records, err := probe.Records(r.env.Host, shmRecords)
	if err != nil && !errors.Is(err, probe.ErrNoMemory) && !errors.Is(err, probe.ErrSilent) {
		return checks.Unreadable(err)
	}
	for _, raw := range records {
		if raw.Err != "" { // by its mode, for example: a passing error is a silence
			findings = append(findings, checks.Unreadable(errors.New(raw.Err))...)
			continue
		}
		var rec shmRecord
		if err := json.Unmarshal(raw.Data, &rec); err != nil || rec.Job == "" {
			_ = probe.Forget(r.env.Host, raw.Name)
			continue
		}
		if rec.Job == r.job.ID {
			continue // the earlier pass covers it
		}
		old := &leftRun{jobLeftovers: r.jobLeftovers, env: r.env, system: r.system, end: true, seen: r.seen, until: rec.Until, ended: []string{r.job.ID, r.job.Het},
			job: &checks.Job{ID: rec.Job, UID: rec.UID, User: rec.User, Node: r.job.Node, Began: rec.Began, Beside: r.job.Beside, Ended: true},
			ref: jobscan.JobRef{ID: rec.Job, UID: rec.UID, Node: r.job.Node}}
		findings = append(findings, old.repeatPasses(ctx)...)
		if !old.more && old.found == old.gone {
			_ = probe.Forget(r.env.Host, raw.Name)
		}
	}
	return findings
}

// mostLooks is the largest number of passes of an epilog over /dev/shm.
const mostLooks = 10

// repeatPasses repeats the pass until no file is left.
func (r *leftRun) repeatPasses(ctx context.Context) (findings []checks.Finding) {
	for range cmp.Or(r.looks, mostLooks) {
		before := r.gone
		findings = append(findings, r.makePass(ctx)...)
		if !r.more || r.gone == before || checks.Room(ctx) < time.Second {
			break
		}
	}
	return findings
}

// makePass makes one pass.
func (r *leftRun) makePass(ctx context.Context) []checks.Finding {
	list, findings := r.listUnused()
	list = slices.DeleteFunc(list, func(o leftObject) bool {
		return o.made.Before(r.job.Began) || !r.until.IsZero() && o.made.After(r.until)
	})
	r.found += len(list)
	if len(list) == 0 {
		return findings
	}
	c, err := r.claim()
	if err != nil {
		return append(findings, checks.Unreadable(err)...)
	}
	list = slices.DeleteFunc(list, func(o leftObject) bool { return o.isUsed(c) })
	switch {
	case r.end && c.sure && !c.others && slices.ContainsFunc(list, c.ofJob):
		if c.others, err = r.askSlurm(ctx); err != nil {
			c.sure, r.doubt = false, err.Error()
		}
	case c.unknown:
		c.sure = false
	}
	if c.others {
		return findings
	}
	for _, sure := range []bool{true, false} {
		groups := map[string][]leftObject{}
		for _, o := range list {
			if sure != c.ofJob(o) {
				continue
			}
			groups[o.kind] = append(groups[o.kind], o)
		}
		for _, kind := range []string{ipcWords[jobscan.SharedMemory], ipcWords[jobscan.MessageQueue], ipcWords[jobscan.SemaphoreSets], shmWord} {
			if len(groups[kind]) > 0 {
				findings = append(findings, r.reportGroup(groups[kind], sure))
			}
		}
	}
	return findings
}

const shmWord = "/dev/shm file"

// listUnused returns the objects of the job's user that no process has attached or open.
func (r *leftRun) listUnused() (list []leftObject, findings []checks.Finding) {
	uid := uint32(r.job.UID)
	r.env.At("read /proc/sysvipc")
	ipcs, err := jobscan.IPCs(r.env.Host)
	if err != nil {
		findings = checks.Unreadable(err)
	}
	for _, o := range ipcs {
		if o.UID == uid && o.Creator == uid && o.Attached == 0 {
			list = append(list, leftObject{kind: ipcWords[o.Kind], code: "job.left.ipc", name: strconv.Itoa(o.ID), bytes: o.Bytes, made: o.Changed,
				public: o.Mode&0o066 != 0, pids: o.PIDs, remove: func() error { return jobscan.RemoveIPC(r.env.Host, o) }})
		}
	}
	r.env.At("look through /dev/shm")
	files, more, err := jobscan.ShmFiles(r.env.Host, uid, r.job.Began)
	if r.more = more; err != nil {
		return list, append(findings, checks.Unreadable(err)...)
	}
	for _, f := range files {
		if !f.Opened {
			list = append(list, leftObject{kind: shmWord, code: "job.left.file", name: f.Path(), bytes: f.Bytes, made: f.Made,
				public: f.Mode&0o066 != 0, remove: func() error { return jobscan.RemoveShm(r.env.Host, f) }})
		}
	}
	return list, findings
}

// claim is the evidence on the owner of the objects.
type claim struct {
	others  bool             // not the job's: the user has another job here
	shared  bool             // other jobs run, with users who can use public objects
	unknown bool             // one of these has no user process, so only Slurm knows its user
	sure    bool             // the job's
	owners  map[int][]uint32 // users of the living processes, by pid
}

// ofJob reports whether an object surely belongs to the job.
func (c claim) ofJob(o leftObject) bool { return c.sure && (!o.public || !c.shared) }

func (r *leftRun) claim() (c claim, err error) {
	r.env.At("look for other jobs")
	users, err := jobscan.JobUsers(r.env.Host)
	if err != nil {
		return c, err
	}
	delete(users, r.job.ID)
	for _, id := range r.ended {
		delete(users, id)
	}
	c.sure = r.isPerson() && (!r.end || r.hasEnded()) && !r.job.Began.IsZero() && len(r.listLiving()) == 0 && !slices.Contains(r.job.Beside, r.job.UID)
	c.shared = len(users)+len(r.job.Beside) > 0
	for _, uids := range users {
		c.others = c.others || slices.Contains(uids, uint32(r.job.UID))
		c.unknown = c.unknown || len(uids) == 0 // it starts or ends, or has only its extern step
	}
	c.owners, err = jobscan.UsersOf(r.env.Host)
	for pid, uids := range c.owners {
		if old := r.seen[pid]; old != nil && old.gone {
			delete(c.owners, pid)
			continue
		}
		c.sure = c.sure && !slices.Contains(uids, uint32(r.job.UID))
	}
	return c, err
}

// isUsed reports whether the process that created an object, or used it last, still lives.
func (o *leftObject) isUsed(c claim) bool {
	return slices.ContainsFunc(o.pids, func(pid int) bool {
		_, alive := c.owners[pid]
		return alive
	})
}

// mostNamed is the most objects of a kind to name.
const mostNamed = 3

// reportGroup reports objects of a kind, and removes them.
func (r *leftRun) reportGroup(list []leftObject, sure bool) checks.Finding {
	f := checks.Finding{Code: list[0].code, Severity: checks.Warn}
	var bytes uint64
	var names []string
	for _, o := range list {
		bytes += o.bytes
		if names = append(names, fmt.Sprintf("%.80s", o.name)); len(names) > mostNamed {
			names = names[:mostNamed]
		}
	}
	text := checks.Plural(len(list), list[0].kind)
	if bytes > 0 {
		text += " (" + checks.Kilobytes((bytes+1023)/1024) + ")"
	}
	text += ": " + strings.Join(names, ", ")
	if more := len(list) - len(names); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	user := r.userOf(r.job.UID)
	if !sure {
		return f.Phrase(jobLeftoversName, "%s has %s, perhaps of job %s, which has ended%s", user, text, r.job.ID, checks.Before("; not removed: ", r.doubt, ""))
	}
	f.Severity = r.severity()
	return f.Phrase(jobLeftoversName, "job %s of %s has left %s%s", r.job.ID, user, text, r.removeAll(list))
}

// removeAll removes objects if that is requested, and describes the result.
func (r *leftRun) removeAll(list []leftObject) string {
	if !r.end {
		return ""
	}
	failed, held := 0, false
	var first error
	for _, o := range list {
		if !r.env.Acts("remove %s %s", o.kind, o.name) {
			held = true
			continue
		}
		r.env.At("remove %s %s", o.kind, o.name)
		if err := o.remove(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			if failed++; first == nil {
				first = err
			}
			continue
		}
		r.gone++
	}
	switch {
	case held:
		return ""
	case failed == 0:
		return "; removed"
	case len(list) == 1:
		return fmt.Sprintf("; not removed: %v", first)
	}
	return fmt.Sprintf("; %d not removed: %v", failed, first)
}
