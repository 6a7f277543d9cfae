package jobs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
)

// aliceJob is the ended job.
func aliceJob() *selftest.Job {
	return &selftest.Job{ID: "123", UID: 5001, User: "alice"}
}

// onLeft returns a line on a node after job 123 of alice has ended, with these processes: 100
// train.py of its cgroup, 101 by its environment, 102 with root's rights, 103 that no signal can
// end, 104 that dies slowly.
func onLeft(name string, words []string, pids []int, want ...checks.Finding) checktest.Scenario {
	const other = "slurmstepd: [77.0]"
	procs := []checktest.UseProc{{PID: 1, Args: "/sbin/init"}, {PID: 50, Args: other}, {PID: 60, Parent: 50, UID: 5002, Args: "bobs.exe"}}
	group := map[int]string{60: "0::/slurmstepd.scope/job_77/step_0\n", 101: "0::/\n"}
	for _, p := range []checktest.UseProc{
		{PID: 100, UID: 5001, Args: "train.py --all"}, {PID: 101, UID: 5001, Args: "tmux new"}, {PID: 102, UID: 5001, Args: "sudo x"},
		{PID: 103, UID: 5001, Args: "writer"}, {PID: 104, UID: 5001, Args: "slow"},
	} {
		if slices.Contains(pids, p.PID) {
			procs = append(procs, p)
		}
	}
	s := checktest.Scenario{Name: name, Words: words, Files: checktest.UseNode(procs...), Want: want, Job: aliceJob()}
	for _, p := range procs {
		dir := fmt.Sprintf("proc/%d/", p.PID)
		if s.Files[dir+"cgroup"] = "0::/slurmstepd.scope/job_123/step_0\n"; p.UID == 0 || group[p.PID] != "" {
			s.Files[dir+"cgroup"] = group[p.PID]
		}
		s.Files[dir+"environ"] = "A=1\x00SLURM_JOB_ID=123\x00"
	}
	state := func(pid int, letter, flags, more string) {
		dir := fmt.Sprintf("proc/%d/", pid)
		if _, ok := s.Files[dir+"stat"]; !ok {
			return
		}
		s.Files[dir+"stat"] = strings.Replace(strings.Replace(s.Files[dir+"stat"], ") S ", ") "+letter+" ", 1), " -1 0 ", " -1 "+flags+" ", 1)
		s.Files[dir+"status"] += more
	}
	state(103, "D", "0", "SigPnd:\t0000000000000100\n")
	state(104, "D", "0", "")
	if slices.Contains(pids, 103) {
		s.Files["proc/103/wchan"] = "rpc_wait_bit_killable"
	}
	if slices.Contains(pids, 102) {
		s.Files["proc/102/status"] = strings.Replace(s.Files["proc/102/status"], "5001\t5001\t5001\t5001", "5001\t5001\t0\t0", 1)
	}
	return s
}

// leftFinding returns the finding about a process.
func leftFinding(severity checks.Severity, command, text string) checks.Finding {
	return checks.Finding{Code: "job.left.process", Severity: severity, Device: checks.Device{Kind: "process", Name: command},
		Message: jobLeftoversName + ":  alice's process " + text}
}

const (
	shmTable = "key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap\n"
	semTable = "key semid perms nsems uid gid cuid cgid otime ctime\n"
	msgTable = "key msqid perms cbytes qnum lspid lrpid uid gid cuid cgid stime rtime ctime\n"
)

// leftIPC is IPC of alice's: the first segment is attached, the second is not.
func leftIPC() map[string]string {
	return map[string]string{
		"proc/sysvipc/shm": shmTable + "0 1 600 1048576 8 8 1 5001 1 5001 1 0 0 99 0 0\n0 2 600 1048576 8 8 0 5001 1 5001 1 0 0 99 0 0\n0 3 600 1048576 8 8 0 5002 1 5002 1 0 0 99 0 0\n",
		"proc/sysvipc/sem": semTable + "0 4 600 1 5001 1 5001 1 0 99\n0 5 600 1 5001 1 5001 1 0 99\n0 6 600 1 5001 1 5001 1 0 99\n0 7 600 1 5001 1 5001 1 0 99\n",
		"proc/sysvipc/msg": msgTable + "0 8 600 0 0 60 0 5001 1 5001 1 0 0 99\n0 9 600 0 0 0 0 5001 1 5002 1 0 0 99\n",
	}
}

