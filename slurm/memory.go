package slurm

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Reported is the last state that nhc-gpu reported to Slurm, or last read there.
type Reported string

// The values of Reported. Only with ReportedOK can a healthy run make no
// call.
const (
	ReportedUnknown    Reported = ""           // unknown: ask Slurm
	ReportedOK         Reported = "ok"         // the node was in service, and healthy
	ReportedDrained    Reported = "drained"    // drained by us, for Memory.Reason
	ReportedLeftAlone  Reported = "left-alone" // drained by another user, down, or idle in maintenance
	ReportedMaintained Reported = "maintained" // in service, in a reservation for maintenance
)

// memoryFormat is the version of the file. Other versions are not read.
const memoryFormat = 1

// Memory is the data of a node that is stored between runs.
type Memory struct {
	Version  int      `json:"version"`
	BootID   string   `json:"boot_id"` // memory of another boot is ignored
	Reported Reported `json:"told"`

	// Reason is the last reason that nhc-gpu set on the node, and Fault its cause; both are empty
	// after the node was seen in service. Known means that the node had no other reason of ours.
	Reason string `json:"reason,omitempty"`
	Fault  string `json:"fault,omitempty"`
	Known  bool   `json:"known,omitempty"`

	// For is the last question to Slurm, Next the time when it is asked again if nothing
	// changes; IsHealthy was SLURM_NODE_IS_HEALTHY in the last run.
	For       string    `json:"for,omitempty"`
	Next      time.Time `json:"next,omitzero"`
	IsHealthy string    `json:"is_healthy,omitempty"`

	Refusal Refusal `json:"refusal,omitzero"`

	// Unsettled means that a write reported an error. slurmctld can carry it out even after it
	// has answered a later question (a stopped slurmctld processes its queue in any order), so
	// one more healthy answer is needed.
	Unsettled bool `json:"unsettled,omitempty"`

	Pending Pending `json:"pending,omitzero"`

	// Comment is the node's comment in Slurm that nhc-gpu wrote about a held drain.
	Comment string `json:"comment,omitempty"`

	// Observed is the memory of the runs with [Controller.Observe] since the last one without.
	Observed *Memory `json:"observed,omitempty"`

	// Pretended is the last change that such a run would have sent.
	Pretended Pretended `json:"pretended,omitzero"`

	// Marks are the causes of the node's drain, see [Mark].
	Marks []Mark `json:"marks,omitempty"`

	// Lost is why an earlier memory of this boot is unknown, "" if there is none or it was read. Then no reason
	// counts as ours and a healthy run resumes nothing, until the node is seen in service or with another
	// owner.
	Lost string `json:"lost,omitempty"`
}

// Pending is a drain that could not be delivered. Without message and fault there is none.
type Pending struct {
	Message string    `json:"message"`           // message of the verdict
	Since   time.Time `json:"since"`             // UTC, whole seconds
	Refused bool      `json:"refused,omitempty"` // see [NodeInfo.Refused]
	Fault   string    `json:"fault,omitempty"`   // the fault of the message

	Held      string `json:"held,omitempty"`      // why the guard holds it, "" if it does not
	Reported  bool   `json:"told,omitempty"`      // the hold was reported
	Again     bool   `json:"again,omitempty"`     // the log or syslog did not take that: report it after the next count, too
	Counted   bool   `json:"counted,omitempty"`   // it was reported with numbers
	Released  bool   `json:"released,omitempty"`  // a person has released it: the guard permits it
	Uncounted bool   `json:"uncounted,omitempty"` // slurmctld did not answer the guard in time
}

// Pretended is a change of a node that was decided and not sent. The zero value means none.
type Pretended struct {
	Action Action `json:"action,omitempty"`
	Reason string `json:"reason,omitempty"` // Drain, Renew: the reason to set; Resume: the node's reason then
}

