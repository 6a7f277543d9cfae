// Package sweep plans tests between the nodes of a cluster, and judges their results. It is pure:
// checks/sweep/launch starts the ranks through Slurm, and checks/sweep/rank carries the tests out.
package sweep

import (
	"net/netip"
	"slices"
	"time"
)

// Stage is a part of a sweep. Each stage tests only nodes that the stages before it have not
// excluded.
type Stage string

// These are the stages, in their order.
const (
	StageNode   Stage = "node"   // checks of each node alone
	StageReach  Stage = "reach"  // each plane: loss, connect, names, MTU
	StageTCP    Stage = "tcp"    // bandwidth of pairs, ring all-reduce over TCP
	StageRDMA   Stage = "rdma"   // bandwidth and latency of pairs, each rail, each direction
	StagePairs  Stage = "pairs"  // NCCL between two nodes
	StageGroups Stage = "groups" // NCCL in growing groups
)

// Stages lists all stages.
var Stages = []Stage{StageNode, StageReach, StageTCP, StageRDMA, StagePairs, StageGroups}

// Kind is what a task measures.
type Kind string

// These are the kinds. The first node of a pair sends.
const (
	KindCheck   Kind = "check"    // Op is a line of nhc.conf; no value
	KindEcho    Kind = "echo"     // Count datagrams there and back: value ms, of the fastest tenth; Sent and Lost
	KindMTU     Kind = "mtu"      // a datagram of the interface's MTU that must not be fragmented; no value
	KindConnect Kind = "connect"  // a TCP connection: value ms
	KindName    Kind = "name"     // the second node's name, resolved on the first: value ms
	KindStream  Kind = "stream"   // TCP, Flows connections: value Gb/s
	KindRing    Kind = "ring"     // ring all-reduce over TCP by all nodes, each word verified: value Gb/s per node
	KindWrite   Kind = "write_bw" // ib_write_bw: value Gb/s
	KindLatency Kind = "write_lat"
	KindNCCL    Kind = "nccl" // Op is the collective, each word verified: value GB/s bus bandwidth
	KindNote    Kind = "note" // in no plan: Op is an event, which the node adds to its history; no value
)

// Lower reports whether a smaller value is better.
func (k Kind) Lower() bool {
	return slices.Contains([]Kind{KindEcho, KindConnect, KindName, KindLatency}, k)
}

// Node is a node of a sweep, as its rank describes it.
type Node struct {
	Name   string  `json:"name"`           // in Slurm
	Leaf   string  `json:"leaf,omitempty"` // its leaf switch; "" is unknown
	Model  string  `json:"model,omitempty"`
	GPUs   int     `json:"gpus,omitempty"`
	Host   string  `json:"host,omitempty"`   // product and CPU of its server
	Closed int     `json:"closed,omitempty"` // GPUs that its rank cannot use: Slurm has not given them to the job
	Planes []Plane `json:"planes,omitempty"`
	Rails  []Rail  `json:"rails,omitempty"`
	Busy   bool    `json:"busy,omitempty"` // other jobs can run on it during the sweep
}

// Plane is a network interface of a node. Interfaces with the same name are one plane of the cluster,
// and so are different names in the same subnet: planesOf has the exceptions.
type Plane struct {
	Name    string       `json:"name"` // of the interface: eth0
	Address netip.Prefix `json:"address"`
	MTU     int          `json:"mtu"`             // bytes
	Speed   int          `json:"speed,omitempty"` // Mb/s; 0 is unknown
	PCIe    int          `json:"pcie,omitempty"`  // Gb/s that its slot and adapter are made for; 0 is unknown
}

// Rail is an RDMA port of a node. Ports with the same name are one rail of the cluster.
type Rail struct {
	Name      string `json:"name"`            // mlx5_0:1
	Layer     string `json:"layer"`           // InfiniBand or Ethernet
	GID       int    `json:"gid,omitempty"`   // index of the address to use; -1: that of the link layer
	Speed     int    `json:"speed,omitempty"` // Gb/s
	PCIe      int    `json:"pcie,omitempty"`  // as of a plane
	Interface string `json:"interface,omitempty"`
	Left      string `json:"left,omitempty"` // why no job uses it: see [fleet.useRails]
}

// Task is one test. The tasks of a round run at the same time; no node is in two of them.
type Task struct {
	ID      int           `json:"id"` // unique in a sweep, from 1
	Stage   Stage         `json:"stage"`
	Kind    Kind          `json:"kind"`
	Nodes   []string      `json:"nodes"`             // in the order of the ranks
	Plane   string        `json:"plane,omitempty"`   // a plane or a rail; "" is the node's address in Slurm
	Rails   []string      `json:"rails,omitempty"`   // of NCCL: only these rails or their devices; none: all
	Op      string        `json:"op,omitempty"`      // see Kind
	Size    int64         `json:"size,omitempty"`    // bytes: of a message, or of the data of a collective
	Flows   int           `json:"flows,omitempty"`   // TCP connections or queue pairs
	Count   int           `json:"count,omitempty"`   // datagrams of an echo
	Repeats int           `json:"repeats,omitempty"` // each gives a value
	Time    time.Duration `json:"time,omitempty"`    // of each repeat
	Limit   time.Duration `json:"limit"`             // after that the test is ended, and has failed
	NoP2P   bool          `json:"no_p2p,omitempty"`  // NCCL without NVLink and shared memory

	Confirms bool `json:"confirms,omitempty"` // it repeats a suspicious measurement with another partner
}

