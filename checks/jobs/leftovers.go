// Package jobs has the checks of an ended job's leftovers, and reads the error counters of its
// devices.
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

// jobLeftovers checks, in the epilog of a job, that the job has left nothing on the node:
// processes, found by their cgroup, or by SLURM_JOB_ID in the environment of its user's
// processes; System V shared memory, message queues and semaphores; files in /dev/shm. It waits
// up to -g SECONDS first, so that processes can end on their own. Leftovers warn, with -f fail. A
// process that no signal can end always fails: it was killed, and has slept in state D without
// progress for -s SECONDS (5).
//
// It changes nothing unless -e or leftovers = "end" in [epilog] of nhc.toml is set. Then it ends
// the job's processes, with SIGTERM and then SIGKILL: those whose cgroup or environment names the
// job and that run only as its user, never as root or a system user. It removes IPC and files if
// they certainly belong to the job: created after the job began, while its user has no other job
// and no other process on the node, and no process has them attached, open or mapped. In doubt it
// only reports them, or nothing if that user has another job.
//
// In an epilog it runs even if no line names it, unless [policy.job] of nhc.toml has contexts =
// []. In a health check it looks for the processes that it could not end, so that a line with it
// keeps the node drained until they are gone.
//
//	node* || check_job_leftovers -g 5
type jobLeftovers struct {
	Grace time.Duration `opt:"g" toml:"grace"` // time for processes to end on their own, seconds; 0: the grace of [epilog] in nhc.toml
	End   bool          `opt:"e" toml:"end"`   // end the processes and remove the rest
	Fail  bool          `opt:"f" toml:"fail"`  // fail instead of warn
	Stuck time.Duration `opt:"s" toml:"stuck"` // time in state D after which a killed process counts as stuck, seconds
	looks int           // largest number of passes over /dev/shm; 0: mostLooks
}

const jobLeftoversName = "check_job_leftovers"

// stuckAfter is how long a killed process must sleep in state D to count as stuck: a process that
// exits can wait for its files to be written. slurmd itself waits 60 seconds
// (UnkillableStepTimeout) before the epilog starts.
const stuckAfter = 5 * time.Second

