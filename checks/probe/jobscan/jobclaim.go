package jobscan

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// A process belongs to a job if its cgroup names the job, because no user can choose that. Its
// environment is weaker evidence. The shell of salloc has SLURM_JOB_ID on the host where the user
// typed the command, and so have all processes started there. An at job keeps the environment of
// the job that queued it. A daemon of root that a prolog has started (MPS) passes the variables of the
// job to the servers of its users. Such a process has another claim to the node, and outlives the job.

// started has the evidence in the environment about a process's start.
type started struct {
	job, node string
	step      bool // a slurmstepd has started it: srun and salloc do not set these variables
	script    bool // a prolog or an epilog has started it
	restart   int  // how often the job had been requeued
	task      int  // the PID of its task, an ancestor; 0: not set
}

func parseStarted(environ []byte) (s started) {
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		key, value, _ := strings.Cut(string(entry), "=")
		switch key {
		case "SLURM_JOB_ID":
			if s.job == "" && !probe.NotNumber(value) {
				s.job = value
			}
		case "SLURMD_NODENAME":
			s.node, s.step = value, true
		case "SLURM_SCRIPT_CONTEXT":
			s.script = value == "prolog_slurmd" || value == "epilog_slurmd"
		case "SLURM_TASK_PID":
			s.task, _ = strconv.Atoi(value)
			s.step = true
		case "SLURM_RESTART_COUNT":
			s.restart, _ = strconv.Atoi(value)
		}
	}
	return s
}

// names reports whether an environment names the job on this node.
func (s *jobScan) names(from started) bool {
	return (from.job == s.job.ID || from.job != "" && from.job == s.job.Het) && !s.elsewhere(from.node)
}

// otherClaim explains, for a process that only its environment assigns to the job, its other claim to
// the node; "" if none is known.
func (s *jobScan) otherClaim(pid int, t probe.Task, cgroup []byte, from started) (string, error) {
	switch {
	case from.restart > s.job.Restart:
		return "it belongs to a later run of the job", nil
	case t.Tty != 0:
		return "it has a terminal", nil
	case s.fromLogin(pid):
		return "it was started from a login", nil
	}
	if unit := otherUnit(cgroup, s.cgroup); unit != "" {
		return "it runs in " + unit, nil
	}
	if from.task > 0 {
		if task, err := s.Task(strconv.Itoa(from.task)); err != nil || task.Start > t.Start {
			from.task = 0 // it has ended, and a younger process may have its PID
		}
		above, err := s.findStepAbove(from.task)
		if err != nil {
			return "", err
		}
		if above != "" && above != s.job.ID {
			return "it was started in job " + above, nil
		}
	}
	if p, err := s.foreign(t.Session); p != "" || err != nil {
		return before("its session is that of ", p), err
	}
	for at := t.Parent; at > 1; {
		p, err := s.foreign(at)
		if p != "" || err != nil {
			return before("it descends from ", p), err
		}
		above, err := s.Task(strconv.Itoa(at))
		if err != nil {
			break
		}
		if above.Name != "slurmstepd" && above.Name != "runuser" && s.RootsOwn(at) && probe.Spared(s.h, at) == "" { // not Slurm's, no mere change of the user, not above this program
			return fmt.Sprintf("it descends from process %d (%s) of root", at, above.Name), nil
		}
		at = above.Parent
	}
	if from.script { // it may serve other jobs of the user, too, as nvidia-cuda-mps-control does
		return "a prolog or an epilog has started it", nil
	}
	return "", nil
}

func before(text, s string) string {
	if s == "" {
		return ""
	}
	return text + s
}

// foreign describes a process of the job's user that does not belong to the job; it returns "" for
// any other process and for one that has ended.
func (s *jobScan) foreign(pid int) (string, error) {
	if pid <= 1 {
		return "", nil
	}
	if uid, err := s.Owner(pid); err != nil || int64(uid) != int64(s.job.UID) {
		return "", nil
	}
	ours, err := s.belongs(pid, true)
	if ours || errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	t, _ := s.Task(strconv.Itoa(pid))
	return fmt.Sprintf("process %d (%s)", pid, t.Name), err
}

