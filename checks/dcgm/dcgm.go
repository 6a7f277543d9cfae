// Package dcgm has the checks that ask NVIDIA's DCGM.
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

// What the checks that ask DCGM have in common: how they get at it, what they make of
// its not answering, and how a finding names what DCGM speaks of.

func init() {
	checks.RegisterAdvice(func() map[string]string {
		return map[string]string{
			"dcgm.library": "DCGM is not installed: datacenter-gpu-manager-4-core (libdcgm.so.4), or dcgmi of an older one. DCGM_LIBRARY=PATH names a library elsewhere. Or take the line out.",
			"dcgm.engine":  "systemctl start nvidia-dcgm (nvidia-dcgm.service runs nv-hostengine), and see its journal; DCGM_ADDRESS names another place. DCGM_MODE=auto does without it.",
			"dcgm.hung":    "nv-hostengine accepts connections and does not answer: systemctl restart nvidia-dcgm. The GPUs may be well: check_gpu_recovery asks the driver itself. If that hangs, too, it is the driver: see dmesg.",
			"dcgm.failed":  "The call that is named gave an error: see /var/log/nvidia-dcgm/nv-hostengine.log and dmesg, try dcgmi discovery -l.",
			"dcgm.old":     "Update DCGM: the diagnostic needs 4.2 or later, or DCGM_MODE=dcgmi with the program of the installed one.",
			"dcgm.errors":  "Correct the file that the message names (docs/reference/dcgm.md has its form); until then the built-in classes are in force.",
		}
	})
}

// Vars are the variables of nhc.conf that say how DCGM is asked.
var Vars = map[string]string{"DCGM_ADDRESS": hostengine.Address, "DCGM_MODE": "auto", "DCGM_ERRORS": dcgmErrorFile}

// Run is a check that asks DCGM.
type Run struct {
	check    string
	env      *checks.Env
	strict   bool // an engine that hangs fails the node
	Engine   hostengine.Engine
	table    dcgmTable
	GPUs     map[int]checks.Device // by DCGM's numbers; nil: not asked yet
	Findings []checks.Finding
}

// dcgmModes are the values of DCGM_MODE.
var dcgmModes = []string{"auto", "standalone", "embedded", "dcgmi"}

// Ask finds a way to ask DCGM. nil: the findings say why there is none.
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

// Failed makes a finding of what went wrong.
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

// errors are the classes of DCGM's errors, read once.
func (s *Run) errors() dcgmTable {
	if s.table == nil {
		table, err := readDCGMErrors(s.env)
		if s.table = table; err != nil {
			s.Findings = append(s.Findings, checks.Finding{Code: "dcgm.errors", Severity: checks.Warn, Remedy: checks.FixConfig}.Describe(s.check, "classes of errors not used: %v", err))
		}
	}
	return s.table
}

// Report adds a finding about a thing, of an error of DCGM's. failed: DCGM calls it a
// failure. what is behind the name of the error: ", memory".
func (s *Run) Report(ctx context.Context, of hostengine.Entity, failed bool, code int, what, text string) checks.Severity {
	row := s.errors().find(code, text)
	f := checks.Finding{Code: dcgmCode + "unknown", Severity: row.severity(failed)}
	name := "an error without a code"
	if code >= 0 {
		f.Code, name = fmt.Sprintf("%s%d", dcgmCode, code), fmt.Sprintf("DCGM error %d", code)
	}
	if row != nil {
		f.Code, f.Remedy = fmt.Sprintf("%s%d", dcgmCode, row.Code), row.Remedy
		name = fmt.Sprintf("DCGM_FR_%s (%d)", row.Name, row.Code)
	}
	s.Tell(ctx, of, f, name+what+checks.Before(": ", text, ""))
	return f.Severity
}

// Tell adds a finding about a thing.
func (s *Run) Tell(ctx context.Context, of hostengine.Entity, f checks.Finding, text string) {
	s.Findings = append(s.Findings, f.Report(s.check, s.device(ctx, of), "%s", text))
}

// device is what DCGM speaks of, by the name that the other checks give it. DCGM's
// numbers of GPUs need not be NVML's.
func (s *Run) device(ctx context.Context, of hostengine.Entity) checks.Device {
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

// nameGPUs asks DCGM which GPU bears which number, and counts them as NVML does: by
// PCI address.
func (s *Run) nameGPUs(ctx context.Context) map[int]checks.Device {
	names := map[int]checks.Device{}
	list, err := s.Engine.GPUs(ctx)
	if err != nil {
		return names
	}
	var buses []string
	if views, err := nvidia.ReadGPUViews(s.env.Host); err == nil {
		for _, d := range views.Driver {
			if !d.Excluded {
				buses = append(buses, d.Address)
			}
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

// noGPUs is the finding of a node that has no GPU at all.
func noGPUs(env *checks.Env, check string) []checks.Finding {
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
