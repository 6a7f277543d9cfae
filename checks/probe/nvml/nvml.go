// Package nvml reads GPUs by NVIDIA's management library.
package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Reading is one value of NVML. It has three states: the value, if Known; an error; or neither,
// which is the zero value and means "not supported by this GPU or driver". A value of several parts can
// have both: the parts that were read, and the error of another one.
type Reading[T any] struct {
	Value T
	Known bool
	Err   error
}

// Known returns the reading of a value.
func Known[T any](v T) Reading[T] { return Reading[T]{Value: v, Known: true} }

// Failed returns the reading of a value that could not be read.
func Failed[T any](err error) Reading[T] { return Reading[T]{Err: err} }

// MarshalJSON encodes the value, null, or an object with the error.
func (r Reading[T]) MarshalJSON() ([]byte, error) {
	switch {
	case r.Known:
		return json.Marshal(r.Value)
	case r.Err != nil:
		return json.Marshal(map[string]string{"error": r.Err.Error()})
	}
	return []byte("null"), nil
}

// Group is a set of NVML's values of each GPU. A run reads the groups that its checks need, each
// once.
type Group uint

// These are the groups. Each includes the identity of the GPU.
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
	GroupMemory // which GroupProcesses includes
	GroupBoard
	groupEnd

	AllGroups = groupEnd - 1
)

// Snapshot has NVML's values of the node, read once in a run.
type Snapshot struct {
	Taken   time.Time       // time of the first call
	Library Reading[string] // version of the library: 570.124.06, without NVML's prefix 12.
	Driver  Reading[string] // version of the driver: 570.124.06
	CC      Reading[bool]   // whether confidential computing is on, for the whole node
	GPUs    []GPU           // by PCI address, in NVML's order
	Drained []string        `json:",omitempty"` // PCI addresses that nvidia-smi drain has set aside: NVML shows no GPU there

	Settable bool `json:"-"` // a snapshot from Set accepts changes
}

// GPU has NVML's values of one GPU.
type GPU struct {
	Index int   // in NVML, by PCI address; not the minor number of /dev/nvidiaN
	Err   error // why NVML has no handle for it; no other value is known then

	NameErr error `json:"-"` // why NVML does not return its name or UUID; the driver's files may have the UUID

	PCI     string          // 0000:c1:00.0; "" if unknown
	Name    Reading[string] // NVIDIA H200
	UUID    Reading[string] // GPU-...
	Serial  Reading[string] // as printed on the board
	Minor   Reading[int]    // the N of /dev/nvidiaN
	VBIOS   Reading[string]
	Inforom Reading[string] // version of the image: G520.0200.00.05
	VGPU    Reading[bool]   // a part of a board that a hypervisor assigns to this guest (NVIDIA vGPU)

	PartNumber Reading[string] // of the board: 692-2G520-0200-000

	InforomValid Reading[bool] // the checksums of the InfoROM are correct

	Recovery    Recovery
	ECC         ECC
	Rows        Rows
	Modes       Modes
	Temperature Temperature
	Power       Power
	Clocks      Clocks
	Throttle    Throttle
	Link        Link
	NVLinks     Reading[[]bool] // whether each NVLink is up or sleeps, by its number

	NVLinksUnread []bool `json:"-"` // the NVLinks whose state could not be read; nil: none

	NVLink       NVLink
	NVLinkErrors NVLinkErrors
	Fabric       Reading[Fabric]
	MIG          Reading[[]string] // UUIDs of its MIG devices
	Processes    Reading[[]GPUProcess]
	Memory       Reading[GPUMemory]
	MemoryTotal  Reading[uint64] // bytes; read if Memory is not supported
	NUMA         Reading[int]    // the kernel's NUMA node of its memory: GH200, GB200
}

// Recovery is the action that the driver requests for a GPU.
type Recovery struct {
	Action Reading[int] // field 230: see RecoveryAction...
	// These are fields 226 and 227, for drivers without field 230.
	Reset, DrainReset Reading[bool]
}

// These are the recovery actions: nvmlDeviceGpuRecoveryAction_t of nvml.h, driver 590.
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

// ECC is the state of the memory's error correction, and its error counts since the driver was
// loaded (volatile) and since the board was made (aggregate).
type ECC struct {
	On, Pending Reading[bool] // pending: after the next reset
	Default     Reading[bool] // the mode at delivery of the board; read if ECC is off
	DRAM, SRAM  ECCCounts
	// These are the driver's conclusions from the counts.
	SRAMThreshold Reading[bool] // more SRAM errors than NVIDIA's field diagnostic allows
	Unrepairable  Reading[bool] // memory that can neither be remapped nor repaired
	RepairPending Reading[bool] // a channel or TPC needs a reset for its repair
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
	Banks     Reading[RemappedBanks] // drivers that remap whole banks
	// These are retired pages, before Ampere.
	RetiredSBE, RetiredDBE Reading[int]
	RetiredPending         Reading[bool]
}

