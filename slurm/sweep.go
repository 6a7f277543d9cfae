package slurm

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// SweepNode is a node that a sweep can test.
type SweepNode struct {
	Name       string
	State      State
	Partitions []string
	Open       []Partition // those of them that start jobs, the default one first
	Features   []string
	Reason     string // "" if it has none
}

// Partition is a partition that starts jobs. Its limits, 0 for none, are not those of root.
type Partition struct {
	Name    string
	Default bool
	Time    time.Duration
	Nodes   int // of a job
}

// SweepNodesArgv is the command whose output [ParseSweepNodes] reads: one line for each node and
// partition, hidden ones, too; an asterisk marks the default partition. The reason is last, because it may
// contain anything.
func (s Settings) SweepNodesArgv() ([]string, error) {
	return s.sinfoOf("-a", "-h", "-N", "-o", "%N|%t|%P,%a,%l,%s|%f|%E")
}

// PartitionsArgv is the command that prints the names of the partitions that its user can use, of those that
// are not hidden.
func (s Settings) PartitionsArgv() ([]string, error) {
	return s.sinfoOf("-h", "-o", "%R")
}

// partitionOf parses the column about a partition: NAME*,up,1-00:00:00,1-infinite, and returns whether it
// starts jobs, which a wrapper of sinfo may not say.
func partitionOf(column string) (p Partition, open bool) {
	f := append(strings.Split(column, ","), "", "", "")
	p.Name, p.Default = strings.CutSuffix(f[0], "*")
	if limit, err := parseTime(f[2]); err == nil {
		p.Time = limit
	}
	_, most, _ := strings.Cut(f[3], "-")
	p.Nodes, _ = strconv.Atoi(cmp.Or(most, f[3]))
	return p, f[1] == "up" || f[1] == ""
}

// parseTime parses a time limit of Slurm: 30, 30:00, 1:30:00 or 1-00:00:00. Minutes come first of two numbers.
func parseTime(text string) (d time.Duration, err error) {
	days, rest, found := strings.Cut(text, "-")
	if !found {
		days, rest = "0", text
	}
	parts := append([]string{days}, strings.Split(rest, ":")...)
	units := map[int][]time.Duration{2: {24 * time.Hour, time.Minute}, 3: {24 * time.Hour, time.Minute, time.Second}, 4: {24 * time.Hour, time.Hour, time.Minute, time.Second}}[len(parts)]
	for i, unit := range units {
		n, bad := strconv.Atoi(parts[i])
		d, err = d+time.Duration(n)*unit, errors.Join(err, bad)
	}
	return d, err
}

// stateWord matches a state of sinfo with its signs.
var stateWord = checks.Lazily(`^[A-Za-z_+]+[-#@+!%~$^*]*$`)

// ParseSweepNodes parses the output of [Settings.SweepNodesArgv]. A node of several partitions is
// listed once, with all of them.
func ParseSweepNodes(out []byte) (nodes []SweepNode, err error) {
	at := map[string]int{}
	for line := range strings.Lines(string(out)) {
		f := strings.SplitN(strings.TrimRight(line, "\n"), "|", 5)
		if len(f) != 5 || !isNodeName(f[0]) || !stateWord().MatchString(f[1]) || f[2] == "" {
			continue // a further line of a person's reason
		}
		i, ok := at[f[0]]
		if !ok {
			i = len(nodes)
			at[f[0]] = i
			n := SweepNode{Name: f[0], State: ParseState(f[1])}
			if f[3] != "(null)" {
				n.Features = splitHostlist(f[3])
			}
			if reason := strings.TrimSpace(f[4]); ownerOf(reason) != noOwner {
				n.Reason = reason
			}
			nodes = append(nodes, n)
		}
		partition, open := partitionOf(f[2])
		if slices.Contains(nodes[i].Partitions, partition.Name) {
			continue
		}
		nodes[i].Partitions = append(nodes[i].Partitions, partition.Name)
		switch {
		case !open:
		case partition.Default:
			nodes[i].Open = slices.Insert(nodes[i].Open, 0, partition)
		default:
			nodes[i].Open = append(nodes[i].Open, partition)
		}
	}
	if nodes == nil {
		return nil, fmt.Errorf("parse %q: want NODE|STATE|PARTITION|FEATURES|REASON", cut(printable(firstLine(out)), 80))
	}
	return nodes, err
}