func init() {
	checks.Register(checks.Info{
		Name:    jobLeftoversName,
		Usage:   "[-e] [-f] [-g SECONDS] [-s SECONDS]",
		Summary: "no process, IPC object or /dev/shm file of an ended job remains",
		Lane:    checks.Local,
		New:     func() checks.Check { return &jobLeftovers{Stuck: stuckAfter} },
		Acts:    func(c checks.Check) bool { return c.(*jobLeftovers).End },
		Waits:   true,
		Vars:    map[string]string{"MAX_SYS_UID": "", "LOGIN_DEFS_SRC": "/etc/login.defs", "SQUEUE_CMD": checks.DefaultSqueue, "SLURM_CONF": ""},
		Do: func() map[string]string {
			return map[string]string{
				"job.left.none":    "Nothing to repair: no process that an epilog could not end remains.",
				"job.left.process": "End it, unless its user may stay on the node. With proctrack/cgroup in slurm.conf Slurm ends such processes, with leftovers = \"end\" in nhc.toml nhc-gpu does.",
				"job.left.stuck":   "The process sleeps in the kernel: see its wait channel (a file server, the GPU's driver) and dmesg. If the cause cannot be fixed reboot the node.",
				"job.left.ipc":     "Remove it: ipcs -a lists it, ipcrm removes it. With leftovers = \"end\" in nhc.toml nhc-gpu does.",
				"job.left.file":    "Remove it if no process needs it: it uses memory. With leftovers = \"end\" in nhc.toml nhc-gpu does; job_container/tmpfs gives each job a /dev/shm of its own.",
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
		return reportNoJob(jobLeftoversName)
	}
	system, failed := checks.MaxSystemUID(env, jobLeftoversName)
	if failed != nil {
		return failed
	}
	r := &leftRun{
		jobLeftovers: c, env: env, job: job, system: system, ref: jobscan.JobRef{ID: job.ID, SLUID: job.SLUID, UID: job.UID, Node: job.Node, Het: job.Het, Restart: job.Restart},
		end: c.End || job.End, seen: map[int]*leftProcess{},
	}
	r.awaitProcesses(ctx)
	if slices.ContainsFunc(r.listLiving(), r.isStuck) {
		return r.report() // what reads more of such a process may hang, too
	}
	return append(r.report(), r.reportObjects(ctx)...)
}

// leftRun is one run of the check.
type leftRun struct {
	*jobLeftovers

	env    *checks.Env
	job    *checks.Job
	ref    jobscan.JobRef
	system int64 // highest uid that is never ended
	end    bool
	seen   map[int]*leftProcess
	runs   string // why the job may still run
	doubt  string // why its user may have another job here, although none is visible
	err    error  // error of the last look into a process

	// For IPC and files:
	until       time.Time // objects created later are not the job's; zero: the job has just ended
	ended       []string  // other jobs that have ended, whatever Slurm reports
	more        bool      // files remain that were not looked at
	found, gone int       // number of objects found, and removed
}

// leftProcess is a process of the job, and its state.
type leftProcess struct {
	jobscan.JobProcess

	gpus   []int     // the N of each /dev/nvidiaN that it has open
	asleep time.Time // since when it sleeps without progress after it was killed; zero: it does not
	asked  bool      // SIGTERM was sent
	killed bool
	held   bool // the run carries out no actions
	gone   bool
	err    error // why it could not be ended
}

// termWait is the time for a process to end after SIGTERM.
const termWait = 2 * time.Second

// awaitProcesses looks for the job's processes until they are gone or the time is over, and ends them
// if requested. It leaves a quarter of the step's time.
func (r *leftRun) awaitProcesses(ctx context.Context) {
	left := checks.Room(ctx)
	finish := time.Now().Add(left)
	need := r.Stuck
	if r.end {
		need += termWait
	}
	within := func(d time.Duration) time.Time { return earlier(finish, time.Now().Add(d)) }

	grace := min(cmp.Or(r.Grace, r.job.Grace), max(left-need, 0))
	r.poll(within(grace), func() bool { return !slices.ContainsFunc(r.listLiving(), isUnclaimed) })
	if r.end && slices.ContainsFunc(r.listLiving(), r.mayEnd) && r.hasEnded() {
		over := func() bool { return !slices.ContainsFunc(r.listLiving(), r.mayEnd) }
		r.poll(within(termWait), func() bool { return r.signal(false) || over() })
		r.poll(within(r.Stuck+termWait), func() bool {
			r.signal(true)
			return !slices.ContainsFunc(r.listLiving(), func(p *leftProcess) bool { return r.mayEnd(p) && !r.isStuck(p) })
		})
	}
	r.poll(within(r.Stuck+termWait), func() bool {
		return !slices.ContainsFunc(r.listLiving(), func(p *leftProcess) bool { return !p.asleep.IsZero() && !r.isStuck(p) })
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

// poll looks at the processes until done returns true, or the time is over.
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

// look records the processes that the job has now.
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
		if len(r.seen) < mostReported {
			old.gpus = jobscan.OpenGPUs(r.env.Host, p.PID)
		}
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

// listLiving returns the processes that still exist, by pid.
func (r *leftRun) listLiving() (list []*leftProcess) {
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

// isStuck reports whether no signal can end a process.
func (r *leftRun) isStuck(p *leftProcess) bool {
	return !p.asleep.IsZero() && time.Since(p.asleep) >= r.Stuck
}

// mayEnd reports whether a process may be ended.
func (r *leftRun) mayEnd(p *leftProcess) bool { return !p.held && r.keepReason(p) == "" }

// isUnclaimed reports whether a process should have ended with its job.
func isUnclaimed(p *leftProcess) bool { return p.Claim == "" }

// signal sends SIGTERM, or SIGKILL, to every process that may be ended. It returns false: the
// caller has to see them end.
func (r *leftRun) signal(kill bool) bool {
	for _, p := range r.listLiving() {
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

// mostReported is the most processes to report: a job can leave thousands.
const mostReported = 20

// report reports each process.
func (r *leftRun) report() (findings []checks.Finding) {
	if r.err != nil {
		findings = checks.Unreadable(r.err)
	}
	more := 0
	var stuck []*leftProcess
	for _, p := range r.all() {
		hangs := !p.gone && r.isStuck(p)
		switch {
		case p.gone && !p.asked && !p.killed: // it ended on its own
		case hangs:
			stuck = append(stuck, p)
			findings = append(findings, r.finding(p, checks.Finding{Code: checks.JobStuck, Severity: checks.Fail, Remedy: checks.RebootNode}, r.describeHang(p)))
		case more < mostReported:
			more++
			f := checks.Finding{Code: "job.left.process", Severity: r.severity()}
			if p.Claim != "" {
				f.Severity = checks.Warn // it may stay
			}
			findings = append(findings, r.finding(p, f, r.describeFate(p)))
		default:
			more++
		}
	}
	if more > mostReported {
		findings = append(findings, checks.Finding{Code: "job.left.process", Severity: r.severity()}.
			Describe(jobLeftoversName, "job %s has left %d processes, %d of them listed", r.job.ID, more+len(stuck), mostReported+len(stuck)))
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

// userOf returns the name of a user, or the number of one without an account.
func (r *leftRun) userOf(uid int) string {
	if uid == r.job.UID && r.job.User != "" {
		return r.job.User
	}
	return checks.OwnerOrUID(r.env, probe.Process{UID: uint32(uid)})
}
