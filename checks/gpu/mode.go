package gpu

import (
	"context"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuMode checks the modes of every GPU: MIG, compute mode, ECC and confidential computing, each
// if its option is given. It warns of a mode that the next reset will change.
//
// Without -c and -e it warns if GPUs of one model differ. A GPU with compute mode prohibited fails
// if other GPUs of its model have another mode, since no program can use it; if all are prohibited
// the check warns. Without -m MIG can be on for some GPUs and off for others.
//
//	gpu* || check_gpu_mode -m off -c default -e on
type gpuMode struct {
	MIG     string `opt:"m" toml:"mig"`     // MIG mode: on or off; default: not checked
	Compute string `opt:"c" toml:"compute"` // compute mode: default, exclusive or prohibited; default: the same on all GPUs of a model
	ECC     string `opt:"e" toml:"ecc"`     // ECC: on or off; default: the same on all GPUs of a model
	CC      string `opt:"C" toml:"cc"`      // confidential computing: on or off; default: not checked
}

const gpuModeName = "check_gpu_mode"

// prohibited is a compute mode: no program can use the GPU.
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
				"gpu.mode.mig":     "With no job on the GPU, set MIG with nvidia-smi -i ADDRESS -mig 0 (or 1) and reset the GPU. Find out who changed it.",
				"gpu.mode.compute": "Set the compute mode: nvidia-smi -i ADDRESS -c DEFAULT (or EXCLUSIVE_PROCESS, PROHIBITED).",
				"gpu.mode.ecc":     "Set ECC with nvidia-smi -i ADDRESS -e 1 (or 0), then reset the GPU or reboot.",
				"gpu.mode.cc":      "Set confidential computing for the whole node with NVIDIA's gpu-admin-tools, then reset the GPUs.",
				"gpu.mode.pending": "Nothing now: the mode changes at the next reset of the GPU or reboot. If you do not want that, set it back.",
				"gpu.mode.differ":  "Set the same mode on all GPUs, or give the mode in nhc.conf.",
			}
		},
	})
}

// modeKind is one mode: its wanted value and how to read it from a GPU.
type modeKind struct {
	code, name, want string
	words            []string
	of               func(*nvml.GPU) nvml.Reading[string]
	pending          func(*nvml.GPU) nvml.Reading[bool]
}

func readSwitch(of func(*nvml.GPU) nvml.Reading[bool]) func(*nvml.GPU) nvml.Reading[string] {
	return func(g *nvml.GPU) nvml.Reading[string] {
		r := of(g)
		return nvml.Reading[string]{Value: formatSwitch(r.Value), Known: r.Known, Err: r.Err}
	}
}

func (c *gpuMode) listKinds() []modeKind {
	onOrOff := []string{"on", "off"}
	return []modeKind{
		{"mig", "MIG mode", c.MIG, onOrOff, readSwitch(func(g *nvml.GPU) nvml.Reading[bool] { return g.Modes.MIG }),
			func(g *nvml.GPU) nvml.Reading[bool] { return g.Modes.MIGPending }},
		{"compute", "compute mode", c.Compute, []string{"default", "exclusive", prohibited},
			func(g *nvml.GPU) nvml.Reading[string] { return g.Modes.Compute }, nil},
		{"ecc", "ECC", c.ECC, onOrOff, readSwitch(func(g *nvml.GPU) nvml.Reading[bool] { return g.ECC.On }),
			func(g *nvml.GPU) nvml.Reading[bool] { return g.ECC.Pending }},
	}
}

func (c *gpuMode) Run(_ context.Context, env *checks.Env) []checks.Finding {
	kinds := c.listKinds()
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
		if k.want == "" && k.code != "mig" { // a node may have GPUs with and without MIG
			k.compare(s)
		}
	}
	s.total("with MIG", func(g *nvml.GPU) (n uint64, known bool) {
		if withMIG(g) {
			n = 1
		}
		return n, g.Modes.MIG.Known
	})
	if c.CC != "" {
		s.Findings = append(s.Findings, c.judgeCC(s)...)
	}
	return s.Done()
}

// judge compares one mode of one GPU with the wanted value. A GPU that does not support a mode
// fails if the mode must be on.
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
	if p, ok := Value(s, k.pending(g)); ok && formatSwitch(p) != got {
		s.Report(g, checks.Finding{Code: "gpu.mode.pending", Severity: checks.Warn}, "%s is %s and will be %s after a reset", k.name, got, formatSwitch(p))
	}
}

// compare compares the GPUs of a model with each other.
func (k modeKind) compare(s *GPUs) {
	usable := func(g *nvml.GPU) bool { return k.of(g).Known && k.of(g).Value != prohibited }
	of := func(g *nvml.GPU) (string, bool) { return k.of(g).Value, usable(g) }
	s.reportOutliers(of, func(g *nvml.GPU, want, got, reference string) {
		s.Report(g, checks.Finding{Code: "gpu.mode.differ", Severity: checks.Warn, Want: want, Got: got, Remedy: checks.FixConfig}, "%s differs from that of %s", k.name, reference)
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
			s.Report(g, f, "no program can use the GPU: %s differs from that of the others", k.name)
		}
	}
}

func (c *gpuMode) judgeCC(s *GPUs) []checks.Finding {
	got := "not supported"
	switch r := s.NVML.CC; {
	case r.Err != nil:
		s.Judged = true
		return []checks.Finding{checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown}.Describe(gpuModeName, "confidential computing cannot be read: %v", r.Err)}
	case r.Known:
		got = formatSwitch(r.Value)
	case c.CC == "off":
		got = "off" // the driver or the GPU does not support it
	}
	if got == c.CC {
		return nil
	}
	f := checks.Finding{Code: "gpu.mode.cc", Severity: checks.Fail, Want: c.CC, Got: got, Remedy: checks.FixConfig}.Describe(gpuModeName, "confidential computing")
	s.Judged = true
	return []checks.Finding{f}
}
