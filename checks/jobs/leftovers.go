// Package jobs has the checks of what a job leaves behind, and reads what its devices count.
package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
)

// jobLeftovers looks, in the epilog of a job, for what the job has left behind on
// the node: processes, by their cgroup, or by SLURM_JOB_ID in the environment of
// its user's; System V shared memory, message queues and semaphores; files in
// /dev/shm. It first waits a moment for them to go by themselves. What is left is a
// warning, with -f a failure. A process that no signal can end always fails: one
// that was killed, sleeps in state D all the while, and does nothing.
//
// Nothing is changed unless -e or leftovers = "end" in [epilog] of nhc.toml wants
// it. Then the job's processes are asked to end, SIGTERM, and made to, SIGKILL: those
// whose cgroup or environment names the job and that run as its user alone, never
// as root or a user of the system. IPC and files are removed if they can be nobody
// else's: they were made after the job began, its user has no other job and no
// other process on the node, and nobody has them attached, open or mapped. If they
// might be somebody else's that is said, or nothing: so with another job of that user.
//
// In an epilog it is run though no line asks for it, unless one names it, or
// [policy.job] of nhc.toml has contexts = []. Elsewhere it looks whether processes
// that it could not end are still there, so that a health check which names it
// does not put the node back into service before they are gone.
//
//   - || check_job_leftovers -g 5
type jobLeftovers struct {
	Grace time.Duration `opt:"g" toml:"grace"` // seconds that processes have to go by themselves; without it the grace of [epilog] in nhc.toml
	End   bool          `opt:"e" toml:"end"`   // end the processes and remove the rest
	Fail  bool          `opt:"f" toml:"fail"`  // fail, in place of a warning
	Stuck time.Duration `opt:"s" toml:"stuck"` // seconds in state D after which no signal can end a process that was killed
	looks int           // largest number of passes over /dev/shm; 0: mostLooks
}

const jobLeftoversName = "check_job_leftovers"

// stuckAfter is how long a killed process must be seen to sleep in state D: one
// that dies may wait for its files to be written. slurmd itself waits 60 seconds
// (UnkillableStepTimeout) before the epilog begins.
const stuckAfter = 5 * time.Second

func init() {
	checks.Register(checks.Info{
		Name:    jobLeftoversName,
		Usage:   "[-e] [-f] [-g SECONDS] [-s SECONDS]",
		Summary: "an ended job has left no process, IPC or file in /dev/shm behind",
		Lane:    checks.Local,
		New:     func() checks.Check { return &jobLeftovers{Stuck: stuckAfter} },
		Acts:    func(c checks.Check) bool { return c.(*jobLeftovers).End },
		Waits:   true,
		Vars:    map[string]string{"MAX_SYS_UID": "", "LOGIN_DEFS_SRC": "/etc/login.defs", "SQUEUE_CMD": checks.DefaultSqueue, "SLURM_CONF": ""},
		Do: func() map[string]string {
			return map[string]string{
				"job.left.process": "End it unless its user may stay: proctrack/cgroup in slurm.conf has Slurm do that, leftovers = \"end\" in nhc.toml this program.",
				"job.left.stuck":   "It sleeps in the kernel: see what its wait channel waits for (a file server, the GPU's driver; dmesg). If that cannot be helped reboot.",
				"job.left.ipc":     "ipcs -a shows it, ipcrm removes it; leftovers = \"end\" in nhc.toml does that.",
				"job.left.file":    "Remove it when nobody needs it: it takes memory. leftovers = \"end\" in nhc.toml does that; job_container/tmpfs gives each job a /dev/shm of its own.",
			}
		},
	})
}

func (c *jobLeftovers) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	job := env.Job
	switch {
	case job == nil:
		return stillStuck(env)
	case !job.Ended || job.ID == "":
		return noJob(jobLeftoversName)
	}
	system, failed := checks.MaxSystemUID(env, jobLeftoversName)
	if failed != nil {
		return failed
	}
	r := &leftRun{
		jobLeftovers: c, env: env, job: job, system: system, ref: jobscan.JobRef{ID: job.ID, UID: job.UID, Node: job.Node, Het: job.Het, Restart: job.Restart},
		end: c.End || job.End, seen: map[int]*leftProcess{},
	}
	r.processes(ctx)
	if slices.ContainsFunc(r.living(), r.isStuck) {
		return r.report() // what reads more of such a process may hang, too
	}
	return append(r.report(), r.objects(ctx)...)
}