// RemappedRows counts rows of memory that spare rows replace.
type RemappedRows struct {
	Corrected, Uncorrected int // by the kind of error that was the cause
	Pending                bool
	Failed                 bool
}

// RemappedBanks counts banks of memory that spare banks replace.
type RemappedBanks struct {
	Active, Inactive int
	NoSpare          int // groups of banks without a spare one
	Pending          bool
}

// RowHistogram counts banks of memory by their remaining spare rows.
type RowHistogram struct {
	Max, High, Partial, Low, None int
}

// Modes are the settings of a GPU.
type Modes struct {
	Persistence     Reading[bool]
	Compute         Reading[string] // default, exclusive, prohibited
	MIG, MIGPending Reading[bool]
}

// Temperature is in degrees Celsius. Hopper and later report margins: degrees below the limit at
// which the GPU slows down, negative above it.
type Temperature struct {
	GPU, HBM Reading[int]
	Margin   Reading[int]
	// These are the limits at which the driver and the hardware slow the GPU down.
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
	// These are the application clocks and their defaults, which are lower than the maximum on many
	// GPUs. Newer drivers have neither.
	AppGraphics, AppMemory         Reading[uint32]
	DefaultGraphics, DefaultMemory Reading[uint32]
}

// Throttle has the reasons why clocks are lower than possible: now, as the bit mask of
// nvmlClocksEventReasons, and for how many nanoseconds since the driver was loaded.
type Throttle struct {
	Now                                            Reading[uint64]
	PowerCap, Thermal, HardwareThermal, PowerBrake Reading[uint64]
}

// These are the reasons of an idle GPU, and those that indicate a fault: nvmlClocksEventReasons of
// nvml.h.
const (
	ThrottleIdle            = nvml.ClocksEventReasonGpuIdle                   // not a fault: nothing runs
	ThrottleSetting         = nvml.ClocksEventReasonApplicationsClocksSetting // not a fault: an administrator has lowered the clocks
	ThrottleHardware        = nvml.ClocksThrottleReasonHwSlowdown
	ThrottleThermal         = nvml.ClocksEventReasonSwThermalSlowdown
	ThrottleHardwareThermal = nvml.ClocksThrottleReasonHwThermalSlowdown
	ThrottlePowerBrake      = nvml.ClocksThrottleReasonHwPowerBrakeSlowdown
)

// Link is the PCIe link of a GPU.
type Link struct {
	Gen, Width       Reading[int] // now; an idle link runs at a lower generation
	MaxGen, MaxWidth Reading[int] // the maximum of GPU and slot together
	GPUMaxGen        Reading[int] // the maximum of the GPU
	Replays          Reading[int] // since the driver was loaded
	Work             Work         // read if Gen is lower than MaxGen
}

// Work shows whether a GPU is busy.
type Work struct {
	Busy        Reading[int]    // percent of the last sampling period while a kernel ran
	State       Reading[int]    // P-state: 0 is the fastest
	Draw, Limit Reading[uint32] // milliwatts
}

// GPUProcess is a process that has a context on a GPU.
type GPUProcess struct {
	PID    int
	Memory uint64 // bytes; 0 if unknown
}

// GPUMemory is in bytes. Used does not include the driver's own memory; drivers before 510 do not
// report that separately, and have no value here.
type GPUMemory struct {
	Total, Free, Used uint64
}

// These are the errors of NVML that mean a state of a GPU; errors.Is matches them.
var (
	ErrGPULost        = errors.New("the GPU is lost")
	ErrResetRequired  = errors.New("the GPU requires a reset")
	ErrNoPowerCable   = errors.New("the power cables of the GPU are not attached")
	ErrNoInterrupts   = errors.New("no interrupts arrive from the GPU")
	ErrInforomCorrupt = errors.New("the InfoROM is corrupt")
	ErrDriverMismatch = errors.New("library and driver are of different versions")
	ErrDriverNotThere = errors.New("the driver is not loaded")
	ErrUnloaded       = fmt.Errorf("%w: its module was unloaded", ErrDriverNotThere) // see Host.DriverUnloaded
	ErrNotNow         = errors.New("in use or not ready, as during a reset")         // a later call may succeed; also without memory
	ErrNoGPU          = errors.New("no GPU was found")
	ErrNotPermitted   = errors.New("no permission")
)

// Error is the error of a call of NVML.
type Error struct {
	Call string // nvmlDeviceGetSerial(3)
	Code int    // nvmlReturn_t
}

// state returns the error for a code that means a state of the GPU, nil for all others.
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
	case nvml.ERROR_IN_USE, nvml.ERROR_NOT_READY, nvml.ERROR_MEMORY, nvml.ERROR_INSUFFICIENT_RESOURCES:
		return ErrNotNow
	}
	return nil
}

// Is makes errors.Is match that state.
func (e *Error) Is(target error) bool { return target == e.state() && target != nil }

// Error names the call and the error. It does not call the library, which may not be loaded.
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
	case nvml.ERROR_MEMORY, nvml.ERROR_INSUFFICIENT_RESOURCES:
		text = "the driver lacks memory or other resources of the node"
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