// MostOpen returns the partition that starts jobs on most of the nodes, "" if there is none. The default
// one takes precedence if it has most of them, or as many as others. A partition does not count whose limits
// forbid a job of that time on its nodes, unless all do; without a time its limits do not count.
func MostOpen(nodes []SweepNode, job time.Duration) (most string) {
	count, partitions := map[string]int{}, map[string]Partition{}
	for _, n := range nodes {
		for _, p := range n.Open {
			count[p.Name]++
			partitions[p.Name] = p
		}
	}
	fits := func(p Partition) bool {
		return job == 0 || (p.Time == 0 || job <= p.Time) && (p.Nodes == 0 || count[p.Name] <= p.Nodes)
	}
	better := func(a, b Partition) int {
		isMost := func(p Partition) bool { return p.Default && 2*count[p.Name] > len(nodes) }
		return cmp.Or(first(fits(a), fits(b)), first(isMost(a), isMost(b)), count[b.Name]-count[a.Name], first(a.Default, b.Default), strings.Compare(a.Name, b.Name))
	}
	for _, p := range slices.SortedFunc(maps.Values(partitions), better) {
		return p.Name
	}
	return ""
}

// first orders by a condition: true comes first.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// Selection chooses the nodes of a sweep. An empty field chooses all.
type Selection struct {
	Nodes      []string
	Partition  string
	State      string // as sinfo prints it, without flags: idle, drain
	Feature    string
	Reserved   []string // the nodes of a reservation; nil: none is named
	IsReserved bool
}

// Select returns the nodes that a selection chooses, in the order of the list. It returns an error
// for a node or a partition that does not exist.
func (sel Selection) Select(nodes []SweepNode) (chosen []SweepNode, err error) {
	var missing []string
	for _, name := range sel.Nodes {
		if !slices.ContainsFunc(nodes, func(n SweepNode) bool { return n.Name == name }) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("unknown to Slurm: node %s", FoldHostlist(missing))
	}
	if sel.Partition != "" && !slices.ContainsFunc(nodes, func(n SweepNode) bool { return slices.Contains(n.Partitions, sel.Partition) }) {
		return nil, fmt.Errorf("unknown to Slurm: partition %s with nodes", sel.Partition)
	}
	for _, n := range nodes {
		switch {
		case len(sel.Nodes) > 0 && !slices.Contains(sel.Nodes, n.Name):
		case sel.Partition != "" && !slices.Contains(n.Partitions, sel.Partition):
		case sel.State != "" && !n.State.named(sel.State):
		case sel.Feature != "" && !slices.Contains(n.Features, sel.Feature):
		case sel.IsReserved && !slices.Contains(sel.Reserved, n.Name):
		default:
			chosen = append(chosen, n)
		}
	}
	if len(chosen) == 0 {
		return nil, errors.New("no node matches the selection")
	}
	return chosen, nil
}

// named reports whether a state is called by one of sinfo's words: drain, drng, idle, mix.
func (s State) named(word string) bool {
	text := strings.TrimRight(s.Text, flags)
	return strings.EqualFold(text, word) || strings.EqualFold(s.Base, ParseState(strings.ToLower(word)).Base) && s.Base != ""
}

// Usable returns why Slurm starts nothing on a node, "" if it does. A drained node counts as usable
// only in a maintenance of the sweep, and a node in maintenance, or reserved, only in the reservation that is
// named. The reservation of a maintenance overlaps others.
func (n SweepNode) Usable(maintenance, reserved bool) (why string) {
	switch {
	case n.Silent() != "":
		return n.Silent()
	case n.State.Order != "":
		return n.State.Order
	case n.State.Base == "reserved" && !reserved && !maintenance:
		return n.State.Text + ": test it with --reservation"
	case n.State.Class == InService, maintenance && n.IsDrained(), reserved && n.State.Base == "maint":
		return ""
	case n.State.Class == Drained && n.Reason != "":
		return fmt.Sprintf("%s (%s)", n.State.Text, n.Reason)
	}
	return cmp.Or(n.State.Text, "unknown")
}

