// Package wire is what the supervisor and its workers agree on: requests, responses, the page
// that names a call under way, and the files of both.
package wire

import (
	"encoding/json"
	"io/fs"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/active"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/topology"
)

// WorkerName is argv[0] of a worker; it also tells a person reading ps what the
// process is.
const WorkerName = "nhc-gpu-worker"

// MaxLine bounds one line from a worker, bytes. A worker that writes more is
// not answering, it is broken.
const MaxLine = 4 << 20

// Op is what a worker is asked to do.
type Op string

// The operations. Everything that may block for ever is one of them: the
// supervisor itself never opens a file that a site names.
const (
	OpCheck  Op = "check"  // run one check
	OpLast   Op = "last"   // the last result of an active test
	OpRead   Op = "read"   // read a configuration file
	OpAppend Op = "append" // append to the log file, creating it
	OpExec   Op = "exec"   // run a command
	OpFind   Op = "find"   // which of some paths exists first
	OpFacts  Op = "facts"  // describe the node
	OpList   Op = "list"   // the scripts of a directory
	OpTake   Op = "take"   // read a file and remove it
	OpPut    Op = "put"    // write a file, all of it or none
	OpHave   Op = "have"   // one part of the node's inventory
	OpCreate Op = "create" // write a file that must not exist yet
	OpGPUs   Op = "gpus"   // the GPUs that the driver has, as files tell; in the lane of NVML their MIG devices
	OpCount  Op = "count"  // counters of devices; in the local lane also Xids since a mark
	OpKeep   Op = "keep"   // write a record, for later runs
	OpRecall Op = "recall" // read the records whose names begin with something
	OpForget Op = "forget" // remove a record
	OpNote   Op = "note"   // append a line to a journal
	OpJobs   Op = "jobs"   // the jobs that have a slurmstepd here
	OpNotes  Op = "notes"  // read a journal
	OpTopo   Op = "topo"   // how the devices of the node lie to each other
	OpSlurm  Op = "slurm"  // what Slurm's configuration says of the GPUs of a node
	OpNodes  Op = "nodes"  // find this host's names in Slurm's configuration

	OpOpen   Op = "open"   // the state directory: read the ledger and a file, take locks
	OpLoad   Op = "load"   // read a file of it
	OpSave   Op = "save"   // replace a file of it
	OpLock   Op = "lock"   // take a lock there for the supervisor
	OpUnlock Op = "unlock" // let go of it
	OpBury   Op = "bury"   // add processes to the ledger

	OpAsk   Op = "ask"   // a command of a person: Name is one of the questions below
	OpGuard Op = "guard" // end a shell if the supervisor dies; this one has no answer

	OpPrograms Op = "programs" // what slurmd would start for a pattern of Prolog=
)

// The questions of a person, Request.Name of [OpAsk].
const (
	AskExplain   = "explain"   // what an Xid means: the words are a code or a line
	AskMessage   = "message"   // what a message, a code or a counter means
	AskBaselines = "baselines" // what active tests have learned
	AskNames     = "names"     // the nodes that have a memory below the directories of Places
	AskClear     = "clear"     // acknowledge errors: Path is one of the kinds below
)

// What can be cleared.
const (
	ClearXid      = "xid"
	ClearPorts    = "ib"
	ClearBaseline = "baseline"
	ClearActive   = "active"
)

// Part is a list in a message that has it seldom. encoding/json
// learns the types of all fields of a message with the first one, which takes longer than
// an empty run should; of these it learns when there is one.
type Part[T any] []T

// MarshalJSON is that of the list.
func (p Part[T]) MarshalJSON() ([]byte, error) { return json.Marshal([]T(p)) }

// UnmarshalJSON is that of the list.
func (p *Part[T]) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, (*[]T)(p)) }

// Only is a pointer in such a message; see part.
type Only[T any] struct{ Value *T }

// MarshalJSON is that of the value.
func (o Only[T]) MarshalJSON() ([]byte, error) { return json.Marshal(o.Value) }

// UnmarshalJSON is that of the value.
func (o *Only[T]) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &o.Value) }

