package active

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"errors"
	"io/fs"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
)

// The NCCL settings of a site: --env NAME=VALUE on a line, and nccl_env of [active] in nhc.toml.
// The environment of a job or of slurmd is never used.

// ncclEnv has the settings of a site for a test. Those on its line take precedence.
type ncclEnv struct {
	Env []string `long:"env" toml:"env"` // NAME=VALUE for NCCL or its plug-ins

	Site []string // from nhc.toml
}

func (e *ncclEnv) validateEnv() error {
	for _, word := range e.Env {
		if err := checks.WrongNCCLEnv(word); err != nil {
			return err
		}
	}
	return nil
}

// readSite reads the settings of nhc.toml.
func (e *ncclEnv) readSite(env *checks.Env) {
	if text := env.Vars[checks.NCCLEnvSetting]; text != "" {
		e.Site = strings.Split(text, "\n")
	}
}

// all returns the settings in force, each name once.
func (e *ncclEnv) all() (list []cuda.NCCLSetting) {
	add := func(words []string, where string) {
		for _, word := range words {
			name, value, _ := strings.Cut(word, "=")
			list = slices.DeleteFunc(list, func(s cuda.NCCLSetting) bool { return s.Name == name })
			list = append(list, cuda.NCCLSetting{Name: name, Value: value, Where: where})
		}
	}
	add(e.Site, "nccl_env of nhc.toml")
	add(e.Env, "this line")
	return list
}

// words returns them as NAME=VALUE.
func (e *ncclEnv) words() (list []string) {
	for _, s := range e.all() {
		list = append(list, s.Name+"="+s.Value)
	}
	return list
}

// reportEnv reports the site's settings. ok is false if one names a file that other users than
// root can change: NCCL would load it as root.
func reportEnv(t *ncclRun) (ok bool) {
	var list []string
	for _, s := range t.all() {
		list = append(list, fmt.Sprintf("%s=%s from %s", s.Name, s.Value, s.Where))
		if !path.IsAbs(s.Value) {
			continue
		}
		if err := cuda.Guarded(t.env.Host, s.Value); err != nil {
			t.failures = true
			t.report(checks.Device{}, checks.Finding{Code: "nccl.environment", Severity: checks.Unknown, Remedy: checks.FixConfig, Got: err.Error()}, "%s=%s from %s is unsafe, NCCL not run", s.Name, s.Value, s.Where)
			return false
		}
	}
	if len(list) > 0 {
		t.report(checks.Device{}, checks.Finding{Code: "nccl.settings", Severity: checks.OK}, "set %s", strings.Join(list, ", "))
	}
	return true
}

// The node's own NCCL settings.

// reportSettings reports the settings found, and those that mislead NCCL.
func reportSettings(t *ncclRun) {
	t.at("read the settings of NCCL")
	found, err := cuda.NCCLFound(t.env.Host)
	if err != nil {
		t.report(checks.Device{}, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown}, "cannot read the settings of NCCL: %v", err)
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
		if why := judgeTopologyFile(t, s.Value); why != "" {
			t.report(checks.Device{}, checks.Finding{Code: "nccl.environment", Severity: checks.Warn, Remedy: checks.FixConfig, Got: why}, "%s=%s in %s is not a topology of this node", s.Name, s.Value, s.Where)
		}
	}
}

const ncclTopoFile = "NCCL_TOPO_FILE"

// judgeTopologyFile returns why a topology file is not this node's, "" if it can be. A file that
// names no GPU leaves it to NCCL to find them.
func judgeTopologyFile(t *ncclRun, path string) string {
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
	return fmt.Sprintf("it has GPUs at %s, none of them on this node", strings.Join(topo.GPUs[:min(len(topo.GPUs), 3)], ", "))
}
