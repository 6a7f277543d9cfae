package lbnl

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
)

// jobUsers are the users who may have processes on this node: the users in
// NHC_AUTH_USERS and the owners of the jobs that run here.
type jobUsers struct {
	asked bool
	names []string
	doubt string // why the list of job owners can be incomplete; "": it is complete
	mute  bool   // the resource manager did not answer: no process can be judged
}

// defaultAuthUsers is the default of NHC_AUTH_USERS.
const defaultAuthUsers = "root nobody"

func authUsers(env *checks.Env) string { return cmp.Or(env.Lookup("NHC_AUTH_USERS"), defaultAuthUsers) }

// findJobUsers returns the users, and asks the resource manager only once in a run.
func findJobUsers(ctx context.Context, env *checks.Env) *jobUsers {
	j := probe.Kept[jobUsers](env.Host, "job users")
	if j.asked {
		return j
	}
	j.asked, j.names = true, values(authUsers(env))
	var owners []string
	switch env.Lookup("NHC_RM") {
	case "slurm":
		owners = j.askSlurm(ctx, env)
	case "pbs":
		owners = j.askTorque(env)
	}
	for _, name := range owners {
		if !slices.Contains(j.names, name) {
			j.names = append(j.names, name)
		}
	}
	return j
}

func (j *jobUsers) askSlurm(ctx context.Context, e *checks.Env) (owners []string) {
	host, _, _ := strings.Cut(cmp.Or(e.Lookup("HOSTNAME_S"), e.Lookup("HOSTNAME")), ".")
	argv := slices.Concat(
		strings.Fields(cmp.Or(e.Lookup("SQUEUE_CMD"), checks.DefaultSqueue)),
		strings.Fields(cmp.Or(e.Lookup("SQUEUE_NODE"), "-w "+host)),
		strings.Fields(cmp.Or(e.Lookup("SQUEUE_FMT_ARGS"), "--noheader -o %u")))
	if len(argv) == 0 {
		j.doubt = "SQUEUE_CMD is empty"
		return nil
	}
	c := e.Command(argv...)
	c.Output, c.Errors = checks.SqueueOutput, checks.SqueueErrors
	if c.Timeout = checks.SqueueTime; e.Timeout > 0 {
		c.Timeout = min(c.Timeout, e.Timeout/2)
	}
	e.At("run %s", strings.Join(argv, " "))
	x := e.Host.Run(ctx, c)
	switch {
	case x.TimedOut:
		j.doubt, j.mute = fmt.Sprintf("%s gave no answer in %v", argv[0], c.Timeout), true
	case x.Status != 0:
		j.doubt = fmt.Sprintf("%s ended with status %d", argv[0], x.Status)
		if said := checks.SlurmError(x.Errors); said != "" {
			j.doubt, j.mute = j.doubt+": "+said, true
		}
	case x.Truncated:
		j.doubt = fmt.Sprintf("%s printed more than %d bytes", argv[0], checks.SqueueOutput)
	}
	for line := range strings.Lines(string(x.Output)) {
		if name := strings.TrimSpace(line); name != "" {
			owners = append(owners, name)
		}
	}
	return owners
}

// askTorque reads the job files of pbs_mom, or those in jobs below the working directory of
// the configuration's shell lines.
func (j *jobUsers) askTorque(e *checks.Env) []string {
	dir := e.Lookup("JOBFILE_PATH")
	if dir == "" {
		dir = cmp.Or(e.Lookup("PBS_SERVER_HOME"), "/var/spool/torque") + "/mom_priv/jobs"
	}
	e.At("read job files in %s", dir)
	owners, found, err := jobscan.JobOwners(e.Host, dir)
	if !found && err == nil {
		owners, _, err = jobscan.JobOwners(e.Host, e.Lookup("PWD")+"/jobs")
	}
	if err != nil {
		j.doubt = checks.OneLine(err)
	}
	return owners
}
