package checks

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// aliceJob is the job that has ended.
func aliceJob() *SelftestJob { return &SelftestJob{ID: "123", UID: 5001, User: "alice"} }

// onLeft is a line on a node where job 123 of alice has ended. Its processes have
// these numbers: 100 train.py of its cgroup, 101 of its environment, 102 with root's
// rights, 103 that no signal can end, 104 that dies slowly.
func onLeft(name string, words []string, pids []int, want ...Finding) scenario {
	const other = "slurmstepd: [77.0]"
	procs := []useProc{{pid: 1, args: "/sbin/init"}, {pid: 50, args: other}, {pid: 60, parent: 50, uid: 5002, args: "bobs.exe"}}
	group := map[int]string{60: "0::/slurmstepd.scope/job_77/step_0\n", 101: "0::/\n"}
	for _, p := range []useProc{
		{pid: 100, uid: 5001, args: "train.py --all"}, {pid: 101, uid: 5001, args: "tmux new"}, {pid: 102, uid: 5001, args: "sudo x"},
		{pid: 103, uid: 5001, args: "writer"}, {pid: 104, uid: 5001, args: "slow"},
	} {
		if slices.Contains(pids, p.pid) {
			procs = append(procs, p)
		}
	}
	s := scenario{name: name, words: words, files: useNode(procs...), want: want, job: aliceJob()}
	for _, p := range procs {
		dir := fmt.Sprintf("proc/%d/", p.pid)
		if s.files[dir+"cgroup"] = "0::/slurmstepd.scope/job_123/step_0\n"; p.uid == 0 || group[p.pid] != "" {
			s.files[dir+"cgroup"] = group[p.pid]
		}
		s.files[dir+"environ"] = "A=1\x00SLURM_JOB_ID=123\x00"
	}
	state := func(pid int, letter, flags, more string) {
		dir := fmt.Sprintf("proc/%d/", pid)
		if _, ok := s.files[dir+"stat"]; !ok {
			return
		}
		s.files[dir+"stat"] = strings.Replace(strings.Replace(s.files[dir+"stat"], ") S ", ") "+letter+" ", 1), " -1 0 ", " -1 "+flags+" ", 1)
		s.files[dir+"status"] += more
	}
	state(103, "D", "0", "SigPnd:\t0000000000000100\n")
	state(104, "D", "0", "")
	if slices.Contains(pids, 103) {
		s.files["proc/103/wchan"] = "rpc_wait_bit_killable"
	}
	if slices.Contains(pids, 102) {
		s.files["proc/102/status"] = strings.Replace(s.files["proc/102/status"], "5001\t5001\t5001\t5001", "5001\t5001\t0\t0", 1)
	}
	return s
}

// leftFinding is what is said of a process.
func leftFinding(severity Severity, command, text string) Finding {
	return Finding{Code: "job.left.process", Severity: severity, Device: Device{Kind: "process", Name: command},
		Message: jobLeftoversName + ":  alice's process " + text}
}

const (
	shmTable = "key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap\n"
	semTable = "key semid perms nsems uid gid cuid cgid otime ctime\n"
	msgTable = "key msqid perms cbytes qnum lspid lrpid uid gid cuid cgid stime rtime ctime\n"
)

// leftIPC is IPC of alice's; the first segment is attached, the second is.
func leftIPC() map[string]string {
	return map[string]string{
		"proc/sysvipc/shm": shmTable + "0 1 600 1048576 8 8 1 5001 1 5001 1 0 0 99 0 0\n0 2 600 1048576 8 8 0 5001 1 5001 1 0 0 99 0 0\n0 3 600 1048576 8 8 0 5002 1 5002 1 0 0 99 0 0\n",
		"proc/sysvipc/sem": semTable + "0 4 600 1 5001 1 5001 1 0 99\n0 5 600 1 5001 1 5001 1 0 99\n0 6 600 1 5001 1 5001 1 0 99\n0 7 600 1 5001 1 5001 1 0 99\n",
		"proc/sysvipc/msg": msgTable + "0 8 600 0 0 60 0 5001 1 5001 1 0 0 99\n0 9 600 0 0 0 0 5001 1 5002 1 0 0 99\n",
	}
}

func (s scenario) ofJob(j *SelftestJob) scenario {
	s.job = j
	return s
}