// leftRun is one run of the check.
type leftRun struct {
	*jobLeftovers

	env    *checks.Env
	job    *checks.Job
	ref    jobscan.JobRef
	system int64 // the last uid that is never ended
	end    bool
	seen   map[int]*leftProcess
	runs   string // why the job may not have ended after all
	doubt  string // why its user may have another job here, although none is visible
	err    error  // why a process could not be looked into, at the last look

	// Of IPC and files.
	until       time.Time // objects created later are not the job's; zero: the job has just ended
	ended       []string  // other jobs that have ended, whatever Slurm says
	more        bool      // there are files that were not looked at
	found, gone int       // number of objects found, and removed
}

// leftProcess is a process of the job, and what has become of it.
type leftProcess struct {
	jobscan.JobProcess

	asleep time.Time // since when it is seen to sleep though it was killed; zero: it does something
	asked  bool      // to end
	killed bool
	held   bool // the run carries out no actions
	gone   bool
	err    error // why it could not be ended
}

// termWait is how long a process has to end when it is asked to.
const termWait = 2 * time.Second

// processes looks for the job's processes until they are gone or the time is over,
// and ends them if that is wanted. It leaves a quarter of the step's time.
func (r *leftRun) processes(ctx context.Context) {
	left := checks.Room(ctx)
	finish := time.Now().Add(left)
	need := r.Stuck
	if r.end {
		need += termWait
	}
	within := func(d time.Duration) time.Time { return earlier(finish, time.Now().Add(d)) }

	grace := min(cmp.Or(r.Grace, r.job.Grace), max(left-need, 0))
	r.poll(within(grace), func() bool { return !slices.ContainsFunc(r.living(), unclaimed) })
	if r.end && slices.ContainsFunc(r.living(), r.mayEnd) && r.hasEnded() {
		over := func() bool { return !slices.ContainsFunc(r.living(), r.mayEnd) }
		r.poll(within(termWait), func() bool { return r.signal(false) || over() })
		r.poll(within(r.Stuck+termWait), func() bool {
			r.signal(true)
			return !slices.ContainsFunc(r.living(), func(p *leftProcess) bool { return r.mayEnd(p) && !r.isStuck(p) })
		})
	}
	r.poll(within(r.Stuck+termWait), func() bool {
		return !slices.ContainsFunc(r.living(), func(p *leftProcess) bool { return !p.asleep.IsZero() && !r.isStuck(p) })
	})
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// The first and the longest pause between two looks.
const (
	firstPause = 5 * time.Millisecond
	mostPause  = 200 * time.Millisecond
)

// poll looks at the processes until done says that it is enough, or the time is over.
func (r *leftRun) poll(until time.Time, done func() bool) {
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		r.look()
		left := time.Until(until)
		if done() || left <= 0 {
			return
		}
		time.Sleep(min(pause, left))
	}
}

// look takes note of what the job has now.
func (r *leftRun) look() {
	r.env.At("look for the processes of job %s", r.job.ID)
	var list []jobscan.JobProcess
	list, r.err = jobscan.JobProcesses(r.env.Host, r.ref)
	found := map[int]bool{}
	for _, p := range list {
		found[p.PID] = true
		r.note(p)
	}
	for pid, old := range r.seen {
		if found[pid] || old.gone {
			continue
		}
		if now, there := jobscan.JobProcessNow(r.env.Host, r.ref, old.JobProcess); there { // it exits
			r.note(now)
		} else {
			old.gone = true
		}
	}
}

