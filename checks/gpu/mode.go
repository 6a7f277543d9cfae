package gpu

import (
	"context"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuMode checks that the GPUs are set as they should be: MIG, compute mode, ECC,
// and confidential computing, each if an option says how. It warns of a mode that
// the next reset will change. Without -c and -e it warns where GPUs of one model
// differ, and fails one that is prohibited while others are not: no program can use
// it. It warns where all GPUs of a model are prohibited. Without -m MIG may be on for some GPUs and off for others.
//
//	gpu* || check_gpu_mode -m off -c default -e on
type gpuMode struct {
	MIG     string `opt:"m" toml:"mig"`     // MIG mode: on or off
	Compute string `opt:"c" toml:"compute"` // compute mode: default, exclusive or prohibited
	ECC     string `opt:"e" toml:"ecc"`     // ECC: on or off
	CC      string `opt:"C" toml:"cc"`      // confidential computing: on or off
}

const gpuModeName = "check_gpu_mode"

// prohibited is the compute mode in which no program can use a GPU.
const prohibited = "prohibited"

func init() {
	checks.Register(checks.Info{
		Name:    gpuModeName,
		Usage:   "[-m on|off] [-c default|exclusive|prohibited] [-e on|off] [-C on|off]",
		Summary: "MIG, compute and ECC modes are as wanted",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuMode{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.mode.mig":     "nvidia-smi -mig 0 or 1 with -i and the GPU's address, with no job on it, and a reset of the GPU; see who has set it.",
				"gpu.mode.compute": "nvidia-smi -c DEFAULT (or EXCLUSIVE_PROCESS, PROHIBITED) with -i and the GPU's address.",
				"gpu.mode.ecc":     "nvidia-smi -e 1 or 0 with -i and the GPU's address, then reset the GPU or reboot.",
				"gpu.mode.cc":      "Confidential computing is set for the whole node with NVIDIA's gpu-admin-tools, and counts from a reset on.",
				"gpu.mode.pending": "Nothing now: the mode changes at the next reset of the GPU or reboot. If that is not wanted set it back.",
				"gpu.mode.differ":  "Set all GPUs alike, or say in nhc.conf how they should be.",
			}
		},
	})
}

// modeKind is one mode: what is wanted of it and how a GPU says it.
type modeKind struct {
	code, name, want string
	words            []string
	of               func(*nvml.GPU) nvml.Reading[string]
	pending          func(*nvml.GPU) nvml.Reading[bool]
}

func switched(of func(*nvml.GPU) nvml.Reading[bool]) func(*nvml.GPU) nvml.Reading[string] {
	return func(g *nvml.GPU) nvml.Reading[string] {
		r := of(g)
		return nvml.Reading[string]{Value: onOff(r.Value), Known: r.Known, Err: r.Err}
	}
}

func (c *gpuMode) kinds() []modeKind {
	onOrOff := []string{"on", "off"}
	return []modeKind{
		{"mig", "MIG mode", c.MIG, onOrOff, switched(func(g *nvml.GPU) nvml.Reading[bool] { return g.Modes.MIG }),
			func(g *nvml.GPU) nvml.Reading[bool] { return g.Modes.MIGPending }},
		{"compute", "compute mode", c.Compute, []string{"default", "exclusive", prohibited},
			func(g *nvml.GPU) nvml.Reading[string] { return g.Modes.Compute }, nil},
		{"ecc", "ECC", c.ECC, onOrOff, switched(func(g *nvml.GPU) nvml.Reading[bool] { return g.ECC.On }),
			func(g *nvml.GPU) nvml.Reading[bool] { return g.ECC.Pending }},
	}
}

