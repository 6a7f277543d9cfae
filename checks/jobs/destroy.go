package jobs

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
)

// The rule for ending and removing. Every action that destroys something of a user goes through
// the functions of this file, and [checks.KillProcess].
//
//   - An action of a line (kill, -k, -K) is the site's decision, as in LBNL NHC.
//     [probe.Spared] excludes processes that no site wants to kill, and
//     [checks.KillUser] the processes of running jobs.
//   - Leftovers of a job are ended or removed only if they surely belong to a job
//     that has ended, and their owner has no other claim to them on this node:
//     [leftRun.keeps] for processes, [leftRun.askSlurm] for IPC and files. In
//     doubt they are reported.
//
// Signals use a process descriptor, after a comparison with the judged process: the PID can have
// been reused.

// keepReason returns why a process of the ended job must not be ended, "" if it may be.
func (r *leftRun) keepReason(p *leftProcess) string {
	switch {
	case !p.Owned:
		return "other users also run in it"
	case !r.isPerson():
		return fmt.Sprintf("uid %d is root or a system user", r.job.UID)
	}
	return p.Claim
}

// isPerson reports whether the job's user is neither root nor a system user.
func (r *leftRun) isPerson() bool { return r.job.UID > 0 && int64(r.job.UID) > r.system }

// hasEnded reports whether no step of the job runs any more: an operator can run an epilog by
// hand. The step that an epilog itself can run in does not count.
func (r *leftRun) hasEnded() bool {
	if r.job.Again {
		r.runs = "the job runs on the node again"
		return false
	}
	r.env.At("look for the steps of job %s", r.job.ID)
	steps, err := jobscan.StepsOf(r.env.Host, r.ref)
	if err != nil {
		r.runs = "the steps of the job are unknown: " + err.Error()
	}
	for _, step := range steps {
		if step != "extern" {
			r.runs = "step " + step + " of the job still runs"
		}
	}
	return r.runs == ""
}

// askSlurm asks whether the job's user has another job on this node: a job between two steps of
// salloc has no process here, and without our prolog no record. It queries slurmctld once, for
// the jobs of this user. The error is the reason why nothing may be removed; others is true if
// the user has another job.
func (r *leftRun) askSlurm(ctx context.Context) (others bool, err error) {
	jobs, err := jobsOf(ctx, r.env, r.job.UID, r.job.Node)
	if err != nil {
		return false, err
	}
	for _, j := range jobs {
		switch {
		case slices.Contains(r.ended, j.id):
		case j.id != r.job.ID && j.id != r.job.Het:
			others = others || !j.absent()
		case !j.absent() && j.state != "COMPLETING":
			return others, fmt.Errorf("job %s is %s in Slurm", j.id, strings.ToLower(j.state))
		}
	}
	return others, nil
}

// slurmJob is a job in Slurm's answer.
type slurmJob struct {
	id, state string
}

// absent reports whether the job has no process on its nodes.
func (j slurmJob) absent() bool { return checks.JobEnded(j.state) || checks.JobWaits(j.state) }

// userJobsTime is the timeout of the query.
const userJobsTime = 5 * time.Second

// jobsOf returns the jobs of a user on this node, in all states. slurmctld only looks at the jobs
// of one user.
func jobsOf(ctx context.Context, env *checks.Env, uid int, node string) (jobs []slurmJob, err error) {
	host, _, _ := strings.Cut(cmp.Or(env.Lookup("HOSTNAME_S"), env.Lookup("HOSTNAME")), ".")
	squeue := strings.Fields(env.Lookup("SQUEUE_CMD"))
	if len(squeue) == 0 || squeue[0] == checks.DefaultSqueue {
		squeue = []string{"squeue"} // search in PATH
	}
	c := env.Command(slices.Concat(squeue, []string{"--noheader", "--all", "--local", "--array", "--states=all", "--user=" + strconv.Itoa(uid),
		"--nodelist=" + cmp.Or(node, host), "--format=%A|%T|%U"})...)
	c.Output, c.Errors, c.Unset = checks.SqueueOutput, checks.SqueueErrors, "S" // SQUEUE_... and SLURM_CLUSTERS would change the answer
	c.Timeout = min(userJobsTime, checks.Room(ctx))
	c.Env = []string{"LC_ALL=C"}
	if conf := env.Lookup("SLURM_CONF"); conf != "" {
		c.Env = append(c.Env, "SLURM_CONF="+conf)
	}
	env.At("run %s", strings.Join(c.Argv, " "))
	x := env.Host.Run(ctx, c)
	switch {
	case x.Err != nil:
		return nil, fmt.Errorf("run %s: %w", c.Argv[0], x.Err)
	case x.TimedOut:
		return nil, fmt.Errorf("%s gave no answer in %v", c.Argv[0], c.Timeout.Round(time.Second))
	case x.Status != 0 || len(bytes.TrimSpace(x.Errors)) > 0:
		return nil, fmt.Errorf("%s exited with status %d%s", c.Argv[0], x.Status, checks.Before(": ", checks.SlurmError(x.Errors), ""))
	case x.Truncated:
		return nil, fmt.Errorf("%s printed more than %d bytes", c.Argv[0], checks.SqueueOutput)
	}
	for line := range strings.Lines(string(x.Output)) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 3 {
			return nil, fmt.Errorf("%s printed %.80q", c.Argv[0], line)
		}
		if f[2] == strconv.Itoa(uid) {
			jobs = append(jobs, slurmJob{f[0], f[1]})
		}
	}
	return jobs, nil
}
