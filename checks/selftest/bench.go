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

// Bench is where the nodes of scenarios are put up: a directory that [Bench.Close]
// removes. It may be used by several goroutines.
type Bench struct {
	dir string

	mu   sync.Mutex
	base map[string]string // where the files of each healthy node are
}

// NewBench makes the directory: where TMPDIR says, else where there is room.
func NewBench() (*Bench, error) {
	places := []string{os.TempDir()}
	if os.Getenv("TMPDIR") == "" { // thousands of small files are quickest in memory
		places = []string{"/dev/shm", "/tmp", "/var/tmp"}
	}
	var errs []error
	for _, place := range places {
		b, err := newBench(place)
		if err == nil {
			return b, nil
		}
		errs = append(errs, err)
	}
	return nil, &BenchError{errors.Join(errs...)}
}

// newBench makes the directory, and the healthy nodes in it: most of the room
// that is wanted.
func newBench(place string) (*Bench, error) {
	dir, err := os.MkdirTemp(place, "nhc-gpu-selftest-")
	if err != nil {
		return nil, err
	}
	b := &Bench{dir: dir, base: map[string]string{}}
	for _, name := range []string{"h100", "v100", "fabric", "roce"} {
		n, err := ReadNode(name)
		if err == nil {
			_, err = b.healthy(name, n)
		}
		if err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	return b, nil
}

// BenchError says that a node could not be put up: it is no word on any check.
type BenchError struct{ err error }

func (e *BenchError) Error() string {
	return "no place to put up nodes (TMPDIR=DIR names another): " + checks.OneLine(e.err)
}

func (e *BenchError) Unwrap() error { return e.err }

// benchError tells what the file system refused from what a scenario asks for.
func benchError(err error) error {
	_, isPath := errors.AsType[*fs.PathError](err)
	_, isLink := errors.AsType[*os.LinkError](err)
	if isPath || isLink {
		return &BenchError{err}
	}
	return fmt.Errorf("make a node: %w", err)
}

// Close removes all that was put up.
func (b *Bench) Close() error { return os.RemoveAll(b.dir) }

// selftestLimit bounds one scenario; they take milliseconds.
const selftestLimit = 10 * time.Second

// Try has the check judge the node of a scenario. What it said is returned, and
// what was wrong about that: nothing, if it behaved. Where one GPU of eight is
// ill the first and the last take their turn, too. The error is a [BenchError].
func (b *Bench) Try(ctx context.Context, s *Scenario) (got []checks.Finding, wrong []string, err error) {
	got, wrong, err = b.try(ctx, s)
	for _, ill := range []int{0, selftestGPUs - 1} {
		if moved := s.Moved(ill); moved != nil && wrong == nil && err == nil {
			if _, wrong, err = b.try(ctx, moved); wrong != nil {
				wrong = append([]string{fmt.Sprintf("once gpu%d is the one:", ill)}, wrong...)
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
	ctx, cancel := context.WithCancel(ctx) // with a deadline a check would wait for ports that start
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
		return nil, []string{fmt.Sprintf("the check did not come back within %s", selftestLimit)}, nil
	}
}

// judge does what a worker does with a line: it binds the words and runs the
// check, on a node that is a directory and a snapshot.
func (b *Bench) judge(ctx context.Context, s *Scenario) (findings []checks.Finding, err error) {
	info, ok := checks.Lookup(s.Check)
	if !ok {
		return nil, fmt.Errorf("no check is called %q", s.Check)
	}
	root, err := os.MkdirTemp(b.dir, "node-")
	if err != nil {
		return nil, benchError(err)
	}
	defer os.RemoveAll(root)
	defer func() {
		if p := recover(); p != nil {
			findings, err = nil, fmt.Errorf("the check died: %v", p)
		}
	}()
	host, job, err := b.build(s, root)
	if err != nil {
		return nil, benchError(err)
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
	// What a check does about what it finds it would do to this machine. A
	// snapshot of NVML takes changes without anybody else noticing.
	if info.Lane != checks.NVML && (info.Lane != checks.Local || info.Acts != nil && info.Acts(c)) {
		return nil, fmt.Errorf("%s runs commands, or changes things: it is not tried", line)
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

// build puts up the node below root.
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

// Kept are the files of the healthy node that the scenario leaves as they are.
func (s *Scenario) Kept(n *Node) map[string]string {
	files := without(n.Files, s.Lacks)
	for name := range s.Files {
		delete(files, name)
	}
	return files
}

// KeptLinks are the links of the healthy node that the scenario leaves as they are.
func (s *Scenario) KeptLinks(n *Node) map[string]string {
	links := without(n.Links, s.Lacks)
	for name := range s.Links {
		delete(links, name)
	}
	return links
}

// Lay makes the files of a node. Those of the healthy node are there once for
// all scenarios: a directory of which nothing is changed is a link to it.
func (b *Bench) Lay(s *Scenario, n *Node, root string) error {
	base, err := b.healthy(s.Node, n)
	if err != nil {
		return err
	}
	kept, links := s.Kept(n), s.KeptLinks(n)
	own := map[string]bool{} // directories that are not as the healthy node has them
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
		if _, ok := links[name]; !ok || !strings.HasPrefix(name, "sys/devices/") { // what leads there has to lead to this node
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
			if r == '/' && !own[name[:i]] { // the whole directory is as it was
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

// healthy is where the files of a healthy node are; they are made when they are
// first asked for.
func (b *Bench) healthy(name string, n *Node) (string, error) {
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

// Place makes a file below root, or a directory if its name ends in a slash.
func Place(root, name, content string) error {
	if !filepath.IsLocal(name) {
		return fmt.Errorf("%q is not below the node's root", name)
	}
	file := filepath.Join(root, name)
	if strings.HasSuffix(name, "/") {
		return os.MkdirAll(file, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(content), 0o644)
}

func link(how func(from, to string) error, target, root, name string) error {
	if !filepath.IsLocal(name) {
		return fmt.Errorf("%q is not below the node's root", name)
	}
	file := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return how(target, file)
}
