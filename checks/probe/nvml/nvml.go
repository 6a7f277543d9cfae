// Package nvml asks NVIDIA's management library.
package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Reading is one value that NVML was asked for. There are three states: the
// value, if Known; an error; or neither, which is "not supported by this GPU or
// driver" and the zero value.
type Reading[T any] struct {
	Value T
	Known bool
	Err   error
}

// Known is the reading of a value.
func Known[T any](v T) Reading[T] { return Reading[T]{Value: v, Known: true} }

// Failed is the reading of what could not be read.
func Failed[T any](err error) Reading[T] { return Reading[T]{Err: err} }

// MarshalJSON writes the value, null, or the error in an object of its own.
func (r Reading[T]) MarshalJSON() ([]byte, error) {
	switch {
	case r.Known:
		return json.Marshal(r.Value)
	case r.Err != nil:
		return json.Marshal(map[string]string{"error": r.Err.Error()})
	}
	return []byte("null"), nil
}

// Group is a part of what NVML tells of each GPU. A run asks for the groups that
// its checks need, each once.
type Group uint

// The groups. Who the GPU is belongs to each of them.
const (
	GroupRecovery Group = 1 << iota
	GroupECC
	GroupRows
	GroupModes
	GroupTemperature
	GroupPower
	GroupClocks
	GroupThrottle
	GroupPCIe
	GroupProcesses
	GroupInforom
	GroupNVLinks
	GroupNVLinkErrors
	GroupMIG
	GroupNVLinkSpeed
	GroupNVLinkFar
	GroupNVLinkCounts
	GroupP2P
	GroupFabric
	GroupMemory // which GroupProcesses has, too
	groupEnd

	AllGroups = groupEnd - 1
)

// Snapshot is what NVML says of the node: a snapshot, taken once a run.
type Snapshot struct {
	Taken   time.Time       // when the GPUs were first asked
	Library Reading[string] // version of the library: 570.124.06, without the 12. that NVML puts before it
	Driver  Reading[string] // version of the driver: 570.124.06
	CC      Reading[bool]   // whether confidential computing is on; for the whole node
	GPUs    []GPU           // by PCI address, as NVML counts them

	Settable bool `json:"-"` // a snapshot that was given by SetNVML takes changes
}

// GPU is what NVML tells of one GPU.
type GPU struct {
	Index int   // NVML's own, by PCI address; not the minor number of /dev/nvidiaN
	Err   error // why NVML does not let it be asked; nothing else is known then

	NameErr error `json:"-"` // why NVML does not tell its name or UUID, of which the driver's files may tell the UUID

	PCI     string          // 0000:c1:00.0; "" if NVML could not tell
	Name    Reading[string] // NVIDIA H200
	UUID    Reading[string] // GPU-...
	Serial  Reading[string] // as printed on the board
	Minor   Reading[int]    // the N of /dev/nvidiaN
	VBIOS   Reading[string]
	Inforom Reading[string] // version of the image: G520.0200.00.05
	VGPU    Reading[bool]   // a part of a board that a hypervisor gives to this guest (NVIDIA vGPU)

	InforomValid Reading[bool] // the checksums of the InfoROM are right

	Recovery    Recovery
	ECC         ECC
	Rows        Rows
	Modes       Modes
	Temperature Temperature
	Power       Power
	Clocks      Clocks
	Throttle    Throttle
	Link        Link
	NVLinks     Reading[[]bool] // whether each NVLink is up, by its number

	NVLink       NVLink
	NVLinkErrors NVLinkErrors
	Fabric       Reading[Fabric]
	MIG          Reading[[]string] // UUIDs of its MIG devices
	Processes    Reading[[]GPUProcess]
	Memory       Reading[GPUMemory]
	MemoryTotal  Reading[uint64] // bytes; read where Memory is not supported
	NUMA         Reading[int]    // the kernel's NUMA node of its memory: GH200, GB200
}

// Recovery is what the driver wants to be done to a GPU.
type Recovery struct {
	Action Reading[int] // field 230: see RecoveryAction...
	// Those that drivers have which do not know field 230: 226 and 227.
	Reset, DrainReset Reading[bool]
}