// Silent returns that the slurmd of a node does not answer, "" if it does.
func (n SweepNode) Silent() string {
	if !strings.Contains(n.State.Text, "*") {
		return ""
	}
	return "slurmd does not answer (" + n.State.Text + ")"
}

// IsDrained reports whether a node is drained and no job is on it, so that a maintenance can put it
// into service for the time of a test.
func (n SweepNode) IsDrained() bool {
	return n.State.Class == Drained && strings.TrimRight(n.State.Text, flags) == "drain" && n.State.Order == ""
}

// IsIdle reports whether no job is on a node, and Slurm would start one.
func (n SweepNode) IsIdle() bool {
	return slices.Contains([]string{"idle", "plnd"}, strings.TrimRight(n.State.Text, "-")) // planned: a job waits for it, such as the own one of a moment ago
}

// TopologyArgv is the command whose output [ParseTopology] reads.
func (s Settings) TopologyArgv() ([]string, error) {
	return s.scontrol("show", "topology")
}

var topologyKey = checks.Lazily(`(\w+)=(\S+)`)

// ParseTopology returns the leaf switch of each node, or its block with topology/block. It returns none
// if Slurm has no topology. A block of blocks is ignored.
func ParseTopology(out []byte) map[string]string {
	leaves := map[string]string{}
	for line := range strings.Lines(string(out)) {
		keys := map[string]string{}
		for _, m := range topologyKey().FindAllStringSubmatch(line, -1) {
			keys[m[1]] = m[2]
		}
		name := cmp.Or(keys["SwitchName"], keys["BlockName"])
		level, isSwitch := keys["Level"]
		if name == "" || isSwitch && level != "0" || keys["Switches"] != "" {
			continue
		}
		for _, node := range hostlistNames(keys["Nodes"]) {
			leaves[node] = name
		}
	}
	return leaves
}

// RunningArgv is the command whose output [ParseRunning] reads: all jobs that are on nodes.
func (s Settings) RunningArgv() []string {
	return []string{s.command("squeue"), "-a", "-h", "-t", "R,S,CF,CG,SI,SO", "-o", "%A|%N"}
}

// ParseRunning returns the nodes that have a job other than own.
func ParseRunning(out []byte, own string) map[string]bool {
	busy := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		job, list, ok := strings.Cut(strings.TrimSpace(line), "|")
		if !ok || job == own || list == "" {
			continue
		}
		for _, name := range hostlistNames(list) {
			busy[name] = true
		}
	}
	return busy
}

// ReservationPrefix begins the names of the reservations of sweeps.
const ReservationPrefix = "nhc-gpu-sweep-"

// ReserveArgv is the command that makes the reservation of a maintenance. It ends by itself after the
// duration, which is rounded up to minutes.
func (s Settings) ReserveArgv(name, user string, nodes []string, d time.Duration) ([]string, error) {
	return s.scontrol("create", "reservation", "ReservationName="+name, "StartTime=now",
		fmt.Sprintf("Duration=%d", minutes(d)), "Users="+user, "Flags=MAINT,IGNORE_JOBS", "Nodes="+FoldHostlist(nodes))
}

// UnreserveArgv is the command that deletes it.
func (s Settings) UnreserveArgv(name string) ([]string, error) {
	return s.scontrol("delete", "ReservationName="+name)
}

// ReservationsArgv is the command whose output [ParseReservations] reads.
func (s Settings) ReservationsArgv() ([]string, error) {
	return s.scontrol("-o", "show", "reservation")
}

