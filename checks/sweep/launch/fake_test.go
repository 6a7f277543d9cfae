package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// TestMain makes this binary the fake Slurm of its own tests: under the names of Slurm's commands it
// answers from the files of a directory, the first of its PATH. Under the name rank it is a rank.
func TestMain(m *testing.M) {
	switch name := filepath.Base(os.Args[0]); name {
	case "sinfo", "squeue", "scontrol", "salloc", "scancel", "srun":
		os.Exit(fakeCommand(name, os.Args[1:]))
	case "rank":
		os.Exit(fakeRank())
	}
	os.Exit(m.Run())
}

// fakeDir is the directory of the fake commands.
func fakeDir() string {
	dir, _, _ := strings.Cut(os.Getenv("PATH"), ":")
	return dir
}

func has(name string) bool {
	_, err := os.Stat(filepath.Join(fakeDir(), name))
	return err == nil
}

func note(name, text string) {
	f, err := os.OpenFile(filepath.Join(fakeDir(), name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, _ = f.WriteString(text + "\n")
		_ = f.Close()
	}
}

// option returns the value of a long option, and what follows all options.
func option(args []string, name string) (value string, rest []string) {
	for i, a := range args {
		if v, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			value = v
		}
		if !strings.HasPrefix(a, "-") && rest == nil {
			rest = args[i:]
		}
	}
	return value, rest
}

func fakeCommand(name string, args []string) int {
	note("calls", name+" "+strings.Join(args, " "))
	switch {
	case has("hang-" + name):
		time.Sleep(time.Hour)
	case has("garbage-" + name):
		noise := make([]byte, 1<<20)
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range noise {
			noise[i] = byte(rng.Uint32())
		}
		_, _ = os.Stdout.Write(noise)
		_, _ = os.Stderr.Write(noise)
		return 0
	case has("once-" + name): // slurmctld starts again
		_ = os.Remove(filepath.Join(fakeDir(), "once-"+name))
		fallthrough
	case has("fail-" + name):
		fmt.Fprintf(os.Stderr, "%s: error: Unable to contact slurm controller (connect failure)\n", name)
		return 1
	}
	all := strings.Join(args, " ")
	switch {
	case name == "sinfo" && strings.Contains(all, "%R"):
		return show("partitions")
	case name == "sinfo":
		return show("nodes")
	case name == "squeue" && strings.Contains(all, "--name="):
		if named, _ := option(args, "name"); has("waits") && named == jobName() {
			fmt.Println(8)
		}
	case name == "squeue":
		return show("jobs")
	case all == "show config":
		fmt.Print("Configuration data\nClusterName             = fake\nMessageTimeout          = 1 sec\nSLURM_VERSION           = 22.05.8\n")
		return show("config")
	case all == "show topology":
		return show("topology")
	case strings.HasPrefix(all, "-o -d show job"):
		state := "RUNNING"
		if has("cancelled") || args[len(args)-1] == "5" {
			state = "CANCELLED"
		}
		list, _ := os.ReadFile(filepath.Join(fakeDir(), "joblist"))
		name := jobName()
		if has("other-job") {
			name = "train"
		}
		gres, _ := os.ReadFile(filepath.Join(fakeDir(), "gres"))
		fmt.Printf("JobId=7 JobName=%s JobState=%s Reason=None PreemptTime=None NodeList=%s %s\n", name, state, strings.TrimSpace(string(list)), gres)
	case all == "-o show reservation":
		return show("reservations")
	case name == "salloc":
		list, _ := option(args, "nodelist")
		name, _ := option(args, "job-name")
		put(nil, fakeDir(), "jobname", name)
		switch {
		case has("jobs-are-faster"): // salloc gives up after --immediate
			fmt.Fprint(os.Stderr, "salloc: Pending job allocation 5\nsalloc: error: Unable to allocate resources: Connection timed out\n")
			return 1
		case has("queues-salloc"):
			fmt.Fprint(os.Stderr, "salloc: Pending job allocation 5\n")
			time.Sleep(time.Hour)
		}
		if list == "" { // as many as are free
			data, _ := os.ReadFile(filepath.Join(fakeDir(), "nodes"))
			without, _ := option(args, "exclude")
			not, _ := slurm.ExpandHostlist(without)
			var free []string
			for line := range strings.Lines(string(data)) {
				n, _, _ := strings.Cut(line, "|")
				if !slices.Contains(not, n) && !has("taken-"+n) {
					free = append(free, n)
				}
			}
			list = slurm.FoldHostlist(free)
		}
		if strings.Contains(list, "02") && has("taken-gpu02") { // by a job, since sinfo was asked; or it looks idle
			if !has("looks-idle") {
				put(nil, fakeDir(), "nodes", "gpu01|idle|main*,up|(null)|none\ngpu02|mix|main*,up|(null)|none\n")
			}
			fmt.Fprint(os.Stderr, "salloc: Pending job allocation 5\nsalloc: error: Unable to allocate resources: Connection timed out\n")
			return 1
		}
		if strings.Contains(list, "02") && has("silent-gpu02") { // its slurmd has frozen since, and its prolog does not end
			if !has("waits") { // else the job has the number 8, and salloc does not print it
				fmt.Fprint(os.Stderr, "salloc: Granted job allocation 6\n")
			}
			_ = os.WriteFile(filepath.Join(fakeDir(), "nodes"), []byte("gpu01|alloc|main*,up|(null)|none\ngpu02|down*|main*,up|(null)|Not responding\n"), 0o600)
			time.Sleep(time.Hour)
		}
		note("joblist", list)
		if has("full-disk") { // nothing can be added to the journal
			pattern, _ := os.ReadFile(filepath.Join(fakeDir(), "full-disk"))
			files, _ := filepath.Glob(string(pattern))
			for _, file := range files {
				_ = os.Remove(file)
				_ = os.Mkdir(file, 0o700)
			}
		}
		fmt.Fprint(os.Stderr, "salloc: Granted job allocation 7\n")
	case strings.HasPrefix(all, "update NodeName=") && has("removed-"+strings.TrimPrefix(args[1], "NodeName=")):
		fmt.Fprint(os.Stderr, "slurm_update error: Invalid node name specified\n")
		return 1
	case strings.HasPrefix(all, "update NodeName=") && has("denied"):
		fmt.Fprint(os.Stderr, "slurm_update error: Access/permission denied\n")
		return 1
	case name == "scancel":
		note("cancelled", "")
		return signalRanks(unix.SIGTERM)
	case name == "srun":
		return fakeStep(args)
	}
	return 0
}

