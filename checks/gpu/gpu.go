// Package gpu contains the checks of NVIDIA GPUs that query NVML.
package gpu

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// Code that all checks of GPUs share: the snapshot of NVML, and how a finding names a GPU.

func init() {
	checks.RegisterAdvice(func() map[string]string {
		return map[string]string{
			"gpu.none":        "Nothing, if the node has no NVIDIA GPU. If it should have GPUs, set their number (check_gpu_count N) and look at lspci -d 10de:",
			"gpu.nvml":        "nvidia-smi fails in the same way: look for NVRM lines in dmesg. Try modprobe nvidia; after a driver update, reboot. For a recorded node (HOSTROOT) set its library with NVML_LIBRARY=PATH.",
			"gpu.unsupported": "Nothing is wrong: this GPU or its driver does not report the values that the check needs. Remove the line, or update the driver.",
			"gpu.error":       "NVML returns nothing that the check could judge for this GPU: compare nvidia-smi -q of the GPUs and look for Xid errors in dmesg. check_gpu_recovery shows whether the driver requests a reset.",
			"gpu.error.value": "The check judged what it could read. Compare nvidia-smi -q of the GPUs. If all GPUs of a model have the error, the driver causes it: update the driver or nhc-gpu. If one has it, look for Xid errors in dmesg and reset the GPU.",
			"gpu.reading":     "This GPU does not report a value that other GPUs of its model report: look at nvidia-smi -q and for Xid errors in dmesg. Reset the GPU; if the value is still missing, the board or its InfoROM is faulty.",
			"gpu.past":        "Check the directory /var/lib/nhc-gpu: the checks cannot read or write their state there. On a node without a disk one such message after each boot is normal: the state is in /run.",
		}
	})
}

// GPUs is one run of a check over all GPUs.
type GPUs struct {
	check    string
	Env      *checks.Env
	NVML     *nvml.Snapshot
	Findings []checks.Finding
	Judged   bool  // at least one value of one GPU was known
	Err      error // the first error among the readings of the current GPU

	answered bool // a reading of the current GPU has a value
}

// AskNVML reads a snapshot with the given groups. If it returns nil the findings state the
// reason: Skip if the node has no GPU.
func AskNVML(env *checks.Env, check string, groups nvml.Group) (*GPUs, []checks.Finding) {
	env.At("read the PCI bus")
	views, err := nvidia.ReadGPUViews(env.Host)
	if err != nil {
		return nil, checks.Unreadable(err)
	}
	n, err := nvml.Ask(env.Host, groups, env.Doing)
	expected := len(views.Own())
	switch {
	case err != nil && expected == 0 && meansNoGPU(err),
		err == nil && expected+len(n.GPUs) == 0:
		return nil, skipNone(check)
	case err != nil && onlyDisplays(env, views, err):
		return nil, skipDisplays(check, views)
	case err != nil:
		return nil, []checks.Finding{CannotAsk(check, err)}
	case len(n.GPUs) == 0:
		return nil, []checks.Finding{checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown}.Describe(check, "the PCI bus shows GPUs, but NVML shows none")}
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
	sum, found := uint64(0), false
	for i := range s.NVML.GPUs {
		if n, known := of(&s.NVML.GPUs[i]); known {
			sum, found = sum+n, true
		}
	}
	if found {
		s.Env.Fact("%d %s", sum, what)
	}
}

// skipNone skips a check on a node without GPUs.
func skipNone(check string) []checks.Finding {
	return []checks.Finding{checks.Finding{Code: "gpu.none", Severity: checks.Skip}.Describe(check, "no NVIDIA GPU on this node")}
}

// CannotAsk returns the finding of a node where NVML cannot be queried.
func CannotAsk(check string, err error) checks.Finding {
	return checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown}.Describe(check, "cannot ask NVML: %v", err)
}

// meansNoGPU reports whether NVML failed because the node has no GPU or no driver.
func meansNoGPU(err error) bool {
	return errors.Is(err, probe.ErrNoLibrary) || errors.Is(err, nvml.ErrDriverNotThere) || errors.Is(err, nvml.ErrNoGPU)
}