// label returns the line of nhc.conf or the collective of a test.
func (t *Task) label() string {
	if t.NoP2P {
		return t.Op + " without P2P"
	}
	return t.Op
}

// Result is the end of a task.
type Result struct {
	Task    Task          `json:"task"`
	Values  []float64     `json:"values,omitempty"`  // of each repeat, see Kind
	Windows []float64     `json:"windows,omitempty"` // of shorter times within them, for faults that come and go: see Summarize
	Low     float64       `json:"low,omitempty"`     // the lowest decile of the windows
	Mid     float64       `json:"mid,omitempty"`     // their median; 0: there are too few of them
	Sent    int           `json:"sent,omitempty"`
	Lost    int           `json:"lost,omitempty"`
	Fault   Fault         `json:"fault,omitempty"`  // "": the test has run to its end
	Text    string        `json:"text,omitempty"`   // of the fault: what failed, want, got; without one, of a first try that does not count
	Blame   []string      `json:"blame,omitempty"`  // the nodes that the fault itself names: those that did not answer
	Losses  []Loss        `json:"losses,omitempty"` // of fault lost: about the nodes in Blame
	Rank    int           `json:"rank,omitempty"`   // of wrong data: the rank that has received it
	Network string        `json:"network,omitempty"`
	Checks  []CheckResult `json:"checks,omitempty"`
	Began   time.Time     `json:"began"`
	Took    time.Duration `json:"took"`
	Beside  bool          `json:"beside,omitempty"` // other jobs were on a node, or could be
}

// Summarize sets Low and Mid, by which windows are judged. Only a test that confirms a suspicion keeps its windows:
// those of all tests would be most of a report.
func (r *Result) Summarize() {
	if len(r.Windows) >= int(limitOf("windows_min")) && !r.Task.Kind.Lower() {
		windows := slices.Sorted(slices.Values(r.Windows))
		r.Low, r.Mid = quantile(windows, limitOf("flaky_decile")), quantile(windows, 0.5)
	}
	if !r.Task.Confirms {
		r.Windows = nil
	}
}

// Loss is the loss of the rank of a node, which can be a fault of the node, of the network to it, or of
// neither. If it is neither Gone nor responds, Slurm could not be asked, or was busy.
type Loss struct {
	Node     string    `json:"node"`
	At       time.Time `json:"at"`
	Gone     bool      `json:"gone,omitempty"`     // Slurm does not reach the node, or the node has started again
	Responds bool      `json:"responds,omitempty"` // Slurm has started a program on it since: the node is not accused
	Text     string    `json:"text,omitempty"`
}

// CheckResult is the result of a check of one node.
type CheckResult struct {
	Check    string `json:"check"`
	Severity string `json:"severity"` // ok, warn, unknown, fail, skip
	Code     string `json:"code,omitempty"`
	Device   string `json:"device,omitempty"`
	Message  string `json:"message,omitempty"`
}

// Fault is how a test failed.
type Fault string

// These are the faults of a test.
const (
	FaultNone    Fault = ""
	FaultRefused Fault = "refused" // no connection, or a name that is not known
	FaultSilent  Fault = "silent"  // no answer within the limit
	FaultWrong   Fault = "wrong"   // wrong data
	FaultMTU     Fault = "mtu"     // a full datagram does not pass
	FaultCheck   Fault = "check"   // a check of the node has failed
	FaultUnable  Fault = "unable"  // the test cannot run here: no such plane, no library, no program. No node is blamed for it
	FaultLost    Fault = "lost"    // the rank of a node has ended by itself, or its node does not answer
	FaultError   Fault = "error"   // a library or a program has reported an error
	FaultNetwork Fault = "network" // NCCL uses TCP although the node has RDMA ports
)

// Plan decides which tests a stage runs. The caller asks for a round, carries it out and returns its
// results, until there is no further round.
type Plan interface {
	// Next returns the tasks of the next round, none if the stage is over.
	Next() []Task
	// Take takes the results of the tasks of a round, in any order. A task without a result counts as
	// not run.
	Take(results []Result)
	// Suspects returns the suspects, the most certain first.
	Suspects() []Suspect
	// Fleet returns the distributions by which the suspects were found.
	Fleet() []Distribution
	// Left estimates the number of rounds that remain.
	Left() int
}