// add returns the result of a further decision about the node.
func (p Pretended) add(d Decision, node NodeInfo) Pretended {
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
	inService := node.State.Class == InService && !node.State.DrainFlag
	switch {
	case m.Pretended.Action == Drain && inService:
		node.State, node.Reason, node.Author, node.Foreign = ParseState("IDLE+DRAIN"), m.Pretended.Reason, "", false
	case m.Pretended.Action == Renew && node.owner() == ours && !inService:
		node.Reason = m.Pretended.Reason
	case m.Pretended.Action == Resume && node.Reason == m.Pretended.Reason && !inService:
		node.State, node.Reason, node.Author = ParseState("IDLE"), "", ""
	default:
		m.Pretended = Pretended{}
	}
	return node
}

// noteLeft records a node that was read and not changed.
func (m *Memory) noteLeft(v Verdict, node NodeInfo) {
	m.Pending = Pending{}
	inService := node.State.Class == InService
	held := node.State.Class == Drained || node.State.DrainFlag
	if m.isTaken(node) {
		m.Lost = ""
	}
	switch {
	case inService && !node.State.DrainFlag && node.State.maintained(): // our drain of before can come back
	case inService && !node.State.DrainFlag:
		m.Reason, m.Fault, m.Known = "", "", !m.Unsettled
	case held && node.owner() == ours:
		if !m.wrote(node.Reason) {
			m.Reason, m.Fault = node.Reason, ""
		}
		if sameReason(node.Reason, Reason(v.Message)) {
			m.Fault = v.fault()
		}
		m.Known = !m.Unsettled || withoutAdditions(node.Reason) == Reason(v.Message)
	case held && !m.Known && (node.State.DrainFlag || !node.State.maintained()):
		m.Reason, m.Fault, m.Known = "", "", !m.Unsettled
	}
	switch {
	case v.Healthy && inService && m.Unsettled:
		m.Reported, m.Unsettled = ReportedUnknown, false // ask once more
	case inService && !node.State.DrainFlag && node.State.maintained():
		m.Reported = ReportedMaintained
	case v.Healthy && inService && !node.State.DrainFlag && node.State.Base != "boot":
		m.Reported = ReportedOK
	case inService || node.State.Class == Unknown:
		m.Reported = ReportedUnknown // a reboot can end in a drain, an unknown state in any state
	case held && node.owner() == ours:
		m.Reported = ReportedDrained
	default:
		m.Reported = ReportedLeftAlone
	}
}

// noteDone records a decision that was carried out, for a fault. After a Resume, Slurm is asked once
// more, to see the node in service.
func (m *Memory) noteDone(d Decision, fault string) {
	m.Pending, m.Known, m.Lost = Pending{}, !m.Unsettled, ""
	m.Reported, m.Reason, m.Fault = ReportedUnknown, "", ""
	if d.Action != Resume {
		m.Reported, m.Reason, m.Fault = ReportedDrained, d.Reason, fault
	}
}

// isForeign reports that a reason is not ours: it is that of a sweep, or nhc-gpu wrote another one. After a
// write that reported an error the latter is unknown.
func (m *Memory) isForeign(reason string) bool {
	return m.Lost != "" || m.Known && !m.wrote(reason) || BySweep(reason)
}

// isSettled reports whether an unchanged verdict needs no call to Slurm for a time.
func (m *Memory) isSettled() bool {
	return m.Reported == ReportedDrained || m.Reported == ReportedLeftAlone || m.Reported == ReportedMaintained
}

// isMarked reports whether a reason is that of a mark.
func isMarked(marks []Mark, reason string) bool {
	return slices.ContainsFunc(marks, func(k Mark) bool { return k.Message != "" && withoutAdditions(reason) == Reason(k.Message) })
}

// leavesAlone reports that a verdict does not change the drain with a reason. What a sweep has drained is
// left to sweeps, because the checks of a node do not test the network between nodes.
func (c *Controller) leavesAlone(m *Memory, reason string, v Verdict) bool {
	if c.Remote {
		return v.Healthy && !BySweep(reason)
	}
	return m.isForeign(reason)
}