// judgeEachGPU calls judge for every GPU that NVML can query.
func judgeEachGPU(env *checks.Env, check string, groups nvml.Group, judge func(*GPUs, *nvml.GPU)) []checks.Finding {
	s, findings := AskNVML(env, check, groups)
	if s == nil {
		return findings
	}
	s.Each(judge)
	return s.Done()
}

// Each calls judge for every GPU that NVML can query, and reports a GPU with an error: gpu.error.value
// if other values, or the other GPUs, show that the GPU can be read, gpu.error otherwise.
func (s *GPUs) Each(judge func(*GPUs, *nvml.GPU)) {
	silent := map[*nvml.GPU]error{} // GPUs without a value; nil: not judged
	at := map[*nvml.GPU]int{}       // index of their findings
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		if s.Err, s.answered = g.Err, false; g.Err == nil {
			judge(s, g)
		}
		if g.Err == nil && !s.answered {
			silent[g], at[g] = s.Err, len(s.Findings)
		}
		if s.Err != nil {
			s.Judged = true
			f := checks.Finding{Code: "gpu.error", Severity: checks.Unknown, Whole: g.Err != nil}
			if s.answered {
				f.Code = "gpu.error.value"
			}
			s.Report(g, f, "cannot be read: %v", s.Err)
		}
	}
	for g, err := range silent {
		if err != nil && s.driverCauses(g, silent) {
			s.Findings[at[g]].Code = "gpu.error.value"
		}
	}
}

// driverCauses reports whether the error of a GPU is the driver's: the same call fails in the same way
// for all GPUs of the model, and the GPU answers others.
func (s *GPUs) driverCauses(g *nvml.GPU, silent map[*nvml.GPU]error) bool {
	call, code := callOf(silent[g])
	for i := range s.NVML.GPUs {
		o := &s.NVML.GPUs[i]
		if o.Err != nil || o.Name.Value != g.Name.Value {
			continue
		}
		err, isSilent := silent[o]
		if c, n := callOf(err); !isSilent || err != nil && (call == "" || c != call || n != code) {
			return false
		}
	}
	_, err := nvml.Ask(s.Env.Host, nvml.GroupTemperature|nvml.GroupPower, s.Env.Doing)
	return err == nil && (g.Temperature.GPU.Known || g.Power.Draw.Known)
}

// callOf returns the call of an error of NVML, without the index of its GPU, and its number.
func callOf(err error) (call string, code int) {
	e, ok := errors.AsType[*nvml.Error](err)
	if !ok {
		return "", 0
	}
	call, _, _ = strings.Cut(e.Call, "(")
	return call, e.Code
}

// Done returns the findings. If no GPU supports the readings, or there is no limit to compare
// them with, the check is skipped, not passed.
func (s *GPUs) Done() []checks.Finding {
	if !s.Judged && len(s.Findings) == 0 {
		return []checks.Finding{checks.Finding{Code: "gpu.unsupported", Severity: checks.Skip}.Describe(s.check, "not supported by these GPUs or their driver")}
	}
	return s.Findings
}

// Value returns the value of a reading. [GPUs.Each] reports the first error of each GPU.
func Value[T any](s *GPUs, r nvml.Reading[T]) (v T, known bool) {
	if r.Err != nil && s.Err == nil {
		s.Err = r.Err
	}
	s.Judged, s.answered = s.Judged || r.Known, s.answered || r.Known
	return r.Value, r.Known
}

// Report adds a finding about a GPU.
func (s *GPUs) Report(g *nvml.GPU, f checks.Finding, format string, args ...any) {
	s.Findings = append(s.Findings, f.Report(s.check, checks.GPUDevice(g), format, args...))
}

