// Package dcgm contains the checks that query NVIDIA's DCGM.
package dcgm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/hostengine"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
)

// Code that the checks of DCGM share: the connection, its errors, and the names of devices.

func init() {
	checks.RegisterAdvice(func() map[string]string {
		return map[string]string{
			"dcgm.library": "Install DCGM: datacenter-gpu-manager-4-core (libdcgm.so.4), or dcgmi of an older version. If the library is elsewhere, set DCGM_LIBRARY=PATH. Or remove the line.",
			"dcgm.engine":  "Run systemctl start nvidia-dcgm (nvidia-dcgm.service runs nv-hostengine), and look at its journal. If it runs elsewhere, set DCGM_ADDRESS. With DCGM_MODE=auto it is not needed.",
			"dcgm.hung":    "nv-hostengine accepts connections but does not answer: run systemctl restart nvidia-dcgm. The GPUs may be healthy: check_gpu_recovery queries the driver directly. If that hangs, too, the driver is the cause: look at dmesg.",
			"dcgm.failed":  "The call in the message returned an error: look at /var/log/nvidia-dcgm/nv-hostengine.log and dmesg, and try dcgmi discovery -l.",
			"dcgm.old":     "Update DCGM: the diagnostic needs version 4.2 or later. Or set DCGM_MODE=dcgmi to use the installed dcgmi.",
			"dcgm.errors":  "Correct the file in the message (its format is in docs/reference/dcgm.md); until then the built-in classes apply.",
		}
	})
}

// Vars are the variables of nhc.conf for the connection to DCGM, with their defaults.
var Vars = map[string]string{"DCGM_ADDRESS": hostengine.Address, "DCGM_MODE": "auto", "DCGM_ERRORS": dcgmErrorFile}

// Run is one run of a check that queries DCGM.
type Run struct {
	check    string
	env      *checks.Env
	strict   bool // an engine that hangs fails the node
	Engine   hostengine.Engine
	table    dcgmTable
	GPUs     map[int]checks.Device // by DCGM's numbers; nil: not read yet
	Findings []checks.Finding
}

// dcgmModes are the values of DCGM_MODE.
var dcgmModes = []string{"auto", "standalone", "embedded", "dcgmi"}

// Ask connects to DCGM. If it returns nil the findings state the reason.
func Ask(ctx context.Context, env *checks.Env, check string, strict bool) (*Run, []checks.Finding) {
	s := &Run{check: check, env: env, strict: strict}
	mode := cmp.Or(env.Vars["DCGM_MODE"], "auto")
	if !slices.Contains(dcgmModes, mode) {
		return nil, []checks.Finding{checks.Finding{Code: "config.value", Severity: checks.Unknown, Want: "one of " + strings.Join(dcgmModes, ", "), Got: mode, Remedy: checks.FixConfig}.
			Describe(check, "DCGM_MODE")}
	}
	engine, err := hostengine.Connect(ctx, env.Host, hostengine.Settings{Mode: mode, Address: env.Vars["DCGM_ADDRESS"]}, env.Doing)
	if err != nil {
		s.Failed("ask DCGM", err)
		return nil, s.Findings
	}
	s.Engine = engine
	return s, nil
}

// Failed reports an error of DCGM.
func (s *Run) Failed(doing string, err error) {
	f := checks.Finding{Code: "dcgm.failed", Severity: checks.Unknown}
	hung, isHung := errors.AsType[*hostengine.HungError](err)
	switch {
	case isHung:
		f.Code, f.Severity, f.Got = "dcgm.hung", checks.Warn, hung.Error()
		if s.strict {
			f.Severity = checks.Fail
		}
	case errors.Is(err, probe.ErrNoLibrary):
		f.Code = "dcgm.library"
	case errors.Is(err, hostengine.ErrNoEngine):
		f.Code = "dcgm.engine"
	case errors.Is(err, hostengine.ErrTooOld):
		f.Code = "dcgm.old"
	case errors.Is(err, hostengine.ErrNoWatches):
		f.Code = "dcgm.watches"
	case errors.Is(err, hostengine.ErrRunning):
		f.Code = "dcgm.running"
	}
	s.Findings = append(s.Findings, f.Phrase(s.check, "cannot %s: %v", doing, err))
}

