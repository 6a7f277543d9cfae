// Package jobscan finds the jobs on a node, their processes and the objects that they leave behind,
// and reads Slurm's configuration.
package jobscan

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// JobRef is the job whose processes are to be found.
type JobRef struct {
	ID    string // in Slurm, digits
	SLUID string // its other name since 26.05, which that gives its cgroup; "" if unknown
	UID   int    // of its owner; -1 if unknown: then environments do not count
	Node  string // this node's name in Slurm; "" if no other node shares this machine

	Het     string // the id of its heterogeneous job; "" if it is not a component of one
	Restart int    // how often it had been requeued when it ran
}

// JobProcess is a process that belongs to a job.
type JobProcess struct {
	probe.Process

	Start uint64 // starttime, clock ticks after the machine's own start
	Owned bool   // its real, effective, saved and file system uid are the job's, or of a user namespace of its user
	Claim string // why it may outlive the job though its environment names it; "" if there is no such reason

	Asleep   bool   // one of its threads sleeps uninterruptibly: state D
	Wchan    string // the kernel function where this thread sleeps, "" if unknown
	Killed   bool   // that thread has SIGKILL pending, or is about to exit
	Progress uint64 // grows while the process works: CPU time, and the number of that thread's waits

	Loose bool // only SLURM_JOB_ID in its environment assigns it to the job
}

// JobProcesses lists the current processes of a job by PID: those whose cgroup names it, and those
// of its user whose cgroup names no job and whose environment names it. It excludes processes of
// root unless the job is root's, and always slurmstepd and the processes that run with this program
// for the job. An error is about a process that could not be read; the list has the others.
func JobProcesses(h *probe.Host, job JobRef) (list []JobProcess, err error) {
	var unread error
	jobless := 0
	err = eachProcess(h, job, func(s *jobScan, pid int) error {
		p, ours, bad := s.process(pid)
		if bad != nil && unread == nil && !errors.Is(bad, fs.ErrNotExist) && !errors.Is(bad, probe.ErrUnread) {
			unread = bad
		}
		if ours {
			list = append(list, p)
		}
		jobless = s.jobless
		return nil
	})
	for i := range list {
		if p := &list[i]; p.Claim == "" && p.Loose && jobless > 0 {
			p.Claim = fmt.Sprintf("there is no sign that Slurm started it, and its user has process %d on this node outside of any job", jobless)
		}
	}
	return list, cmp.Or(err, unread)
}

// JobProcessNow reads a process of [JobProcesses] again. An exiting process has no environment any
// more that could name its job. The result is false if the process has ended. A process that cannot be
// read counts as alive and awake.
func JobProcessNow(h *probe.Host, job JobRef, p JobProcess) (JobProcess, bool) {
	unread := p
	unread.Asleep = false
	s, err := scanJobs(h, job)
	if err != nil {
		return unread, true
	}
	defer s.Close()
	now, err := s.describe(p.PID, p.UID)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && now.Start != p.Start:
		return p, false
	case err != nil:
		return unread, true
	}
	now.Args, now.Claim, now.Loose = p.Args, p.Claim, p.Loose
	return now, true
}

// EndJobProcess sends SIGTERM or SIGKILL to a process, if it is still the same process, belongs to
// the job, and has only its user's rights.
func EndJobProcess(h *probe.Host, job JobRef, p JobProcess, kill bool) error {
	if why := probe.Spared(h, p.PID); why != "" {
		return errors.New(why)
	}
	same := func() error {
		s, err := scanJobs(h, job)
		if err != nil {
			return err
		}
		defer s.Close()
		now, ours, err := s.process(p.PID)
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && !ours:
			return os.ErrProcessDone // or about to exit
		case err != nil:
			return err
		case now.Start != p.Start || !now.Owned || now.Claim != "":
			return probe.ErrReplaced
		}
		return nil
	}
	return probe.Hold(h, p.PID, same, func(pidfd int) error {
		if kill {
			return probe.Send(p.PID, pidfd, unix.SIGKILL)
		}
		if err := probe.Send(p.PID, pidfd, unix.SIGTERM); err != nil {
			return err
		}
		// A stopped process handles SIGTERM only after SIGCONT; any other may already have ended.
		if err := probe.Send(p.PID, pidfd, unix.SIGCONT); !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		return nil
	})
}

// jobScan searches /proc for the processes of a job.
type jobScan struct {
	*probe.ProcessReader

	h      *probe.Host
	job    JobRef
	own    []int // this program's known processes
	groups []int // their process groups: a worker has its own, its supervisor that of the epilog

	cgroup   []byte // of this program
	ownLogin string // its loginuid
	jobless  int    // a process of the job's user that belongs to no job, 0 if none is known
}