func formatSwitch(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// reportOutliers calls report for each GPU with a value that differs from most GPUs of its
// model: a board was replaced, or configured differently. If no value has a majority the first
// GPU is the reference. reference names it.
func (s *GPUs) reportOutliers(of func(*nvml.GPU) (string, bool), report func(g *nvml.GPU, want, got, reference string)) {
	models, _ := s.groupByModel(func(g *nvml.GPU) bool {
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
		want, reference := checks.Commonest(count), "the others"
		if count[want]*2 <= len(peers) {
			want, _ = of(peers[0])
			reference = checks.GPUName(peers[0])
		}
		if got != want {
			report(g, want, got, reference)
		}
	}
}

// reportMissing warns of a GPU without a value that at least two others of its kind have: the
// check cannot detect a fault of this GPU.
func reportMissing[T any](s *GPUs, value string, of func(*nvml.GPU) nvml.Reading[T]) {
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		if r := of(g); r.Known || r.Err != nil || g.Err != nil || !g.Name.Known {
			continue
		}
		others := 0
		for j := range s.NVML.GPUs {
			if o := &s.NVML.GPUs[j]; of(o).Known && s.sameKind(g, o) {
				others++
			}
		}
		if others > 1 {
			s.Report(g, checks.Finding{Code: "gpu.reading", Severity: checks.Warn, Got: "not supported"}, "%s, which %d other GPUs report", value, others)
		}
	}
}

// sameKind reports whether two GPUs have the same model and PCI device, and the same use of
// MIG and vGPU.
func (s *GPUs) sameKind(a, b *nvml.GPU) bool {
	ids, err := pci.GPUIDs(s.Env.Host)
	device := func(g *nvml.GPU) string {
		if at := slices.IndexFunc(ids, func(id pci.ID) bool { return id.Address == g.PCI }); at >= 0 {
			return ids[at].Device
		}
		return ""
	}
	return err == nil && a.Name.Value == b.Name.Value && a.VGPU.Value == b.VGPU.Value && withMIG(a) == withMIG(b) &&
		cmp.Or(unreadMIG(a), unreadMIG(b)) == nil && device(a) == device(b)
}

// groupByModel returns the GPUs that known accepts, by model, and whether any model has two.
func (s *GPUs) groupByModel(known func(*nvml.GPU) bool) (models map[string][]*nvml.GPU, two bool) {
	models = map[string][]*nvml.GPU{}
	for i := range s.NVML.GPUs {
		if g := &s.NVML.GPUs[i]; known(g) {
			models[g.Name.Value] = append(models[g.Name.Value], g)
			two = two || len(models[g.Name.Value]) > 1
		}
	}
	return models, two
}

// allEqual reports whether the node has several GPUs of this model and all have the same value. A
// GPU that could not be read may have it, too.
func (s *GPUs) allEqual(g *nvml.GPU, of func(*nvml.GPU) nvml.Reading[int]) bool {
	others := 0
	for i := range s.NVML.GPUs {
		o := &s.NVML.GPUs[i]
		r, same := of(o), o.Name.Value == g.Name.Value
		switch {
		case o == g, !same && (o.Name.Known || o.Err == nil): // itself, or another model
		case same && r.Known && r.Value != of(g).Value:
			return false
		case r.Known || r.Err != nil || o.Err != nil:
			others++
		}
	}
	return others > 0
}

// allMiss reports whether no GPU of this model reaches want and most of them have the same value
// as g: then the number in nhc.conf is more likely wrong than all the GPUs are.
func (s *GPUs) allMiss(g *nvml.GPU, want int, of func(*nvml.GPU) nvml.Reading[int]) bool {
	all, equal := 0, 0
	for i := range s.NVML.GPUs {
		o := &s.NVML.GPUs[i]
		r := of(o)
		switch {
		case !r.Known || o.Name.Value != g.Name.Value:
			continue
		case r.Value >= want:
			return false
		case r.Value == of(g).Value:
			equal++
		}
		all++
	}
	return all > 1 && 2*equal > all
}

// withMIG reports whether MIG is on. A mode that waits for a reset changes nothing before it.
func withMIG(g *nvml.GPU) bool { return g.Modes.MIG.Value }

// unreadMIG returns the error of a GPU whose MIG mode could not be read: it may be on.
func unreadMIG(g *nvml.GPU) error { return g.Modes.MIG.Err }

// mayHaveMIG reports whether MIG is on, or may be.
func mayHaveMIG(g *nvml.GPU) bool { return withMIG(g) || unreadMIG(g) != nil }