func (r *leftRun) note(p jobscan.JobProcess) {
	old := r.seen[p.PID]
	if old == nil || old.Start != p.Start {
		old = &leftProcess{JobProcess: p}
		r.seen[p.PID] = old
	}
	switch {
	case !p.Asleep || !p.Killed:
		old.asleep = time.Time{}
	case old.asleep.IsZero() || old.Progress != p.Progress:
		old.asleep = time.Now()
	}
	if strings.HasPrefix(p.Args, "[") { // it slept just now, or exits
		p.Args = old.Args
	}
	old.JobProcess, old.gone = p, false
}

// living are the processes that are still there, by pid.
func (r *leftRun) living() (list []*leftProcess) {
	for _, p := range r.all() {
		if !p.gone {
			list = append(list, p)
		}
	}
	return list
}

func (r *leftRun) all() []*leftProcess {
	list := make([]*leftProcess, 0, len(r.seen))
	for _, p := range r.seen {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *leftProcess) int { return a.PID - b.PID })
	return list
}

// isStuck says whether no signal can end a process.
func (r *leftRun) isStuck(p *leftProcess) bool {
	return !p.asleep.IsZero() && time.Since(p.asleep) >= r.Stuck
}

// mayEnd says whether a process may be ended.
func (r *leftRun) mayEnd(p *leftProcess) bool { return !p.held && r.keeps(p) == "" }

// unclaimed reports whether a process should have ended with its job.
func unclaimed(p *leftProcess) bool { return p.Claim == "" }

// signal asks all to end that may be ended, or makes them. It says false: their end
// is to be seen.
func (r *leftRun) signal(kill bool) bool {
	for _, p := range r.living() {
		done := &p.asked
		if kill {
			done = &p.killed
		}
		if *done || !r.mayEnd(p) {
			continue
		}
		if !r.env.Acts("end %s, of job %s", r.env.ProcessText(p.Process), r.job.ID) {
			p.held = true
			continue
		}
		r.env.At("end process %d", p.PID)
		if err := jobscan.EndJobProcess(r.env.Host, r.ref, p.JobProcess, kill); errors.Is(err, os.ErrProcessDone) {
			continue
		} else if p.err = err; err == nil {
			*done = true
		}
	}
	return false
}

// mostReported bounds what is said: a job may leave thousands of processes.
const mostReported = 20

// report says what became of each process.
func (r *leftRun) report() (findings []checks.Finding) {
	if r.err != nil {
		findings = checks.Unreadable(r.err)
	}
	more := 0
	var stuck []*leftProcess
	for _, p := range r.all() {
		hangs := !p.gone && r.isStuck(p)
		switch {
		case p.gone && !p.asked && !p.killed: // it went by itself
		case hangs:
			stuck = append(stuck, p)
			findings = append(findings, r.finding(p, checks.Finding{Code: "job.left.stuck", Severity: checks.Fail, Remedy: checks.RebootNode}, r.hangs(p)))
		case more < mostReported:
			more++
			f := checks.Finding{Code: "job.left.process", Severity: r.severity()}
			if p.Claim != "" {
				f.Severity = checks.Warn // it may stay
			}
			findings = append(findings, r.finding(p, f, r.fate(p)))
		default:
			more++
		}
	}
	if more > mostReported {
		findings = append(findings, checks.Finding{Code: "job.left.process", Severity: r.severity()}.
			Describe(jobLeftoversName, "job %s has left %d processes, of which these are %d", r.job.ID, more+len(stuck), mostReported+len(stuck)))
	}
	return append(findings, r.remember(stuck)...)
}

func (r *leftRun) severity() checks.Severity {
	if r.Fail {
		return checks.Fail
	}
	return checks.Warn
}

func (r *leftRun) finding(p *leftProcess, f checks.Finding, fate string) checks.Finding {
	f.Device = checks.Device{Kind: "process", Name: fmt.Sprintf("%.40s", p.Command())}
	return f.Phrase(jobLeftoversName, "%s's process %d (%.40s) of job %s %s", r.userOf(int(p.UID)), p.PID, p.Command(), r.job.ID, fate)
}

// userOf is the name of a user, the number of one without an account.
func (r *leftRun) userOf(uid int) string {
	if uid == r.job.UID && r.job.User != "" {
		return r.job.User
	}
	return checks.OwnerOrUID(r.env, probe.Process{UID: uint32(uid)})
}
