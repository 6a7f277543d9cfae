// Package gpustate reports what NVML says of a GPU in answer to any call: that it is lost, or
// requires a reset. It also keeps which board is at which address.
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

// NVML says of a GPU that it is lost, or of the node that its library and its driver do
// not fit, in the answer to whatever it is asked. No check looks for that: what the calls
// of a check have met becomes a finding here, for all of them.

// RecoveryCheck is the check that looks for states of GPUs; it reports those that others have met, too.
const RecoveryCheck = "check_gpu_recovery"

func init() { checks.RegisterFold(foldStates) }

// foldStates reports each GPU and node that NVML has said to be in a state ([nvml.IsGPUState]).
func foldStates(env *checks.Env, name string, findings []checks.Finding) []checks.Finding {
	n, err := nvml.Asked(env.Host)
	if n != nil {
		keepBoards(env, n)
	}
	findings = tellNode(env, name, findings, err)
	states, node := nvml.GPUsInState(env.Host)
	if n != nil && node != nil {
		findings = append(findings, stateFinding(name, checks.Device{}, node))
	}
	for _, g := range slices.SortedFunc(maps.Keys(states), func(a, b *nvml.GPU) int { return cmp.Compare(a.Index, b.Index) }) {
		findings = foldGPU(env, name, checks.GPUDevice(g), states[g], findings)
	}
	for _, s := range *probe.Kept[[]checks.GPUState](env.Host, "states of GPUs") { // asked by a process of its own
		d := checks.Device{Kind: "gpu", Name: fmt.Sprintf("gpu%d", s.Index), PCI: s.PCI, Serial: s.Serial, UUID: s.UUID}
		failed := func(f checks.Finding) bool { return f.Severity == checks.Fail && f.Device.Of(d) }
		if err := s.LostError(); err != nil && (!slices.ContainsFunc(findings, failed) || workWithout(env, d) > 0) {
			findings = foldGPU(env, name, d, err, findings)
		}
	}
	return nameBoards(env, findings)
}

// LostGPUs returns a finding for each GPU with a state that NVML has reported ([nvml.IsGPUState])
// in answer to any call: no check reads the counters of a job.
func LostGPUs(env *checks.Env) (findings []checks.Finding) {
	states, _ := nvml.GPUsInState(env.Host)
	for _, g := range slices.SortedFunc(maps.Keys(states), func(a, b *nvml.GPU) int { return cmp.Compare(a.Index, b.Index) }) {
		findings = append(findings, lostFinding(env, RecoveryCheck, fromBoards(env, checks.GPUDevice(g)), states[g]))
	}
	return findings
}

// foldGPU replaces what a check has found of a GPU by the state that NVML says the GPU
// is in. A GPU that the configuration counts as missing stays a warning.
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
		if f.Code != "gpu.error" && f.Code != "gpu.count.nvml" && !strings.HasPrefix(f.Code, "gpu.recovery.") {
			more++
		}
	}
	whole := lostFinding(env, check, d, err)
	if more > 0 {
		whole.Message += fmt.Sprintf("; %s of it", checks.Plural(more, "more finding"))
	}
	if at < 0 {
		at = len(findings)
	}
	rest := slices.DeleteFunc(slices.Clone(findings[at:]), func(f checks.Finding) bool { return f.Device.Of(d) })
	rest = slices.DeleteFunc(rest, func(f checks.Finding) bool { return f.Code == "gpu.unsupported" }) // of a node with this GPU alone
	return append(append(slices.Clone(findings[:at]), whole), rest...)
}

// workWithout returns how many GPUs work, if that is as many as the line of check_gpu_count
// wants and as Slurm has for jobs: the site knows then that this one is dead, and it does not
// drain the node. 0 otherwise, and for a job that was given this GPU.
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
		for _, s := range *probe.Kept[[]checks.GPUState](env.Host, "states of GPUs") { // asked by a process of its own
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

// lostFinding is the finding of a state of a GPU, a warning if the site works without it.
func lostFinding(env *checks.Env, check string, d checks.Device, err error) checks.Finding {
	f := stateFinding(check, d, err)
	if good := workWithout(env, d); good > 0 {
		f.Severity = checks.Warn
		f.Message += fmt.Sprintf("; without it %d work, want %d", good, env.WantedGPUs)
	}
	return f
}

// stateFinding is the finding of a state of a GPU. The zero device is one that NVML does
// not name.
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
	return f.Phrase(check, "%s%s%s (%s)", checks.Before("", d.String(), ": "), text, BoardText(d), callText(err))
}