// wrote reports whether nhc-gpu wrote a reason last, to the letter, with whatever addition. A person who extends
// our reason has taken over the drain.
func (m *Memory) wrote(reason string) bool {
	return withoutAdditions(reason) == withoutAdditions(m.Reason)
}

// keep stores a drain that could not be delivered, with the time of the first try. It cuts the
// message to the length of a reason.
func (m *Memory) keep(v Verdict, now time.Time) {
	message := cut(printable(v.Message), MaxReason)
	if m.Pending.Message != message || m.Pending.Since.IsZero() {
		m.Pending.Message, m.Pending.Since = message, now.UTC().Truncate(time.Second)
	}
	if m.Pending.Fault != v.fault() {
		m.Pending = Pending{Message: m.Pending.Message, Since: m.Pending.Since, Refused: m.Pending.Refused}
	}
	m.Pending.Fault = v.fault()
	m.Pending.Refused = m.Pending.Refused || v.Refused
}

// recall returns the memory of this boot, the zero value if there is none. With an error the memory is lost.
func (c *Controller) recall() (Memory, error) {
	m, err := c.load()
	switch {
	case err != nil:
		return Memory{Lost: printable(err.Error())}, err
	case m.BootID != c.BootID || c.BootID == "":
		return Memory{}, nil
	}
	return m, nil
}

// remember stores after, if it differs from before. Without the lock, or if another run has stored
// something in the meantime, the outcome of neither run can be trusted, and Slurm is asked next
// time. No fault of the other run is lost.
//
// A lost memory stays where it is while there is nothing to add: the next run, or another version of nhc-gpu,
// may be able to read it.
func (c *Controller) remember(before, after Memory, locked bool) error {
	if after.Lost != "" && before.Version == 0 && after.Pending == (Pending{}) && len(after.Marks) == 0 {
		return nil
	}
	if now, err := c.recall(); !locked || (err == nil && !reflect.DeepEqual(now, before)) {
		after.doubt()
		after.takeOver(now, before)
	}
	if reflect.DeepEqual(after, before) {
		return nil
	}
	err := c.save(after)
	if err != nil && after.Reported != ReportedOK { // the old memory would hide a drain or its cause: a full file system may have room for this
		_ = c.save(Memory{Lost: printable(err.Error())})
	}
	return err
}

// foresee stores the memory of a run that ends in the middle, before a decision is sent: the drain of a failing
// verdict may still have to be delivered, and Slurm must be asked. An error stops no drain.
func (c *Controller) foresee(v Verdict, m Memory) {
	if c.Observe || c.Dir == nil {
		return
	}
	if !v.Healthy {
		m.keep(v, c.now())
		m.owe(v.Cause, true)
	}
	m.doubt()
	if c.remember(c.stored, m, c.locked) == nil {
		c.stored = asRead(m, c.BootID)
	}
}

// asRead returns a memory as the next run reads it.
func asRead(m Memory, boot string) (read Memory) {
	m.Version, m.BootID, m.Observed = memoryFormat, boot, nil
	if data, err := json.Marshal(m); err != nil || read.parse(data) != nil {
		return m
	}
	return read
}

// parse reads the JSON of a memory. A pending drain without message and fault is none.
func (m *Memory) parse(data []byte) error {
	if err := json.Unmarshal(data, m); err != nil {
		return err
	}
	if m.Pending.Message == "" && m.Pending.Fault == "" {
		m.Pending = Pending{}
	}
	return nil
}

