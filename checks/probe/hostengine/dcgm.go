// Package hostengine asks DCGM, by its library or by dcgmi.
package hostengine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// DCGM's engine is asked in one of three ways: a running nv-hostengine, an engine
// in this process, or NVIDIA's own program dcgmi where there is no library.

// Settings say how DCGM is asked.
type Settings struct {
	Mode    string // standalone, embedded, dcgmi, or auto: the first of them that there is
	Address string // of nv-hostengine: localhost:5555, or the path of its socket
}

// Address is where nv-hostengine listens unless told otherwise.
const Address = "localhost:5555"

// System is a set of the things that DCGM's health watches look at: the bits
// of dcgmHealthSystems_t in dcgm_structs.h of DCGM 4.6.
type System uint32

// The systems.
const (
	DCGMPCIe System = 1 << iota
	DCGMNVLink
	DCGMPMU
	DCGMMCU
	DCGMMemory
	DCGMSM
	DCGMInfoROM
	DCGMThermal
	DCGMPower
	DCGMDriver
	DCGMSwitchNonFatal
	DCGMSwitchFatal
	DCGMConnectX
	DCGMIMEX
	dcgmSystemEnd

	DCGMAll = dcgmSystemEnd - 1
)

// Entity is what DCGM says something of.
type Entity struct {
	Kind string // gpu, switch, link, cpu, connectx ...; "": the node
	ID   int    // DCGM's own number, which need not be NVML's
}

// GPU tells which GPU bears a number of DCGM's.
type GPU struct {
	ID   int
	PCI  string // 0000:c1:00.0
	UUID string // GPU-...
}

// Incident is one thing that a health watch has noticed.
type Incident struct {
	Entity  Entity
	System  System // 0 if it is not known which
	Failed  bool   // DCGM calls it a failure, not a warning
	Code    int    // DCGM_FR_...; -1: dcgmi does not tell
	Message string
}

// Health is what the health watches have noticed.
type Health struct {
	Incidents []Incident
	// Fresh says that the engine did not watch the GPUs for all of these systems, and
	// was given watches for the moment: it knows what is now, and not what has been.
	Fresh bool
}

// DiagRequest is a diagnostic to be run.
type DiagRequest struct {
	Level   int           // 1 to 4
	GPUs    []int         // DCGM's numbers
	Exclude []string      // tests that are not to be run, by DCGM's names
	Timeout time.Duration // when DCGM itself is to end it
}

// The results of tests.
const (
	DCGMPass   = "pass"
	DCGMSkip   = "skip"
	DCGMWarn   = "warn"
	DCGMFail   = "fail"
	DCGMNotRun = "not run"
)

// Note is an error that a test has recorded.
type Note struct {
	Code    int // DCGM_FR_...; -1: not told
	Message string
}

// Result is what one test of a diagnostic came to on one thing.
type Result struct {
	Test   string // software, pcie, memory ...
	Entity Entity
	Status string // pass, skip, warn, fail, not run, or what DCGM said instead
	Notes  []Note
}

// Engine is a way to ask DCGM. Its calls may hang as long as DCGM does; those
// of nv-hostengine give [HungError] after a while instead.
type Engine interface {
	// Via tells a person who is asked: "nv-hostengine at localhost:5555".
	Via() string
	// GPUs lists the GPUs that DCGM knows, by its numbers.
	GPUs(ctx context.Context) ([]GPU, error)
	// Health gives what the watches of some systems have noticed.
	Health(ctx context.Context, systems System) (*Health, error)
	// Diag runs a diagnostic. When the context ends DCGM is told to stop it.
	Diag(ctx context.Context, r DiagRequest) ([]Result, error)
	// Close ends the connection, or the engine in this process.
	Close()
}

// ErrNoEngine says that no nv-hostengine listens at the address.
var ErrNoEngine = errors.New("nobody listens")

// ErrRunning says that somebody else's diagnostic is under way.
var ErrRunning = errors.New("another diagnostic is running")

// ErrTooOld says that the library or engine is older than what is asked of it.
var ErrTooOld = errors.New("DCGM is older than 4.2")