// ParseReservations returns the nodes of each reservation.
func ParseReservations(out []byte) map[string][]string {
	all := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "ReservationName=")
		if !ok {
			continue
		}
		name, rest, _ := strings.Cut(rest, " ")
		all[name] = nil
		if _, nodes, ok := strings.Cut(rest, " Nodes="); ok {
			nodes, _, _ = strings.Cut(nodes, " ")
			if list, err := ExpandHostlist(nodes); err == nil && nodes != "(null)" {
				all[name] = list
			}
		}
	}
	return all
}

// Allocation is a request for the nodes of a sweep.
type Allocation struct {
	Name        string
	Nodes       []string
	Others      []string      // not nil: as many of Nodes as are free, and none of these
	Time        time.Duration // a hard limit
	Immediate   time.Duration // give up if it does not start in that time; 0: it may queue
	Partition   string
	QOS         string
	Account     string
	Reservation string
}

// AllocateArgv is the command that allocates nodes and leaves the allocation behind. It prints the
// number of the job, see [ParseAllocated].
func (s Settings) AllocateArgv(a Allocation) []string {
	list := []string{
		s.command("salloc"), "--no-shell", "--no-bell", "--no-kill", "--exclusive", "--mem=0", "--job-name=" + a.Name,
		fmt.Sprintf("--time=%d", minutes(a.Time)), "--chdir=/",
	}
	switch n := strconv.Itoa(len(a.Nodes)); {
	case a.Others == nil:
		list = append(list, "--nodes="+n, "--nodelist="+FoldHostlist(a.Nodes))
	case len(a.Others) == 0:
		list = append(list, "--nodes=1-"+n)
	default:
		list = append(list, "--nodes=1-"+n, "--exclude="+FoldHostlist(a.Others))
	}
	if a.Immediate > 0 {
		list = append(list, fmt.Sprintf("--immediate=%d", max(1, int(a.Immediate.Seconds()))))
	}
	for _, o := range []struct{ option, value string }{{"partition", a.Partition}, {"qos", a.QOS}, {"account", a.Account}, {"reservation", a.Reservation}} {
		if o.value != "" {
			list = append(list, "--"+o.option+"="+o.value)
		}
	}
	return list
}

// minutes rounds a time up to the minutes that Slurm counts.
func minutes(d time.Duration) int { return max(1, int((d+time.Minute-1)/time.Minute)) }

var allocated = checks.Lazily(`(?m)(Granted|Pending) job allocation (\d+)`)

// ParseAllocated returns the job in the messages of salloc, "" if there is none, and whether its
// nodes are allocated.
func ParseAllocated(errs []byte) (job string, granted bool) {
	for _, m := range allocated().FindAllSubmatch(errs, -1) {
		job, granted = string(m[2]), granted || string(m[1]) == "Granted"
	}
	return job, granted
}

// NamedArgv is the command that prints the numbers of this user's jobs with a name, waiting ones, too.
func (s Settings) NamedArgv(name string) []string {
	return []string{s.command("squeue"), "-a", "-h", "--me", "--name=" + name, "-o", "%A"}
}

// CancelArgv is the command that ends a job: each process gets SIGCONT, SIGTERM and, KillWait later,
// SIGKILL.
func (s Settings) CancelArgv(job string) []string { return []string{s.command("scancel"), job} }

// JobArgv is the command whose output [ParseSweepJob] reads.
func (s Settings) JobArgv(job string) ([]string, error) {
	return s.scontrol("-o", "-d", "show", "job", job)
}

// SweepJob is the job of a sweep.
type SweepJob struct {
	Name      string
	State     string // RUNNING, COMPLETING, PREEMPTED
	Nodes     []string
	GPUs      map[string]int // that it owns on each of its nodes
	Shares    bool           // other jobs can run on its nodes
	Preempted bool           // Slurm has asked it to give way
}

