package slurm

import (
	"cmp"
	"errors"
	"fmt"
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
	Features   []string
	Reason     string // "" if it has none
}

// SweepNodesArgv is the command whose output [ParseSweepNodes] reads: one line for each node and
// partition, hidden ones, too. The reason is last, because it may contain anything.
func (s Settings) SweepNodesArgv() []string {
	return []string{cmp.Or(s.Sinfo, s.sinfo()), "-a", "-h", "-N", "-o", "%N|%t|%R|%f|%E"}
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
		if !slices.Contains(nodes[i].Partitions, f[2]) {
			nodes[i].Partitions = append(nodes[i].Partitions, f[2])
		}
	}
	if nodes == nil {
		return nil, fmt.Errorf("parse %q: want NODE|STATE|PARTITION|FEATURES|REASON", cut(printable(firstLine(out)), 80))
	}
	return nodes, err
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
// only in a maintenance of the sweep, and a node in maintenance only in the reservation that is named.
func (n SweepNode) Usable(maintenance, reserved bool) (why string) {
	switch {
	case n.Silent() != "":
		return n.Silent()
	case n.State.Order != "":
		return n.State.Order
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
	return strings.TrimRight(n.State.Text, "-") == "idle"
}

// TopologyArgv is the command whose output [ParseTopology] reads.
func (s Settings) TopologyArgv() ([]string, error) {
	return argv([]string{cmp.Or(s.Scontrol, "scontrol")}, "show", "topology")
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
	return []string{s.sibling("squeue"), "-a", "-h", "-t", "R,S,CF,CG,SI,SO", "-o", "%A|%N"}
}

// sibling returns a command of Slurm beside sinfo.
func (s Settings) sibling(name string) string {
	if dir, ok := strings.CutSuffix(s.sinfo(), "/sinfo"); ok {
		return dir + "/" + name
	}
	return name
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
	return argv([]string{cmp.Or(s.Scontrol, "scontrol")}, "create", "reservation", "ReservationName="+name, "StartTime=now",
		fmt.Sprintf("Duration=%d", minutes(d)), "Users="+user, "Flags=MAINT,IGNORE_JOBS", "Nodes="+FoldHostlist(nodes))
}

// UnreserveArgv is the command that deletes it.
func (s Settings) UnreserveArgv(name string) ([]string, error) {
	return argv([]string{cmp.Or(s.Scontrol, "scontrol")}, "delete", "ReservationName="+name)
}

// ReservationsArgv is the command whose output [ParseReservations] reads.
func (s Settings) ReservationsArgv() ([]string, error) {
	return argv([]string{cmp.Or(s.Scontrol, "scontrol")}, "-o", "show", "reservation")
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
		s.sibling("salloc"), "--no-shell", "--no-bell", "--no-kill", "--exclusive", "--mem=0", "--job-name=" + a.Name,
		"--nodes=" + strconv.Itoa(len(a.Nodes)), "--nodelist=" + FoldHostlist(a.Nodes),
		fmt.Sprintf("--time=%d", minutes(a.Time)), "--chdir=/",
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

// CancelArgv is the command that ends a job: each process gets SIGCONT, SIGTERM and, KillWait later,
// SIGKILL.
func (s Settings) CancelArgv(job string) []string { return []string{s.sibling("scancel"), job} }

// JobArgv is the command whose output [ParseSweepJob] reads.
func (s Settings) JobArgv(job string) ([]string, error) {
	return argv([]string{cmp.Or(s.Scontrol, "scontrol")}, "-o", "show", "job", job)
}

// SweepJob is the job of a sweep.
type SweepJob struct {
	State     string // RUNNING, COMPLETING, PREEMPTED
	Nodes     []string
	Preempted bool // Slurm has asked it to give way
}

var (
	jobState    = checks.Lazily(` JobState=(\S+)`)
	jobNodes    = checks.Lazily(` NodeList=(\S+)`)
	jobPreempts = checks.Lazily(` PreemptTime=(\S+)`)
)

// ParseSweepJob parses scontrol's line about a job.
func ParseSweepJob(out []byte) (j SweepJob, err error) {
	line := firstLine(out)
	m := jobState().FindStringSubmatch(line)
	if m == nil {
		return j, fmt.Errorf("parse job %q: want JobState=", cut(printable(line), 80))
	}
	j.State = m[1]
	if m := jobNodes().FindStringSubmatch(line); m != nil && m[1] != "(null)" {
		if j.Nodes, err = ExpandHostlist(m[1]); err != nil {
			return j, err
		}
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
// not depend on what a site sets: a process that ends leaves the others alone (KillOnBadExit, WaitTime), no
// MPI (MpiDefault), steps share the CPUs, and the limits are those of slurmd.
func (s Settings) StepArgv(job string, nodes []string, program ...string) []string {
	n := strconv.Itoa(len(nodes))
	return append([]string{
		s.sibling("srun"), "--jobid=" + job, "--nodes=" + n, "--ntasks=" + n, "--ntasks-per-node=1", "--nodelist=" + FoldHostlist(nodes),
		"--kill-on-bad-exit=0", "--wait=0", "--mpi=none", "--cpu-bind=none", "--overlap", "--mem=0", "--chdir=/", "--propagate=NONE",
	}, program...)
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

// RestoreArgv is the command that drains a node again with the text of its reason before a
// maintenance, and [Settings.PutIntoServiceArgv] the one that ends the drain.
func (s Settings) RestoreArgv(node, reason string) ([]string, error) {
	return argv([]string{cmp.Or(s.Scontrol, "scontrol")}, "update", "NodeName="+node, "State=DRAIN", "Reason="+cmp.Or(reason, "drained before a sweep of nhc-gpu"))
}

// PutIntoServiceArgv is the command that ends the drain of a node.
func (s Settings) PutIntoServiceArgv(node string) ([]string, error) {
	return argv([]string{cmp.Or(s.Scontrol, "scontrol")}, "update", "NodeName="+node, "State=RESUME")
}

// SweepVerdict is the verdict that drains a suspect of a sweep: "sweep slow TCP eth0 [sweep.tcp.slow]". It
// replaces no other reason of ours.
func SweepVerdict(text string) Verdict {
	word := strings.TrimPrefix(SweepMark, Prefix+" ")
	return Verdict{Message: word + strings.TrimPrefix(text, word), Part: true}
}

// Environ returns the environment of the commands of a sweep, and of its ranks: nothing of a user's
// shell changes what Slurm does, or how NCCL tests.
func (s Settings) Environ() []string { return s.environ() }

// ConfigArgv is the command whose output [ParseConfig] reads.
func (s Settings) ConfigArgv() ([]string, error) { return s.configArgv() }

// Drains reports whether a node is drained or draining.
func (n SweepNode) Drains() bool {
	return slices.Contains([]string{"drain", "drng", "drained", "draining"}, strings.TrimRight(n.State.Text, flags))
}