func scanJobs(h *probe.Host, job JobRef) (*jobScan, error) {
	r, err := probe.OpenProc(h.Path("/proc"))
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: "/proc", Err: err}
	}
	s := &jobScan{ProcessReader: r, h: h, job: job, cgroup: readOwnCgroup(h), ownLogin: noLogin}
	if !h.Recorded() {
		s.ownLogin = s.login("self")
	}
	for _, pid := range []int{os.Getpid(), os.Getppid()} {
		if t, err := s.Task(strconv.Itoa(pid)); err == nil && pid > 1 && !h.Recorded() {
			s.own, s.groups = append(s.own, pid), append(s.groups, t.Group)
		}
	}
	return s, nil
}

// eachProcess calls a function for each process of the node, until it returns an error.
func eachProcess(h *probe.Host, job JobRef, do func(s *jobScan, pid int) error) error {
	s, err := scanJobs(h, job)
	if err != nil {
		return err
	}
	defer s.Close()
	names, err := h.Names("/proc")
	if err != nil {
		return err
	}
	pace := h.Pace()
	for _, pid := range probe.PIDs(names) {
		pace()
		if err := do(s, pid); err != nil {
			return err
		}
	}
	return nil
}

// process reports whether a process is the job's, and describes it if so.
func (s *jobScan) process(pid int) (p JobProcess, ours bool, err error) {
	uid, err := s.Owner(pid)
	if err != nil || uid == 0 && s.job.UID != 0 {
		return p, false, probe.Gone(err)
	}
	e, err := s.findEvidence(pid, s.believed(pid, uid))
	if err != nil || !e.ours {
		if e.jobless {
			s.jobless = pid
		}
		return p, false, err
	}
	t, err := s.Task(strconv.Itoa(pid))
	switch {
	case err != nil:
		return p, false, probe.Gone(err)
	case uid == 0 && t.Name == "slurmstepd", slices.Contains(s.groups, t.Group), slices.Contains(s.own, t.Parent):
		return p, false, nil
	}
	claim := ""
	if e.environ {
		if claim, err = s.otherClaim(pid, t, e.cgroup, e.from); err != nil {
			return p, false, err
		}
	}
	p, err = s.describe(pid, uid)
	p.Claim, p.Loose = claim, e.environ && !e.from.step
	return p, err == nil, err
}

// believed reports whether the environment of a process counts: the job's user owns the process,
// possibly in a user namespace of that user.
func (s *jobScan) believed(pid int, uid uint32) bool {
	if int64(uid) == int64(s.job.UID) {
		return true
	}
	owner, ok := s.findNamespaceOwner(strconv.Itoa(pid))
	return ok && s.job.UID > 0 && int64(owner) == int64(s.job.UID)
}

// evidence is the reason why a process is assigned to the job.
type evidence struct {
	ours    bool
	environ bool // only its environment
	jobless bool // it belongs to no job, and its user is the job's
	cgroup  []byte
	from    started
}

// findEvidence determines whether a process is the job's: by its cgroup, which no user can choose; or,
// for the job's own user, by its environment, if its cgroup names no job and it does not descend
// from a slurmstepd of another job.
func (s *jobScan) findEvidence(pid int, user bool) (e evidence, err error) {
	e.cgroup, err = readCgroup(s.h, pid)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without cgroups has no such file
		return e, err
	}
	job, err := findJobGroup(s.h, e.cgroup)
	if err != nil {
		return e, err
	}
	if job != "" {
		e.ours = (job == s.job.ID || job == s.job.SLUID) && !s.elsewhere(parseNodeGroup(e.cgroup))
		return e, nil
	}
	if !user {
		return e, nil
	}
	if err := readEnviron(s.h, pid, func(environ []byte) { e.from = parseStarted(environ) }); err != nil {
		return e, err
	}
	if e.jobless = e.from.job == ""; !s.names(e.from) {
		return e, nil
	}
	t, err := s.Task(strconv.Itoa(pid))
	if err != nil {
		return e, probe.Gone(err)
	}
	above, err := s.findStepAbove(t.Parent)
	if err != nil {
		return e, err
	}
	e.ours = above == "" || above == s.job.ID || above == s.job.Het
	e.environ = true
	return e, nil
}

// belongs reports whether a process is the job's.
func (s *jobScan) belongs(pid int, user bool) (bool, error) {
	e, err := s.findEvidence(pid, user)
	return e.ours, err
}

// elsewhere reports whether a node is another one: several may share a machine.
func (s *jobScan) elsewhere(node string) bool {
	return s.job.Node != "" && node != "" && node != s.job.Node
}

