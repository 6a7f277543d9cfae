// Package selftest tries checks on small nodes that the program carries.
package selftest

import (
	"embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// Scenarios of nodes on which a check must say one thing and no other, kept in
// the program, so that a site can see on its own machine that each check of GPUs
// fails when it should. They are those of the unit tests, written to
// checks/selftest by them, and are only read when they are asked for.

//go:embed *.toml nodes
var selftestData embed.FS

// Scenario is one scenario: a node, a line of nhc.conf, what the check must say.
type Scenario struct {
	Check string             `toml:"-"`
	Name  string             `toml:"name"`  // what is broken
	Words []string           `toml:"words"` // what stands behind the check's name
	Vars  map[string]string  `toml:"vars"`  // variables of nhc.conf
	Slurm *jobscan.SlurmGPUs `toml:"slurm"` // what Slurm's configuration says of the node
	Past  string             `toml:"past"`  // where earlier runs have kept what they know; "" is /past, "none" nowhere

	Node  string            `toml:"node"`  // healthy GPUs of checks/selftest/nodes, of which the rest is changed; "" has none
	NVML  map[string]any    `toml:"nvml"`  // what NVML says otherwise: "gpu3.ECC.SRAM.Uncorrected" = 2
	Error map[string]any    `toml:"error"` // why NVML says nothing
	Files map[string]string `toml:"files"` // a name that ends in a slash is a directory
	Lacks []string          `toml:"lacks"` // files that the node has not; a slash at the end: all below
	Links map[string]string `toml:"links"` // symbolic links
	Still bool              `toml:"still"` // it matters which of eight devices is the one

	Platform *checks.Platform `toml:"platform"` // what every GPU's platform has; none: nobody knows it

	Job *Job `toml:"job"` // that has ended

	Want []Finding `toml:"want"` // in order; none: the check passes and says nothing
}

// Job is a job that has ended on the node.
type Job struct {
	ID     string `toml:"id"`
	UID    int    `toml:"uid"`
	User   string `toml:"user"`
	GPUs   []int  `toml:"gpus"`   // by number
	Shared bool   `toml:"shared"` // other jobs have parts of them
}

// On is the job on a node with those GPUs; nil is none.
func (j *Job) On(n *nvml.Snapshot) *checks.Job {
	if j == nil {
		return nil
	}
	job := &checks.Job{ID: j.ID, UID: j.UID, User: j.User, Shared: j.Shared, Ended: true}
	for _, i := range j.GPUs {
		g := checks.JobGPU{Minor: i}
		if n != nil && i >= 0 && i < len(n.GPUs) {
			g.PCI, g.UUID = n.GPUs[i].PCI, n.GPUs[i].UUID.Value
		}
		job.GPUs = append(job.GPUs, g)
	}
	return job
}

// Finding is what a check must say. "{check}" in the message stands for
// its name, "{root}" for where the node is.
type Finding struct {
	Severity string        `toml:"severity"`
	Code     string        `toml:"code"`
	Device   string        `toml:"device"` // gpu3 0000:13:00.0
	Remedy   checks.Remedy `toml:"remedy"`
	Message  string        `toml:"message"`
}

func (f Finding) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s, about %s, remedy %s: %s", f.Severity, f.Code, orNone(f.Device), orNone(string(f.Remedy)), f.Message))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// selftestFile is a file of checks/selftest, or one that a site has written.
type selftestFile struct {
	Checks    []string          `toml:"checks"` // the names of one check
	Files     map[string]string `toml:"files"`  // those of each scenario without a node
	Scenarios []Scenario        `toml:"scenario"`
}

// All are the scenarios that the program has, by check.
func All() ([]Scenario, error) {
	entries, err := selftestData.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("read scenarios: %w", err)
	}
	var list []Scenario
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		data, err := selftestData.ReadFile(e.Name())
		if err != nil {
			return nil, fmt.Errorf("read scenarios: %w", err)
		}
		more, err := Parse(string(data))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", e.Name(), err)
		}
		list = append(list, more...)
	}
	slices.SortStableFunc(list, func(a, b Scenario) int { return strings.Compare(a.Check, b.Check) })
	return list, nil
}

// Parse reads a file of scenarios.
func Parse(text string) ([]Scenario, error) {
	var f selftestFile
	meta, err := toml.Decode(text, &f)
	if err != nil {
		return nil, err
	}
	for _, key := range meta.Undecoded() {
		if len(key) < 2 || key[1] != "nvml" && key[1] != "error" { // those are free, and judged when they are used
			return nil, fmt.Errorf("unknown key %s", key)
		}
	}
	var list []Scenario
	for _, name := range f.Checks {
		if _, ok := checks.Lookup(name); !ok {
			return nil, fmt.Errorf("no check is called %q", name)
		}
		for _, s := range f.Scenarios {
			s.Check = name
			if s.Node == "" {
				s.Files = merge(without(f.Files, s.Lacks), s.Files)
			}
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("no scenario, or no name of a check")
	}
	return list, nil
}

// without are the files that are left of some; a name that ends in a slash stands
// for all below.
func without(files map[string]string, lacks []string) map[string]string {
	left := maps.Clone(files)
	for _, name := range lacks {
		maps.DeleteFunc(left, func(f, _ string) bool {
			return f == name || strings.HasSuffix(name, "/") && strings.HasPrefix(f, name)
		})
	}
	return left
}

// merge is base, changed by over.
func merge(base, over map[string]string) map[string]string {
	all := maps.Clone(base)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, over)
	return all
}

// compare says what was said that should not have been, and the other way round.
func (s *Scenario) compare(got []checks.Finding) (wrong []string) {
	for i := range max(len(got), len(s.Want)) {
		want, have := "nothing", "nothing"
		if i < len(s.Want) {
			w := s.Want[i]
			w.Message = strings.ReplaceAll(w.Message, "{check}", s.Check)
			want = w.String()
		}
		if i < len(got) {
			have = AsFinding(got[i]).String()
		}
		if want != have {
			wrong = append(wrong, "want "+want, "got  "+have)
		}
	}
	return wrong
}

// AsFinding is what of a finding a scenario tells.
func AsFinding(f checks.Finding) Finding {
	return Finding{Severity: f.Severity.String(), Code: f.Code, Device: f.Device.String(), Remedy: f.Remedy, Message: f.Message}
}

// RawBytes puts bytes where "{xNN}" names them: TOML has no text that is no UTF-8.
func RawBytes(text string) string {
	if !strings.Contains(text, "{x") {
		return text
	}
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "{x")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		text = after
		digits, rest, closed := strings.Cut(after, "}")
		if n, err := strconv.ParseUint(digits, 16, 8); err == nil && closed && len(digits) == 2 {
			b.WriteByte(byte(n))
			text = rest
			continue
		}
		b.WriteString("{x")
	}
}
