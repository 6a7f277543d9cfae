package checktest

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// Build creates the scenario's node and returns its directory.
func (s Scenario) Build(t testing.TB) (root string) {
	t.Helper()
	root = t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	files, links, made := s.Files, s.Links, map[string]bool{}
	makeDir := func(path string) {
		if dir := filepath.Dir(path); !made[dir] {
			made[dir] = true
			must(os.MkdirAll(dir, 0o755))
		}
	}
	if s.Node != "" { // these nodes have far more files than a scenario changes
		files, links = s.onBench(t, root)
	}
	for name, content := range files {
		path := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			must(os.MkdirAll(path, 0o755))
			continue
		}
		makeDir(path)
		must(WriteProgram(path, strings.ReplaceAll(content, "{root}", root)))
	}
	for name, target := range links {
		makeDir(filepath.Join(root, name))
		must(os.Symlink(target, filepath.Join(root, name)))
	}
	for name, when := range s.Mtimes {
		must(os.Chtimes(filepath.Join(root, name), when, when))
	}
	must(os.MkdirAll(filepath.Join(root, "bin"), 0o755))
	for _, tool := range s.Tools {
		must(os.Symlink("/bin/"+tool, filepath.Join(root, "bin", tool)))
	}
	return root
}

// theBench holds the healthy nodes of all scenarios.
var theBench = sync.OnceValues(func() (*selftest.Bench, error) { return selftest.NewBench() })

// onBench links the files that a scenario shares with a healthy node of the self-test. It
// returns the files and links that remain to be written.
func (s Scenario) onBench(t testing.TB, root string) (files, links map[string]string) {
	t.Helper()
	b, err := theBench()
	if err != nil {
		t.Fatal(err)
	}
	n := healthyNode(s.Node)
	test := selftest.Scenario{Node: s.Node}
	var unlinked []string
	test.Files, test.Lacks = diffFiles(s.Files, n.Files)
	test.Links, unlinked = diffFiles(s.Links, n.Links)
	test.Lacks = append(test.Lacks, unlinked...)
	if err := b.Lay(&test, n, root); err != nil {
		t.Fatal(err)
	}
	return nil, nil
}

// diffFiles returns the files (or the links) that a scenario has and its node has not, or has otherwise, and the names
// of those that only the node has.
func diffFiles(scenario, node map[string]string) (differ map[string]string, lacks []string) {
	differ = map[string]string{}
	for name, content := range scenario {
		if old, ok := node[name]; !ok || old != content {
			differ[name] = content
		}
	}
	for name := range node {
		if _, ok := scenario[name]; !ok {
			lacks = append(lacks, name)
		}
	}
	return differ, lacks
}

// healthyNodes returns the nodes that scenarios start from.
func healthyNodes() map[string]*selftest.Node {
	files := fakenvml.Files(fakenvml.H100, 8)
	return map[string]*selftest.Node{
		"h100": {NVML: H100s(), Files: files}, "v100": {NVML: V100s(), Files: files}, "empty": {NVML: new(nvml.Snapshot)}, "": {},
		"fabric": FabricNode(fakesys.DGXH100()), "roce": FabricNode(fakesys.RoCE()),
	}
}

// healthyNode returns one of them.
var healthyNode = func() func(string) *selftest.Node {
	nodes := sync.OnceValue(healthyNodes)
	return func(name string) *selftest.Node { return nodes()[name] }
}()

// FabricNode returns a node of eight GPUs, with an adapter and a disk next to each.
func FabricNode(sys *fakesys.Node) *selftest.Node {
	files := maps.Clone(sys.Files)
	for name, content := range fakenvml.Files(fakenvml.H100, 8) {
		if strings.HasPrefix(name, "dev/") || strings.HasPrefix(name, "proc/driver/") {
			files[name] = content
		}
	}
	return &selftest.Node{NVML: H100s(), Files: files, Links: maps.Clone(sys.Links)}
}

// Nodes are created on a fast file system, before any test needs the directory.
var _ = func() error {
	var fs syscall.Statfs_t
	const quick, noExec = "/dev/shm", 0x8
	if os.Getenv("TMPDIR") == "" && syscall.Statfs(quick, &fs) == nil && fs.Flags&noExec == 0 && fs.Bavail*uint64(fs.Bsize) > 1<<30 {
		return os.Setenv("TMPDIR", quick)
	}
	return nil
}()

// RunTests is the TestMain of each package with checks.
func RunTests(m *testing.M) {
	code := m.Run()
	if b, err := theBench(); err == nil {
		_ = b.Close()
	}
	os.Exit(code)
}

// WriteProgram writes an executable file. No other test may fork at the same time: its child
// would hold the file open for writing, and starting the program would fail ("text file
// busy").
func WriteProgram(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o755)
}
