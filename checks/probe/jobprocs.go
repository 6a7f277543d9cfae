package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// JobRef is the job whose processes are looked for.
type JobRef struct {
	ID   string // of Slurm's, digits
	UID  int    // of its owner; -1 if it is not known: then no environment is believed
	Node string // what Slurm calls this node; "" if no other node shares this machine

	Het     string // the job id of the heterogeneous job that it is a component of; "" if of none
	Restart int    // how often it had been requeued when it ran
}

// JobProcess is a process that belongs to a job.
type JobProcess struct {
	Process

	Start uint64 // starttime, clock ticks after the machine's own start
	Owned bool   // its real, effective, saved and file system uid are the job's, or of a user namespace of its user
	Claim string // why it may outlive the job though its environment names it; "" if nothing says so
	GPUs  []int  // the N of each /dev/nvidiaN that it has open

	Asleep   bool   // a thread of it sleeps uninterruptibly: state D
	Wchan    string // the kernel function that this thread sleeps in, "" if the kernel does not say
	Killed   bool   // that thread has SIGKILL pending, or is about to exit
	Progress uint64 // grows as long as it does anything: CPU time, and how often that thread went to sleep

	Loose bool // nothing but SLURM_JOB_ID in its environment assigns it to the job
}

// JobProcesses lists the processes of a job by pid, as they are now: those whose
// cgroup names it, and those of its user whose cgroup names no job and whose
// environment names it. Processes of root are left out but in a job of root's;
// slurmstepd, and what runs with this program for the job, always. An error
// tells of a process that could not be looked into; the others are listed.
func (h *Host) JobProcesses(job JobRef) (list []JobProcess, err error) {
	s, err := h.jobScan(job)
	if err != nil {
		return nil, err
	}
	defer s.close()
	pids, err := s.pids()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		p, ours, bad := s.process(pid)
		if bad != nil && err == nil && !errors.Is(bad, fs.ErrNotExist) {
			err = bad
		}
		if ours {
			list = append(list, p)
		}
	}
	for i := range list {
		if p := &list[i]; p.Claim == "" && p.Loose && s.jobless > 0 {
			p.Claim = fmt.Sprintf("nothing shows that Slurm has started it, and its user has process %d here, which belongs to no job", s.jobless)
		}
	}
	return list, err
}

// JobProcessNow looks again at a process of [Host.JobProcesses]. What exits has
// no environment any more that could name its job. false: it has ended.
func (h *Host) JobProcessNow(job JobRef, p JobProcess) (JobProcess, bool) {
	s, err := h.jobScan(job)
	if err != nil {
		return p, true
	}
	defer s.close()
	now, err := s.describe(p.PID, p.UID)
	if err != nil || now.Start != p.Start {
		return p, false
	}
	now.Args, now.Claim, now.Loose = p.Args, p.Claim, p.Loose
	return now, true
}

// EndJobProcess asks a process to end, or makes it end, if it is still the one
// it was, the job's, and its user's alone.
func (h *Host) EndJobProcess(job JobRef, p JobProcess, kill bool) error {
	if why := h.Spared(p.PID); why != "" {
		return errors.New(why)
	}
	same := func() error {
		s, err := h.jobScan(job)
		if err != nil {
			return err
		}
		defer s.close()
		now, ours, err := s.process(p.PID)
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && !ours:
			return os.ErrProcessDone // or on its way: it exits
		case err != nil:
			return err
		case now.Start != p.Start || !now.Owned || now.Claim != "":
			return errReplaced
		}
		return nil
	}
	return h.hold(p.PID, same, func(pidfd int) error {
		if kill {
			return send(p.PID, pidfd, unix.SIGKILL)
		}
		if err := send(p.PID, pidfd, unix.SIGTERM); err != nil {
			return err
		}
		// A stopped process acts on SIGTERM only when it goes on; another may have ended of it by now.
		if err := send(p.PID, pidfd, unix.SIGCONT); !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		return nil
	})
}

// jobScan looks through /proc for the processes of a job.
type jobScan struct {
	processReader

	h      *Host
	job    JobRef
	own    []int // this program's processes that are known
	groups []int // their process groups: a worker has its own, its supervisor that of the epilog

	cgroup   []byte // of this program
	ownLogin string // its loginuid
	jobless  int    // a process of the job's user that belongs to no job, 0 if none is known
}

func (h *Host) jobScan(job JobRef) (*jobScan, error) {
	dir, err := open(unix.AT_FDCWD, h.Path("/proc"))
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: "/proc", Err: err}
	}
	s := &jobScan{processReader: processReader{dir: dir, owners: isProcfs(dir)}, h: h, job: job,
		cgroup: h.ownCgroup(), ownLogin: noLogin}
	if h.root == "/" {
		s.ownLogin = s.login("self")
	}
	for _, pid := range []int{os.Getpid(), os.Getppid()} {
		if t, err := s.task(strconv.Itoa(pid)); err == nil && pid > 1 && h.root == "/" {
			s.own, s.groups = append(s.own, pid), append(s.groups, t.group)
		}
	}
	return s, nil
}

