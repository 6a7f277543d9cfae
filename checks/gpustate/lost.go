// Package gpustate reports GPUs that NVML calls lost, or in need of a reset, in answer to any call. It
// also stores which board is at which address.
package gpustate

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// Any call of NVML can fail because a GPU is lost, or because the library and the driver have different
// versions. This package makes the findings of such errors for all checks.

// RecoveryCheck is the check of GPU states; it also reports those that other checks have found.
const RecoveryCheck = "check_gpu_recovery"

func init() { checks.RegisterFold(foldStates) }

// foldStates reports each GPU, and the node, with a state ([nvml.IsGPUState]).
func foldStates(env *checks.Env, name string, findings []checks.Finding) []checks.Finding {
	n, err := nvml.Asked(env.Host)
	if n != nil {
		keepBoards(env, n)
	}
	findings = reportNode(env, name, findings, err)
	states, node := nvml.GPUsInState(env.Host)
	if n != nil && node != nil {
		findings = append(findings, stateFinding(name, checks.Device{}, node))
	}
	for _, g := range slices.SortedFunc(maps.Keys(states), func(a, b *nvml.GPU) int { return cmp.Compare(a.Index, b.Index) }) {
		findings = foldGPU(env, name, checks.GPUDevice(g), states[g], findings)
	}
	for _, s := range *probe.Kept[[]checks.GPUState](env.Host, "states of GPUs") { // read by another process
		d := checks.Device{Kind: "gpu", Name: fmt.Sprintf("gpu%d", s.Index), PCI: s.PCI, Serial: s.Serial, UUID: s.UUID}
		failed := func(f checks.Finding) bool { return f.Severity == checks.Fail && f.Device.Of(d) }
		if err := s.LostError(); err != nil && (!slices.ContainsFunc(findings, failed) || workWithout(env, d) > 0) {
			findings = foldGPU(env, name, d, err, findings)
		}
	}
	return nameBoards(env, findings)
}

// LostGPUs returns a finding for each GPU with a state ([nvml.IsGPUState]), for the counters of a job,
// which no check reads.
func LostGPUs(env *checks.Env) (findings []checks.Finding) {
	states, _ := nvml.GPUsInState(env.Host)
	for _, g := range slices.SortedFunc(maps.Keys(states), func(a, b *nvml.GPU) int { return cmp.Compare(a.Index, b.Index) }) {
		findings = append(findings, lostFinding(env, RecoveryCheck, fromBoards(env, checks.GPUDevice(g)), states[g]))
	}
	return findings
}

// foldGPU replaces the findings of a check about a GPU by the GPU's state. A GPU that the configuration
// counts as missing stays a warning.
func foldGPU(env *checks.Env, check string, d checks.Device, err error, findings []checks.Finding) []checks.Finding {
	d = fromBoards(env, d)
	at, more := -1, 0
	for i, f := range findings {
		switch {
		case !f.Device.Of(d):
			continue
		case f.Severity == checks.Warn && strings.HasPrefix(f.Code, "gpu.count"):
			return findings
		case at < 0:
			at = i
		}
		if !strings.HasPrefix(f.Code, "gpu.error") && f.Code != "gpu.count.nvml" && !strings.HasPrefix(f.Code, "gpu.recovery.") {
			more++
		}
	}
	whole := lostFinding(env, check, d, err)
	if more > 0 {
		whole.Message += fmt.Sprintf("; %s about this GPU", checks.Plural(more, "more finding"))
	}
	if at < 0 {
		at = len(findings)
	}
	rest := slices.DeleteFunc(slices.Clone(findings[at:]), func(f checks.Finding) bool { return f.Device.Of(d) })
	rest = slices.DeleteFunc(rest, func(f checks.Finding) bool { return f.Code == "gpu.unsupported" }) // from a node with only this GPU
	return append(append(slices.Clone(findings[:at]), whole), rest...)
}

