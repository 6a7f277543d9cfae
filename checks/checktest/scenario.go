// Package checktest is what the tests of checks are written with: scenarios, tables of them, and
// the tests that every family must pass.
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

// Scenario is one line of nhc.conf on a small node. "{root}" stands for the
// directory that holds the node, in words and files as in the wanted findings.
type Scenario struct {
	Name    string
	Words   []string          // what stands behind the check's name
	Files   map[string]string // the node's files; a name that ends in a slash is a directory
	Links   map[string]string // the node's symbolic links
	Tools   []string          // programs of this machine that the node has, too
	Live    bool              // the check looks at this machine; files are only there
	Vars    map[string]string // Env.Vars
	timeout time.Duration     // Env.Timeout
	Table   map[string]any    // the TOML table that means the same as words
	Acts    bool              // the bound check may change something
	Broken  bool              // what the check reads is missing, unreadable or garbage
	Want    []checks.Finding
	Leaves  map[string]string // what is in the node's files afterwards; "" is no such file
	Past    string            // where on the node earlier runs have kept what they know; "": nowhere

	Mtimes map[string]time.Time // when some of the files were last written

	NVML    *nvml.Snapshot // what NVML says
	NVMLErr error          // why it says nothing

	Platform *checks.Platform   // of every GPU
	Slurm    *jobscan.SlurmGPUs // what Slurm's configuration says

	Job *selftest.Job // that the run is for

	// Libraries puts fake libraries of vendors, or fake programs, into a directory, and
	// gives the variables of nhc.conf that name them.
	Libraries func(t *testing.T, dir string) map[string]string

	dcgm func(h *probe.Host) // gives it a DCGM

	Node     string // the healthy node of the self-test that files, links and nvml began as; "": see baseOf
	Still    bool   // it matters which of eight devices is the one
	UnitOnly bool   // not for the self-test: on a node that it has not
}

// Of are the words behind the name of a check.
func Of(words ...string) []string { return words }

// UsageFinding is the failure of a check that was given the wrong words.
func UsageFinding(message, want string) checks.Finding {
	return checks.Finding{Code: "config.usage", Severity: checks.Fail, Remedy: checks.FixConfig, Want: want, Message: message}
}

// On gives every GPU a platform.
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

// Linked adds symbolic links: pairs of a name and where it leads.
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

// Contained is the same in a container with a PID namespace of its own.
func (s Scenario) Contained() Scenario { return s.Linked("proc/self/ns/pid", "pid:[4026532000]") }

// Leaving is a scenario in which the check changes the node.
func (s Scenario) Leaving(leaves map[string]string) Scenario {
	s.Leaves, s.Acts = leaves, true
	return s
}

// OrTable adds the TOML table that means the same as the words.
func (s Scenario) OrTable(table map[string]any) Scenario {
	s.Table = table
	return s
}

// OnBroken says that what the check reads is missing, unreadable or garbage.
func (s Scenario) OnBroken() Scenario {
	s.Broken = true
	return s
}

// In limits the whole run.
func (s Scenario) In(timeout time.Duration) Scenario {
	s.timeout = timeout
	return s
}

// UnderVars gives a scenario other variables.
func (s Scenario) UnderVars(vars map[string]string) Scenario {
	s.Vars = vars
	return s
}

// Changed is a scenario of which something else is changed.
func Changed(s Scenario, change func(*Scenario)) Scenario {
	change(&s)
	return s
}

// Odd is [Scenario.OnBroken].
func Odd(s Scenario) Scenario {
	s.Broken = true
	return s
}

// UnreadableAt has a file where a directory should be.
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

// Saying gives a scenario its words.
func (s Scenario) Saying(words ...string) Scenario {
	s.Words = words
	return s
}

// AsIs keeps a scenario from being tried with another GPU: its neighbours matter.
func AsIs(s Scenario) Scenario {
	s.Still = true
	return s
}

// Bound is a check with the words of a line.
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
