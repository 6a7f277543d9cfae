package selftest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// Bench is a directory for the nodes of scenarios. [Bench.Close] removes it. Several goroutines can use
// it.
type Bench struct {
	dir string

	mu   sync.Mutex
	base map[string]string // directory of each healthy node
}

// NewBench creates the directory in TMPDIR, or without TMPDIR in a directory with enough space for
// these healthy nodes, without arguments for all.
func NewBench(nodes ...string) (*Bench, error) {
	if len(nodes) == 0 {
		nodes = []string{"h100", "v100", "fabric", "roce"}
	}
	places := []string{os.TempDir()}
	if os.Getenv("TMPDIR") == "" { // thousands of small files are fastest in memory
		places = []string{"/dev/shm", "/tmp", "/var/tmp"}
	}
	var errs []error
	for _, place := range places {
		b, err := newBench(place, nodes)
		if err == nil {
			return b, nil
		}
		errs = append(errs, err)
	}
	return nil, &BenchError{errors.Join(errs...)}
}

// newBench creates the directory with the healthy nodes, which need most of the space.
func newBench(place string, nodes []string) (*Bench, error) {
	dir, err := os.MkdirTemp(place, "nhc-gpu-selftest-")
	if err != nil {
		return nil, err
	}
	b := &Bench{dir: dir, base: map[string]string{}}
	for _, name := range nodes {
		n, err := ReadNode(name)
		if err == nil {
			_, err = b.buildHealthy(name, n)
		}
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	return b, nil
}

// BenchError is an error of the file system: a node could not be created, and no check was tested.
type BenchError struct{ err error }

func (e *BenchError) Error() string {
	return "cannot create test nodes (set TMPDIR to another directory): " + checks.OneLine(e.err)
}

func (e *BenchError) Unwrap() error { return e.err }

// wrapError returns a [BenchError] for an error of the file system, and another error for a wrong
// scenario.
func wrapError(err error) error {
	_, isPath := errors.AsType[*fs.PathError](err)
	_, isLink := errors.AsType[*os.LinkError](err)
	if isPath || isLink {
		return &BenchError{err}
	}
	return fmt.Errorf("create a node: %w", err)
}

// Close removes the directory.
func (b *Bench) Close() error { return os.RemoveAll(b.dir) }

// selftestLimit is the time limit of a scenario, which normally takes milliseconds.
const selftestLimit = 10 * time.Second

// Try runs the check on the node of a scenario. It returns the findings, and the differences from the
// wanted ones. If one GPU of eight is faulty it also tries the scenario with the first and the last GPU
// instead. The error is a [BenchError].
func (b *Bench) Try(ctx context.Context, s *Scenario) (got []checks.Finding, wrong []string, err error) {
	got, wrong, err = b.try(ctx, s)
	for _, faulty := range []int{0, selftestGPUs - 1} {
		if moved := s.Moved(faulty); moved != nil && wrong == nil && err == nil {
			if _, wrong, err = b.try(ctx, moved); wrong != nil {
				wrong = append([]string{fmt.Sprintf("with gpu%d as the faulty one:", faulty)}, wrong...)
			}
		}
	}
	return got, wrong, err
}

func (b *Bench) try(ctx context.Context, s *Scenario) (got []checks.Finding, wrong []string, err error) {
	type answer struct {
		findings []checks.Finding
		err      error
	}
	ctx, cancel := context.WithCancel(ctx) // with a deadline a check would wait for starting ports
	defer cancel()
	defer time.AfterFunc(selftestLimit, cancel).Stop()
	done := make(chan answer, 1)
	go func() {
		findings, err := b.judge(ctx, s)
		done <- answer{findings, err}
	}()
	select {
	case a := <-done:
		if _, ok := errors.AsType[*BenchError](a.err); ok {
			return nil, nil, a.err
		}
		if a.err != nil {
			return nil, []string{a.err.Error()}, nil
		}
		return a.findings, s.compare(a.findings), nil
	case <-ctx.Done():
		return nil, []string{fmt.Sprintf("the check did not return within %s", selftestLimit)}, nil
	}
}

// judge runs a line as a worker does, on a node that consists of a directory and a snapshot of NVML.
func (b *Bench) judge(ctx context.Context, s *Scenario) (findings []checks.Finding, err error) {
	info, ok := checks.Lookup(s.Check)
	if !ok {
		return nil, fmt.Errorf("no check is called %q", s.Check)
	}
	root, err := os.MkdirTemp(b.dir, "node-")
	if err != nil {
		return nil, wrapError(err)
	}
	defer os.RemoveAll(root)
	defer func() {
		if p := recover(); p != nil {
			findings, err = nil, fmt.Errorf("the check crashed: %v", p)
		}
	}()
	host, job, err := b.build(s, root)
	if err != nil {
		return nil, wrapError(err)
	}
	here := func(text string) string { return strings.ReplaceAll(text, "{root}", root) }
	words := make([]string, len(s.Words))
	for i, w := range s.Words {
		words[i] = here(w)
	}
	c := info.New()
	if err := checks.Bind(c, words); err != nil {
		return nil, err
	}
	line := strings.Join(append([]string{s.Check}, words...), " ")
	// A check with an action would act on this machine. A check of NVML only changes the snapshot.
	if info.Lane != checks.NVML && (info.Lane != checks.Local || info.Acts != nil && info.Acts(c)) {
		return nil, fmt.Errorf("not tested, it runs commands or changes the machine: %s", line)
	}
	vars := map[string]string{}
	for k, v := range s.Vars {
		vars[k] = here(v)
	}
	findings = checks.Look(ctx, &checks.Env{Host: host, Job: job, Line: line, Vars: vars, Slurm: s.Slurm, Doing: func(string) {}, Platform: func(string, string, int) *checks.Platform { return s.Platform }}, s.Check, c)
	for i := range findings {
		f := &findings[i]
		f.Message = strings.ReplaceAll(f.Message, root, "{root}")
		f.Device.Name = strings.ReplaceAll(f.Device.Name, root, "{root}")
	}
	return findings, nil
}

// build creates the node below root.
func (b *Bench) build(s *Scenario, root string) (*probe.Host, *checks.Job, error) {
	n, err := ReadNode(s.Node)
	if err != nil {
		return nil, nil, err
	}
	if err := b.Lay(s, n, root); err != nil {
		return nil, nil, err
	}
	h := probe.NewHost(root)
	switch s.Past {
	case "":
		h.SetPast("/past")
	case "none":
	default:
		h.SetPast(s.Past)
	}
	if err := n.Change(s.NVML); err != nil {
		return nil, nil, err
	}
	switch {
	case s.Error != nil:
		why, err := ParseError(s.Error)
		if err != nil {
			return nil, nil, err
		}
		nvml.Set(h, nil, why)
	case n.NVML != nil:
		nvml.Set(h, n.NVML, nil)
	}
	return h, s.Job.On(n.NVML), nil
}

// Kept returns the files of the healthy node that the scenario does not change.
func (s *Scenario) Kept(n *Node) map[string]string {
	files := remove(n.Files, s.Lacks)
	for name := range s.Files {
		delete(files, name)
	}
	return files
}

// KeptLinks returns the links of the healthy node that the scenario does not change.
func (s *Scenario) KeptLinks(n *Node) map[string]string {
	links := remove(n.Links, s.Lacks)
	for name := range s.Links {
		delete(links, name)
	}
	return links
}

// Lay creates the files of a node. All scenarios share the files of the healthy node: an unchanged
// directory is a link to that of the healthy node.
func (b *Bench) Lay(s *Scenario, n *Node, root string) error {
	base, err := b.buildHealthy(s.Node, n)
	if err != nil {
		return err
	}
	kept, links := s.Kept(n), s.KeptLinks(n)
	own := map[string]bool{} // directories that differ from the healthy node
	owns := func(name string) {
		for dir := filepath.Dir(name); dir != "."; dir = filepath.Dir(dir) {
			own[dir] = true
		}
	}
	for name := range n.Files {
		if _, ok := kept[name]; !ok {
			owns(name)
		}
	}
	for name := range n.Links {
		if _, ok := links[name]; !ok || !strings.HasPrefix(name, "sys/devices/") { // links to changed directories must lead to this node
			owns(name)
		}
	}
	for name, content := range s.Files {
		owns(name)
		content = strings.ReplaceAll(RawBytes(content), "{root}", root)
		if err := Place(root, name, content); err != nil {
			return err
		}
	}
	for name, target := range s.Links {
		owns(name)
		if err := link(os.Symlink, target, root, name); err != nil {
			return err
		}
	}
	layOne := func(name string, how func(string, string) error, target string) error {
		for i, r := range name {
			if r == '/' && !own[name[:i]] { // the whole directory is unchanged
				name, how, target = name[:i], os.Symlink, filepath.Join(base, name[:i])
				break
			}
		}
		if err := link(how, target, root, name); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	}
	for name := range kept {
		if err := layOne(name, os.Link, filepath.Join(base, name)); err != nil {
			return err
		}
	}
	for name, target := range links {
		if err := layOne(name, os.Symlink, target); err != nil {
			return err
		}
	}
	return nil
}

// buildHealthy returns the directory of a healthy node, and creates it at the first call.
func (b *Bench) buildHealthy(name string, n *Node) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if dir := b.base[name]; dir != "" {
		return dir, nil
	}
	dir, err := os.MkdirTemp(b.dir, "healthy-")
	if err != nil {
		return "", err
	}
	for file, content := range n.Files {
		if err := Place(dir, file, content); err != nil {
			return "", err
		}
	}
	for file, target := range n.Links {
		if err := link(os.Symlink, target, dir, file); err != nil {
			return "", err
		}
	}
	b.base[name] = dir
	return dir, nil
}

// Place creates a file below root, or a directory if its name ends in a slash.
func Place(root, name, content string) error {
	if !filepath.IsLocal(name) {
		return fmt.Errorf("%q is not a path below the node's root", name)
	}
	file := filepath.Join(root, name)
	if strings.HasSuffix(name, "/") {
		return os.MkdirAll(file, 0o755)
	}
	return inDir(file, func() error { return os.WriteFile(file, []byte(content), 0o644) })
}

func link(how func(from, to string) error, target, root, name string) error {
	if !filepath.IsLocal(name) {
		return fmt.Errorf("%q is not a path below the node's root", name)
	}
	file := filepath.Join(root, name)
	return inDir(file, func() error { return how(target, file) })
}

// inDir creates a file, and its directory if that is missing: most files share one with others.
func inDir(file string, create func() error) error {
	err := create()
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(file), 0o755); err == nil {
			err = create()
		}
	}
	return err
}
