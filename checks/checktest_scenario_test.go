package checks

import (
	"maps"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// scenario is one line of nhc.conf on a small node. "{root}" stands for the
// directory that holds the node, in words and files as in the wanted findings.
type scenario struct {
	name    string
	words   []string          // what stands behind the check's name
	files   map[string]string // the node's files; a name that ends in a slash is a directory
	links   map[string]string // the node's symbolic links
	tools   []string          // programs of this machine that the node has, too
	live    bool              // the check looks at this machine; files are only there
	vars    map[string]string // Env.Vars
	timeout time.Duration     // Env.Timeout
	table   map[string]any    // the TOML table that means the same as words
	acts    bool              // the bound check may change something
	broken  bool              // what the check reads is missing, unreadable or garbage
	want    []Finding
	leaves  map[string]string // what is in the node's files afterwards; "" is no such file
	past    string            // where on the node earlier runs have kept what they know; "": nowhere

	mtimes map[string]time.Time // when some of the files were last written

	nvml    *probe.NVML // what NVML says
	nvmlErr error       // why it says nothing

	platform *Platform        // of every GPU
	slurm    *probe.SlurmGPUs // what Slurm's configuration says

	job *SelftestJob // that the run is for

	// libraries puts fake libraries of vendors, or fake programs, into a directory, and
	// gives the variables of nhc.conf that name them.
	libraries func(t *testing.T, dir string) map[string]string

	dcgm func(h *probe.Host) // gives it a DCGM

	node     string // the healthy node of the self-test that files, links and nvml began as; "": see baseOf
	still    bool   // it matters which of eight devices is the one
	unitOnly bool   // not for the self-test: on a node that it has not
}

// of are the words behind the name of a check.
func of(words ...string) []string { return words }

// usageFinding is the failure of a check that was given the wrong words.
func usageFinding(message, want string) Finding {
	return Finding{Code: "config.usage", Severity: Fail, Remedy: FixConfig, Want: want, Message: message}
}

// on gives every GPU a platform.
func (s scenario) on(p *Platform) scenario {
	s.platform = p
	return s
}

// lacking removes files of the node.
func (s scenario) lacking(names ...string) scenario {
	for _, n := range names {
		delete(s.files, n)
	}
	return s
}

// holding adds a file to the node, or replaces it.
func (s scenario) holding(name, content string) scenario {
	s.files[name] = content
	return s
}

// linked adds symbolic links: pairs of a name and where it leads.
func (s scenario) linked(pairs ...string) scenario {
	s.links = maps.Clone(s.links)
	if s.links == nil {
		s.links = map[string]string{}
	}
	for i := 0; i < len(pairs); i += 2 {
		s.links[pairs[i]] = pairs[i+1]
	}
	return s
}

// contained is the same in a container with a PID namespace of its own.
func (s scenario) contained() scenario { return s.linked("proc/self/ns/pid", "pid:[4026532000]") }

// leaving is a scenario in which the check changes the node.
func (s scenario) leaving(leaves map[string]string) scenario {
	s.leaves, s.acts = leaves, true
	return s
}

// orTable adds the TOML table that means the same as the words.
func (s scenario) orTable(table map[string]any) scenario {
	s.table = table
	return s
}

func (s scenario) onBroken() scenario {
	s.broken = true
	return s
}

// in limits the whole run.
func (s scenario) in(timeout time.Duration) scenario {
	s.timeout = timeout
	return s
}

// underVars gives a scenario other variables.
func (s scenario) underVars(vars map[string]string) scenario {
	s.vars = vars
	return s
}

// changed is a scenario of which something else is changed.
func changed(s scenario, change func(*scenario)) scenario {
	change(&s)
	return s
}

func odd(s scenario) scenario {
	s.broken = true
	return s
}

// unreadableAt has a file where a directory should be.
func unreadableAt(s scenario, dir string) scenario {
	for f := range s.files {
		if len(f) > len(dir) && f[:len(dir)+1] == dir+"/" {
			delete(s.files, f)
		}
	}
	for f := range s.links {
		if len(f) > len(dir) && f[:len(dir)+1] == dir+"/" {
			delete(s.links, f)
		}
	}
	return s.holding(dir, "")
}

func (s scenario) changed(files map[string]string) scenario {
	maps.Copy(s.files, files)
	return s
}

// saying gives a scenario its words.
func (s scenario) saying(words ...string) scenario {
	s.words = words
	return s
}

// asIs keeps a scenario from being tried with another GPU: its neighbours matter.
func asIs(s scenario) scenario {
	s.still = true
	return s
}

func bound(t *testing.T, line []string) Check {
	t.Helper()
	info, ok := Lookup(line[0])
	if !ok {
		t.Fatalf("no check %s", line[0])
	}
	c := info.New()
	if err := Bind(c, line[1:]); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return c
}
