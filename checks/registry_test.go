package checks

import (
	stdcmp "cmp"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

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

// scenarios are those of every check, filled by the init functions of the
// tests beside the checks.
var scenarios = map[string][]scenario{}

func testCheck(name string, list ...scenario) { scenarios[name] = append(scenarios[name], list...) }

// of are the words behind the name of a check.
func of(words ...string) []string { return words }

// usageFinding is the failure of a check that was given the wrong words.
func usageFinding(message, want string) Finding {
	return Finding{Code: "config.usage", Severity: Fail, Remedy: FixConfig, Want: want, Message: message}
}

// TestEveryCheckIsTested refuses a check that is not known to pass, to fail,
// and to cope with a broken node.
func TestEveryCheckIsTested(t *testing.T) {
	t.Parallel()
	for _, name := range Names() {
		info, _ := Lookup(name)
		if u, ok := info.New().(interface{ Unsupported() string }); ok && u.Unsupported() != "" {
			continue // see TestUnsupported
		}
		var passes, fails, breaks bool
		for _, s := range scenarios[name] {
			worst := Worst(s.want)
			passes = passes || !s.broken && worst <= Warn
			fails = fails || !s.broken && worst == Fail
			breaks = breaks || s.broken
		}
		if !passes || !fails || !breaks {
			t.Errorf("%s: scenarios for pass: %v, fail: %v, broken node: %v; want all three", name, passes, fails, breaks)
		}
	}
}

// TestEveryGPUCheckFindsOneOfEight refuses a check of GPUs that is not known to
// fail on one bad GPU of eight, and to name it.
func TestEveryGPUCheckFindsOneOfEight(t *testing.T) {
	t.Parallel()
	for _, name := range Names() {
		if info, _ := Lookup(name); info.Lane != NVML {
			continue
		}
		found := slices.ContainsFunc(scenarios[name], func(s scenario) bool {
			return s.nvml != nil && len(s.nvml.GPUs) == 8 && len(s.want) == 1 && s.want[0].Severity == Fail &&
				s.want[0].Device.Name == "gpu3" && strings.Contains(s.want[0].Message, s.want[0].Device.PCI)
		})
		if !found {
			t.Errorf("%s: no scenario in which gpu3 of eight alone fails", name)
		}
	}
}

// TestEveryFindingHasAdvice refuses findings that leave an administrator
// alone, and advice that belongs to no finding.
func TestEveryFindingHasAdvice(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, name := range Names() {
		for _, s := range scenarios[name] {
			for _, f := range s.want {
				seen[f.Code] = true
				if WhatToDo(f.Code) == "" && f.Code != ArrayCode {
					t.Errorf("%s: %s: no Info.Do has a word on the code %q", name, s.name, f.Code)
				}
			}
		}
	}
	for _, name := range Names() {
		info, _ := Lookup(name)
		for code := range info.Do {
			if !seen[code] && (!info.Active || !strings.HasSuffix(code, ".baseline")) { // which the frame's own test shows
				t.Errorf("%s: Info.Do has the code %q, which no scenario shows", name, code)
			}
		}
	}
}

func TestScenarios(t *testing.T) {
	t.Parallel()
	for name, list := range scenarios {
		for _, s := range list {
			t.Run(name+"/"+s.name, func(t *testing.T) {
				t.Parallel()
				s.run(t, name)
			})
		}
	}
}

// prepare makes the scenario's node, and the line's arguments and environment on it.
func (s scenario) prepare(t *testing.T, name string) (root string, words []string, env *Env) {
	t.Helper()
	root = s.build(t)
	words = make([]string, len(s.words))
	for i, w := range s.words {
		words[i] = strings.ReplaceAll(w, "{root}", root)
	}
	vars := map[string]string{}
	for k, v := range s.vars {
		vars[k] = strings.ReplaceAll(v, "{root}", root)
	}
	if s.libraries != nil {
		maps.Copy(vars, s.libraries(t, t.TempDir()))
	}
	env = &Env{
		Host:    probe.NewHost(root),
		Line:    strings.Join(append([]string{name}, words...), " "),
		Timeout: s.timeout,
		Vars:    vars,
		Doing:   func(string) {},
		Slurm:   s.slurm,
	}
	if s.live {
		env.Host = probe.NewHost("/")
	}
	env.Host.SetLibraries(vars)
	if s.dcgm != nil {
		s.dcgm(env.Host)
	}
	env.Job = s.job.on(s.nvml)
	if s.node != "" {
		s.past = stdcmp.Or(s.past, "/past")
	}
	if s.nvml != nil || s.nvmlErr != nil {
		n := s.nvml
		if n != nil { // a check may set something
			own := *n
			own.GPUs = slices.Clone(n.GPUs)
			n = &own
		}
		env.Host.SetNVML(n, s.nvmlErr)
		s.past = stdcmp.Or(s.past, "/past")
	}
	if s.platform != nil {
		env.Platform = func(string, string, int) *Platform { return s.platform }
	}
	env.Host.SetPast(s.past)
	return root, words, env
}

func (s scenario) run(t *testing.T, name string) {
	t.Helper()
	root, words, env := s.prepare(t, name)
	got := s.withoutRates(s.bindAndRun(t, name, words, env))
	for i := range got {
		for _, text := range []*string{&got[i].Message, &got[i].Device.Name, &got[i].Want, &got[i].Got} {
			*text = strings.ReplaceAll(*text, root, "{root}")
		}
	}
	if diff := cmp.Diff(s.want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", env.Line, diff)
	}
	for file, want := range s.leaves {
		awaitContent(t, filepath.Join(root, file), strings.ReplaceAll(want, "{root}", root))
	}
}

// withoutRates leaves out the numbers that an active test tells, unless the scenario
// wants some.
func (s scenario) withoutRates(got []Finding) []Finding {
	isRate := func(f Finding) bool { return f.Severity == OK && strings.HasSuffix(f.Code, ".rates") }
	if slices.ContainsFunc(s.want, isRate) {
		return got
	}
	if got = slices.DeleteFunc(got, isRate); len(got) == 0 {
		return nil
	}
	return got
}

// bindAndRun does what a plan does with a line.
func (s scenario) bindAndRun(t *testing.T, name string, words []string, env *Env) []Finding {
	t.Helper()
	info, ok := Lookup(name)
	if !ok {
		t.Fatalf("no check %s", name)
	}
	c := info.New()
	if err := Bind(c, words); err != nil {
		usage, ok := errors.AsType[*UsageError](err)
		if !ok || info.BadUsage == nil {
			t.Fatalf("Bind: %v", err)
		}
		return []Finding{info.BadUsage(env.Line, usage)}
	}
	if s.table != nil {
		same := info.New()
		if err := BindTable(same, asSent(t, s.table)); err != nil {
			t.Fatalf("BindTable: %v", err)
		}
		everything := cmp.Exporter(func(reflect.Type) bool { return true })
		if diff := cmp.Diff(c, same, everything); diff != "" {
			t.Errorf("the table is another check (-words +table):\n%s", diff)
		}
	}
	if acts := info.Acts != nil && info.Acts(c); acts != s.acts {
		t.Errorf("%s: acts %v, want %v", env.Line, acts, s.acts)
	}
	return Look(t.Context(), env, name, c)
}

// asSent is a table as a worker gets it, whose numbers are all of one kind.
func asSent(t *testing.T, table map[string]any) (sent map[string]any) {
	t.Helper()
	data, err := json.Marshal(table)
	if err == nil {
		err = json.Unmarshal(data, &sent)
	}
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

func (s scenario) build(t testing.TB) (root string) {
	t.Helper()
	root = t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	files, links := s.files, s.links
	if s.node != "" { // they have far more files than a scenario changes
		files, links = s.onBench(t, root)
	}
	for name, content := range files {
		path := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			must(os.MkdirAll(path, 0o755))
			continue
		}
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		must(writeProgram(path, strings.ReplaceAll(content, "{root}", root)))
	}
	for name, target := range links {
		must(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755))
		must(os.Symlink(target, filepath.Join(root, name)))
	}
	for name, when := range s.mtimes {
		must(os.Chtimes(filepath.Join(root, name), when, when))
	}
	must(os.MkdirAll(filepath.Join(root, "bin"), 0o755))
	for _, tool := range s.tools {
		must(os.Symlink("/bin/"+tool, filepath.Join(root, "bin", tool)))
	}
	return root
}

