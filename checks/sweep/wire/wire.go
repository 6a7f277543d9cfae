// Package wire is the protocol between the launcher of a sweep and its ranks, one on each node. A
// rank connects to the launcher by TLS. It knows the hash of the launcher's certificate, and proves
// itself by a token; both come by its standard input, which srun carries.
package wire

import (
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// Ticket is the line of JSON on the standard input of a rank.
type Ticket struct {
	Addresses []string      `json:"addresses"` // of the launcher: host:port, the first that answers is used
	Print     []byte        `json:"print"`     // SHA-256 of its certificate
	Token     []byte        `json:"token"`     // 32 random bytes
	Version   string        `json:"version"`   // of the launcher; a rank of another version is refused
	Silence   time.Duration `json:"silence"`   // a rank ends that has heard nothing for that long
	Limit     time.Duration `json:"limit"`     // a rank ends at the latest after that
	Job       string        `json:"job"`       // cancelled by a rank whose launcher is gone; "": no one's
}

// MaxMessage bounds a message, bytes.
const MaxMessage = 4 << 20

// Message is a message in either direction. Exactly one field is set.
type Message struct {
	Hello   *Hello   `json:"hello,omitempty"`   // the first of a rank
	Welcome *Welcome `json:"welcome,omitempty"` // the first of the launcher
	Prepare *Prepare `json:"prepare,omitempty"` // to a rank
	Ready   *Ready   `json:"ready,omitempty"`   // its answer
	Run     *Run     `json:"run,omitempty"`     // to a rank, when all ranks of the task are ready
	Done    *Done    `json:"done,omitempty"`    // its answer
	Stop    *Stop    `json:"stop,omitempty"`    // to a rank, always the last message about a task
	Beat    bool     `json:"beat,omitempty"`    // in both directions, once a second
	Bye     string   `json:"bye,omitempty"`     // the reason why the sender ends
}

// Hello describes a rank.
type Hello struct {
	Token   []byte     `json:"token"`
	Version string     `json:"version"`
	Node    sweep.Node `json:"node"` // Name is SLURMD_NODENAME
	PID     int        `json:"pid"`
}

// Welcome accepts a rank, or refuses it.
type Welcome struct {
	Refused string `json:"refused,omitempty"` // why
}

// Prepare has a rank set up its end of a task: it listens, or starts a server. See [Prepares].
type Prepare struct {
	Task  sweep.Task     `json:"task"`  // without Nodes
	Nodes int            `json:"nodes"` // of the task
	Names map[int]string `json:"names"` // of the nodes that the rank has to do with, by rank
	Rank  int            `json:"rank"`
	Key   []byte         `json:"key"` // 16 random bytes for this task, by which its ranks know each other
}

// Ready is the end of a rank that the others need.
type Ready struct {
	ID      int         `json:"id"` // of the task
	Rank    int         `json:"rank"`
	Address string      `json:"address,omitempty"` // host:port
	Data    []byte      `json:"data,omitempty"`    // of the kind: the unique ID of NCCL
	GPUs    int         `json:"gpus,omitempty"`    // that take part
	Fault   sweep.Fault `json:"fault,omitempty"`   // it cannot: the task ends
	Text    string      `json:"text,omitempty"`
}

// Run starts a task. See [Runs].
type Run struct {
	ID    int     `json:"id"`
	Nodes int     `json:"nodes"` // of the task
	Ranks []Ready `json:"ranks"` // those that the rank has to do with
	Seats Seats   `json:"seats"`
}

// Seats are the places of a rank's GPUs among those of all ranks.
type Seats struct {
	First int `json:"first"` // of this rank
	Total int `json:"total"`
	Least int `json:"least"` // of any rank
}

// Done is the part of a rank in the result of a task.
type Done struct {
	ID     int          `json:"id"`
	Rank   int          `json:"rank"`
	Result sweep.Result `json:"result"`          // without the task
	Again  bool         `json:"again,omitempty"` // its fault counts only if it comes back in a second try
}

// Stop ends a task. The rank ends every process and connection of it.
type Stop struct {
	ID int `json:"id"`
}