// noLogin is the loginuid of a process that descends from no login.
const noLogin = "4294967295"

// fromLogin reports whether the kernel's audit shows another login for a process than for this
// program: sshd, login, cron and systemd --user set it.
func (s *jobScan) fromLogin(pid int) bool {
	return s.login(strconv.Itoa(pid)) != s.ownLogin
}

func (s *jobScan) login(dir string) string {
	var buf [16]byte
	n, err := probe.ReadAt(s.Dir, dir+"/loginuid", buf[:])
	if err != nil || n == 0 {
		return noLogin // a kernel without audit
	}
	return string(bytes.TrimSpace(buf[:n]))
}

// otherUnit returns the systemd unit of a process, if it is neither this program's nor one of
// Slurm's: a session, user@1000.service, atd.service.
func otherUnit(cgroup, own []byte) string {
	if bytes.Equal(cgroup, own) {
		return ""
	}
	for line := range strings.Lines(string(cgroup)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) < 3 || f[1] != "" && f[1] != "name=systemd" {
			continue
		}
		if strings.Contains(f[2]+"/", "/user.slice/") {
			return probe.Printable([]byte("user.slice/" + path.Base(f[2])))
		}
		unit := ""
		for part := range strings.SplitSeq(f[2], "/") {
			if strings.HasSuffix(part, ".service") {
				unit = part
			}
		}
		if unit == "" || strings.HasPrefix(unit, "slurm") || strings.Contains(string(own), "/"+unit) {
			continue
		}
		return probe.Printable([]byte(unit))
	}
	return ""
}

// owned reports whether a process has only the user's rights: the rights of another user come from
// a setuid program. Those of a user namespace that the user has created (a container with
// subordinate uids) are the user's.
func (s *jobScan) owned(dir string) bool {
	words := strings.Fields(string(s.statusLine(dir, "Uid:")))
	if s.job.UID < 0 || len(words) != 4 || slices.Contains(words, "0") && s.job.UID != 0 {
		return false
	}
	own := strconv.Itoa(s.job.UID)
	if !slices.ContainsFunc(words, func(w string) bool { return w != own }) {
		return true
	}
	uid, ok := s.findNamespaceOwner(dir)
	return ok && s.job.UID > 0 && int64(uid) == int64(s.job.UID)
}

// findNamespaceOwner is [probe.ProcessReader.NamespaceOwner] on this node.
func (s *jobScan) findNamespaceOwner(dir string) (uid uint32, ok bool) {
	if s.h.Recorded() {
		return 0, false
	}
	return s.NamespaceOwner(dir)
}

// UsersOf lists the users for whom each process runs, by PID: its four uids, and the creator of its
// user namespace. The owner of /proc/PID is not enough: for ssh-agent and for a program that sets
// its rights it is root. Dead processes are ignored.
func UsersOf(h *probe.Host) (map[int][]uint32, error) {
	users := map[int][]uint32{}
	err := eachProcess(h, JobRef{}, func(s *jobScan, pid int) error {
		dir := strconv.Itoa(pid)
		if state := s.statusLine(dir, "State:"); len(state) == 0 || state[0] == 'Z' || state[0] == 'X' {
			return nil
		}
		list := []uint32{}
		for word := range strings.FieldsSeq(string(s.statusLine(dir, "Uid:"))) {
			if uid, err := strconv.ParseUint(word, 10, 32); err == nil && !slices.Contains(list, uint32(uid)) {
				list = append(list, uint32(uid))
			}
		}
		if uid, ok := s.findNamespaceOwner(dir); ok && !slices.Contains(list, uid) {
			list = append(list, uid)
		}
		users[pid] = list
		return nil
	})
	if err != nil {
		return nil, err
	}
	return users, nil
}

// readOwnCgroup returns the cgroup of this program, or nil on a recorded node.
func readOwnCgroup(h *probe.Host) []byte {
	if h.Recorded() {
		return nil
	}
	data, _ := os.ReadFile("/proc/self/cgroup")
	return data
}