// nodeGroup matches the part of a cgroup's path that names a node, if Slurm was built for several
// nodes on a machine: /slurm_gpu01/uid_5001/job_123, /system.slice/gpu01_slurmstepd.scope/job_123.
var nodeGroup = probe.Lazily(`(?m)/(?:slurm_([^/\n]+)|([^/\n]+)_slurmstepd\.scope)/(?:uid_[0-9]+/)?(?:job_|s[0-9A-Z]{13}(?:/|$))`)

func parseNodeGroup(data []byte) string {
	if m := nodeGroup().FindSubmatch(data); m != nil {
		return string(m[1]) + string(m[2])
	}
	return ""
}

// maxAbove bounds the number of ancestors of a process.
const maxAbove = 64

// findStepAbove returns the job of the first slurmstepd among a process and its ancestors.
func (s *jobScan) findStepAbove(pid int) (job string, err error) {
	for range maxAbove {
		if pid <= 1 {
			break
		}
		t, err := s.Task(strconv.Itoa(pid))
		if err != nil {
			break
		}
		if t.Name == "slurmstepd" {
			if job, err = findStep(s.ProcessReader, pid); job != "" || err != nil {
				return job, err
			}
		}
		pid = t.Parent
	}
	return "", nil
}

// describe reads the threads of a process: when it is killed, the first may be dead while another
// one sleeps in the kernel.
func (s *jobScan) describe(pid int, uid uint32) (p JobProcess, err error) {
	dir := strconv.Itoa(pid)
	p = JobProcess{Process: probe.Process{PID: pid, UID: uid}}
	first, err := s.Task(dir)
	if err != nil {
		return p, probe.Gone(err)
	}
	p.Start, p.Progress = first.Start, first.Ticks
	tasks := []string{dir}
	if names, err := s.h.Names("/proc/" + dir + "/task"); err == nil {
		tasks = nil
		for _, n := range names {
			tasks = append(tasks, dir+"/task/"+n)
		}
	}
	alive, pace := false, s.h.Pace()
	for _, name := range tasks {
		pace()
		t, err := s.Task(name)
		if err != nil || t.State == 'Z' || t.State == 'X' {
			continue
		}
		alive = true
		if t.State == 'D' && !p.Asleep {
			p.Asleep, p.Wchan, p.Killed = true, s.wchan(name), t.Exiting || s.killed(name)
			p.Progress += s.countSwitches(name)
		}
	}
	if !alive {
		return p, fs.ErrNotExist
	}
	p.Owned = s.owned(dir)
	if s.Name = append(s.Name[:0], dir...); !p.Asleep { // reading the command line could wait for that thread
		p.Args, p.Unread = s.Command()
	}
	if p.Args == "" {
		p.Args = "[" + first.Name + "]"
	}
	return p, nil
}

func (s *jobScan) wchan(dir string) string {
	var buf [128]byte
	n, err := probe.ReadAt(s.Dir, dir+"/wchan", buf[:])
	if err != nil || string(buf[:n]) == "0" {
		return ""
	}
	return probe.OneLine(string(buf[:n]))
}

// statusLine returns the value of a line of a status file, nil if it is missing.
func (s *jobScan) statusLine(dir, key string) []byte {
	n, err := probe.ReadAt(s.Dir, dir+"/status", s.Status[:])
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(s.Status[:n]) {
		if value, ok := bytes.CutPrefix(line, []byte(key)); ok {
			return bytes.TrimSpace(value)
		}
	}
	return nil
}

// countSwitches returns the number of times that a thread went to sleep.
func (s *jobScan) countSwitches(dir string) uint64 {
	n, _ := strconv.ParseUint(string(s.statusLine(dir, "voluntary_ctxt_switches:")), 10, 64)
	return n
}

// killed reports whether SIGKILL is pending.
func (s *jobScan) killed(dir string) bool {
	for _, key := range []string{"SigPnd:", "ShdPnd:"} {
		mask, err := strconv.ParseUint(string(s.statusLine(dir, key)), 16, 64)
		if err == nil && mask&(1<<(unix.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
}

// maxFiles bounds the open files of a process that [OpenGPUs] reads.
const maxFiles = 4096

// OpenGPUs returns the N of each /dev/nvidiaN that a process has open. Reading a link does not involve the
// driver.
func OpenGPUs(h *probe.Host, pid int) (minors []int) {
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	dir, err := os.Open(h.Path(fds))
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(maxFiles)
	for _, n := range names {
		target, _ := os.Readlink(h.Path(fds + "/" + n))
		digits, ok := strings.CutPrefix(target, "/dev/nvidia")
		if i, err := strconv.Atoi(digits); ok && err == nil && i >= 0 && !slices.Contains(minors, i) {
			minors = append(minors, i)
		}
	}
	slices.Sort(minors)
	return minors
}
