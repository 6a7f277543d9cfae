package checks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// What the checks that ask DCGM have in common: how they get at it, what they make of
// its not answering, and how a finding names what DCGM speaks of.

func init() {
	RegisterAdvice(map[string]string{
		"dcgm.library": "DCGM is not installed: datacenter-gpu-manager-4-core (libdcgm.so.4), or dcgmi of an older one. DCGM_LIBRARY=PATH names a library elsewhere. Or take the line out.",
		"dcgm.engine":  "systemctl start nvidia-dcgm (nvidia-dcgm.service runs nv-hostengine), and see its journal; DCGM_ADDRESS names another place. DCGM_MODE=auto does without it.",
		"dcgm.hung":    "nv-hostengine accepts connections and does not answer: systemctl restart nvidia-dcgm. The GPUs may be well: check_gpu_recovery asks the driver itself. If that hangs, too, it is the driver: see dmesg.",
		"dcgm.failed":  "The call that is named gave an error: see /var/log/nvidia-dcgm/nv-hostengine.log and dmesg, try dcgmi discovery -l.",
		"dcgm.old":     "Update DCGM: the diagnostic needs 4.2 or later, or DCGM_MODE=dcgmi with the program of the installed one.",
		"dcgm.errors":  "Correct the file that the message names (docs/dcgm.md has its form); until then the built-in classes are in force.",
	})
}

// dcgmVars are the variables of nhc.conf that say how DCGM is asked.
var dcgmVars = map[string]string{"DCGM_ADDRESS": probe.DCGMAddress, "DCGM_MODE": "auto", "DCGM_ERRORS": dcgmErrorFile}

// dcgmRun is a check that asks DCGM.
type dcgmRun struct {
	check    string
	env      *Env
	strict   bool // an engine that hangs fails the node
	engine   probe.DCGMEngine
	table    dcgmTable
	gpus     map[int]Device // by DCGM's numbers; nil: not asked yet
	findings []Finding
}

// dcgmModes are the values of DCGM_MODE.
var dcgmModes = []string{"auto", "standalone", "embedded", "dcgmi"}

// askDCGM finds a way to ask DCGM. nil: the findings say why there is none.
func askDCGM(ctx context.Context, env *Env, check string, strict bool) (*dcgmRun, []Finding) {
	s := &dcgmRun{check: check, env: env, strict: strict}
	mode := cmp.Or(env.Vars["DCGM_MODE"], "auto")
	if !slices.Contains(dcgmModes, mode) {
		want := "one of " + strings.Join(dcgmModes, ", ")
		f := Finding{Code: "config.value", Severity: Unknown, Want: want, Got: mode, Remedy: FixConfig}
		f.Message = check + ":  DCGM_MODE" + wantGot(f)
		return nil, []Finding{f}
	}
	engine, err := env.Host.DCGM(ctx, probe.DCGMSettings{Mode: mode, Address: env.Vars["DCGM_ADDRESS"]}, env.Doing)
	if err != nil {
		s.failed("ask DCGM", err)
		return nil, s.findings
	}
	s.engine = engine
	return s, nil
}

// failed makes a finding of what went wrong.
func (s *dcgmRun) failed(doing string, err error) {
	f := Finding{Code: "dcgm.failed", Severity: Unknown}
	hung, isHung := errors.AsType[*probe.DCGMHungError](err)
	switch {
	case isHung:
		f.Code, f.Severity, f.Got = "dcgm.hung", Warn, hung.Error()
		if s.strict {
			f.Severity = Fail
		}
	case errors.Is(err, probe.ErrNoLibrary):
		f.Code = "dcgm.library"
	case errors.Is(err, probe.ErrNoEngine):
		f.Code = "dcgm.engine"
	case errors.Is(err, probe.ErrDCGMTooOld):
		f.Code = "dcgm.old"
	case errors.Is(err, probe.ErrNoWatches):
		f.Code = "dcgm.watches"
	case errors.Is(err, probe.ErrDCGMRunning):
		f.Code = "dcgm.running"
	}
	f.Message = fmt.Sprintf("%s:  cannot %s: %s", s.check, doing, strings.ReplaceAll(err.Error(), "\n", "; "))
	s.findings = append(s.findings, f)
}