// The recovery actions: nvmlDeviceGpuRecoveryAction_t of nvml.h, driver 590.
const (
	RecoveryNone = iota
	RecoveryReset
	RecoveryReboot
	RecoveryDrainP2P
	RecoveryDrainReset
	RecoveryIMEX
	RecoveryBusReset
	RecoverySystemReboot
)

// ECC is the state of the memory's error correction, and what it has seen since
// the driver was loaded (volatile) and since the board was made (aggregate).
type ECC struct {
	On, Pending Reading[bool] // pending: from the next reset on
	Default     Reading[bool] // the mode that the board comes with; read if ECC is off
	DRAM, SRAM  ECCCounts
	// What the driver makes of the counts.
	SRAMThreshold Reading[bool] // more SRAM errors than NVIDIA's field diagnostic allows
	Unrepairable  Reading[bool] // memory that can neither be remapped nor repaired
	RepairPending Reading[bool] // a channel or TPC waits for a reset to be repaired
}

// ECCCounts counts errors of one kind of memory.
type ECCCounts struct {
	Corrected, Uncorrected                   Reading[uint64] // volatile
	CorrectedAggregate, UncorrectedAggregate Reading[uint64]
}

// Rows is the state of row remapping (Ampere and later) or of page retirement.
type Rows struct {
	Remapped  Reading[RemappedRows]
	Histogram Reading[RowHistogram]
	// Retired pages, before Ampere.
	RetiredSBE, RetiredDBE Reading[int]
	RetiredPending         Reading[bool]
}

// RemappedRows are rows of memory that spare rows stand for.
type RemappedRows struct {
	Corrected, Uncorrected int // by the kind of error that was the cause
	Pending                bool
	Failed                 bool
}

// RowHistogram counts banks of memory by the spare rows that they have left.
type RowHistogram struct {
	Max, High, Partial, Low, None int
}

// Modes are the settings of a GPU.
type Modes struct {
	Persistence     Reading[bool]
	Compute         Reading[string] // default, exclusive, prohibited
	MIG, MIGPending Reading[bool]
}

// Temperature is in degrees Celsius. Hopper and later give margins: degrees
// below the limit at which the GPU slows down, negative above it.
type Temperature struct {
	GPU, HBM Reading[int]
	Margin   Reading[int]
	// Where the driver slows the GPU down, and where the hardware does.
	MaxGPU, MaxHBM, Slowdown, Shutdown Reading[int]
	// The same for Margin: 0, -2, -8.
	MarginMax, MarginSlowdown, MarginShutdown Reading[int]
}

// Power is in milliwatts.
type Power struct {
	Draw, Limit, Default, Enforced Reading[uint32]
}

// Clocks are in MHz.
type Clocks struct {
	MaxGraphics, MaxMemory Reading[uint32]
	// application clocks, and what they are where nobody has set them, which is
	// less than the highest on many GPUs; newer drivers have neither
	AppGraphics, AppMemory         Reading[uint32]
	DefaultGraphics, DefaultMemory Reading[uint32]
}

// Throttle says why clocks are lower than they could be: now, as the bit mask of
// nvmlClocksEventReasons, and for how many nanoseconds since the driver was
// loaded.
type Throttle struct {
	Now                                            Reading[uint64]
	PowerCap, Thermal, HardwareThermal, PowerBrake Reading[uint64]
}

// The reasons of a GPU that is idle, and those that point to a fault:
// nvmlClocksEventReasons of nvml.h.
const (
	ThrottleIdle            = nvml.ClocksEventReasonGpuIdle                   // no fault: nothing runs
	ThrottleSetting         = nvml.ClocksEventReasonApplicationsClocksSetting // no fault: an administrator has lowered the clocks
	ThrottleHardware        = nvml.ClocksThrottleReasonHwSlowdown
	ThrottleThermal         = nvml.ClocksEventReasonSwThermalSlowdown
	ThrottleHardwareThermal = nvml.ClocksThrottleReasonHwThermalSlowdown
	ThrottlePowerBrake      = nvml.ClocksThrottleReasonHwPowerBrakeSlowdown
)

