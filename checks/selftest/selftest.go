// Package selftest tests checks on small built-in nodes.
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

// The built-in scenarios: a node, and the findings that a check must report on it. With them a site
// can show on its own machine that each check fails when it should. The unit tests write their
// scenarios to checks/selftest; only nhc-gpu selftest reads them.

//go:embed *.toml nodes
var selftestData embed.FS

// Scenario is one scenario: a node, a line of nhc.conf, and the wanted findings.
type Scenario struct {
	Check string             `toml:"-"`
	Name  string             `toml:"name"`  // the fault
	Words []string           `toml:"words"` // arguments of the check
	Vars  map[string]string  `toml:"vars"`  // variables of nhc.conf
	Slurm *jobscan.SlurmGPUs `toml:"slurm"` // the node's GPUs in Slurm's configuration
	Past  string             `toml:"past"`  // directory with the state of earlier runs; "": /past, "none": no directory

	Node  string            `toml:"node"`  // healthy node of checks/selftest/nodes that the keys below change; "": an empty node
	NVML  map[string]any    `toml:"nvml"`  // changed values of NVML: "gpu3.ECC.SRAM.Uncorrected" = 2
	Error map[string]any    `toml:"error"` // error of NVML
	Files map[string]string `toml:"files"` // a name that ends in a slash is a directory
	Lacks []string          `toml:"lacks"` // removed files; a name that ends in a slash: all files below
	Links map[string]string `toml:"links"` // symbolic links
	Still bool              `toml:"still"` // the fault cannot be moved to another device

	Platform *checks.Platform `toml:"platform"` // platform of all GPUs; none: unknown

	Job *Job `toml:"job"` // ended job

	Want []Finding `toml:"want"` // in order; none: the check passes
}

// Job is a job that has ended on the node.
type Job struct {
	ID     string `toml:"id"`
	UID    int    `toml:"uid"`
	User   string `toml:"user"`
	GPUs   []int  `toml:"gpus"`   // numbers
	Shared bool   `toml:"shared"` // other jobs use parts of them
}

// On returns the job on a node with those GPUs; nil without a job.
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

// Finding is a wanted finding. "{check}" in the message stands for the check's name, "{root}" for the
// directory of the node.
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

// selftestFile is a file of checks/selftest, or a file of the site.
type selftestFile struct {
	Checks    []string          `toml:"checks"` // all names of one check
	Files     map[string]string `toml:"files"`  // files of each scenario without a node
	Scenarios []Scenario        `toml:"scenario"`
}

// All returns the built-in scenarios, ordered by check.
func All() ([]Scenario, error) { return read("") }

// With returns the scenarios of the files that have a finding with a code. Reading all files takes
// much longer.
func With(code string) ([]Scenario, error) { return read(fmt.Sprintf("code = %q\n", code)) }

// read returns the scenarios of the files that contain a text.
func read(text string) ([]Scenario, error) {
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
		if !strings.Contains(string(data), text) {
			continue
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

// Parse parses a file of scenarios.
func Parse(text string) ([]Scenario, error) {
	var f selftestFile
	meta, err := toml.Decode(text, &f)
	if err != nil {
		return nil, err
	}
	for _, key := range meta.Undecoded() {
		if len(key) < 2 || key[1] != "nvml" && key[1] != "error" { // Node.Change judges these
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
				s.Files = merge(remove(f.Files, s.Lacks), s.Files)
			}
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return nil, errors.New("no scenario, or no name of a check")
	}
	return list, nil
}

// remove returns the files without some; a name that ends in a slash stands for all files below.
func remove(files map[string]string, lacks []string) map[string]string {
	left := maps.Clone(files)
	for _, name := range lacks {
		maps.DeleteFunc(left, func(f, _ string) bool {
			return f == name || strings.HasSuffix(name, "/") && strings.HasPrefix(f, name)
		})
	}
	return left
}

// merge returns base with the entries of over.
func merge(base, over map[string]string) map[string]string {
	all := maps.Clone(base)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, over)
	return all
}

// compare returns the differences between the findings and the wanted ones.
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

// AsFinding returns the parts of a finding that scenarios compare.
func AsFinding(f checks.Finding) Finding {
	return Finding{Severity: f.Severity.String(), Code: f.Code, Device: f.Device.String(), Remedy: f.Remedy, Message: f.Message}
}

// RawBytes replaces "{xNN}" by that byte: TOML texts are always UTF-8.
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