// readTable reads the classes of DCGM's errors once.
func (s *Run) readTable() dcgmTable {
	if s.table == nil {
		table, err := readDCGMErrors(s.env)
		if s.table = table; err != nil {
			s.Findings = append(s.Findings, checks.Finding{Code: "dcgm.errors", Severity: checks.Warn, Remedy: checks.FixConfig}.Describe(s.check, "the site's classes of DCGM errors are not used: %v", err))
		}
	}
	return s.table
}

// Report adds the finding of a DCGM error. failed: DCGM reports a failure. suffix follows the name of
// the error: ", memory".
func (s *Run) Report(ctx context.Context, of hostengine.Entity, failed bool, code int, suffix, text string) checks.Severity {
	row := s.readTable().find(code, text)
	f := checks.Finding{Code: dcgmCode + "unknown", Severity: row.severity(failed)}
	name := "DCGM error without a code"
	if code >= 0 {
		f.Code, name = fmt.Sprintf("%s%d", dcgmCode, code), fmt.Sprintf("DCGM error %d", code)
	}
	if row != nil {
		f.Code, f.Remedy = fmt.Sprintf("%s%d", dcgmCode, row.Code), row.Remedy
		name = fmt.Sprintf("DCGM_FR_%s (%d)", row.Name, row.Code)
	}
	s.AddFinding(ctx, of, f, name+suffix+checks.Before(": ", text, ""))
	return f.Severity
}

// AddFinding adds a finding about an entity of DCGM.
func (s *Run) AddFinding(ctx context.Context, of hostengine.Entity, f checks.Finding, text string) {
	s.Findings = append(s.Findings, f.Report(s.check, s.findDevice(ctx, of), "%s", text))
}

// findDevice returns the device of an entity with the name that other checks use. DCGM's numbers of
// GPUs can differ from NVML's.
func (s *Run) findDevice(ctx context.Context, of hostengine.Entity) checks.Device {
	switch of.Kind {
	case "":
		return checks.Device{}
	case "gpu":
		if s.GPUs == nil {
			s.GPUs = s.nameGPUs(ctx)
		}
		if d, ok := s.GPUs[of.ID]; ok {
			return d
		}
		return checks.Device{Kind: "gpu", Name: fmt.Sprintf("DCGM's GPU %d", of.ID)}
	case "switch":
		return checks.Device{Kind: "nvswitch", Name: fmt.Sprintf("nvswitch%d", of.ID)}
	}
	return checks.Device{Kind: of.Kind, Name: fmt.Sprintf("%s %d", of.Kind, of.ID)}
}

// nameGPUs reads DCGM's numbers of the GPUs, and numbers the GPUs by PCI address, as NVML does.
func (s *Run) nameGPUs(ctx context.Context) map[int]checks.Device {
	names := map[int]checks.Device{}
	list, err := s.Engine.GPUs(ctx)
	if err != nil {
		return names
	}
	var buses []string
	if views, err := nvidia.ReadGPUViews(s.env.Host); err == nil {
		for _, d := range views.Used() {
			buses = append(buses, d.Address)
		}
	}
	slices.Sort(buses)
	for _, g := range list {
		index := slices.Index(buses, g.PCI)
		if index < 0 {
			continue
		}
		names[g.ID] = checks.Device{Kind: "gpu", Name: fmt.Sprintf("gpu%d", index), PCI: g.PCI, UUID: g.UUID}
	}
	return names
}

// skipNoGPUs returns the finding of a node without GPUs.
func skipNoGPUs(env *checks.Env, check string) []checks.Finding {
	env.At("read the PCI bus")
	views, err := nvidia.ReadGPUViews(env.Host)
	switch {
	case err != nil:
		return checks.Unreadable(err)
	case len(views.Own()) == 0:
		return []checks.Finding{checks.Finding{Code: "gpu.none", Severity: checks.Skip}.Describe(check, "no NVIDIA GPU on this node")}
	}
	return nil
}