// theBench has the healthy nodes of all scenarios.
var theBench = sync.OnceValues(NewBench)

// onBench lays what a scenario has of a healthy node of the self-test. What is
// left to be written is returned.
func (s scenario) onBench(t testing.TB, root string) (files, links map[string]string) {
	t.Helper()
	b, err := theBench()
	if err != nil {
		t.Fatal(err)
	}
	n := healthyNode(s.node)
	test := Selftest{Node: s.node, Files: map[string]string{}, Links: map[string]string{}}
	for name, content := range s.files {
		if old, ok := n.files[name]; !ok || old != content {
			test.Files[name] = content
		}
	}
	for name, target := range s.links {
		if old, ok := n.links[name]; !ok || old != target {
			test.Links[name] = target
		}
	}
	for name := range n.files {
		if _, ok := s.files[name]; !ok {
			test.Lacks = append(test.Lacks, name)
		}
	}
	for name := range n.links {
		if _, ok := s.links[name]; !ok {
			test.Lacks = append(test.Lacks, name)
		}
	}
	if err := b.lay(&test, n, root); err != nil {
		t.Fatal(err)
	}
	return nil, nil
}

// Nodes are put up where that is quick, before any test asks where.
var _ = func() error {
	var fs syscall.Statfs_t
	const quick, noExec = "/dev/shm", 0x8
	if os.Getenv("TMPDIR") == "" && syscall.Statfs(quick, &fs) == nil && fs.Flags&noExec == 0 && fs.Bavail*uint64(fs.Bsize) > 1<<30 {
		return os.Setenv("TMPDIR", quick)
	}
	return nil
}()

