// Package hostengine queries DCGM, by its library or by dcgmi.
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

// There are three ways to query DCGM: a running nv-hostengine, an engine in this process, or
// NVIDIA's program dcgmi if there is no library.

// Settings select the way to query DCGM.
type Settings struct {
	Mode    string // standalone, embedded, dcgmi, or auto: the first that is available
	Address string // of nv-hostengine: localhost:5555, or the path of its socket
}

// Address is the default address of nv-hostengine.
const Address = "localhost:5555"

// System is a set of the parts that DCGM's health watches observe: the bits of dcgmHealthSystems_t
// in dcgm_structs.h of DCGM 4.6.
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

// Entity is the subject of a DCGM message.
type Entity struct {
	Kind string // gpu, switch, link, cpu, connectx ...; "": the node
	ID   int    // DCGM's own index, which may differ from NVML's
}

// GPU is the GPU of a DCGM index.
type GPU struct {
	ID   int
	PCI  string // 0000:c1:00.0
	UUID string // GPU-...
}

// Incident is one event that a health watch has noticed.
type Incident struct {
	Entity  Entity
	System  System // 0 if unknown
	Failed  bool   // DCGM calls it a failure, not a warning
	Code    int    // DCGM_FR_...; -1 if dcgmi does not show it
	Message string
}

// Health has the events that the health watches have noticed.
type Health struct {
	Incidents []Incident
	// Fresh means that the engine did not watch the GPUs for all of these systems before: its new
	// watches know the present, not the past.
	Fresh bool
}

// DiagRequest describes a diagnostic to run.
type DiagRequest struct {
	Level   int           // 1 to 4
	GPUs    []int         // DCGM's indexes
	Exclude []string      // tests to exclude, by DCGM's names
	Timeout time.Duration // after that DCGM itself ends the diagnostic
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
	Code    int // DCGM_FR_...; -1 if unknown
	Message string
}

// Result is the result of one test of a diagnostic for one entity.
type Result struct {
	Test   string // software, pcie, memory ...
	Entity Entity
	Status string // pass, skip, warn, fail, not run, or DCGM's own text
	Notes  []Note
}

// Engine is a way to query DCGM. Its calls may hang as long as DCGM does; those of nv-hostengine
// return [HungError] after a while instead.
type Engine interface {
	// Via names the engine for a person: "nv-hostengine at localhost:5555".
	Via() string
	// GPUs lists the GPUs that DCGM knows, by its indexes.
	GPUs(ctx context.Context) ([]GPU, error)
	// Health returns the events of the watches of some systems; with an error those that it could read, or nil.
	Health(ctx context.Context, systems System) (*Health, error)
	// Diag runs a diagnostic. When the context ends it makes DCGM stop the diagnostic.
	Diag(ctx context.Context, r DiagRequest) ([]Result, error)
	// Close ends the connection, or the engine in this process.
	Close()
}

// ErrNoEngine means that no nv-hostengine listens at the address.
var ErrNoEngine = errors.New("no process listens")

// ErrRunning means that another user's diagnostic is in progress.
var ErrRunning = errors.New("another diagnostic is running")

// ErrTooOld means that the library or engine is too old for the request.
var ErrTooOld = errors.New("DCGM is older than 4.2")

// HungError means that nv-hostengine did not answer.
type HungError struct {
	Doing string        // the call: "dcgmHealthCheck"
	For   time.Duration // how long the caller waited
}

func (e *HungError) Error() string {
	return fmt.Sprintf("%s: no answer within %v", e.Doing, e.For)
}

// Error is the error of a call of DCGM, a dcgmReturn_t.
type Error struct {
	Call string // dcgmHealthCheck
	Code int    // -11; 0 if unknown
	Text string // Timeout
}

func (e *Error) Error() string {
	if e.Code == 0 {
		return fmt.Sprintf("%s: %s", e.Call, e.Text)
	}
	return fmt.Sprintf("%s: %s (DCGM error %d)", e.Call, e.Text, e.Code)
}

// These are the codes of dcgmReturn_t that the program distinguishes: dcgm_structs.h of DCGM 4.6.
const (
	dcgmTimeout         = -11
	dcgmVersionMismatch = -12
	dcgmAlreadyRunning  = -39
)

// Is makes codes match the errors of this package.
func (e *Error) Is(target error) bool {
	return e.Code == dcgmVersionMismatch && target == ErrTooOld || e.Code == dcgmAlreadyRunning && target == ErrRunning
}

// Set makes an engine, or an error, the answer of [Connect] in a test.
func Set(h *probe.Host, e Engine, err error) { probe.Remember(h, "dcgm", e, err) }

// Connect finds a way to query DCGM. Close it after use. It may hang or end the process: call it
// only in the worker of the dcgm lane. It calls doing before every call.
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
		return findDCGMI(h, s, err, doing)
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

// dcgmKnock bounds the wait until nv-hostengine accepts a connection; it is on this node, or near
// it.
const dcgmKnock = 2 * time.Second

// knock tests whether a process listens at an address of nv-hostengine, since the library would
// wait longer to connect.
func knock(ctx context.Context, address string) error {
	network, target := splitAddress(address)
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

// splitAddress splits an address for package net: a path, with or without unix://, is a socket; the
// default port is 5555.
func splitAddress(address string) (network, target string) {
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

// HostEngine connects to nv-hostengine and returns the number of GPUs that it manages. Call it only
// in the worker of the dcgm lane.
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
