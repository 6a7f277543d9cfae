// Package wire is the protocol between the supervisor and its workers: requests, responses, the
// page that names the current call, and the files that both use.
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

// WorkerName is argv[0] of a worker, so that ps shows the kind of the process.
const WorkerName = "nhc-gpu-worker"

// MaxLine bounds one line from a worker, bytes. A worker that writes more is broken.
const MaxLine = 4 << 20

// Op is an operation that a worker carries out.
type Op string

// These are the operations. Everything that can block forever is one of them: the supervisor itself
// never opens a file that a site names.
const (
	OpCheck  Op = "check"  // run one check
	OpLast   Op = "last"   // the last result of an active test
	OpRead   Op = "read"   // read a configuration file
	OpAppend Op = "append" // append to the log file, creating it
	OpExec   Op = "exec"   // run a command
	OpFind   Op = "find"   // return the first of some paths that exists
	OpFacts  Op = "facts"  // describe the node
	OpList   Op = "list"   // list the scripts of a directory
	OpTake   Op = "take"   // read a file and remove it
	OpPut    Op = "put"    // write a file, all of it or none
	OpHave   Op = "have"   // read one part of the node's inventory
	OpCreate Op = "create" // write a file that must not exist yet
	OpGPUs   Op = "gpus"   // list the GPUs of the driver, by its files; in the lane of NVML their MIG devices
	OpCount  Op = "count"  // read the counters of devices; in the local lane also Xids since a mark
	OpKeep   Op = "keep"   // write a record for later runs
	OpRecall Op = "recall" // read the records whose names begin with something
	OpForget Op = "forget" // remove a record
	OpNote   Op = "note"   // append a line to a journal
	OpJobs   Op = "jobs"   // list the jobs that have a slurmstepd on the node
	OpNotes  Op = "notes"  // read a journal
	OpTopo   Op = "topo"   // read the topology of the node's devices
	OpSlurm  Op = "slurm"  // read the GPUs of a node from Slurm's configuration
	OpNodes  Op = "nodes"  // find this host's names in Slurm's configuration

	OpOpen   Op = "open"   // open the state directory: read the ledger and a file, take locks
	OpLoad   Op = "load"   // read a file of the state directory
	OpSave   Op = "save"   // replace a file of the state directory
	OpLock   Op = "lock"   // take a lock in the state directory for the supervisor
	OpUnlock Op = "unlock" // let go of it
	OpStuck  Op = "stuck"  // add processes to the ledger

	OpEvidence Op = "evidence" // keep an archive about the node
	OpJournal  Op = "journal"  // write entries to the journal of systemd

	OpAsk   Op = "ask"   // answer a person's question: Name is one of the questions below
	OpGuard Op = "guard" // end a shell if the supervisor dies; this one has no answer

	OpPrograms Op = "programs" // what slurmd would start for a pattern of Prolog=
)

// These are the questions of a person, Request.Name of [OpAsk].
const (
	AskExplain   = "explain"   // explain an Xid: Args are a code or a line
	AskMessage   = "message"   // explain a message, a code or a counter
	AskBaselines = "baselines" // what active tests have learned
	AskNames     = "names"     // list the nodes that have a memory below the directories of Places
	AskClear     = "clear"     // acknowledge errors: Path is one of the kinds below
)

// These are the kinds of errors that can be cleared.
const (
	ClearXid      = "xid"
	ClearPorts    = "ib"
	ClearBaseline = "baseline"
	ClearActive   = "active"
)

// Part is a list that messages seldom contain. encoding/json analyzes the types of all fields with
// the first message, which takes longer than an empty run should. It analyzes the type of a Part
// only when a message contains one.
type Part[T any] []T

// MarshalJSON encodes the list.
func (p Part[T]) MarshalJSON() ([]byte, error) { return json.Marshal([]T(p)) }

// UnmarshalJSON decodes the list.
func (p *Part[T]) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, (*[]T)(p)) }

// Only is a pointer that messages seldom contain; see Part.
type Only[T any] struct{ Value *T }

// MarshalJSON encodes the value.
func (o Only[T]) MarshalJSON() ([]byte, error) { return json.Marshal(o.Value) }

// UnmarshalJSON decodes the value.
func (o *Only[T]) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &o.Value) }

