package worker

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// The numbers of the GPUs are those of nvidia-smi, which does not show an excluded one.
func TestListPartsExcluded(t *testing.T) {
	t.Parallel()
	files := fakenvml.Files(fakenvml.A100, 3)
	files["proc/driver/nvidia/gpus/"+fakenvml.Address(1)+"/information"] = "Device Minor: \t 1\nGPU Excluded:\t Yes\n"
	host := probe.NewHost(probetest.Tree(t, files))
	resp := listParts(&checks.Env{Host: host, Doing: func(string) {}}, &wire.Request{})
	names := map[string]string{}
	for _, d := range resp.Devices {
		names[d.PCI] = d.Name
	}
	want := map[string]string{fakenvml.Address(0): "gpu0", fakenvml.Address(1): "", fakenvml.Address(2): "gpu1"}
	if diff := cmp.Diff(want, names); diff != "" || resp.Err != "" {
		t.Errorf("%s (-want +got):\n%s", resp.Err, diff)
	}
	w := &worker{host: host}
	if got := w.driverGPUs(&wire.Request{}).GPUs; len(got) != 2 || got[1].Address != fakenvml.Address(2) {
		t.Errorf("GPUs of jobs: %+v", got)
	}
}

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
	g.NVLinksUnread = []bool{false, false, true, false, false}
	if diff := cmp.Diff([]string{"unknown: links 0 1 2 3 4"}, farEnds(n, g)); diff != "" {
		t.Errorf("a link whose state could not be read (-want +got):\n%s", diff)
	}
	g.NVLinksUnread = []bool{false, false, true, false, true}
	g.NVLinks.Value[4] = false
	if diff := cmp.Diff([]string{"unknown: links 0 1 2 3 4"}, farEnds(n, g)); diff != "" {
		t.Errorf("a last link whose state could not be read (-want +got):\n%s", diff)
	}
	g.NVLinks.Value[4], g.NVLinksUnread[4] = true, false
	for len(g.NVLinks.Value) < nvml.MaxLinks {
		g.NVLinks.Value, g.NVLinksUnread = append(g.NVLinks.Value, false), append(g.NVLinksUnread, true)
	}
	if diff := cmp.Diff([]string{"unknown: links 0 1 2 3 4"}, farEnds(n, g)); diff != "" {
		t.Errorf("links that may not exist (-want +got):\n%s", diff)
	}
	g.NVLinks.Value, g.NVLinksUnread = g.NVLinks.Value[:5], nil
	g.NVLink.Far = nvml.Known([]string{"gpu", "switch", "", "gpu", "switch"})
	g.NVLink.FarPCI = nvml.Known([]string{"0000:11:00.0", "0000:05:00.0", "", "0000:11:00.0", ""})
	want = []string{"gpu1 0000:11:00.0: links 0 3", "switch 0000:05:00.0: links 1", "down: links 2", "switch: links 4"}
	if diff := cmp.Diff(want, farEnds(n, g)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
