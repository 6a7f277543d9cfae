package slurm

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"
)

// Told is what Slurm last heard of us, or what we last saw there.
type Told string

// What Slurm may have been told. Only ToldOK lets a healthy run go without
// asking.
const (
	ToldUnknown   Told = ""           // ask
	ToldOK        Told = "ok"         // the node was in service, and healthy
	ToldDrained   Told = "drained"    // drained by us, for Memory.Reason
	ToldLeftAlone Told = "left-alone" // drained by another, down, or in maintenance
)

// memoryFormat is the version of the file. Another one is not read.
const memoryFormat = 1

// Memory is what a node remembers between runs.
type Memory struct {
	Version int    `json:"version"`
	BootID  string `json:"boot_id"` // memory of another boot is void
	Told    Told   `json:"told"`

	// Reason is our last reason of the node, and Fault its cause; both are empty after
	// the node was seen in service. Known reports that the node had no other reason of ours.
	Reason string `json:"reason,omitempty"`
	Fault  string `json:"fault,omitempty"`
	Known  bool   `json:"known,omitempty"`

	// For is the question that Slurm was last asked, Next when it is asked again if
	// nothing changes; IsHealthy was SLURM_NODE_IS_HEALTHY in the last run.
	For       string    `json:"for,omitempty"`
	Next      time.Time `json:"next,omitzero"`
	IsHealthy string    `json:"is_healthy,omitempty"`

	Refusal Refusal `json:"refusal,omitzero"`

	// Unsettled says that a write reported an error: slurmctld may carry it out
	// even after it has answered a later question (a stopped slurmctld works
	// off its queue in no order), so the next healthy answer is not the last.
	Unsettled bool `json:"unsettled,omitempty"`

	Pending Pending `json:"pending,omitzero"`

	// Observed is the memory of the runs with [Controller.Observe] since the last one without.
	Observed *Memory `json:"observed,omitempty"`

	// Pretended is what such a run would have changed last.
	Pretended Pretended `json:"pretended,omitzero"`

	// Marks are what the node is drained for, see [Mark]; none where a version that
	// knew of none has drained it.
	Marks []Mark `json:"marks,omitempty"`

	// Check is a mark of a prolog or an epilog, as earlier versions kept it.
	Check string `json:"check,omitempty"`
}

// Pending is a drain that could not be delivered. The zero value is none.
type Pending struct {
	Message string    `json:"message"`           // of the verdict
	Since   time.Time `json:"since"`             // UTC, whole seconds
	Refused bool      `json:"refused,omitempty"` // see [NodeInfo.Refused]
	Fault   string    `json:"fault,omitempty"`   // which it is about
}

// Pretended is a change of a node that was decided, and not sent. The zero value is none.
type Pretended struct {
	Action Action `json:"action,omitempty"`
	Reason string `json:"reason,omitempty"` // Drain, Renew: the reason to set; Resume: the node's reason then
}

// then returns what a further decision about the node adds up to.
func (p Pretended) then(d Decision, node NodeInfo) Pretended {
	switch {
	case d.Action == Resume && p.Action == Drain: // Slurm has it in service
		return Pretended{}
	case d.Action == Resume:
		return Pretended{Resume, node.Reason}
	case d.Action == Renew && p.Action == Drain:
		return Pretended{Drain, d.Reason}
	}
	return Pretended{d.Action, d.Reason}
}

// pretend returns the node as it would be, had the last decision been sent. A person's change
// of the node ends that.
func (m *Memory) pretend(node NodeInfo) NodeInfo {
	inService := node.State.Class == InService && !node.State.Held
	switch {
	case m.Pretended.Action == Drain && inService:
		node.State, node.Reason, node.Author = ParseState("IDLE+DRAIN"), m.Pretended.Reason, ""
	case m.Pretended.Action == Renew && node.owner() == ours && !inService:
		node.Reason = m.Pretended.Reason
	case m.Pretended.Action == Resume && node.Reason == m.Pretended.Reason && !inService:
		node.State, node.Reason, node.Author = ParseState("IDLE"), "", ""
	default:
		m.Pretended = Pretended{}
	}
	return node
}

// tell notes a node that was read and left as it is.
func (m *Memory) tell(v Verdict, node NodeInfo) {
	m.Pending = Pending{}
	inService := node.State.Class == InService
	held := node.State.Class == Drained || node.State.Held
	switch {
	case inService && !node.State.Held:
		m.Reason, m.Fault, m.Known = "", "", !m.Unsettled
	case held && node.owner() == ours:
		if !sameReason(node.Reason, m.Reason) {
			m.Reason, m.Fault = node.Reason, ""
		}
		if sameReason(node.Reason, Reason(v.Message)) {
			m.Fault = v.fault()
		}
		m.Known = !m.Unsettled
	case held && !m.Known:
		m.Reason, m.Fault, m.Known = "", "", !m.Unsettled
	}
	switch {
	case v.Healthy && inService && m.Unsettled:
		m.Told, m.Unsettled = ToldUnknown, false // once more
	case v.Healthy && inService && !node.State.Held && node.State.Base != "boot":
		m.Told = ToldOK
	case inService || node.State.Class == Unknown:
		m.Told = ToldUnknown // a reboot may end in a drain; an unknown state in any
	case held && node.owner() == ours:
		m.Told = ToldDrained
	default:
		m.Told = ToldLeftAlone
	}
}