var (
	jobName     = checks.Lazily(` JobName=(\S+)`)
	jobState    = checks.Lazily(` JobState=(\S+)`)
	jobNodes    = checks.Lazily(` NodeList=(\S+)`)
	jobPreempts = checks.Lazily(` PreemptTime=(\S+)`)
	jobGRES     = checks.Lazily(` Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)`)
	jobShares   = checks.Lazily(` OverSubscribe=(\S+)`)
	jobAlone    = checks.Lazily(` Exclusive=(\S+)`)
	gresGPUs    = checks.Lazily(`(?:^|,)gpu(?::[^:,()]+)?:(\d+)\(`)
)

// Ended reports whether the job has ended.
func (j SweepJob) Ended() bool { return checks.JobEnded(j.State) }

// ParseSweepJob parses scontrol's line about a job.
func ParseSweepJob(out []byte) (j SweepJob, err error) {
	line := firstLine(out)
	m := jobState().FindStringSubmatch(line)
	if m == nil {
		return j, fmt.Errorf("parse job %q: want JobState=", cut(printable(line), 80))
	}
	j.State = m[1]
	if m := jobName().FindStringSubmatch(line); m != nil {
		j.Name = m[1]
	}
	if m := jobNodes().FindStringSubmatch(line); m != nil && m[1] != "(null)" {
		if j.Nodes, err = ExpandHostlist(m[1]); err != nil {
			return j, err
		}
	}
	j.GPUs = map[string]int{}
	for _, m := range jobGRES().FindAllStringSubmatch(line, -1) {
		for _, name := range hostlistNames(m[1]) {
			for _, count := range gresGPUs().FindAllStringSubmatch(m[2], -1) {
				n, _ := strconv.Atoi(count[1])
				j.GPUs[name] += n
			}
		}
	}
	if m := jobShares().FindStringSubmatch(line); m != nil {
		j.Shares = m[1] != "NO"
	}
	if m := jobAlone().FindStringSubmatch(line); m != nil { // since 26.05
		j.Shares = j.Shares || m[1] != "NODE" && m[1] != "TOPO"
	}
	if m := jobPreempts().FindStringSubmatch(line); m != nil {
		j.Preempted = m[1] != "None"
	}
	j.Preempted = j.Preempted || j.State == "PREEMPTED"
	return j, nil
}

// MostStepNodes is the maximum number of nodes of one step: a frozen slurmd ends its whole step.
const MostStepNodes = 64

// StepArgv is the command that runs a program on nodes of a job, one process on each. The options do
// not depend on what a site sets: a process that ends leaves the others alone (KillOnBadExit, WaitTime), and
// so does a node that Slurm sets down; no MPI (MpiDefault), steps share the CPUs, and the limits are those of slurmd.
func (s Settings) StepArgv(job string, nodes []string, gpus StepGPUs, program ...string) []string {
	n := strconv.Itoa(len(nodes))
	list := []string{
		s.command("srun"), "--jobid=" + job, "--nodes=" + n, "--ntasks=" + n, "--ntasks-per-node=1", "--nodelist=" + FoldHostlist(nodes),
		"--kill-on-bad-exit=0", "--no-kill", "--wait=0", "--mpi=none", "--cpu-bind=none", "--overlap", "--mem=0", "--chdir=/", "--propagate=NONE",
	}
	if len(nodes) > 1 {
		list = append(list, "--label") // see ParseTaskEnds
	}
	switch {
	case gpus.Each == 0:
	case gpus.PerTask:
		list = append(list, fmt.Sprintf("--gpus-per-task=%d", gpus.Each))
	default:
		list = append(list, fmt.Sprintf("--gres=gpu:%d", gpus.Each))
	}
	if gpus.Each > 0 && len(gpus.Others) > 0 {
		list = append(list, "--exclude="+FoldHostlist(gpus.Others))
	}
	return append(list, program...)
}

// StepGPUs are the GPUs of a step. By default a step of an exclusive job has none, although the job owns
// all of its nodes, and with ConstrainDevices it cannot open one. Slurm 22.05 compares --gres of a step
// with the GPUs of one type on one node of the job, --gpus-per-task with that of the job, and refuses a
// step if other nodes of the job have too few. So a step in a job whose nodes differ excludes the others,
// and a step that is refused can ask the other way.
type StepGPUs struct {
	Each    int      // on each node; 0: none
	Others  []string // nodes of the job with another number of GPUs
	PerTask bool     // by --gpus-per-task, not by --gres
}