func ofJob(s checktest.Scenario, j *selftest.Job) checktest.Scenario {
	s.Job = j
	return s
}

func TestJobLeftovers(t *testing.T) { checktest.Run(t, "check_job_leftovers") }

var _ = checktest.Table("check_job_leftovers", func(name string) []checktest.Scenario {
	stuck := checks.Finding{Code: "job.left.stuck", Severity: checks.Fail, Remedy: checks.RebootNode, Device: checks.Device{Kind: "process", Name: "[a.out)"},
		Message: name + ":  alice's process 103 ([a.out)) of job 123 cannot be ended: killed, and in state D, wait channel rpc_wait_bit_killable"}
	perhaps := func(code, text string) checks.Finding {
		return checks.Finding{Code: code, Severity: checks.Warn, Message: name + ":  alice has " + text + ", perhaps of job 123, which has ended"}
	}
	noJob := checks.Finding{Code: "job.none", Severity: checks.Skip, Message: name + ":  not in the epilog of a job"}
	noneStuck := ofJob(onLeft("no process of an earlier job", nil, nil, checks.Finding{Code: "job.left.none", Severity: checks.Skip,
		Message: name + ":  not in the epilog of a job, and no stuck process of an earlier job remains"}), nil)
	noneStuck.Past = "/past"
	odd := onLeft("a process that cannot be looked into", nil, []int{101}, checktest.Unknown("read /proc/101/environ: is a directory"))
	delete(odd.Files, "proc/101/environ")
	odd.Files["proc/101/environ/"], odd.Broken = "", true
	noIPC := onLeft("unreadable IPC", nil, nil, checktest.Unknown("read /proc/sysvipc/msg: is a directory")).Changed(map[string]string{"proc/sysvipc/msg/": ""})
	noShm := onLeft("unreadable /dev/shm", nil, nil, checktest.Unknown("read /dev/shm: not a directory")).Changed(map[string]string{"dev/shm": ""})
	noIPC.Broken, noShm.Broken = true, true
	noProc := onLeft("no /proc", nil, nil, checktest.Unknown("read /proc: not a directory"), checktest.Unknown("read /proc/sysvipc/shm: not a directory"))
	maps.DeleteFunc(noProc.Files, func(f, _ string) bool { return strings.HasPrefix(f, "proc/") })
	noProc.Files["proc"], noProc.Broken = "", true
	bob := onLeft("the user has another job here", nil, nil).Changed(leftIPC())
	bob.Files["proc/60/status"] = strings.ReplaceAll(bob.Files["proc/60/status"], "5002", "5001")
	unknownOwner := onLeft("the owner of the job is unknown", checktest.Of("-e"), []int{100, 101}, checks.Finding{Code: "job.left.process", Severity: checks.Warn, Device: checks.Device{Kind: "process", Name: "train.py"},
		Message: name + ":  alice's process 100 (train.py) of job 123 remains; not ended: other users also run in it"}).Changed(leftIPC()).Leaving(nil)
	unknownOwner.Job = &selftest.Job{ID: "123", UID: -1}
	system := onLeft("a user of the system", checktest.Of("-e"), []int{100}, leftFinding(checks.Warn, "train.py", "100 (train.py) of job 123 remains; not ended: uid 5001 is root or a system user")).Changed(leftIPC()).Leaving(nil)
	system.Vars = map[string]string{"MAX_SYS_UID": "5001"}
	runs := onLeft("a job that runs", checktest.Of("-e"), []int{100}, leftFinding(checks.Warn, "train.py", "100 (train.py) of job 123 remains; not ended: step batch of the job still runs")).Leaving(nil)
	runs.Files["proc/50/cmdline"], runs.Files["proc/50/stat"] = "slurmstepd: [123.batch]\x00", strings.Replace(runs.Files["proc/50/stat"], "(a.out) R 1 (1)", "(slurmstepd)", 1)
	badUID := onLeft("a bad number", nil, nil, checktest.ValueFinding(name, "MAX_SYS_UID", "many", "a uid"))
	badUID.Vars = map[string]string{"MAX_SYS_UID": "many"}

	// Below a root of this test's files are its own.
	me := os.Geteuid()
	file := checktest.Scenario{Name: "a file in /dev/shm", Job: &selftest.Job{ID: "123", UID: me, User: "alice"}, Vars: map[string]string{"MAX_SYS_UID": "-1"},
		Want:  []checks.Finding{perhaps("job.left.file", "1 /dev/shm file (4kB): /dev/shm/sub/psm2")},
		Files: map[string]string{"proc/": "", "dev/shm/sub/psm2": "x"}, Links: map[string]string{"dev/shm/link": "sub/psm2"}}

	return []checktest.Scenario{file,
		ofJob(onLeft("no job", nil, nil, noJob), nil), ofJob(onLeft("the job is unknown", nil, nil, noJob), &selftest.Job{UID: 5001}),
		noneStuck, onLeft("nothing remains", nil, nil), onLeft("nothing remains to end", checktest.Of("-e", "-g", "1"), nil).Leaving(nil).OrTable(map[string]any{"end": true, "grace": int64(1)}),
		onLeft("a process", nil, []int{100}, leftFinding(checks.Warn, "train.py", "100 (train.py) of job 123 remains")),
		onLeft("processes, and that fails", checktest.Of("-f", "-s", "1"), []int{100, 101}, leftFinding(checks.Fail, "train.py", "100 (train.py) of job 123 remains"),
			leftFinding(checks.Fail, "tmux", "101 (tmux) of job 123 remains")).OrTable(map[string]any{"fail": true, "stuck": int64(1)}),
		onLeft("a process that sleeps", nil, []int{104}, leftFinding(checks.Warn, "[a.out)", "104 ([a.out)) of job 123 remains in state D")),
		onLeft("a process with root's rights", checktest.Of("-e"), []int{102}, leftFinding(checks.Warn, "sudo", "102 (sudo) of job 123 remains; not ended: other users also run in it")).Leaving(nil),
		onLeft("no signal can end it", checktest.Of("-s", "0.01"), []int{100, 103}, leftFinding(checks.Warn, "train.py", "100 (train.py) of job 123 remains"), stuck).Changed(leftIPC()),
		onLeft("IPC", nil, nil, perhaps("job.left.ipc", "1 shared memory segment (1MB): 2"), perhaps("job.left.ipc", "4 semaphore sets: 4, 5, 6 and 1 more")).Changed(leftIPC()),
		ofJob(onLeft("IPC of others", nil, nil), &selftest.Job{ID: "123", UID: 5003}).Changed(leftIPC()),
		bob, runs, unknownOwner, system, badUID, odd, noIPC, noShm, noProc,
	}
})

