// Package wire is the protocol between the supervisor and its workers: requests, responses, the
// page that names the current call, and the files that both use.
package wire

import (
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

// MaxMessage bounds a message of a worker, bytes. A worker that writes more is broken.
const MaxMessage = 4 << 20

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
	OpFix    Op = "fix"    // write a record to the disk, where it survives a power cut
	OpRecall Op = "recall" // read the records whose names begin with something
	OpForget Op = "forget" // remove a record
	OpNote   Op = "note"   // append a line to a journal
	OpJobs   Op = "jobs"   // list the jobs that have a slurmstepd on the node
	OpNotes  Op = "notes"  // read a journal
	OpTopo   Op = "topo"   // read the topology of the node's devices
	OpParts  Op = "parts"  // list GPUs, adapters and disks with their identities; the GPUs that earlier runs have seen if Name is past
	OpPart   Op = "part"   // describe a device, which Data names, for its vendor: by files, or in the lane of NVML by that library
	OpSlurm  Op = "slurm"  // read the GPUs of a node from Slurm's configuration
	OpNodes  Op = "nodes"  // find this host's names in Slurm's configuration

	OpOpen   Op = "open"   // open the state directory: take a lock, read the files that every run needs
	OpLoad   Op = "load"   // read a file of the state directory
	OpSave   Op = "save"   // replace a file of the state directory
	OpLock   Op = "lock"   // take a lock in the state directory for the supervisor
	OpUnlock Op = "unlock" // let go of it
	OpStuck  Op = "stuck"  // add processes to the ledger

	OpEvidence Op = "evidence" // keep an archive about the node
	OpJournal  Op = "journal"  // write entries to the journal of systemd

	OpAsk   Op = "ask"   // answer a person's question: Name is one of the questions below
	OpGuard Op = "guard" // end a shell if the supervisor dies; this one has no answer

	// Wait for events of the source Name, at most for Timeout. Mark is up to where an earlier worker has read it, Args
	// are the jobs on the node: without any, the worker that samples GPUs leaves.
	OpWatch Op = "watch"

	// Describe the programs that slurmd would start for a pattern of Prolog=, or those with the paths in Args.
	OpPrograms Op = "programs"
)

// These are the questions of a person, Request.Name of [OpAsk].
const (
	AskExplain   = "explain"   // explain an Xid: Args are a code or a line
	AskMessage   = "message"   // explain a message, a code or a counter
	AskBaselines = "baselines" // what active tests have learned
	AskNames     = "names"     // list the nodes that have a memory below the directories of Places
	AskSamples   = "samples"   // show the samples of the job in Args, as JSON; of 24 hours with the second argument "hours"

	AskOwnSamples = "own samples" // the same for the job's own user, at the sockets in the directory Path; Who is the node

	AskHolders = "holders" // list the processes that have a device of NVIDIA open
	AskReset   = "reset"   // record that the GPUs in Args have been reset
	AskClear   = "clear"   // acknowledge errors: Path is one of the kinds below
)

// PastParts is Request.Name of [OpParts] for the GPUs of earlier runs.
const PastParts = "past"

// These are the kinds of errors that can be cleared.
const (
	ClearXid      = "xid"
	ClearPorts    = "ib"
	ClearBaseline = "baseline"
	ClearActive   = "active"
)

// Request is a message on a worker's request descriptor.
type Request struct {
	ID      int
	Op      Op
	Name    string            // check: its registered name; have: the part; slurm: the node; nodes: the host
	Args    []string          // check: its arguments; exec: argv; find: the paths; evidence: the job whose samples alone are kept
	Table   map[string]any    // check: parameters from TOML, instead of Args
	Line    string            // check: the line as written
	Guard   *process.Guarded  // guard
	Vars    *Vars             // from this request on
	Only    bool              // last: the test will not run
	Over    map[string]string // check: variables of this request alone
	Timeout time.Duration     // check: TIMEOUT of the run; exec: deadline of the command; keep, recall: of the supervisor; watch
	Limit   time.Duration     // check: time limit of the step; 0: the end of the run
	End     time.Duration     // check: the end of the run on the kernel's monotonic clock; 0: none
	Path    string            // read, append, take, put, create, have; slurm, nodes: SLURM_CONF; list: the directory; programs: the pattern; exec: the file of standard input
	Data    []byte            // append, put, create; exec: the text of standard input
	Trunc   bool              // append: empty the file first
	Whole   bool              // keep: Data has the whole history
	MakeDir bool              // put: create the directory, too
	Mode    uint32            // put: permissions of the file; 0: only its owner can read it
	Env     []string          // exec: the whole environment; check: additions to Environ
	Program string            // exec: the file to run, if it is not what argv says
	Mark    *checks.LogMark   // count, watch: up to where the log was read
	Most    int64             // note, notes: maximum size of the journal, bytes; append: of the file, which then becomes PATH.1
	Who     string            // ask: the person; evidence: the host name to redact, "" for none
	Places  []Place           // ask
	Files   []Named           // evidence: files of the supervisor; about a job the first is its record
	Entries []Entry           // journal
	Merge   bool              // exec: the standard error is part of the output; processes left behind continue
}

