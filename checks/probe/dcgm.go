package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"
)

// DCGM's engine is asked in one of three ways: a running nv-hostengine, an engine
// in this process, or NVIDIA's own program dcgmi where there is no library.

// DCGMSettings say how DCGM is asked.
type DCGMSettings struct {
	Mode    string // standalone, embedded, dcgmi, or auto: the first of them that there is
	Address string // of nv-hostengine: localhost:5555, or the path of its socket
}

// DCGMAddress is where nv-hostengine listens unless told otherwise.
const DCGMAddress = "localhost:5555"

// DCGMSystem is a set of the things that DCGM's health watches look at: the bits
// of dcgmHealthSystems_t in dcgm_structs.h of DCGM 4.6.
type DCGMSystem uint32

// The systems.
const (
	DCGMPCIe DCGMSystem = 1 << iota
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

// DCGMEntity is what DCGM says something of.
type DCGMEntity struct {
	Kind string // gpu, switch, link, cpu, connectx ...; "": the node
	ID   int    // DCGM's own number, which need not be NVML's
}

// DCGMGPU tells which GPU bears a number of DCGM's.
type DCGMGPU struct {
	ID   int
	PCI  string // 0000:c1:00.0
	UUID string // GPU-...
}

// DCGMIncident is one thing that a health watch has noticed.
type DCGMIncident struct {
	Entity  DCGMEntity
	System  DCGMSystem // 0 if it is not known which
	Failed  bool       // DCGM calls it a failure, not a warning
	Code    int        // DCGM_FR_...; -1: dcgmi does not tell
	Message string
}

// DCGMHealth is what the health watches have noticed.
type DCGMHealth struct {
	Incidents []DCGMIncident
	// Fresh says that the engine did not watch the GPUs for all of these systems, and
	// was given watches for the moment: it knows what is now, and not what has been.
	Fresh bool
}

// DCGMDiagRequest is a diagnostic to be run.
type DCGMDiagRequest struct {
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

// DCGMNote is an error that a test has recorded.
type DCGMNote struct {
	Code    int // DCGM_FR_...; -1: not told
	Message string
}

// DCGMResult is what one test of a diagnostic came to on one thing.
type DCGMResult struct {
	Test   string // software, pcie, memory ...
	Entity DCGMEntity
	Status string // pass, skip, warn, fail, not run, or what DCGM said instead
	Notes  []DCGMNote
}

// DCGMEngine is a way to ask DCGM. Its calls may hang as long as DCGM does; those
// of nv-hostengine give [DCGMHungError] after a while instead.
type DCGMEngine interface {
	// Via tells a person who is asked: "nv-hostengine at localhost:5555".
	Via() string
	// GPUs lists the GPUs that DCGM knows, by its numbers.
	GPUs(ctx context.Context) ([]DCGMGPU, error)
	// Health gives what the watches of some systems have noticed.
	Health(ctx context.Context, systems DCGMSystem) (*DCGMHealth, error)
	// Diag runs a diagnostic. When the context ends DCGM is told to stop it.
	Diag(ctx context.Context, r DCGMDiagRequest) ([]DCGMResult, error)
	// Close ends the connection, or the engine in this process.
	Close()
}

// ErrNoEngine says that no nv-hostengine listens at the address.
var ErrNoEngine = errors.New("nobody listens")

// ErrDCGMRunning says that somebody else's diagnostic is under way.
var ErrDCGMRunning = errors.New("another diagnostic is running")

// ErrDCGMTooOld says that the library or engine is older than what is asked of it.
var ErrDCGMTooOld = errors.New("DCGM is older than 4.2")

// DCGMHungError says that nv-hostengine did not answer.
type DCGMHungError struct {
	Doing string        // what it was asked: "dcgmHealthCheck"
	For   time.Duration // how long was waited
}

func (e *DCGMHungError) Error() string {
	return fmt.Sprintf("%s: no answer within %v", e.Doing, e.For)
}

// DCGMError is what a call of DCGM has returned, a dcgmReturn_t.
type DCGMError struct {
	Call string // dcgmHealthCheck
	Code int    // -11; 0 if it was not told
	Text string // Timeout
}

func (e *DCGMError) Error() string {
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
func (e *DCGMError) Is(target error) bool {
	return e.Code == dcgmVersionMismatch && target == ErrDCGMTooOld || e.Code == dcgmAlreadyRunning && target == ErrDCGMRunning
}

// SetDCGM makes an engine, or an error, the answer of [Host.DCGM]: that of a test.
func (h *Host) SetDCGM(e DCGMEngine, err error) { remember(h, "dcgm", e, err) }

// DCGM finds a way to ask DCGM. Close it after use. It may hang or end the process:
// call it only in the worker of the dcgm lane. doing hears of every call before it
// is made.
func (h *Host) DCGM(ctx context.Context, s DCGMSettings, doing func(string)) (DCGMEngine, error) {
	if c, ok := remembered[DCGMEngine](h, "dcgm"); ok {
		return c.value, c.err
	}
	if doing == nil {
		doing = func(string) {}
	}
	lib, err := h.loadDCGM(doing)
	switch {
	case errors.Is(err, ErrNoLibrary) && s.Mode != "embedded", s.Mode == "dcgmi":
		return h.dcgmi(s, err, doing)
	case err != nil:
		return nil, err
	}
	if s.Mode == "embedded" {
		return lib.embedded()
	}
	e, err := lib.standalone(ctx, cmp.Or(s.Address, DCGMAddress))
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
		return &DCGMHungError{Doing: "connect to " + address, For: dcgmKnock}
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
func (h *Host) HostEngine() (gpus int, err error) {
	ctx := context.Background()
	e, err := h.DCGM(ctx, DCGMSettings{Mode: "standalone"}, nil)
	if err != nil {
		return 0, err
	}
	defer e.Close()
	list, err := e.GPUs(ctx)
	return len(list), err
}
