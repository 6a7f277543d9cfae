// Package gpu has the checks of NVIDIA GPUs that ask NVML.
package gpu

import (
	"errors"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// What the checks of GPUs have in common: how they get at the snapshot of NVML,
// and how a finding names a GPU.

func init() {
	checks.RegisterAdvice(func() map[string]string {
		return map[string]string{
			"gpu.none":        "Nothing: the node has no NVIDIA GPU. If it should have some give their number, check_gpu_count N, and see lspci -d 10de:",
			"gpu.nvml":        "nvidia-smi will say the same: see dmesg for NVRM lines. Try modprobe nvidia; after an update of the driver reboot. For a recorded node (HOSTROOT) NVML_LIBRARY=PATH names its library.",
			"gpu.unsupported": "Nothing: the GPU or its driver does not tell what this check judges. Take the line out, or update the driver.",
			"gpu.error":       "NVML could not tell this of one GPU: see nvidia-smi -q for it and dmesg for Xid errors. check_gpu_recovery says what the driver wants.",
			"gpu.reading":     "NVML calls it not supported on this GPU alone: see nvidia-smi -q for it and dmesg for Xid errors. Reset the GPU; if it stays the board or its InfoROM is bad.",
			"gpu.past":        "What checks keep between runs cannot be read or written: see the directory /var/lib/nhc-gpu. Nothing, if it is said once a boot and the node has no disk: it is kept in /run.",
		}
	})
}

// GPUs is a check that looks at the GPUs one after the other.
type GPUs struct {
	check    string
	Env      *checks.Env
	NVML     *nvml.Snapshot
	Findings []checks.Finding
	Judged   bool  // something was known of some GPU
	Err      error // the first reading of this GPU that was an error
}

// AskNVML gets the snapshot with some groups. Without one there is nothing to
// judge: the findings say why, Skip if the node has no GPU.
func AskNVML(env *checks.Env, check string, groups nvml.Group) (*GPUs, []checks.Finding) {
	env.At("read the PCI bus")
	views, err := nvidia.ReadGPUViews(env.Host)
	if err != nil {
		return nil, checks.Unreadable(err)
	}
	n, err := nvml.Ask(env.Host, groups, env.Doing)
	expected := len(views.Own())
	switch {
	case err != nil && expected == 0 && noGPU(err),
		err == nil && expected+len(n.GPUs) == 0:
		return nil, skipNone(check)
	case err != nil:
		return nil, []checks.Finding{CannotAsk(check, err)}
	case len(n.GPUs) == 0:
		return nil, []checks.Finding{checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown}.Describe(check, "the PCI bus has GPUs, but NVML has none")}
	}
	env.Fact("%s", checks.Plural(len(n.GPUs), "GPU"))
	return &GPUs{check: check, Env: env, NVML: n}, nil
}

// fact notes the lowest and highest value of something: "power limit 650 to 700 W".
func (s *GPUs) fact(before, after string, of func(*nvml.GPU) nvml.Reading[int]) {
	low, high, known := s.span(of)
	switch {
	case known && low == high:
		s.Env.Fact("%s%d%s", before, low, after)
	case known:
		s.Env.Fact("%s%d to %d%s", before, low, high, after)
	}
}

// span returns the lowest and highest value of something; known is false if no GPU has one.
func (s *GPUs) span(of func(*nvml.GPU) nvml.Reading[int]) (low, high int, known bool) {
	for i := range s.NVML.GPUs {
		r := of(&s.NVML.GPUs[i])
		if r.Known && !known {
			low, high, known = r.Value, r.Value, true
		}
		if r.Known {
			low, high = min(low, r.Value), max(high, r.Value)
		}
	}
	return low, high, known
}

// total notes the sum of a number over all GPUs: "12 remapped rows".
func (s *GPUs) total(what string, of func(*nvml.GPU) (n uint64, known bool)) {
	sum, any := uint64(0), false
	for i := range s.NVML.GPUs {
		if n, known := of(&s.NVML.GPUs[i]); known {
			sum, any = sum+n, true
		}
	}
	if any {
		s.Env.Fact("%d %s", sum, what)
	}
}

// skipNone skips a check on a node without GPUs.
func skipNone(check string) []checks.Finding {
	return []checks.Finding{checks.Finding{Code: "gpu.none", Severity: checks.Skip}.Describe(check, "no NVIDIA GPU on this node")}
}

// CannotAsk is the finding of a node whose NVML does not answer.
func CannotAsk(check string, err error) checks.Finding {
	return checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown}.Describe(check, "cannot ask NVML: %v", err)
}

// noGPU says whether NVML gives no answer because there is nothing to be asked.
func noGPU(err error) bool {
	return errors.Is(err, probe.ErrNoLibrary) || errors.Is(err, nvml.ErrDriverNotThere) || errors.Is(err, nvml.ErrNoGPU)
}

