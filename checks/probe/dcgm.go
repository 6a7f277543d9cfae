package probe

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"
)

// dcgmAddress is where nv-hostengine listens unless told otherwise.
const dcgmAddress = "localhost:5555"

// HostEngine connects to DCGM's host engine and tells how many GPUs it manages.
// It may hang as long as the engine does: call it only in the worker of the
// dcgm lane.
func (h *Host) HostEngine() (gpus int, err error) {
	cleanup, err := dcgm.Init(dcgm.Standalone, dcgmAddress, "0")
	if err != nil {
		if strings.HasSuffix(err.Error(), "not found") {
			return 0, fmt.Errorf("load libdcgm.so.4: %w", ErrNoLibrary)
		}
		return 0, fmt.Errorf("connect to nv-hostengine at %s: %w", dcgmAddress, err)
	}
	defer cleanup()
	n, err := dcgm.GetAllDeviceCount()
	if err != nil {
		return 0, fmt.Errorf("ask nv-hostengine for its GPUs: %w", err)
	}
	return int(n), nil
}