func (c *gpuMode) Run(_ context.Context, env *checks.Env) []checks.Finding {
	kinds := c.kinds()
	for _, k := range append(kinds, modeKind{name: "confidential computing", want: c.CC, words: []string{"on", "off"}}) {
		if k.want != "" && !slices.Contains(k.words, k.want) {
			return []checks.Finding{checks.BadWord(gpuModeName, k.name, k.want, strings.Join(k.words, " or "))}
		}
	}
	s, findings := AskNVML(env, gpuModeName, nvml.GroupModes)
	if s == nil {
		return findings
	}
	s.Each(func(s *GPUs, g *nvml.GPU) {
		for _, k := range kinds {
			k.judge(s, g)
		}
	})
	for _, k := range kinds {
		if k.want == "" && k.code != "mig" { // a node may have whole GPUs and parts
			k.differ(s)
		}
	}
	if c.CC != "" {
		s.Findings = append(s.Findings, c.judgeCC(s)...)
	}
	return s.Done()
}

// judge compares one mode of one GPU. A GPU that does not have the mode has it
// off; a mode that it has to have on is then wrong.
func (k modeKind) judge(s *GPUs, g *nvml.GPU) {
	got, known := Value(s, k.of(g))
	if !known && k.want == "on" && k.of(g).Err == nil && g.Name.Known {
		got, known = "not supported", true
		s.Judged = true
	}
	if known && k.want != "" && got != k.want {
		s.Report(g, checks.Finding{Code: "gpu.mode." + k.code, Severity: checks.Fail, Want: k.want, Got: got, Remedy: checks.FixConfig}, "%s", k.name)
	}
	if k.pending == nil || !known {
		return
	}
	if p, ok := Value(s, k.pending(g)); ok && onOff(p) != got {
		s.Report(g, checks.Finding{Code: "gpu.mode.pending", Severity: checks.Warn}, "%s is %s, and will be %s after a reset", k.name, got, onOff(p))
	}
}

// differ compares the GPUs of a model with each other.
func (k modeKind) differ(s *GPUs) {
	usable := func(g *nvml.GPU) bool { return k.of(g).Known && k.of(g).Value != prohibited }
	of := func(g *nvml.GPU) (string, bool) { return k.of(g).Value, usable(g) }
	s.unlike(of, func(g *nvml.GPU, want, got, than string) {
		s.Report(g, checks.Finding{Code: "gpu.mode.differ", Severity: checks.Warn, Want: want, Got: got, Remedy: checks.FixConfig}, "%s is not that of %s", k.name, than)
	})
	for i := range s.NVML.GPUs {
		g := &s.NVML.GPUs[i]
		other := slices.IndexFunc(s.NVML.GPUs, func(o nvml.GPU) bool { return o.Name.Value == g.Name.Value && usable(&o) })
		switch {
		case k.of(g).Value != prohibited:
		case other < 0:
			f := checks.Finding{Code: "gpu.mode.compute", Severity: checks.Warn, Want: "default or exclusive", Got: prohibited, Remedy: checks.FixConfig}
			s.Report(g, f, "no program can use the GPU: compute mode")
		default:
			f := checks.Finding{Code: "gpu.mode.differ", Severity: checks.Fail, Want: k.of(&s.NVML.GPUs[other]).Value, Got: prohibited, Remedy: checks.FixConfig}
			s.Report(g, f, "no program can use the GPU: %s is not that of the others", k.name)
		}
	}
}

func (c *gpuMode) judgeCC(s *GPUs) []checks.Finding {
	got := "not supported"
	switch r := s.NVML.CC; {
	case r.Err != nil:
		s.Judged = true
		return []checks.Finding{checks.Finding{Code: "gpu.error", Severity: checks.Unknown}.Describe(gpuModeName, "could not tell: %v", r.Err)}
	case r.Known:
		got = onOff(r.Value)
	case c.CC == "off":
		got = "off" // a driver or GPU that does not know it
	}
	if got == c.CC {
		return nil
	}
	f := checks.Finding{Code: "gpu.mode.cc", Severity: checks.Fail, Want: c.CC, Got: got, Remedy: checks.FixConfig}.Describe(gpuModeName, "confidential computing")
	s.Judged = true
	return []checks.Finding{f}
}