// Request is one line on a worker's request descriptor.
type Request struct {
	ID      int               `json:"id"`
	Op      Op                `json:"op"`
	Name    string            `json:"name,omitempty"`    // check: its registered name; have: the part; slurm: the node; nodes: the host
	Args    []string          `json:"args,omitempty"`    // check: its arguments; exec: argv; find: the paths
	Table   map[string]any    `json:"table,omitempty"`   // check: parameters from TOML, instead of Args
	Line    string            `json:"line,omitempty"`    // check: the line as written
	Guard   *process.Guarded  `json:"guard,omitempty"`   // guard
	Vars    *Vars             `json:"vars,omitempty"`    // from this request on
	Only    bool              `json:"only,omitempty"`    // last: the test will not run
	Over    map[string]string `json:"over,omitempty"`    // check: variables of this request alone
	Timeout time.Duration     `json:"timeout,omitempty"` // check: TIMEOUT of the run; exec: deadline of the command
	Limit   time.Duration     `json:"limit,omitempty"`   // check: time limit of the step; 0: the end of the run
	End     time.Duration     `json:"end,omitempty"`     // check: the end of the run on the kernel's monotonic clock; 0: none
	Path    string            `json:"path,omitempty"`    // read, append, take, put, create, have; slurm, nodes: SLURM_CONF; list: the directory; programs: the pattern; exec: the file of standard input
	Data    []byte            `json:"data,omitempty"`    // append, put, create; exec: the text of standard input
	Trunc   bool              `json:"trunc,omitempty"`   // append: empty the file first
	MakeDir bool              `json:"mkdir,omitempty"`   // put: create the directory, too
	Mode    uint32            `json:"mode,omitempty"`    // put: permissions of the file; 0: only its owner can read it
	Env     []string          `json:"env,omitempty"`     // exec: the whole environment; check: additions to Environ
	Program string            `json:"program,omitempty"` // exec: the file to run, if it is not what argv says
	Mark    *checks.LogMark   `json:"mark,omitempty"`    // count: up to where the log was read
	Most    int64             `json:"most,omitempty"`    // note, notes: maximum size of the journal, bytes; append: of the file, which then becomes PATH.1
	Who     string            `json:"who,omitempty"`     // ask: the person; evidence: the host name to redact, "" for none
	Places  Part[Place]       `json:"places,omitempty"`  // ask
	Files   Part[Named]       `json:"files,omitempty"`   // evidence: files of the supervisor
	Entries Part[Entry]       `json:"entries,omitempty"` // journal
	Merge   bool              `json:"merge,omitempty"`   // exec: the standard error is part of the output; processes left behind continue
}

// Vars are the variables of a run that checks see.
type Vars struct {
	Plain   map[string]string   `json:"plain,omitempty"`   // NHC variables that checks read
	Arrays  map[string][]string `json:"arrays,omitempty"`  // the same of arrays
	Environ []string            `json:"environ,omitempty"` // environment of the commands that checks run
	Root    string              `json:"root,omitempty"`    // HOSTROOT: root directory of the node that checks inspect; "" is this machine
	Past    string              `json:"past,omitempty"`    // directory of the checks' memory between runs; "" is none
	Spare   string              `json:"spare,omitempty"`   // directory for it if Past cannot be written
	Job     Only[checks.Job]    `json:"job,omitzero"`      // the job of a prolog or an epilog
	Learn   bool                `json:"learn,omitempty"`   // see checks.Env.Learn
	Period  bool                `json:"period,omitempty"`  // see checks.Env.Periodic
	Hold    bool                `json:"hold,omitempty"`    // see checks.Env.Hold
	Stuck   []string            `json:"stuck,omitempty"`   // calls that blocked earlier workers of the lane

	ProfilesFile string `json:"profiles_file,omitempty"` // the file of the site's platform profiles, for messages,
	Profiles     []byte `json:"profiles,omitempty"`      // and its text, which is known to be valid

	Slurm      Only[jobscan.SlurmGPUs] `json:"slurm,omitzero"`        // the node's GPUs in Slurm's configuration; nil: unknown
	WantedGPUs int                     `json:"wanted_gpus,omitempty"` // see checks.Env.WantedGPUs
}