// Request is one line on a worker's request descriptor.
type Request struct {
	ID      int               `json:"id"`
	Op      Op                `json:"op"`
	Name    string            `json:"name,omitempty"`    // check: its registered name; have: the part; slurm: the node; nodes: the host
	Args    []string          `json:"args,omitempty"`    // check: its words; exec: argv; find: the paths
	Table   map[string]any    `json:"table,omitempty"`   // check: parameters from TOML, in place of words
	Line    string            `json:"line,omitempty"`    // check: the line as written
	Guard   *process.Guarded  `json:"guard,omitempty"`   // guard
	Vars    *Vars             `json:"vars,omitempty"`    // from this request on
	Only    bool              `json:"only,omitempty"`    // last: it is not going to be run
	Over    map[string]string `json:"over,omitempty"`    // check: variables of this request alone
	Timeout time.Duration     `json:"timeout,omitempty"` // check: TIMEOUT of the run; exec: deadline of the command
	Limit   time.Duration     `json:"limit,omitempty"`   // check: what the step may take; 0: no more than the run
	End     time.Duration     `json:"end,omitempty"`     // check: the end of the run on the kernel's monotonic clock; 0: none
	Path    string            `json:"path,omitempty"`    // read, append, take, put, create, have; slurm, nodes: SLURM_CONF; list: the directory; programs: the pattern; exec: the file of standard input
	Data    []byte            `json:"data,omitempty"`    // append, put, create; exec: the text of standard input
	Trunc   bool              `json:"trunc,omitempty"`   // append: empty the file first
	MakeDir bool              `json:"mkdir,omitempty"`   // put: create the directory, too
	Env     []string          `json:"env,omitempty"`     // exec: the whole environment; check: what is added to Environ
	Program string            `json:"program,omitempty"` // exec: the file to run, if it is not what argv says
	Mark    *checks.LogMark   `json:"mark,omitempty"`    // count: where the log was read to
	Most    int64             `json:"most,omitempty"`    // note, notes: bytes that the journal may hold
	Who     string            `json:"who,omitempty"`     // ask: the person
	Places  Part[Place]       `json:"places,omitempty"`  // ask
	Merge   bool              `json:"merge,omitempty"`   // exec: the standard error belongs to the output; what is left behind lives on
}

// Vars is what checks see of the variables of a run.
type Vars struct {
	Plain   map[string]string   `json:"plain,omitempty"`   // NHC variables that checks read
	Arrays  map[string][]string `json:"arrays,omitempty"`  // the same of arrays
	Environ []string            `json:"environ,omitempty"` // environment of the commands that checks run
	Root    string              `json:"root,omitempty"`    // HOSTROOT: where the node begins that checks look at; "" is this machine
	Past    string              `json:"past,omitempty"`    // directory of what checks keep between runs; "" is none
	Spare   string              `json:"spare,omitempty"`   // where they keep it if that cannot be written
	Job     Only[checks.Job]    `json:"job,omitzero"`      // the job that the run is for
	Learn   bool                `json:"learn,omitempty"`   // see checks.Env.Learn
	Period  bool                `json:"period,omitempty"`  // see checks.Env.Periodic
	Hold    bool                `json:"hold,omitempty"`    // see checks.Env.Hold
	Stuck   []string            `json:"stuck,omitempty"`   // what earlier workers of the lane did not come back from

	ProfilesFile string `json:"profiles_file,omitempty"` // the site's profiles of platforms: their file, for messages,
	Profiles     []byte `json:"profiles,omitempty"`      // and their text, which is known to be right

	Slurm      Only[jobscan.SlurmGPUs] `json:"slurm,omitzero"`        // what Slurm's configuration says of the node; nil: nothing
	WantedGPUs int                     `json:"wanted_gpus,omitempty"` // see checks.Env.WantedGPUs
}