// workWithout returns the number of healthy GPUs if it is as high as check_gpu_count and Slurm want:
// then the site knows that this GPU is dead, and the node is not drained. It returns 0 otherwise, and
// for a job with this GPU.
func workWithout(env *checks.Env, d checks.Device) (good int) {
	want := env.WantedGPUs
	own := func(g checks.JobGPU) bool { return g.PCI != "" && g.PCI == d.PCI || g.UUID != "" && g.UUID == d.UUID }
	switch {
	case want == 0, env.Slurm != nil && env.Slurm.Count > want:
		return 0
	case env.Job != nil && (len(env.Job.GPUs) == 0 || slices.ContainsFunc(env.Job.GPUs, own)):
		return 0
	}
	states, _ := nvml.GPUsInState(env.Host)
	if n, _ := nvml.Asked(env.Host); n != nil {
		for i := range n.GPUs {
			if g := &n.GPUs[i]; g.Err == nil && states[g] == nil {
				good++
			}
		}
	} else {
		for _, s := range *probe.Kept[[]checks.GPUState](env.Host, "states of GPUs") { // read by another process
			if s.LostError() == nil {
				good++
			}
		}
	}
	if good < want {
		return 0
	}
	return good
}

// lostFinding returns the finding of a GPU's state, a warning if the site knows that the GPU is dead.
func lostFinding(env *checks.Env, check string, d checks.Device, err error) checks.Finding {
	f := stateFinding(check, d, err)
	if good := workWithout(env, d); good > 0 {
		f.Severity = checks.Warn
		f.Message += fmt.Sprintf("; the other %d GPUs are healthy, want %d", good, env.WantedGPUs)
	}
	return f
}

// stateFinding returns the finding of a GPU's state. The zero device is a GPU that NVML does not name.
func stateFinding(check string, d checks.Device, err error) checks.Finding {
	f, text := checks.Finding{Code: "gpu.recovery.lost", Remedy: checks.RebootNode, Got: "lost"}, "the GPU is lost"
	switch {
	case errors.Is(err, nvml.ErrResetRequired):
		f, text = checks.Finding{Code: "gpu.recovery.reset", Remedy: checks.ResetGPU, Got: "reset required"}, "the GPU requires a reset"
	case errors.Is(err, nvml.ErrNoPowerCable):
		f, text = checks.Finding{Code: "gpu.recovery.power", Remedy: checks.ReseatOrRMA, Got: "no power cable"}, "the GPU has no power cable attached"
	case errors.Is(err, nvml.ErrNoInterrupts):
		f, text = checks.Finding{Code: "gpu.recovery.interrupts", Remedy: checks.RebootNode, Got: "no interrupts"}, "the GPU sends no interrupts"
	}
	if d.Kind == "" {
		text = strings.Replace(text, "the GPU", "a GPU", 1)
	}
	f.Severity, f.Device, f.Whole = checks.Fail, d, true
	return f.Phrase(check, "%s%s%s (%s)", checks.Before("", d.String(), ": "), text, BoardText(d), formatCall(err))
}

// formatCall returns the call and the number of an NVML error.
func formatCall(err error) string {
	if e, ok := errors.AsType[*nvml.Error](err); ok {
		return fmt.Sprintf("%s: NVML error %d", e.Call, e.Code)
	}
	return err.Error()
}

// reportNode replaces the finding of a failing NVML if the error has a specific remedy.
func reportNode(env *checks.Env, check string, findings []checks.Finding, err error) []checks.Finding {
	if err == nil {
		return findings
	}
	at := slices.IndexFunc(findings, func(f checks.Finding) bool {
		return slices.Contains([]string{"gpu.nvml", "gpu.driver.mismatch", "gpu.driver.missing"}, f.Code)
	})
	if at < 0 {
		return findings
	}
	var f checks.Finding
	switch {
	case nvml.IsGPUState(err):
		f = stateFinding(check, checks.Device{}, err)
	case errors.Is(err, nvml.ErrDriverMismatch):
		f = mismatchFinding(env, check, err)
	case errors.Is(err, nvml.ErrUnloaded), errors.Is(err, nvml.ErrDriverNotThere) && (nvidia.DriverUnloaded(env.Host) || notYet(env)):
		f = unloadedFinding(env, check)
	default:
		return findings
	}
	findings = slices.Clone(findings)
	findings[at] = f
	return findings
}

// mismatchFinding returns the finding of a library that was updated while the old module is loaded.
func mismatchFinding(env *checks.Env, check string, err error) checks.Finding {
	views, _ := nvidia.ReadGPUViews(env.Host) // without them the version is not named
	f := checks.Finding{Code: "gpu.driver.mismatch", Severity: checks.Fail, Remedy: checks.RebootNode, Want: views.Version, Got: nvml.File(), Whole: true}
	return f.Phrase(check, "the driver's library%s and the loaded module%s have different versions: reboot after a driver update (%s)", checks.Before(" ", f.Got, ""), checks.Before(" ", f.Want, ""), formatCall(err))
}