// judgeEachGPU has judge look at every GPU that can be asked.
func judgeEachGPU(env *checks.Env, check string, groups nvml.Group, judge func(*GPUs, *nvml.GPU)) []checks.Finding {
	s, findings := AskNVML(env, check, groups)
	if s == nil {
		return findings
	}
	s.Each(judge)
	return s.Done()
}

// Each calls judge for every GPU that answers.
func (s *GPUs) Each(judge func(*GPUs, *nvml.GPU)) {
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		if s.Err = g.Err; g.Err == nil {
			judge(s, g)
		}
		if s.Err != nil {
			s.Judged = true
			s.Report(g, checks.Finding{Code: "gpu.error", Severity: checks.Unknown, Whole: g.Err != nil}, "could not tell: %v", s.Err)
		}
	}
}

// Done returns the findings. If nothing was known of any GPU, or there was nothing to
// compare it with, the check is skipped, not passed.
func (s *GPUs) Done() []checks.Finding {
	if !s.Judged && len(s.Findings) == 0 {
		return []checks.Finding{checks.Finding{Code: "gpu.unsupported", Severity: checks.Skip}.Describe(s.check, "not supported by these GPUs or their driver")}
	}
	return s.Findings
}

// Value is what a reading holds. Its error is reported once for each GPU.
func Value[T any](s *GPUs, r nvml.Reading[T]) (v T, known bool) {
	if r.Err != nil && s.Err == nil {
		s.Err = r.Err
	}
	s.Judged = s.Judged || r.Known
	return r.Value, r.Known
}

// Report adds a finding about a GPU.
func (s *GPUs) Report(g *nvml.GPU, f checks.Finding, format string, args ...any) {
	s.Findings = append(s.Findings, f.Report(s.check, checks.GPUDevice(g), format, args...))
}

// onOff is a switch in words.
func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// unlike finds the GPUs that differ from most of their model in something: a
// node has a part that was replaced, or set otherwise. Where no value is that of more
// than half of them the first GPU is what they are compared with. than names it.
func (s *GPUs) unlike(of func(*nvml.GPU) (string, bool), tell func(g *nvml.GPU, want, got, than string)) {
	models, _ := s.models(func(g *nvml.GPU) bool {
		_, ok := of(g)
		return ok
	})
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		got, ok := of(g)
		if !ok {
			continue
		}
		peers := models[g.Name.Value]
		count := map[string]int{}
		for _, p := range peers {
			v, _ := of(p)
			count[v]++
		}
		want, than := checks.Commonest(count), "the others"
		if count[want]*2 <= len(peers) {
			want, _ = of(peers[0])
			than = checks.GPUName(peers[0])
		}
		if got != want {
			tell(g, want, got, than)
		}
	}
}

// reportLacking warns of a GPU that has no value of something though two or more others of its kind
// have one: no fault of it could be found there.
func reportLacking[T any](s *GPUs, what string, of func(*nvml.GPU) nvml.Reading[T]) {
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		if r := of(g); r.Known || r.Err != nil || g.Err != nil || !g.Name.Known {
			continue
		}
		have := 0
		for j := range s.NVML.GPUs {
			if o := &s.NVML.GPUs[j]; of(o).Known && s.sameKind(g, o) {
				have++
			}
		}
		if have > 1 {
			s.Report(g, checks.Finding{Code: "gpu.reading", Severity: checks.Warn, Got: "not supported"}, "%s, which %d others have", what, have)
		}
	}
}

// sameKind reports whether two GPUs are the same device, and shared in the same way.
func (s *GPUs) sameKind(a, b *nvml.GPU) bool {
	ids, err := pci.GPUIDs(s.Env.Host)
	device := func(g *nvml.GPU) string {
		if at := slices.IndexFunc(ids, func(id pci.ID) bool { return id.Address == g.PCI }); at >= 0 {
			return ids[at].Device
		}
		return ""
	}
	return err == nil && a.Name.Value == b.Name.Value && a.VGPU.Value == b.VGPU.Value && withMIG(a) == withMIG(b) && device(a) == device(b)
}

// models returns the GPUs of each model of which something is known, and whether
// there are two of one.
func (s *GPUs) models(known func(*nvml.GPU) bool) (models map[string][]*nvml.GPU, two bool) {
	models = map[string][]*nvml.GPU{}
	for i := range s.NVML.GPUs {
		if g := &s.NVML.GPUs[i]; known(g) {
			models[g.Name.Value] = append(models[g.Name.Value], g)
			two = two || len(models[g.Name.Value]) > 1
		}
	}
	return models, two
}

// allHave reports whether there are several GPUs of a model and all have the same of
// something.
func (s *GPUs) allHave(g *nvml.GPU, of func(*nvml.GPU) nvml.Reading[int]) bool {
	others := 0
	for i := range s.NVML.GPUs {
		o := &s.NVML.GPUs[i]
		if r := of(o); o != g && r.Known && o.Name.Value == g.Name.Value {
			if r.Value != of(g).Value {
				return false
			}
			others++
		}
	}
	return others > 0
}

func withMIG(g *nvml.GPU) bool { return g.Modes.MIG.Value || g.Modes.MIGPending.Value }