func TestJobLeftovers(t *testing.T) { testCheck(t, "check_job_leftovers") }

var _ = table("check_job_leftovers", func(name string) []scenario {
	stuck := Finding{Code: "job.left.stuck", Severity: Fail, Remedy: RebootNode, Device: Device{Kind: "process", Name: "[a.out)"},
		Message: name + ":  alice's process 103 ([a.out)) of job 123 cannot be ended: killed, and in state D, wait channel rpc_wait_bit_killable"}
	perhaps := func(code, text string) Finding {
		return Finding{Code: code, Severity: Warn, Message: name + ":  alice has " + text + ", perhaps of job 123, which has ended"}
	}
	noJob := Finding{Code: "job.none", Severity: Skip, Message: name + ":  not in the epilog of a job"}
	odd := onLeft("a process that cannot be looked into", nil, []int{101}, unknown("read /proc/101/environ: is a directory"))
	delete(odd.files, "proc/101/environ")
	odd.files["proc/101/environ/"], odd.broken = "", true
	noIPC := onLeft("unreadable IPC", nil, nil, unknown("read /proc/sysvipc/msg: is a directory")).changed(map[string]string{"proc/sysvipc/msg/": ""})
	noShm := onLeft("unreadable /dev/shm", nil, nil, unknown("read /dev/shm: not a directory")).changed(map[string]string{"dev/shm": ""})
	noIPC.broken, noShm.broken = true, true
	noProc := onLeft("no /proc", nil, nil, unknown("read /proc: not a directory"), unknown("read /proc/sysvipc/shm: not a directory"))
	maps.DeleteFunc(noProc.files, func(f, _ string) bool { return strings.HasPrefix(f, "proc/") })
	noProc.files["proc"], noProc.broken = "", true
	bob := onLeft("the user has another job here", nil, nil).changed(leftIPC())
	bob.files["proc/60/status"] = strings.ReplaceAll(bob.files["proc/60/status"], "5002", "5001")
	nobodyKnows := onLeft("nobody knows whose the job was", of("-e"), []int{100, 101}, Finding{Code: "job.left.process", Severity: Warn, Device: Device{Kind: "process", Name: "train.py"},
		Message: name + ":  alice's process 100 (train.py) of job 123 is left; not ended: it does not run as the job's user alone"}).changed(leftIPC()).leaving(nil)
	nobodyKnows.job = &SelftestJob{ID: "123", UID: -1}
	system := onLeft("a user of the system", of("-e"), []int{100}, leftFinding(Warn, "train.py", "100 (train.py) of job 123 is left; not ended: uid 5001 is root's or the system's")).changed(leftIPC()).leaving(nil)
	system.vars = map[string]string{"MAX_SYS_UID": "5001"}
	runs := onLeft("a job that runs", of("-e"), []int{100}, leftFinding(Warn, "train.py", "100 (train.py) of job 123 is left; not ended: step batch of the job is still at work")).leaving(nil)
	runs.files["proc/50/cmdline"], runs.files["proc/50/stat"] = "slurmstepd: [123.batch]\x00", strings.Replace(runs.files["proc/50/stat"], "(a.out) R 1 (1)", "(slurmstepd)", 1)
	badUID := onLeft("a bad number", nil, nil, valueFinding(name, "MAX_SYS_UID", "many", "a uid"))
	badUID.vars = map[string]string{"MAX_SYS_UID": "many"}

	// Below a root of this test's files are its own.
	me := os.Geteuid()
	file := scenario{name: "a file in /dev/shm", job: &SelftestJob{ID: "123", UID: me, User: "alice"}, vars: map[string]string{"MAX_SYS_UID": "-1"},
		want:  []Finding{perhaps("job.left.file", "1 /dev/shm file (4kB): /dev/shm/sub/psm2")},
		files: map[string]string{"proc/": "", "dev/shm/sub/psm2": "x"}, links: map[string]string{"dev/shm/link": "sub/psm2"}}

	return []scenario{file,
		onLeft("no job", nil, nil, noJob).ofJob(nil), onLeft("nobody knows which job", nil, nil, noJob).ofJob(&SelftestJob{UID: 5001}),
		onLeft("nothing is left", nil, nil), onLeft("nothing is left to end", of("-e", "-g", "1"), nil).leaving(nil).orTable(map[string]any{"end": true, "grace": int64(1)}),
		onLeft("a process", nil, []int{100}, leftFinding(Warn, "train.py", "100 (train.py) of job 123 is left")),
		onLeft("processes, and that fails", of("-f", "-s", "1"), []int{100, 101}, leftFinding(Fail, "train.py", "100 (train.py) of job 123 is left"),
			leftFinding(Fail, "tmux", "101 (tmux) of job 123 is left")).orTable(map[string]any{"fail": true, "stuck": int64(1)}),
		onLeft("a process that sleeps", nil, []int{104}, leftFinding(Warn, "[a.out)", "104 ([a.out)) of job 123 is left in state D")),
		onLeft("a process with root's rights", of("-e"), []int{102}, leftFinding(Warn, "sudo", "102 (sudo) of job 123 is left; not ended: it does not run as the job's user alone")).leaving(nil),
		onLeft("no signal can end it", of("-s", "0.01"), []int{100, 103}, leftFinding(Warn, "train.py", "100 (train.py) of job 123 is left"), stuck).changed(leftIPC()),
		onLeft("IPC", nil, nil, perhaps("job.left.ipc", "1 shared memory segment (1MB): 2"), perhaps("job.left.ipc", "4 semaphore sets: 4, 5, 6 and 1 more")).changed(leftIPC()),
		onLeft("IPC of others", nil, nil).ofJob(&SelftestJob{ID: "123", UID: 5003}).changed(leftIPC()),
		bob, runs, nobodyKnows, system, badUID, odd, noIPC, noShm, noProc,
	}
})