// GuardDriver prevents NVML from loading the driver if it was loaded in this boot and then unloaded. A
// driver that was not loaded yet is loaded on demand. Call it for each Host that can query NVML.
func GuardDriver(h *probe.Host) {
	nvml.Guard(h, func() error {
		if !nvidia.DriverUnloaded(h) {
			return nil
		}
		if !loadedInBoot(&checks.Env{Host: h, DryRun: true}) { // runs by hand count, too
			return nil
		}
		return nvml.ErrUnloaded
	})
}

// loadedInBoot reports whether an earlier run has seen the driver in this boot.
func loadedInBoot(env *checks.Env) bool {
	boot, err := probe.BootID(env.Host)
	return err == nil && recallBoards(env).Boot == boot
}

// notYet reports whether the driver may be loaded by the next health check: the monitor's unit lets its runs
// neither load a module nor make a device node.
func notYet(env *checks.Env) bool { return env.Part && !loadedInBoot(env) }

// unloadedFinding returns the finding of a node without a driver. An administrator may have unloaded it;
// evidence against that fails the node.
func unloadedFinding(env *checks.Env, check string) checks.Finding {
	views, _ := nvidia.ReadGPUViews(env.Host) // they have been read
	gpus := checks.Plural(len(views.Own()), "GPU")
	how, against := "unloaded (no module, no device node, no job)", ""
	load := lastLoad{remedy: checks.FixConfig}
	if notYet(env) {
		how = "not loaded yet, which a run of the monitor cannot do"
	} else {
		load = readLoad(env)
		against = findEvidence(env, load.failed)
	}
	if against == "" {
		return checks.Finding{Code: "gpu.driver.unloaded", Severity: checks.Skip, Got: "not loaded"}.
			Phrase(check, "the driver is %s: %s not checked", how, gpus)
	}
	return checks.Finding{Code: "gpu.driver.missing", Severity: checks.Fail, Remedy: load.remedy, Want: "loaded", Got: "not loaded", Whole: true}.
		Phrase(check, "the driver is not loaded for %s: %s", gpus, against)
}

// lastLoad is what the kernel's log says about the last attempt to load the driver.
type lastLoad struct {
	failed string // "" if it succeeded, or if the log has none
	remedy checks.Remedy
}

// DriverRemedy returns what repairs a driver that is not loaded.
func DriverRemedy(env *checks.Env) checks.Remedy { return readLoad(env).remedy }

// readLoad reads the kernel's log about the driver. A boot builds no module; but if the module could not start GPUs that
// had fallen off the bus, a power cycle can bring them back. An unreadable log says nothing.
func readLoad(env *checks.Env) lastLoad {
	none := lastLoad{remedy: checks.FixConfig}
	l, seq, lost := none, uint64(0), false
	_, _ = checks.ReadKernelLog(env, 0, checks.AboutGPU, func(r probe.KernelRecord, line checks.KernelLine) {
		switch line.Kind {
		case checks.SaysLostLong:
			lost = true
		case checks.SaysNoModule:
			l.failed, l.remedy, seq = line.Words(), checks.FixConfig, r.Seq
		case checks.SaysProbeFailed:
			if l.failed == "" {
				l.failed, seq = line.Words(), r.Seq
			}
			if lost {
				l.remedy = checks.PowerCycle
			}
		case checks.SaysLoad:
			if r.Seq > seq {
				l, lost = none, false
			}
		}
	})
	return l
}

// findEvidence returns why it was not an administrator who has unloaded the driver, "" if it may have
// been one. failed is what the kernel's log says.
func findEvidence(env *checks.Env, failed string) string {
	if env.Job != nil {
		return "job " + env.Job.ID + " needs it"
	}
	env.At("read /proc")
	if jobs, err := jobscan.RunningJobs(env.Host); err == nil && len(jobs) > 0 {
		return "job " + slices.Min(slices.Collect(maps.Keys(jobs))) + " runs here"
	}
	if s := env.Slurm; s != nil && s.Count > 0 { // a node that an administrator has drained stays drained
		return "Slurm schedules " + checks.Plural(s.Count, "GPU") + " of this node"
	}
	if failed != "" {
		return "the kernel's log has \"" + failed + "\""
	}
	boot, err := probe.BootID(env.Host)
	if kept := recallBoards(env); err == nil && kept.Boot != "" && kept.Boot != boot {
		return "it was loaded before the last boot, but not since"
	}
	return ""
}