// A job can leave thousands of processes.
var _ = checktest.Table("check_job_leftovers", func(string) []checktest.Scenario {
	s := onLeft("more than anybody wants to read", checktest.Of("-g", "0.01"), nil)
	for i := range mostReported + 5 {
		dir := fmt.Sprintf("proc/%d/", 1000+i)
		for _, f := range []string{"stat", "status", "cmdline"} {
			s.Files[dir+f] = checktest.UseNode(checktest.UseProc{PID: 1000 + i, UID: 5001, Args: "rank"})[dir+f]
		}
		s.Files[dir+"cgroup"] = "0::/slurmstepd.scope/job_123/step_0\n"
		if i < mostReported {
			s.Want = append(s.Want, leftFinding(checks.Warn, "rank", fmt.Sprintf("%d (rank) of job 123 remains", 1000+i)))
		}
	}
	s.Want = append(s.Want, checks.Finding{Code: "job.left.process", Severity: checks.Warn, Message: jobLeftoversName + ":  job 123 has left 25 processes, 20 of them listed"})
	return []checktest.Scenario{s}
})

// A process that an epilog could not end fails as long as it exists, and no longer.
func TestJobLeftoversAreRemembered(t *testing.T) {
	t.Parallel()
	s := onLeft("", nil, []int{103})
	root := s.Build(t)
	run := func(job *selftest.Job) []checks.Finding {
		h := probe.NewHost(root)
		h.SetPast("/past")
		return (&jobLeftovers{Stuck: time.Millisecond}).Run(t.Context(), &checks.Env{Host: h, Job: job.On(nil)})
	}
	none := func(when string) {
		t.Helper()
		if got := run(nil); len(got) != 1 || got[0].Severity != checks.Skip || got[0].Code != checks.NoneStuck {
			t.Errorf("%s: %+v", when, got)
		}
	}
	none("before")
	epilog := run(s.Job)
	if len(epilog) != 1 || epilog[0].Code != "job.left.stuck" || epilog[0].Severity != checks.Fail {
		t.Fatalf("the epilog: %+v", epilog)
	}
	fails := func(when string) {
		t.Helper()
		if got := run(nil); len(got) != 1 || got[0].Severity != checks.Fail || got[0].Message != epilog[0].Message {
			t.Errorf("%s: %+v", when, got)
		}
	}
	fails("later")
	fails("once more")
	doubt := func(when string) {
		t.Helper()
		if got := run(nil); len(got) != 1 || got[0].Severity != checks.Unknown || got[0].Message != epilog[0].Message+"; now it is in another state, or cannot be read" {
			t.Errorf("%s: %+v", when, got)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	proc := filepath.Join(root, "proc")
	must(os.WriteFile(proc+"/103/stat", []byte(strings.Replace(s.Files["proc/103/stat"], ") D ", ") R ", 1)), 0o600))
	doubt("awake")
	must(os.WriteFile(proc+"/103/stat", []byte(s.Files["proc/103/stat"]), 0o600))
	must(os.Rename(proc, proc+".old"))
	must(os.WriteFile(proc, nil, 0o600))
	doubt("with an unreadable /proc")
	must(os.Remove(proc))
	must(os.Rename(proc+".old", proc))
	fails("asleep again")
	must(os.Remove(proc + "/103/stat"))
	none("afterwards")
	none("without the record")
	record := filepath.Join(root, "past", stuckRecords+"9.json")
	if err := os.WriteFile(record, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run(nil); len(got) != 1 || got[0].Severity != checks.Unknown || !strings.HasPrefix(got[0].Message, "leftover-9.json is damaged: ") {
		t.Errorf("an invalid file: %+v", got)
	}
	none("after an invalid file")
	if err := os.Mkdir(record, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := run(nil); len(got) != 1 || got[0].Severity != checks.Unknown || got[0].Message != "read /past/leftover-9.json: not a regular file" {
		t.Errorf("no file: %+v", got)
	}
}

// A record of files in /dev/shm that cannot be read is reported, and kept; a damaged one is removed.
func TestShmRecordUnread(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	past := filepath.Join(root, "past")
	if err := os.Mkdir(past, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"shm-7.json": 0o666, "shm-8.json": 0o600} {
		if err := os.WriteFile(filepath.Join(past, name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(past, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	h := probe.NewHost(root)
	h.SetPast("/past")
	run := &leftRun{jobLeftovers: &jobLeftovers{}, env: &checks.Env{Host: h}, job: &checks.Job{ID: "9"}}
	if got := run.earlier(t.Context()); len(got) != 1 || got[0].Severity != checks.Unknown || !strings.Contains(got[0].Message, "shm-7.json") {
		t.Errorf("%+v", got)
	}
	if names, err := h.Names("/past"); err != nil || !slices.Equal(names, []string{"shm-7.json"}) {
		t.Errorf("%q, %v, want the one that could not be read", names, err)
	}
}