// takeOver adds the faults that another run has found, or found again, since before. For the same fault it
// adds that its hold was reported, or that a person has released it.
func (m *Memory) takeOver(now, before Memory) {
	known := before.Pending
	known.Reported, known.Again, known.Counted = now.Pending.Reported, now.Pending.Again, now.Pending.Counted // a report is no news of a fault
	found := now.Pending != known
	for _, k := range now.Marks {
		same := func(o Mark) bool { return o.Cause == k.Cause && o.Fault == k.Fault }
		older := func(o Mark) bool { return same(o) && !k.Since.After(o.Since) }
		if slices.ContainsFunc(before.Marks, older) {
			continue
		}
		if found = true; !slices.ContainsFunc(m.Marks, same) {
			m.Marks = append(slices.Clone(m.Marks), k)
		}
	}
	switch p := now.Pending; {
	case m.Pending == (Pending{}) && found:
		m.Pending = p
	case m.Pending != (Pending{}) && m.Pending.Fault == p.Fault:
		if p.Reported && !before.Pending.Reported {
			m.Pending.Reported, m.Pending.Again = true, p.Again
		}
		m.Pending.Counted = m.Pending.Counted || p.Counted
		if p.Released { // a person's decision
			m.Pending.Released, m.Pending.Held = true, ""
		}
	}
}

// forget makes the next runs ask Slurm: another program has changed the node.
func (c *Controller) forget() error {
	if unlock, err := c.lock(lockWait); err == nil { // another run may write it, too
		defer unlock()
	}
	m, err := c.recall()
	if err != nil {
		return err
	}
	m.doubt()
	return c.save(m)
}

// doubt makes the next two healthy runs ask Slurm.
func (m *Memory) doubt() { m.Reported, m.Unsettled, m.Known = ReportedUnknown, true, false }

func (c *Controller) save(m Memory) error {
	if c.Dir == nil {
		return nil
	}
	m.Version, m.BootID, m.Observed = memoryFormat, c.BootID, nil
	if c.Observe {
		sent, err := c.loadSent()
		if err != nil || sent.BootID != c.BootID {
			sent = Memory{Version: memoryFormat, BootID: c.BootID, Lost: m.Lost}
		}
		sent.Reported, sent.Pending, sent.Next, sent.Observed = ReportedUnknown, Pending{}, time.Time{}, new(m) // all of it may be outdated by then
		m = sent
	}
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("write memory: %w", err)
	}
	return c.Dir.Save(append(b, '\n'))
}

// BootID returns the kernel's ID of this boot, empty if it is unknown (no memory is valid
// then). Source: /proc/sys/kernel/random/boot_id.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id") //nolint:forbidigo // the boot id
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// StateDir stores a node's memory and its lock between runs, in a directory on a local file system
// that a reboot can empty: /run. Its methods return in a limited time. A nil StateDir stores nothing
// and locks nothing.
type StateDir interface {
	// Load returns the last saved data, nil if there is none.
	Load() ([]byte, error)
	// Save replaces the data atomically: a reader finds the old or the new data, also
	// after a run that was killed.
	Save(data []byte) error
	// Lock takes the lock on the memory. It waits for another run no longer than wait, then it
	// returns [ErrBusy]; any other error means that locking is impossible. The lock of a
	// process that dies is released.
	Lock(wait time.Duration) (unlock func(), err error)
}

func (c *Controller) lock(wait time.Duration) (unlock func(), err error) {
	if c.Dir == nil {
		return func() {}, nil
	}
	return c.Dir.Lock(wait)
}

// load reads the memory; with [Controller.Observe], the memory of such runs.
func (c *Controller) load() (Memory, error) {
	m, err := c.loadSent()
	if err == nil && c.Observe && m.Observed != nil {
		return *m.Observed, nil // the first observing run starts from the state sent to Slurm
	}
	return m, err
}

// loadSent reads the memory of the runs without Observe. It returns the zero value if there is
// none, and an error if it cannot be parsed.
func (c *Controller) loadSent() (m Memory, err error) {
	if c.Dir == nil {
		return Memory{}, nil
	}
	data, err := c.Dir.Load()
	if err != nil || data == nil {
		return Memory{}, err
	}
	if err := m.parse(data); err != nil {
		return Memory{}, fmt.Errorf("read memory: %w", err)
	}
	if m.Version != memoryFormat && (m.BootID == "" || m.BootID == c.BootID) {
		return Memory{}, fmt.Errorf("read memory: version %d, want %d", m.Version, memoryFormat)
	}
	return m, nil
}