// jobName is the name of the job that salloc was last asked for.
func jobName() string {
	name, _ := os.ReadFile(filepath.Join(fakeDir(), "jobname"))
	return string(name)
}

func show(name string) int {
	data, _ := os.ReadFile(filepath.Join(fakeDir(), name))
	_, _ = os.Stdout.Write(data)
	return 0
}

func signalRanks(sig syscall.Signal) int {
	files, _ := filepath.Glob(filepath.Join(fakeDir(), "pid-*"))
	for _, f := range files {
		data, _ := os.ReadFile(f)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
			_ = unix.Kill(pid, sig)
		}
	}
	return 0
}

// fakeStep is srun: it runs the program for each node. A frozen node ends all of the step after a moment.
// On a node that is gone, cat does not start, and on one that is restarted /proc/uptime is short.
func fakeStep(args []string) int {
	list, program := option(args, "nodelist")
	names, err := slurm.ExpandHostlist(list)
	if err != nil {
		fmt.Fprintln(os.Stderr, "srun: error:", err)
		return 1
	}
	if all := strings.Join(args, " "); has("no-gres") && (strings.Contains(all, "--gres=") || strings.Contains(all, "--gpus-per-task=")) {
		fmt.Fprint(os.Stderr, "srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification\n")
		return 1
	}
	var bad []string
	for _, n := range names {
		if has("frozen-"+n) || program[0] != "true" && has("freezes-"+n) || program[0] == "cat" && has("gone-"+n) {
			bad = append(bad, n)
		}
	}
	if program[0] == "true" || program[0] == "cat" {
		if program[0] == "cat" && has("busy") {
			fmt.Fprint(os.Stderr, "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)\n")
			if !has("created") {
				fmt.Fprint(os.Stderr, "srun: Cancelled pending job step with signal 15\n")
				return 1
			}
			fmt.Fprint(os.Stderr, "srun: Step created for StepId=7.3\n")
		}
		if len(bad) > 0 {
			fmt.Fprintf(os.Stderr, "srun: error: Task launch for StepId=7.0 failed on node %s: Socket timed out on send/recv operation\n", bad[0])
			return 1
		}
		if up := "12345.67 99.0"; program[0] == "cat" {
			if has("restarted-" + names[0]) {
				up = "0.01 0.0"
			}
			fmt.Println(up)
		}
		return 0
	}
	if _, err := os.Stat(program[0]); err != nil {
		fmt.Fprintf(os.Stderr, "slurmstepd: error: execve(): %s: No such file or directory\n", program[0])
		return 2
	}
	ticket := make([]byte, 64<<10)
	n := 0
	for {
		k, err := os.Stdin.Read(ticket[n:])
		n += k
		if err != nil || k == 0 {
			break
		}
	}
	var ranks []*os.Process
	for i, node := range names {
		if slices.Contains(bad, node) {
			continue
		}
		if len(names) > 1 && has("noexec-"+node) {
			fmt.Fprintf(os.Stderr, "srun: error: %s: task %d: Exited with exit code 2\n%d: slurmstepd: error: execve(): %s: No such file or directory\n", node, i, i, program[0])
			continue
		}
		if len(names) > 1 && has("killed-"+node) {
			fmt.Fprintf(os.Stderr, "srun: error: %s: task %d: Killed\n", node, i)
			continue
		}
		in, out, _ := os.Pipe()
		p, err := os.StartProcess(program[0], []string{"rank"}, &os.ProcAttr{
			Env: append(os.Environ(), "SLURMD_NODENAME="+node), Files: []*os.File{in, os.Stdout, os.Stderr},
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, "srun: error:", err)
			return 1
		}
		_ = in.Close()
		_, _ = out.Write(ticket[:n])
		_ = out.Close()
		ranks = append(ranks, p)
	}
	if len(bad) > 0 {
		time.Sleep(500 * time.Millisecond)
		fmt.Fprintf(os.Stderr, "srun: error: Task launch for StepId=7.1 failed on node %s: Socket timed out on send/recv operation\n", bad[0])
		for i, p := range ranks {
			_ = p.Kill()
			fmt.Fprintf(os.Stderr, "srun: error: %s: task %d: Killed\n%d: nhc-gpu sweep: ended by SIGTERM\n", names[i], i, i)
		}
		return 1
	}
	status := 0
	for _, p := range ranks {
		if s, err := p.Wait(); err == nil && s.ExitCode() != 0 {
			status = 1
		}
	}
	return status
}