// callText is an error of NVML without the words for it.
func callText(err error) string {
	if e, ok := errors.AsType[*nvml.Error](err); ok {
		return fmt.Sprintf("%s: NVML error %d", e.Call, e.Code)
	}
	return err.Error()
}

// tellNode replaces what a check says of a node whose NVML cannot be asked, where the
// error says what is to be done.
func tellNode(env *checks.Env, check string, findings []checks.Finding, err error) []checks.Finding {
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
		f = driverMismatch(env, check, err)
	case errors.Is(err, nvml.ErrUnloaded), errors.Is(err, nvml.ErrDriverNotThere) && nvidia.DriverUnloaded(env.Host):
		f = driverUnloaded(env, check)
	default:
		return findings
	}
	findings = slices.Clone(findings)
	findings[at] = f
	return findings
}

// driverMismatch is the finding of a library that was updated while the old module is loaded.
func driverMismatch(env *checks.Env, check string, err error) checks.Finding {
	views, _ := nvidia.ReadGPUViews(env.Host) // without them the version is not named
	f := checks.Finding{Code: "gpu.driver.mismatch", Severity: checks.Fail, Remedy: checks.RebootNode, Want: views.Version, Got: nvml.File(), Whole: true}
	return f.Phrase(check, "the driver's library%s and the loaded module%s are of different versions: an update needs a reboot (%s)", checks.Before(" ", f.Got, ""), checks.Before(" ", f.Want, ""), callText(err))
}

// GuardDriver refuses to start NVML, and with it the driver, where the driver was there in
// this boot and has been unloaded since. One that has not been loaded yet is loaded on demand.
// Set it on each Host that can ask NVML.
func GuardDriver(h *probe.Host) {
	nvml.Guard(h, func() error {
		if !nvidia.DriverUnloaded(h) {
			return nil
		}
		boot, err := probe.BootID(h)
		e := &checks.Env{Host: h, Hold: true} // a run by hand has seen the driver, too
		if err != nil || recallBoards(e).Boot != boot {
			return nil
		}
		return nvml.ErrUnloaded
	})
}

// driverUnloaded is the finding of a node whose driver is not there at all. A person may have
// unloaded it; what speaks against that fails the node.
func driverUnloaded(env *checks.Env, check string) checks.Finding {
	views, _ := nvidia.ReadGPUViews(env.Host) // they have been read
	gpus := checks.Plural(len(views.Own()), "GPU")
	against := unloadedButFor(env)
	if against == "" {
		return checks.Finding{Code: "gpu.driver.unloaded", Severity: checks.Skip, Got: "not loaded"}.
			Phrase(check, "the driver is unloaded (no module, no device node, no job): %s not checked", gpus)
	}
	return checks.Finding{Code: "gpu.driver.missing", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "loaded", Got: "not loaded", Whole: true}.
		Phrase(check, "the driver is not loaded for %s: %s", gpus, against)
}

// unloadedButFor says why it is no person who has unloaded the driver, "" if it may be.
func unloadedButFor(env *checks.Env) string {
	if env.Job != nil {
		return "job " + env.Job.ID + " needs it"
	}
	env.At("read /proc")
	if jobs, err := jobscan.RunningJobs(env.Host); err == nil && len(jobs) > 0 {
		return "job " + slices.Min(slices.Collect(maps.Keys(jobs))) + " runs here"
	}
	if s := env.Slurm; s != nil && s.Count > 0 { // a node that a person has drained stays as it is
		return "Slurm gives jobs " + checks.Plural(s.Count, "GPU") + " of this node"
	}
	failed, seq := "", uint64(0)
	_, _ = checks.ReadKernelLog(env, 0, checks.AboutGPU, func(r probe.KernelRecord, l checks.KernelLine) { // a log that cannot be read says nothing
		switch {
		case l.Kind == checks.SaysNoDriver && failed == "":
			failed, seq = l.Words(), r.Seq
		case l.Kind == checks.SaysLoad && r.Seq > seq:
			failed = ""
		}
	})
	if failed != "" {
		return "the kernel's log has \"" + failed + "\""
	}
	boot, err := probe.BootID(env.Host)
	if kept := recallBoards(env); err == nil && kept.Boot != "" && kept.Boot != boot {
		return "it was before the last boot, and has not been since"
	}
	return ""
}
