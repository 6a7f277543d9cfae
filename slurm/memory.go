package slurm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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
	Reason  string `json:"reason,omitempty"` // of ToldDrained

	// Unsettled says that a write reported an error: slurmctld may carry it out
	// even after it has answered a later question (a stopped slurmctld works
	// off its queue in no order), so the next healthy answer is not the last.
	Unsettled bool `json:"unsettled,omitempty"`

	Pending Pending `json:"pending,omitzero"`

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
}

// tell notes a node that was read and left as it is.
func (m *Memory) tell(v Verdict, node NodeInfo) {
	m.Pending, m.Reason = Pending{}, ""
	switch inService := node.State.Class == InService; {
	case v.Healthy && inService && m.Unsettled:
		m.Told, m.Unsettled = ToldUnknown, false // once more
	case v.Healthy && inService && !node.State.Held && node.State.Base != "boot":
		m.Told = ToldOK
	case inService || node.State.Class == Unknown:
		m.Told = ToldUnknown // a reboot may end in a drain; an unknown state in any
	case !v.Healthy && sameReason(node.Reason, Reason(v.Message)):
		m.Told, m.Reason = ToldDrained, Reason(v.Message)
	default:
		m.Told = ToldLeftAlone
	}
}

// told notes a decision that was carried out. After a Resume Slurm is asked
// once more, to see the node back in service.
func (m *Memory) told(d Decision) {
	m.Pending, m.Reason, m.Told = Pending{}, "", ToldUnknown
	if d.Action != Resume {
		m.Told, m.Reason = ToldDrained, d.Reason
	}
}

// keep notes a drain that could not be delivered, with the time of the first
// try. No more of the message is kept than a reason holds.
func (m *Memory) keep(v Verdict, now time.Time) {
	message := cut(printable(v.Message), MaxReason)
	if m.Pending.Message != message || m.Pending.Since.IsZero() {
		m.Pending.Message, m.Pending.Since = message, now.UTC().Truncate(time.Second)
	}
	m.Pending.Refused = m.Pending.Refused || v.Refused
}

// recall reads the memory of this boot; none is the zero value.
func (c *Controller) recall() (Memory, error) {
	m, err := c.Dir.Load()
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
func (m *Memory) doubt() { m.Told, m.Reason, m.Unsettled = ToldUnknown, "", true }

func (c *Controller) save(m Memory) error {
	m.Version, m.BootID = memoryFormat, c.BootID
	return c.Dir.Save(m)
}

// BootID is the kernel's name for this boot of the host, empty if it does not
// say (no memory is valid then). Source: /proc/sys/kernel/random/boot_id.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// StateDir is the directory that holds a node's memory and its locks. It is on
// a local file system that a reboot may empty: /run. A nil StateDir remembers
// nothing and locks nothing.
type StateDir struct {
	path string
}

// OpenStateDir makes the directory, and those above it, if need be (mode 0700).
// One that somebody else owns or may write to is refused: its files decide
// whether a node stays in service.
func OpenStateDir(path string) (*StateDir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make state directory: %w", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, fmt.Errorf("open state directory: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("open state directory %s: not a directory", path)
	}
	if err := mine(info); err != nil {
		return nil, fmt.Errorf("open state directory %s: %w", path, err)
	}
	return &StateDir{path: path}, nil
}

// mine refuses what another user could have put there.
func mine(info fs.FileInfo) error {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("owned by user %d", st.Uid)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("writable by others (mode %04o)", info.Mode().Perm())
	}
	return nil
}

const (
	memoryFile = "slurm.json"
	memoryMost = 64 << 10 // bytes; ours are below 4 KiB
)

// open opens a file of the directory: never through a link, and without
// waiting for the other end should it be a pipe.
func (d *StateDir) open(name string, how int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(d.path, name), how|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a plain file", f.Name())
	}
	if err == nil {
		err = mine(info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Load reads the memory. No file is no memory, and no error; a file that is not
// ours, or not readable as such, is an error, with the zero value.
func (d *StateDir) Load() (Memory, error) {
	if d == nil {
		return Memory{}, nil
	}
	f, err := d.open(memoryFile, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return Memory{}, nil
	}
	if err != nil {
		return Memory{}, fmt.Errorf("read memory: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, memoryMost))
	if err != nil {
		return Memory{}, fmt.Errorf("read memory: %w", err)
	}
	var m Memory
	if err := json.Unmarshal(b, &m); err != nil {
		return Memory{}, fmt.Errorf("read memory %s: %w", f.Name(), err)
	}
	if m.Version != memoryFormat {
		return Memory{}, fmt.Errorf("read memory %s: version %d, want %d", f.Name(), m.Version, memoryFormat)
	}
	return m, nil
}

// Save replaces the memory in one step: a reader, or a run killed half-way,
// finds the old one or the new one.
func (d *StateDir) Save(m Memory) error {
	if d == nil {
		return nil
	}
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("write memory: %w", err)
	}
	name := fmt.Sprintf("%s.%d", memoryFile, os.Getpid())
	f, err := d.open(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return fmt.Errorf("write memory: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(d.path, memoryFile))
	}
	if err != nil {
		os.Remove(f.Name())
		return fmt.Errorf("write memory: %w", err)
	}
	return nil
}