func (m *Request) fields(c *codec) {
	number(c, &m.ID)
	text(c, &m.Op)
	text(c, &m.Name)
	texts(c, &m.Args)
	rare(c, &m.Table)
	text(c, &m.Line)
	rare(c, &m.Guard)
	part(c, &m.Vars)
	yes(c, &m.Only)
	textTable(c, &m.Over)
	number(c, &m.Timeout)
	number(c, &m.Limit)
	number(c, &m.End)
	text(c, &m.Path)
	bytes(c, &m.Data)
	yes(c, &m.Trunc)
	yes(c, &m.Whole)
	yes(c, &m.MakeDir)
	number(c, &m.Mode)
	texts(c, &m.Env)
	text(c, &m.Program)
	rare(c, &m.Mark)
	number(c, &m.Most)
	text(c, &m.Who)
	rare(c, &m.Places)
	rare(c, &m.Files)
	rare(c, &m.Entries)
	yes(c, &m.Merge)
}

// Vars are the variables of a run that checks see.
type Vars struct {
	Plain   map[string]string   // NHC variables that checks read
	Arrays  map[string][]string // the same of arrays
	Environ []string            // environment of the commands that checks run
	Root    string              // HOSTROOT: root directory of the node that checks inspect; "" is this machine
	Past    string              // directory of the checks' memory between runs; "" is none
	Spare   string              // directory for it if Past cannot be written
	State   string              // the state directory below /run, see run.Pool.OpenState; "" is none
	Job     *checks.Job         // the job of a prolog or an epilog
	Learn   bool                // see checks.Env.Learn
	Period  bool                // see checks.Env.Periodic
	DryRun  bool                // see checks.Env.DryRun
	Part    bool                // see checks.Env.Part
	Stuck   []string            // calls that blocked earlier workers of the lane

	Supervisor int // the PID of the process that sends the requests

	ProfilesFile string // the file of the site's platform profiles, for messages,
	Profiles     []byte // and its text, which is known to be valid

	Slurm      *jobscan.SlurmGPUs // the node's GPUs in Slurm's configuration; nil: unknown
	WantedGPUs int                // see checks.Env.WantedGPUs
}

func (m *Vars) fields(c *codec) {
	textTable(c, &m.Plain)
	listTable(c, &m.Arrays)
	texts(c, &m.Environ)
	text(c, &m.Root)
	text(c, &m.Past)
	text(c, &m.Spare)
	text(c, &m.State)
	rare(c, &m.Job)
	yes(c, &m.Learn)
	yes(c, &m.Period)
	yes(c, &m.DryRun)
	yes(c, &m.Part)
	texts(c, &m.Stuck)
	number(c, &m.Supervisor)
	text(c, &m.ProfilesFile)
	bytes(c, &m.Profiles)
	rare(c, &m.Slurm)
	number(c, &m.WantedGPUs)
}

// Response is a message on a worker's response descriptor.
type Response struct {
	ID       int
	Findings []checks.Finding
	Fact     string // check: see checks.Env.Fact
	Known    bool   // last: the findings are the result of the test
	Took     time.Duration
	Data     []byte // read, take, load: the content; exec: stdout
	Stderr   []byte // exec
	Status   int    // exec: as bash counts it; find: the position in the list, from 1
	TimedOut bool
	File     *FileInfo // read, take

	Scripts []Script // list: in the order of their names
	Facts   []probe.Fact
	Have    *inventory.Inventory
	GPUs    []nvidia.DriverGPU
	MIG     map[string][]string // gpus: MIG devices by the address of their GPU
	Slurm   *jobscan.SlurmGPUs
	Topo    *topology.Topology

	Counters []checks.Counters // count
	Xids     []checks.XidSeen  // count
	Mark     *checks.LogMark   // count, watch: where the log ends
	Doubts   []string          // count: files that could not be read; gpus: GPUs whose MIG devices could not be read
	Records  []probe.Record    // recall
	Names    []string          // jobs, nodes, ask: of jobs, nodes, processes, ports
	Lines    [][]byte          // notes; open: see [OpenedLedger]
	Programs []Program         // programs
	Text     string            // ask: for a person

	Baselines []active.BaselineRow // ask

	Devices []checks.Device // parts
	Before  []checks.Device // parts, past: those that no run of this boot has read

	Heard *Heard // watch

	Busy    *Holder  // open, lock: the holder of the lock; nil: the supervisor has it
	Cut     bool     // exec: there was more output
	Worn    bool     // this worker leaves after the answer, see cuda.Worn and OpWatch
	Spent   bool     // this worker cannot continue, see probe.Host.Blocked
	Stuck   []string // calls that no later worker must make, and no part of the step; the first is behind Spent
	Locked  []string // new reads of processes' memory that threads of the worker wait for; it goes on
	Silence string   // why the data of earlier runs is not used any more, "" if it is
	Kind    ErrorKind
	Err     string // why the operation failed, complete
}

