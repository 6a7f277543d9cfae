// Package checktest provides the tools for testing checks: scenarios, tables of them, and the
// tests that every family must pass.
package checktest

import (
	"maps"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
)

// Scenario is one line of nhc.conf on a small node. "{root}" means the directory of the node, in
// arguments, files and expected findings.
type Scenario struct {
	Name    string
	Words   []string          // the arguments of the check
	Files   map[string]string // the node's files; a name that ends in a slash is a directory
	Links   map[string]string // the node's symbolic links
	Tools   []string          // programs of this machine that the node has, too
	Live    bool              // the check reads this machine; files are additional
	Vars    map[string]string // Env.Vars
	timeout time.Duration     // Env.Timeout
	Table   map[string]any    // the equivalent TOML table
	Acts    bool              // the bound check can change something
	Broken  bool              // the input of the check is missing, unreadable or garbage
	Want    []checks.Finding
	Leaves  map[string]string // the node's files afterwards; "" means that the file must not exist
	Past    string            // the directory with data of earlier runs; "": none

	Mtimes map[string]time.Time // modification times of some files

	NVML    *nvml.Snapshot // the state that NVML reports
	NVMLErr error          // the error that NVML returns

	Platform *checks.Platform   // the platform of every GPU
	Slurm    *jobscan.SlurmGPUs // the node's GPUs in Slurm's configuration
	Part     bool               // Env.Part

	Job *selftest.Job // the job of a prolog or an epilog

	// Libraries writes fake vendor libraries or fake programs to a directory and returns the
	// variables of nhc.conf that name them.
	Libraries func(t *testing.T, dir string) map[string]string

	dcgm func(h *probe.Host) // installs a fake DCGM

	Node     string // the healthy node of the self-test that files, links and nvml were made from; "": see baseOf
	Still    bool   // the scenario depends on the position of the faulty device among the eight
	UnitOnly bool   // not for the self-test: its node is not there
}

// Of returns its arguments as a list.
func Of(words ...string) []string { return words }

// UsageFinding returns the failure of a check with wrong arguments.
func UsageFinding(message, want string) checks.Finding {
	return checks.Finding{Code: "config.usage", Severity: checks.Fail, Remedy: checks.FixConfig, Want: want, Message: message}
}

// On sets the platform of every GPU.
func (s Scenario) On(p *checks.Platform) Scenario {
	s.Platform = p
	return s
}

// Lacking removes files of the node.
func (s Scenario) Lacking(names ...string) Scenario {
	for _, n := range names {
		delete(s.Files, n)
	}
	return s
}

// Holding adds a file to the node, or replaces it.
func (s Scenario) Holding(name, content string) Scenario {
	s.Files[name] = content
	return s
}

// Linked adds symbolic links: pairs of name and target.
func (s Scenario) Linked(pairs ...string) Scenario {
	s.Links = maps.Clone(s.Links)
	if s.Links == nil {
		s.Links = map[string]string{}
	}
	for i := 0; i < len(pairs); i += 2 {
		s.Links[pairs[i]] = pairs[i+1]
	}
	return s
}

// Contained moves the scenario into a container with its own PID namespace.
func (s Scenario) Contained() Scenario { return s.Linked("proc/self/ns/pid", "pid:[4026532000]") }

// Leaving sets the files that the check must leave on the node.
func (s Scenario) Leaving(leaves map[string]string) Scenario {
	s.Leaves, s.Acts = leaves, true
	return s
}

// OrTable adds the equivalent TOML table.
func (s Scenario) OrTable(table map[string]any) Scenario {
	s.Table = table
	return s
}

// OnBroken marks the input of the check as missing, unreadable or garbage.
func (s Scenario) OnBroken() Scenario {
	s.Broken = true
	return s
}

// In sets the time limit of the run.
func (s Scenario) In(timeout time.Duration) Scenario {
	s.timeout = timeout
	return s
}

// UnderVars sets the variables of a scenario.
func (s Scenario) UnderVars(vars map[string]string) Scenario {
	s.Vars = vars
	return s
}

// Changed returns a scenario after change.
func Changed(s Scenario, change func(*Scenario)) Scenario {
	change(&s)
	return s
}

// Odd is [Scenario.OnBroken].
func Odd(s Scenario) Scenario {
	s.Broken = true
	return s
}

// UnreadableAt puts a file at the path of a directory.
func UnreadableAt(s Scenario, dir string) Scenario {
	for f := range s.Files {
		if len(f) > len(dir) && f[:len(dir)+1] == dir+"/" {
			delete(s.Files, f)
		}
	}
	for f := range s.Links {
		if len(f) > len(dir) && f[:len(dir)+1] == dir+"/" {
			delete(s.Links, f)
		}
	}
	return s.Holding(dir, "")
}

// Changed replaces files of the node.
func (s Scenario) Changed(files map[string]string) Scenario {
	maps.Copy(s.Files, files)
	return s
}

// Saying sets the arguments.
func (s Scenario) Saying(words ...string) Scenario {
	s.Words = words
	return s
}

// AsIs prevents the scenario from being repeated with another GPU: the neighbours matter.
func AsIs(s Scenario) Scenario {
	s.Still = true
	return s
}

// Bound returns a check bound to the arguments of a line.
func Bound(t *testing.T, line []string) checks.Check {
	t.Helper()
	info, ok := checks.Lookup(line[0])
	if !ok {
		t.Fatalf("no check %s", line[0])
	}
	c := info.New()
	if err := checks.Bind(c, line[1:]); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return c
}
