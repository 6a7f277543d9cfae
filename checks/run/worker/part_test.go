package worker

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

func TestFarEnds(t *testing.T) {
	t.Parallel()
	n := &nvml.Snapshot{GPUs: []nvml.GPU{{Index: 0, PCI: "0000:10:00.0"}, {Index: 1, PCI: "0000:11:00.0"}}}
	g := &n.GPUs[0]
	if got := farEnds(n, g); got != nil {
		t.Errorf("a GPU without NVLink: %q", got)
	}
	g.NVLinks = nvml.Known([]bool{true, true, false, true, true})
	want := []string{"unknown: links 0 1 3 4", "down: links 2"}
	if diff := cmp.Diff(want, farEnds(n, g)); diff != "" {
		t.Errorf("NVML does not say where links lead (-want +got):\n%s", diff)
	}
	g.NVLink.Far = nvml.Known([]string{"gpu", "switch", "", "gpu", "switch"})
	g.NVLink.FarPCI = nvml.Known([]string{"0000:11:00.0", "0000:05:00.0", "", "0000:11:00.0", ""})
	want = []string{"gpu1 0000:11:00.0: links 0 3", "switch 0000:05:00.0: links 1", "down: links 2", "switch: links 4"}
	if diff := cmp.Diff(want, farEnds(n, g)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