// HungError says that nv-hostengine did not answer.
type HungError struct {
	Doing string        // what it was asked: "dcgmHealthCheck"
	For   time.Duration // how long was waited
}

func (e *HungError) Error() string {
	return fmt.Sprintf("%s: no answer within %v", e.Doing, e.For)
}

// Error is what a call of DCGM has returned, a dcgmReturn_t.
type Error struct {
	Call string // dcgmHealthCheck
	Code int    // -11; 0 if it was not told
	Text string // Timeout
}

func (e *Error) Error() string {
	if e.Code == 0 {
		return fmt.Sprintf("%s: %s", e.Call, e.Text)
	}
	return fmt.Sprintf("%s: %s (DCGM error %d)", e.Call, e.Text, e.Code)
}

// The codes of dcgmReturn_t that are told apart: dcgm_structs.h of DCGM 4.6.
const (
	dcgmTimeout         = -11
	dcgmVersionMismatch = -12
	dcgmAlreadyRunning  = -39
)

// Is finds the states that some codes stand for.
func (e *Error) Is(target error) bool {
	return e.Code == dcgmVersionMismatch && target == ErrTooOld || e.Code == dcgmAlreadyRunning && target == ErrRunning
}

// Set makes an engine, or an error, the answer of [Connect]: that of a test.
func Set(h *probe.Host, e Engine, err error) { probe.Remember(h, "dcgm", e, err) }

// Connect finds a way to ask DCGM. Close it after use. It may hang or end the process:
// call it only in the worker of the dcgm lane. doing hears of every call before it
// is made.
func Connect(ctx context.Context, h *probe.Host, s Settings, doing func(string)) (Engine, error) {
	if c, ok := probe.Remembered[Engine](h, "dcgm"); ok {
		return c.Value, c.Err
	}
	if doing == nil {
		doing = func(string) {}
	}
	lib, err := loadDCGM(h, doing)
	switch {
	case errors.Is(err, probe.ErrNoLibrary) && s.Mode != "embedded", s.Mode == "dcgmi":
		return dcgmi(h, s, err, doing)
	case err != nil:
		return nil, err
	}
	if s.Mode == "embedded" {
		return lib.embedded()
	}
	e, err := lib.standalone(ctx, cmp.Or(s.Address, Address))
	if errors.Is(err, ErrNoEngine) && s.Mode != "standalone" {
		return lib.embedded()
	}
	return e, err
}

// dcgmKnock is how long nv-hostengine may take to accept a connection; it is on
// this node, or near it.
const dcgmKnock = 2 * time.Second

// knock tells whether somebody listens at an address of nv-hostengine, before a
// library that waits longer is asked to connect.
func knock(ctx context.Context, address string) error {
	network, target := dcgmNetwork(address)
	ctx, cancel := context.WithTimeout(ctx, dcgmKnock)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, network, target)
	switch {
	case err == nil:
		return conn.Close()
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("nv-hostengine at %s: %w", address, ErrNoEngine)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.EAGAIN): // a full queue of a socket
		return &HungError{Doing: "connect to " + address, For: dcgmKnock}
	}
	return fmt.Errorf("connect to nv-hostengine at %s: %w", address, err)
}

// dcgmNetwork splits an address into what net wants: a path, with or without
// unix://, is a socket; the port is 5555 unless it is given.
func dcgmNetwork(address string) (network, target string) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return "unix", path
	}
	if strings.HasPrefix(address, "/") {
		return "unix", address
	}
	address = strings.TrimPrefix(address, "tcp://")
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(strings.Trim(address, "[]"), "5555")
	}
	return "tcp", address
}

// HostEngine connects to nv-hostengine and tells how many GPUs it manages. Only in
// the worker of the dcgm lane.
func HostEngine(h *probe.Host) (gpus int, err error) {
	ctx := context.Background()
	e, err := Connect(ctx, h, Settings{Mode: "standalone"}, nil)
	if err != nil {
		return 0, err
	}
	defer e.Close()
	list, err := e.GPUs(ctx)
	return len(list), err
}