func TestMain(m *testing.M) {
	code := m.Run()
	if b, err := theBench(); err == nil {
		_ = b.Close()
	}
	os.Exit(code)
}

// writeProgram writes a file that may be run. No other test may fork meanwhile:
// its child would hold the file open for writing, and running it would fail
// ("text file busy").
func writeProgram(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o755)
}

// awaitContent waits for what an action in the background writes.
func awaitContent(t *testing.T, path, want string) {
	t.Helper()
	if want == "" {
		time.Sleep(50 * time.Millisecond)
		if data, err := os.ReadFile(path); err == nil {
			t.Errorf("%s: %q, want no such file", path, data)
		}
		return
	}
	var data []byte
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if data, _ = os.ReadFile(path); string(data) == want {
			return
		}
	}
	t.Errorf("%s: %q, want %q", path, data, want)
}

func TestNamesAreSorted(t *testing.T) {
	t.Parallel()
	if names := Names(); len(names) == 0 || !slices.IsSorted(names) {
		t.Errorf("Names() = %v", names)
	}
}

// TestAdviceConflicts: no init function replaces the advice of another, whichever is first.
func TestAdviceConflicts(t *testing.T) {
	t.Parallel()
	for code, text := range map[string]string{"job.none": WhatToDo("job.none"), "gpu.count": WhatToDo("gpu.count")} {
		func() {
			defer func() {
				if recover() == nil || WhatToDo(code) != text {
					t.Errorf("%s: other advice replaces that of its check", code)
				}
			}()
			RegisterAdvice(map[string]string{code: text + " Or not."})
		}()
	}
}

// TestDeadlineCancelsNothing: the supervisor gives a step up; what a check has under way then
// must not fail by itself, and look like a fault of the node.
func TestDeadlineCancelsNothing(t *testing.T) {
	t.Parallel()
	ctx := WithDeadline(t.Context(), time.Now().Add(-time.Second))
	if _, ends := ctx.Deadline(); !ends || ctx.Err() != nil || room(ctx) != 0 {
		t.Errorf("deadline %v, error %v, room %v", ends, ctx.Err(), room(ctx))
	}
}
