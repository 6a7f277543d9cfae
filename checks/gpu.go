package checks

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// What the checks of GPUs have in common: how they get at the snapshot of NVML,
// and how a finding names a GPU.

func init() {
	for code, do := range map[string]string{
		"gpu.none":        "Nothing: the node has no NVIDIA GPU. If it should have some give their number, check_gpu_count N, and see lspci -d 10de:",
		"gpu.nvml":        "nvidia-smi will say the same: see dmesg for NVRM lines. Try modprobe nvidia; after an update of the driver reboot. For a recorded node (HOSTROOT) NVML_LIBRARY=PATH names its library.",
		"gpu.unsupported": "Nothing: the GPU or its driver does not tell what this check judges. Take the line out, or update the driver.",
		"gpu.error":       "NVML could not tell this of one GPU: see nvidia-smi -q for it and dmesg for Xid errors. check_gpu_recovery says what the driver wants.",
		"gpu.past":        "What checks keep between runs cannot be read or written: see the directory /var/lib/nhc-gpu. Nothing, if it is said once a boot and the node has no disk: it is kept in /run.",
	} {
		commonDo[code], advice[code] = do, do
	}
}

// gpus is a check that looks at the GPUs one after the other.
type gpus struct {
	check    string
	env      *Env
	nvml     *probe.NVML
	findings []Finding
	judged   bool  // something was known of some GPU
	err      error // the first reading of this GPU that was an error
}

// askNVML gets the snapshot with some groups. Without one there is nothing to
// judge: the findings say why, Skip if the node has no GPU.
func (e *Env) askNVML(check string, groups probe.Group) (*gpus, []Finding) {
	e.At("read the PCI bus")
	views, err := e.Host.GPUViews()
	if err != nil {
		return nil, unreadable(err)
	}
	n, err := e.Host.NVML(groups, e.Doing)
	expected := len(gpusOnBus(views))
	switch {
	case err != nil && expected == 0 && noGPU(err),
		err == nil && expected+len(n.GPUs) == 0:
		return nil, []Finding{{Code: "gpu.none", Severity: Skip, Message: check + ":  no NVIDIA GPU on this node"}}
	case err != nil:
		return nil, []Finding{{Code: "gpu.nvml", Severity: Unknown, Message: fmt.Sprintf("%s:  cannot ask NVML: %v", check, err)}}
	case len(n.GPUs) == 0:
		return nil, []Finding{{Code: "gpu.nvml", Severity: Unknown, Message: check + ":  the PCI bus has GPUs, but NVML has none"}}
	}
	return &gpus{check: check, env: e, nvml: n}, nil
}

// noGPU says whether NVML gives no answer because there is nothing to be asked.
func noGPU(err error) bool {
	return errors.Is(err, probe.ErrNoLibrary) || errors.Is(err, probe.ErrDriverNotThere) || errors.Is(err, probe.ErrNoGPU)
}

// eachGPU has judge look at every GPU that can be asked.
func (e *Env) eachGPU(check string, groups probe.Group, judge func(*gpus, *probe.GPU)) []Finding {
	s, findings := e.askNVML(check, groups)
	if s == nil {
		return findings
	}
	s.each(judge)
	return s.done()
}

func (s *gpus) each(judge func(*gpus, *probe.GPU)) {
	for i := range s.nvml.GPUs {
		g := &s.nvml.GPUs[i]
		if s.err = g.Err; g.Err == nil {
			judge(s, g)
		}
		if s.err != nil {
			s.judged = true
			s.report(g, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: %v", s.err)
		}
	}
}

// done is what was found. Nothing known of any GPU is no pass.
func (s *gpus) done() []Finding {
	if !s.judged {
		return []Finding{{Code: "gpu.unsupported", Severity: Skip, Message: s.check + ":  not supported by these GPUs or their driver"}}
	}
	return s.findings
}

// value is what a reading holds. Its error is reported once for each GPU.
func value[T any](s *gpus, r probe.Reading[T]) (v T, known bool) {
	if r.Err != nil && s.err == nil {
		s.err = r.Err
	}
	s.judged = s.judged || r.Known
	return r.Value, r.Known
}

// report adds a finding about a GPU. Its text is what is said of the GPU, behind
// which come what is wanted and what was got, if f has them.
func (s *gpus) report(g *probe.GPU, f Finding, format string, args ...any) {
	f.Device = gpuDevice(g)
	text := fmt.Sprintf(format, args...)
	f.Message = fmt.Sprintf("%s:  %s: %s", s.check, f.Device, text) + wantGot(f)
	if f.Want == "" && f.Got == "" { // a state that is wrong as such
		f.Got = text
	}
	s.findings = append(s.findings, f)
}

func wantGot(f Finding) string {
	return before(", want ", f.Want, "") + before(", got ", f.Got, "")
}

func gpuDevice(g *probe.GPU) Device {
	return Device{Kind: "gpu", Name: fmt.Sprintf("gpu%d", g.Index), PCI: g.PCI, Serial: g.Serial.Value, UUID: g.UUID.Value}
}

// onOff is a switch in words.
func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// plural is "1 GPU", "2 GPUs".
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// unlike finds the GPUs that differ from most of their model in something: a
// node has a part that was replaced, or set otherwise.
func (s *gpus) unlike(of func(*probe.GPU) (string, bool), tell func(g *probe.GPU, most, got string)) {
	count := map[string]map[string]int{}
	for i := range s.nvml.GPUs {
		g := &s.nvml.GPUs[i]
		if v, ok := of(g); ok {
			if count[g.Name.Value] == nil {
				count[g.Name.Value] = map[string]int{}
			}
			count[g.Name.Value][v]++
		}
	}
	for i := range s.nvml.GPUs {
		g := &s.nvml.GPUs[i]
		v, ok := of(g)
		if !ok || len(count[g.Name.Value]) < 2 {
			continue
		}
		if most := commonest(count[g.Name.Value]); v != most {
			tell(g, most, v)
		}
	}
}

// commonest is the key with the highest count, the first of them by the alphabet.
func commonest(count map[string]int) string {
	best := ""
	for v, n := range count {
		if best == "" || n > count[best] || n == count[best] && v < best {
			best = v
		}
	}
	return best
}

// keep writes what later runs need. A run of somebody else than root keeps
// nothing, which is no finding.
func (e *Env) keep(check, name string, v any) []Finding {
	err := e.remember(name, v)
	if err == nil || errors.Is(err, probe.ErrNoMemory) {
		return nil
	}
	return []Finding{{Code: "gpu.past", Severity: Warn, Message: check + ":  " + strings.ReplaceAll(err.Error(), "\n", "; ")}}
}