var launchFailed = checks.Lazily(`(?m)[Tt]ask launch for (?:StepId=)?\S+ failed on node ([^\s:]+): (.*)$`)

// ParseLaunchFailures returns the nodes on which a step could not start, in the messages of srun, and
// the reason of each.
func ParseLaunchFailures(errs []byte) map[string]string {
	failed := map[string]string{}
	for _, m := range launchFailed().FindAllSubmatch(errs, -1) {
		failed[string(m[1])] = strings.TrimSpace(string(m[2]))
	}
	return failed
}

// TaskEnd is the end of the process of one node while its step goes on.
type TaskEnd struct {
	How  string // Exited with exit code 2, Killed; "" if it has not ended
	Said string // the last line that it has written
}

var (
	taskEnd  = checks.Lazily(`^srun: error: (\S+): tasks? ([\d,-]+): (.*)$`)
	taskSaid = checks.Lazily(`^ *(\d+): (.*)$`)
)

// ParseTaskEnds returns the ends of the processes of a step of [Settings.StepArgv], by node. Of the messages
// of srun it reads whole lines.
func ParseTaskEnds(errs []byte) map[string]TaskEnd {
	nodes, said := map[string]string{}, map[string]string{} // by task, and by node how it ended
	how := map[string]string{}
	for line := range strings.Lines(string(errs)) {
		line, whole := strings.CutSuffix(line, "\n")
		if m := taskEnd().FindStringSubmatch(line); whole && m != nil {
			names, tasks := hostlistNames(m[1]), hostlistNames("["+m[2]+"]")
			for i := range min(len(names), len(tasks)) {
				nodes[tasks[i]], how[names[i]] = names[i], m[3]
			}
		} else if m := taskSaid().FindStringSubmatch(line); whole && m != nil && strings.TrimSpace(m[2]) != "" {
			said[m[1]] = strings.TrimSpace(m[2])
		}
	}
	ends := map[string]TaskEnd{}
	for task, name := range nodes {
		ends[name] = TaskEnd{How: how[name], Said: said[task]}
	}
	return ends
}

// RestoreArgv is the command that drains a node again with the text of its reason before a
// maintenance, and [Settings.PutIntoServiceArgv] the one that ends the drain.
func (s Settings) RestoreArgv(node, reason string) ([]string, error) {
	return s.scontrol("update", "NodeName="+node, "State=DRAIN", "Reason="+cmp.Or(reason, "drained before a sweep of nhc-gpu"))
}

// PutIntoServiceArgv is the command that ends the drain of a node.
func (s Settings) PutIntoServiceArgv(node string) ([]string, error) {
	return s.scontrol("update", "NodeName="+node, "State=RESUME")
}

// SweepVerdict is the verdict that drains a suspect of a sweep: "sweep slow TCP eth0 [sweep.tcp.slow]". It
// replaces no other reason of ours.
func SweepVerdict(text string) Verdict {
	word := strings.TrimPrefix(SweepMark, Prefix+" ")
	return Verdict{Message: word + strings.TrimPrefix(text, word), Part: true}
}

// Environ returns the environment of Slurm's commands, and of the ranks of a sweep: nothing of a user's
// shell changes what Slurm does or prints (SLURM_TIME_FORMAT, SINFO_STATE and SINFO_PARTITION would), or how NCCL tests.
func (s Settings) Environ() []string { return s.environ() }

// ConfigArgv is the command whose output [ParseConfig] reads.
func (s Settings) ConfigArgv() ([]string, error) { return s.configArgv() }

// Drains reports whether a node is drained or draining.
func (n SweepNode) Drains() bool {
	return slices.Contains([]string{"drain", "drng", "drained", "draining"}, strings.TrimRight(n.State.Text, flags))
}