// Response is one line on a worker's response descriptor.
type Response struct {
	ID       int                  `json:"id"`
	Findings Part[checks.Finding] `json:"findings,omitempty"`
	Known    bool                 `json:"known,omitempty"` // last: the findings are what the test came to
	Took     time.Duration        `json:"took,omitempty"`
	Data     []byte               `json:"data,omitempty"`   // read, take, load: the content; exec: stdout
	Stderr   []byte               `json:"stderr,omitempty"` // exec
	Status   int                  `json:"status,omitempty"` // exec: as bash counts it; find: the place in the list, from 1
	TimedOut bool                 `json:"timed_out,omitempty"`
	File     *FileInfo            `json:"file,omitempty"` // read, take

	Scripts Part[Script]              `json:"scripts,omitempty"` // list: in the order of their names
	Facts   Part[probe.Fact]          `json:"facts,omitempty"`
	Have    Only[inventory.Inventory] `json:"have,omitzero"`
	GPUs    Part[nvidia.DriverGPU]    `json:"gpus,omitempty"`
	MIG     map[string][]string       `json:"mig,omitempty"` // gpus: MIG devices by the address of their GPU
	Slurm   Only[jobscan.SlurmGPUs]   `json:"slurm,omitzero"`
	Topo    Only[topology.Topology]   `json:"topo,omitzero"`

	Counters Part[checks.Counters] `json:"counters,omitempty"` // count
	Xids     Part[checks.XidSeen]  `json:"xids,omitempty"`     // count
	Mark     *checks.LogMark       `json:"mark,omitempty"`     // count: where the log ends
	Doubts   []string              `json:"doubts,omitempty"`   // count: what could not be read
	Records  Part[probe.Record]    `json:"records,omitempty"`  // recall
	Jobs     []string              `json:"jobs,omitempty"`     // jobs; ask, nodes: names
	Lines    [][]byte              `json:"lines,omitempty"`    // notes; open: the ledger, the crashes, and the file that was asked for
	Programs Part[Program]         `json:"programs,omitempty"` // programs
	Text     string                `json:"text,omitempty"`     // ask: for a person

	Baselines Part[active.BaselineRow] `json:"baselines,omitempty"` // ask

	Busy   *Holder  `json:"busy,omitempty"`   // open, lock: who holds the lock; nil: the supervisor has it
	Cut    bool     `json:"cut,omitempty"`    // exec: there was more output
	Worn   bool     `json:"worn,omitempty"`   // this worker leaves after the answer, see cuda.Worn
	Spent  bool     `json:"spent,omitempty"`  // this worker can do no more, see probe.Host.Blocked
	Stuck  []string `json:"stuck,omitempty"`  // Spent by these calls, which are no part of the step
	Exists bool     `json:"exists,omitempty"` // create: there is such a file; Err says so
	Err    string   `json:"err,omitempty"`    // why the operation failed, complete
}

// FileInfo says what a configuration file is.
type FileInfo struct {
	Missing bool        `json:"missing,omitempty"`
	Mode    fs.FileMode `json:"mode"`
	UID     uint32      `json:"uid"`
	Path    string      `json:"path,omitempty"` // read: absolute, without links as far as the file exists
	Size    int64       `json:"size"`
	Stays   bool        `json:"stays,omitempty"` // take: it could not be removed
}

// Place is the memory directory of a node's checks, and the directory to use if that
// one is not writable.
type Place struct {
	Past, Spare string
	Always      bool // clear: also if the data may be another node's
}

// Program is a file that slurmd would start.
type Program struct {
	Path   string `json:"path"`
	Bad    string `json:"bad,omitempty"`    // why it cannot be started
	Self   bool   `json:"self,omitempty"`   // it is this program
	Starts bool   `json:"starts,omitempty"` // it is a script that speaks of this program
}

// Script is a file of $INCDIR that LBNL NHC would source.
type Script struct {
	Path      string   `json:"path"`
	Stock     bool     `json:"stock,omitempty"`   // of LBNL NHC's own distribution: this program has its checks
	Altered   bool     `json:"altered,omitempty"` // it has the name of such a file, and another content
	Functions []string `json:"functions,omitempty"`
	Sources   bool     `json:"sources,omitempty"` // it may read or make up functions that Functions lacks
	FileInfo
}

// Files of the state directory that [OpOpen] reads.
const (
	LedgerFile = "ledger.json"
	CrashFile  = "crash.json" // see crash.go
)

// Holder is the process that holds a lock.
type Holder struct {
	PID int           `json:"pid"` // 0 if it left no trace
	Age time.Duration `json:"age"` // since it took the lock
}

// StuckProcess is a process that no signal could end, left behind by a run.
type StuckProcess struct {
	PID   int         `json:"pid"`
	Start uint64      `json:"start"` // clock ticks since boot when it was started
	Lane  checks.Lane `json:"lane"`
	Step  string      `json:"step"`  // the check line it was running
	Doing string      `json:"doing"` // the call it never came back from
	State string      `json:"state"`
	Wchan string      `json:"wchan"`
	Since time.Time   `json:"since"`
}

// Hung describes a stuck process as the hang that it still is.
func (c StuckProcess) Hung() *checks.Hung {
	return &checks.Hung{PID: c.PID, State: c.State, Wchan: c.Wchan, Doing: c.Doing, Stuck: true, For: time.Since(c.Since)}
}

// The descriptors a worker answers on, and that of its [Page]. Not 0 to 2: C
// libraries print there.
const (
	RequestFd  = 3
	ResponseFd = 4
	PageFd     = 5
)

// What is kept of a command's output and of its complaints, bytes.
const (
	MaxOutput = 1 << 20
	MaxErrors = 4 << 10
)

// MaxState is the largest size of a file, bytes. Ours are below 64 KiB.
const MaxState = 1 << 20

// The line of a lock file.
const (
	LockLine = "%d %d %d" // pid, Unix time, start time in clock ticks since boot
	LockSize = 64         // bytes, always: on a full disk the line can still be replaced
)