func (s *jobScan) close() { unix.Close(s.dir) }

func (s *jobScan) pids() ([]int, error) {
	names, err := s.h.names("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// process says whether a process is the job's, and describes it if so.
func (s *jobScan) process(pid int) (p JobProcess, ours bool, err error) {
	uid, err := s.owner(pid)
	if err != nil || uid == 0 && s.job.UID != 0 {
		return p, false, gone(err)
	}
	e, err := s.evidence(pid, s.believed(pid, uid))
	if err != nil || !e.ours {
		if e.jobless {
			s.jobless = pid
		}
		return p, false, err
	}
	t, err := s.task(strconv.Itoa(pid))
	switch {
	case err != nil:
		return p, false, gone(err)
	case uid == 0 && t.name == "slurmstepd", slices.Contains(s.groups, t.group), slices.Contains(s.own, t.parent):
		return p, false, nil
	}
	claim := ""
	if e.environ {
		if claim, err = s.claimed(pid, t, e.cgroup, e.from); err != nil {
			return p, false, err
		}
	}
	p, err = s.describe(pid, uid)
	p.Claim, p.Loose = claim, e.environ && !e.from.step
	return p, err == nil, err
}

// believed reports whether the environment of a process counts: it is the job's
// user's, also in a user namespace of that user.
func (s *jobScan) believed(pid int, uid uint32) bool {
	if int64(uid) == int64(s.job.UID) {
		return true
	}
	owner, ok := s.namespaceOwner(strconv.Itoa(pid))
	return ok && s.job.UID > 0 && int64(owner) == int64(s.job.UID)
}

// owner is the effective uid of a process.
func (s *jobScan) owner(pid int) (uint32, error) {
	s.name = strconv.AppendInt(s.name[:0], int64(pid), 10)
	if s.owners {
		return ownerAt(s.dir, string(s.name))
	}
	st, err := s.state()
	return st.uid, err
}

// gone makes an error of a process that has ended one that says so.
func gone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return fs.ErrNotExist
	}
	return err
}

// evidence is what assigns a process to the job.
type evidence struct {
	ours    bool
	environ bool // its environment alone
	jobless bool // it belongs to no job at all, and its user is the job's
	cgroup  []byte
	from    started
}

// evidence says whether a process is the job's: by its cgroup, which no user can
// choose, and of the job's own user by its environment, if its cgroup names no
// job and no slurmstepd of another job is above it.
func (s *jobScan) evidence(pid int, user bool) (e evidence, err error) {
	e.cgroup, err = s.h.readFileOf(pid, "cgroup")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without cgroups has no such file
		return e, err
	}
	if job := parseJobGroup(e.cgroup); job != "" {
		e.ours = job == s.job.ID && !s.elsewhere(parseNodeGroup(e.cgroup))
		return e, nil
	}
	if !user {
		return e, nil
	}
	environ, err := s.h.readFileOf(pid, "environ")
	if err != nil {
		return e, err
	}
	e.from = parseStarted(environ)
	if e.jobless = e.from.job == ""; !s.names(e.from) {
		return e, nil
	}
	t, err := s.task(strconv.Itoa(pid))
	if err != nil {
		return e, gone(err)
	}
	above := s.stepAbove(t.parent)
	e.ours = above == "" || above == s.job.ID || above == s.job.Het
	e.environ = true
	return e, nil
}

// belongs reports whether a process is the job's.
func (s *jobScan) belongs(pid int, user bool) (bool, error) {
	e, err := s.evidence(pid, user)
	return e.ours, err
}

// elsewhere says whether a node is another one: several may share a machine.
func (s *jobScan) elsewhere(node string) bool {
	return s.job.Node != "" && node != "" && node != s.job.Node
}

// nodeGroup is the part of a cgroup's path that names a node, where Slurm was
// built for several of them on a machine: /slurm_gpu01/uid_5001/job_123,
// /system.slice/gpu01_slurmstepd.scope/job_123.
var nodeGroup = lazily(`(?m)/(?:slurm_([^/\n]+)|([^/\n]+)_slurmstepd\.scope)/(?:uid_[0-9]+/)?job_`)

func parseNodeGroup(data []byte) string {
	if m := nodeGroup().FindSubmatch(data); m != nil {
		return string(m[1]) + string(m[2])
	}
	return ""
}

// maxAbove bounds the way up from a process to the first one.
const maxAbove = 64

// stepAbove is the job of the first slurmstepd among a process and those above it.
func (s *jobScan) stepAbove(pid int) string {
	for range maxAbove {
		if pid <= 1 {
			break
		}
		t, err := s.task(strconv.Itoa(pid))
		if err != nil {
			break
		}
		if t.name == "slurmstepd" {
			if job := s.stepOf(pid); job != "" {
				return job
			}
		}
		pid = t.parent
	}
	return ""
}