// Response is one line on a worker's response descriptor.
type Response struct {
	ID       int                  `json:"id"`
	Findings Part[checks.Finding] `json:"findings,omitempty"`
	Fact     string               `json:"fact,omitempty"`  // check: see checks.Env.Fact
	Known    bool                 `json:"known,omitempty"` // last: the findings are the result of the test
	Took     time.Duration        `json:"took,omitempty"`
	Data     []byte               `json:"data,omitempty"`   // read, take, load: the content; exec: stdout
	Stderr   []byte               `json:"stderr,omitempty"` // exec
	Status   int                  `json:"status,omitempty"` // exec: as bash counts it; find: the position in the list, from 1
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
	Doubts   []string              `json:"doubts,omitempty"`   // count: files that could not be read
	Records  Part[probe.Record]    `json:"records,omitempty"`  // recall
	Jobs     []string              `json:"jobs,omitempty"`     // jobs; ask, nodes: names
	Lines    [][]byte              `json:"lines,omitempty"`    // notes; open: the ledger, the crashes, and the requested file
	Programs Part[Program]         `json:"programs,omitempty"` // programs
	Text     string                `json:"text,omitempty"`     // ask: for a person

	Baselines Part[active.BaselineRow] `json:"baselines,omitempty"` // ask

	Busy   *Holder  `json:"busy,omitempty"`   // open, lock: the holder of the lock; nil: the supervisor has it
	Cut    bool     `json:"cut,omitempty"`    // exec: there was more output
	Worn   bool     `json:"worn,omitempty"`   // this worker leaves after the answer, see cuda.Worn
	Spent  bool     `json:"spent,omitempty"`  // this worker cannot continue, see probe.Host.Blocked
	Stuck  []string `json:"stuck,omitempty"`  // the blocked calls behind Spent, which are not part of the step
	Exists bool     `json:"exists,omitempty"` // create: the file exists; Err says so
	Err    string   `json:"err,omitempty"`    // why the operation failed, complete
}

// FileInfo describes a configuration file.
type FileInfo struct {
	Missing bool        `json:"missing,omitempty"`
	Mode    fs.FileMode `json:"mode"`
	UID     uint32      `json:"uid"`
	Path    string      `json:"path,omitempty"` // read: absolute, without links as far as the file exists
	Size    int64       `json:"size"`
	Stays   bool        `json:"stays,omitempty"` // take: the file could not be removed
}

// Named is a file with its name.
type Named struct {
	Name string
	Data []byte
}

// Entry is an entry of the journal of systemd.
type Entry struct {
	Message  string
	Priority int // of syslog
	Fields   map[string]string
}

// Place is the memory directory of a node's checks, and the directory to use if that
// one is not writable.
type Place struct {
	Past, Spare string
	Always      bool // clear: also if the data may belong to another node
}

// Program is a file that slurmd would start.
type Program struct {
	Path   string `json:"path"`
	Bad    string `json:"bad,omitempty"`    // why it cannot be started
	Self   bool   `json:"self,omitempty"`   // it is this program
	Starts bool   `json:"starts,omitempty"` // it is a script that contains this program's name
}

// Script is a file of $INCDIR that LBNL NHC would source.
type Script struct {
	Path      string   `json:"path"`
	Stock     bool     `json:"stock,omitempty"`   // of LBNL NHC's own distribution: this program has its checks
	Altered   bool     `json:"altered,omitempty"` // it has the name of such a file, but other content
	Functions []string `json:"functions,omitempty"`
	Sources   bool     `json:"sources,omitempty"` // it may source or generate functions that Functions lacks
	FileInfo
}

// These are the files of the state directory that [OpOpen] reads.
const (
	LedgerFile = "ledger.json"
	CrashFile  = "crash.json" // see crash.go
)

// Holder is the process that holds a lock.
type Holder struct {
	PID int           `json:"pid"` // 0 if unknown
	Age time.Duration `json:"age"` // since it took the lock
}

// StuckProcess is a process that no signal could end, left behind by a run.
type StuckProcess struct {
	PID   int         `json:"pid"`
	Start uint64      `json:"start"` // clock ticks since boot when it was started
	Lane  checks.Lane `json:"lane"`
	Step  string      `json:"step"`  // the check line it was running
	Doing string      `json:"doing"` // the blocked call
	State string      `json:"state"`
	Wchan string      `json:"wchan"`
	Since time.Time   `json:"since"`
}

// Hung describes a stuck process as a hang.
func (c StuckProcess) Hung() *checks.Hung {
	return &checks.Hung{PID: c.PID, State: c.State, Wchan: c.Wchan, Doing: c.Doing, Stuck: true, For: time.Since(c.Since)}
}

// These are the descriptors for a worker's answers and for its [Page]. They are not 0 to 2, because
// C libraries print there.
const (
	RequestFd  = 3
	ResponseFd = 4
	PageFd     = 5
)

// These bound the stored output and standard error of a command, bytes.
const (
	MaxOutput = 1 << 20
	MaxErrors = 4 << 10
)

// MaxState is the largest size of a state file, bytes. The program's own files are below 64 KiB.
const MaxState = 1 << 20

// These describe the line of a lock file.
const (
	LockLine = "%d %d %d" // pid, Unix time, start time in clock ticks since boot
	LockSize = 64         // bytes, always, so that the line can be replaced on a full disk
)