// Link is the PCIe link of a GPU.
type Link struct {
	Gen, Width       Reading[int] // now; an idle link runs at a lower generation
	MaxGen, MaxWidth Reading[int] // what GPU and slot can do together
	GPUMaxGen        Reading[int] // what the GPU can do
	Replays          Reading[int] // since the driver was loaded
	Work             Work         // read if Gen is lower than MaxGen
}

// Work shows whether a GPU is at work.
type Work struct {
	Busy        Reading[int]    // percent of the last sampling period in which a kernel ran
	State       Reading[int]    // P-state: 0 is the fastest
	Draw, Limit Reading[uint32] // milliwatts
}

// GPUProcess is a process that has a context on a GPU.
type GPUProcess struct {
	PID    int
	Memory uint64 // bytes; 0 if the driver does not tell
}

// GPUMemory is in bytes. What the driver keeps for itself is not in Used; drivers
// before 510 do not tell it apart, and tell nothing here.
type GPUMemory struct {
	Total, Free, Used uint64
}

// The errors of NVML that stand for a state of a GPU; errors.Is finds them.
var (
	ErrGPULost        = errors.New("the GPU is lost")
	ErrResetRequired  = errors.New("the GPU requires a reset")
	ErrNoPowerCable   = errors.New("the power cables of the GPU are not attached")
	ErrNoInterrupts   = errors.New("no interrupts arrive from the GPU")
	ErrInforomCorrupt = errors.New("the InfoROM is corrupt")
	ErrDriverMismatch = errors.New("library and driver are of different versions")
	ErrDriverNotThere = errors.New("the driver is not loaded")
	ErrUnloaded       = fmt.Errorf("%w: its module was unloaded", ErrDriverNotThere) // see Host.DriverUnloaded
	ErrNotNow         = errors.New("in use or not ready, as during a reset")         // another moment may have another answer
	ErrNoGPU          = errors.New("no GPU was found")
	ErrNotPermitted   = errors.New("no permission")
)

// Error is what a call of NVML has returned.
type Error struct {
	Call string // nvmlDeviceGetSerial(3)
	Code int    // nvmlReturn_t
}

// state is the error that a code stands for, nil for all others.
func (e *Error) state() error {
	switch nvml.Return(e.Code) {
	case nvml.ERROR_GPU_IS_LOST:
		return ErrGPULost
	case nvml.ERROR_GPU_NOT_FOUND:
		return ErrNoGPU
	case nvml.ERROR_NO_PERMISSION, nvml.ERROR_OPERATING_SYSTEM:
		return ErrNotPermitted
	case nvml.ERROR_RESET_REQUIRED:
		return ErrResetRequired
	case nvml.ERROR_INSUFFICIENT_POWER:
		return ErrNoPowerCable
	case nvml.ERROR_IRQ_ISSUE:
		return ErrNoInterrupts
	case nvml.ERROR_CORRUPTED_INFOROM:
		return ErrInforomCorrupt
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return ErrDriverMismatch
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return ErrDriverNotThere
	case nvml.ERROR_IN_USE, nvml.ERROR_NOT_READY:
		return ErrNotNow
	}
	return nil
}

// Is lets errors.Is find the state that the code stands for.
func (e *Error) Is(target error) bool { return target == e.state() && target != nil }

// Error names the call and the error, both without asking the library, which
// may not be there to be asked.
func (e *Error) Error() string {
	text := ""
	switch nvml.Return(e.Code) {
	case nvml.ERROR_OPERATING_SYSTEM:
		text = "kept from the driver by the operating system or a cgroup"
	case nvml.ERROR_TIMEOUT:
		text = "timeout"
	case nvml.ERROR_UNKNOWN:
		text = "unknown error"
	case nvml.ERROR_INVALID_ARGUMENT:
		text = "invalid argument"
	case nvml.ERROR_INSUFFICIENT_SIZE:
		text = "its list fits into no buffer"
	default:
		if s := e.state(); s != nil {
			text = s.Error()
		}
	}
	if text == "" {
		return fmt.Sprintf("%s: NVML error %d", e.Call, e.Code)
	}
	return fmt.Sprintf("%s: %s (NVML error %d)", e.Call, text, e.Code)
}