// errors are the classes of DCGM's errors, read once.
func (s *dcgmRun) errors() dcgmTable {
	if s.table == nil {
		table, err := readDCGMErrors(s.env)
		if s.table = table; err != nil {
			s.findings = append(s.findings, Finding{Code: "dcgm.errors", Severity: Warn, Remedy: FixConfig, Message: s.check + ":  classes of errors not used: " + err.Error()})
		}
	}
	return s.table
}

// report adds a finding about a thing, of an error of DCGM's. failed: DCGM calls it a
// failure. what is behind the name of the error: ", memory".
func (s *dcgmRun) report(ctx context.Context, of probe.DCGMEntity, failed bool, code int, what, text string) Severity {
	row := s.errors().find(code, text)
	f := Finding{Code: dcgmCode + "unknown", Severity: row.severity(failed)}
	name := "an error without a code"
	if code >= 0 {
		f.Code, name = fmt.Sprintf("%s%d", dcgmCode, code), fmt.Sprintf("DCGM error %d", code)
	}
	if row != nil {
		f.Code, f.Remedy = fmt.Sprintf("%s%d", dcgmCode, row.Code), row.Remedy
		name = fmt.Sprintf("DCGM_FR_%s (%d)", row.Name, row.Code)
	}
	s.tell(ctx, of, f, name+what+before(": ", text, ""))
	return f.Severity
}

// tell adds a finding about a thing.
func (s *dcgmRun) tell(ctx context.Context, of probe.DCGMEntity, f Finding, text string) {
	f.Device = s.device(ctx, of)
	f.Message = fmt.Sprintf("%s:  %s%s", s.check, before("", f.Device.String(), ": "), text) + wantGot(f)
	if f.Want == "" && f.Got == "" {
		f.Got = text
	}
	s.findings = append(s.findings, f)
}

// device is what DCGM speaks of, by the name that the other checks give it. DCGM's
// numbers of GPUs need not be NVML's.
func (s *dcgmRun) device(ctx context.Context, of probe.DCGMEntity) Device {
	switch of.Kind {
	case "":
		return Device{}
	case "gpu":
		if s.gpus == nil {
			s.gpus = s.nameGPUs(ctx)
		}
		if d, ok := s.gpus[of.ID]; ok {
			return d
		}
		return Device{Kind: "gpu", Name: fmt.Sprintf("DCGM's GPU %d", of.ID)}
	case "switch":
		return Device{Kind: "nvswitch", Name: fmt.Sprintf("nvswitch%d", of.ID)}
	}
	return Device{Kind: of.Kind, Name: fmt.Sprintf("%s %d", of.Kind, of.ID)}
}

// nameGPUs asks DCGM which GPU bears which number, and counts them as NVML does: by
// PCI address.
func (s *dcgmRun) nameGPUs(ctx context.Context) map[int]Device {
	names := map[int]Device{}
	list, err := s.engine.GPUs(ctx)
	if err != nil {
		return names
	}
	var buses []string
	if views, err := s.env.Host.GPUViews(); err == nil {
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
		names[g.ID] = Device{Kind: "gpu", Name: fmt.Sprintf("gpu%d", index), PCI: g.PCI, UUID: g.UUID}
	}
	return names
}

// noGPUs is the finding of a node that has no GPU at all.
func noGPUs(env *Env, check string) []Finding {
	env.At("read the PCI bus")
	views, err := env.Host.GPUViews()
	switch {
	case err != nil:
		return unreadable(err)
	case len(views.Own()) == 0:
		return []Finding{{Code: "gpu.none", Severity: Skip, Message: check + ":  no NVIDIA GPU on this node"}}
	}
	return nil
}