// Suspect is a part of the cluster that a sweep has found to be slow, silent or wrong.
type Suspect struct {
	Node       string   `json:"node,omitempty"`
	Peer       string   `json:"peer,omitempty"`   // a pair of nodes that is slow although both are fast with others: a cable or a route
	Leaves     []string `json:"leaves,omitempty"` // one whose paths are slow or fail, or two between which all pairs do
	Plane      string   `json:"plane,omitempty"`  // only this plane or rail
	GPU        *int     `json:"gpu,omitempty"`
	Ops        []string `json:"ops,omitempty"` // the collectives or checks that show it
	Way        string   `json:"way,omitempty"` // sends or receives: only this direction; "" both
	Stage      Stage    `json:"stage"`
	Kind       Kind     `json:"kind"`
	Code       string   `json:"code"` // sweep.tcp.slow
	Value      float64  `json:"value,omitempty"`
	Expect     float64  `json:"expect,omitempty"`
	Unit       string   `json:"unit,omitempty"`
	Looks      int      `json:"looks"`      // tests that say so
	Partners   []string `json:"partners"`   // the proven nodes of those tests
	Confidence float64  `json:"confidence"` // 0 to 1
	Text       string   `json:"text"`       // the finding, one line
	Do         string   `json:"do"`         // what to swap to be sure
	Doubt      bool     `json:"doubt,omitempty"`
}

// lostCode is the code of a node that has ended in a test, or does not answer.
const lostCode = "sweep.node.lost"

// Distribution describes the values of healthy tests of one kind.
type Distribution struct {
	Stage  Stage   `json:"stage"`
	Kind   Kind    `json:"kind"`
	Op     string  `json:"op,omitempty"`
	Plane  string  `json:"plane,omitempty"`
	Model  string  `json:"model,omitempty"`
	Far    string  `json:"far,omitempty"` // leaf: the pairs of one leaf; spine: the others; "": unknown
	Unit   string  `json:"unit"`
	Count  int     `json:"count"`
	Median float64 `json:"median"`
	Sigma  float64 `json:"sigma"`            // 1.4826 times the median absolute deviation
	Floor  float64 `json:"floor"`            // a value beyond it is suspicious
	Note   string  `json:"note,omitempty"`   // a fault of the whole fleet, for which no node is accused
	Remark string  `json:"remark,omitempty"` // about the whole fleet, nodes or networks: it accuses none, see [StageReport.Conclude]
	Nodes  string  `json:"nodes,omitempty"`  // of the remark, with commas in between
}

// Report is a whole sweep; docs/schema/sweep.json is its schema.
type Report struct {
	Schema      int           `json:"schema"`
	Version     string        `json:"version"` // of nhc-gpu
	ID          string        `json:"id"`
	Began       time.Time     `json:"began"`
	Ended       time.Time     `json:"ended,omitzero"`
	Command     []string      `json:"command"`
	Cluster     string        `json:"cluster,omitempty"`
	Job         string        `json:"job,omitempty"`
	Interrupted string        `json:"interrupted,omitempty"` // why it ended before its last round
	Continued   []time.Time   `json:"continued,omitempty"`
	Nodes       []NodeReport  `json:"nodes"`
	Stages      []StageReport `json:"stages"`
	Suspects    []Suspect     `json:"suspects"` // the most certain first
	EAS         []EASResult   `json:"eas,omitempty"`
	Comparison  *Comparison   `json:"comparison,omitempty"` // with an earlier sweep
}

// NodeReport is the part of a node.
type NodeReport struct {
	Node
	State   string `json:"state"` // tested, suspect, excluded, dead, frozen or refused
	Why     string `json:"why,omitempty"`
	Held    string `json:"held,omitempty"` // the reason of its drain before the sweep
	After   string `json:"after,omitempty"`
	History string `json:"history,omitempty"` // of a suspect: [Written], or why its own history does not have the event
}

// Written is [NodeReport.History] of a node whose own history has its event.
const Written = "written"

// StageReport is the part of a stage.
type StageReport struct {
	Stage    Stage          `json:"stage"`
	Began    time.Time      `json:"began,omitzero"`
	Ended    time.Time      `json:"ended,omitzero"`
	Skipped  string         `json:"skipped,omitempty"`  // why it did not run
	Unproven string         `json:"unproven,omitempty"` // why nothing can be said about its nodes, see [StageReport.Conclude]
	Rounds   int            `json:"rounds"`
	Results  []Result       `json:"results,omitempty"`
	Fleet    []Distribution `json:"fleet,omitempty"`
	Suspects []Suspect      `json:"suspects,omitempty"`
}

// EASResult is the result of a check item of an EAS file.
type EASResult struct {
	Name   string `json:"name"` // gemm_flops
	Result string `json:"result"`
	Text   string `json:"text,omitempty"`
}
