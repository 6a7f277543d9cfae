package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Corpse is a process that no signal could end, left behind by a run.
type Corpse struct {
	PID   int         `json:"pid"`
	Start uint64      `json:"start"` // clock ticks since boot when it was started
	Lane  checks.Lane `json:"lane"`
	Step  string      `json:"step"`  // the check line it was running
	Doing string      `json:"doing"` // the call it never came back from
	State string      `json:"state"`
	Wchan string      `json:"wchan"`
	Since time.Time   `json:"since"`
}

// Hung describes a corpse as the hang that it still is.
func (c Corpse) Hung() *checks.Hung {
	return &checks.Hung{PID: c.PID, State: c.State, Wchan: c.Wchan, Doing: c.Doing, Stuck: true, For: time.Since(c.Since)}
}

// Ledger is the list of corpses, kept in a file between runs, so that later
// runs report a hang at once and add no further process to it. A ledger
// without a directory lives for one run.
type Ledger struct {
	dir     string
	mu      sync.Mutex
	corpses []Corpse
}

const ledgerFile = "ledger.json"

// OpenLedger reads the ledger in dir and drops every entry whose process is
// gone. A ledger that cannot be read counts as empty; the error is one for the
// log.
func OpenLedger(dir string) (*Ledger, error) {
	l := &Ledger{dir: dir}
	if dir == "" {
		return l, nil
	}
	path := filepath.Join(dir, ledgerFile)
	data, err := readState(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return l, err
	}
	if err := json.Unmarshal(data, &l.corpses); err != nil {
		l.corpses = nil
		return l, fmt.Errorf("read %s: %w", path, err)
	}
	l.corpses = slices.DeleteFunc(l.corpses, func(c Corpse) bool { return !alive(c.PID, c.Start) })
	return l, nil
}

// Find tells which corpse stands in the way of a step: in a lane of a vendor
// library any, elsewhere one that was left by the very same line.
func (l *Ledger) Find(lane checks.Lane, step string) (Corpse, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.corpses {
		if c.Lane == lane && (lane.Vendor() || c.Step == step) && alive(c.PID, c.Start) {
			return c, true
		}
	}
	return Corpse{}, false
}

// Doing are the calls that processes of a lane have not come back from.
func (l *Ledger) Doing(lane checks.Lane) (calls []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.corpses {
		if c.Lane == lane && c.Doing != "" && alive(c.PID, c.Start) {
			calls = append(calls, c.Doing)
		}
	}
	return calls
}

// Add enters corpses and writes the ledger. Runs overlap: what another run has
// entered meanwhile is kept.
func (l *Ledger) Add(cs ...Corpse) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.corpses = append(l.corpses, cs...)
	if l.dir == "" {
		return nil
	}
	unlock := l.lock()
	defer unlock()
	others, err := OpenLedger(l.dir)
	if err == nil {
		for _, c := range others.corpses {
			if !slices.ContainsFunc(l.corpses, func(have Corpse) bool { return have.PID == c.PID && have.Start == c.Start }) {
				l.corpses = append(l.corpses, c)
			}
		}
	}
	return l.save()
}

// lockWait bounds the wait for another run that writes the ledger. Without the
// lock an entry may be lost; it is made again when that line next hangs.
const lockWait = 100 * time.Millisecond

func (l *Ledger) lock() (unlock func()) {
	path := filepath.Join(l.dir, ledgerFile+".lock")
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return func() {}
	}
	for end := time.Now().Add(lockWait); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			break
		}
	}
	return func() { _ = unix.Close(fd) }
}

// Corpses lists what is in the ledger.
func (l *Ledger) Corpses() []Corpse {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.corpses)
}

func (l *Ledger) save() error {
	if l.dir == "" {
		return nil
	}
	data, err := json.MarshalIndent(l.corpses, "", "  ")
	if err != nil {
		return fmt.Errorf("encode ledger: %w", err)
	}
	return writeState(filepath.Join(l.dir, ledgerFile), append(data, '\n'))
}

// readState reads a small state file without following a link.
func readState(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	buf := make([]byte, 1<<20)
	n, err := f.Read(buf)
	if n == 0 && err != nil {
		return nil, nil
	}
	return buf[:n], nil
}

// writeState replaces a state file by rename, readable for its owner alone.
func writeState(path string, data []byte) error {
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	fd, err := unix.Open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EEXIST) { // of a dead process with our pid
		_ = os.Remove(tmp)
		fd, err = unix.Open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), tmp)
	_, werr := f.Write(data)
	if err := errors.Join(werr, f.Close()); err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