// ErrorKind is what the supervisor has to know of a worker's error besides its text.
type ErrorKind int

// The kinds of errors that are not like all others.
const (
	Exists      ErrorKind = iota + 1 // create: the file exists
	Elsewhere                        // keep: the data is in a spare directory, which is not a failure
	Silent                           // recall: the directory of the data of earlier runs does not answer
	NoDirectory                      // create: the directory of the file does not exist; open: nor does the directory, and it cannot be made
)

func (m *Response) fields(c *codec) {
	number(c, &m.ID)
	rare(c, &m.Findings)
	text(c, &m.Fact)
	yes(c, &m.Known)
	number(c, &m.Took)
	bytes(c, &m.Data)
	bytes(c, &m.Stderr)
	number(c, &m.Status)
	yes(c, &m.TimedOut)
	part(c, &m.File)
	rare(c, &m.Scripts)
	rare(c, &m.Facts)
	rare(c, &m.Have)
	rare(c, &m.GPUs)
	listTable(c, &m.MIG)
	rare(c, &m.Slurm)
	rare(c, &m.Topo)
	rare(c, &m.Counters)
	rare(c, &m.Xids)
	rare(c, &m.Mark)
	texts(c, &m.Doubts)
	rare(c, &m.Records)
	texts(c, &m.Names)
	lines(c, &m.Lines)
	rare(c, &m.Programs)
	text(c, &m.Text)
	rare(c, &m.Baselines)
	rare(c, &m.Devices)
	rare(c, &m.Before)
	rare(c, &m.Heard)
	rare(c, &m.Busy)
	yes(c, &m.Cut)
	yes(c, &m.Worn)
	yes(c, &m.Spent)
	texts(c, &m.Stuck)
	text(c, &m.Silence)
	texts(c, &m.Locked)
	number(c, &m.Kind)
	text(c, &m.Err)
}

// Heard are the events of a source.
type Heard struct {
	Events []Event
	Jobs   []string // of the source of jobs: those on the node
	Lost   uint64   // records or messages that were not read; at least 1 if their number is unknown
	Notes  []string // for the journal
}

// Event is the first event of a kind since the last answer.
type Event struct {
	Kind string // of checks/monitor
	Text string
}

// FileInfo describes a configuration file.
type FileInfo struct {
	Missing bool
	Mode    fs.FileMode
	UID     uint32
	Path    string // read: absolute, without links as far as the file exists
	Size    int64
	Stays   bool // take: the file could not be removed
}

func (m *FileInfo) fields(c *codec) {
	yes(c, &m.Missing)
	number(c, &m.Mode)
	number(c, &m.UID)
	text(c, &m.Path)
	number(c, &m.Size)
	yes(c, &m.Stays)
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

// Program is a file that slurmd, or a run, would start.
type Program struct {
	Path   string
	Gone   bool   // the file, or what the link names, does not exist
	Bad    string // why it cannot be started
	Self   bool   // it is this program
	Starts bool   // it is a script that contains this program's name
}

// Script is a file of $INCDIR that LBNL NHC would source.
type Script struct {
	Path      string
	Stock     bool // of LBNL NHC's own distribution: this program has its checks
	Altered   bool // it has the name of such a file, but other content
	Functions []string
	Sources   bool // it may source or generate functions that Functions lacks
	Hardware  bool // it uses variables of LBNL NHC's hardware checks, such as HW_CORES
	FileInfo
}

// These are the files of the state directory that [OpOpen] reads.
const (
	LedgerFile = "ledger.json"
	CrashFile  = "crash.json" // see crash.go
	DrillFile  = "drill.json" // see [session.Drill]

	MonitorFile = "monitor.json" // see [monitor.Ledger]
	MemoryFile  = "slurm.json"   // see [slurm.Memory]
)

// These are the places of the files in the answer to [OpOpen].
const (
	OpenedLedger = iota
	OpenedCrashes
	OpenedDrill
	OpenedMonitor
	OpenedLanes // the file that Request.Name names
	OpenedFiles // the number of files
)

// Holder is the process that holds a lock.
type Holder struct {
	PID  int           // 0 if unknown
	Age  time.Duration // since it took the lock
	Part bool          // it is a run of the monitor, which checks a part of the node
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

// KindMonitor is the kind of the runs of the monitor.
const KindMonitor = "monitor"

// These describe the line of a lock file.
const (
	LockLine = "%d %d %d" // pid, Unix time, start time in clock ticks since boot
	LockPart = " part"    // behind the line of a run of the monitor
	LockSize = 64         // bytes, always, so that the line can be replaced on a full disk
)