// told notes a decision that was carried out, for a fault. After a Resume Slurm is asked
// once more, to see the node back in service.
func (m *Memory) told(d Decision, fault string) {
	m.Pending, m.Known = Pending{}, !m.Unsettled
	m.Told, m.Reason, m.Fault = ToldUnknown, "", ""
	if d.Action != Resume {
		m.Told, m.Reason, m.Fault = ToldDrained, d.Reason, fault
	}
}

// isForeign reports that a reason is not ours, because we have written another one.
// After a write that reported an error this is unknown.
func (m *Memory) isForeign(reason string) bool { return m.Known && !sameReason(reason, m.Reason) }

// keep notes a drain that could not be delivered, with the time of the first
// try. No more of the message is kept than a reason holds.
func (m *Memory) keep(v Verdict, now time.Time) {
	message := cut(printable(v.Message), MaxReason)
	if m.Pending.Message != message || m.Pending.Since.IsZero() {
		m.Pending.Message, m.Pending.Since = message, now.UTC().Truncate(time.Second)
	}
	m.Pending.Fault = v.fault()
	m.Pending.Refused = m.Pending.Refused || v.Refused
}

// recall reads the memory of this boot; none is the zero value.
func (c *Controller) recall() (Memory, error) {
	m, err := c.load()
	if err != nil || m.BootID != c.BootID || c.BootID == "" {
		return Memory{}, err
	}
	if m.Check != "" {
		m.Marks, m.Check = append(m.Marks, Mark{Cause: Cause{Check: m.Check, Job: true}}), ""
	}
	return m, nil
}

// remember stores after, if it differs from before. Without the lock, or if
// another run has stored something meanwhile, neither run's outcome can be
// relied on, and Slurm is asked next time.
func (c *Controller) remember(before, after Memory, locked bool) error {
	if now, err := c.recall(); !locked || (err == nil && !reflect.DeepEqual(now, before)) {
		after.doubt()
	}
	if reflect.DeepEqual(after, before) {
		return nil
	}
	return c.save(after)
}

// forget makes the next runs ask Slurm: somebody else has written to the node.
func (c *Controller) forget() error {
	m, err := c.recall()
	if err != nil {
		return err
	}
	m.doubt()
	return c.save(m)
}

// doubt makes the next two healthy runs ask Slurm.
func (m *Memory) doubt() { m.Told, m.Unsettled, m.Known = ToldUnknown, true, false }

func (c *Controller) save(m Memory) error {
	if c.Dir == nil {
		return nil
	}
	m.Version, m.BootID, m.Observed = memoryFormat, c.BootID, nil
	if c.Observe {
		sent, err := c.loadSent()
		if err != nil || sent.BootID != c.BootID {
			sent = Memory{Version: memoryFormat, BootID: c.BootID}
		}
		sent.Told, sent.Pending, sent.Next, sent.Observed = ToldUnknown, Pending{}, time.Time{}, new(m) // by then all of it may be over
		m = sent
	}
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("write memory: %w", err)
	}
	return c.Dir.Save(append(b, '\n'))
}

// BootID is the kernel's name for this boot of the host, empty if it does not
// say (no memory is valid then). Source: /proc/sys/kernel/random/boot_id.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id") //nolint:forbidigo // the boot id
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// StateDir keeps a node's memory and its lock between runs, in a directory on a local
// file system that a reboot may empty: /run. Its methods return in a bounded time. A nil
// StateDir remembers nothing and locks nothing.
type StateDir interface {
	// Load returns the last saved data, nil if there is none.
	Load() ([]byte, error)
	// Save replaces it in one step: a reader, or a run killed half-way, finds the old
	// one or the new one.
	Save(data []byte) error
	// Lock takes the lock on the memory. It waits for another run no longer than wait,
	// and then says [ErrBusy]; any other error means that there can be no lock. The lock
	// of a process that dies is free.
	Lock(wait time.Duration) (unlock func(), err error)
}

func (c *Controller) lock(wait time.Duration) (unlock func(), err error) {
	if c.Dir == nil {
		return func() {}, nil
	}
	return c.Dir.Lock(wait)
}

// load reads the memory, with [Controller.Observe] that of runs alike.
func (c *Controller) load() (Memory, error) {
	m, err := c.loadSent()
	if err == nil && c.Observe && m.Observed != nil {
		return *m.Observed, nil // the first such run goes by what was sent
	}
	return m, err
}

// loadSent reads the memory of what was sent to Slurm. No memory is the zero value and no
// error; one that cannot be understood is an error.
func (c *Controller) loadSent() (m Memory, err error) {
	if c.Dir == nil {
		return Memory{}, nil
	}
	data, err := c.Dir.Load()
	if err != nil || data == nil {
		return Memory{}, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return Memory{}, fmt.Errorf("read memory: %w", err)
	}
	if m.Version != memoryFormat {
		return Memory{}, fmt.Errorf("read memory: version %d, want %d", m.Version, memoryFormat)
	}
	return m, nil
}