// fakeRank is a rank with the faults that files name: old-NODE (another version), mute-NODE (no answer to
// a Run), dies-NODE (at a Run), leaves-NODE (others end it at a Run), stops-NODE (SIGSTOP at a Run),
// closed-NODE (2 of its 8 GPUs), unready-NODE, faulty-NODE, full-NODE (its history). As a rank does, it says goodbye at SIGTERM and at
// its time limit.
func fakeRank() int {
	node := os.Getenv("SLURMD_NODENAME")
	t, err := wire.ReadTicket(os.Stdin)
	if err != nil {
		return 1
	}
	ordered := make(chan os.Signal, 1)
	signal.Notify(ordered, unix.SIGTERM)
	note("pid-"+node, strconv.Itoa(os.Getpid()))
	version := t.Version
	if has("old-" + node) {
		version = "0.1"
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	self := sweep.Node{Name: node, GPUs: 8}
	if has("closed-" + node) {
		self.Closed = 6
	}
	c, err := wire.Dial(ctx, t, wire.Hello{Version: version, Node: self, PID: os.Getpid()})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go c.Beat(ctx)
	go func() {
		why := "ended by SIGTERM"
		select {
		case <-ordered:
		case <-time.After(t.Limit):
			why = "the time limit of the sweep is over"
		}
		_ = c.Send(&wire.Message{Bye: why})
		os.Exit(1)
	}()
	tasks := map[int]sweep.Task{}
	ranks := map[int]int{}
	for {
		m, err := c.Receive()
		if err != nil {
			return 1
		}
		switch {
		case m.Bye != "":
			return 0
		case m.Prepare != nil:
			id := m.Prepare.Task.ID
			tasks[id], ranks[id] = m.Prepare.Task, m.Prepare.Rank
			r := &wire.Ready{ID: id, Rank: m.Prepare.Rank, Address: node + ":1"}
			if has("unready-" + node) {
				r.Fault, r.Text = sweep.FaultUnable, "no such plane"
			}
			_ = c.Send(&wire.Message{Ready: r})
		case m.Run != nil:
			id := m.Run.ID
			if task := tasks[id]; task.Kind == sweep.KindNote {
				note("history-"+node, task.Op)
				d := &wire.Done{ID: id}
				if has("full-" + node) {
					d.Result = sweep.Result{Fault: sweep.FaultError, Text: "no space left on device"}
				}
				_ = c.Send(&wire.Message{Done: d})
				continue
			}
			switch {
			case has("mute-" + node):
				continue
			case has("dies-" + node):
				return 9
			case has("leaves-" + node):
				_ = unix.Kill(os.Getpid(), unix.SIGTERM)
				time.Sleep(time.Hour)
			case has("stops-" + node):
				_ = unix.Kill(os.Getpid(), unix.SIGSTOP) // this thread may run on for a moment
				time.Sleep(time.Hour)
			}
			d := &wire.Done{ID: id, Rank: ranks[id], Result: sweep.Result{Values: []float64{float64(10 + ranks[id])}}}
			if has("faulty-" + node) {
				d.Result = sweep.Result{Fault: sweep.FaultWrong, Text: "word 7 is wrong", Rank: ranks[id]}
			}
			_ = c.Send(&wire.Message{Done: d})
		}
	}
}

// fakePlan runs given rounds.
type fakePlan struct {
	rounds [][]sweep.Task
	at     int
	taken  [][]sweep.Result
}

func (p *fakePlan) Next() []sweep.Task {
	if p.at >= len(p.rounds) {
		return nil
	}
	p.at++
	return p.rounds[p.at-1]
}
func (p *fakePlan) Take(r []sweep.Result) { p.taken = append(p.taken, r) }
func (p *fakePlan) Suspects() (list []sweep.Suspect) {
	for _, results := range p.taken {
		for _, r := range results {
			for _, n := range r.Blame {
				list = append(list, sweep.Suspect{Node: n, Stage: r.Task.Stage, Kind: r.Task.Kind, Code: "sweep.test", Text: r.Text, Confidence: 1})
			}
		}
	}
	return list
}
func (p *fakePlan) Fleet() []sweep.Distribution { return nil }
func (p *fakePlan) Left() int                   { return len(p.rounds) - p.at }

// pairRounds plans some rounds that pair neighbours.
func pairRounds(rounds int, limit time.Duration) Planner {
	return func(stage sweep.Stage, nodes []sweep.Node, _ uint64, first int) (sweep.Plan, error) {
		p := &fakePlan{}
		id := first
		for range rounds {
			var tasks []sweep.Task
			for i := 0; i+1 < len(nodes); i += 2 {
				tasks = append(tasks, sweep.Task{ID: id, Stage: stage, Kind: sweep.KindStream, Nodes: []string{nodes[i].Name, nodes[i+1].Name}, Limit: limit})
				id++
			}
			p.rounds = append(p.rounds, tasks)
		}
		return p, nil
	}
}

// fakeSlurm makes a directory with the fake commands and a cluster of idle nodes.
func fakeSlurm(t *testing.T, nodes int) (dir string, o Options) {
	t.Helper()
	dir = t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sinfo", "squeue", "scontrol", "salloc", "scancel", "srun", "rank"} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	text := ""
	for i := range nodes {
		text += fmt.Sprintf("gpu%02d|idle|main*,up|(null)|none\n", i+1)
	}
	put(t, dir, "nodes", text)
	put(t, dir, "partitions", "main\nlow\nbig\nother\n")
	put(t, dir, "topology", "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=gpu[01-02]\n")
	put(t, dir, "jobs", "99|gpu02\n7|gpu[01-04]\n")
	o = Options{
		Version: "1.0", Command: []string{"sweep"}, Program: []string{filepath.Join(dir, "rank")}, State: filepath.Join(t.TempDir(), "state"),
		Settings: slurm.Settings{Path: dir + ":/usr/bin:/bin"}, Stages: []sweep.Stage{sweep.StageTCP}, Plan: pairRounds(2, 20*time.Second),
		Ramp: 32, Time: 10 * time.Minute, Queue: time.Minute, Log: t.Logf,
		limits: limits{silence: 10 * time.Second, ready: 60 * time.Second, slack: 10 * time.Second, farewell: 5 * time.Second, ask: time.Minute, look: 100 * time.Millisecond, plan: time.Second},
	}
	t.Cleanup(func() { endRanks(dir) })
	return dir, o
}

// put writes a file. Without a test it ignores errors.
func put(t *testing.T, dir, name, text string) {
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil && t != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// livingRanks returns the ranks of a fake cluster that still exist.
func livingRanks(dir string) (pids []int) {
	files, _ := filepath.Glob(filepath.Join(dir, "pid-*"))
	for _, f := range files {
		data, _ := os.ReadFile(f)
		for word := range strings.FieldsSeq(string(data)) {
			pid, _ := strconv.Atoi(word)
			cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if err == nil && strings.HasPrefix(string(cmdline), "rank\x00") {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func endRanks(dir string) {
	for _, pid := range livingRanks(dir) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

func stateOf(r *sweep.Report, node string) (state, why string) {
	for _, n := range r.Nodes {
		if n.Name == node {
			return n.State, n.Why
		}
	}
	return "", ""
}

func resultsOf(r *sweep.Report) (text []string) {
	for _, s := range r.Stages {
		for _, x := range s.Results {
			values, _ := json.Marshal(x.Values)
			text = append(text, fmt.Sprintf("%s %s %s %s", strings.Join(x.Task.Nodes, "-"), values, x.Fault, strings.Join(x.Blame, ",")))
		}
	}
	return text
}