// A job may leave thousands of processes.
var _ = table("check_job_leftovers", func(string) []scenario {
	s := onLeft("more than anybody wants to read", of("-g", "0.01"), nil)
	for i := range mostReported + 5 {
		dir := fmt.Sprintf("proc/%d/", 1000+i)
		for _, f := range []string{"stat", "status", "cmdline"} {
			s.files[dir+f] = useNode(useProc{pid: 1000 + i, uid: 5001, args: "rank"})[dir+f]
		}
		s.files[dir+"cgroup"] = "0::/slurmstepd.scope/job_123/step_0\n"
		if i < mostReported {
			s.want = append(s.want, leftFinding(Warn, "rank", fmt.Sprintf("%d (rank) of job 123 is left", 1000+i)))
		}
	}
	s.want = append(s.want, Finding{Code: "job.left.process", Severity: Warn, Message: jobLeftoversName + ":  job 123 has left 25 processes, of which these are 20"})
	return []scenario{s}
})

// What an epilog could not end is a failure as long as it is there, and no longer.
func TestJobLeftoversAreRemembered(t *testing.T) {
	t.Parallel()
	s := onLeft("", nil, []int{103})
	root := s.build(t)
	run := func(job *SelftestJob) []Finding {
		h := probe.NewHost(root)
		h.SetPast("/past")
		return (&jobLeftovers{Stuck: time.Millisecond}).Run(t.Context(), &Env{Host: h, Job: job.on(nil)})
	}
	if got := run(nil); len(got) != 1 || got[0].Severity != Skip {
		t.Errorf("before: %+v", got)
	}
	epilog := run(s.job)
	if len(epilog) != 1 || epilog[0].Code != "job.left.stuck" || epilog[0].Severity != Fail {
		t.Fatalf("the epilog: %+v", epilog)
	}
	for range 2 {
		later := run(nil)
		if len(later) != 1 || later[0].Severity != Fail || later[0].Message != epilog[0].Message {
			t.Errorf("later: %+v", later)
		}
	}
	if err := os.Remove(filepath.Join(root, "proc/103/stat")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := run(nil); len(got) != 1 || got[0].Severity != Skip {
			t.Errorf("afterwards: %+v", got)
		}
	}
	record := filepath.Join(root, "past", stuckRecords+"9.json")
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(nil); len(got) != 1 || got[0].Severity != Unknown || !strings.HasPrefix(got[0].Message, "read leftover-9: ") {
		t.Errorf("a file that is none: %+v", got)
	}
	if err := errors.Join(os.Remove(record), os.Mkdir(record, 0o700)); err != nil {
		t.Fatal(err)
	}
	if got := run(nil); len(got) != 1 || got[0].Severity != Unknown || got[0].Message != "read /past/leftover-9.json: not a plain file" {
		t.Errorf("no file: %+v", got)
	}
}
