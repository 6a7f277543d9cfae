package active

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// What the node has set for NCCL before a test says what it wants.

// tellSettings tells the settings that were found, and those that lead NCCL astray.
func tellSettings(t *ncclRun) {
	t.at("read the settings of NCCL")
	found, err := cuda.NCCLFound(t.env.Host)
	if err != nil {
		t.report(checks.Device{}, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown}, "cannot tell the settings of NCCL: %v", err)
	}
	if len(found) > 0 {
		var list []string
		for _, s := range found {
			list = append(list, fmt.Sprintf("%s=%s in %s", s.Name, s.Value, s.Where))
		}
		t.report(checks.Device{}, checks.Finding{Code: "nccl.settings", Severity: checks.OK}, "found %s", strings.Join(list, ", "))
	}
	if t.Topology != "" {
		found = append(found, cuda.NCCLSetting{Name: ncclTopoFile, Value: t.Topology, Where: "this line"})
	}
	for _, s := range found {
		if s.Name != ncclTopoFile || s.Value == "" {
			continue
		}
		if why := strangeTopology(t, s.Value); why != "" {
			t.report(checks.Device{}, checks.Finding{Code: "nccl.environment", Severity: checks.Warn, Remedy: checks.FixConfig, Got: why}, "%s=%s in %s is no topology of this node", s.Name, s.Value, s.Where)
		}
	}
}

const ncclTopoFile = "NCCL_TOPO_FILE"

// strangeTopology says why a topology file is not this node's, "" if it may be. One
// that names no GPU leaves it to NCCL to find them.
func strangeTopology(t *ncclRun, path string) string {
	topo, err := cuda.ReadNCCLTopology(t.env.Host, path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no such file"
	case err != nil:
		return err.Error()
	case len(topo.GPUs) == 0:
		return ""
	}
	for _, g := range t.gpus {
		if slices.Contains(topo.GPUs, g.PCI) {
			return ""
		}
	}
	return fmt.Sprintf("it has GPUs at %s, none of them is here", strings.Join(topo.GPUs[:min(len(topo.GPUs), 3)], ", "))
}
