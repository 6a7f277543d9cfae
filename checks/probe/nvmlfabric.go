package probe

import (
	"encoding/hex"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// What NVML tells of the fabric that joins GPUs: NVSwitches of the board, or the
// NVLink domain of a rack.

// Fabric is where a GPU stands in the fabric, in the numbers of nvml.h.
type Fabric struct {
	State   int    // see FabricNotSupported...
	Status  int    // an nvmlReturn_t, of a state that is completed
	Clique  uint32 // GPUs that can talk to each other
	Cluster string // UUID of the domain, in hexadecimal digits; "" if it is all zero
	Mask    uint32 // of the health; 0: nothing is told
	Summary int    // of the health, driver 570 and later; 0: not told
}

// The states: NVML_GPU_FABRIC_STATE_*.
const (
	FabricNotSupported = nvml.GPU_FABRIC_STATE_NOT_SUPPORTED
	FabricNotStarted   = nvml.GPU_FABRIC_STATE_NOT_STARTED
	FabricInProgress   = nvml.GPU_FABRIC_STATE_IN_PROGRESS
	FabricCompleted    = nvml.GPU_FABRIC_STATE_COMPLETED
)

// FabricNoResources is the status of a fabric that says it is complete and is not.
const FabricNoResources = int(nvml.ERROR_INSUFFICIENT_RESOURCES)

// fabric asks in the newest form that the library knows.
func (q query) fabric() {
	const versioned = "nvmlDeviceGetGpuFabricInfoV"
	r := unknownIsUnsupported(ask(q.s, versioned, q.who, func() (Fabric, nvml.Return) {
		f, ret := q.d.GetGpuFabricInfoV().V3()
		return Fabric{int(f.State), int(int32(f.Status)), f.CliqueId, clusterOf(f.ClusterUuid), f.HealthMask, int(f.HealthSummary)}, ret
	}))
	if !r.Known && r.Err == nil {
		r = unknownIsUnsupported(ask(q.s, versioned, q.who, func() (Fabric, nvml.Return) {
			f, ret := q.d.GetGpuFabricInfoV().V2()
			return Fabric{int(f.State), int(int32(f.Status)), f.CliqueId, clusterOf(f.ClusterUuid), f.HealthMask, 0}, ret
		}))
	}
	if !r.Known && r.Err == nil {
		r = ask(q.s, "nvmlDeviceGetGpuFabricInfo", q.who, func() (Fabric, nvml.Return) {
			f, ret := q.d.GetGpuFabricInfo() // all that drivers before 545 have
			return Fabric{int(f.State), int(int32(f.Status)), f.CliqueId, clusterOf(f.ClusterUuid), 0, 0}, ret
		})
	}
	q.g.Fabric = r
}

func clusterOf(uuid [16]uint8) string {
	if uuid == ([16]uint8{}) {
		return ""
	}
	return hex.EncodeToString(uuid[:])
}
